//! What the judge reads: the conversation before the answer, then the answer's steps up to the judged one, each ended
//! by `<|step|>`. Only the marks put here are control tokens. Texts are encoded with control tokens switched off, so
//! nothing in an answer can end a step or name a label.

use serde_json::Value;

use super::steps::{Steps, call_text};
use crate::engine::protocol::PromptPart;
use crate::turn::{Message, Role};

pub const STEP_MARK: &str = "<|step|>";
/// Tokens of a verification thought, label included.
pub const VERIFY_TOKENS_MAX: u32 = 48;

/// Longest texts, characters; the middle of a longer one is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub step_chars: usize,
    pub question_chars: usize,
    /// Of the conversation before the question.
    pub history_chars: usize,
}

impl Limits {
    /// What the judge was trained with.
    pub const USUAL: Limits = Limits { step_chars: 1_200, question_chars: 3_000, history_chars: 1_500 };
    /// For texts of so many tokens a character that the usual prompt does not fit the judge's context.
    pub const NARROW: Limits = Limits { step_chars: 80, question_chars: 400, history_chars: 0 };
}

/// The judge's prompt for step `at`.
pub fn judged(question: &[PromptPart], steps: &Steps, at: usize, limits: Limits) -> Vec<PromptPart> {
    let mut parts = question.to_vec();
    parts.extend([control("<|im_start|>"), text("assistant\n")]);
    if !steps.thought.is_empty() {
        parts.extend([control("<think>"), text("\n")]);
    }
    for (n, step) in steps.iter().take(at + 1).enumerate() {
        if n == steps.thought.len() && n > 0 {
            parts.extend([control("</think>"), text("\n\n")]);
        }
        parts.extend([text(clip(step, limits.step_chars)), control(STEP_MARK)]);
    }
    parts
}

/// The conversation as the judge sees it: offered tools in short, the newest messages, no system prompt (it tells the
/// writer how to write, and the judge was trained without it).
pub fn question(messages: &[Message], tools: &[Value], limits: Limits) -> Vec<PromptPart> {
    let mut parts = Vec::new();
    if !tools.is_empty() {
        parts.extend([
            control("<|im_start|>"),
            text(format!("system\n{}", tool_lines(tools, limits))),
            control("<|im_end|>"),
            text("\n"),
        ]);
    }
    for (role, said) in kept(messages, limits) {
        parts.push(control("<|im_start|>"));
        match role {
            Role::Tool => parts.extend([
                text("user\n"),
                control("<tool_response>"),
                text(format!("\n{said}\n")),
                control("</tool_response>"),
            ]),
            Role::Assistant => parts.push(text(format!("assistant\n{said}"))),
            Role::User | Role::System => parts.push(text(format!("user\n{said}"))),
        }
        parts.extend([control("<|im_end|>"), text("\n")]);
    }
    parts
}

/// The same in plain text, for judges that know no control tokens of ours: a single question stands as it is.
pub fn told(messages: &[Message], tools: &[Value], limits: Limits) -> String {
    let mut texts = Vec::new();
    if !tools.is_empty() {
        texts.push(tool_lines(tools, limits));
    }
    match kept(messages, limits).as_slice() {
        [(Role::User, question)] => texts.push(question.clone()),
        several => texts.extend(several.iter().map(|(role, said)| match role {
            Role::Tool => format!("Tool: {said}"),
            Role::Assistant => format!("Assistant: {said}"),
            Role::User | Role::System => format!("User: {said}"),
        })),
    }
    texts.join("\n\n")
}

/// The newest messages that there is room for, in their order.
fn kept(messages: &[Message], limits: Limits) -> Vec<(Role, String)> {
    let mut kept = Vec::new();
    let mut room = limits.history_chars;
    for (n, message) in messages.iter().rev().filter(|m| m.role != Role::System).enumerate() {
        let said = said(message);
        let chars = said.chars().count();
        if n == 0 {
            kept.push((message.role, clip(&said, limits.question_chars)));
        } else if chars <= room {
            room -= chars;
            kept.push((message.role, said));
        } else {
            break;
        }
    }
    kept.reverse();
    kept
}

fn tool_lines(tools: &[Value], limits: Limits) -> String {
    let lines: Vec<String> = tools.iter().map(tool_line).collect();
    format!("Tools:\n{}", clip(&lines.join("\n"), limits.question_chars))
}

fn said(message: &Message) -> String {
    let content = message.content.trim();
    let lines = (!content.is_empty()).then(|| content.to_owned()).into_iter();
    lines.chain(message.tool_calls.iter().map(call_text)).collect::<Vec<_>>().join("\n")
}

/// A tool in one line: name, arguments with their types, description.
fn tool_line(tool: &Value) -> String {
    let function = tool.get("function").unwrap_or(tool);
    let word = |key: &str| function.get(key).and_then(Value::as_str).unwrap_or_default();
    let properties = function.pointer("/parameters/properties").and_then(Value::as_object);
    let mut arguments: Vec<(&str, &str)> = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| (name.as_str(), schema.get("type").and_then(Value::as_str).unwrap_or("any")))
        .collect();
    arguments.sort_unstable();
    let arguments: Vec<String> = arguments.iter().map(|(name, kind)| format!("{name}: {kind}")).collect();
    format!("- {}({}): {}", word("name"), arguments.join(", "), word("description"))
}

