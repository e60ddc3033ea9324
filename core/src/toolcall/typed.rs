//! Arguments that a model wrote as bare text, given the types of the function's schema.

use serde_json::{Number, Value};

use super::literal;
use crate::schema::{Kinds, Schema};
use crate::whole;

/// Reads a value of one kind.
type Reader = fn(&str) -> Option<Value>;

/// `text` as the first kind of its schema that it can be; a string where there is none.
pub(super) fn typed(text: &str, schema: Option<Schema<'_>>) -> Value {
    let string = || Value::String(text.to_owned());
    let Some(schema) = schema else { return string() };
    let options = schema.options();
    if let Some(option) =
        options.iter().find(|o| is_written(o, text)).or_else(|| options.iter().find(|o| is_written(o, text.trim())))
    {
        return (*option).clone();
    }
    let Some(kinds) = schema.kinds() else { return string() };
    // A string takes anything, so it is tried last.
    let order: [(Kinds, Reader); 6] = [
        (Kinds::NULL, |t| matches!(t, "null" | "None").then_some(Value::Null)),
        (Kinds::BOOLEAN, boolean),
        (Kinds::FRACTION, fraction),
        (Kinds::INTEGER, integer),
        (Kinds::ARRAY, |t| structured(t).filter(Value::is_array)),
        (Kinds::OBJECT, |t| structured(t).filter(Value::is_object)),
    ];
    let read = order.iter().filter(|(kind, _)| kinds.has(*kind)).find_map(|(_, read)| read(text.trim()));
    read.unwrap_or_else(string)
}

/// Whether `text` is how a model would write `option`: strings bare, the rest as JSON.
fn is_written(option: &Value, text: &str) -> bool {
    match option {
        Value::String(own) => own == text,
        other => structured(text).is_some_and(|value| value == *other),
    }
}

fn structured(text: &str) -> Option<Value> {
    whole::read(text).ok().or_else(|| literal::whole(text))
}

fn boolean(text: &str) -> Option<Value> {
    match text {
        "true" | "True" => Some(Value::Bool(true)),
        "false" | "False" => Some(Value::Bool(false)),
        _ => None,
    }
}

fn fraction(text: &str) -> Option<Value> {
    match whole::read(text) {
        Ok(number @ Value::Number(_)) => Some(number),
        Ok(Value::String(_)) => long(text),
        _ => Number::from_f64(text.parse().ok()?).map(Value::Number),
    }
}

fn integer(text: &str) -> Option<Value> {
    let small = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
    small.ok().or_else(|| whole_float(text)).map(Value::Number).or_else(|| long(text))
}

/// An integer beyond those of the machine, with its digits.
fn long(text: &str) -> Option<Value> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_whole.then(|| whole::read(text).ok()).flatten()
}

/// `3.0` where an integer is wanted.
fn whole_float(text: &str) -> Option<Number> {
    let value: f64 = text.parse().ok()?;
    // Up to 2^53 every whole number is exact.
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then(|| Number::from(value as i64))
}
