//! Calls in a history and what is read of them again: for the small templates of `families`, and for public ones in the
//! golden tests, which include this file.

use serde_json::{Value, json};

use super::{Channel, Format, Piece, ToolCallParser, collect};

pub fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "properties": {"s": {"type": "string", "description": "text"},
        "i": {"type": "integer", "description": "number"}, "o": {"type": "object", "description": "things"}}, "required": ["s"]});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}});
    vec![tool("find_it"), tool("g")]
}

/// Calls as a client sends them back, arguments as objects or as strings.
pub fn calls(many: usize, as_text: bool) -> Vec<Value> {
    let all =
        [("find_it", json!({"i": 7, "o": {"k": [1, null, true]}, "s": "a \"b\"\nc"})), ("g", json!({"s": "z < y"}))];
    let one = |(at, (name, arguments)): (usize, (&str, Value))| {
        let arguments = if as_text { Value::String(arguments.to_string()) } else { arguments };
        let id = if at == 0 { "call00001" } else { "call00002" };
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    };
    all.into_iter().take(many).enumerate().map(one).collect()
}

/// What is read from pieces.
fn read(format: &'static Format, pieces: &[&str]) -> Vec<(String, Value)> {
    let mut parser = ToolCallParser::new(&tools(), format);
    let mut found: Vec<Piece> = pieces.iter().flat_map(|piece| parser.push(Channel::Answer, piece)).collect();
    found.extend(parser.finish());
    collect(&found).1.into_iter().map(|call| (call.name, call.arguments)).collect()
}

/// Reads `text` whole, cut in two anywhere, and in single characters.
pub fn read_in_any_cut(format: &'static Format, text: &str) -> Vec<(String, Value)> {
    let whole = read(format, &[text]);
    let cuts: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
    for &cut in &cuts {
        assert_eq!(read(format, &[&text[..cut], &text[cut..]]), whole, "{text:?} cut at {cut}");
    }
    let single: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
    assert_eq!(read(format, &single), whole, "{text:?}");
    whole
}

pub fn expected(many: usize) -> Vec<(String, Value)> {
    let of =
        |call: Value| (call["function"]["name"].as_str().unwrap().to_owned(), call["function"]["arguments"].clone());
    calls(many, false).into_iter().map(of).collect()
}