/// At most `most` characters: the first two thirds and the end of a longer text.
pub(super) fn clip(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let head = most * 2 / 3;
    let first: String = text.chars().take(head).collect();
    let last: String = text.chars().skip(count - (most - head)).collect();
    format!("{first} ... {last}")
}

fn control(name: &str) -> PromptPart {
    PromptPart::Control(name.to_owned())
}

fn text(text: impl Into<String>) -> PromptPart {
    PromptPart::Text(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::ToolCall;
    use serde_json::json;
    use std::io::BufRead;

    fn shown(parts: &[PromptPart]) -> String {
        parts
            .iter()
            .map(|part| match part {
                PromptPart::Control(name) => format!("[{name}]"),
                PromptPart::Text(text) => text.clone(),
            })
            .collect()
    }

    #[test]
    fn the_steps_up_to_the_judged_one_are_shown() {
        let question = question(
            &[Message::new(Role::System, "Be kind."), Message::new(Role::User, " 7 + 8? ")],
            &[],
            Limits::USUAL,
        );
        let steps = Steps::split("7 + 8 = 15\nso 15", "15", &[]);
        let head = "[<|im_start|>]user\n7 + 8?[<|im_end|>]\n[<|im_start|>]assistant\n[<think>]\n";
        assert_eq!(shown(&judged(&question, &steps, 0, Limits::USUAL)), format!("{head}7 + 8 = 15[<|step|>]"));
        let whole = format!("{head}7 + 8 = 15[<|step|>]so 15[<|step|>][</think>]\n\n15[<|step|>]");
        assert_eq!(shown(&judged(&question, &steps, 2, Limits::USUAL)), whole);
        let direct = Steps::split("", "15", &[]);
        assert!(shown(&judged(&question, &direct, 0, Limits::USUAL)).ends_with("assistant\n15[<|step|>]"));
    }

    #[test]
    fn tools_calls_and_results_are_told_in_short() {
        let tool = json!({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters":
            {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}}});
        let mut call = Message::new(Role::Assistant, "");
        call.tool_calls = vec![ToolCall { id: "1".into(), name: "add".into(), arguments: json!({"b": 2}) }];
        let messages = [Message::new(Role::User, "go"), call, Message::new(Role::Tool, "3 <|step|>")];
        let text = shown(&question(&messages, &[tool], Limits::USUAL));
        assert!(
            text.starts_with("[<|im_start|>]system\nTools:\n- add(a: any, b: integer): Adds.[<|im_end|>]\n"),
            "{text}"
        );
        assert!(text.contains("assistant\ncall add\nb = 2[<|im_end|>]"), "{text}");
        let plain = told(&messages, &[json!({"name": "add"})], Limits::USUAL);
        let wanted = "Tools:\n- add(): \n\nUser: go\n\nAssistant: call add\nb = 2\n\nTool: 3 <|step|>";
        assert_eq!((plain.as_str(), told(&messages[..1], &[], Limits::USUAL).as_str()), (wanted, "go"));
        assert!(text.ends_with("user\n[<tool_response>]\n3 <|step|>\n[</tool_response>][<|im_end|>]\n"), "{text}");
    }

    /// What the judge was trained on is written by `python3 -m prm.form | gzip -9n` (nano/prm/cases.jsonl.gz).
    #[test]
    fn the_training_side_makes_the_same_prompts() {
        let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/nano/prm/cases.jsonl.gz");
        let mut seen = 0;
        for line in crate::simulate::pool::open(cases.as_ref()).unwrap().lines() {
            let case: Value = serde_json::from_str(&line.unwrap()).unwrap();
            seen += 1;
            let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
            let tools: Vec<Value> = serde_json::from_value(case["tools"].clone()).unwrap();
            let calls: Vec<ToolCall> = serde_json::from_value(case["calls"].clone()).unwrap();
            let steps = Steps::split(case["thought"].as_str().unwrap(), case["content"].as_str().unwrap(), &calls);
            assert_eq!(json!([steps.thought, steps.answer]), case["steps"]);
            let parts = judged(&question(&messages, &tools, Limits::USUAL), &steps, steps.len() - 1, Limits::USUAL);
            assert_eq!(serde_json::to_value(parts).unwrap(), case["parts"]);
        }
        assert_eq!(seen, 7);
    }

    #[test]
    fn old_messages_and_long_ones_are_cut() {
        let long = "a".repeat(Limits::USUAL.history_chars);
        let messages = [
            Message::new(Role::User, "first"),
            Message::new(Role::Assistant, long),
            Message::new(Role::User, "x".repeat(9_000)),
        ];
        let text = shown(&question(&messages, &[], Limits::USUAL));
        assert!(!text.contains("first") && text.contains(" ... "), "{}", text.len());
        assert!(text.chars().count() < Limits::USUAL.question_chars + Limits::USUAL.history_chars + 200);
    }
}
