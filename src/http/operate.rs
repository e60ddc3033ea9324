//! Routes for who runs the daemon: health, metrics, status, pause and resume, the model file, the night.

use std::path::PathBuf;

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::routes::Call;
use super::table::{Param, Rule, SOME_TEXT, Shape, TEXT, Table};
use super::{metrics, query, reply};
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

pub(super) const MODEL: Table = Table {
    rules: &[Rule::ExactlyOne(&["path", "before", "load", "unload"])],
    ..Table::new(
        "ModelChange",
        "One of `path`, `before`, `load` and `unload`.",
        &[&[
            Param::new("path", SOME_TEXT, "A GGUF file on the daemon's machine, from `/` on."),
            Param::new("before", Shape::Exactly("true"), "The file that was served before the last change."),
            Param::new("load", SOME_TEXT, "A further model by one of its names, before somebody asks for it."),
            Param::new("unload", SOME_TEXT, "A further model, as soon as its replies under way are told."),
            Param::new("wait", Shape::Bool, "Answer when it is over; false: as soon as it began.").default("true"),
        ]],
    )
};

#[derive(Deserialize)]
struct Wish {
    path: Option<PathBuf>,
    load: Option<String>,
    unload: Option<String>,
    wait: Option<bool>,
}

/// Another model file in the place of the served one, or a further model loaded or unloaded; without `wait` the answer
/// comes at once.
pub(crate) async fn change_model(call: Call) -> Result<Response, ApiError> {
    let (map, _) = body::checked(&call.body, &MODEL, &call.limits)?;
    let Wish { path, load, unload, wait } = body::typed(Value::Object(map))?;
    let wish = path.map(ModelWish::File).or(load.map(ModelWish::Load)).or(unload.map(ModelWish::Unload));
    let wish = wish.unwrap_or(ModelWish::Before);
    Ok(reply::json(&call.door.service.change_model(wish, wait.unwrap_or(true)).await?))
}

const RUN_NOW: &str = "\"run_now\"";
pub(super) const NIGHT: Table = Table {
    // A parameter of another command would be passed over.
    rules: &[
        Rule::Needs("job", "command", RUN_NOW),
        Rule::Needs("candidate", "command", RUN_NOW),
        Rule::Needs("dry_run", "command", RUN_NOW),
        Rule::Needs("run", "command", "\"report\""),
        Rule::Needs("generation", "command", "\"rollback\""),
        Rule::Needs("route", "command", "\"reset_pipeline\""),
        Rule::Asks("command", "\"reset_pipeline\"", "route"),
    ],
    ..Table::new(
        "NightCommand",
        "",
        &[&[
            Param::new(
                "command",
                Shape::Word(&["run_now", "status", "report", "pause", "resume", "reset_pipeline", "rollback"]),
                "",
            )
            .required(),
            Param::new("job", Shape::Word(&["train", "engram_write", "optimise_prompts", "reindex"]), "Of `run_now`."),
            Param::new("candidate", SOME_TEXT, "Of `run_now`: an adapter file on the daemon's machine."),
            Param::new("dry_run", Shape::Bool, "Of `run_now`."),
            Param::new("run", TEXT, "Of `report`: the id of a run."),
            Param::new("generation", Shape::Whole { min: 0, max: u64::MAX as i128 }, "Of `rollback`."),
            Param::new("route", TEXT, "Of `reset_pipeline`."),
        ]],
    )
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

impl Told {
    fn command(self) -> NightCommand {
        let Told { command, job, candidate, dry_run, run, generation, route } = self;
        match command {
            Word::RunNow => NightCommand::RunNow { job, candidate, dry_run },
            Word::Status => NightCommand::Status,
            Word::Report => NightCommand::Report { run },
            Word::Pause => NightCommand::Pause,
            Word::Resume => NightCommand::Resume,
            Word::ResetPipeline => NightCommand::ResetPipeline { route: route.unwrap_or_default() },
            Word::Rollback => NightCommand::Rollback { generation },
        }
    }
}

pub(crate) async fn night(call: Call) -> Result<Response, ApiError> {
    let (map, _) = body::checked(&call.body, &NIGHT, &call.limits)?;
    let told: Told = body::typed(Value::Object(map))?;
    let answer = call.door.service.night(told.command()).await?;
    Ok(reply::json(&answer))
}

pub(crate) async fn night_status(call: Call) -> Result<Response, ApiError> {
    let answer = call.door.service.night(NightCommand::Status).await?;
    Ok(reply::json(&answer))
}

pub(super) const REPORT: Table = Table::new(
    "",
    "",
    &[&[
        Param::new("run", TEXT, "The last one where absent."),
        Param::new("format", Shape::Word(&["json", "text", "html"]), "").default("\"json\""),
    ]],
);

#[derive(Debug, Default, Deserialize)]
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
    let wanted: Wanted = body::typed(Value::Object(query::read(&call.uri, &REPORT)?))?;
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
