//! `POST /v1/completions`.

use axum::response::Response;

use super::error::ApiError;
use super::routes::Call;
use super::wire::chunk::Kind;
use super::wire::completion::Completions;
use super::wire::sampling;
use super::{prompts, reply, sse, wire};
use crate::service::{ReplyInput, ReplyRequest};

pub(crate) async fn create(call: Call) -> Result<Response, ApiError> {
    answer(call).await.map_err(|error| match error.code {
        Some("context_length_exceeded") => ApiError { param: Some("prompt".to_owned()), ..error },
        _ => error.about("token ", "prompt").about(sampling::BIAS_SAID, "logit_bias"),
    })
}

async fn answer(call: Call) -> Result<Response, ApiError> {
    let limits = &call.limits;
    let Completions { requests, form, echo } = wire::completion::read(&call.body, call.principal.clone(), limits)?;
    let mut echoes = Vec::new();
    if echo {
        for request in &requests {
            let text = echoed(&call, request).await?;
            echoes.extend(vec![text; request.choices as usize]);
        }
    }
    let mut running = prompts::start(&call.door, requests).await?;
    if form.stream {
        reply::await_accepted(&mut running, limits.stream_open_wait()).await?;
        return Ok(sse::respond(running, Kind::Completion { echoes }, form, limits));
    }
    let whole = reply::collect(running, limits.reply_silence_timeout()).await?;
    Ok(reply::json(&wire::reply::completion(&whole, &form, &echoes)?))
}

/// A prompt as text.
async fn echoed(call: &Call, request: &ReplyRequest) -> Result<String, ApiError> {
    match &request.input {
        ReplyInput::Text(text) | ReplyInput::Marked(text) => Ok(text.clone()),
        ReplyInput::Ids(ids) => Ok(call.door.service.detokenize(ids.clone()).await?),
        ReplyInput::Chat { .. } => Ok(String::new()),
    }
}
