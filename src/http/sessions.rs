//! Named sessions: conversations that this daemon remembers, so that a client sends what is new. Each key has its own.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::reply;
use super::routes::Call;
use super::table::{Name, Param, Rule, Shape, TEXT, Table};
use super::wire;
use crate::service::{SESSION_NAME_BYTES_MAX, Session, SessionAt};
use crate::turn::TurnId;

/// As `service::is_session_name` has it.
pub(super) const SESSION_NAME: Name = Name {
    pattern: r"^\.*[A-Za-z0-9_-][A-Za-z0-9._-]*$",
    max: SESSION_NAME_BYTES_MAX,
    says: "a session's name: 1 to 64 letters, digits, `.`, `_` and `-`, not dots alone",
};

pub(super) const SAVE: Table = Table {
    rules: &[Rule::ExactlyOne(&["turn", "from"])],
    ..Table::new(
        "SaveSessionRequest",
        "`turn` or `from`, not both.",
        &[&[
            Param::new("name", Shape::Name(&SESSION_NAME), "").required(),
            Param::new(
                "turn",
                TEXT,
                "A turn of one's own, by its id or that of the reply, after which the session goes on.",
            ),
            Param::new("from", Shape::Name(&SESSION_NAME), "Another session."),
            Param::new("replace", Shape::Bool, "Move a session of that name; else it is 409.").default("false"),
        ]],
    )
};

#[derive(Deserialize)]
struct Wanted {
    name: String,
    turn: Option<TurnId>,
    from: Option<String>,
    #[serde(default)]
    replace: bool,
}

fn object(session: &Session) -> Value {
    let Session { name, turn, created_ms, updated_ms, .. } = session;
    json!({"object": "session", "name": name, "turn": turn, "created_ms": created_ms, "updated_ms": updated_ms})
}

pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let sessions = call.door.service.sessions(call.principal.name).await?;
    let data: Vec<Value> = sessions.iter().map(object).collect();
    Ok(reply::json(&json!({"object": "list", "data": data})))
}

pub(crate) async fn get(call: Call) -> Result<Response, ApiError> {
    let (session, said) = call.door.service.session(call.principal.name, call.id.unwrap_or_default()).await?;
    let mut value = object(&session);
    value["messages"] = said.iter().map(wire::message::sent).collect();
    Ok(reply::json(&value))
}

/// Saves a session at a turn, or forks one.
pub(crate) async fn save(call: Call) -> Result<Response, ApiError> {
    let (map, _) = body::checked(&call.body, &SAVE, &call.limits)?;
    let wanted: Wanted = body::typed(Value::Object(map))?;
    let at = match (wanted.turn, wanted.from) {
        (Some(turn), None) => SessionAt::Turn(TurnId::named(&turn.0)),
        (None, Some(from)) => SessionAt::Session(from),
        _ => {
            let message = "say where the session is to stand: a `turn` of yours, or `from`, another session";
            return Err(ApiError::param("turn", message));
        }
    };
    let saved = call.door.service.save_session(call.principal.name, wanted.name, at, wanted.replace).await?;
    Ok(reply::json(&object(&saved)))
}

pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let name = call.id.unwrap_or_default();
    call.door.service.delete_session(call.principal.name, name.clone()).await?;
    Ok(reply::json(&json!({"object": "session.deleted", "name": name, "deleted": true})))
}
