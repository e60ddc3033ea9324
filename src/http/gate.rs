//! The request guard. Every request passes it first, known route or not: an id, header limits, the Host and Origin
//! checks, preflights. Every response passes it last: a panic becomes a 500, then safe headers, the access log and the
//! counters.

use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::header::{CACHE_CONTROL, HOST, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, StatusCode};

use super::accept::Ends;
use super::cors::{self, Foreign};
use super::error::ApiError;
use super::limits::HttpLimits;
use super::metrics;
use super::routes::Door;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The one route whose successes are not worth a line.
const HEALTH: &str = "/health";

/// Set on a response by the route that made it, for the log.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) route: &'static str,
    pub(crate) principal: String,
}

/// The outermost layer.
pub(crate) async fn gate(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let limits = door.limits.get();
    let id = request_id();
    let method = method_name(request.method());
    let peer = request.extensions().get::<Ends>().map(|ends| ends.peer);
    let checked = check(&request, &limits);
    let foreign = checked.as_ref().ok().cloned().flatten();
    if let Some(foreign) = foreign.clone() {
        request.extensions_mut().insert(foreign);
    }
    let mut response = match (checked, foreign.as_ref().and_then(|_| cors::preflight(&request))) {
        (Err(error), _) => error.into_response(),
        (Ok(_), Some(answer)) => answer,
        (Ok(_), None) => match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                tracing::error!(request_id = %id, "a request handler panicked");
                ApiError::internal("the request hit a fault of the daemon; it was logged").into_response()
            }
        },
    };
    let headers = response.headers_mut();
    if let Some(foreign) = &foreign {
        cors::invite(foreign, headers);
    }
    if !limits.origins.is_empty() {
        cors::vary(headers);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, value);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let answered = response.extensions().get::<Answered>();
    let route = answered.map_or("none", |a| a.route);
    let principal = answered.map_or("", |a| a.principal.as_str());
    let took = started.elapsed();
    let status = response.status().as_u16();
    metrics::request(route, method, status, took);
    let took_ms = took.as_secs_f64() * 1e3;
    let peer = peer.map(tracing::field::display);
    // Probes come every few seconds and say nothing.
    if route == HEALTH && status == 200 {
        tracing::debug!(request_id = %id, method, route, status, took_ms, principal, peer, "request");
    } else {
        tracing::info!(request_id = %id, method, route, status, took_ms, principal, peer, "request");
    }
    response
}

/// 96 random bits: long enough to find one request in a log.
pub(crate) fn request_id() -> String {
    format!("req-{}", random_hex::<12>())
}

/// `BYTES` random bytes in hexadecimal.
pub(crate) fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    if getrandom::fill(&mut bytes).is_err() {
        // An id without randomness is still an id; nothing is guarded by it.
        let now = std::time::UNIX_EPOCH.elapsed().map(|d| d.as_nanos()).unwrap_or_default();
        for (to, from) in bytes.iter_mut().zip(now.to_le_bytes()) {
            *to = from;
        }
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Clients can invent methods; labels must stay few.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

/// Whether the request may go on, and which foreign page sent it.
fn check(request: &Request, limits: &HttpLimits) -> Result<Option<Foreign>, ApiError> {
    let headers = request.headers();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > limits.headers_max || bytes > limits.header_bytes_max {
        return Err(ApiError::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "invalid_request_error",
            format!("more than {} headers or {} header bytes", limits.headers_max, limits.header_bytes_max),
        )
        .code("headers_too_large"));
    }
    let authority = authority(request)?;
    let local = request.extensions().get::<Ends>().map(|ends| ends.local);
    if !host_allowed(&authority, local, &limits.host_names) {
        return Err(ApiError::new(
            StatusCode::MISDIRECTED_REQUEST,
            "invalid_request_error",
            "this host name is not one of this daemon's; the owner can add it to `http.hosts` in the configuration",
        )
        .code("host_not_allowed"));
    }
    cors::check(headers, &authority, &limits.origins)
}

/// The host that the client believes it talks to: `:authority` of HTTP/2, else the one `Host` header.
fn authority(request: &Request) -> Result<String, ApiError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(ApiError::invalid("more than one Host header").code("bad_host"));
    }
    let of_uri = request.uri().authority().map(|a| a.as_str());
    let of_header = host.map(|value| value.to_str().unwrap_or("?"));
    match (of_uri, of_header) {
        (Some(uri), Some(header)) if !uri.eq_ignore_ascii_case(header) => {
            Err(ApiError::invalid("the Host header contradicts the request target").code("bad_host"))
        }
        (Some(name), _) | (None, Some(name)) => Ok(name.to_ascii_lowercase()),
        (None, None) => Err(ApiError::invalid("the Host header is missing").code("bad_host")),
    }
}

/// Splits `name:port`, `[v6]:port`, or either without port.
fn host_part(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(inside, _)| inside);
    }
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) => "",
        None => authority,
    }
}

/// Loopback names, the address the connection came in on, and configured names.
fn host_allowed(authority: &str, local: Option<SocketAddr>, names: &[String]) -> bool {
    let host = host_part(authority);
    // A name with a dot at its end is the same name, from the root on.
    let host = host.strip_suffix('.').filter(|name| name.parse::<IpAddr>().is_err()).unwrap_or(host);
    if let Ok(ip) = host.parse::<IpAddr>() {
        let ip = ip.to_canonical();
        return ip.is_loopback()
            || local.is_some_and(|local| local.ip().to_canonical() == ip)
            || names.iter().any(|name| name == host);
    }
    host == "localhost" || host.ends_with(".localhost") || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_are_hosts() {
        let names = ["chimere.home".to_owned()];
        let local = Some("192.168.1.5:8377".parse().unwrap());
        let good = ["localhost", "localhost:8377", "127.0.0.1:1", "127.8.8.8", "[::1]:8377", "192.168.1.5:8377"];
        let dotted = ["localhost.", "localhost.:8377", "chimere.home.", "studio.localhost.:1"];
        for host in good.iter().chain(&["chimere.home:8377", "studio.localhost"]).chain(&dotted) {
            assert!(host_allowed(host, local, &names), "{host} refused");
        }
        let bad =
            ["evil.com", "localhost.evil.com", "192.168.1.6", "0.0.0.0", "[::2]", "", "127.0.0.1.evil.com", "a:b"];
        for host in bad.iter().chain(&[
            "localhost:80:80",
            "[::1",
            "2130706433",
            "chimere.home.evil.com",
            "localhost..",
            ".",
            "127.0.0.1.",
        ]) {
            assert!(!host_allowed(host, local, &names), "{host} allowed");
        }
    }
}
