//! What is kept of the conversations: feedback, listing, export, forgetting. A key sees and forgets its own
//! turns; the admin scope reaches everybody's.

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::routes::Call;
use super::table::{Param, Rule, Shape, TEXT, Table};
use super::{query, reply};
use crate::service::{CORRECTION_CHARS_MAX, FeedbackRequest, Forgotten, Listed, Scope, TurnFilter};
use crate::turn::TurnId;

/// Turns in one page of the listing, unless the client asks for fewer.
const PAGE_TURNS_MAX: usize = 1000;
const PAGE_TURNS_DEFAULT: usize = 100;
/// Characters of an id that an error repeats.
const NAMED_CHARS_MAX: usize = 80;
/// Turns read at once by the export.
const EXPORT_TURNS: usize = 64;

pub(super) const FEEDBACK: Table = Table {
    rules: &[Rule::AtLeastOne(&["vote", "correction"])],
    ..Table::new(
        "FeedbackRequest",
        "A vote, a correction, or both.",
        &[&[
            Param::new("turn", TEXT, "Its id, or that of the reply.").required(),
            Param::new("vote", Shape::Word(&["up", "down"]), ""),
            Param::new("correction", Shape::Text { min: 1, max: CORRECTION_CHARS_MAX }, "A better answer."),
        ]],
    )
};

const WHICH: &[Param] = &[
    Param::new("turn", TEXT, "One turn, by its id or that of the reply."),
    Param::new("conversation", TEXT, ""),
    Param::new("since_ms", Shape::Whole { min: i64::MIN as i128, max: i64::MAX as i128 }, "Unix milliseconds."),
    Param::new("principal", TEXT, "Another than one's own needs the scope `admin`."),
];
const AFTER: &[Param] = &[Param::new("after", TEXT, "The last turn of the page before.")];
pub(super) const LIST: Table = Table::new(
    "",
    "",
    &[
        WHICH,
        AFTER,
        &[Param::new("order", Shape::Word(&["asc", "desc"]), "`desc`: the newest first.").default("\"asc\"")],
        &[Param::new("limit", Shape::Whole { min: 1, max: PAGE_TURNS_MAX as i128 }, "Turns of a page.").default("100")],
    ],
);
pub(super) const EXPORT: Table = Table::new("", "", &[WHICH, AFTER]);
pub(super) const FORGET: Table =
    Table::new("", "", &[WHICH, &[Param::new("all", Shape::Bool, "Must be said where nothing narrows.")]]);

pub(crate) async fn feedback(call: Call) -> Result<Response, ApiError> {
    let (map, _) = body::checked(&call.body, &FEEDBACK, &call.limits)?;
    let mut request: FeedbackRequest = body::typed(Value::Object(map))?;
    if request.correction.as_ref().is_some_and(|correction| correction.trim().is_empty()) {
        return Err(ApiError::param("correction", "`correction` must be a better answer, not blanks alone"));
    }
    request.turn = TurnId::named(&request.turn.0);
    let turn = request.turn.clone();
    let kept = call.door.service.feedback(call.principal, request).await?;
    let mut answer = json!({"object": "feedback", "turn": turn, "recorded": true});
    if let Some(lesson) = kept.lesson {
        answer["lesson"] = json!(lesson);
        answer["retired"] = json!(kept.retired);
    }
    if kept.unknown {
        answer["lesson"] = json!("unknown");
    }
    if let Some(why) = kept.no_lesson {
        answer["no_lesson"] = json!(why);
    }
    Ok(reply::json(&answer))
}

#[derive(Debug, Default, Deserialize)]
struct Wanted {
    turn: Option<TurnId>,
    principal: Option<String>,
    conversation: Option<String>,
    since_ms: Option<i64>,
    limit: Option<usize>,
    after: Option<TurnId>,
    order: Option<String>,
    /// Forgetting everything must be said.
    all: Option<bool>,
}

impl Wanted {
    fn of(call: &Call, table: &Table) -> Result<Self, ApiError> {
        body::typed(Value::Object(query::read(&call.uri, table)?))
    }

