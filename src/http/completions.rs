//! `POST /v1/completions`.

use axum::response::Response;

use super::error::ApiError;
use super::routes::Call;
use super::wire::chunk::Kind;
use super::{reply, sse, wire};
use crate::service::ReplyInput;

pub(crate) async fn create(call: Call) -> Result<Response, ApiError> {
    let limits = &call.limits;
    let (request, form, echo) = wire::completion::read(&call.body, call.principal, limits)?;
    let echo = match (&request.input, echo) {
        (ReplyInput::Text(text), true) => text.clone(),
        (ReplyInput::Ids(ids), true) => call.door.service.detokenize(ids.clone()).await?,
        _ => String::new(),
    };
    let mut running = reply::start(&call.door, request).await?;
    if form.stream {
        reply::await_accepted(&mut running, limits.stream_open_wait()).await?;
        return Ok(sse::respond(running, Kind::Completion { echo }, form, limits));
    }
    let whole = reply::collect(running, limits.reply_silence_timeout()).await?;
    let value =
        wire::reply::completion(&whole.head, &whole.choices, &whole.usage, &whole.generations, form.logprobs, &echo)?;
    Ok(reply::json(&value))
}
