//! OpenAI's error envelope, and the one type that every refusal of this server passes through.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::{Value, json};

use super::owner::NotOwner;
use crate::service::{AuthError, Scope, ServiceError};

/// Longest message, and longest name of a parameter, that a client is told, characters: both may repeat what it sent.
const MESSAGE_CHARS_MAX: usize = 1_000;
const PARAM_CHARS_MAX: usize = 200;

/// A refusal: status, and the four fields of the envelope.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// `type` of the envelope.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    pub(crate) retry_after_s: Option<u32>,
    /// Methods that the path knows, for 405.
    pub(crate) allow: Option<String>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, kind, message: message.into(), param: None, code: None, retry_after_s: None, allow: None }
    }

    /// 400 `invalid_request_error`.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 about one parameter.
    pub(crate) fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut error = Self::invalid(message);
        error.param = Some(param.into());
        error
    }

    /// 400 for what the API knows and this daemon cannot do: refused rather than ignored.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::param(param, message).code("unsupported_parameter")
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("not_found")
    }

    pub(crate) fn no_such_model(message: impl Into<String>) -> Self {
        let mut error = Self::not_found(message).code("model_not_found");
        error.param = Some("model".to_owned());
        error
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message).code("internal_error")
    }

    pub(crate) fn unavailable(message: impl Into<String>, retry_after_s: u32) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("service_unavailable");
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// Another user of this machine, while there is no key.
    pub(crate) fn not_the_owner(why: NotOwner) -> Self {
        let message = format!(
            "this daemon has no API key yet, and {why}: its owner can make a key with `chimere keys add NAME --scope \
             chat`, or set `http.loopback_owner = \"anyone\"`"
        );
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message).code("invalid_api_key")
    }

    pub(crate) fn forbidden_scope(name: &str, scope: Scope) -> Self {
        let scope = match scope {
            Scope::Chat => "chat",
            Scope::Metrics => "metrics",
            Scope::Admin => "admin",
        };
        Self::new(
            StatusCode::FORBIDDEN,
            "permission_error",
            format!("the key `{name}` lacks the scope `{scope}` that this route needs"),
        )
        .code("insufficient_scope")
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Names the parameter that the engine's words are about: they begin with `begins`.
    pub(crate) fn about(mut self, begins: &str, param: &str) -> Self {
        if self.status == StatusCode::BAD_REQUEST && self.param.is_none() && self.message.starts_with(begins) {
            self.param = Some(param.to_owned());
        }
        self
    }

    /// The envelope, as a response body or as an event of a stream.
    pub(crate) fn envelope(&self) -> Value {
        let message = shortened(&self.message, MESSAGE_CHARS_MAX);
        let param = self.param.as_ref().map(|param| shortened(param, PARAM_CHARS_MAX));
        json!({"error": {"message": message, "type": self.kind, "param": param, "code": self.code}})
    }
}

/// The beginning of a text that is too long, marked as such.
fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Invalid { message, param } => {
                let mut api = Self::invalid(message);
                api.param = param;
                api
            }
            ServiceError::Context(message) => Self::param("messages", message).code("context_length_exceeded"),
            ServiceError::NotFound(message) => Self::not_found(message),
            ServiceError::NoSuchModel(message) => Self::no_such_model(message),
            ServiceError::Conflict(message) => {
                Self::new(StatusCode::CONFLICT, "invalid_request_error", message).code("conflict")
            }
            ServiceError::Cancelled(message) => {
                Self::new(StatusCode::GONE, "invalid_request_error", message).code("reply_cancelled")
            }
            ServiceError::Busy { message, retry_after_s } => {
                let seconds = retry_after_s.max(1);
                let message = format!("{message}; ask again in {seconds} s");
                let mut api = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
                api.retry_after_s = Some(seconds);
                api.code("rate_limit_exceeded")
            }
            ServiceError::Unavailable { message, retry_after_s } => Self::unavailable(message, retry_after_s.max(1)),
            ServiceError::NotBuilt(message) => {
                Self::new(StatusCode::NOT_IMPLEMENTED, "server_error", message).code("not_built")
            }
            ServiceError::Internal(message) => Self::internal(message),
        }
    }
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", error.to_string()).code("invalid_api_key")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.envelope().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow.as_deref().and_then(|list| HeaderValue::from_str(list).ok()) {
            headers.insert(ALLOW, allow);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_engine_get_their_parameter() {
        let bias = ApiError::invalid("logit_bias names token 9, but the vocabulary has 5 tokens");
        assert_eq!(bias.clone().about("logit_bias ", "logit_bias").param.as_deref(), Some("logit_bias"));
        assert_eq!(bias.clone().about("token ", "prompt"), bias);
        assert_eq!(ApiError::param("n", "token 9").about("token ", "prompt").param.as_deref(), Some("n"));
    }

    #[test]
    fn each_service_error_has_its_status() {
        let text = || "m".to_owned();
        let cases = [
            (ServiceError::Invalid { message: text(), param: None }, 400),
            (ServiceError::Context(text()), 400),
            (ServiceError::NotFound(text()), 404),
            (ServiceError::NoSuchModel(text()), 404),
            (ServiceError::Conflict(text()), 409),
            (ServiceError::Cancelled(text()), 410),
            (ServiceError::Busy { message: text(), retry_after_s: 0 }, 429),
            (ServiceError::Unavailable { message: text(), retry_after_s: 3 }, 503),
            (ServiceError::NotBuilt(text()), 501),
            (ServiceError::Internal(text()), 500),
        ];
        for (error, status) in cases {
            let api = ApiError::from(error);
            assert_eq!(api.status.as_u16(), status);
            assert_eq!(api.retry_after_s.is_some(), status == 429 || status == 503);
            let envelope = api.envelope();
            for field in ["message", "type", "param", "code"] {
                assert!(envelope["error"].get(field).is_some(), "{status} lacks {field}");
            }
        }
    }
}
