//! One value as models write it: JSON, or what is near to it. Python's words and quotes, keys without quotes, a comma too
//! many, and quotes that are tokens of their own.

use serde_json::{Map, Value};

use super::DEPTH_MAX;
use crate::whole;

/// Some families put a token of their own around strings.
pub(super) const QUOTE: &str = "<|\"|>";

/// Reads values from the beginning of a text.
pub(super) struct Literal<'a> {
    rest: &'a str,
}

/// The value that `text` is, blanks around it aside.
pub(super) fn whole(text: &str) -> Option<Value> {
    let mut literal = Literal::new(text);
    let value = literal.value()?;
    literal.blank();
    literal.rest.is_empty().then_some(value)
}

impl<'a> Literal<'a> {
    pub(super) fn new(text: &'a str) -> Literal<'a> {
        Literal { rest: text }
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    pub(super) fn blank(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes `text`, blanks before it aside, if it comes next.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// A name: letters, digits, `_`, `-` and `.`.
    pub(super) fn name(&mut self) -> Option<&'a str> {
        self.blank();
        let other = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'));
        let end = self.rest.find(other).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    pub(super) fn value(&mut self) -> Option<Value> {
        self.nested(DEPTH_MAX)
    }

    fn nested(&mut self, levels: usize) -> Option<Value> {
        self.blank();
        let levels = levels.checked_sub(1)?;
        match self.rest.chars().next()? {
            '{' => self.object(levels).map(Value::Object),
            '[' => self.list('[', ']', levels).map(Value::Array),
            '(' => self.list('(', ')', levels).map(Value::Array),
            '"' | '\'' => self.string().map(Value::String),
            _ if self.rest.starts_with(QUOTE) => self.string().map(Value::String),
            _ => self.word(),
        }
    }

    pub(super) fn object(&mut self, levels: usize) -> Option<Map<String, Value>> {
        let mut map = Map::new();
        self.take("{").then_some(())?;
        while !self.take("}") {
            self.blank();
            let quoted = self.rest.starts_with(['"', '\'']) || self.rest.starts_with(QUOTE);
            let key = if quoted { self.string()? } else { self.name()?.to_owned() };
            self.take(":").then_some(())?;
            map.insert(key, self.nested(levels)?);
            if !self.take(",") {
                self.take("}").then_some(())?;
                break;
            }
        }
        Some(map)
    }

    fn list(&mut self, open: char, close: char, levels: usize) -> Option<Vec<Value>> {
        let (mut items, close) = (Vec::new(), close.to_string());
        self.take(&open.to_string()).then_some(())?;
        while !self.take(&close) {
            items.push(self.nested(levels)?);
            if !self.take(",") {
                self.take(&close).then_some(())?;
                break;
            }
        }
        Some(items)
    }

    /// `true`, `None`, a number.
    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '+' | '-' | '.' | '_')));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let value = match word {
            "true" | "True" => Value::Bool(true),
            "false" | "False" => Value::Bool(false),
            "null" | "None" | "none" => Value::Null,
            number => whole::read(number).ok().filter(is_number)?,
        };
        self.rest = rest;
        Some(value)
    }

    fn string(&mut self) -> Option<String> {
        if let Some(rest) = self.rest.strip_prefix(QUOTE) {
            let (text, rest) = rest.split_once(QUOTE)?;
            self.rest = rest;
            return Some(text.to_owned());
        }
        let quote = self.rest.chars().next()?;
        let mut chars = self.rest.char_indices().skip(1);
        let mut out = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(out);
                }
                '\\' => {
                    let (_, escape) = chars.next()?;
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    if digits == 0 {
                        out.push_str(&escaped(escape));
                        continue;
                    }
                    let mut unit = hex(&mut chars, digits)?;
                    if (0xd800..0xdc00).contains(&unit) {
                        let pair = chars.next().is_some_and(|(_, c)| c == '\\') && chars.next()?.1 == 'u';
                        let low = if pair { hex(&mut chars, 4)? } else { return None };
                        unit = 0x10000 + ((unit - 0xd800) << 10) + low.checked_sub(0xdc00).filter(|l| *l < 0x400)?;
                    }
                    out.push(char::from_u32(unit)?);
                }
                _ => out.push(c),
            }
        }
        None
    }
}

/// Also one that is kept as its digits.
fn is_number(value: &Value) -> bool {
    value.is_number() || value.as_str().is_some_and(|text| whole::digits(text).is_some())
}

/// `digits` hexadecimal digits.
fn hex(chars: &mut impl Iterator<Item = (usize, char)>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0u32, |value, _| Some(value.checked_mul(16)? + chars.next()?.1.to_digit(16)?))
}

/// What a backslash and this stand for; an unknown one stays as it was written.
fn escaped(c: char) -> String {
    match c {
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        'r' => "\r".to_owned(),
        'b' => "\u{8}".to_owned(),
        'f' => "\u{c}".to_owned(),
        '0' => "\0".to_owned(),
        '\n' => String::new(),
        '\\' | '/' | '"' | '\'' => c.to_string(),
        other => format!("\\{other}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_near_to_json_is_read() {
        for (text, value) in [
            ("{'k': [1, None, True], \"s\": 'it\\'s', }", json!({"k": [1, null, true], "s": "it's"})),
            ("{k:[1,none,false],s:<|\"|>a \"b\"\nc<|\"|>}", json!({"k": [1, null, false], "s": "a \"b\"\nc"})),
            ("(1, -2.5e3, 'x')", json!([1, -2500.0, "x"])),
            ("'\\x41\\u00e9\\ud83e\\udd80\\q'", json!("Aé🦀\\q")),
            ("{}", json!({})),
            ("12345678901234567890", json!(12345678901234567890u64)),
        ] {
            assert_eq!(whole(text), Some(value), "{text}");
        }
        for text in ["", "{", "[1", "{'a' 1}", "'x", "nobody", "{} {}", "'\\ud83e'", "1.2.3"] {
            assert_eq!(whole(text), None, "{text}");
        }
        assert_eq!(whole(&format!("{}{}", "[".repeat(9999), "]".repeat(9999))), None);
    }

    proptest! {
        #[test]
        fn json_strings_and_keys_are_read_as_they_are(text in "\\PC{0,12}|[\\x00-\\x7f]{0,12}", key in "\\PC{0,6}") {
            let value = json!({key: [text, {"n": 1.5}]});
            prop_assert_eq!(whole(&value.to_string()), Some(value));
        }
    }
}
