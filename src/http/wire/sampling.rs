//! The parameters that chat and completions share: sampling, length, stops, choices, streaming.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Number, Value};

use crate::engine::protocol::{STOP_CHARS_MAX, STOPS_MAX};
use crate::engine::sampler::{LOGIT_BIAS_MAX, LOGPROBS_MAX};
use crate::http::body::typed;
use crate::http::error::ApiError;
use crate::http::table::{Param, Rule, Shape, WHOLE_MAX};
use crate::service::{CHOICES_MAX, SamplingOverrides};

/// How the engine's words about a token of `logit_bias` begin.
pub(crate) const BIAS_SAID: &str = "logit_bias names token ";

const STOP: Shape = Shape::Text { min: 1, max: STOP_CHARS_MAX };
const NO_LIMIT: Shape = Shape::Exactly("-1");
/// -1 is how clients of llama-server say "no limit of mine".
const LENGTH: Shape = Shape::Either(&[NO_LIMIT, Shape::Whole { min: 1, max: WHOLE_MAX }]);

pub(crate) const PARAMS: &[Param] = &[
    Param::new("temperature", Shape::Number { min: 0.0, max: 2.0 }, "0 = always the most probable token."),
    Param::new("top_p", Shape::Number { min: 0.0, max: 1.0 }, ""),
    Param::new("top_k", Shape::Whole { min: -1, max: u32::MAX as i128 }, "0 or -1 = off."),
    Param::new("min_p", Shape::Number { min: 0.0, max: 1.0 }, ""),
    Param::new("repetition_penalty", Shape::Number { min: 0.1, max: 10.0 }, "1 = off.").also("repeat_penalty"),
    Param::new("frequency_penalty", Shape::Number { min: -2.0, max: 2.0 }, ""),
    Param::new("presence_penalty", Shape::Number { min: -2.0, max: 2.0 }, ""),
    Param::new(
        "seed",
        Shape::Whole { min: i64::MIN as i128, max: u64::MAX as i128 },
        "Any 64-bit integer; drawn and reported in `x_chimere.seeds` where absent.",
    ),
    Param::new(
        "logit_bias",
        Shape::ByToken { of: &Shape::Number { min: -100.0, max: 100.0 }, max: LOGIT_BIAS_MAX },
        "By token id.",
    ),
    Param::new("max_tokens", LENGTH, "Thought and answer together; -1 = as if absent; completions default to 16."),
    Param::new("max_completion_tokens", LENGTH, "Another name of `max_tokens`; both must say the same."),
    Param::new("n", Shape::Whole { min: 1, max: CHOICES_MAX as i128 }, "Choices, with seeds in a row.").default("1"),
    Param::new(
        "stop",
        Shape::Either(&[STOP, Shape::List { of: &STOP, min: 0, max: STOPS_MAX }]),
        "The reply ends before the first of these that occurs in its answer.",
    ),
    Param::new("stream", Shape::Bool, "Server-sent events instead of one object.").default("false"),
    Param::new(
        "stream_options",
        Shape::Object(&[
            Param::new("include_usage", Shape::Bool, "A last chunk with the usage."),
            // Padding against traffic analysis, which a local connection does not need.
            Param::new("include_obfuscation", Shape::Bool, "Accepted without effect."),
        ]),
        "With `stream: true` only.",
    ),
];
pub(crate) const STREAM_OPTIONS: Rule = Rule::Needs("stream_options", "stream", "true");

/// Alternatives of each token that a request may ask for.
pub(crate) const ALTERNATIVES: Shape = Shape::Whole { min: 0, max: LOGPROBS_MAX as i128 };

/// As the table has let it through.
#[derive(Debug, Deserialize)]
struct Raw {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    seed: Option<Number>,
    #[serde(default)]
    logit_bias: BTreeMap<u32, f32>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n: Option<u32>,
    stop: Option<Stops>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stops {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// The checked values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Common {
    pub(crate) sampling: SamplingOverrides,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) choices: u32,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// Takes the shared parameters out of a request body that was checked.
pub(crate) fn take(map: &mut Map<String, Value>) -> Result<Common, ApiError> {
    let own: Map<String, Value> =
        PARAMS.iter().filter_map(|param| Some((param.name.to_owned(), map.shift_remove(param.name)?))).collect();
    let raw: Raw = typed(Value::Object(own))?;
    let sampling = SamplingOverrides {
        temperature: raw.temperature,
        top_p: raw.top_p,
        top_k: raw.top_k.map(|top| top.max(0) as u32),
        min_p: raw.min_p,
        repetition_penalty: raw.repetition_penalty,
        frequency_penalty: raw.frequency_penalty,
        presence_penalty: raw.presence_penalty,
        seed: raw.seed.as_ref().and_then(seed),
        logit_bias: raw.logit_bias.into_iter().collect(),
        logprobs: None,
    };
    Ok(Common {
        sampling,
        max_tokens: max_tokens(raw.max_tokens, raw.max_completion_tokens)?,
        choices: raw.n.unwrap_or(1),
        stop: match raw.stop {
            None => Vec::new(),
            Some(Stops::One(stop)) => vec![stop],
            Some(Stops::Many(stops)) => stops,
        },
        stream: raw.stream,
        include_usage: raw.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
    })
}

/// A negative one stands for its two's complement.
fn seed(value: &Number) -> Option<u64> {
    value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64))
}

