//! Digits of an answer's numbers. A grammar lets most numbers go on for ever, and a weak model may write digits until
//! its limit. So digits that no reader would keep are forbidden, wherever the grammar lets a number end before them. So
//! are values within one another that no reader would follow.

use std::sync::Arc;

use super::Grammar;
use crate::engine::vocab::{TokenKind, Vocab};

/// Digits of an integer: room for one of 128 bits, such as an identifier.
const WHOLE_MAX: u32 = 40;
/// Digits of a fraction that tell every double apart.
const FRACTION_MAX: u32 = 17;
/// The same where a bound is open: of so many digits no two numbers are one double, so none reads as the bound.
const FRACTION_MAX_OPEN: u32 = 15;
/// Digits behind a point, zeros before the first other one among them.
const BEHIND_POINT_MAX: u32 = 40;
const EXPONENT_MAX: u32 = 3;
/// The first digits of the largest double, which is below 1.8e308, and the power of ten from which on every number is one.
const LARGEST_DIGITS: u64 = 17_976_931_348_623_157;
const SMALLEST_POWER: i32 = -323;
/// Arrays and objects within one another: what the reader of calls follows, less those around the arguments.
const NESTED_MAX: u32 = 56;

/// A vocabulary's tokens as far as numbers are concerned.
#[derive(Debug, Default)]
pub(super) struct Numerals {
    /// Those that go on with a number, and their bytes.
    tokens: Vec<(u32, Vec<u8>)>,
    /// Those with brackets that may open arrays or objects, how many, and their bytes; those with most come first.
    opening: Vec<(u32, u32, Vec<u8>)>,
}

impl Numerals {
    pub(super) fn of(vocab: &dyn Vocab) -> Numerals {
        let goes_on = |bytes: &[u8]| bytes.first().is_some_and(|b| b.is_ascii_digit() || b".eE+-".contains(b));
        let normal = (0..vocab.len() as u32).filter(|id| vocab.kind(*id) == TokenKind::Normal);
        let normal: Vec<(u32, Vec<u8>)> = normal.map(|id| (id, vocab.bytes(id))).collect();
        let opening = normal.iter().map(|(id, bytes)| (*id, brackets(bytes), bytes.clone()));
        let mut opening: Vec<(u32, u32, Vec<u8>)> = opening.filter(|(_, many, _)| *many > 0).collect();
        opening.sort_by_key(|(_, many, _)| std::cmp::Reverse(*many));
        Numerals { opening, tokens: normal.into_iter().filter(|(_, bytes)| goes_on(bytes)).collect() }
    }

    /// Forbids in `row` the tokens that write more digits than count or nest too deep, where others are left.
    pub(super) fn limit(&self, at: &Digits, row: &mut [f32]) {
        let allowed = |row: &[f32], id: u32| row.get(id as usize).is_some_and(|logit| *logit != f32::NEG_INFINITY);
        let room = NESTED_MAX.saturating_sub(at.depth);
        // In a text a bracket opens nothing before a quote.
        let in_text = at.within == Begins::Json && matches!(at.place, Place::Text | Place::Escape);
        let may = |bytes: &[u8]| !in_text || bytes.contains(&b'"');
        let beyond = self.opening.iter().take_while(|(_, many, _)| *many > room);
        let beyond = beyond.filter(|(id, _, bytes)| may(bytes) && allowed(row, *id) && at.deepest(bytes) > NESTED_MAX);
        forbid_some(beyond.map(|(id, _, _)| *id).collect(), row);
        let Some(number) = at.number() else { return };
        let beyond = |(id, bytes): &(u32, Vec<u8>)| {
            (allowed(row, *id) && !number.goes_on(bytes, at.fraction_max)).then_some(*id)
        };
        forbid_some(self.tokens.iter().filter_map(beyond).collect(), row);
    }
}

