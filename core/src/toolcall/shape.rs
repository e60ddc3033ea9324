//! What the readers of all shapes have in common: functions that may be called, outcomes of a reading, and where a
//! JSON value ends.

use serde_json::{Map, Value};

use super::literal;
use crate::schema::{Root, Schema};
use crate::whole;

/// Bytes of a function's or parameter's name.
const NAME_BYTES_MAX: usize = 256;
/// Space between the marks of a call.
pub(super) const SPACE_BYTES_MAX: usize = 1024;
/// Closing brackets that a model left out, or wrote too many.
const REPAIRS_MAX: usize = 2;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// What a text that begins with an opening mark comes to.
#[derive(Debug, PartialEq)]
pub(super) enum Reading {
    /// Calls, and the bytes that they take.
    Calls(Vec<Call>, usize),
    /// The text so far is the beginning of a call.
    More,
    /// No call begins here.
    Text,
}

/// The functions of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions(Vec<(String, Root)>);

impl Functions {
    pub(super) fn of(tools: &[Value]) -> Functions {
        let one = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, Root::of(function.get("parameters").cloned().unwrap_or_default())))
        };
        Functions(tools.iter().filter_map(one).collect())
    }

    /// The schema of a function's arguments.
    pub(super) fn get(&self, name: &str) -> Option<Schema<'_>> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, parameters)| parameters.schema())
    }

    /// The function that `text` names, a namespace before and a number behind it aside.
    pub(super) fn named(&self, text: &str) -> Option<&str> {
        let text = text.trim().trim_matches(['"', '\'']);
        let short = text.strip_prefix("functions.").unwrap_or(text);
        let bare = short.rsplit_once(':').filter(|(_, n)| n.bytes().all(|b| b.is_ascii_digit())).map_or(short, |x| x.0);
        [text, short, bare]
            .into_iter()
            .find_map(|name| self.0.iter().find(|(own, _)| own == name))
            .map(|(n, _)| n.as_str())
    }

    /// The first function that `text` names as a word; a key of JSON names none.
    pub(super) fn first_in(&self, text: &str) -> Option<&str> {
        let found = |name: &str| {
            let word = |at: &usize| {
                let (before, behind) = (&text[..*at], &text[at + name.len()..]);
                let key = behind.strip_prefix('"').is_some_and(|rest| rest.trim_start().starts_with(':'));
                !before.ends_with(is_word) && !behind.starts_with(is_word) && !key
            };
            text.match_indices(name).map(|(at, _)| at).find(word)
        };
        self.0.iter().filter_map(|(name, _)| Some((found(name)?, name.as_str()))).min().map(|(_, name)| name)
    }

    /// Whether some function's name begins with `text`.
    pub(super) fn begins(&self, text: &str) -> bool {
        self.0.iter().any(|(name, _)| name.starts_with(text))
    }
}

/// A letter of a function's name.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-')
}

pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(['<', '>', '\n'])
}

/// Whether `text`, non-empty, is the beginning of `mark` and shorter.
pub(super) fn may_become(text: &str, mark: &str) -> bool {
    !text.is_empty() && text.len() < mark.len() && mark.starts_with(text)
}

/// Looks for the end of a JSON value in a text that grows, each byte once.
#[derive(Clone, Debug, Default)]
pub(super) struct Balance {
    from: usize,
    at: usize,
    depth: usize,
    quote: Option<u8>,
    escaped: bool,
    total: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum End {
    /// Behind the last bracket.
    At(usize),
    /// The closing mark of the call stands before the last bracket.
    Unclosed(usize),
    More,
    /// It is no value.
    Never,
}

impl Balance {
    /// Bytes that were looked at, of all values so far.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// For another text.
    pub(super) fn anew(&self) -> Balance {
        Balance { total: self.total, ..Balance::default() }
    }

    /// The end of the value that begins at `from`. `close`: the mark that ends a call, where there is one.
    pub(super) fn end(&mut self, text: &str, from: usize, close: &str) -> End {
        if self.from != from || self.at < from {
            *self = Balance { from, at: from, ..self.anew() };
        }
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            match (self.quote, byte) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), b'\\') => self.escaped = true,
                (Some(quote), _) if byte == quote => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => self.quote = Some(byte),
                (None, b'{' | b'[' | b'(') => self.depth += 1,
                (None, b'}' | b']' | b')') => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return End::At(self.at + 1);
                    }
                }
                (None, _) if !close.is_empty() && bytes[self.at..].starts_with(close.as_bytes()) => {
                    return End::Unclosed(self.at);
                }
                // The mark may be cut off here.
                (None, _) if bytes.len() - self.at < close.len() && close.as_bytes().starts_with(&bytes[self.at..]) => {
                    return End::More;
                }
                (None, b'<' | b'>' | b'`') => return End::Never,
                (None, _) => {}
            }
            self.at += 1;
            self.total += 1;
        }
        End::More
    }
}

/// The JSON value that `text` is, with up to two closing brackets more if it is `unclosed`.
pub(super) fn value(text: &str, unclosed: bool) -> Option<Value> {
    let read = |text: &str| whole::read(text).ok().or_else(|| literal::whole(text));
    if !unclosed {
        return read(text);
    }
    (1..=REPAIRS_MAX).find_map(|many| read(&format!("{}{}", text.trim_end(), "}".repeat(many))))
}

/// Bytes of closing brackets too many at the beginning of `text`, blanks among them.
pub(super) fn surplus(text: &str) -> usize {
    let mut bytes = 0;
    for _ in 0..REPAIRS_MAX {
        let rest = text[bytes..].trim_start();
        match rest.starts_with('}') {
            true => bytes = text.len() - rest.len() + 1,
            false => break,
        }
    }
    bytes
}
