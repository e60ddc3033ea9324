//! Prompts from any template and any conversation. Whatever the template, it is judged in bounded time and memory, and
//! the ids of a prompt say exactly its text. Whatever the conversation, no control token comes from what a client
//! wrote. A usual template makes the same ones of the same conversation with harmless text.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::reader::Reader;
use crate::engine::prompt::{PromptError, Rendered, render, thought_and_content};
use crate::engine::protocol::ChatInput;
use crate::engine::template::{ChatTemplate, TemplateError, vet};
use crate::engine::vocab::{TokenKind, Vocab, VocabError};
use crate::turn::{Message, Role, Thinking, ToolCall};

pub(super) const QWEN: &str = include_str!("../../../tests/golden/data/template/Qwen3.5-4B.jinja");
/// What most models bring, and a form with other marks that touch the text.
const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
const TIGHT: &str =
    "{{ bos_token }}{% for m in messages %}[INST]{{ m.content|trim }}[/INST]{{ m.name }}</s>{% endfor %}";
static TEMPLATES: LazyLock<[ChatTemplate; 3]> =
    LazyLock::new(|| [QWEN, PLAIN, TIGHT].map(|source| ChatTemplate::load(source).expect("it is a good template")));

/// Stands in harmless text for what every special token begins with.
const HARMLESS: char = '~';

pub fn check(data: &[u8]) {
    let mut reader = Reader(data);
    match reader.byte() % 4 {
        3 => any_template(&mut reader),
        which => any_conversation(&TEMPLATES[usize::from(which)], &mut reader),
    }
}

fn any_template(reader: &mut Reader<'_>) {
    let text = reader.text();
    let source = reader.rest();
    match vet(&source) {
        Ok(()) => {
            let template = ChatTemplate::load(&source).expect("what was vetted can be loaded");
            let call = ToolCall { id: text.clone(), name: text.clone(), arguments: json!({ text.as_str(): text }) };
            let mut reply = Message::new(Role::Assistant, text.as_str());
            reply.tool_calls = vec![call];
            let messages = vec![Message::new(Role::System, "s"), Message::new(Role::User, text), reply];
            judged(render(&Letters, &template, &ChatInput { messages, ..ChatInput::default() }));
        }
        Err(error) => told(&error),
    }
}

fn any_conversation(template: &ChatTemplate, reader: &mut Reader<'_>) {
    let chat = conversation(reader);
    let harmless = |text: &str| text.replace(['<', '['], &HARMLESS.to_string());
    let same = ChatInput {
        messages: chat.messages.iter().map(|m| changed(m, &harmless)).collect(),
        tools: chat.tools.iter().map(|tool| all_changed(tool, &harmless)).collect(),
        ..chat.clone()
    };
    let found = judged(render(&Letters, template, &chat));
    let expected = judged(render(&Letters, template, &same));
    let marks = |prompt: &Rendered| -> Vec<u32> { prompt.ids.iter().copied().filter(|id| *id >= BYTES).collect() };
    match (found, expected) {
        (Some(found), Some(expected)) => {
            assert_eq!(marks(&found), marks(&expected), "{:?} against {:?}", found.text, expected.text);
            assert_eq!(found.thinking_open, expected.thinking_open);
        }
        (found, expected) => assert_eq!(found.is_some(), expected.is_some()),
    }
}

