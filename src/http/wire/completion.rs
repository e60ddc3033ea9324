//! The body of `POST /v1/completions`: text or ids in, no template, no pipeline.

use serde::Deserialize;
use serde_json::Value;

use super::chat::{Extension, Form, request};
use super::sampling::{self, TOP_LOGPROBS_MAX};
use crate::http::body::{self, Parameters};
use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::service::{Principal, ReplyInput, ReplyRequest};

pub(crate) const PARAMETERS: Parameters = Parameters {
    known: &[sampling::KNOWN, &["prompt", "model", "echo", "logprobs", "best_of", "suffix", "chimere", "x_chimere"]],
    ignored: super::IGNORED,
    unsupported: &[
        ("messages", "send them to /v1/chat/completions"),
        ("grammar", "a form is asked of /v1/chat/completions, as `response_format`"),
        ("json_schema", "a form is asked of /v1/chat/completions, as `response_format`"),
    ],
};

/// OpenAI's default length of a completion, tokens.
const MAX_TOKENS_DEFAULT: u32 = 16;

#[derive(Debug, Deserialize)]
struct Raw {
    prompt: Value,
    model: Option<String>,
    echo: Option<bool>,
    logprobs: Option<u32>,
    best_of: Option<u32>,
    suffix: Option<String>,
    #[serde(alias = "x_chimere")]
    chimere: Option<Extension>,
}

/// Reads and checks a request body. The flag is `echo`.
pub(crate) fn read(
    bytes: &[u8],
    principal: Principal,
    limits: &HttpLimits,
) -> Result<(ReplyRequest, Form, bool), ApiError> {
    let mut map = body::object(bytes, limits)?;
    body::check(&mut map, &PARAMETERS)?;
    let mut common = sampling::take(&mut map)?;
    let raw: Raw = body::typed(Value::Object(map))?;
    if raw.best_of.is_some_and(|best_of| best_of != common.choices) {
        return Err(ApiError::unsupported("best_of", "`best_of` is not supported: ask for `n` choices"));
    }
    if raw.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "`suffix` is not supported: the model was not trained to fill in"));
    }
    let echo = raw.echo.unwrap_or(false);
    if echo && raw.logprobs.is_some() {
        return Err(ApiError::unsupported("echo", "`echo` with `logprobs` is not built yet"));
    }
    common.sampling.logprobs = match raw.logprobs {
        Some(top) if top > TOP_LOGPROBS_MAX => {
            let message = format!("`logprobs` must be between 0 and {TOP_LOGPROBS_MAX}, not {top}");
            return Err(ApiError::param("logprobs", message));
        }
        top => top.map(|top| top as u8),
    };
    common.max_tokens = common.max_tokens.or(Some(MAX_TOKENS_DEFAULT));
    let extension = raw.chimere.unwrap_or_default();
    extension.check()?;
    if extension.route.is_some() || extension.tier.is_some() || extension.quality_gate == Some(true) {
        let message = "completions go through no pipeline: no route, no tier and no quality gate";
        return Err(ApiError::unsupported("chimere", message));
    }
    if extension.session.is_some() {
        return Err(ApiError::unsupported(
            "chimere.session",
            "a session is of chat messages: use `/v1/chat/completions`",
        ));
    }
    let form = Form {
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs: common.sampling.logprobs.is_some(),
    };
    let input = prompt(raw.prompt)?;
    Ok((request(principal, input, raw.model, common, extension, None), form, echo))
}

/// A string, an array of ids, or an array of exactly one of these.
fn prompt(value: Value) -> Result<ReplyInput, ApiError> {
    let wrong = |message: &str| Err(ApiError::param("prompt", message));
    let items = match value {
        Value::String(text) => return Ok(ReplyInput::Text(text)),
        Value::Array(items) => items,
        _ => return wrong("`prompt` must be a string or an array of token ids"),
    };
    if items.is_empty() {
        return wrong("`prompt` is empty");
    }
    if items.iter().all(Value::is_number) {
        let ids = items.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect::<Option<Vec<_>>>();
        return match ids {
            Some(ids) => Ok(ReplyInput::Ids(ids)),
            None => wrong("`prompt` has a number that is not a token id"),
        };
    }
    match <[Value; 1]>::try_from(items) {
        Ok([one @ (Value::String(_) | Value::Array(_))]) => prompt(one),
        Ok(_) => wrong("`prompt` must be a string or an array of token ids"),
        Err(_) => wrong("several prompts in one request are not supported: send one request each"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prompts_in_every_form() {
        assert_eq!(prompt(json!("a")).unwrap(), ReplyInput::Text("a".to_owned()));
        assert_eq!(prompt(json!(["a"])).unwrap(), ReplyInput::Text("a".to_owned()));
        assert_eq!(prompt(json!([1, 2])).unwrap(), ReplyInput::Ids(vec![1, 2]));
        assert_eq!(prompt(json!([[1]])).unwrap(), ReplyInput::Ids(vec![1]));
        for bad in [json!(["a", "b"]), json!([]), json!([-1]), json!([1.5]), json!({}), json!([{}]), json!(3)] {
            assert_eq!(prompt(bad).unwrap_err().param.as_deref(), Some("prompt"));
        }
    }
}
