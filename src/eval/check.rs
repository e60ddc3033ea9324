//! The checks that decide whether a reply to an exam item is right. Exact definitions: `nano/golden/README.md`;
//! the Python reference is `nano/tasks/checks.py`, and both pass the vectors of `nano/golden/checks.jsonl`.

use serde::Deserialize;
use serde_json::Value;

use super::decimal::Decimal;
use crate::turn::ToolCall;

/// How a reply is judged.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Check {
    /// The last number of the reply equals `value`, within `tolerance`.
    Number { value: String, tolerance: Option<String> },
    /// Equal after trimming, collapsing white space, folding case and dropping a final full stop.
    Exact { value: String },
    /// One of `any` occurs as whole words, none of `none` does.
    Contains {
        any: Vec<String>,
        #[serde(default)]
        none: Vec<String>,
    },
    /// The first stand-alone word of the reply that is in `among` equals `value`.
    Choice { value: String, among: Vec<String> },
    /// Items split on commas and newlines.
    List {
        value: Vec<String>,
        #[serde(default = "yes")]
        ordered: bool,
    },
    /// Exactly one tool call, of this name, with equal arguments.
    Tool { name: String, arguments: Value },
    /// The first fenced block, or the whole reply, equal after white-space normalisation.
    Code {
        value: String,
        #[serde(default)]
        also: Vec<String>,
    },
}

fn yes() -> bool {
    true
}

impl Check {
    /// Whether `reply` (a thought in it is skipped) and the tool calls pass.
    pub fn passes(&self, reply: &str, calls: &[ToolCall]) -> bool {
        if let Check::Tool { name, arguments } = self {
            return calls.len() == 1 && calls[0].name == *name && same_json(&calls[0].arguments, arguments);
        }
        if !calls.is_empty() {
            return false;
        }
        let text = reply.rsplit("</think>").next().unwrap_or_default();
        match self {
            Check::Number { value, tolerance } => number_passes(text, value, tolerance.as_deref()),
            Check::Exact { value } => plain(text) == plain(value),
            Check::Contains { any, none } => {
                any.iter().any(|p| words_in(text, p)) && !none.iter().any(|p| words_in(text, p))
            }
            Check::Choice { value, among } => {
                words(text).find(|w| among.iter().any(|a| a == w)) == Some(value.as_str())
            }
            Check::List { value, ordered } => list_passes(text, value, *ordered),
            Check::Code { value, also } => {
                let code = spaced(code_of(text));
                std::iter::once(value).chain(also).any(|v| spaced(v) == code)
            }
            Check::Tool { .. } => false,
        }
    }
}

/// White space collapsed to single spaces, trimmed.
fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Case folded: lower case, with the one letter that folds to two.
fn folded(text: &str) -> String {
    text.to_lowercase().replace('ß', "ss")
}

fn plain(text: &str) -> String {
    let text = folded(&spaced(text));
    text.strip_suffix('.').map_or_else(|| text.clone(), |t| t.trim_end().to_owned())
}

fn number_passes(text: &str, value: &str, tolerance: Option<&str>) -> bool {
    let last = numbers(text).pop();
    let (Some(found), Some(wanted)) = (last, Decimal::parse(value)) else { return false };
    match tolerance.map(Decimal::parse) {
        None => found == wanted,
        Some(Some(tolerance)) => found.within(&wanted, &tolerance),
        Some(None) => false,
    }
}

/// Every number of the text: digits, with `,ddd` groups after one to three leading digits, then a decimal part. A
/// minus directly before is a sign unless a letter, digit or closing bracket stands before it.
fn numbers(text: &str) -> Vec<Decimal> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        if !chars[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        at = integer_end(&chars, start);
        if at + 1 < chars.len() && chars[at] == '.' && chars[at + 1].is_ascii_digit() {
            at = digits_end(&chars, at + 1);
        }
        let minus = start > 0 && chars[start - 1] == '-';
        let joined = start > 1 && (chars[start - 2].is_alphanumeric() || matches!(chars[start - 2], ')' | ']'));
        let mut digits: String = chars[start..at].iter().filter(|c| **c != ',').collect();
        if minus && !joined {
            digits.insert(0, '-');
        }
        found.extend(Decimal::parse(&digits));
    }
    found
}

