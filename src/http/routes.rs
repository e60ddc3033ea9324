//! The route table and what runs before a route's handler. A route cannot exist without saying who may use
//! it and what body it takes: there is no other way into the router.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter};
use futures_util::future::BoxFuture;
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::{Method, StatusCode, Uri};
use metrics_exporter_prometheus::PrometheusHandle;

use super::accept::Ends;
use super::body::{Budget, Held};
use super::connections::Connections;
use super::cors::Foreign;
use super::error::ApiError;
use super::gate::{Answered, gate};
use super::limits::HttpLimits;
use super::owner::{NotOwner, Peer};
use super::table::Table;
use super::watch::AdmissionTicket;
use super::{
    body, chat, completions, documents, embeddings, lessons, memory, models, openapi, operate, page, query, runs,
    sessions, text, tools, wire,
};
use crate::config::Live;
use crate::service::{LoopbackOwner, OWNER, Principal, Scope, Service};

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anybody: it tells nothing but whether the daemon is there, or is the page, the same in every installation.
    Open,
    /// Holders of this scope.
    Key(Scope),
}

type Handler = fn(Call) -> BoxFuture<'static, Result<Response, ApiError>>;

/// One route: who may use it, and what body and query it takes.
#[derive(Clone, Copy)]
pub struct Route {
    pub method: &'static str,
    /// In axum's form: `{*id}` takes the rest of the path.
    pub path: &'static str,
    pub access: Access,
    /// What its JSON body may say; `None`: it takes none.
    pub(super) body: Option<&'static Table>,
    /// What its query may say; `None`: nothing is read of it.
    pub(super) query: Option<&'static Table>,
    /// It takes a file, in its JSON body or in a form, of the size that files may have.
    pub(super) upload: bool,
    handler: Handler,
}

macro_rules! route {
    ($method:literal $path:literal, $access:expr, Nothing, $handler:path) => {
        route!($method $path, $access, None, None, $handler)
    };
    ($method:literal $path:literal, $access:expr, Json($table:path), $handler:path) => {
        route!($method $path, $access, Some(&$table), None, $handler)
    };
    ($method:literal $path:literal, $access:expr, Query($table:path), $handler:path) => {
        route!($method $path, $access, None, Some(&$table), $handler)
    };
    ($method:literal $path:literal, $access:expr, $body:expr, $query:expr, $handler:path) => {
        Route {
            method: $method,
            path: $path,
            access: $access,
            body: $body,
            query: $query,
            upload: false,
            handler: |call| Box::pin($handler(call)),
        }
    };
}

const CHAT: Access = Access::Key(Scope::Chat);
const METRICS: Access = Access::Key(Scope::Metrics);
const ADMIN: Access = Access::Key(Scope::Admin);

impl Route {
    pub fn takes_json(&self) -> bool {
        self.body.is_some()
    }
}

