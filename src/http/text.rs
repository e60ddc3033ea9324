//! `POST /tokenize`, `/detokenize` and `/apply-template`, with the bodies of llama-server.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::routes::Call;
use super::table::{Param, Shape, TEXT, TOKEN, Table};
use super::{reply, wire};
use crate::service::ShownPrompt;
use crate::turn::Plan;

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
pub(super) const APPLY_TEMPLATE: Table = wire::chat::TABLE;

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
    let found = call.door.service.tokenize(request.content, specials).await;
    let (ids, pieces) = found.map_err(|error| ApiError::from(error).about("the text ", "content"))?;
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
    let content = call.door.service.detokenize(request.tokens).await;
    let content = content.map_err(|error| ApiError::from(error).about("token ", "tokens"))?;
    Ok(reply::json(&json!({"content": content})))
}

/// The prompt that a chat of the same body would be answered from.
pub(crate) async fn apply_template(call: Call) -> Result<Response, ApiError> {
    let (request, _) = wire::chat::read(&call.body, call.principal.clone(), &call.limits)?;
    let ShownPrompt { text, ids, plan } = call.door.service.prompt(request).await?;
    let Plan { route, because, tier, pipeline_version, sampling, thinking, max_tokens, stop, .. } = plan;
    let terms = json!({
        "route": route,
        "because": because,
        "tier": tier,
        "pipeline_version": pipeline_version,
        "thinking": thinking,
        "max_tokens": max_tokens,
        "stop": stop,
        // Numbers of 32 bits, as they are written.
        "sampling": serde_json::to_string(&sampling).ok().and_then(|text| text.parse::<Value>().ok()),
    });
    Ok(reply::json(&json!({"prompt": text, "tokens": ids, "x_chimere": terms})))
}
