//! `GET /v1/models` and `/v1/models/{id}`. They list the hosted model, once it can produce a token, under each of its
//! names. The embedding model and further models follow, loaded or not.

use axum::response::Response;
use serde_json::{Value, json};

use super::error::ApiError;
use super::reply;
use super::routes::{Call, Door};
use crate::engine::protocol::Hosted;
use crate::service::{EmbedModel, FurtherModel};

fn entry(hosted: &Hosted, created_unix_s: i64) -> Value {
    json!({
        "id": hosted.model.name,
        "object": "model",
        "created": created_unix_s,
        "owned_by": "chimere",
        "x_chimere": {
            "architecture": hosted.model.architecture,
            "backend": hosted.model.backend,
            "device": hosted.model.device,
            "context_tokens": hosted.model.context_tokens,
            "trained_context_tokens": hosted.model.trained_context_tokens,
            "vocab": hosted.model.vocab,
            "thinks": hosted.thinks,
            "chats": hosted.chats,
            "model_hash": hosted.model_hash,
        },
    })
}

fn embedder(model: &EmbedModel, created_unix_s: i64) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": created_unix_s,
        "owned_by": "chimere",
        "x_chimere": {
            "embeds": true,
            "architecture": model.architecture,
            "width": model.width,
            "context_tokens": model.tokens_max,
            "state": model.state,
        },
    })
}

/// What is not loaded says its state alone.
fn further(model: &FurtherModel, created_unix_s: i64) -> Value {
    let mut entry = match &model.hosted {
        Some(hosted) => entry(hosted, created_unix_s),
        None => json!({"object": "model", "created": created_unix_s, "owned_by": "chimere", "x_chimere": {}}),
    };
    entry["id"] = json!(model.name);
    entry["x_chimere"]["state"] = json!(model.state);
    entry
}

/// The model that chats first: clients take the first one.
fn entries(door: &Door) -> Vec<Value> {
    let Some(hosted) = door.service.hosted() else { return Vec::new() };
    let embeds = door.service.embed_model().map(|model| (embedder(&model, door.started_unix_s), model.aliases));
    let main = entry(&hosted, door.started_unix_s);
    let mut entries = vec![main.clone()];
    entries.extend(embeds.iter().map(|(entry, _)| entry.clone()));
    for model in door.service.further_models() {
        if model.name != hosted.model.name {
            entries.retain(|entry| entry["id"] != model.name.as_str());
            entries.push(further(&model, door.started_unix_s));
        }
    }
    let own = door.service.aliases().into_iter().map(|alias| (alias, &main));
    let of_embedder =
        embeds.iter().flat_map(|(entry, aliases)| aliases.iter().map(move |alias| (alias.clone(), entry)));
    for (alias, model) in own.chain(of_embedder) {
        // A name stands for one model: that of a model itself goes before an alias.
        if entries.iter().all(|entry| entry["id"] != alias.as_str()) {
            let mut entry = model.clone();
            entry["id"] = json!(alias);
            entry["x_chimere"]["alias_of"] = model["id"].clone();
            entries.push(entry);
        }
    }
    entries
}

pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    Ok(reply::json(&json!({"object": "list", "data": entries(&call.door)})))
}

pub(crate) async fn get(call: Call) -> Result<Response, ApiError> {
    let id = call.id.unwrap_or_default();
    match entries(&call.door).into_iter().find(|entry| entry["id"] == id.as_str()) {
        Some(entry) => Ok(reply::json(&entry)),
        None => {
            let id: String = id.chars().take(100).collect();
            let mut error = ApiError::not_found(format!("the model `{id}` does not exist")).code("model_not_found");
            error.param = Some("model".to_owned());
            Err(error)
        }
    }
}
