//! Keywords of numbers. What the grammar library reads as a double is passed on where it is that exactly; integers
//! beyond doubles are left to `wide`.

use serde_json::{Number, Value, json};

use super::{Node, Preparer};
use crate::engine::grammar::GrammarError;
use crate::engine::grammar::bounds::LEAST;

/// Integers up to this are doubles without a doubt.
pub(in crate::engine::grammar) const SAFE_MAX: i128 = (1 << 53) - 1;
/// Digits that a double keeps of any number.
const DIGITS_KEPT: usize = 15;

impl Preparer<'_> {
    pub(super) fn numbers(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            // In older drafts the exclusive one is a switch.
            let switched = node.map.get(exclusive) == Some(&json!(true));
            for keyword in [bound, exclusive] {
                let number = match node.map.get(keyword) {
                    None => continue,
                    Some(Value::Bool(_)) if keyword == exclusive => continue,
                    Some(Value::Number(number)) => number,
                    Some(_) => return Err(node.wrong(keyword, "this must be a number")),
                };
                match inexact(number) {
                    Some(reason) => self.leave(node.at, keyword, reason)?,
                    None => {
                        let name = if switched { exclusive } else { keyword };
                        node.out.insert(name.to_owned(), Value::Number(number.clone()));
                    }
                }
            }
        }
        self.tiny_bounds(node)?;
        match node.map.get("multipleOf") {
            None => {}
            Some(Value::Number(number)) if number.as_f64().is_some_and(|f| f > 0.0) => match step(number) {
                Some(reason) => self.leave(node.at, "multipleOf", reason)?,
                None => drop(node.out.insert("multipleOf".to_owned(), Value::Number(number.clone()))),
            },
            Some(_) => return Err(node.wrong("multipleOf", "this must be a number above 0")),
        }
        Ok(())
    }

    /// Bounds too close to 0 to be written out, drawn in to the next number that is not.
    fn tiny_bounds(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        let mut drawn = Vec::new();
        for (bound, exclusive, least) in [("minimum", "exclusiveMinimum", true), ("maximum", "exclusiveMaximum", false)]
        {
            for keyword in [bound, exclusive] {
                let Some(to) = node.out.get(keyword).and_then(Value::as_f64).and_then(|at| drawn_in(at, least)) else {
                    continue;
                };
                node.out.remove(keyword);
                let other = node.out.get(bound).and_then(Value::as_f64);
                let tighter = other.is_none_or(|other| if least { other < to } else { other > to });
                if tighter {
                    let whole = if to == 0.0 { json!(0) } else { json!(to) };
                    node.out.insert(bound.to_owned(), whole);
                }
                drawn.push(if node.map.contains_key(keyword) { keyword } else { bound });
            }
        }
        let edge = |keyword: &str| node.out.get(keyword).and_then(Value::as_f64);
        let apart = edge("minimum").zip(edge("maximum")).is_some_and(|(least, most)| least > most);
        if apart && drawn.len() > 1 {
            for bound in ["minimum", "maximum"] {
                node.out.remove(bound);
            }
            let reason = "no number between these bounds can be written out: they are too close to 0";
            drawn.into_iter().try_for_each(|keyword| self.leave(node.at, keyword, reason))?;
        }
        Ok(())
    }
}

/// Where a bound goes that lies beside 0: within what it allows.
fn drawn_in(bound: f64, least: bool) -> Option<f64> {
    let tiny = bound != 0.0 && bound.abs() < LEAST;
    tiny.then_some(match (least, bound > 0.0) {
        (true, true) => LEAST,
        (false, false) => -LEAST,
        _ => 0.0,
    })
}

/// A number's value where it is an integer that is known to its last digit.
pub(in crate::engine::grammar) fn integer(number: &Number) -> Option<i128> {
    if let Some(integer) = number.as_i64() {
        return Some(i128::from(integer));
    }
    if let Some(integer) = number.as_u64() {
        return Some(i128::from(integer));
    }
    let float = number.as_f64().filter(|f| f.fract() == 0.0)?;
    let digits = format!("{float:e}").bytes().take_while(|b| *b != b'e').filter(u8::is_ascii_digit).count();
    let known = float.abs() <= SAFE_MAX as f64 || (float.abs() < 9.2e18 && digits <= DIGITS_KEPT);
    known.then_some(float as i128)
}

/// Beyond what a double holds exactly.
pub(in crate::engine::grammar) fn is_wide(number: &Number) -> bool {
    integer(number).is_some_and(|i| i.abs() > SAFE_MAX)
}

/// Why a number's last digits are not known; none where they are.
pub(super) fn inexact(number: &Number) -> Option<String> {
    let narrow = number.as_f64().is_some_and(|float| float.abs() <= SAFE_MAX as f64);
    (integer(number).is_none() && !narrow)
        .then(|| format!("{number} is not known to its last digit; integers of 64 bits are"))
}

/// Why multiples of a number cannot be told by their digits: the library counts in 32 bits.
fn step(number: &Number) -> Option<String> {
    let sized = decimal(number).filter(|(coefficient, places)| {
        *places <= 9 && u128::from(*coefficient) * 10 + 9 * 10u128.pow(*places) <= u128::from(u32::MAX)
    });
    let same = sized.is_some_and(|own| number.as_f64().and_then(decimal_of_double) == Some(own));
    (!same).then(|| format!("{number} has too many digits to tell its multiples"))
}

/// A number above 0 as `coefficient · 10^-places`, shortest form.
pub(in crate::engine::grammar) fn decimal(number: &Number) -> Option<(u64, u32)> {
    let text = format!("{:e}", number.as_f64()?);
    let (digits, power) = text.split_once('e')?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let coefficient: u64 = format!("{whole}{fraction}").parse().ok()?;
    let power = power.parse::<i32>().ok()? - fraction.len() as i32;
    match power {
        0.. => Some((coefficient.checked_mul(10u64.checked_pow(power as u32)?)?, 0)),
        _ => Some((coefficient, power.unsigned_abs())),
    }
}

/// A number as `value · 10^-places`.
pub(in crate::engine::grammar) fn parts(number: &Number) -> Option<(i128, u32)> {
    if let Some(whole) = number.as_i64() {
        return Some((i128::from(whole), 0));
    }
    let float = number.as_f64()?;
    if float == 0.0 {
        return Some((0, 0));
    }
    let (value, places) = decimal(&Number::from_f64(float.abs())?)?;
    Some((if float < 0.0 { -i128::from(value) } else { i128::from(value) }, places))
}

/// The same as the library finds it, in doubles.
fn decimal_of_double(mut value: f64) -> Option<(u64, u32)> {
    let mut places = 0;
    while value.fract() != 0.0 {
        (value, places) = (value * 10.0, places + 1);
        if places > 9 {
            return None;
        }
    }
    (value <= f64::from(u32::MAX)).then_some((value as u64, places))
}
