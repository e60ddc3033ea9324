//! Digits of an answer's numbers. A grammar lets most numbers go on for ever, and a weak model may write digits until
//! its limit. So digits that no reader would keep are forbidden, wherever the grammar lets a number end before them.

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

/// A vocabulary's tokens as far as numbers are concerned.
#[derive(Debug, Default)]
pub(super) struct Numerals {
    /// Those that go on with a number, and their bytes.
    tokens: Vec<(u32, Vec<u8>)>,
}

impl Numerals {
    pub(super) fn of(vocab: &dyn Vocab) -> Numerals {
        let goes_on = |bytes: &[u8]| bytes.first().is_some_and(|b| b.is_ascii_digit() || b".eE+-".contains(b));
        let normal = (0..vocab.len() as u32).filter(|id| vocab.kind(*id) == TokenKind::Normal);
        let tokens = normal.map(|id| (id, vocab.bytes(id))).filter(|(_, bytes)| goes_on(bytes)).collect();
        Numerals { tokens }
    }

    /// Forbids in `row` the tokens that write more digits than count, where others are left.
    pub(super) fn limit(&self, at: &Digits, row: &mut [f32]) {
        if !matches!(at.place, Place::Number(_)) {
            return;
        }
        let allowed = |row: &[f32], id: u32| row.get(id as usize).is_some_and(|logit| *logit != f32::NEG_INFINITY);
        let beyond = |(id, bytes): &(u32, Vec<u8>)| (allowed(row, *id) && !at.clone().take(bytes)).then_some(*id);
        let beyond: Vec<u32> = self.tokens.iter().filter_map(beyond).collect();
        if beyond.is_empty() || row.iter().filter(|logit| **logit != f32::NEG_INFINITY).count() == beyond.len() {
            return;
        }
        beyond.into_iter().for_each(|id| row[id as usize] = f32::NEG_INFINITY);
    }
}

/// Where an answer in JSON stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Digits {
    place: Place,
    fraction_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Between,
    Text,
    /// Behind a backslash in a text.
    Escape,
    Number(Number),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    part: Part,
    /// From the first digit on that is no 0.
    significant: u32,
    behind_point: u32,
    exponent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Whole,
    Fraction,
    Exponent,
}

impl Digits {
    /// Of an answer at its beginning; `None`: it may be other than JSON. `json_calls`: calls are JSON.
    pub(super) fn of(grammar: &Grammar, json_calls: bool) -> Option<Digits> {
        let json = match grammar {
            Grammar::Json(_) => true,
            Grammar::Calls(calls) => calls.required && json_calls,
        };
        let is_open = |key: &str| grammar.schemas().iter().any(|schema| schema.to_string().contains(key));
        let open = ["\"exclusiveMinimum\"", "\"exclusiveMaximum\""].into_iter().any(is_open);
        let fraction_max = if open { FRACTION_MAX_OPEN } else { FRACTION_MAX };
        json.then_some(Digits { place: Place::Between, fraction_max })
    }

    /// Goes on; false where a number has more digits than count.
    pub(super) fn take(&mut self, bytes: &[u8]) -> bool {
        let mut good = true;
        for byte in bytes {
            good &= self.step(*byte);
        }
        good
    }

    fn step(&mut self, byte: u8) -> bool {
        let begun = Number { part: Part::Whole, significant: 0, behind_point: 0, exponent: 0 };
        let mut good = true;
        self.place = match (self.place, byte) {
            (Place::Text, b'\\') => Place::Escape,
            (Place::Text, b'"') => Place::Between,
            (Place::Text | Place::Escape, _) => Place::Text,
            (Place::Number(mut number), b'.' | b'e' | b'E' | b'+' | b'-' | b'0'..=b'9') => {
                good = number.step(byte, self.fraction_max);
                Place::Number(number)
            }
            (Place::Between | Place::Number(_), b'"') => Place::Text,
            (Place::Between, b'-') => Place::Number(begun),
            (Place::Between, b'0'..=b'9') => {
                let mut number = begun;
                good = number.step(byte, self.fraction_max);
                Place::Number(number)
            }
            (Place::Between | Place::Number(_), _) => Place::Between,
        };
        good
    }
}

impl Number {
    fn step(&mut self, byte: u8, fraction_max: u32) -> bool {
        match (byte, self.part) {
            // A digit must follow.
            (b'.', _) => {
                self.part = Part::Fraction;
                self.significant < fraction_max
            }
            (b'0'..=b'9', Part::Exponent) => {
                self.exponent += 1;
                self.exponent <= EXPONENT_MAX
            }
            (b'0'..=b'9', part) => {
                self.significant += u32::from(self.significant > 0 || byte != b'0');
                self.behind_point += u32::from(part == Part::Fraction);
                let most = if part == Part::Fraction { fraction_max } else { WHOLE_MAX };
                self.significant <= most && self.behind_point <= BEHIND_POINT_MAX
            }
            _ => {
                self.part = Part::Exponent;
                true
            }
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
        let of = |schema: Value, text: &str| Digits::of(&Grammar::Json(schema), false).unwrap().take(text.as_bytes());
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
            ("12345678901234567.".to_owned(), false, false),
            ("[0.1, \"-\", 2, \"1.\", 3]".to_owned(), true, true),
        ] {
            assert_eq!((of(json!({}), &text), of(open.clone(), &text)), (good, good_open), "{text}");
        }
    }
}