    fn filter(self, call: &Call) -> Result<TurnFilter, ApiError> {
        let own = call.principal.name.clone();
        let principal = match self.principal {
            _ if call.principal.may(Scope::Admin) => self.principal,
            Some(other) if other != own => return Err(ApiError::forbidden_scope(&own, Scope::Admin)),
            _ => Some(own),
        };
        Ok(TurnFilter {
            turn: self.turn.map(|id| TurnId::named(&id.0)),
            principal,
            conversation: self.conversation,
            since_ms: self.since_ms,
            limit: self.limit,
            // A first page has none before it, and a client that pages may say so.
            after: self.after.filter(|id| !id.0.is_empty()).map(|id| TurnId::named(&id.0)),
            newest_first: self.order.as_deref() == Some("desc"),
        })
    }
}

/// Where nothing was found, the turn that the client named must be there: else it takes a wrong id for an empty log.
/// What `after` names may be gone: ids are in the order of time, and what is later is told all the same.
fn known(filter: &TurnFilter, found: bool) -> Result<(), ApiError> {
    let wrong = |after: &&TurnId| after.0.strip_prefix("turn-").is_none_or(|id| id.is_empty());
    let none = filter.turn.as_ref().filter(|_| !found).or(filter.after.as_ref().filter(wrong));
    let Some(id) = none else { return Ok(()) };
    let id: String = id.0.chars().take(NAMED_CHARS_MAX).collect();
    Err(ApiError::not_found(format!("there is no turn `{id}` here: it may have been forgotten or dropped")))
}

pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let wanted = Wanted::of(&call, &LIST)?;
    let limit = wanted.limit.unwrap_or(PAGE_TURNS_DEFAULT);
    // One more than asked tells whether there is more.
    let filter = TurnFilter { limit: Some(limit + 1), ..wanted.filter(&call)? };
    let Listed { mut turns, mut next } = call.door.service.turns(filter.clone()).await?;
    known(&filter, !turns.is_empty() || next.is_some())?;
    if turns.len() > limit {
        turns.truncate(limit);
        next = turns.last().map(|turn| turn.id.clone());
    }
    let data: Vec<&str> = turns.iter().map(|turn| turn.json.as_str()).collect();
    let data = data.join(",");
    let more = match next {
        Some(next) => format!(r#""has_more":true,"next":{}"#, json!(next)),
        None => r#""has_more":false"#.to_owned(),
    };
    Ok(reply::json_text(format!(r#"{{"object":"list","data":[{data}],{more}}}"#)))
}

pub(crate) async fn forget(call: Call) -> Result<Response, ApiError> {
    let wanted = Wanted::of(&call, &FORGET)?;
    let narrow = wanted.turn.is_some() || wanted.conversation.is_some() || wanted.since_ms.is_some();
    if !narrow && wanted.principal.is_none() && wanted.all != Some(true) {
        let message = "say what to forget: `turn`, `conversation`, `principal`, `since_ms`, or `all=true`";
        return Err(ApiError::param("all", message));
    }
    let filter = wanted.filter(&call)?;
    let forgotten = call.door.service.forget(filter.clone()).await?;
    // A turn that was dropped for want of room may have left lessons and pairs.
    known(&filter, !forgotten.is_nothing())?;
    let Forgotten { turns, lessons, pairs } = forgotten;
    Ok(reply::json(&json!({"object": "memory.forgotten", "turns": turns, "lessons": lessons, "pairs": pairs})))
}

/// One turn a line, read page by page, so that a log of any size needs little memory. A failure on the way
/// breaks the connection off rather than end a file that looks complete.
pub(crate) async fn export(call: Call) -> Result<Response, ApiError> {
    let wanted = Wanted::of(&call, &EXPORT)?;
    let first = TurnFilter { limit: Some(EXPORT_TURNS), ..wanted.filter(&call)? };
    let service = std::sync::Arc::clone(&call.door.service);
    let page = service.turns(first.clone()).await?;
    known(&first, !page.turns.is_empty() || page.next.is_some())?;
    let lines = stream::try_unfold(Some((page, first)), move |state| {
        let service = std::sync::Arc::clone(&service);
        async move {
            let Some((page, mut filter)) = state else { return Ok(None) };
            let lines: String = page.turns.iter().flat_map(|turn| [turn.json.as_str(), "\n"]).collect();
            let full = page.turns.last().filter(|_| page.turns.len() == EXPORT_TURNS);
            let next = match page.next.or_else(|| full.map(|last| last.id.clone())) {
                Some(last) => {
                    filter.after = Some(last);
                    let page = service.turns(filter.clone()).await.map_err(Box::new)?;
                    Some((page, filter))
                }
                None => None,
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
