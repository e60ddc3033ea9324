//! What a request says of its prompt beside the messages: the variables of `chat_template_kwargs`, and whether the reply
//! goes on with the last message.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::thinking::Effort;
use crate::http::error::ApiError;
use crate::http::table::Shape;
use crate::turn::{Message, PromptEnd, Role};

/// Variables of one request, and bytes of all of them as JSON.
const ARGUMENTS_MAX: usize = 32;
const ARGUMENTS_BYTES_MAX: usize = 16 << 10;
const NAME_BYTES_MAX: usize = 64;
/// Tokens of thought.
pub(super) const THINKING_BUDGET: Shape = Shape::Whole { min: 0, max: u32::MAX as i128 };
/// What the daemon itself gives to templates.
const OWN: &[&str] = &[
    "messages",
    "tools",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
    "range",
    "namespace",
    "dict",
    "loop",
];

/// Variables for the chat template, with those that mean something to the daemon as well.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TemplateArguments {
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) thinking_budget: Option<u32>,
    pub(crate) reasoning_effort: Option<Effort>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    /// All that reach the template.
    pub(crate) variables: Map<String, Value>,
}

impl TemplateArguments {
    pub(crate) fn read(raw: Option<Map<String, Value>>) -> Result<TemplateArguments, ApiError> {
        let wrong = |message: String| Err(ApiError::param("chat_template_kwargs", message));
        let mut variables = raw.unwrap_or_default();
        if variables.len() > ARGUMENTS_MAX {
            return wrong(format!("`chat_template_kwargs` has more than {ARGUMENTS_MAX} entries"));
        }
        if serde_json::to_vec(&variables).map_or(usize::MAX, |text| text.len()) > ARGUMENTS_BYTES_MAX {
            return wrong(format!("`chat_template_kwargs` is over the limit of {ARGUMENTS_BYTES_MAX} bytes"));
        }
        if let Some(name) = variables.keys().find(|name| OWN.contains(&name.as_str())) {
            return wrong(format!(
                "`chat_template_kwargs` cannot set `{name}`, which the daemon gives to the template"
            ));
        }
        if variables.keys().any(|name| !is_name(name)) {
            return wrong(format!(
                "names in `chat_template_kwargs` have 1 to {NAME_BYTES_MAX} letters, digits and `_`, no digit first"
            ));
        }
        let add_generation_prompt = taken(&mut variables, "add_generation_prompt")?;
        let continue_final_message = taken(&mut variables, "continue_final_message")?;
        let enable_thinking = found(&mut variables, "enable_thinking", Shape::Bool)?;
        let thinking_budget = found(&mut variables, "thinking_budget", THINKING_BUDGET)?;
        // DeepSeek's and Granite's name of the switch; whatever else a template calls so is its own affair.
        let thinking = variables.get("thinking").and_then(Value::as_bool);
        let effort = variables.get("reasoning_effort").cloned();
        Ok(TemplateArguments {
            enable_thinking: enable_thinking.or(thinking),
            thinking_budget,
            reasoning_effort: effort.and_then(|word| serde_json::from_value(word).ok()),
            add_generation_prompt,
            continue_final_message,
            variables,
        })
    }
}

fn is_name(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(good) && !name.as_bytes()[0].is_ascii_digit()
}

/// A switch that does not reach the template.
fn taken(variables: &mut Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    let value = found(variables, name, Shape::Bool)?;
    variables.shift_remove(name);
    Ok(value)
}

/// A variable that means something to the daemon, held to its shape as a parameter is, and brought to its form.
fn found<T: DeserializeOwned>(
    variables: &mut Map<String, Value>,
    name: &str,
    shape: Shape,
) -> Result<Option<T>, ApiError> {
    let Some(value) = variables.get_mut(name).filter(|value| !value.is_null()) else { return Ok(None) };
    shape.check(value, &format!("chat_template_kwargs.{name}"))?;
    Ok(serde_json::from_value(value.clone()).ok())
}