/// A prompt, after a look at its ids.
fn judged(rendered: Result<Rendered, PromptError>) -> Option<Rendered> {
    match rendered {
        Ok(prompt) => {
            let said = |&id| if id < BYTES { Letters.bytes(id) } else { Letters.name(id).into_bytes() };
            let said: Vec<u8> = prompt.ids.iter().flat_map(said).collect();
            // Where the template does not write the first token itself, it is put there.
            let text = prompt.text.as_bytes();
            let begins = said.strip_prefix(BEGIN.as_bytes()).is_some_and(|rest| rest == text);
            assert!(begins || said == text, "{:?} is not {:?}", String::from_utf8_lossy(&said), prompt.text);
            Some(prompt)
        }
        Err(PromptError::Template(error)) => {
            told(&error);
            None
        }
        Err(PromptError::Conversation(why)) => {
            assert!(!why.contains("panicked"), "{why}");
            None
        }
        // The templates of fuzzing show what they like.
        Err(PromptError::Lost(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

fn told(error: &TemplateError) {
    let message = error.to_string();
    assert!(!message.contains("panicked") && !message.contains("no thread"), "{message}");
}

/// A conversation in which every text is anything.
pub(super) fn conversation(reader: &mut Reader<'_>) -> ChatInput {
    let thinking = match reader.byte() % 3 {
        0 => Thinking::Template,
        1 => Thinking::Off,
        _ => Thinking::On { budget_tokens: 9 },
    };
    let text = |reader: &mut Reader<'_>| reader.text().replace(HARMLESS, "");
    let mut chat = ChatInput { thinking, add_generation_prompt: true, ..ChatInput::default() };
    if reader.byte() % 4 == 1 {
        let (name, about, key) = (text(reader), text(reader), text(reader));
        let parameters = json!({"type": "object", "properties": { key.as_str(): {"type": "string", "enum": [about]} }});
        let function = json!({"name": name, "description": about, "parameters": parameters});
        chat.tools.push(json!({"type": "function", "function": function}));
    }
    while !reader.is_empty() && chat.messages.len() < 8 {
        let kind = reader.byte();
        let role = [Role::System, Role::User, Role::Assistant, Role::Tool][usize::from(kind % 4)];
        let mut message = Message::new(role, text(reader));
        if kind & 4 != 0 {
            message.name = Some(text(reader));
            message.tool_call_id = Some(text(reader));
        }
        if role == Role::Assistant && kind & 8 != 0 {
            message.reasoning_content = Some(text(reader));
        }
        if role == Role::Assistant && kind & 16 != 0 {
            let (name, key, value) = (text(reader), text(reader), text(reader));
            let arguments = json!({ key.as_str(): value, "deep": [{"x": value}] });
            message.tool_calls.push(ToolCall { id: text(reader), name, arguments });
        }
        // As the prompt does it before the template sees anything.
        if let (Some(thought), content) = thought_and_content(&message, None) {
            let (thought, content) = (thought.to_owned(), content.to_owned());
            message.reasoning_content = Some(thought);
            message.content = content;
        }
        chat.messages.push(message);
    }
    chat
}

fn changed(message: &Message, change: &impl Fn(&str) -> String) -> Message {
    let some = |text: &Option<String>| text.as_deref().map(change);
    let call = |call: &ToolCall| ToolCall {
        id: change(&call.id),
        name: change(&call.name),
        arguments: all_changed(&call.arguments, change),
    };
    Message {
        role: message.role,
        content: change(&message.content),
        reasoning_content: some(&message.reasoning_content),
        tool_calls: message.tool_calls.iter().map(call).collect(),
        tool_call_id: some(&message.tool_call_id),
        name: some(&message.name),
    }
}

fn all_changed(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => items.iter().map(|item| all_changed(item, change)).collect(),
        Value::Object(map) => Value::Object(map.iter().map(|(k, v)| (change(k), all_changed(v, change))).collect()),
        other => other.clone(),
    }
}

/// Ids below are bytes.
const BYTES: u32 = 256;
const BEGIN: &str = "<s>";
/// The marks of several families, some within others.
const MARKS: [&str; 13] = [
    BEGIN,
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|><",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "[INST]",
    "[/INST]",
];

/// A vocabulary of single bytes and special tokens: what an id says needs no table to be told.
pub(super) struct Letters;

impl Vocab for Letters {
    fn len(&self) -> usize {
        BYTES as usize + MARKS.len()
    }

    fn encode(&self, text: &str, specials: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        assert!(!specials, "no text is read with special tokens");
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        u8::try_from(id).into_iter().collect()
    }

    fn name(&self, id: u32) -> String {
        id.checked_sub(BYTES).and_then(|at| MARKS.get(at as usize)).map_or_else(String::new, |mark| (*mark).to_owned())
    }

    fn kind(&self, id: u32) -> TokenKind {
        if id < BYTES { TokenKind::Normal } else { TokenKind::Control }
    }

    fn special(&self, text: &str) -> Option<u32> {
        (BYTES..).zip(MARKS).find_map(|(id, mark)| (mark == text).then_some(id))
    }

    fn specials(&self) -> Vec<(u32, String)> {
        (BYTES..).zip(MARKS).map(|(id, mark)| (id, mark.to_owned())).collect()
    }

    fn ends(&self) -> &[u32] {
        &[BYTES + 3]
    }

    fn bos(&self) -> Option<u32> {
        Some(BYTES)
    }

    fn template(&self) -> Option<String> {
        None
    }
}
