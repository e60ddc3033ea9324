//! Exact decimal numbers as they stand in a text: enough to compare answers without rounding.

/// A decimal with the mantissa's trailing zeros removed, so that equal values are equal structs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    mantissa: i128,
    /// Digits after the point.
    scale: u32,
}

/// Digits that surely fit an i128.
const DIGITS_MAX: usize = 36;

impl Decimal {
    /// Parses `-?digits(.digits)?([eE][+-]?digits)?`; `None` for anything else, and for more than 36 digits.
    pub(super) fn parse(text: &str) -> Option<Decimal> {
        let (text, exponent) = match text.split_once(['e', 'E']) {
            Some((text, exponent)) => (text, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let all: String = [whole, part].concat();
        if all.is_empty() || all.len() > DIGITS_MAX || !all.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let mut mantissa: i128 = all.parse().ok()?;
        if negative {
            mantissa = -mantissa;
        }
        let mut scale = i32::try_from(part.len()).ok()?.checked_sub(exponent)?;
        while scale < 0 {
            mantissa = mantissa.checked_mul(10)?;
            scale += 1;
        }
        while scale > 0 && mantissa % 10 == 0 {
            mantissa /= 10;
            scale -= 1;
        }
        Some(Decimal { mantissa, scale: scale as u32 })
    }

    /// |self − other| ≤ tolerance; false where the numbers are too far apart in size to compare exactly.
    pub(super) fn within(&self, other: &Decimal, tolerance: &Decimal) -> bool {
        let scale = self.scale.max(other.scale).max(tolerance.scale);
        let at = |d: &Decimal| 10i128.checked_pow(scale - d.scale).and_then(|p| d.mantissa.checked_mul(p));
        match (at(self), at(other), at(tolerance)) {
            (Some(a), Some(b), Some(t)) => a.checked_sub(b).is_some_and(|d| d.abs() <= t),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Decimal;

    #[test]
    fn equal_values_are_equal_however_written() {
        let d = |t| Decimal::parse(t).unwrap();
        assert_eq!(d("42"), d("42.00"));
        assert_eq!(d("4.2e1"), d("42"));
        assert_eq!(d("-0.50"), d("-0.5"));
        assert_ne!(d("42"), d("-42"));
        assert!(d("3.14").within(&d("3.1415"), &d("0.01")));
        assert!(!d("3.14").within(&d("3.16"), &d("0.01")));
        for bad in ["", "-", "1.2.3", "abc", "1e99999999999", "1111111111111111111111111111111111111111"] {
            assert_eq!(Decimal::parse(bad), None);
        }
    }
}