/// Brackets that open arrays or objects, unless they stand in a text.
fn brackets(bytes: &[u8]) -> u32 {
    bytes.iter().map(|byte| u32::from(b"{[".contains(byte))).sum()
}

/// Forbids tokens that are allowed, if they are not all that are.
fn forbid_some(beyond: Vec<u32>, row: &mut [f32]) {
    if beyond.is_empty() || row.iter().filter(|logit| **logit != f32::NEG_INFINITY).count() == beyond.len() {
        return;
    }
    beyond.into_iter().for_each(|id| row[id as usize] = f32::NEG_INFINITY);
}

/// Where JSON stands in what a grammar of calls allows.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) begins: Begins,
    /// Marks that no text holds: what follows the first is calls.
    pub(super) openings: Vec<String>,
    /// Calls are JSON, or names and JSON.
    pub(super) json_calls: bool,
    /// Where calls are tags: what stands before the arguments of one that is JSON all the same.
    pub(super) whole: Vec<String>,
    /// The head of each function, and what stands before those of its values that are JSON.
    pub(super) functions: Vec<(String, Vec<String>)>,
    /// What stands behind a value or a call.
    pub(super) ends: Vec<String>,
    /// Special tokens of its marks.
    pub(super) marks: Vec<(String, u32)>,
}

/// How an answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Begins {
    #[default]
    Json,
    Tags,
    Text,
}

