//! The reader of tool calls on any thought and any answer in any pieces, in the way of every family. However a reply is
//! cut, it gives the same texts and the same calls. What is no call stays text, every byte of it.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::reader::cut;
use crate::engine::protocol::Channel;
use crate::toolcall::{CALLS_MAX, Format, Piece, QWEN_TAGS, ToolCallParser, collect};

/// What ends the thought; without it everything is the answer.
const THOUGHT_END: char = '\0';

static TOOLS: LazyLock<[Value; 2]> = LazyLock::new(|| {
    let properties = json!({"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "number"},
        "d": {"type": "boolean"}, "e": {"type": "array"}, "h": {"type": "object"}, "i": {"type": ["string", "null"]},
        "j": {"anyOf": [{"type": "integer"}, {"enum": ["x", 3]}]}});
    let parameters = json!({"type": "object", "properties": properties});
    [json!({"name": "f", "parameters": parameters}), json!({"name": "g"})]
        .map(|function| json!({"type": "function", "function": function}))
});

/// What was read of a reply.
#[derive(Debug, Default, PartialEq)]
struct Read {
    thought: String,
    answer: String,
    calls: Vec<(String, Value)>,
}

/// Thought and answer, each in pieces of `step` bytes.
fn read(thought: &str, answer: &str, step: usize, format: &'static Format) -> Read {
    let mut parser = ToolCallParser::new(&*TOOLS, format);
    let mut pieces: Vec<Piece> = Vec::new();
    for (channel, text) in [(Channel::Thinking, thought), (Channel::Answer, answer)] {
        cut(text, step).into_iter().for_each(|piece| pieces.extend(parser.push(channel, piece)));
    }
    pieces.extend(parser.finish());
    assert!(parser.calls() <= CALLS_MAX);
    let mut read = Read::default();
    for piece in &pieces {
        match piece {
            Piece::Content(Channel::Thinking, text) => read.thought += text,
            Piece::Content(Channel::Answer, text) => read.answer += text,
            Piece::Begin { .. } | Piece::Arguments { .. } | Piece::End { .. } => {}
        }
    }
    read.calls = collect(&pieces).1.into_iter().map(|call| (call.name, call.arguments)).collect();
    read
}

pub fn check(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(bytes);
    let (thought, answer) = text.split_once(THOUGHT_END).unwrap_or(("", &text));
    let other = Format::all().nth(usize::from(*step) % Format::all().count());
    for format in [&QWEN_TAGS].into_iter().chain(other) {
        let whole = read(thought, answer, usize::MAX, format);
        assert_eq!(read(thought, answer, 1 + usize::from(*step), format), whole, "{}", format.name);
        let known = |name: &str| TOOLS.iter().any(|tool| tool["function"]["name"] == name);
        assert!(whole.calls.iter().all(|(name, arguments)| known(name) && arguments.is_object()), "{whole:?}");
        // Some families have marks that mean nothing.
        if format.noise.is_empty() && format.begun.is_empty() && whole.calls.is_empty() {
            assert_eq!((whole.thought.as_str(), whole.answer.as_str()), (thought, answer), "{}", format.name);
        }
    }
}