/// How the prompt ends: with a new message of the assistant, behind the last message, or within it. A last message of the
/// assistant is gone on with where either is asked for: `continue_final_message`, or no opening of a new one.
pub(crate) fn end(
    messages: &[Message],
    go_on: Option<bool>,
    add_generation_prompt: Option<bool>,
) -> Result<PromptEnd, ApiError> {
    let wrong = |message: &str| Err(ApiError::param("continue_final_message", message));
    let begun = messages.last().is_some_and(|last| last.role == Role::Assistant && last.tool_calls.is_empty());
    match (go_on, add_generation_prompt) {
        (Some(true), Some(true)) => wrong("`continue_final_message` and `add_generation_prompt` contradict each other"),
        (Some(true), _) if !begun => {
            wrong("`continue_final_message` needs a last message of the assistant that calls no tools")
        }
        (Some(true), _) => Ok(PromptEnd::Within),
        (None, Some(false)) if begun => Ok(PromptEnd::Within),
        (_, Some(false)) => Ok(PromptEnd::Closed),
        _ => Ok(PromptEnd::Opened),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<TemplateArguments, ApiError> {
        TemplateArguments::read(value.as_object().cloned())
    }

    #[test]
    fn variables_reach_the_template_and_those_of_the_daemon_are_read() {
        let read = read(json!({"preserve_thinking": true, "reasoning_effort": "max", "enable_thinking": null,
            "thinking": false, "documents": [{"text": "d"}], "add_generation_prompt": false}))
        .unwrap();
        assert_eq!((read.enable_thinking, read.reasoning_effort), (Some(false), Some(Effort::Max)));
        assert_eq!((read.add_generation_prompt, read.continue_final_message), (Some(false), None));
        let names: Vec<&str> = read.variables.keys().map(String::as_str).collect();
        assert_eq!(names, ["preserve_thinking", "reasoning_effort", "enable_thinking", "thinking", "documents"]);
    }

    /// As everywhere that a whole number is: JSON has one kind of number, and so have many clients.
    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        for written in ["1024", "1024.0", "1.024e3"] {
            let body = serde_json::from_str(&format!("{{\"thinking_budget\": {written}}}")).unwrap();
            let read = read(body).unwrap();
            assert_eq!((read.thinking_budget, &read.variables["thinking_budget"]), (Some(1024), &json!(1024)));
        }
        let error = read(json!({"thinking_budget": 0.5})).unwrap_err();
        let words = "`chat_template_kwargs.thinking_budget` must be a whole number between 0 and 4294967295, not 0.5";
        assert_eq!((error.message.as_str(), error.code), (words, Some("invalid_type")));
    }

    #[test]
    fn variables_are_bounded_and_named() {
        for (param, body) in [
            ("chat_template_kwargs", json!({"a": "x".repeat(ARGUMENTS_BYTES_MAX)})),
            ("chat_template_kwargs", (0..40).map(|i| (format!("a{i}"), json!(1))).collect::<Map<_, _>>().into()),
            ("chat_template_kwargs", json!({"messages": []})),
            ("chat_template_kwargs", json!({"raise_exception": 1})),
            ("chat_template_kwargs", json!({"a b": 1})),
            ("chat_template_kwargs", json!({"": 1})),
            ("chat_template_kwargs.enable_thinking", json!({"enable_thinking": "yes"})),
            ("chat_template_kwargs.thinking_budget", json!({"thinking_budget": -1})),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn a_reply_goes_on_only_with_what_the_assistant_began() {
        let user = [Message::new(Role::User, "q")];
        let begun = [Message::new(Role::User, "q"), Message::new(Role::Assistant, "a")];
        let of = |messages: &[Message], go_on, add| end(messages, go_on, add).map_err(|error| error.param);
        for (messages, go_on, add, expected) in [
            (&begun[..], None, None, PromptEnd::Opened),
            (&begun[..], Some(true), None, PromptEnd::Within),
            (&begun[..], Some(true), Some(false), PromptEnd::Within),
            (&begun[..], None, Some(false), PromptEnd::Within),
            (&begun[..], Some(false), Some(false), PromptEnd::Closed),
            (&user[..], None, Some(false), PromptEnd::Closed),
            (&user[..], Some(false), None, PromptEnd::Opened),
        ] {
            assert_eq!(of(messages, go_on, add), Ok(expected));
        }
        let param = Some("continue_final_message".to_owned());
        assert_eq!(of(&user, Some(true), None), Err(param.clone()));
        assert_eq!(of(&begun, Some(true), Some(true)), Err(param));
    }
}
