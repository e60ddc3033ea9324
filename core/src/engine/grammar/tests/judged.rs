//! What an answer says to a reader, and whether that satisfies its schema: by a validator that knows nothing of how the
//! answer was made.

use serde_json::Value;

use super::multiples::MultipleOf;

/// Numbers that neither 64 bits nor a double hold mean something else to every reader: such answers are passed over. So are
/// those with blanks beyond ASCII, some of which (U+205F, U+3000) are none to the validator's `\s`.
pub(super) fn readable(text: &str) -> Option<Value> {
    if text.contains(|c: char| c.is_whitespace() && !c.is_ascii()) {
        return None;
    }
    let (mut in_text, mut escaped) = (false, false);
    let outside: String = text
        .chars()
        .map(|c| {
            let quote = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            in_text ^= quote;
            if in_text || quote { ' ' } else { c }
        })
        .collect();
    let mut numbers = outside.split(|c: char| !(c.is_ascii_digit() || ".eE+-".contains(c)));
    let lost = |number: &str| {
        let digits = number.bytes().filter(u8::is_ascii_digit).count();
        digits > 15 && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
    };
    if numbers.any(lost) {
        return None;
    }
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => panic!("no JSON: {error}: {text}"),
    }
}

// The error is the validator's own.
#[allow(clippy::result_large_err)]
pub(super) fn validator(schema: &Value) -> Option<jsonschema::Validator> {
    let options = jsonschema::options().should_validate_formats(true);
    options.with_keyword("multipleOf", |_, step, path| Ok(MultipleOf::keyword(step, path))).build(schema).ok()
}
