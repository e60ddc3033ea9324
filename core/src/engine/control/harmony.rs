//! Replies in channels, as gpt-oss writes them: each message has a header that says where it belongs. The header and the
//! marks are not shown, but for a call, whose text goes to the reader of calls. The prompt begins the first header.

use super::super::channels::Channels;
use super::super::vocab::{Vocab, VocabError};

/// Before the name of a function in a header.
const RECIPIENT: &str = "to=functions.";
/// What a header may go on with behind the role, before the channel.
const ADDRESS: &str = "to=";
/// Bytes of a header; more is no header.
const HEADER_BYTES_MAX: usize = 512;

/// Follows the messages of one reply.
#[derive(Debug)]
pub(super) struct Harmony {
    tokens: Channels,
    /// The header under way.
    header: Option<String>,
    /// Bytes of it that the prompt wrote, while nothing but text followed: that may be the answer, without a header.
    begun: Option<usize>,
}

/// What a token means.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// It is text of the present message, and so is this before it.
    Text(String),
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
        Some(Harmony { tokens: Channels::of(vocab)?, header: None, begun: None })
    }

    /// The token that ends a thought.
    pub(super) fn end(&self) -> u32 {
        self.tokens.end
    }

    /// The tokens that end a thought and begin the answer.
    pub(super) fn close(vocab: &dyn Vocab) -> Result<Option<Vec<u32>>, VocabError> {
        let Some(tokens) = Channels::of(vocab) else { return Ok(None) };
        let mut ids = vec![tokens.end];
        ids.extend(tokens.turn(vocab)?);
        ids.extend(tokens.header(vocab, "final")?);
        Ok(Some(ids))
    }

    /// The prompt may end within a header, as templates do: behind `<|start|>` and the role.
    pub(super) fn behind(&mut self, vocab: &dyn Vocab, prompt: &[u32]) {
        let Channels { start, channel, .. } = self.tokens;
        let Some(open) = self.tokens.open(prompt) else { return };
        let header: String = open.iter().map(|id| spelled(vocab, *id)).collect();
        if open[0] == start && header.len() <= HEADER_BYTES_MAX {
            let role_alone = open.len() > 1 && !open.contains(&channel);
            self.begun = role_alone.then_some(header.len());
            self.header = Some(header);
        }
    }

    /// What was held back as the beginning of a header, where the reply ends.
    pub(super) fn rest(&mut self) -> String {
        match (self.header.take(), self.begun.take()) {
            (Some(header), Some(begun)) => header[begun..].to_owned(),
            _ => String::new(),
        }
    }

    pub(super) fn step(&mut self, vocab: &dyn Vocab, id: u32) -> Step {
        let tokens = self.tokens;
        if id == tokens.start || id == tokens.channel {
            self.begun = None;
            self.header.get_or_insert_default().push_str(&vocab.name(id));
            return Step::Silent;
        }
        if id == tokens.end {
            (self.header, self.begun) = (None, None);
            return Step::Silent;
        }
        let Some(header) = &mut self.header else { return Step::Text(String::new()) };
        if id == tokens.message {
            let header = std::mem::take(header);
            (self.header, self.begun) = (None, None);
            return match header {
                header if header.contains(RECIPIENT) => Step::Call(call_head(&header)),
                header if header.contains("analysis") => Step::Thought,
                _ => Step::Answer,
            };
        }
        let more = spelled(vocab, id);
        if let Some(begun) = self.begun
            && !is_address(&format!("{}{more}", &header[begun..]))
        {
            return Step::Text(self.rest());
        }
        header.push_str(&more);
        if header.len() > HEADER_BYTES_MAX {
            (self.header, self.begun) = (None, None);
        }
        Step::Silent
    }
}

/// A token's text, or the name of one that has none.
fn spelled(vocab: &dyn Vocab, id: u32) -> String {
    let bytes = vocab.bytes(id);
    if bytes.is_empty() { vocab.name(id) } else { String::from_utf8_lossy(&bytes).into_owned() }
}

