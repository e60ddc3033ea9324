//! The body of `POST /v1/chat/completions`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::documents::{DOCUMENTS, RawDocuments};
use super::format::{Asked, ResponseFormat, grammar, schema};
use super::message::{Object, RawMessage, messages};
use super::sampling::{self, Common};
use super::template::{self, TemplateArguments};
use super::thinking::{Effort, thinking};
use super::tools::{BUILT_IN, Choice, built_in, distinct, tools};
use crate::engine::grammar::FormTerms;
use crate::engram::blend::LAMBDA_DEFAULT;
use crate::engram::dynamic::PASSAGES_MAX;
use crate::http::body;
use crate::http::error::ApiError;
use crate::http::limits::{HttpLimits, MESSAGES_MAX, TOOLS_MAX};
use crate::http::sessions::SESSION_NAME;
use crate::http::table::{Name, Param, Rule, Shape, TEXT, Table};
use crate::pipeline::TABLES_MAX;
use crate::service::{EngramWish, Principal, ReplyInput, ReplyRequest, StepsWish, WebWish};
use crate::turn::{EngramChoice, PromptEnd, PromptForm, THOUGHT_TOKENS_MAX, ThoughtPolicy, Tier};

pub(crate) const MESSAGES: Param = Param::new(
    "messages",
    Shape::List { of: &Shape::Elsewhere("Message"), min: 1, max: MESSAGES_MAX },
    "The conversation so far.",
)
.required();
pub(crate) const TOOLS: Param =
    Param::new("tools", Shape::List { of: &Shape::Elsewhere("Tool"), min: 0, max: TOOLS_MAX }, "");
pub(crate) const MODEL: Param = Param::new(
    "model",
    TEXT,
    "The served name, one of its aliases, or a further model, which is loaded on demand; empty = the served one; another one is 404.",
);

pub(crate) const TABLE: Table = Table {
    name: "ChatRequest",
    doc: "",
    params: &[
        &[MESSAGES, MODEL],
        sampling::PARAMS,
        &[
            TOOLS,
            Param::new("tool_choice", Shape::Elsewhere("ToolChoice"), ""),
            Param::new("parallel_tool_calls", Shape::Bool, "`false` passes only the first call on."),
            Param::new("response_format", Shape::Elsewhere("ResponseFormat"), ""),
            Param::new("logprobs", Shape::Bool, "Of the tokens that `content` is made of."),
            Param::new("top_logprobs", sampling::ALTERNATIVES, "With `logprobs: true`."),
            Param::new("reasoning_effort", Shape::Elsewhere("ReasoningEffort"), ""),
            Param::new("enable_thinking", Shape::Bool, "Wins over an effort."),
            Param::new("thinking_budget", template::THINKING_BUDGET, "Tokens of thought; wins over a switch."),
            Param::new("chat_template_kwargs", Shape::Elsewhere("TemplateArguments"), ""),
            Param::new(
                "add_generation_prompt",
                Shape::Bool,
                "`false`: the prompt opens no new message; the reply continues a last message of the assistant.",
            )
            .default("true"),
            Param::new(
                "continue_final_message",
                Shape::Bool,
                "The reply goes on with the last message, the assistant's.",
            ),
            Param::new(
                "modalities",
                Shape::List { of: &Shape::Word(&["text"]), min: 1, max: 1 },
                "Text is all there is.",
            ),
            Param::new("chimere", Shape::Object(EXTENSION), "What a client may ask beyond OpenAI's API.")
                .also("x_chimere"),
        ],
    ],
    rules: &[sampling::STREAM_OPTIONS, Rule::Needs("top_logprobs", "logprobs", "true")],
    ignored: super::IGNORED,
    unsupported: &[
        ("best_of", "ask for `n` choices"),
        ("functions", "use `tools`"),
        ("function_call", "use `tool_choice`"),
        ("audio", "this model reads and writes text only"),
        ("web_search_options", "say `chimere.web: true`"),
        ("grammar", "use `response_format` with a JSON Schema"),
        ("json_schema", "use `response_format`"),
        ("chat_template", "a template never comes from a request"),
    ],
};

/// Characters of a name that an extension field may carry.
const NAME: Name = Name {
    pattern: r"^[^\u0000-\u001f\u007f-\u009f]+$",
    max: 128,
    says: "1 to 128 characters, none of them a control character",
};
pub(crate) const CONVERSATION: Param = Param::new("conversation", Shape::Name(&NAME), "Keeps turns together.");
pub(crate) const CONSENT: Param =
    Param::new("consent", Shape::Bool, "May this turn be learned from; it can only withdraw what the key allows.");
pub(crate) const ENGRAM: Param = Param::new(
    "engram",
    Shape::Either(&[
        Shape::Bool,
        Shape::Object(&[
            Param::new("tables", Shape::List { of: &TEXT, min: 0, max: TABLES_MAX }, "Tables by name."),
            Param::new("lambda", Shape::Number { min: 0.0, max: 0.9 }, "The most that they may weigh.").default("0.1"),
            Param::new(
                "passages",
                Shape::List { of: &TEXT, min: 0, max: PASSAGES_MAX },
                "Texts whose own n-grams help this answer alone.",
            ),
        ]),
    ]),
    "`false`, or the tables to mix in.",
);

