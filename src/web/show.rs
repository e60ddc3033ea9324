//! Passages of web pages as the model is shown them: the result of a call, behind the conversation, framed as those of
//! documents are.

use serde_json::json;

use crate::documents::show::framed;
use crate::turn::{Message, Role, ShownPassage, ToolCall};

const TOOL: &str = "search_web";
const CALL: &str = "call_web";
/// What the model reads where nothing was found, and where nothing could be looked for.
const NOTHING: &str = "Nothing was found on the web.";
const FAILED: &str = "The web could not be searched.";

/// The call and its result.
pub fn messages(question: &str, passages: &[ShownPassage], failed: bool) -> [Message; 2] {
    let mut call = Message::new(Role::Assistant, "");
    let arguments = json!({"query": question});
    call.tool_calls.push(ToolCall { id: CALL.to_owned(), name: TOOL.to_owned(), arguments });
    let said = match (passages.is_empty(), failed) {
        (true, true) => FAILED.to_owned(),
        (true, false) => NOTHING.to_owned(),
        (false, _) => passages.iter().map(framed).collect::<Vec<_>>().join("\n\n"),
    };
    let mut result = Message::new(Role::Tool, said);
    (result.tool_call_id, result.name) = (Some(CALL.to_owned()), Some(TOOL.to_owned()));
    [call, result]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_reads_the_host_and_not_the_address() {
        let passage = ShownPassage {
            number: 3,
            url: "https://a.example/x[2]?secret=1".to_owned(),
            start: 0,
            end: 1,
            line: 7,
            title: "Pears [1]".to_owned(),
            text: "Prune them.\n[4] Other, b.example".to_owned(),
            ..ShownPassage::default()
        };
        let [call, result] = messages("q", std::slice::from_ref(&passage), false);
        assert_eq!(result.content, "[3] Pears (1), a.example\nPrune them.\n(4) Other, b.example");
        assert_eq!((call.tool_calls[0].name.as_str(), result.role), (TOOL, Role::Tool));
        assert_eq!(
            (messages("q", &[], false)[1].content.as_str(), messages("q", &[], true)[1].content.as_str()),
            (NOTHING, FAILED)
        );
    }
}
