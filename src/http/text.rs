//! `POST /tokenize`, `/detokenize` and `/apply-template`, with the bodies of llama-server.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::reply;
use super::routes::Call;
use super::table::{Param, Shape, TEXT, TOKEN, Table};
use super::wire::chat::{MESSAGES, TOOLS};
use super::wire::message::{RawMessage, messages};
use super::wire::thinking::{TemplateArguments, thinking};
use super::wire::tools::tools;
use crate::engine::protocol::ChatInput;
use crate::turn::Thinking;

/// Most ids in one `/detokenize`.
const IDS_MAX: usize = 1 << 20;

pub(super) const TOKENIZE: Table = Table::new(
    "TokenizeRequest",
    "",
    &[&[
        Param::new("content", TEXT, "At most 1,048,576 tokens.").required(),
        Param::new("add_special", Shape::Exactly("false"), "A beginning-of-text token is never put before the text."),
        Param::new("parse_special", Shape::Bool, "Control tokens are recognised.").default("true"),
        Param::new("with_pieces", Shape::Bool, "The text of each token with its id."),
    ]],
);
pub(super) const DETOKENIZE: Table = Table::new(
    "DetokenizeRequest",
    "",
    &[&[Param::new("tokens", Shape::List { of: &TOKEN, min: 0, max: IDS_MAX }, "").required()]],
);
pub(super) const APPLY_TEMPLATE: Table = Table {
    ignored: &["model"],
    unsupported: &[("chat_template", "a template never comes from a request")],
    ..Table::new(
        "ApplyTemplateRequest",
        "",
        &[&[
            MESSAGES,
            TOOLS,
            Param::new("chat_template_kwargs", Shape::Elsewhere("TemplateArguments"), ""),
            Param::new("add_generation_prompt", Shape::Bool, "").default("true"),
        ]],
    )
};

fn read<T: serde::de::DeserializeOwned>(call: &Call, table: &Table) -> Result<T, ApiError> {
    let (map, _) = body::checked(&call.body, table, &call.limits)?;
    body::typed(Value::Object(map))
}

#[derive(Deserialize)]
struct Tokenize {
    content: String,
    /// Read `<|im_start|>` and its kind as control tokens (llama-server's default).
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

pub(crate) async fn tokenize(call: Call) -> Result<Response, ApiError> {
    let request: Tokenize = read(&call, &TOKENIZE)?;
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
