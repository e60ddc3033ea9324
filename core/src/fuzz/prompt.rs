//! Prompts of conversations in any order: late and repeated system messages, no user, several of a role in a row. Calls
//! and results lack their partners, and the reply may go on with the last message. No client can avoid sending such, so
//! each becomes a prompt in which no text, no call, no result and no tool is missing.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::reader::Reader;
use super::template::{Letters, QWEN, conversation};
use crate::engine::prompt::{PromptError, render, thought_and_content};
use crate::engine::protocol::ChatInput;
use crate::engine::template::{CUT_MARK, ChatTemplate, MARK, TemplateError};
use crate::turn::{Message, Role};
use crate::whole;

/// Shows every message where it stands.
const ANY: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
/// Knows no system, and users and assistants in turn alone.
const TURNS: &str = "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
    {% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}\
    [INST]{{ m.role }}: {{ m.content|trim }}[/INST]{% endfor %}";
/// Shows the last system text alone, without a word.
const LAST: &str = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}\
    {% set ns.s = m.content %}{% endif %}{% endfor %}{{ ns.s }}\
    {% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}";
static TEMPLATES: LazyLock<[ChatTemplate; 4]> =
    LazyLock::new(|| [QWEN, ANY, TURNS, LAST].map(|source| ChatTemplate::load(source).expect("it is a good template")));
/// Which of them takes turns of users and assistants alone.
const OF_TURNS: usize = 2;

pub fn check(data: &[u8]) {
    let mut reader = Reader(data);
    let (which, form) = (usize::from(reader.byte() % 4), reader.byte());
    let mut chat = conversation(&mut reader);
    if chat.messages.is_empty() {
        return;
    }
    chat.effort = (form & 1 != 0).then(|| "max".to_owned());
    if form & 2 != 0 {
        chat.arguments.insert("preserve_thinking".to_owned(), json!({"deep": ["<think>"]}));
    }
    let begun = |last: &Message| last.role == Role::Assistant && last.tool_calls.is_empty() && !last.content.is_empty();
    if form & 8 != 0 {
        told_apart(&mut chat);
    }
    chat.continue_final = form & 4 != 0 && chat.messages.last().is_some_and(begun);
    let of_tools = chat.messages.iter().any(|m| m.role == Role::Tool || !m.tool_calls.is_empty());
    match render(&Letters, &TEMPLATES[which], &chat) {
        Ok(prompt) => whole(&chat, &prompt.text),
        Err(PromptError::Template(TemplateError::Limit(_) | TemplateError::TooLarge { .. })) => {}
        Err(error @ PromptError::Conversation(_)) => {
            assert!(which == OF_TURNS && of_tools, "{error}: {:?}", chat.messages);
            assert!(error.to_string().len() < 1_000, "{error}");
        }
        Err(error) => panic!("{error}: {:?}", chat.messages),
    }
}

/// With a word of its own behind each text, so that one of few letters is missed too.
fn told_apart(chat: &mut ChatInput) {
    let mut words = 0;
    let mut apart = |text: &mut String| {
        words += 1;
        *text += &format!(" zq{words}qz");
    };
    for message in &mut chat.messages {
        if !message.content.trim().is_empty() {
            apart(&mut message.content);
        }
        for call in &mut message.tool_calls {
            apart(&mut call.name);
            texts_of(&mut call.arguments, &mut apart);
        }
    }
}

fn texts_of(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| texts_of(item, change)),
        Value::Object(map) => map.values_mut().for_each(|value| texts_of(value, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Nothing that was said, called, given or offered is missing, no mark is left, and the prompt ends where the reply goes
/// on.
fn whole(chat: &ChatInput, text: &str) {
    assert!(!text.contains([MARK, CUT_MARK, whole::MARK]), "{text:?}");
    let plain = |content: &str| content.replace([MARK, CUT_MARK, whole::MARK], "").trim().to_owned();
    for message in &chat.messages {
        let said = plain(&message.content);
        assert!(text.contains(&said), "{said:?} of {:?} is missing in {text:?}", message.role);
        for call in &message.tool_calls {
            shown(&call.name, text);
            texts_of(&mut call.arguments.clone(), &mut |value| shown(value, text));
        }
    }
    chat.tools.iter().for_each(|tool| shown(tool["function"]["name"].as_str().unwrap_or_default(), text));
    if let Some(last) = chat.messages.last().filter(|_| chat.continue_final) {
        let (_, content) = thought_and_content(last, None);
        assert!(text.trim_end().ends_with(&plain(content)), "{content:?} does not end {text:?}");
    }
}

/// Each word of it, for names and arguments are written as text, as JSON or as Python.
fn shown(said: &str, text: &str) {
    for word in said.split(|c: char| !c.is_ascii_alphanumeric()) {
        assert!(text.contains(word), "{word:?} of {said:?} is missing in {text:?}");
    }
}