/// Where an answer stands.
#[derive(Clone, Debug)]
pub(super) struct Digits {
    layout: Arc<Layout>,
    /// In JSON; elsewhere numbers are text.
    within: Begins,
    place: Place,
    fraction_max: u32,
    /// The last bytes outside of JSON's strings.
    tail: Vec<u8>,
    tail_max: usize,
    /// The function that is being called.
    function: Option<usize>,
    /// Arrays and objects that are open.
    depth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Between,
    Text,
    /// Behind a backslash in a text.
    Escape,
    Number(Number),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Number {
    part: Part,
    /// From the first digit on that is no 0.
    significant: u32,
    behind_point: u32,
    exponent: u32,
    /// The first of the significant digits, as many as tell every double apart.
    first: u64,
    /// Significant digits before the point, and zeros between it and the first significant one.
    before_point: i32,
    zeros: i32,
    /// What the exponent says.
    power: i32,
    negative: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Part {
    #[default]
    Whole,
    Fraction,
    Exponent,
}

impl Digits {
    /// At the beginning of an answer.
    pub(super) fn of(grammar: &Grammar, layout: Layout) -> Digits {
        let is_open = |key: &str| grammar.schemas().iter().any(|schema| schema.to_string().contains(key));
        let open = ["\"exclusiveMinimum\"", "\"exclusiveMaximum\""].into_iter().any(is_open);
        let functions = layout.functions.iter().flat_map(|(head, own)| [head].into_iter().chain(own));
        let sought = layout.openings.iter().chain(&layout.whole).chain(&layout.ends).chain(functions);
        Digits {
            within: layout.begins,
            place: Place::Between,
            fraction_max: if open { FRACTION_MAX_OPEN } else { FRACTION_MAX },
            tail: Vec::new(),
            tail_max: sought.map(String::len).max().unwrap_or(0),
            function: None,
            depth: 0,
            layout: Arc::new(layout),
        }
    }

    /// The number that is being written.
    fn number(&self) -> Option<Number> {
        match self.place {
            Place::Number(number) if self.within == Begins::Json => Some(number),
            _ => None,
        }
    }

    /// How many arrays and objects are open within one another where a token opens most of them. It may end a text
    /// before that.
    fn deepest(&self, bytes: &[u8]) -> u32 {
        let mut own = self.clone();
        let each = bytes.iter().map(|byte| {
            own.step(*byte);
            own.depth
        });
        each.max().unwrap_or(0)
    }

    /// Goes on with a token.
    pub(super) fn took(&mut self, id: u32, vocab: &dyn Vocab) {
        let layout = Arc::clone(&self.layout);
        match layout.marks.iter().find(|(_, own)| *own == id) {
            Some((mark, _)) => drop(self.take(mark.as_bytes())),
            None if vocab.kind(id) == TokenKind::Normal => drop(self.take(&vocab.bytes(id))),
            None => {}
        }
    }

    /// Goes on; false where a number has more digits than count.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let mut good = true;
        for byte in bytes {
            good &= self.step(*byte);
        }
        good
    }

    fn step(&mut self, byte: u8) -> bool {
        let mut good = true;
        if self.within == Begins::Json {
            good = self.step_in_json(byte);
            if matches!(self.place, Place::Text | Place::Escape) {
                self.tail.clear();
                return good;
            }
        }
        self.remember(byte);
        let within = self.within;
        self.within = self.leads_to();
        if self.within != within {
            (self.place, self.depth) = (Place::Between, 0);
        }
        good
    }

    /// Keeps the last bytes, twice as many as are sought at most.
    fn remember(&mut self, byte: u8) {
        if self.tail.len() >= 2 * self.tail_max {
            self.tail.drain(..self.tail.len() - self.tail_max.min(self.tail.len()));
        }
        self.tail.push(byte);
    }

    /// Where what was written leads.
    fn leads_to(&mut self) -> Begins {
        let layout = Arc::clone(&self.layout);
        let ends = |text: &String| self.tail.ends_with(text.as_bytes());
        let calls = if layout.json_calls { Begins::Json } else { Begins::Tags };
        match self.within {
            Begins::Text if layout.openings.iter().any(ends) => calls,
            Begins::Text => Begins::Text,
            // Of a form, or of a call that was opened in its place.
            Begins::Json if layout.json_calls => Begins::Json,
            Begins::Json if layout.openings.iter().chain(&layout.ends).any(ends) => Begins::Tags,
            Begins::Json => Begins::Json,
            Begins::Tags => {
                self.function = layout.functions.iter().position(|(head, _)| ends(head)).or(self.function);
                let own = self.function.and_then(|at| layout.functions.get(at));
                let json = own.is_some_and(|(_, heads)| heads.iter().any(ends)) || layout.whole.iter().any(ends);
                if json { Begins::Json } else { Begins::Tags }
            }
        }
    }

    fn step_in_json(&mut self, byte: u8) -> bool {
        let mut good = true;
        if !matches!(self.place, Place::Text | Place::Escape) {
            match byte {
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.place = match (self.place, byte) {
            (Place::Text, b'\\') => Place::Escape,
            (Place::Text, b'"') => Place::Between,
            (Place::Text | Place::Escape, _) => Place::Text,
            (Place::Number(mut number), b'.' | b'e' | b'E' | b'+' | b'-' | b'0'..=b'9') => {
                good = number.step(byte, self.fraction_max);
                Place::Number(number)
            }
            (Place::Between | Place::Number(_), b'"') => Place::Text,
            (Place::Between, b'-') => Place::Number(Number::default()),
            (Place::Between, b'0'..=b'9') => {
                let mut number = Number::default();
                good = number.step(byte, self.fraction_max);
                Place::Number(number)
            }
            (Place::Between | Place::Number(_), _) => Place::Between,
        };
        good
    }
}

impl Number {
    /// Whether no digit of what follows, as far as it belongs to the number, is one too many.
    fn goes_on(mut self, bytes: &[u8], fraction_max: u32) -> bool {
        let mut own = bytes.iter().take_while(|byte| byte.is_ascii_digit() || b".eE+-".contains(byte));
        own.all(|byte| self.step(*byte, fraction_max))
    }

    fn step(&mut self, byte: u8, fraction_max: u32) -> bool {
        match (byte, self.part) {
            // A digit must follow.
            (b'.', _) => {
                self.part = Part::Fraction;
                self.significant < fraction_max
            }
            (b'0'..=b'9', Part::Exponent) => {
                self.exponent += 1;
                self.power = self.power.saturating_mul(10).saturating_add(i32::from(byte - b'0'));
                self.exponent <= EXPONENT_MAX && self.is_double()
            }
            (b'0'..=b'9', part) => {
                let counts = self.significant > 0 || byte != b'0';
                self.significant += u32::from(counts);
                self.behind_point += u32::from(part == Part::Fraction);
                if counts && self.significant <= FRACTION_MAX {
                    self.first = self.first * 10 + u64::from(byte - b'0');
                }
                match part {
                    Part::Whole => self.before_point += i32::from(counts),
                    _ => self.zeros += i32::from(!counts),
                }
                let most = if part == Part::Fraction { fraction_max } else { WHOLE_MAX };
                self.significant <= most && self.behind_point <= BEHIND_POINT_MAX
            }
            (b'-', Part::Exponent) => {
                self.negative = true;
                true
            }
            _ => {
                self.part = Part::Exponent;
                true
            }
        }
    }

    /// A double holds it: it is neither beyond the largest nor nothing to the smallest.
    fn is_double(&self) -> bool {
        let Some(missing) = FRACTION_MAX.checked_sub(self.significant.min(FRACTION_MAX)) else { return true };
        let first = if self.before_point > 0 { self.before_point - 1 } else { -1 - self.zeros };
        let power = if self.negative { self.power.saturating_neg() } else { self.power }.saturating_add(first);
        match power {
            _ if self.first == 0 => true,
            308 => self.first.saturating_mul(10u64.pow(missing)) <= LARGEST_DIGITS,
            power => (SMALLEST_POWER..308).contains(&power),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn digits_count_in_numbers_alone() {
        let long = "1".repeat(60);
        let of =
            |schema: Value, text: &str| Digits::of(&Grammar::Json(schema), Layout::default()).take(text.as_bytes());
        let open = json!({"exclusiveMaximum": 1});
        for (text, good, good_open) in [
            (format!("{{\"{long}\": \"{long}\\\"{long}\"}}"), true, true),
            (format!("[{}, -{}]", u64::MAX, u64::MAX), true, true),
            (format!("[{}, -{}]", u128::MAX, i128::MAX), true, true),
            (format!("[{}12]", u128::MAX), false, false),
            (format!("[{}, {}]", f64::MIN_POSITIVE, i64::MIN), false, false),
            ("[1.7976931348623157e308, 2.2250738585072014E-308]".to_owned(), true, false),
            ("0.000000000123456789012345".to_owned(), true, true),
            ("0.999999999999999".to_owned(), true, true),
            ("0.9999999999999999".to_owned(), true, false),
            ("0.00128000000000000".to_owned(), true, true),
            ("0.00128000000000000000".to_owned(), false, false),
            (format!("0.{}", "0".repeat(40)), true, true),
            (format!("0.{}", "0".repeat(41)), false, false),
            ("1e0001".to_owned(), false, false),
            ("[1e308, -1.7976931348623157e308, 17976931348623157e292]".to_owned(), true, false),
            ("1e309".to_owned(), false, false),
            ("1.7976931348623158e308".to_owned(), false, false),
            ("-223e726".to_owned(), false, false),
            ("1234567e303".to_owned(), false, false),
            ("0.00001e313".to_owned(), true, true),
            ("0.00001e314".to_owned(), false, false),
            ("[0e999, 0.0E-999, 1e+99, 2e-323]".to_owned(), true, true),
            ("2e-324".to_owned(), false, false),
            ("0.001e-321".to_owned(), false, false),
            ("12345678901234567.".to_owned(), false, false),
            ("[0.1, \"-\", 2, \"1.\", 3]".to_owned(), true, true),
        ] {
            assert_eq!((of(json!({}), &text), of(open.clone(), &text)), (good, good_open), "{text}");
        }
    }
}
