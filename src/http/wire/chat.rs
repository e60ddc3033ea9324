//! The body of `POST /v1/chat/completions`.

use serde::Deserialize;
use serde_json::Value;

use super::format::{ResponseFormat, grammar, schema};
use super::message::{RawMessage, messages};
use super::sampling::{self, Common, TOP_LOGPROBS_MAX};
use super::thinking::{Effort, TemplateArguments, thinking};
use super::tools::tools;
use crate::engram::blend::LAMBDA_DEFAULT;
use crate::http::body::{self, Parameters};
use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::service::{EngramWish, Principal, ReplyInput, ReplyRequest};
use crate::turn::{EngramChoice, Tier};

pub(crate) const PARAMETERS: Parameters = Parameters {
    known: &[
        sampling::KNOWN,
        &[
            "messages",
            "model",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
            "logprobs",
            "top_logprobs",
            "reasoning_effort",
            "enable_thinking",
            "thinking_budget",
            "chat_template_kwargs",
            "modalities",
            "chimere",
            "x_chimere",
        ],
    ],
    ignored: super::IGNORED,
    unsupported: &[
        ("functions", "use `tools`"),
        ("function_call", "use `tool_choice`"),
        ("audio", "this model reads and writes text only"),
        ("web_search_options", "web search is not built yet"),
        ("verbosity", "ask for a length in the messages"),
        ("grammar", "use `response_format` with a JSON Schema"),
        ("json_schema", "use `response_format`"),
        ("chat_template", "a template never comes from a request"),
    ],
};

/// Longest name that an extension field may carry, bytes.
const NAME_BYTES_MAX: usize = 128;

#[derive(Debug, Deserialize)]
struct Raw {
    messages: Vec<RawMessage>,
    model: Option<String>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<ResponseFormat>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    reasoning_effort: Option<Effort>,
    enable_thinking: Option<bool>,
    thinking_budget: Option<u32>,
    chat_template_kwargs: Option<TemplateArguments>,
    modalities: Option<Vec<String>>,
    #[serde(alias = "x_chimere")]
    chimere: Option<Extension>,
}

/// What a client may ask of this daemon beyond OpenAI's API.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Extension {
    /// A route by name, instead of the cascade's choice.
    pub(crate) route: Option<String>,
    pub(crate) tier: Option<Tier>,
    /// Turns of one conversation are kept under one name.
    pub(crate) conversation: Option<String>,
    /// Goes on with what was said under this name.
    pub(crate) session: Option<String>,
    /// May this turn be learned from.
    pub(crate) consent: Option<bool>,
    /// `false`, or the tables to use.
    pub(crate) engram: Option<RawEngram>,
    /// Judge the answer before the reply ends, and try a poor one again; absent: as the route does.
    pub(crate) quality_gate: Option<bool>,
}

/// Engram tables, as a client asks for them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "`false`, or an object of `tables`, `lambda` and `passages`")]
pub(crate) enum RawEngram {
    Switch(bool),
    Use(RawTables),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawTables {
    tables: Vec<String>,
    /// The most that the tables may weigh, 0 to 0.9.
    lambda: Option<f32>,
    /// Texts whose n-grams help this reply alone.
    passages: Vec<String>,
}

impl RawEngram {
    fn wish(engram: Option<RawEngram>) -> EngramWish {
        match engram {
            None | Some(RawEngram::Switch(true)) => EngramWish::Pipeline,
            Some(RawEngram::Switch(false)) => EngramWish::Off,
            Some(RawEngram::Use(raw)) => EngramWish::Use(EngramChoice {
                tables: raw.tables,
                lambda_max: raw.lambda.unwrap_or(LAMBDA_DEFAULT),
                passages: raw.passages,
                in_thought: false,
                required: true,
            }),
        }
    }
}

impl Extension {
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        for (field, value) in [("route", &self.route), ("conversation", &self.conversation)] {
            let wrong =
                |name: &String| name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control);
            if value.as_ref().is_some_and(wrong) {
                let message = format!("`{field}` must have 1 to {NAME_BYTES_MAX} bytes and no control characters");
                return Err(ApiError::param(format!("chimere.{field}"), message));
            }
        }
        Ok(())
    }
}

/// How the reply is to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
}

/// Reads and checks a request body.
pub(crate) fn read(bytes: &[u8], principal: Principal, limits: &HttpLimits) -> Result<(ReplyRequest, Form), ApiError> {
    let mut map = body::object(bytes, limits)?;
    body::check(&mut map, &PARAMETERS)?;
    let mut common = sampling::take(&mut map)?;
    let raw: Raw = body::typed(Value::Object(map))?;
    common.sampling.logprobs = logprobs(raw.logprobs, raw.top_logprobs)?;
    let schema = schema(raw.response_format)?;
    if raw.modalities.is_some_and(|list| list != ["text"]) {
        return Err(ApiError::unsupported("modalities", "this model writes text only"));
    }
    let extension = raw.chimere.unwrap_or_default();
    extension.check()?;
    let top = TemplateArguments { enable_thinking: raw.enable_thinking, thinking_budget: raw.thinking_budget };
    let thinking = thinking(raw.reasoning_effort, top, raw.chat_template_kwargs.unwrap_or_default())?;
    let tools = tools(raw.tools, raw.tool_choice, limits)?;
    let one_tool_call = raw.parallel_tool_calls == Some(false);
    let grammar = grammar(&tools, schema, one_tool_call)?;
    let input = ReplyInput::Chat { messages: messages(raw.messages, limits)?, tools: tools.list };
    let form = Form {
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs: common.sampling.logprobs.is_some(),
    };
    let request = request(principal, input, raw.model, common, extension, thinking);
    Ok((ReplyRequest { grammar, one_tool_call, ..request }, form))
}

