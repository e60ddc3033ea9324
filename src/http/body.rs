//! Request bodies: read under size and time limits, then JSON under a depth limit, with errors that name
//! the place. What the parameters may be is in the `table`.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::limits::HttpLimits;
use super::table::Table;
use super::unique::Unique;
use crate::whole::{self, Key};

/// Longest piece of client text that an error repeats, characters.
const ECHO_CHARS_MAX: usize = 80;

/// Bytes of a body beside the file in it.
const BESIDE_FILE_BYTES: usize = 256 << 10;

/// Names of the one encoding that a body may have; ASCII is a part of it.
const UTF8: [&str; 3] = ["utf-8", "utf8", "us-ascii"];

/// Bytes that the bodies of all requests hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicUsize>);

/// A body, counted until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    budget: Budget,
}

impl Held {
    /// Adds a piece if both limits allow it.
    fn push(&mut self, piece: &[u8], limits: &HttpLimits) -> Result<(), ApiError> {
        if self.bytes.len() + piece.len() > limits.body_bytes_max {
            return Err(too_large(limits));
        }
        let all = self.budget.0.fetch_add(piece.len(), Ordering::SeqCst) + piece.len();
        if all > limits.bodies_bytes_max {
            self.budget.0.fetch_sub(piece.len(), Ordering::SeqCst);
            return Err(ApiError::unavailable("too many large requests at once; try again shortly", 1));
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes.len(), Ordering::SeqCst);
    }
}

/// Reads a JSON body as bytes.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limits: &HttpLimits,
    budget: &Budget,
) -> Result<Held, ApiError> {
    expect_json(headers)?;
    read_whole(headers, body, limits, budget).await
}

/// Reads a body with a file in it: a form, or JSON that has the file in base64 or as text.
pub(crate) async fn read_file(
    headers: &HeaderMap,
    body: Body,
    limits: &HttpLimits,
    budget: &Budget,
) -> Result<Held, ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_form = kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("multipart/form-data"));
    if !is_form {
        expect_json(headers)?;
    }
    // Four letters of base64 are three bytes.
    let body_bytes_max = limits.file_bytes_max.saturating_add(limits.file_bytes_max / 3 + BESIDE_FILE_BYTES);
    let limits = HttpLimits { body_bytes_max, ..limits.clone() };
    read_whole(headers, body, &limits, budget).await
}

async fn read_whole(headers: &HeaderMap, body: Body, limits: &HttpLimits, budget: &Budget) -> Result<Held, ApiError> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if declared.is_some_and(|bytes| bytes > limits.body_bytes_max as u64) {
        return Err(too_large(limits));
    }
    let held = Held { bytes: Vec::new(), budget: budget.clone() };
    match tokio::time::timeout(limits.body_timeout(), collect(held, body, limits)).await {
        Ok(read) => read,
        Err(_) => Err(too_slow("the request body took too long")),
    }
}

/// Reads the body of a route that takes no parameters: nothing, or an object without any.
pub(crate) async fn read_nothing(body: Body, limits: &HttpLimits, budget: &Budget) -> Result<Held, ApiError> {
    let held = Held { bytes: Vec::new(), budget: budget.clone() };
    let read = tokio::time::timeout(limits.body_timeout(), collect(held, body, limits)).await;
    let held = read.map_err(|_| too_slow("the request body took too long"))??;
    if !held.trim_ascii().is_empty() {
        checked(&held, &super::routes::NOTHING, limits)?;
    }
    Ok(held)
}

fn expect_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let refuse = |message: &str| {
        Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
            .code("unsupported_media_type"))
    };
    if headers.contains_key(CONTENT_ENCODING) {
        return refuse("compressed request bodies are not accepted");
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = kind.split(';').map(str::trim);
    if !parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return refuse("this route takes a body of `Content-Type: application/json`");
    }
    let charset =
        parts.filter_map(|part| part.split_once('=')).find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
    let utf8 = |value: &str| UTF8.iter().any(|name| value.trim().trim_matches('"').eq_ignore_ascii_case(name));
    match charset {
        Some((_, value)) if !utf8(value) => refuse("a JSON body is UTF-8: leave `charset` out of the `Content-Type`"),
        _ => Ok(()),
    }
}