fn max_tokens(old: Option<i64>, new: Option<i64>) -> Result<Option<u32>, ApiError> {
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(ApiError::param("max_tokens", "`max_tokens` and `max_completion_tokens` contradict each other"));
    }
    // More than any context holds: the engine stops at its context anyway.
    Ok(new.or(old).filter(|tokens| *tokens > 0).map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::table::Table;

    const TABLE: Table = Table { rules: &[STREAM_OPTIONS], ..Table::new("Sampling", "", &[PARAMS]) };

    fn of(value: Value) -> Result<Common, ApiError> {
        let Value::Object(mut map) = value else { panic!("not an object") };
        TABLE.check(&mut map)?;
        take(&mut map)
    }

    #[test]
    fn every_parameter_arrives() {
        let common = of(json!({
            "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "repeat_penalty": 1.1,
            "frequency_penalty": -1, "presence_penalty": 2, "seed": -1, "logit_bias": {"7": -100},
            "max_completion_tokens": 9, "n": 2, "stop": "x", "stream": true, "stream_options": {"include_usage": true}
        }))
        .unwrap();
        assert_eq!(
            common,
            Common {
                sampling: SamplingOverrides {
                    temperature: Some(0.0),
                    top_p: Some(0.5),
                    top_k: Some(0),
                    min_p: Some(0.1),
                    repetition_penalty: Some(1.1),
                    frequency_penalty: Some(-1.0),
                    presence_penalty: Some(2.0),
                    seed: Some(u64::MAX),
                    logit_bias: vec![(7, -100.0)],
                    logprobs: None,
                },
                max_tokens: Some(9),
                choices: 2,
                stop: vec!["x".to_owned()],
                stream: true,
                include_usage: true,
            }
        );
        assert_eq!(of(json!({})).unwrap(), Common { choices: 1, ..Common::default() });
    }

    #[test]
    fn whole_numbers_may_be_written_in_any_way_and_minus_one_is_no_limit() {
        for (tokens, expected) in
            [("5.0", Some(5)), ("1e2", Some(100)), ("-1", None), ("-1.0", None), ("1e15", Some(u32::MAX))]
        {
            for name in ["max_tokens", "max_completion_tokens"] {
                let body = format!(r#"{{"{name}": {tokens}, "n": 1.0, "top_k": 40.0, "seed": 7e0}}"#);
                let common = of(serde_json::from_str(&body).unwrap()).unwrap();
                assert_eq!(common.max_tokens, expected, "{body}");
                let sampling = common.sampling;
                assert_eq!((common.choices, sampling.top_k, sampling.seed), (1, Some(40), Some(7)));
            }
        }
        let zero = of(json!({"max_completion_tokens": 0})).unwrap_err();
        assert_eq!(zero.message, "`max_completion_tokens` must be -1 or a whole number of 1 or more, not 0");
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (param, body) in [
            ("temperature", json!({"temperature": 2.1})),
            ("temperature", json!({"temperature": "hot"})),
            ("top_p", json!({"top_p": -0.1})),
            ("top_k", json!({"top_k": -2})),
            ("seed", json!({"seed": 1.5})),
            ("logit_bias.x", json!({"logit_bias": {"x": 1}})),
            ("logit_bias.1", json!({"logit_bias": {"1": 101}})),
            ("max_tokens", json!({"max_tokens": 0})),
            ("max_completion_tokens", json!({"max_completion_tokens": 0})),
            ("max_completion_tokens", json!({"max_completion_tokens": -2})),
            ("repeat_penalty", json!({"repeat_penalty": 1, "repetition_penalty": 1})),
            ("max_tokens", json!({"max_tokens": 1, "max_completion_tokens": 2})),
            ("n", json!({"n": 0})),
            ("n", json!({"n": 9})),
            ("stop", json!({"stop": [""]})),
            ("stop", json!({"stop": [1]})),
            ("stop", json!({"stop": (0..17).map(|i| i.to_string()).collect::<Vec<_>>()})),
            ("stream_options", json!({"stream_options": {}})),
            ("stream_options", json!({"stream": true, "stream_options": {"usage": true}})),
        ] {
            let error = of(body.clone()).unwrap_err();
            let named = error.param.clone().unwrap_or_default();
            assert!(named.starts_with(param), "{body}: {error:?}");
            assert_eq!(error.status.as_u16(), 400);
        }
    }
}
