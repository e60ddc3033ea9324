//! Integers between two bounds as a regular expression, digit by digit.

use serde_json::{Map, Value, json};

use super::{BOUNDS, Rules};
use crate::engine::grammar::GrammarError;
use crate::engine::grammar::prepare::{SAFE_MAX, fault, integer};

/// Bounds of the integers that a schema takes.
struct Range {
    least: Option<i128>,
    most: Option<i128>,
}

impl Rules<'_> {
    pub(super) fn integers(&mut self, map: &Map<String, Value>, at: &str) -> Result<Option<String>, GrammarError> {
        if let Some(step) = map.get("multipleOf") {
            let reason = format!("multiples of {step} cannot be enforced beside integers beyond 2^53");
            return Err(fault(at, "multipleOf", reason));
        }
        let Range { least, most } = bounds(map);
        if least.zip(most).is_some_and(|(least, most)| least > most) {
            return Err(fault(at, "minimum", "no integer lies between the bounds"));
        }
        Ok(pattern(least, most).map(|pattern| format!("/{pattern}/")))
    }

    /// Integers to the last digit, and what lies between them as far as doubles are exact.
    pub(super) fn numbers(&mut self, map: &Map<String, Value>, at: &str) -> Result<Vec<String>, GrammarError> {
        let mut choices: Vec<String> = self.integers(map, at)?.into_iter().collect();
        let Range { least, most } = bounds(map);
        let outside = least.is_some_and(|least| least > SAFE_MAX) || most.is_some_and(|most| most < -SAFE_MAX);
        if !outside {
            let mut own = Map::from_iter([("type".to_owned(), json!("number"))]);
            for keyword in BOUNDS {
                let Some(Value::Number(number)) = map.get(keyword) else { continue };
                let bound = integer(number).map_or_else(
                    || Value::Number(number.clone()),
                    |integer| json!(integer.clamp(-SAFE_MAX, SAFE_MAX) as i64),
                );
                own.insert(keyword.to_owned(), bound);
            }
            choices.push(self.rule(&Value::Object(own), at)?);
        }
        Ok(choices)
    }
}

fn bounds(map: &Map<String, Value>) -> Range {
    let bound = |keyword: &str, exclusive: i128, round: fn(f64) -> f64| {
        let number = map.get(keyword)?.as_number()?;
        match integer(number) {
            Some(integer) => Some(integer + exclusive),
            None => number.as_f64().map(|f| round(f) as i128),
        }
    };
    Range {
        least: bound("minimum", 0, f64::ceil).max(bound("exclusiveMinimum", 1, f64::ceil)),
        most: [bound("maximum", 0, f64::floor), bound("exclusiveMaximum", -1, f64::floor)].into_iter().flatten().min(),
    }
}

/// Integers from `least` to `most`.
fn pattern(least: Option<i128>, most: Option<i128>) -> Option<String> {
    let mut parts = Vec::new();
    let below_zero = least.is_none_or(|least| least < 0);
    if below_zero {
        let from = most.filter(|most| *most < 0).map_or(1, i128::unsigned_abs);
        let to = least.map(i128::unsigned_abs);
        parts.extend(natural(from, to).into_iter().map(|part| format!("-{part}")));
    }
    if most.is_none_or(|most| most >= 0) {
        let from = least.filter(|least| *least > 0).map_or(0, i128::unsigned_abs);
        parts.extend(natural(from, most.map(i128::unsigned_abs)));
    }
    (!parts.is_empty()).then(|| format!("({})", parts.join("|")))
}

/// Natural numbers, a part for each number of digits.
fn natural(from: u128, to: Option<u128>) -> Vec<String> {
    let mut parts = Vec::new();
    let mut low = from;
    loop {
        let digits = low.to_string().len();
        let last = "9".repeat(digits).parse::<u128>().unwrap_or(u128::MAX);
        match to {
            Some(to) if low > to => return parts,
            Some(to) if to <= last => {
                parts.push(same_length(&low.to_string(), &to.to_string()));
                return parts;
            }
            _ => parts.push(same_length(&low.to_string(), &last.to_string())),
        }
        if to.is_none() {
            parts.push(format!("[1-9][0-9]{{{digits},}}"));
            return parts;
        }
        low = last + 1;
    }
}

/// Numbers between two of as many digits.
fn same_length(low: &str, high: &str) -> String {
    let free = |count: usize| if count == 0 { String::new() } else { format!("[0-9]{{{count}}}") };
    let (Some(first), Some(last)) = (low.chars().next(), high.chars().next()) else { return String::new() };
    let (low_rest, high_rest) = (&low[1..], &high[1..]);
    let count = low_rest.len();
    let all = |text: &str, digit: char| text.chars().all(|c| c == digit);
    if first == last {
        return format!("{first}{}", same_length(low_rest, high_rest));
    }
    let shifted = |digit: char, by: i32| char::from_digit((digit.to_digit(10).unwrap_or(0) as i32 + by) as u32, 10);
    let (mut from, mut to, mut parts) = (Some(first), Some(last), Vec::new());
    if !all(low_rest, '0') {
        parts.push(format!("{first}{}", same_length(low_rest, &"9".repeat(count))));
        from = shifted(first, 1);
    }
    if !all(high_rest, '9') {
        parts.push(format!("{last}{}", same_length(&"0".repeat(count), high_rest)));
        to = shifted(last, -1);
    }
    if let (Some(from), Some(to)) = (from, to)
        && from <= to
    {
        parts.push(format!("[{from}-{to}]{}", free(count)));
    }
    format!("({})", parts.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_takes_what_lies_within_and_nothing_else() {
        let edges = [
            -1i128 << 63,
            -1000,
            -999,
            -120,
            -10,
            -9,
            -1,
            0,
            1,
            7,
            10,
            99,
            100,
            105,
            120,
            999,
            1000,
            (1 << 63) - 1,
            (1 << 64) - 1,
        ];
        for least in edges.iter().map(|e| Some(*e)).chain([None]) {
            for most in edges.iter().map(|e| Some(*e)).chain([None]) {
                let Some(pattern) = pattern(least, most) else { continue };
                let regex = regex::Regex::new(&format!("^{pattern}$")).unwrap();
                for near in edges {
                    for value in near - 2..=near + 2 {
                        let within = least.is_none_or(|l| l <= value) && most.is_none_or(|m| value <= m);
                        assert_eq!(regex.is_match(&value.to_string()), within, "{value} in {least:?}..={most:?}");
                    }
                }
                assert!(!regex.is_match("-0") && !regex.is_match("007"));
            }
        }
    }
}
