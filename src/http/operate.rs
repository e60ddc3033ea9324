//! Routes for who runs the daemon: health, metrics, status, pause and resume, the model file, the night.

use std::path::PathBuf;

use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{self, Parameters};
use super::error::ApiError;
use super::routes::Call;
use super::{metrics, reply};
use crate::night::page::page;
use crate::night::phase::Job;
use crate::night::report::Report;
use crate::service::{ModelWish, NightCommand, ServiceError};

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

pub(crate) async fn model(call: Call) -> Result<Response, ApiError> {
    Ok(reply::json(&call.door.service.model()))
}

pub(super) const MODEL: Parameters =
    Parameters { known: &[&["path", "before", "load", "unload", "wait"]], ignored: &[], unsupported: &[] };

#[derive(Deserialize)]
struct Wish {
    path: Option<PathBuf>,
    #[serde(default)]
    before: bool,
    load: Option<String>,
    unload: Option<String>,
    wait: Option<bool>,
}

/// Another model file in the place of the served one, or a further model loaded or unloaded; without `wait` the answer
/// comes at once.
pub(crate) async fn change_model(call: Call) -> Result<Response, ApiError> {
    let mut map = body::object(&call.body, &call.limits)?;
    body::check(&mut map, &MODEL)?;
    let Wish { path, before, load, unload, wait } = body::typed(Value::Object(map))?;
    let wishes = [
        path.map(|path| ("path", ModelWish::File(path))),
        before.then_some(("before", ModelWish::Before)),
        load.map(|name| ("load", ModelWish::Load(name))),
        unload.map(|name| ("unload", ModelWish::Unload(name))),
    ];
    let mut wishes = wishes.into_iter().flatten();
    let wish = match (wishes.next(), wishes.next()) {
        (Some((_, wish)), None) => wish,
        (Some((one, _)), Some((other, _))) => {
            return Err(ApiError::param(other, format!("`{other}` and `{one}` are two wishes: say one of them")));
        }
        (None, _) => return Err(ApiError::param("path", "`path` is missing").code("missing_parameter")),
    };
    Ok(reply::json(&call.door.service.change_model(wish, wait.unwrap_or(true)).await?))
}

pub(super) const NIGHT: Parameters = Parameters {
    known: &[&["command", "job", "candidate", "dry_run", "run", "generation", "route"]],
    ignored: &[],
    unsupported: &[],
};

/// The body of a command for the night, field by field: inside a tagged enum an error could not name its field.
#[derive(Deserialize)]
struct Told {
    command: Word,
    #[serde(default)]
    job: Job,
    candidate: Option<PathBuf>,
    #[serde(default)]
    dry_run: bool,
    run: Option<String>,
    generation: Option<u64>,
    route: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    RunNow,
    Status,
    Report,
    Pause,
    Resume,
    ResetPipeline,
    Rollback,
}

impl Word {
    /// What a command may say beside its own name.
    fn parameters(self) -> &'static [&'static str] {
        match self {
            Word::RunNow => &["job", "candidate", "dry_run"],
            Word::Report => &["run"],
            Word::ResetPipeline => &["route"],
            Word::Rollback => &["generation"],
            Word::Status | Word::Pause | Word::Resume => &[],
        }
    }

    /// A parameter of another command would be passed over: refused, with its name.
    fn check<'a>(self, mut given: impl Iterator<Item = &'a String>) -> Result<(), ApiError> {
        let known = self.parameters();
        let Some(other) = given.find(|name| *name != "command" && !known.contains(&name.as_str())) else {
            return Ok(());
        };
        let takes = if known.is_empty() { "no parameter".to_owned() } else { format!("`{}` only", known.join("`, `")) };
        Err(ApiError::param(other, format!("`{other}` belongs to another command: this one takes {takes}"))
            .code("unknown_parameter"))
    }
}

impl Told {
    fn command(self) -> Result<NightCommand, ApiError> {
        let Told { command, job, candidate, dry_run, run, generation, route } = self;
        Ok(match command {
            Word::RunNow => NightCommand::RunNow { job, candidate, dry_run },
            Word::Status => NightCommand::Status,
            Word::Report => NightCommand::Report { run },
            Word::Pause => NightCommand::Pause,
            Word::Resume => NightCommand::Resume,
            Word::ResetPipeline => {
                let missing = || ApiError::param("route", "`route` is missing").code("missing_parameter");
                NightCommand::ResetPipeline { route: route.ok_or_else(missing)? }
            }
            Word::Rollback => NightCommand::Rollback { generation },
        })
    }
}

pub(crate) async fn night(call: Call) -> Result<Response, ApiError> {
    let mut map = body::object(&call.body, &call.limits)?;
    body::check(&mut map, &NIGHT)?;
    let told: Told = body::typed(Value::Object(map.clone()))?;
    told.command.check(map.keys())?;
    let answer = call.door.service.night(told.command()?).await?;
    Ok(reply::json(&answer))
}

pub(crate) async fn night_status(call: Call) -> Result<Response, ApiError> {
    let answer = call.door.service.night(NightCommand::Status).await?;
    Ok(reply::json(&answer))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    run: Option<String>,
    #[serde(default)]
    format: Form,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    #[default]
    Json,
    Text,
    Html,
}

/// The report of a run, of the last one where none is named: JSON, plain text or a page.
pub(crate) async fn night_report(call: Call) -> Result<Response, ApiError> {
    let query: Result<Query<Wanted>, _> = Query::try_from_uri(&call.uri);
    let Query(wanted) = query.map_err(|error| {
        ApiError::invalid(format!("the query of the address is wrong: {}", error.body_text())).code("bad_query")
    })?;
    let report = call.door.service.night(NightCommand::Report { run: wanted.run }).await?;
    let typed = || serde_json::from_value::<Report>(report.clone());
    let unreadable = |error: serde_json::Error| ServiceError::Internal(format!("the report is damaged: {error}"));
    let (kind, text) = match wanted.format {
        Form::Json => return Ok(reply::json(&report)),
        Form::Text => ("text/plain; charset=utf-8", typed().map_err(unreadable)?.render()),
        Form::Html => ("text/html; charset=utf-8", page(&typed().map_err(unreadable)?)),
    };
    // The page needs no script and loads nothing; what a model wrote in it must not change that.
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(kind)), (CONTENT_SECURITY_POLICY, policy)], text).into_response())
}
