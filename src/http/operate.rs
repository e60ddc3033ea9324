//! Routes for who runs the daemon: health, metrics, status, pause and resume, the night.

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{self, Parameters};
use super::error::ApiError;
use super::routes::Call;
use super::{metrics, reply};
use crate::service::NightCommand;

/// 200 once the model can produce a token and the daemon takes requests.
pub(crate) async fn health(call: Call) -> Result<Response, ApiError> {
    let service = &call.door.service;
    if !service.accepting() {
        return Err(ApiError::unavailable("the daemon is stopping", 5).code("stopping"));
    }
    if service.hosted().is_none() {
        return Err(ApiError::unavailable("the model is loading", 2).code("loading"));
    }
    Ok(reply::json(&json!({"status": "ok"})))
}

pub(crate) async fn metrics(call: Call) -> Result<Response, ApiError> {
    let page = call.door.metrics.render();
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE))], page).into_response())
}

pub(crate) async fn status(call: Call) -> Result<Response, ApiError> {
    let mut status = call.door.service.status().await?;
    if let Some(map) = status.as_object_mut() {
        let http = json!({
            "connections": call.door.connections.open(),
            "connections_max": call.limits.connections_max,
            "started_unix_s": call.door.started_unix_s,
        });
        map.insert("http".to_owned(), http);
    }
    Ok(reply::json(&status))
}

pub(crate) async fn pause(call: Call) -> Result<Response, ApiError> {
    call.door.service.pause().await?;
    Ok(reply::json(&json!({"paused": true})))
}

pub(crate) async fn resume(call: Call) -> Result<Response, ApiError> {
    call.door.service.resume().await?;
    Ok(reply::json(&json!({"paused": false})))
}

#[derive(Deserialize)]
struct Night {
    command: NightCommand,
}

pub(crate) async fn night(call: Call) -> Result<Response, ApiError> {
    const PARAMETERS: Parameters = Parameters { known: &[&["command"]], ignored: &[], unsupported: &[] };
    let mut map = body::object(&call.body, &call.limits)?;
    body::check(&mut map, &PARAMETERS)?;
    let night: Night = body::typed(Value::Object(map))?;
    let answer = call.door.service.night(night.command).await?;
    Ok(reply::json(&answer))
}
