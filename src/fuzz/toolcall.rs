//! The reader of tool calls on any text in any pieces, in the way of every family. However a reply is cut, it gives the
//! same text and the same calls. What is no call stays text, every byte of it.

use serde_json::{Value, json};

use super::reader::cut;
use crate::engine::protocol::Channel;
use crate::toolcall::{CALLS_MAX, Format, Piece, QWEN_TAGS, ToolCallParser, collect};

/// Text and calls of a reply that came in these pieces.
fn read<'a>(
    pieces: impl Iterator<Item = &'a str>,
    tools: &[Value],
    format: &'static Format,
) -> (String, Vec<(String, Value)>) {
    let mut parser = ToolCallParser::new(tools, format);
    let mut read: Vec<Piece> = pieces.flat_map(|piece| parser.push(Channel::Answer, piece)).collect();
    read.extend(parser.finish());
    assert!(parser.calls() <= CALLS_MAX);
    let (text, calls) = collect(&read);
    (text, calls.into_iter().map(|call| (call.name, call.arguments)).collect())
}

pub fn check(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(bytes);
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}});
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
    let other = Format::all().nth(usize::from(*step) % Format::all().count());
    for format in [&QWEN_TAGS].into_iter().chain(other) {
        let whole = read(std::iter::once(&*text), &tools, format);
        let cut = cut(&text, 1 + usize::from(*step));
        assert_eq!(read(cut.into_iter(), &tools, format), whole, "{}", format.name);
        assert!(whole.1.iter().all(|(name, arguments)| name == "f" && arguments.is_object()));
        // Some families have marks that mean nothing.
        let plain = format.noise.is_empty() && format.begun.is_empty();
        assert!(!plain || !whole.1.is_empty() || whole.0 == text);
    }
}
