//! Whole numbers beyond 64 bits in JSON values. Where a number may have any length, [`read`] keeps one that no 64 bits
//! hold as a text: a mark, then its digits. [`written`] writes such a text as the number that it was.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Reserved for internal use, as `engine::template::MARK` is.
pub const MARK: char = '\u{fdd2}';
/// Under this key records have the arguments of a call.
const ARGUMENTS: &str = "arguments";
/// Digits of the shortest whole number beyond 64 bits.
const LONG_DIGITS: usize = 19;

/// The digits of a number that is kept as text.
pub fn digits(text: &str) -> Option<&str> {
    let number = text.strip_prefix(MARK)?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}

/// JSON whose long whole numbers keep their digits.
pub fn read(text: &str) -> Result<Value, serde_json::Error> {
    let value = serde_json::from_str(text)?;
    match marked(text, |_| true) {
        Some(text) => serde_json::from_str(&text),
        None => Ok(value),
    }
}

/// Valid JSON with its long whole numbers as marked texts, where they stand in such a place; none where it has none.
pub fn marked(text: &str, there: impl Fn(&[Key<'_>]) -> bool) -> Option<String> {
    // No shorter number is beyond 64 bits.
    let long = text.as_bytes().split(|b| !b.is_ascii_digit()).any(|digits| digits.len() >= LONG_DIGITS);
    if !long {
        return None;
    }
    changed(text, |number, keys| (is_long(number) && there(keys)).then(|| format!("\"{MARK}{number}\"")))
}

/// Compact JSON of a record whose calls' `arguments` may hold marked texts, with the numbers that they were. Other texts
/// stay as they are: whoever wrote them may have written a mark.
pub fn unmarked(text: &str) -> Cow<'_, str> {
    without_marks(text, within_arguments)
}

fn without_marks(text: &str, there: fn(&[Key<'_>]) -> bool) -> Cow<'_, str> {
    if !text.contains(MARK) {
        return text.into();
    }
    let bare = |scalar: &str, keys: &[Key<'_>]| {
        let text = scalar.strip_prefix('"')?.strip_suffix('"')?;
        Some(digits(text).filter(|_| there(keys))?.to_owned())
    };
    changed(text, bare).map_or(text.into(), Cow::from)
}

/// Valid JSON in which marked texts anywhere are the numbers that they were.
pub fn bare(text: &str) -> Cow<'_, str> {
    without_marks(text, |_| true)
}

/// A record that was written so: long whole numbers in the arguments of its calls keep their digits.
pub fn read_record(text: &str) -> Result<Value, serde_json::Error> {
    let value = serde_json::from_str(text)?;
    marked(text, within_arguments).map_or(Ok(value), |text| serde_json::from_str(&text))
}

fn within_arguments(keys: &[Key<'_>]) -> bool {
    keys.contains(&Key::Object(Some(ARGUMENTS)))
}

/// What leads to a value of a JSON text: an array or object, and the key under which it stands in the object around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key<'a> {
    Array(Option<&'a str>),
    Object(Option<&'a str>),
}

/// Valid JSON with other numbers and texts in the place of those for which `change` has some; none where it has none.
/// `change` is shown each as it is written, but no keys, and what leads to it.
fn changed(text: &str, change: impl Fn(&str, &[Key<'_>]) -> Option<String>) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut out, mut keys) = (String::new(), Vec::new());
    let (mut copied, mut at, mut key) = (0, 0, None);
    while at < bytes.len() {
        let end = match bytes[at] {
            b'"' => behind_text(bytes, at),
            b'-' | b'0'..=b'9' => {
                let more = |b: &u8| b.is_ascii_digit() || b"+-.eE".contains(b);
                at + bytes[at..].iter().take_while(|b| more(b)).count()
            }
            other => {
                match other {
                    b'{' => keys.push(Key::Object(key.take())),
                    b'[' => keys.push(Key::Array(key.take())),
                    b'}' | b']' => keys.truncate(keys.len().saturating_sub(1)),
                    b',' => key = None,
                    _ => {}
                }
                at += 1;
                continue;
            }
        };
        let scalar = &text[at..end];
        if text[end..].trim_start_matches([' ', '\t', '\n', '\r']).starts_with(':') {
            key = Some(scalar.trim_matches('"'));
        } else if let Some(other) = change(scalar, &keys) {
            out.push_str(&text[copied..at]);
            out.push_str(&other);
            copied = end;
        }
        at = end;
    }
    (copied > 0).then(|| out + &text[copied..])
}

/// Where the text that opens at `at` has ended.
fn behind_text(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Of a scalar as it is written.
fn is_long(number: &str) -> bool {
    let whole = !number.contains(['"', '.', 'e', 'E']);
    whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
}

/// Compact JSON.
pub fn written(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

/// The same of an object.
pub fn written_object(map: &Map<String, Value>) -> String {
    let mut out = String::new();
    write_object(map, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => match digits(text) {
            Some(digits) => out.push_str(digits),
            None => out.push_str(&value.to_string()),
        },
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => write_object(map, out),
        plain => out.push_str(&plain.to_string()),
    }
}

fn write_object(map: &Map<String, Value>, out: &mut String) {
    out.push('{');
    for (at, (key, value)) in map.iter().enumerate() {
        out.push_str(if at > 0 { "," } else { "" });
        out.push_str(&Value::from(key.as_str()).to_string());
        out.push(':');
        write(value, out);
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_whole_numbers_keep_their_digits() {
        let cases = [
            r#"{"n":123456789012345678901234567890}"#,
            r#"[18446744073709551616,-9223372036854775809,{"a":[10000000000000000000000000000000000000000000]}]"#,
            r#"{"t":"18446744073709551616 \" 18446744073709551616","n":18446744073709551616,"\"":"\"\\"}"#,
            r#"[18446744073709551615,-9223372036854775808,0.5,1e+22]"#,
            r#"18446744073709551616"#,
        ];
        for text in cases {
            assert_eq!(written(&read(text).unwrap()), text);
        }
        assert_eq!(read(r#"{"a": 1}"#).unwrap(), json!({"a": 1}));
        assert_eq!(read("[1e400]").unwrap_err().to_string(), "number out of range at line 1 column 6");
    }

    #[test]
    fn only_texts_within_the_arguments_of_calls_become_numbers_again() {
        let long = "\u{fdd2}123456789012345678901234567890";
        let bare = "123456789012345678901234567890";
        for (record, told) in [
            (json!({"calls": [{"name": "f", "arguments": {"n": long, "l": [long, {long: "x"}]}}]}), 2),
            (json!({"content": long, "arguments": long, "l": ["arguments", {"a": long}]}), 0),
            (json!({"arguments": [long]}), 0),
            (
                json!({"arguments": {"t": "\u{fdd2}1x", "q": "a\"\u{fdd2}1", "n": "\u{fdd2}-9223372036854775809"}, "n": long}),
                1,
            ),
        ] {
            let text = record.to_string();
            let found = unmarked(&text);
            assert_eq!(read_record(&found).unwrap(), record, "{found}");
            let marks = |text: &str| text.matches(MARK).count();
            assert_eq!(marks(&text) - marks(&found), told, "{found}");
            assert_eq!(found.contains(&format!("\"n\":{bare}")), told == 2, "{found}");
        }
        assert_eq!(unmarked("{\"a\": 1}"), "{\"a\": 1}");
    }

    #[test]
    fn numbers_are_marked_in_their_place_alone() {
        let text =
            r#"{"a": 18446744073709551616, "b": [{"c" : {"\"}": 18446744073709551616, "d": "18446744073709551616"}}]}"#;
        let there = |keys: &[Key<'_>]| {
            keys == [Key::Object(None), Key::Array(Some("b")), Key::Object(None), Key::Object(Some("c"))]
        };
        let found = marked(text, there).unwrap();
        assert_eq!(found.matches(MARK).count(), 1);
        let value: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(digits(value["b"][0]["c"]["\"}"].as_str().unwrap()), Some("18446744073709551616"));
        assert_eq!(marked(text, |_| false), None);
        assert_eq!(marked("[1, 2]", |_| true), None);
    }

    #[test]
    fn nothing_becomes_json_that_was_none() {
        for text in ["[018446744073709551616]", "{18446744073709551616: 1}", "[18446744073709551616", "[--1]"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_marked_text_without_digits_is_a_text() {
        for text in ["\u{fdd2}", "\u{fdd2}-", "\u{fdd2}1a", "1", "\u{fdd2}\u{fdd2}1"] {
            assert_eq!(digits(text), None, "{text}");
            assert_eq!(written(&json!([text])), json!([text]).to_string());
        }
    }
}