fn digits_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at].is_ascii_digit() {
        at += 1;
    }
    at
}

/// End of the integer part that starts at `start`: grouped digits if they are well formed, else plain digits.
fn integer_end(chars: &[char], start: usize) -> usize {
    let plain = digits_end(chars, start);
    if plain - start > 3 {
        return plain;
    }
    let mut end = plain;
    loop {
        let group = end + 1..end + 4;
        let is_group = end < chars.len()
            && chars[end] == ','
            && group.end <= chars.len()
            && chars[group.clone()].iter().all(char::is_ascii_digit)
            && !chars.get(group.end).is_some_and(char::is_ascii_digit);
        if !is_group {
            return end;
        }
        end = group.end;
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty())
}

/// Whether the phrase occurs with no letter or digit touching a letter or digit of its ends.
fn words_in(text: &str, phrase: &str) -> bool {
    let (text, phrase) = (folded(&spaced(text)), folded(&spaced(phrase)));
    let (Some(first), Some(last)) = (phrase.chars().next(), phrase.chars().next_back()) else { return false };
    text.match_indices(&phrase).any(|(at, _)| {
        let touches =
            |own: char, other: Option<char>| own.is_alphanumeric() && other.is_some_and(char::is_alphanumeric);
        let (before, after) = (text[..at].chars().next_back(), text[at + phrase.len()..].chars().next());
        !touches(first, before) && !touches(last, after)
    })
}

fn list_passes(text: &str, wanted: &[String], ordered: bool) -> bool {
    let mut found: Vec<String> =
        text.split([',', '\n']).map(|line| plain(without_bullet(line.trim()))).filter(|i| !i.is_empty()).collect();
    let mut wanted: Vec<String> = wanted.iter().map(|w| plain(w)).collect();
    if !ordered {
        found.sort_unstable();
        wanted.sort_unstable();
    }
    found == wanted
}

/// Drops `- `, `* `, `• `, `1. `, `2) ` and `(3) ` from the start of a line.
fn without_bullet(line: &str) -> &str {
    if let Some(rest) = line.strip_prefix(['-', '*', '•'])
        && rest.starts_with(char::is_whitespace)
    {
        return rest.trim_start();
    }
    let open = line.strip_prefix('(').unwrap_or(line);
    let rest = open.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = open.len() - rest.len();
    match rest.strip_prefix(['.', ')']) {
        Some(rest) if (1..=3).contains(&digits) && rest.starts_with(char::is_whitespace) => rest.trim_start(),
        _ => line,
    }
}

/// The first fenced block, or the whole text.
fn code_of(text: &str) -> &str {
    let mut from = 0;
    while let Some(open) = text[from..].find("```").map(|at| from + at + 3) {
        let Some(line) = text[open..].find('\n') else { break };
        let body = open + line + 1;
        if text[open..body].contains('`') {
            from = open;
            continue;
        }
        return match text[body..].find("```") {
            Some(end) => &text[body..body + end],
            None => text,
        };
    }
    text
}

/// Equality of JSON values: numbers by value, strings trimmed and case folded, objects key by key.
fn same_json(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            match (Decimal::parse(&a.to_string()), Decimal::parse(&b.to_string())) {
                (Some(a), Some(b)) => a == b,
                _ => a.as_f64() == b.as_f64(),
            }
        }
        (Value::String(a), Value::String(b)) => folded(&spaced(a)) == folded(&spaced(b)),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_json(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same_json(v, w)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Vector {
        check: Check,
        reply: String,
        #[serde(default)]
        tool_calls: Vec<ToolCall>,
        pass: bool,
    }

    #[test]
    fn agrees_with_the_shared_vectors() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/nano/golden/checks.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let vectors: Vec<Vector> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert!(vectors.len() >= 60);
        for v in &vectors {
            assert_eq!(v.check.passes(&v.reply, &v.tool_calls), v.pass, "{:?} on {:?}", v.check, v.reply);
        }
    }
}