/// Every route there is.
pub static ROUTES: &[Route] = &[
    route!("GET" "/", Access::Open, Nothing, page::index),
    route!("GET" "/page/{*id}", Access::Open, Nothing, page::file),
    route!("GET" "/openapi.json", Access::Open, Nothing, openapi::document),
    route!("GET" "/health", Access::Open, Nothing, operate::health),
    route!("GET" "/metrics", METRICS, Nothing, operate::metrics),
    route!("GET" "/v1/status", METRICS, Nothing, operate::status),
    route!("GET" "/v1/models", CHAT, Nothing, models::list),
    route!("GET" "/v1/models/{*id}", CHAT, Nothing, models::get),
    route!("GET" "/v1/tools", CHAT, Nothing, tools::list),
    route!("POST" "/v1/chat/completions", CHAT, Json(wire::chat::TABLE), chat::create),
    route!("POST" "/v1/completions", CHAT, Json(wire::completion::TABLE), completions::create),
    route!("POST" "/v1/embeddings", CHAT, Json(wire::embedding::EMBEDDINGS), embeddings::create),
    route!("POST" "/v1/rerank", CHAT, Json(wire::embedding::RERANK), embeddings::rerank),
    route!("POST" "/tokenize", CHAT, Json(text::TOKENIZE), text::tokenize),
    route!("POST" "/detokenize", CHAT, Json(text::DETOKENIZE), text::detokenize),
    route!("POST" "/apply-template", CHAT, Json(text::APPLY_TEMPLATE), text::apply_template),
    route!("POST" "/v1/feedback", CHAT, Json(memory::FEEDBACK), memory::feedback),
    route!("GET" "/v1/memory/turns", CHAT, Query(memory::LIST), memory::list),
    route!("DELETE" "/v1/memory/turns", CHAT, Query(memory::FORGET), memory::forget),
    route!("GET" "/v1/memory/export", CHAT, Query(memory::EXPORT), memory::export),
    route!("GET" "/v1/lessons", CHAT, Query(lessons::LIST), lessons::list),
    route!("POST" "/v1/lessons", CHAT, Json(lessons::ADD), lessons::add),
    route!("GET" "/v1/lessons/{*id}", CHAT, Nothing, lessons::get),
    route!("PATCH" "/v1/lessons/{*id}", CHAT, Json(lessons::EDIT), lessons::edit),
    route!("DELETE" "/v1/lessons/{*id}", CHAT, Nothing, lessons::forget),
    route!("GET" "/v1/documents", CHAT, Query(documents::LIST), documents::list),
    Route { upload: true, ..route!("POST" "/v1/documents", CHAT, Json(documents::ADD), documents::add) },
    route!("POST" "/v1/documents/search", CHAT, Json(documents::SEARCH), documents::search),
    route!("GET" "/v1/documents/{*id}", CHAT, Query(documents::SHOW), documents::get),
    route!("DELETE" "/v1/documents/{*id}", CHAT, Nothing, documents::remove),
    route!("GET" "/v1/collections", CHAT, Nothing, documents::collections),
    route!("POST" "/v1/collections", CHAT, Json(documents::SHARE), documents::share),
    route!("DELETE" "/v1/collections/{*id}", CHAT, Nothing, documents::remove_collection),
    route!("GET" "/v1/runs", CHAT, Nothing, runs::list),
    route!("GET" "/v1/runs/{*id}", CHAT, Nothing, runs::get),
    route!("DELETE" "/v1/runs/{*id}", CHAT, Nothing, runs::cancel),
    route!("GET" "/v1/sessions", CHAT, Nothing, sessions::list),
    route!("POST" "/v1/sessions", CHAT, Json(sessions::SAVE), sessions::save),
    route!("GET" "/v1/sessions/{*id}", CHAT, Nothing, sessions::get),
    route!("DELETE" "/v1/sessions/{*id}", CHAT, Nothing, sessions::delete),
    route!("POST" "/v1/admin/pause", ADMIN, Nothing, operate::pause),
    route!("POST" "/v1/admin/resume", ADMIN, Nothing, operate::resume),
    route!("GET" "/v1/admin/model", ADMIN, Nothing, operate::model),
    route!("POST" "/v1/admin/model", ADMIN, Json(operate::MODEL), operate::change_model),
    route!("GET" "/v1/night", METRICS, Nothing, operate::night_status),
    route!("GET" "/v1/night/report", ADMIN, Query(operate::REPORT), operate::night_report),
    route!("POST" "/v1/night", ADMIN, Json(operate::NIGHT), operate::night),
];

/// Of what takes no parameters.
pub(super) const NOTHING: Table = Table::new("", "", &[]);

/// Paths whose query is passed over, as that of a route with a body: links and probes put into it what they like.
const ANY_QUERY: &[&str] = &["/", "/page/{*id}", "/health", "/metrics"];

/// What all requests share.
pub(crate) struct Door {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) limits: Arc<Live<HttpLimits>>,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) connections: Connections,
    /// Bytes of all bodies together.
    pub(crate) bodies: Budget,
    pub(crate) started_unix_s: i64,
}

/// A request that may proceed.
pub(crate) struct Call {
    pub(crate) door: Arc<Door>,
    /// As they were when the request came.
    pub(crate) limits: Arc<HttpLimits>,
    pub(crate) principal: Principal,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// The `{*id}` of the path.
    pub(crate) id: Option<String>,
    /// Empty where the route takes nothing.
    pub(crate) body: Held,
}

/// The router over `ROUTES`, inside the gate.
pub(crate) fn router(door: Arc<Door>) -> Router {
    let mut by_path: BTreeMap<&'static str, (MethodRouter<Arc<Door>>, Vec<&'static str>)> = BTreeMap::new();
    for route in ROUTES {
        let (methods, names) = by_path.entry(route.path).or_default();
        let filter = match route.method {
            "POST" => MethodFilter::POST,
            "DELETE" => MethodFilter::DELETE,
            "PATCH" => MethodFilter::PATCH,
            _ => MethodFilter::GET,
        };
        let handler = move |State(door): State<Arc<Door>>, id: Option<Path<String>>, request: Request| {
            enter(route, door, id.map(|Path(id)| id), request)
        };
        *methods = std::mem::take(methods).on(filter, handler);
        names.push(route.method);
    }
    let mut router = Router::new();
    for (path, (methods, names)) in by_path {
        let allow = names.join(", ");
        router = router.route(path, methods.fallback(move |method: Method| wrong_method(method, allow)));
    }
    router.fallback(no_route).layer(middleware::from_fn_with_state(Arc::clone(&door), gate)).with_state(door)
}

async fn wrong_method(method: Method, allow: String) -> Response {
    let message = format!("this path takes {allow}, not {}", short(method.as_str()));
    let mut error =
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message).code("method_not_allowed");
    error.allow = Some(allow);
    error.into_response()
}

