//! The body of `POST /v1/completions`: text or ids in, no template, no pipeline.

use serde::Deserialize;
use serde_json::Value;

use super::chat::{CONSENT, CONVERSATION, ENGRAM, Extension, Form, MODEL, request};
use super::sampling;
use crate::http::body;
use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::http::table::{Param, SOME_TEXT, Shape, TOKEN, Table};
use crate::service::{CHOICES_MAX, Principal, ReplyInput, ReplyRequest};

/// Prompts of one request.
const PROMPTS_MAX: usize = 64;
/// Token ids of one prompt.
const IDS_MAX: usize = 1 << 20;
/// OpenAI's default length of a completion, tokens.
const MAX_TOKENS_DEFAULT: u32 = 16;

const IDS: Shape = Shape::List { of: &TOKEN, min: 1, max: IDS_MAX };

pub(crate) const TABLE: Table = Table {
    name: "CompletionRequest",
    doc: "",
    params: &[
        &[
            Param::new(
                "prompt",
                Shape::Either(&[
                    SOME_TEXT,
                    IDS,
                    Shape::List { of: &SOME_TEXT, min: 1, max: PROMPTS_MAX },
                    Shape::List { of: &IDS, min: 1, max: PROMPTS_MAX },
                ]),
                "Text, or token ids, or an array of these; the choices of each prompt follow those of the one before.",
            )
            .required(),
            MODEL,
        ],
        sampling::PARAMS,
        &[
            Param::new("parse_special", Shape::Bool, "Control tokens in the text of a prompt are read as such.")
                .default("true"),
            Param::new(
                "echo",
                Shape::Bool,
                "The prompt before the text; with `logprobs` those of the prompt's tokens too.",
            ),
            Param::new("logprobs", sampling::ALTERNATIVES, "Alternatives of each token."),
            Param::new("best_of", Shape::Whole { min: 1, max: CHOICES_MAX as i128 }, "Only as many as `n`."),
            Param::new("suffix", Shape::Text { min: 0, max: 0 }, "Only empty: filling in is not supported."),
            Param::new(
                "chimere",
                Shape::Object(&[CONVERSATION, CONSENT, ENGRAM]),
                "What a client may ask beyond OpenAI's API.",
            )
            .also("x_chimere"),
        ],
    ],
    rules: &[sampling::STREAM_OPTIONS],
    ignored: super::IGNORED,
    unsupported: &[
        ("messages", "send them to /v1/chat/completions"),
        ("grammar", "a form is asked of /v1/chat/completions, as `response_format`"),
        ("json_schema", "a form is asked of /v1/chat/completions, as `response_format`"),
    ],
};

#[derive(Debug, Deserialize)]
struct Raw {
    prompt: Value,
    model: Option<String>,
    parse_special: Option<bool>,
    #[serde(default)]
    echo: bool,
    logprobs: Option<u8>,
    best_of: Option<u32>,
    #[serde(default)]
    chimere: Extension,
}

/// What was read.
#[derive(Debug, PartialEq)]
pub(crate) struct Completions {
    /// One for each prompt.
    pub(crate) requests: Vec<ReplyRequest>,
    pub(crate) form: Form,
    /// The prompt is told before the text.
    pub(crate) echo: bool,
}

/// Reads and checks a request body.
pub(crate) fn read(bytes: &[u8], principal: Principal, limits: &HttpLimits) -> Result<Completions, ApiError> {
    let (mut map, ignored) = body::checked(bytes, &TABLE, limits)?;
    let mut common = sampling::take(&mut map)?;
    let raw: Raw = body::typed(Value::Object(map))?;
    if raw.best_of.is_some_and(|best_of| best_of != common.choices) {
        return Err(ApiError::unsupported("best_of", "`best_of` is not supported: ask for `n` choices"));
    }
    common.sampling.logprobs = raw.logprobs;
    common.max_tokens = common.max_tokens.or(Some(MAX_TOKENS_DEFAULT));
    let form = Form {
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs: common.sampling.logprobs.is_some(),
        every_token: raw.echo && raw.logprobs.is_some(),
        ignored,
    };
    let marked = raw.parse_special.unwrap_or(true);
    let one = |input| {
        let (model, common, extension) = (raw.model.clone(), common.clone(), raw.chimere.clone());
        let request = request(principal.clone(), input, model, common, extension, None);
        ReplyRequest { prompt_logprobs: form.every_token, ..request }
    };
    let requests = prompts(raw.prompt, marked)?.into_iter().map(one).collect();
    Ok(Completions { requests, form, echo: raw.echo })
}

/// A prompt, or an array of prompts; `marked`: control tokens in their text are read.
fn prompts(value: Value, marked: bool) -> Result<Vec<ReplyInput>, ApiError> {
    let text = |text| if marked { ReplyInput::Marked(text) } else { ReplyInput::Text(text) };
    Ok(match body::typed(value)? {
        Prompts::Text(one) => vec![text(one)],
        Prompts::Ids(ids) => vec![ReplyInput::Ids(ids)],
        Prompts::Texts(many) => many.into_iter().map(text).collect(),
        Prompts::ManyIds(many) => many.into_iter().map(ReplyInput::Ids).collect(),
    })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    ManyIds(Vec<Vec<u32>>),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(prompt: Value) -> Result<Vec<ReplyInput>, ApiError> {
        let owner = Principal { name: "owner".to_owned(), scopes: Vec::new(), consent: true };
        let body = json!({"prompt": prompt, "parse_special": false}).to_string();
        read(body.as_bytes(), owner, &HttpLimits::default())
            .map(|read| read.requests.into_iter().map(|request| request.input).collect())
    }

    #[test]
    fn prompts_in_every_form() {
        let text = |text: &str| ReplyInput::Text(text.to_owned());
        assert_eq!(of(json!("a")).unwrap(), [text("a")]);
        assert_eq!(of(json!(["a"])).unwrap(), [text("a")]);
        assert_eq!(of(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
        assert_eq!(of(json!([1, 2.0])).unwrap(), [ReplyInput::Ids(vec![1, 2])]);
        assert_eq!(of(json!([[1], [2, 3]])).unwrap(), [ReplyInput::Ids(vec![1]), ReplyInput::Ids(vec![2, 3])]);
        assert_eq!(prompts(json!("a"), true).unwrap(), [ReplyInput::Marked("a".to_owned())]);
        for bad in [
            json!(""),
            json!(["a", ""]),
            json!(["a", 1]),
            json!([]),
            json!([[]]),
            json!([-1]),
            json!([1.5]),
            json!([4_294_967_296u64]),
            json!({}),
            json!([{}]),
            json!(3),
            json!(vec!["a"; PROMPTS_MAX + 1]),
        ] {
            let error = of(bad.clone()).unwrap_err();
            assert!(error.param.as_deref().is_some_and(|param| param.starts_with("prompt")), "{bad}: {error:?}");
        }
    }
}
