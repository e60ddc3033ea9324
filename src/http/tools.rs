//! `GET /v1/tools`: the built-in tools, and the names kept for others.

use axum::response::Response;

use super::error::ApiError;
use super::reply;
use super::routes::Call;
use crate::tools;

pub(crate) async fn list(_: Call) -> Result<Response, ApiError> {
    Ok(reply::json(&tools::list()))
}