const CERTAINTY: Param =
    Param::new("certainty_min", Shape::Number { min: 0.0, max: 1.0 }, "Certainty that it takes.").required();
const THOUGHT_TOKENS: Shape = Shape::Whole { min: 0, max: THOUGHT_TOKENS_MAX as i128 };
const THOUGHT: Param = Param::new(
    "thought",
    Shape::Either(&[
        Shape::Bool,
        Shape::Object(&[
            Param::new(
                "budget_forcing",
                Shape::Object(&[
                    CERTAINTY,
                    Param::new("tokens", THOUGHT_TOKENS, "How many tokens in a row must be as certain.").default("8"),
                    Param::new("tokens_min", THOUGHT_TOKENS, "The thought has at least this many.").default("16"),
                ]),
                "Ends the thought before its budget once the model is certain.",
            ),
            Param::new(
                "reflection_suppression",
                Shape::Object(&[CERTAINTY]),
                "Forbids words that begin the thought again while the model is certain.",
            ),
        ]),
    ]),
    "`false`, or how the model's certainty ends or steers its thought; absent or `true`: as the route does.",
);

/// Built-in tools that a request may name.
const BUILT_IN_MAX: usize = 16;

const EXTENSION: &[Param] = &[
    Param::new("route", Shape::Name(&NAME), "A route by name, instead of the cascade's choice."),
    Param::new("tier", Shape::Word(&["fast", "quality", "ultra"]), ""),
    CONVERSATION,
    Param::new(
        "session",
        Shape::Name(&SESSION_NAME),
        "Goes on with what was said under this name, or begins it: `messages` are what is new.",
    ),
    CONSENT,
    ENGRAM,
    THOUGHT,
    Param::new(
        "tools",
        Shape::List { of: &Shape::Word(BUILT_IN), min: 0, max: BUILT_IN_MAX },
        "Built-in tools that the answer may call, by name, instead of the route's; empty = none.",
    ),
    Param::new("quality_gate", Shape::Bool, "Judge the answer before the reply ends, and try a poor one again."),
    Param::new(
        "steps",
        Shape::Word(&["program", "events", "none"]),
        "`events`: a stream tells of the steps of the route as they happen; `none`: the answer alone.",
    ),
    Param::new("lessons", Shape::Word(&["recall", "none"]), "`none`: the answer is shown no lesson."),
    DOCUMENTS,
    Param::new(
        "web",
        Shape::Bool,
        "Whether the web is searched for the answer, by the owner's search engine; absent: as the route does.",
    ),
];

#[derive(Debug, Deserialize)]
struct Raw {
    messages: Vec<Object<RawMessage>>,
    model: Option<String>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<ResponseFormat>,
    logprobs: Option<bool>,
    top_logprobs: Option<u8>,
    reasoning_effort: Option<Effort>,
    enable_thinking: Option<bool>,
    thinking_budget: Option<u32>,
    chat_template_kwargs: Option<Map<String, Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chimere: Option<Extension>,
}

/// What a client may ask of this daemon beyond OpenAI's API.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
    /// Built-in tools that the answer may call; absent: those of the route.
    pub(crate) tools: Option<Vec<String>>,
    /// The steps of the route; absent: as its file has them.
    pub(crate) steps: Option<StepsWish>,
    /// `false`, or what the model's certainty changes in its thought.
    pub(crate) thought: Option<RawThought>,
    /// Absent: lessons that bear on the question are shown.
    pub(crate) lessons: Option<LessonsWish>,
    /// Absent: as the route does.
    pub(crate) documents: Option<RawDocuments>,
    pub(crate) web: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LessonsWish {
    Recall,
    None,
}

/// A policy for the thought, as a client asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum RawThought {
    Switch(bool),
    Use(ThoughtPolicy),
}

impl RawThought {
    fn wish(self) -> Option<ThoughtPolicy> {
        match self {
            RawThought::Switch(true) => None,
            RawThought::Switch(false) => Some(ThoughtPolicy::default()),
            RawThought::Use(policy) => Some(policy),
        }
    }
}

/// Engram tables, as a client asks for them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum RawEngram {
    Switch(bool),
    Use(RawTables),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
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

/// How the reply is to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    /// Logprobs of every token, those of the prompt first.
    pub(crate) every_token: bool,
    /// Parameters that were accepted without effect: the reply names them.
    pub(crate) ignored: Vec<&'static str>,
}

