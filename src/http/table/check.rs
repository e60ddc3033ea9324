//! Holds values to the table, and brings them to the form that the readers take. That form has no nulls, one name for
//! one thing, and whole numbers written as such.

use std::borrow::Cow;

use regex::Regex;
use serde_json::{Map, Number, Value};

use super::{Checked, Param, Rule, Shape, Table, WHOLE_MAX};
use crate::http::error::ApiError;

/// Longest piece of client text that an error repeats, characters.
const ECHO_CHARS_MAX: usize = 80;
/// Nobody comes near so many entries of an array: a message leaves the number out.
const MANY: usize = 1 << 20;

impl Table {
    /// Checks a body or a query. Returns the parameters that were accepted without effect.
    pub(crate) fn check(&self, map: &mut Map<String, Value>) -> Result<Vec<&'static str>, ApiError> {
        let given: Vec<&'static str> = self.ignored.iter().copied().filter(|name| map.contains_key(*name)).collect();
        let mut ignored = Vec::new();
        for name in given {
            if map.shift_remove(name).is_some_and(|value| !value.is_null()) {
                ignored.push(name);
            }
        }
        for (name, why) in self.unsupported {
            match map.get(*name) {
                Some(Value::Null) => drop(map.shift_remove(*name)),
                Some(_) => return Err(ApiError::unsupported(*name, format!("`{name}` is not supported: {why}"))),
                None => {}
            }
        }
        let params: Vec<&'static Param> = self.params().collect();
        fields(map, &params, "", false)?;
        self.rules.iter().try_for_each(|rule| rule.check(map))?;
        Ok(ignored)
    }
}

impl Rule {
    fn check(&self, map: &Map<String, Value>) -> Checked {
        let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let is = |name: &str, json: &str| map.get(name).is_some_and(|value| same(value, json));
        match *self {
            Rule::Needs(name, other, json) if map.contains_key(name) && !is(other, json) => {
                Err(ApiError::param(name, format!("`{name}` needs `{other}: {}`", json.trim_matches('"'))))
            }
            Rule::Asks(name, json, other) if is(name, json) && !map.contains_key(other) => Err(missing(other)),
            Rule::ExactlyOne(names) => {
                let mut given = names.iter().filter(|name| map.contains_key(**name));
                match (given.next(), given.next()) {
                    (Some(_), None) => Ok(()),
                    (None, _) => {
                        let (first, message) = (names[0], format!("say one of {}", list(names)));
                        Err(ApiError::param(first, message).code("missing_parameter"))
                    }
                    (Some(one), Some(two)) => {
                        let message = format!("`{two}` and `{one}` exclude each other: send one of {}", list(names));
                        Err(ApiError::param(*two, message))
                    }
                }
            }
            Rule::AtLeastOne(names) if !names.iter().any(|name| map.contains_key(*name)) => {
                Err(ApiError::param(names[0], format!("say at least one of {}", list(names))).code("missing_parameter"))
            }
            _ => Ok(()),
        }
    }
}

fn missing(path: &str) -> ApiError {
    ApiError::param(path, format!("`{path}` is missing")).code("missing_parameter")
}

