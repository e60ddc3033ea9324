//! Replies in channels, as gpt-oss writes them: each message has a header that says where it belongs. The header and the
//! marks are not shown, but for a call, whose text goes to the reader of calls.

use super::super::vocab::Vocab;

/// Before the name of a function in a header.
const RECIPIENT: &str = "to=functions.";
/// Bytes of a header; more is no header.
const HEADER_BYTES_MAX: usize = 512;

/// The tokens that make messages.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    start: u32,
    channel: u32,
    message: u32,
    end: u32,
}

/// Follows the messages of one reply.
#[derive(Debug)]
pub(super) struct Harmony {
    tokens: Tokens,
    /// The header under way.
    header: Option<String>,
}

/// What a token means.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// It is text of the present message.
    Text,
    /// It is part of a header or between messages.
    Silent,
    /// A thought begins.
    Thought,
    /// An answer begins.
    Answer,
    /// A call begins, with this text.
    Call(String),
}

impl Harmony {
    /// `None`: the vocabulary has no such tokens.
    pub(super) fn of(vocab: &dyn Vocab) -> Option<Harmony> {
        let tokens = Tokens {
            start: vocab.special("<|start|>")?,
            channel: vocab.special("<|channel|>")?,
            message: vocab.special("<|message|>")?,
            end: vocab.special("<|end|>")?,
        };
        Some(Harmony { tokens, header: None })
    }

    /// The token that ends a thought.
    pub(super) fn end(&self) -> u32 {
        self.tokens.end
    }

    pub(super) fn step(&mut self, vocab: &dyn Vocab, id: u32) -> Step {
        let tokens = self.tokens;
        if id == tokens.start || id == tokens.channel {
            self.header.get_or_insert_default().push_str(&vocab.name(id));
            return Step::Silent;
        }
        if id == tokens.end {
            self.header = None;
            return Step::Silent;
        }
        let Some(header) = &mut self.header else { return Step::Text };
        if id == tokens.message {
            let header = std::mem::take(header);
            self.header = None;
            return match header {
                header if header.contains(RECIPIENT) => Step::Call(call_head(&header)),
                header if header.contains("analysis") => Step::Thought,
                _ => Step::Answer,
            };
        }
        let bytes = vocab.bytes(id);
        match bytes.is_empty() {
            true => header.push_str(&vocab.name(id)),
            false => header.push_str(&String::from_utf8_lossy(&bytes)),
        }
        if header.len() > HEADER_BYTES_MAX {
            self.header = None;
        }
        Step::Silent
    }
}

/// The head of a call as its reader knows it. A model names the function in either part of the header, and on any channel.
fn call_head(header: &str) -> String {
    let name = header.split_once(RECIPIENT).map_or("", |(_, behind)| behind);
    let end = name.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(name.len());
    format!("<|channel|>commentary {RECIPIENT}{}<|message|>", &name[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::protocol::Channel;
    use crate::toolcall::{Format, ToolCallParser, collect};

    #[test]
    fn a_call_is_read_whatever_its_header_says_beside_the_name() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        for header in [
            "<|channel|>commentary to=functions.find <|constrain|>json",
            "<|channel|>analysis to=functions.find code",
            "<|start|>assistant to=functions.find<|channel|>commentary json",
            "<|start|>assistant<|channel|>analysis to=functions.find <|constrain|>json",
        ] {
            let mut parser = ToolCallParser::new(&[tool("find"), tool("json")], Format::named("harmony").unwrap());
            let mut pieces = parser.push(Channel::Answer, &(call_head(header) + "{\"n\": 1}"));
            pieces.extend(parser.finish());
            let (text, calls) = collect(&pieces);
            assert_eq!((text.as_str(), calls.len()), ("", 1), "{header}");
            assert_eq!((calls[0].name.as_str(), &calls[0].arguments), ("find", &json!({"n": 1})), "{header}");
        }
    }
}
