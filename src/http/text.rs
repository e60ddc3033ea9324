//! `POST /tokenize`, `/detokenize` and `/apply-template`, with the bodies of llama-server.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{self, Parameters};
use super::error::ApiError;
use super::reply;
use super::routes::Call;
use super::wire::message::{RawMessage, messages};
use super::wire::thinking::{TemplateArguments, thinking};
use super::wire::tools::tools;
use crate::engine::protocol::ChatInput;
use crate::turn::Thinking;

/// Most ids in one `/detokenize`.
const IDS_MAX: usize = 1 << 20;

pub(super) const TOKENIZE: Parameters = Parameters {
    known: &[&["content", "add_special", "parse_special", "with_pieces"]],
    ignored: &[],
    unsupported: &[],
};
pub(super) const DETOKENIZE: Parameters = Parameters { known: &[&["tokens"]], ignored: &[], unsupported: &[] };
pub(super) const APPLY_TEMPLATE: Parameters = Parameters {
    known: &[&["messages", "tools", "chat_template_kwargs", "add_generation_prompt"]],
    ignored: &["model"],
    unsupported: &[("chat_template", "a template never comes from a request")],
};

fn read<T: serde::de::DeserializeOwned>(call: &Call, parameters: &Parameters) -> Result<T, ApiError> {
    let mut map = body::object(&call.body, &call.limits)?;
    body::check(&mut map, parameters)?;
    body::typed(Value::Object(map))
}

#[derive(Deserialize)]
struct Tokenize {
    content: String,
    /// A beginning-of-text token before the text: no model here has one that is not in its template.
    add_special: Option<bool>,
    /// Read `<|im_start|>` and its kind as control tokens (llama-server's default).
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

pub(crate) async fn tokenize(call: Call) -> Result<Response, ApiError> {
    let request: Tokenize = read(&call, &TOKENIZE)?;
    if request.add_special == Some(true) {
        return Err(ApiError::unsupported("add_special", "`add_special: true` is not supported"));
    }
    let specials = request.parse_special.unwrap_or(true);
    let (ids, pieces) = call.door.service.tokenize(request.content, specials).await?;
    let tokens: Value = if request.with_pieces == Some(true) {
        ids.iter().zip(&pieces).map(|(id, piece)| json!({"id": id, "piece": piece})).collect::<Vec<_>>().into()
    } else {
        json!(ids)
    };
    Ok(reply::json(&json!({"tokens": tokens})))
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
}

pub(crate) async fn detokenize(call: Call) -> Result<Response, ApiError> {
    let request: Detokenize = read(&call, &DETOKENIZE)?;
    if request.tokens.len() > IDS_MAX {
        return Err(ApiError::param("tokens", format!("`tokens` has more than {IDS_MAX} ids")));
    }
    let content = call.door.service.detokenize(request.tokens).await?;
    Ok(reply::json(&json!({"content": content})))
}

#[derive(Deserialize)]
struct ApplyTemplate {
    messages: Vec<RawMessage>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<TemplateArguments>,
    add_generation_prompt: Option<bool>,
}

pub(crate) async fn apply_template(call: Call) -> Result<Response, ApiError> {
    let request: ApplyTemplate = read(&call, &APPLY_TEMPLATE)?;
    let limits = &call.limits;
    let arguments = request.chat_template_kwargs.unwrap_or_default();
    let chat = ChatInput {
        messages: messages(request.messages, limits)?,
        tools: tools(request.tools, None, limits)?.list,
        thinking: thinking(None, TemplateArguments::default(), arguments)?.unwrap_or(Thinking::Template),
        date: jiff::Zoned::now().date().to_string(),
        add_generation_prompt: request.add_generation_prompt.unwrap_or(true),
        ..ChatInput::default()
    };
    let prompt = call.door.service.apply_template(chat).await?;
    Ok(reply::json(&json!({"prompt": prompt})))
}