async fn collect(mut held: Held, mut body: Body, limits: &HttpLimits) -> Result<Held, ApiError> {
    loop {
        let frame = tokio::time::timeout(limits.body_progress_timeout(), body.frame())
            .await
            .map_err(|_| too_slow("the request body stopped arriving"))?;
        let Some(frame) = frame else { return Ok(held) };
        let frame = frame
            .map_err(|error| ApiError::invalid(format!("the request body broke off: {error}")).code("bad_body"))?;
        if let Ok(data) = frame.into_data() {
            held.push(&data, limits)?;
        }
    }
}

fn too_large(limits: &HttpLimits) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "invalid_request_error",
        format!("the request body is over the limit of {} bytes", limits.body_bytes_max),
    )
    .code("body_too_large")
}

/// A file is larger than files may be.
pub(crate) fn too_large_file(limits: &HttpLimits) -> ApiError {
    let message = format!("the file is over the limit of {} bytes (`documents.file_bytes_max`)", limits.file_bytes_max);
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).code("body_too_large")
}

fn too_slow(message: &str) -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message).code("request_timeout")
}

/// Deepest nesting of arrays and objects, found in one pass that needs no stack.
pub(crate) fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for &byte in json {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Parses a body that must be a JSON object.
pub(crate) fn object(bytes: &[u8], limits: &HttpLimits) -> Result<Map<String, Value>, ApiError> {
    let nested = depth(bytes);
    if nested > limits.json_depth_max {
        return Err(ApiError::invalid(format!(
            "the request body nests {nested} levels deep, the limit is {}",
            limits.json_depth_max
        ))
        .code("json_too_deep"));
    }
    let invalid = |message: String| ApiError::invalid(message).code("invalid_json");
    let told = std::str::from_utf8(bytes).ok().and_then(|text| whole::marked(text, within_sent_call));
    // What is wrong is told of the text that was sent.
    if told.is_some() {
        serde_json::from_slice::<IgnoredAny>(bytes).map_err(|error| invalid(broken(&error)))?;
    }
    match serde_json::from_slice(told.as_deref().map_or(bytes, str::as_bytes)) {
        Ok(Value::Object(map)) => match serde_json::from_slice(bytes) {
            Ok(Unique) => Ok(map),
            Err(error) => Err(invalid(format!("the request body is ambiguous: {error}"))),
        },
        Ok(_) => Err(invalid("the request body must be a JSON object".to_owned())),
        Err(error) => Err(invalid(broken(&error))),
    }
}

/// Within the arguments of a past call, where they are sent as an object: its numbers keep their digits.
fn within_sent_call(keys: &[Key<'_>]) -> bool {
    let within = [
        Key::Object(None),
        Key::Array(Some("messages")),
        Key::Object(None),
        Key::Array(Some("tool_calls")),
        Key::Object(None),
        Key::Object(Some("function")),
        Key::Object(Some("arguments")),
    ];
    keys.starts_with(&within)
}

/// What is wrong with a text that is no JSON. Half of a pair reads like a text that was cut, which it is not.
fn broken(error: &serde_json::Error) -> String {
    let message = error.to_string();
    if ["unexpected end of hex escape", "lone leading surrogate"].iter().any(|begins| message.starts_with(begins)) {
        let (line, column) = (error.line(), error.column());
        return format!(
            "the request body holds half of a surrogate pair (`\\ud800` to `\\udfff`) at line {line} column {column}: \
             a character of two such escapes, an emoji for example, was cut in two"
        );
    }
    format!("the request body is not valid JSON: {message}")
}

/// Reads a body that the table describes; with it the parameters that were accepted without effect.
pub(crate) fn checked(
    bytes: &[u8],
    table: &Table,
    limits: &HttpLimits,
) -> Result<(Map<String, Value>, Vec<&'static str>), ApiError> {
    let mut map = object(bytes, limits)?;
    let ignored = table.check(&mut map)?;
    Ok((map, ignored))
}

/// Reads a value; an error names the path to the part that is wrong.
pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "" } else { path.as_str() };
        let why: String = error.inner().to_string().chars().take(4 * ECHO_CHARS_MAX).collect();
        let missing = why.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
        if let Some((field, _)) = missing {
            let path = if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
            return ApiError::param(path.as_str(), format!("`{path}` is missing")).code("missing_parameter");
        }
        if let Some((key, known)) = quoted(&why, "unknown field `") {
            let nearest = crate::config::raw::nearest(key, known.iter().copied());
            let hint = nearest.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            let path = if path.ends_with(key) { path.to_owned() } else { format!("{path}.{key}") };
            let message = format!("unknown parameter `{path}`{hint}");
            return ApiError::param(path, message).code("unknown_parameter");
        }
        if let Some((found, known)) = quoted(&why, "unknown variant `") {
            let known: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
            return ApiError::param(path, format!("`{path}` must be one of {}, not `{found}`", known.join(", ")));
        }
        let why = crate::mistyped::in_words(&why);
        match path {
            "" => ApiError::invalid(why).code("invalid_type"),
            _ if why.starts_with("must be ") => ApiError::param(path, format!("`{path}` {why}")).code("invalid_type"),
            _ => ApiError::param(path, format!("`{path}`: {why}")).code("invalid_type"),
        }
    })
}

