//! What is kept of the conversations: feedback, listing, export, forgetting. A key sees and forgets its own
//! turns; the admin scope reaches everybody's.

use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{self, Parameters};
use super::error::ApiError;
use super::reply;
use super::routes::Call;
use crate::service::{CORRECTION_BYTES_MAX, FeedbackRequest, Scope, TurnFilter};
use crate::turn::TurnId;

/// Turns in one page of the listing, unless the client asks for fewer.
const PAGE_TURNS_MAX: usize = 1000;
const PAGE_TURNS_DEFAULT: usize = 100;
/// Turns read at once by the export.
const EXPORT_TURNS: usize = 64;

pub(super) const FEEDBACK: Parameters =
    Parameters { known: &[&["turn", "vote", "correction"]], ignored: &[], unsupported: &[] };

pub(crate) async fn feedback(call: Call) -> Result<Response, ApiError> {
    let mut map = body::object(&call.body, &call.limits)?;
    body::check(&mut map, &FEEDBACK)?;
    let request: FeedbackRequest = body::typed(Value::Object(map))?;
    if request.vote.is_none() && request.correction.is_none() {
        return Err(ApiError::param("vote", "feedback needs a `vote` (\"up\" or \"down\"), a `correction`, or both"));
    }
    if request.correction.as_ref().is_some_and(|text| text.len() > CORRECTION_BYTES_MAX) {
        let message = format!("`correction` is longer than {CORRECTION_BYTES_MAX} bytes");
        return Err(ApiError::param("correction", message));
    }
    let turn = request.turn.clone();
    call.door.service.feedback(call.principal, request).await?;
    Ok(reply::json(&json!({"object": "feedback", "turn": turn, "recorded": true})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(alias = "id")]
    turn: Option<TurnId>,
    principal: Option<String>,
    conversation: Option<String>,
    since_ms: Option<i64>,
    limit: Option<usize>,
    after: Option<TurnId>,
    /// Forgetting everything must be said.
    all: Option<bool>,
}

impl Wanted {
    fn of(call: &Call) -> Result<Self, ApiError> {
        let query: Result<Query<Wanted>, _> = Query::try_from_uri(&call.uri);
        query.map(|Query(wanted)| wanted).map_err(|error| {
            ApiError::invalid(format!("the query of the address is wrong: {}", error.body_text())).code("bad_query")
        })
    }

    fn filter(self, call: &Call) -> Result<TurnFilter, ApiError> {
        let own = call.principal.name.clone();
        let principal = match self.principal {
            _ if call.principal.may(Scope::Admin) => self.principal,
            Some(other) if other != own => return Err(ApiError::forbidden_scope(&own, Scope::Admin)),
            _ => Some(own),
        };
        Ok(TurnFilter {
            turn: self.turn,
            principal,
            conversation: self.conversation,
            since_ms: self.since_ms,
            limit: self.limit,
            after: self.after,
        })
    }
}

pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let wanted = Wanted::of(&call)?;
    if wanted.all.is_some() {
        return Err(ApiError::param("all", "`all` belongs to forgetting"));
    }
    let limit = wanted.limit.unwrap_or(PAGE_TURNS_DEFAULT).min(PAGE_TURNS_MAX);
    // One more than asked tells whether there is more.
    let filter = TurnFilter { limit: Some(limit + 1), ..wanted.filter(&call)? };
    let mut turns = call.door.service.turns(filter).await?;
    let has_more = turns.len() > limit;
    turns.truncate(limit);
    Ok(reply::json(&json!({"object": "list", "data": turns, "has_more": has_more})))
}

pub(crate) async fn forget(call: Call) -> Result<Response, ApiError> {
    let wanted = Wanted::of(&call)?;
    let narrow = wanted.turn.is_some() || wanted.conversation.is_some() || wanted.since_ms.is_some();
    if !narrow && wanted.principal.is_none() && wanted.all != Some(true) {
        let message = "say what to forget: `turn`, `conversation`, `principal`, `since_ms`, or `all=true`";
        return Err(ApiError::param("all", message));
    }
    if wanted.limit.is_some() || wanted.after.is_some() {
        return Err(ApiError::param("limit", "`limit` and `after` belong to listing"));
    }
    let filter = wanted.filter(&call)?;
    let forgotten = call.door.service.forget(filter).await?;
    Ok(reply::json(&json!({"object": "memory.forgotten", "turns": forgotten})))
}

/// One turn a line, read page by page, so that a log of any size needs little memory. A failure on the way
/// breaks the connection off rather than end a file that looks complete.
pub(crate) async fn export(call: Call) -> Result<Response, ApiError> {
    let wanted = Wanted::of(&call)?;
    if wanted.limit.is_some() || wanted.all.is_some() {
        return Err(ApiError::param("limit", "an export is whole: `limit` belongs to listing, `all` to forgetting"));
    }
    let first = TurnFilter { limit: Some(EXPORT_TURNS), ..wanted.filter(&call)? };
    let service = std::sync::Arc::clone(&call.door.service);
    let page = service.turns(first.clone()).await?;
    let lines = stream::try_unfold(Some((page, first)), move |state| {
        let service = std::sync::Arc::clone(&service);
        async move {
            let Some((page, mut filter)) = state else { return Ok(None) };
            let mut lines = Vec::new();
            for turn in &page {
                serde_json::to_writer(&mut lines, turn)?;
                lines.push(b'\n');
            }
            let next = match page.last() {
                Some(last) if page.len() == EXPORT_TURNS => {
                    filter.after = Some(last.id.clone());
                    let page = service.turns(filter.clone()).await.map_err(Box::new)?;
                    Some((page, filter))
                }
                _ => None,
            };
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Some((Bytes::from(lines), next)))
        }
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/jsonl")),
        (CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"turns.jsonl\"")),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}
