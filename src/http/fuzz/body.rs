//! The reader of bodies, on any bytes. They are refused with an error that a client can read, or they are what the
//! documentation allows, within every limit. A body that was read goes to the engine unharmed and means the same
//! written in another way. One more parameter that nobody knows has it refused.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::engine::grammar::check_schema;
use crate::engine::protocol::{EmbedInput, STOP_BYTES_MAX, STOPS_MAX};
use crate::engine::sampler::{LOGIT_BIAS_MAX, LOGPROBS_MAX};
use crate::http::body::depth;
use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::http::wire::chat::Form;
use crate::http::wire::completion::Completions;
use crate::http::wire::embedding::{Embeddings, Rerank};
use crate::http::wire::{chat, completion, embedding};
use crate::service::{CHOICES_MAX, EMBED_TEXTS_MAX, EngramWish, Principal, ReplyInput, ReplyRequest};

/// Characters of an error's message, and of the parameter that it names: an error repeats little of what it is about.
const MESSAGE_CHARS_MAX: usize = 1_001;
const PARAM_CHARS_MAX: usize = 201;

/// What was read, by route.
#[derive(Debug, PartialEq)]
enum Read {
    Chat(Box<ReplyRequest>, Form),
    Completion(Completions),
    Embeddings(Embeddings),
    Rerank(Rerank),
}

impl Read {
    fn with_nothing_ignored(mut self) -> Read {
        if let Read::Chat(_, form) | Read::Completion(Completions { form, .. }) = &mut self {
            form.ignored.clear();
        }
        if let Read::Embeddings(Embeddings { ignored, .. }) | Read::Rerank(Rerank { ignored, .. }) = &mut self {
            ignored.clear();
        }
        self
    }
}

fn read(route: u8, body: &[u8], limits: &HttpLimits) -> Result<Read, ApiError> {
    let owner = Principal { name: "owner".to_owned(), scopes: Vec::new(), consent: true };
    Ok(match route % 4 {
        0 => chat::read(body, owner, limits).map(|(request, form)| Read::Chat(Box::new(request), form))?,
        1 => Read::Completion(completion::read(body, owner, limits)?),
        2 => Read::Embeddings(embedding::embeddings(body, limits)?),
        _ => Read::Rerank(embedding::rerank(body, limits)?),
    })
}

pub fn check(data: &[u8]) {
    let Some((&route, body)) = data.split_first() else {
        return;
    };
    let limits = HttpLimits { messages_max: 8, tools_max: 4, json_depth_max: 16, ..HttpLimits::default() };
    let found = match read(route, body, &limits) {
        Ok(found) => found,
        Err(error) => return refused(&error),
    };
    assert!(depth(body) <= limits.json_depth_max);
    match &found {
        Read::Chat(request, form) => allowed(request, form, &limits),
        Read::Completion(Completions { requests, form, .. }) => {
            assert!(!requests.is_empty());
            requests.iter().for_each(|request| allowed(request, form, &limits));
        }
        Read::Embeddings(Embeddings { inputs, .. }) => {
            let empty = |input: &EmbedInput| match input {
                EmbedInput::Text(text) => text.is_empty(),
                EmbedInput::Ids(ids) => ids.is_empty(),
            };
            assert!((1..=EMBED_TEXTS_MAX).contains(&inputs.len()) && !inputs.iter().any(empty));
        }
        Read::Rerank(Rerank { texts, top, .. }) => {
            assert!((2..=EMBED_TEXTS_MAX).contains(&texts.len()) && !texts[0].is_empty() && *top > 0);
        }
    }
    let map: Map<String, Value> = serde_json::from_slice(body).expect("what was read is JSON");
    let written = |map: &Map<String, Value>| serde_json::to_vec(map).expect("JSON can be written");
    let again = |map: &Map<String, Value>| read(route, &written(map), &limits);
    assert_eq!(again(&map).as_ref(), Ok(&found), "written by another hand");
    let with = |name: &str, value: Value| {
        let mut more = map.clone();
        more.entry(name).or_insert(value);
        again(&more)
    };
    assert_eq!(with("model", Value::Null).as_ref(), Ok(&found), "null is as good as nothing");
    let same = with("user", json!("somebody")).map(Read::with_nothing_ignored);
    assert_eq!(same, Ok(found.with_nothing_ignored()), "an ignored parameter does nothing");
    let refused = with("unheard_of", json!(1)).expect_err("a parameter that nobody knows is refused");
    assert_eq!((refused.code, refused.param.as_deref()), (Some("unknown_parameter"), Some("unheard_of")));
}

fn refused(error: &ApiError) {
    assert_eq!((error.status.as_u16(), error.kind), (400, "invalid_request_error"), "{error:?}");
    let told = &error.envelope()["error"];
    let chars = |field: &str| told[field].as_str().map(|text| text.chars().count());
    assert!(chars("message").is_some_and(|length| (1..=MESSAGE_CHARS_MAX).contains(&length)), "{error:?}");
    assert!(chars("param").is_none_or(|length| length <= PARAM_CHARS_MAX), "{error:?}");
}

fn allowed(request: &ReplyRequest, form: &Form, limits: &HttpLimits) {
    let within = |value: Option<f32>, low: f32, high: f32| value.is_none_or(|value| (low..=high).contains(&value));
    let s = &request.sampling;
    assert!(within(s.temperature, 0.0, 2.0) && within(s.top_p, 0.0, 1.0) && within(s.min_p, 0.0, 1.0), "{s:?}");
    assert!(within(s.repetition_penalty, 0.1, 10.0) && within(s.presence_penalty, -2.0, 2.0), "{s:?}");
    assert!(within(s.frequency_penalty, -2.0, 2.0) && s.logit_bias.len() <= LOGIT_BIAS_MAX, "{s:?}");
    assert!(s.logit_bias.iter().all(|(_, bias)| within(Some(*bias), -100.0, 100.0)), "{s:?}");
    assert!(s.logprobs.is_none_or(|top| top <= LOGPROBS_MAX), "{s:?}");
    assert!((1..=CHOICES_MAX).contains(&request.choices) && request.max_tokens != Some(0), "{request:?}");
    assert!(request.stop.len() <= STOPS_MAX, "{request:?}");
    assert!(request.stop.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len())), "{request:?}");
    assert_eq!((form.stream, form.logprobs), (request.streamed, s.logprobs.is_some()));
    assert!(form.stream || !form.include_usage);
    unharmed(&s.logit_bias);
    unharmed(&request.stop);
    unharmed(&request.grammar);
    if let EngramWish::Use(choice) = &request.engram
        && choice.lambda_max.is_finite()
    {
        unharmed(choice);
    }
    if let ReplyInput::Chat { messages, tools } = &request.input {
        assert!((1..=limits.messages_max).contains(&messages.len()) && tools.len() <= limits.tools_max);
        unharmed(messages);
        unharmed(tools);
    }
    let schemas = request.grammar.iter().flat_map(|grammar| grammar.schemas());
    assert!(schemas.map(check_schema).all(|checked| checked.is_ok()), "{request:?}");
}

/// The engine reads in its frame what the door has read.
fn unharmed<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    // As deep inside other values as a request puts it.
    let frame = serde_json::to_vec(&json!([[[[value]]]])).expect("it can be written");
    let [[[[read]]]]: [[[[T; 1]; 1]; 1]; 1] = serde_json::from_slice(&frame).expect("it can be read");
    assert_eq!(&read, value);
}