/// What a message that begins so names, and what it says there is instead.
fn quoted<'a>(why: &'a str, begins: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let (found, rest) = why.strip_prefix(begins)?.split_once('`')?;
    Some((found, rest.split('`').skip(1).step_by(2).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_counted_together_and_given_back() {
        let limits = HttpLimits { body_bytes_max: 8, bodies_bytes_max: 10, ..HttpLimits::default() };
        let budget = Budget::default();
        let held = || Held { bytes: Vec::new(), budget: budget.clone() };
        let (mut first, mut second) = (held(), held());
        first.push(b"123456", &limits).unwrap();
        assert_eq!(first.push(b"789", &limits).unwrap_err().status.as_u16(), 413);
        second.push(b"1234", &limits).unwrap();
        assert_eq!(second.push(b"5", &limits).unwrap_err().status.as_u16(), 503);
        drop(first);
        second.push(b"5", &limits).unwrap();
        assert_eq!((&*second, budget.0.load(Ordering::SeqCst)), (b"12345".as_slice(), 5));
        drop(second);
        assert_eq!(budget.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn depth_counts_brackets_outside_strings() {
        assert_eq!(depth(br#"{"a":[1,[2]],"b":"[[[[\"[["}"#), 3);
        assert_eq!(depth(b"]]]]["), 1);
        assert_eq!(depth("[".repeat(100_000).as_bytes()), 100_000);
    }

    #[test]
    fn typed_errors_name_the_path() {
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Outer {
            inner: Vec<Inner>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Inner {
            n: u32,
        }
        let error = typed::<Outer>(serde_json::json!({"inner": [{"n": 1}, {"n": "x"}]})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("inner[1].n"));
        assert_eq!(error.message, "`inner[1].n` must be a whole number of 0 or more, not the text \"x\"");
        let error = typed::<Outer>(serde_json::json!({"inner": [{}]})).unwrap_err();
        assert_eq!((error.message.as_str(), error.param.as_deref()), ("`inner[0].n` is missing", Some("inner[0].n")));
        let error = typed::<Outer>(serde_json::json!({})).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("inner"), Some("missing_parameter")));
        let error = typed::<Outer>(serde_json::json!({"inner": 7})).unwrap_err();
        assert_eq!(error.message, "`inner` must be an array, not 7");
    }

    #[test]
    fn words_and_keys_of_a_reader_are_told_as_those_of_the_table() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Outer {
            inner: Inner,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Inner {
            size: Size,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Size {
            Small,
            Large,
        }
        let of = |value: Value| {
            let ApiError { param, message, code, .. } = typed::<Outer>(value).unwrap_err();
            (param.unwrap_or_default(), message, code)
        };
        let (param, message, code) = of(serde_json::json!({"inner": {"size": "huge"}}));
        assert_eq!((param.as_str(), code), ("inner.size", None));
        assert_eq!(message, "`inner.size` must be one of `small`, `large`, not `huge`");
        let (param, message, code) = of(serde_json::json!({"inner": {"sise": "small"}}));
        assert_eq!((param.as_str(), code), ("inner.sise", Some("unknown_parameter")));
        assert_eq!(message, "unknown parameter `inner.sise`; did you mean `size`?");
    }

    #[test]
    fn half_of_a_pair_is_told_apart_from_a_text_that_was_cut() {
        let of = |text: &str| object(text.as_bytes(), &HttpLimits::default()).unwrap_err().message;
        for half in [r#"{"a": "b\ud83d"}"#, r#"{"a": "\ud83d\n"}"#, r#"{"a": "\ude00"}"#, r#"{"a": "\ud83d\u0041"}"#] {
            assert!(of(half).starts_with("the request body holds half of a surrogate pair"), "{half}: {}", of(half));
        }
        assert!(of(r#"{"a": "b"#).starts_with("the request body is not valid JSON"), "{}", of(r#"{"a": "b"#));
        assert!(object(r#"{"a": "\ud83d\ude00"}"#.as_bytes(), &HttpLimits::default()).is_ok());
    }
}