/// Puts the checked parts together.
pub(crate) fn request(
    principal: Principal,
    input: ReplyInput,
    model: Option<String>,
    common: Common,
    extension: Extension,
    thinking: Option<crate::turn::Thinking>,
) -> ReplyRequest {
    ReplyRequest {
        principal,
        input,
        model: model.filter(|name| !name.is_empty()),
        conversation: extension.conversation,
        session: extension.session,
        route: extension.route,
        tier: extension.tier,
        thinking,
        sampling: common.sampling,
        max_tokens: common.max_tokens,
        stop: common.stop,
        choices: common.choices,
        consent: extension.consent,
        engram: RawEngram::wish(extension.engram),
        quality_gate: extension.quality_gate,
        grammar: None,
        one_tool_call: false,
        streamed: common.stream,
    }
}

fn logprobs(wanted: Option<bool>, top: Option<u32>) -> Result<Option<u8>, ApiError> {
    let top = match top {
        Some(_) if wanted != Some(true) => {
            return Err(ApiError::param("top_logprobs", "`top_logprobs` needs `logprobs: true`"));
        }
        Some(top) if top > TOP_LOGPROBS_MAX => {
            let message = format!("`top_logprobs` must be between 0 and {TOP_LOGPROBS_MAX}, not {top}");
            return Err(ApiError::param("top_logprobs", message));
        }
        top => top.unwrap_or(0) as u8,
    };
    Ok((wanted == Some(true)).then_some(top))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::grammar::Grammar;
    use crate::turn::Thinking;

    fn of(extra: Value) -> Result<(ReplyRequest, Form), ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        let (Some(to), Value::Object(from)) = (body.as_object_mut(), extra) else { panic!("not objects") };
        to.extend(from);
        let owner = Principal { name: "owner".to_owned(), scopes: Vec::new(), consent: true };
        read(body.to_string().as_bytes(), owner, &HttpLimits::default())
    }

    #[test]
    fn the_extension_and_thinking_arrive() {
        let (request, form) = of(json!({
            "model": "", "user": "u", "metadata": {"a": "b"}, "store": false, "logprobs": true, "top_logprobs": 3,
            "reasoning_effort": "low", "parallel_tool_calls": false, "stream": true,
            "chimere": {"route": "code", "tier": "ultra", "conversation": "c1", "consent": false,
                "quality_gate": true}
        }))
        .unwrap();
        assert_eq!((request.route.as_deref(), request.tier), (Some("code"), Some(Tier::Ultra)));
        assert_eq!((request.conversation.as_deref(), request.consent), (Some("c1"), Some(false)));
        assert_eq!((request.quality_gate, request.streamed), (Some(true), true));
        assert_eq!((request.thinking, request.model), (Some(Thinking::On { budget_tokens: 512 }), None));
        assert_eq!(request.sampling.logprobs, Some(3));
        assert_eq!(form, Form { stream: true, include_usage: false, logprobs: true });
        assert!(request.one_tool_call);
    }

    #[test]
    fn engram_tables_arrive() {
        let wish = |engram: Value| of(json!({"chimere": {"engram": engram}})).unwrap().0.engram;
        assert_eq!(of(json!({})).unwrap().0.engram, EngramWish::Pipeline);
        assert_eq!(wish(json!(false)), EngramWish::Off);
        let EngramWish::Use(choice) = wish(json!({"tables": ["kine"], "lambda": 0.5, "passages": ["p"]})) else {
            panic!("not taken")
        };
        assert_eq!((choice.tables, choice.lambda_max, choice.passages), (vec!["kine".into()], 0.5, vec!["p".into()]));
        assert!(choice.required);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for (param, body) in [
            ("response_format.type", json!({"response_format": {"type": "yaml"}})),
            ("tool_choice", json!({"tool_choice": "required"})),
            ("response_format", json!({"response_format": {"type": "json_schema", "json_schema": {}}})),
            ("modalities", json!({"modalities": ["text", "audio"]})),
            ("top_logprobs", json!({"top_logprobs": 1})),
            ("top_logprobs", json!({"logprobs": true, "top_logprobs": 21})),
            ("reasoning_effort", json!({"reasoning_effort": "much"})),
            ("functions", json!({"functions": []})),
            ("chimere.tier", json!({"chimere": {"tier": "best"}})),
            ("chimere.route", json!({"chimere": {"route": ""}})),
            ("chat_template_kwargs", json!({"chat_template_kwargs": {"evil": 1}})),
            ("max_token", json!({"max_token": 5})),
            ("chimere.engram", json!({"chimere": {"engram": {"table": ["kine"]}}})),
            ("chimere.engram", json!({"chimere": {"engram": 3}})),
            ("messages", json!({"messages": null})),
        ] {
            let error = of(body.clone()).unwrap_err();
            let place = error.param.clone().unwrap_or(error.message.clone());
            assert!(place.contains(param), "{body}: {error:?}");
        }
        let grammar = |format: &str| of(json!({"response_format": {"type": format}})).unwrap().0.grammar;
        assert_eq!((grammar("text"), grammar("json_object")), (None, Some(Grammar::Json(json!({"type": "object"})))));
    }
}