/// Reads and checks a request body.
pub(crate) fn read(bytes: &[u8], principal: Principal, limits: &HttpLimits) -> Result<(ReplyRequest, Form), ApiError> {
    let (mut map, ignored) = body::checked(bytes, &TABLE, limits)?;
    let mut common = sampling::take(&mut map)?;
    let raw: Raw = body::typed(Value::Object(map))?;
    common.sampling.logprobs = (raw.logprobs == Some(true)).then(|| raw.top_logprobs.unwrap_or(0));
    let schema = schema(raw.response_format)?;
    let mut extension = raw.chimere.unwrap_or_default();
    extension.tools = extension.tools.map(distinct);
    let built_in = built_in(extension.tools.as_deref(), common.choices)?;
    let arguments = TemplateArguments::read(raw.chat_template_kwargs)?;
    let thinking = thinking(raw.reasoning_effort, raw.enable_thinking, raw.thinking_budget, &arguments)?;
    let said = [
        ("reasoning_effort", raw.reasoning_effort.is_some()),
        ("enable_thinking", raw.enable_thinking.is_some()),
        ("thinking_budget", raw.thinking_budget.is_some()),
        ("chimere.thought", extension.thought.is_some()),
    ];
    let thought_parameters = said.into_iter().filter(|(_, said)| *said).map(|(name, _)| name).collect();
    let tools = tools(raw.tools, raw.tool_choice, &built_in, limits)?;
    let one_tool_call = raw.parallel_tool_calls == Some(false);
    let asked = grammar(&tools, schema, raw.parallel_tool_calls)?;
    let none = tools.choice == Choice::None;
    let messages = messages(raw.messages, limits)?;
    let go_on = raw.continue_final_message.or(arguments.continue_final_message);
    let end = template::end(&messages, go_on, raw.add_generation_prompt.or(arguments.add_generation_prompt))?;
    if end == PromptEnd::Within && asked.grammar.is_some() {
        let message =
            "a reply that continues a message cannot be held to a form, nor begin with a call: leave one of them out";
        return Err(ApiError::param("continue_final_message", message));
    }
    let effort = raw.reasoning_effort.map(|effort| effort.word().to_owned());
    let prompt = PromptForm { end, arguments: arguments.variables, effort };
    let input = ReplyInput::Chat { messages, tools: tools.list };
    let form = Form {
        stream: common.stream,
        include_usage: common.include_usage,
        logprobs: common.sampling.logprobs.is_some(),
        every_token: false,
        ignored,
    };
    let mut request = request(principal, input, raw.model, common, extension, thinking);
    // Whoever wants no call wants none of the route's tools either.
    if none {
        request.built_in = Some(Vec::new());
    }
    let Asked { grammar, terms: form_terms, not_enforced } = asked;
    let request = ReplyRequest { grammar, form_terms, not_enforced, ..request };
    Ok((ReplyRequest { one_tool_call, prompt, thought_parameters, ..request }, form))
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
        thought: extension.thought.and_then(RawThought::wish),
        thought_parameters: Vec::new(),
        prompt: PromptForm::default(),
        sampling: common.sampling,
        max_tokens: common.max_tokens,
        stop: common.stop,
        choices: common.choices,
        consent: extension.consent,
        engram: RawEngram::wish(extension.engram),
        quality_gate: extension.quality_gate,
        steps: extension.steps.unwrap_or_default(),
        built_in: extension.tools,
        grammar: None,
        form_terms: FormTerms::default(),
        not_enforced: Vec::new(),
        prompt_logprobs: false,
        one_tool_call: false,
        recall: extension.lessons != Some(LessonsWish::None),
        documents: RawDocuments::wish(extension.documents),
        web: match extension.web {
            None => WebWish::Pipeline,
            Some(false) => WebWish::Off,
            Some(true) => WebWish::Use,
        },
        streamed: common.stream,
    }
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
        let ignored = vec!["user", "metadata", "store"];
        assert_eq!(form, Form { stream: true, include_usage: false, logprobs: true, every_token: false, ignored });
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
            ("chat_template_kwargs", json!({"chat_template_kwargs": {"messages": []}})),
            ("continue_final_message", json!({"continue_final_message": true})),
            ("max_token", json!({"max_token": 5})),
            ("chimere.engram", json!({"chimere": {"engram": {"table": ["kine"]}}})),
            ("chimere.engram", json!({"chimere": {"engram": 3}})),
            ("messages", json!({"messages": null})),
            ("`best_of` is not supported: ask", json!({"best_of": 2})),
            ("1 to 4096 messages, not an empty array", json!({"messages": []})),
            ("between -9223372036854775808 and 18446744073709551615, not 1.84", json!({"seed": 2f64.powi(64)})),
            ("must be one of `none`, `minimal`", json!({"reasoning_effort": "huge"})),
            ("response_format.name", json!({"response_format": {"type": "json_schema", "name": "n", "schema": {}}})),
        ] {
            let error = of(body.clone()).unwrap_err();
            let place = format!("{} {}", error.param.clone().unwrap_or_default(), error.message);
            assert!(place.contains(param), "{body}: {error:?}");
        }
        let grammar = |format: &str| of(json!({"response_format": {"type": format}})).unwrap().0.grammar;
        assert_eq!((grammar("text"), grammar("json_object")), (None, Some(Grammar::Json(json!({"type": "object"})))));
    }
}
