//! The parameters that chat and completions share: sampling, length, stops, choices, streaming.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Number, Value};

use crate::engine::protocol::{STOP_BYTES_MAX, STOPS_MAX};
use crate::engine::sampler::{LOGIT_BIAS_MAX, LOGPROBS_MAX};
use crate::http::body::typed;
use crate::http::error::ApiError;
use crate::service::{CHOICES_MAX, SamplingOverrides};

pub(crate) const KNOWN: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "logit_bias",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "stop",
    "stream",
    "stream_options",
];

/// Alternatives a token that `top_logprobs` may ask for.
pub(crate) const TOP_LOGPROBS_MAX: u32 = LOGPROBS_MAX as u32;

#[derive(Debug, Deserialize)]
struct Raw {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    seed: Option<Number>,
    logit_bias: Option<BTreeMap<String, f64>>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    n: Option<u64>,
    stop: Option<Value>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// Padding against traffic analysis, which a local connection does not need: accepted, no effect.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
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

/// Takes the shared parameters out of a request body and checks them.
pub(crate) fn take(map: &mut Map<String, Value>) -> Result<Common, ApiError> {
    let own: Map<String, Value> =
        KNOWN.iter().filter_map(|&key| Some((key.to_owned(), map.shift_remove(key)?))).collect();
    let raw: Raw = typed(Value::Object(own))?;
    let stream = raw.stream.unwrap_or(false);
    if raw.stream_options.is_some() && !stream {
        return Err(ApiError::param("stream_options", "`stream_options` is only allowed with `stream: true`"));
    }
    let sampling = SamplingOverrides {
        temperature: within("temperature", raw.temperature, 0.0, 2.0)?,
        top_p: within("top_p", raw.top_p, 0.0, 1.0)?,
        top_k: top_k(raw.top_k)?,
        min_p: within("min_p", raw.min_p, 0.0, 1.0)?,
        repetition_penalty: within("repetition_penalty", raw.repetition_penalty, 0.1, 10.0)?,
        frequency_penalty: within("frequency_penalty", raw.frequency_penalty, -2.0, 2.0)?,
        presence_penalty: within("presence_penalty", raw.presence_penalty, -2.0, 2.0)?,
        seed: raw.seed.as_ref().map(seed).transpose()?,
        logit_bias: raw.logit_bias.map(logit_bias).transpose()?.unwrap_or_default(),
        logprobs: None,
    };
    Ok(Common {
        sampling,
        max_tokens: max_tokens(raw.max_tokens, raw.max_completion_tokens)?,
        choices: choices(raw.n)?,
        stop: raw.stop.map(stops).transpose()?.unwrap_or_default(),
        stream,
        include_usage: raw.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
    })
}

fn within(name: &str, value: Option<f64>, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::param(name, format!("`{name}` must be between {low} and {high}, not {value}")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// −1 is how vLLM's clients say "off".
fn top_k(value: Option<i64>) -> Result<Option<u32>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    match u32::try_from(value.max(0)) {
        Ok(top_k) if value >= -1 => Ok(Some(top_k)),
        _ => Err(ApiError::param("top_k", format!("`top_k` must be a token count, 0 or -1 for off, not {value}"))),
    }
}

/// Any 64-bit integer; a negative one stands for its two's complement.
fn seed(value: &Number) -> Result<u64, ApiError> {
    value
        .as_u64()
        .or_else(|| value.as_i64().map(|seed| seed as u64))
        .ok_or_else(|| ApiError::param("seed", format!("`seed` must be a 64-bit integer, not {value}")))
}

fn logit_bias(map: BTreeMap<String, f64>) -> Result<Vec<(u32, f32)>, ApiError> {
    if map.len() > LOGIT_BIAS_MAX {
        return Err(ApiError::param("logit_bias", format!("`logit_bias` has more than {LOGIT_BIAS_MAX} entries")));
    }
    map.into_iter()
        .map(|(id, bias)| {
            let path = format!("logit_bias.{}", id.chars().take(20).collect::<String>());
            let id = id.parse().map_err(|_| ApiError::param(path.as_str(), "`logit_bias` keys are token ids"))?;
            let bias = within(&path, Some(bias), -100.0, 100.0)?.unwrap_or_default();
            Ok((id, bias))
        })
        .collect()
}

fn max_tokens(old: Option<u64>, new: Option<u64>) -> Result<Option<u32>, ApiError> {
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(ApiError::param("max_tokens", "`max_tokens` and `max_completion_tokens` contradict each other"));
    }
    match new.or(old) {
        Some(0) => Err(ApiError::param("max_tokens", "`max_tokens` must be at least 1")),
        // More than any context holds: the engine stops at its context anyway.
        value => Ok(value.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX))),
    }
}

fn choices(n: Option<u64>) -> Result<u32, ApiError> {
    let n = n.unwrap_or(1);
    match u32::try_from(n) {
        Ok(n) if (1..=CHOICES_MAX).contains(&n) => Ok(n),
        _ => Err(ApiError::param("n", format!("`n` must be between 1 and {CHOICES_MAX}, not {n}"))),
    }
}

fn stops(value: Value) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::param("stop", "`stop` must be a string or an array of strings");
    let list = match value {
        Value::String(one) => vec![one],
        Value::Array(many) => many
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                _ => Err(wrong()),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong()),
    };
    if list.len() > STOPS_MAX {
        return Err(ApiError::param("stop", format!("`stop` has more than {STOPS_MAX} strings")));
    }
    if list.iter().any(|text| text.is_empty() || text.len() > STOP_BYTES_MAX) {
        return Err(ApiError::param("stop", format!("each stop string must have 1 to {STOP_BYTES_MAX} bytes")));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: Value) -> Result<Common, ApiError> {
        let Value::Object(mut map) = value else { panic!("not an object") };
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
