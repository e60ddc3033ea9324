//! Whole numbers beyond 64 bits in JSON values. Where a number may have any length, [`read`] keeps one that no 64 bits
//! hold as a text: a mark, then its digits. [`written`] writes such a text as the number that it was.

use serde_json::{Map, Value};

/// Reserved for internal use, as `engine::template::MARK` is.
pub const MARK: char = '\u{fdd2}';

/// The digits of a number that is kept as text.
pub fn digits(text: &str) -> Option<&str> {
    let number = text.strip_prefix(MARK)?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}

/// JSON whose long whole numbers keep their digits.
pub fn read(text: &str) -> Result<Value, serde_json::Error> {
    let value = serde_json::from_str(text)?;
    match marked(text) {
        Some(text) => serde_json::from_str(&text),
        None => Ok(value),
    }
}

/// Valid JSON with its long whole numbers as marked texts; none where it has none.
fn marked(text: &str) -> Option<String> {
    let mut out = String::new();
    let (mut copied, mut at) = (0, 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = behind_text(bytes, at),
            b'-' | b'0'..=b'9' => {
                let more = |b: &u8| b.is_ascii_digit() || b"+-.eE".contains(b);
                let end = at + bytes[at..].iter().take_while(|b| more(b)).count();
                let number = &text[at..end];
                if is_long(number) {
                    out.push_str(&text[copied..at]);
                    out.extend(['"', MARK]);
                    out.push_str(number);
                    out.push('"');
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
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
    at
}

fn is_long(number: &str) -> bool {
    let whole = !number.contains(['.', 'e', 'E']);
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