fn under(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The keys of an object.
fn fields(map: &mut Map<String, Value>, params: &[&'static Param], path: &str, open: bool) -> Checked {
    map.retain(|_, value| !value.is_null());
    for param in params {
        let Some(also) = param.also else { continue };
        if let Some(value) = map.shift_remove(also)
            && map.insert(param.name.to_owned(), value).is_some()
        {
            let message = format!("`{also}` is another name of `{}`: say one of them", param.name);
            return Err(ApiError::param(under(path, also), message));
        }
    }
    if let Some(key) = map.keys().find(|key| !open && !params.iter().any(|param| param.name == *key)) {
        return Err(unknown(key, params, path));
    }
    for param in params {
        let path = under(path, param.name);
        match map.get_mut(param.name) {
            Some(value) => param.shape.check(value, &path)?,
            None if param.required => return Err(missing(&path)),
            None => {}
        }
    }
    Ok(())
}

fn unknown(key: &str, params: &[&Param], path: &str) -> ApiError {
    let key: String = key.chars().take(ECHO_CHARS_MAX).collect();
    let known = params.iter().flat_map(|param| [Some(param.name), param.also]).flatten();
    let nearest = known
        .map(|known| (strsim::damerau_levenshtein(known, &key), known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4);
    let hint = nearest.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default();
    let path = under(path, &key);
    let message = format!("unknown parameter `{path}`{hint}");
    ApiError::param(path, message).code("unknown_parameter")
}

impl Shape {
    /// Refuses a value that is not of this shape, and writes whole numbers as such.
    pub(crate) fn check(&self, value: &mut Value, path: &str) -> Checked {
        match self {
            Shape::Elsewhere(_) => Ok(()),
            Shape::Whole { min, max } => {
                let Some(whole) = whole(value) else { return Err(self.mistyped(value, path)) };
                if !(*min..=*max).contains(&whole) {
                    return Err(self.refuse(value, path));
                }
                *value = Value::Number(number(whole));
                Ok(())
            }
            Shape::Number { min, max } => match value.as_f64() {
                Some(number) if (*min..=*max).contains(&number) => Ok(()),
                Some(_) => Err(self.refuse(value, path)),
                None => Err(self.mistyped(value, path)),
            },
            Shape::Text { .. } | Shape::Name(_) | Shape::Word(_) => match value.as_str() {
                Some(text) if self.reads(text) => Ok(()),
                Some(_) => Err(self.refuse(value, path)),
                None => Err(self.mistyped(value, path)),
            },
            Shape::Bool if value.is_boolean() => Ok(()),
            Shape::Bool => Err(self.mistyped(value, path)),
            Shape::Exactly(json) => {
                let own = whole(value).map(|whole| Value::Number(number(whole))).unwrap_or_else(|| value.clone());
                if !same(&own, json) {
                    return Err(self.refuse(value, path));
                }
                *value = own;
                Ok(())
            }
            Shape::List { of, min, max } => match value {
                Value::Array(items) if !(*min..=*max).contains(&items.len()) => Err(self.refuse(value, path)),
                Value::Array(items) => {
                    let mut items = items.iter_mut().enumerate();
                    items.try_for_each(|(at, item)| of.check(item, &format!("{path}[{at}]")))
                }
                _ => Err(self.mistyped(value, path)),
            },
            Shape::ByToken { of, max } => match value {
                Value::Object(map) if map.len() > *max => Err(self.refuse(value, path)),
                Value::Object(map) => map.iter_mut().try_for_each(|(key, value)| {
                    let path = under(path, &key.chars().take(20).collect::<String>());
                    match is_token(key) {
                        true => of.check(value, &path),
                        false => {
                            let message =
                                format!("unknown parameter `{path}`: its name must be the id of a token, as in \"42\"");
                            Err(ApiError::param(path, message))
                        }
                    }
                }),
                _ => Err(self.mistyped(value, path)),
            },
            Shape::Object(params) | Shape::Open(params) => match value {
                Value::Object(map) => {
                    let params: Vec<&Param> = params.iter().collect();
                    fields(map, &params, path, matches!(self, Shape::Open(_)))
                }
                _ => Err(self.mistyped(value, path)),
            },
            Shape::Either(shapes) => self.check_either(shapes, value, path),
        }
    }

    /// One of several: where a single one takes such values, its own words say what is wrong.
    fn check_either(&self, shapes: &[Shape], value: &mut Value, path: &str) -> Checked {
        let mut refusals = Vec::new();
        for shape in shapes {
            match shape.check(value, path) {
                Ok(()) => return Ok(()),
                Err(error) => refusals.push((shape, error)),
            }
        }
        let mut near = refusals.into_iter().filter(|(shape, _)| shape.near(value));
        match (near.next(), near.next()) {
            (Some((_, error)), None) => Err(error),
            (Some(_), Some(_)) => Err(self.refuse(value, path)),
            (None, _) => Err(self.mistyped(value, path)),
        }
    }

    fn reads(&self, text: &str) -> bool {
        match self {
            // Bytes are never fewer than characters: most texts need no counting. No least length is above 1.
            Shape::Text { min, max } => text.len() >= *min && (text.len() <= *max || text.chars().count() <= *max),
            Shape::Name(name) => {
                text.chars().nth(name.max).is_none() && Regex::new(name.pattern).is_ok_and(|p| p.is_match(text))
            }
            Shape::Word(words) => words.contains(&text),
            _ => false,
        }
    }

    /// Is the value of the kind that this shape is about?
    fn near(&self, value: &Value) -> bool {
        match (self, value) {
            (Shape::Elsewhere(_), _) | (Shape::Bool, Value::Bool(_)) => true,
            (Shape::Exactly(json), _) => serde_json::from_str::<Value>(json)
                .is_ok_and(|own| std::mem::discriminant(&own) == std::mem::discriminant(value)),
            (Shape::Whole { .. } | Shape::Number { .. }, Value::Number(_)) => true,
            (Shape::Text { .. } | Shape::Name(_) | Shape::Word(_), Value::String(_)) => true,
            (Shape::List { of, .. }, Value::Array(items)) => items.first().is_none_or(|first| of.near(first)),
            (Shape::ByToken { .. } | Shape::Object(_) | Shape::Open(_), Value::Object(_)) => true,
            (Shape::Either(shapes), _) => shapes.iter().any(|shape| shape.near(value)),
            _ => false,
        }
    }

    fn mistyped(&self, value: &Value, path: &str) -> ApiError {
        self.refuse(value, path).code("invalid_type")
    }

    fn refuse(&self, value: &Value, path: &str) -> ApiError {
        if let (Shape::Text { max: 0, .. }, Value::String(_)) = (self, value) {
            return ApiError::unsupported(path, format!("`{path}` is not supported: leave it out, or empty"));
        }
        ApiError::param(path, format!("`{path}` must be {}, not {}", self.says(value), found(value)))
    }

    /// What a value must be, in words, where `instead` came.
    fn says(&self, instead: &Value) -> Cow<'static, str> {
        match self {
            Shape::Elsewhere(name) => format!("a {}", spaced(name)).into(),
            Shape::Bool => "true or false".into(),
            Shape::Exactly(json) => (*json).into(),
            Shape::Whole { min, max } if *max == WHOLE_MAX && whole(instead).is_none_or(|whole| whole <= *max) => {
                format!("a whole number of {min} or more").into()
            }
            Shape::Whole { min, max } => format!("a whole number between {min} and {max}").into(),
            Shape::Number { min, max } => format!("a number between {min} and {max}").into(),
            Shape::Text { min: 0, max: 0 } => "an empty text".into(),
            Shape::Text { min: 0, max: usize::MAX } => "a text".into(),
            Shape::Text { min: 1, max: usize::MAX } => "a text that is not empty".into(),
            Shape::Text { min, max } => format!("a text of {min} to {max} characters").into(),
            Shape::Name(name) => name.says.into(),
            Shape::Word(words) => one_of(words.iter().map(|word| format!("`{word}`"))).into(),
            Shape::List { of, max: MANY.., .. } => format!("an array of {}", of.many()).into(),
            Shape::List { of, min, max } if min == max => format!("an array of {min} {}", of.many()).into(),
            Shape::List { of, min, max } => format!("an array of {min} to {max} {}", of.many()).into(),
            Shape::ByToken { max, .. } => format!("an object of at most {max} token ids").into(),
            Shape::Object(_) | Shape::Open(_) => "an object".into(),
            Shape::Either(shapes) => one_of(shapes.iter().map(|shape| shape.says(instead).into_owned())).into(),
        }
    }

    /// Several such values, in words.
    fn many(&self) -> Cow<'static, str> {
        match self {
            Shape::Elsewhere(name) => format!("{}s", spaced(name)).into(),
            Shape::Whole { min: 0, max } if *max == u32::MAX as i128 => "token ids".into(),
            Shape::Text { min: 0, max: usize::MAX } => "texts".into(),
            Shape::Text { min: 1, max: usize::MAX } => "texts that are not empty".into(),
            Shape::Text { min, max } => format!("texts of {min} to {max} characters").into(),
            Shape::Whole { min, max } => format!("whole numbers between {min} and {max}").into(),
            Shape::List { of, .. } => format!("arrays of {}", of.many()).into(),
            other => format!("values, each {}", other.says(&Value::Null)).into(),
        }
    }
}

/// The name of a component, `ToolChoice`, in words: `tool choice`.
fn spaced(name: &str) -> String {
    let word = |(at, letter): (usize, char)| {
        let gap = if at > 0 && letter.is_ascii_uppercase() { " " } else { "" };
        format!("{gap}{}", letter.to_ascii_lowercase())
    };
    name.chars().enumerate().map(word).collect()
}

/// `a`, `a or b`, `a, b or c`.
fn one_of(mut words: impl ExactSizeIterator<Item = String>) -> String {
    let mut text = words.next().unwrap_or_default();
    while let Some(word) = words.next() {
        text += if words.len() == 0 { " or " } else { ", " };
        text += &word;
    }
    text
}

/// Is a value the one that is written so?
fn same(value: &Value, json: &str) -> bool {
    serde_json::from_str::<Value>(json).is_ok_and(|written| written == *value)
}

/// A value as an error repeats it.
pub(crate) fn found(value: &Value) -> String {
    match value {
        Value::Array(items) => found_items(items),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.is_empty() => "an empty text".to_owned(),
        Value::String(text) if text.chars().nth(ECHO_CHARS_MAX).is_some() => {
            format!("a text of {} characters", text.chars().count())
        }
        Value::String(text) => format!("the text {text:?}"),
        scalar => scalar.to_string().chars().take(ECHO_CHARS_MAX).collect(),
    }
}

/// An array, by its first value and the first that is of another kind.
fn found_items(items: &[Value]) -> String {
    let one = |value: &Value| match value {
        Value::Array(inner) if !inner.is_empty() => format!("an array of {}", inner.len()),
        other => found(other),
    };
    let kind = |value: &Value| match value {
        Value::Null | Value::Bool(_) => (0, false),
        Value::Number(_) => (1, whole(value).is_some_and(|whole| whole >= 0)),
        Value::String(text) => (2, text.is_empty()),
        Value::Array(inner) => (3, inner.is_empty()),
        Value::Object(_) => (4, false),
    };
    let Some(first) = items.first() else { return "an empty array".to_owned() };
    let begins = format!("an array of {}: [0] is {}", items.len(), one(first));
    match items.iter().enumerate().find(|(_, value)| kind(value) != kind(first)) {
        Some((at, other)) => format!("{begins}, [{at}] is {}", one(other)),
        None => begins,
    }
}

/// The whole number that a value is, however it is written; beyond every range, one beyond every range.
fn whole(value: &Value) -> Option<i128> {
    let Value::Number(number) = value else { return None };
    let exact = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    exact.or_else(|| number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i128))
}

/// As `TOKEN_KEYS` says, without the cost of a pattern for each of a thousand keys.
fn is_token(key: &str) -> bool {
    let digits = (1..=9).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_digit());
    digits && (key == "0" || !key.starts_with('0'))
}

/// Every range of the table lies within 64 bits.
pub(super) fn number(whole: i128) -> Number {
    i64::try_from(whole).map(Number::from).unwrap_or_else(|_| Number::from(u64::try_from(whole).unwrap_or(u64::MAX)))
}
