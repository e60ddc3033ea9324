//! Replies under way: listing them, looking at one, ending one. A principal sees its own; the admin scope reaches everybody's.

use axum::response::Response;
use serde_json::{Value, json};

use super::error::ApiError;
use super::reply;
use super::routes::Call;
use crate::service::{RunSummary, Scope};
use crate::turn::TurnId;

/// Whose runs this call may see; `None`: everybody's.
fn whose(call: &Call) -> Option<&str> {
    (!call.principal.may(Scope::Admin)).then_some(call.principal.name.as_str())
}

/// The run that the path names, by its turn's id or by the reply's.
fn named(call: &Call) -> TurnId {
    TurnId::named(call.id.as_deref().unwrap_or_default())
}

fn object(run: &RunSummary) -> Value {
    let mut value = serde_json::to_value(run).unwrap_or_default();
    value["object"] = json!("run");
    value
}

pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let data: Vec<Value> = call.door.service.runs(whose(&call)).iter().map(object).collect();
    Ok(reply::json(&json!({"object": "list", "data": data})))
}

pub(crate) async fn get(call: Call) -> Result<Response, ApiError> {
    let id = named(&call);
    let runs = call.door.service.runs(whose(&call));
    let run = runs.iter().find(|run| run.id == id);
    let run = run.ok_or_else(|| ApiError::not_found(format!("no run {} is under way", id.0)))?;
    Ok(reply::json(&object(run)))
}

pub(crate) async fn cancel(call: Call) -> Result<Response, ApiError> {
    let id = named(&call);
    call.door.service.cancel_run(whose(&call), &id)?;
    Ok(reply::json(&json!({"object": "run.cancelled", "id": id, "cancelled": true})))
}
