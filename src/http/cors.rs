//! Pages of other origins. A browser says where a script came from. Only pages of this very daemon may use it, and
//! pages of the origins that the owner has named (`http.origins`). The latter are answered by the rules of CORS. Such
//! a page may chat and no more, whatever key it holds: what reads metrics or runs the daemon stays with programs.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use super::error::ApiError;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PATCH, DELETE");
/// What a page may read of an answer beside its body.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, retry-after");
/// How long a browser remembers a preflight, seconds.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");
const WANTS_PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");
/// Longest list of headers that a preflight may ask for, bytes.
const HEADERS_BYTES_MAX: usize = 4_096;

/// Set on a request that comes from a page of a named origin.
#[derive(Clone, Debug)]
pub(crate) struct Foreign(HeaderValue);

/// Who sent the request: nobody foreign, or a page of a named origin; any other page is refused.
pub(crate) fn check(headers: &HeaderMap, authority: &str, origins: &[String]) -> Result<Option<Foreign>, ApiError> {
    let refused = || {
        let message =
            "requests from pages of another origin are refused; the owner can name an origin in `http.origins`";
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message).code("origin_not_allowed")
    };
    let mut all = headers.get_all(ORIGIN).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(refused());
    }
    let origin = value.to_str().map_err(|_| refused())?;
    let place = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    if place.is_some_and(|place| place.eq_ignore_ascii_case(authority)) {
        return Ok(None);
    }
    match origins.iter().any(|named| named == origin) {
        true => Ok(Some(Foreign(value.clone()))),
        false => Err(refused()),
    }
}

/// The answer to a preflight of a page that may ask; `None`: the request is none.
pub(crate) fn preflight(request: &Request) -> Option<Response> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    // Clients send many headers of their own, of which none does anything here beside the key and the type.
    let asked = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|list| list.len() <= HEADERS_BYTES_MAX);
    if let Some(asked) = asked {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    if headers.contains_key(WANTS_PRIVATE) {
        answer.insert(ALLOW_PRIVATE, HeaderValue::from_static("true"));
    }
    Some(response)
}

/// Lets the page read the answer.
pub(crate) fn invite(foreign: &Foreign, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, foreign.0.clone());
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}

/// What an answer is depends on who asks, where anybody foreign may.
pub(crate) fn vary(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_origin_and_the_named_ones_pass() {
        let named = ["app://obsidian.md".to_owned(), "https://chat.example:8443".to_owned()];
        let check = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
            check(&headers, "127.0.0.1:8377", &named).map(|foreign| foreign.is_some()).ok()
        };
        for (origin, passes) in [
            ("http://127.0.0.1:8377", Some(false)),
            ("app://obsidian.md", Some(true)),
            ("https://chat.example:8443", Some(true)),
            ("http://chat.example:8443", None),
            ("https://chat.example", None),
            ("https://chat.example:8443.evil.com", None),
            ("http://evil.com", None),
            ("null", None),
            ("*", None),
            ("", None),
            ("http://127.0.0.1:8378", None),
            ("file://", None),
            ("http://127.0.0.1:8377.evil.com", None),
        ] {
            assert_eq!(check(origin), passes, "{origin}");
        }
        let mut two = HeaderMap::new();
        two.append(ORIGIN, HeaderValue::from_static("http://127.0.0.1:8377"));
        two.append(ORIGIN, HeaderValue::from_static("app://obsidian.md"));
        assert!(super::check(&two, "127.0.0.1:8377", &named).is_err());
        assert!(super::check(&HeaderMap::new(), "x", &[]).is_ok());
    }
}
