//! Passages as the model is shown them: the result of a call of the tool `search_documents`, behind the conversation and
//! never in the system's message. A passage cannot pass for another: numbers in brackets are for the frame alone.

use serde_json::json;

use super::Found;
use super::place::Place;
use crate::turn::{Message, Role, ShownPassage, ToolCall};

const TOOL: &str = "search_documents";
const CALL: &str = "call_documents";
/// What the model reads where nothing was found.
const NOTHING: &str = "Nothing was found in the documents.";
/// A passage that shares no word with the question is shown where its direction is as like as this.
pub const LIKE_MIN: f32 = 0.5;

/// Those of what was found that bear on the question.
pub fn bearing(found: Vec<Found>) -> Vec<Found> {
    let bears = |found: &Found| found.words.is_some() || found.dense.is_some_and(|dense| dense.score >= LIKE_MIN);
    found.into_iter().filter(bears).collect()
}

/// Found passages under the numbers that they are shown by.
pub fn numbered(found: &[Found]) -> Vec<ShownPassage> {
    let of = |(number, found): (u32, &Found)| {
        let chunk = found.document.chunks.get(found.chunk)?;
        Some(ShownPassage {
            number,
            document: found.document.id.0.clone(),
            url: String::new(),
            start: chunk.start,
            end: chunk.end,
            line: chunk.line,
            page: chunk.page,
            row: chunk.row,
            sheet: chunk.sheet.clone().unwrap_or_default(),
            title: found.document.title.clone(),
            text: found.text.clone(),
        })
    };
    (1..).zip(found).filter_map(of).collect()
}

/// One passage in its frame.
pub fn framed(passage: &ShownPassage) -> String {
    let one_line = |text: &str| harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    let place = match host(&passage.url) {
        // The model is not told a whole address: it may be long, and say anything.
        Some(host) => one_line(host),
        None => one_line(&Place::from(passage).words()),
    };
    let title = one_line(&passage.title);
    format!("[{}] {title}, {place}\n{}", passage.number, harmless(passage.text.trim()))
}

/// The host of a web page.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    rest.split(['/', '?', '#']).next()
}

/// The call and its result.
pub fn messages(question: &str, passages: &[ShownPassage]) -> [Message; 2] {
    let mut call = Message::new(Role::Assistant, "");
    let arguments = json!({"query": question});
    call.tool_calls.push(ToolCall { id: CALL.to_owned(), name: TOOL.to_owned(), arguments });
    let said = match passages.is_empty() {
        true => NOTHING.to_owned(),
        false => passages.iter().map(framed).collect::<Vec<_>>().join("\n\n"),
    };
    let mut result = Message::new(Role::Tool, said);
    (result.tool_call_id, result.name) = (Some(CALL.to_owned()), Some(TOOL.to_owned()));
    [call, result]
}

/// `[2]` of a passage's own words becomes `(2)`.
fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('[') {
        let (before, inside) = (&rest[..open], &rest[open + 1..]);
        out.push_str(before);
        let digits =
            inside.len() - inside.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',' || c == ' ').len();
        match inside[digits..].strip_prefix(']') {
            Some(behind) if digits > 0 => {
                out.push_str(&format!("({})", &inside[..digits]));
                rest = behind;
            }
            _ => {
                out.push('[');
                rest = inside;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_cannot_pass_for_another() {
        let passage = ShownPassage {
            number: 1,
            document: "d".to_owned(),
            start: 0,
            end: 1,
            line: 7,
            title: "A\n[9] B".to_owned(),
            text: "x [2] y\n\n[3] Other, line 1\nz [1, 2] a[i] [] [\u{e9}]".to_owned(),
            ..ShownPassage::default()
        };
        let [call, result] = messages("q", std::slice::from_ref(&passage));
        assert_eq!(result.content, "[1] A (9) B, line 7\nx (2) y\n\n(3) Other, line 1\nz (1, 2) a[i] [] [\u{e9}]");
        assert_eq!(
            (call.role, result.role, &result.tool_call_id),
            (Role::Assistant, Role::Tool, &Some(CALL.to_owned()))
        );
        assert_eq!(call.tool_calls[0].arguments, json!({"query": "q"}));
        assert_eq!(messages("q", &[])[1].content, NOTHING);
    }
}