/// Whether a text behind the role names a recipient, or may come to.
fn is_address(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with(ADDRESS) || ADDRESS.starts_with(text)
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

    use super::super::tests::Marked;
    use super::super::{ReplyControl, ReplyLimits};
    use super::*;
    use crate::engine::protocol::Channel;
    use crate::toolcall::{Format, ToolCallParser, collect};
    use crate::turn::{FinishReason, Thinking};

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

    const MARKS: [&str; 6] = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"];

    fn channels() -> Marked {
        Marked { marks: MARKS.to_vec(), ends: vec![260, 261], template: None }
    }

    fn ids(text: &str) -> Vec<u32> {
        channels().ids(text)
    }

    /// Thought and answer of a reply behind a prompt, and the tokens that were forced.
    fn reply(prompt: &str, text: &str, thinking: Thinking) -> (String, String, Vec<u32>) {
        let limits = ReplyLimits { max_tokens: 1000, stop: &[], thinking, ignore_end: false };
        let vocab = channels();
        let mut control = ReplyControl::new(&vocab, limits, false).unwrap().behind(&vocab, &ids(prompt));
        let (mut said, mut forced) = ([String::new(), String::new()], Vec::new());
        let mut sampled = ids(text).into_iter();
        while let Some(id) = control.forced().or_else(|| sampled.next()) {
            let advance = control.push(&vocab, id);
            said[usize::from(advance.channel == Channel::Answer)] += &advance.text;
            forced.extend(advance.forced.then_some(id));
            if let Some(finish) = advance.finish {
                said[1] += &finish.text;
                return (said[0].clone(), said[1].clone(), forced);
            }
        }
        said[1] += &control.finish(FinishReason::Length).text;
        (said[0].clone(), said[1].clone(), forced)
    }

    #[test]
    fn the_first_header_goes_on_where_the_prompt_ends() {
        let call = "<|channel|>commentary to=functions.find<|message|>{\"n\":1}";
        let prompt = "<|start|>user<|message|>hi<|end|><|start|>assistant";
        for (prompt, text, thought, answer) in [
            (prompt, " to=functions.find<|channel|>commentary json<|message|>{\"n\":1}<|call|>", "", call),
            (prompt, "<|channel|>commentary to=functions.find <|constrain|>json<|message|>{\"n\":1}<|call|>", "", call),
            (
                prompt,
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>so<|return|>",
                "hm",
                "so",
            ),
            // An answer without a header: a template of another kind, a plain text.
            (prompt, "{\"a\": 1}<|return|>", "", "{\"a\": 1}"),
            (prompt, " to be<|return|>", "", " to be"),
            (prompt, " to", "", " to"),
            (prompt, "\u{e9}t\u{e9}<|return|>", "", "\u{e9}t\u{e9}"),
            ("once", " to=day<|return|>", "", " to=day"),
            ("<|start|>assistant<|channel|>final<|message|>So", " to=day<|return|>", "", " to=day"),
            ("<|start|>", "assistant<|channel|>final<|message|>so<|return|>", "", "so"),
            ("<|start|>assistant<|channel|>", "analysis<|message|>hm<|end|>", "hm", ""),
        ] {
            let found = reply(prompt, text, Thinking::Template);
            assert_eq!((found.0.as_str(), found.1.as_str()), (thought, answer), "{text}");
        }
    }

    #[test]
    fn a_thought_over_its_budget_is_ended_and_the_answer_begun() {
        let prompt = "<|start|>assistant";
        let text = "<|channel|>analysis<|message|>0123456789";
        for (thinking, kept) in [(Thinking::On { budget_tokens: 4 }, "0123"), (Thinking::Off, "")] {
            let (thought, answer, forced) = reply(prompt, text, thinking);
            let rest = text.split_at(text.find('0').unwrap() + kept.len()).1;
            assert_eq!((thought.as_str(), answer.as_str()), (kept, rest));
            assert_eq!(forced, ids("<|end|><|start|>assistant<|channel|>final<|message|>"));
        }
    }
}
