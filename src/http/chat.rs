//! `POST /v1/chat/completions`.

use axum::response::Response;

use super::error::ApiError;
use super::routes::Call;
use super::wire::chunk::Kind;
use super::wire::sampling;
use super::{reply, sse, wire};

pub(crate) async fn create(call: Call) -> Result<Response, ApiError> {
    answer(call).await.map_err(|error| error.about(sampling::BIAS_SAID, "logit_bias"))
}

async fn answer(call: Call) -> Result<Response, ApiError> {
    let limits = &call.limits;
    let (request, form) = wire::chat::read(&call.body, call.principal, limits)?;
    let mut running = reply::start(&call.door, request).await?;
    if form.stream {
        reply::await_accepted(&mut running, limits.stream_open_wait()).await?;
        return Ok(sse::respond(running, Kind::Chat, form, limits));
    }
    let whole = reply::collect(running, limits.reply_silence_timeout()).await?;
    Ok(reply::json(&wire::reply::chat(&whole, &form)?))
}