async fn no_route(request: Request) -> Response {
    let (method, path) = (short(request.method().as_str()), short(request.uri().path()));
    // What OpenAI's clients ask first by now.
    let instead = if path.starts_with("/v1/responses") { ": ask `POST /v1/chat/completions`" } else { "" };
    ApiError::not_found(format!("there is no route {method} {path}{instead}")).into_response()
}

/// At most 100 characters of client text, for an error.
fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

async fn enter(route: &'static Route, door: Arc<Door>, id: Option<String>, request: Request) -> Response {
    let mut principal = nobody();
    let result = admit(route, door, id, request, &mut principal).await;
    let mut response = result.unwrap_or_else(IntoResponse::into_response);
    response.extensions_mut().insert(Answered { route: route.path, principal: principal.name });
    response
}

fn nobody() -> Principal {
    Principal { name: String::new(), scopes: Vec::new(), consent: false }
}

/// Key, scope, body, then the handler: nothing is read for who may not ask.
async fn admit(
    route: &'static Route,
    door: Arc<Door>,
    id: Option<String>,
    request: Request,
    known: &mut Principal,
) -> Result<Response, ApiError> {
    if let Access::Key(scope) = route.access {
        let principal = authenticate(&door, &request)?;
        *known = principal;
        if request.extensions().get::<Foreign>().is_some() {
            known.scopes = known.may(Scope::Chat).then_some(Scope::Chat).into_iter().collect();
        }
        if !known.may(scope) {
            return Err(ApiError::forbidden_scope(&known.name, scope));
        }
        if scope == Scope::Chat && !door.service.accepting() {
            return Err(ApiError::unavailable("the daemon is stopping; try again shortly", 5));
        }
    }
    let limits = door.limits.get();
    let (parts, incoming) = request.into_parts();
    if route.query.is_none() && route.body.is_none() && !ANY_QUERY.contains(&route.path) {
        query::read(&parts.uri, &NOTHING)?;
    }
    let body = match route.body {
        None if route.method == "POST" => body::read_nothing(incoming, &limits, &door.bodies).await?,
        None => Held::default(),
        Some(_) if route.upload => body::read_file(&parts.headers, incoming, &limits, &door.bodies).await?,
        Some(_) => body::read(&parts.headers, incoming, &limits, &door.bodies).await?,
    };
    if let Some(ticket) = parts.extensions.get::<AdmissionTicket>() {
        ticket.admit();
    }
    (route.handler)(Call { door, limits, principal: known.clone(), uri: parts.uri, headers: parts.headers, id, body })
        .await
}

/// Who asks. Without any key it is the owner, where the request comes from this machine and from a user who may be he. The
/// owner's own key needs neither.
fn authenticate(door: &Door, request: &Request) -> Result<Principal, ApiError> {
    let (given, here) = (bearer(request)?, from_loopback(request));
    // Asked first: a key that is made in between costs a refusal at most.
    let keyless = door.service.authenticate(None, here).is_ok();
    let known = door.service.authenticate(given, here)?;
    if known.name == OWNER && keyless {
        may_own(request, door.limits.get().loopback_owner).map_err(ApiError::not_the_owner)?;
    }
    Ok(known)
}

fn may_own(request: &Request, rule: LoopbackOwner) -> Result<(), NotOwner> {
    let (ends, peer) = (request.extensions().get::<Ends>(), request.extensions().get::<Peer>());
    ends.zip(peer).map_or(Err(NotOwner::Unknown), |(ends, peer)| peer.may_own(rule, ends))
}

/// The key of `Authorization: Bearer KEY`. An empty one is what clients send that were given none: it opens what no key
/// guards, as any other word does.
fn bearer(request: &Request) -> Result<Option<&str>, ApiError> {
    let mut values = request.headers().get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let malformed = || {
        ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", "the Authorization header must be `Bearer KEY`")
            .code("invalid_api_key")
    };
    if values.next().is_some() {
        return Err(malformed());
    }
    let text = value.to_str().map_err(|_| malformed())?.trim();
    let (scheme, key) = text.split_once(' ').unwrap_or((text, ""));
    if !text.is_empty() && !scheme.eq_ignore_ascii_case("bearer") {
        return Err(malformed());
    }
    Ok(Some(key.trim()))
}

/// Does the request come from this machine itself? What a proxy passes on does not.
fn from_loopback(request: &Request) -> bool {
    let forwarded =
        ["forwarded", "x-forwarded-for", "x-real-ip"].iter().any(|name| request.headers().contains_key(*name));
    let peer = request.extensions().get::<Ends>().map(|ends| ends.peer.ip().to_canonical());
    !forwarded && peer.is_some_and(|ip| ip.is_loopback())
}
