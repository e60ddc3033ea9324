//! `multipleOf` in exact decimals, in place of the validator's own, which counts in doubles.

use jsonschema::paths::{LazyLocation, Location};
use jsonschema::{Keyword, ValidationError};
use serde_json::{Number, Value};

/// The keyword as the validator calls it.
pub(super) struct MultipleOf {
    step: Number,
    location: Location,
}

impl MultipleOf {
    pub(super) fn keyword(step: &Value, location: Location) -> Box<dyn Keyword> {
        let Value::Number(step) = step else { panic!("no number: {step}") };
        Box::new(MultipleOf { step: step.clone(), location })
    }
}

impl Keyword for MultipleOf {
    fn validate<'i>(&self, instance: &'i Value, location: &LazyLocation) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) {
            return Ok(());
        }
        let message = format!("{instance} is no multiple of {}", self.step);
        Err(ValidationError::custom(self.location.clone(), location.into(), instance, message))
    }

    fn is_valid(&self, instance: &Value) -> bool {
        instance.as_number().is_none_or(|number| divides(&self.step, number))
    }
}

/// A number as it is written: `coefficient · 10^power`.
fn decimal(number: &Number) -> (i128, i32) {
    let text = number.to_string();
    let (digits, power) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let power = power.trim_start_matches('+').parse::<i32>().unwrap() - fraction.len() as i32;
    (format!("{whole}{fraction}").parse().unwrap(), power)
}

/// Both shift to the lower of their powers; the number does so as a remainder, digit by digit.
fn divides(step: &Number, number: &Number) -> bool {
    let ((step, step_power), (number, power)) = (decimal(step), decimal(number));
    let Some(step) = 10i128.checked_pow(0.max(step_power - power) as u32).and_then(|by| step.checked_mul(by)) else {
        // Larger than any coefficient.
        return number == 0;
    };
    (0..0.max(power - step_power)).fold(number % step, |rest, _| rest * 10 % step) == 0
}

#[test]
fn multiples_are_told_exactly() {
    let number = |text: &str| serde_json::from_str::<Number>(text).unwrap();
    let cases = [
        ("0.01", "99.99", true),
        ("0.01", "99.995", false),
        ("0.07", "0.21", true),
        ("0.1", "-0.3", true),
        ("0.1", "1e20", true),
        ("1e-9", "123456.789", true),
        ("3", "9007199254740993", true),
        ("3", "9007199254740994", false),
        ("1.5", "-4.5", true),
        ("1.5", "18446744073709551615", true),
        ("10", "1e-7", false),
        ("5", "0.0", true),
        ("2", "-9223372036854775808", true),
    ];
    for (step, of, multiple) in cases {
        assert_eq!(divides(&number(step), &number(of)), multiple, "{of} of {step}");
    }
}
