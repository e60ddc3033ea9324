//! The `tools` step of a file: an answer that may call built-in tools before it is complete.

use std::ops::RangeInclusive;

use serde::Deserialize;

use super::program::RawGenerate;
use crate::tools;
use crate::turn::ToolLimits;

const ROUNDS: RangeInclusive<u32> = 1..=8;
const CALLS: RangeInclusive<u32> = 1..=32;
const TIMEOUT_MS: RangeInclusive<u64> = 100..=60_000;

/// An answer that may call built-in tools, as it is written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawTools {
    allow: Vec<String>,
    rounds: u32,
    calls: u32,
    timeout_ms: u64,
    pub(super) answer: RawGenerate,
}

impl Default for RawTools {
    fn default() -> Self {
        let ToolLimits { rounds, calls, timeout_ms } = ToolLimits::default();
        RawTools { allow: Vec::new(), rounds, calls, timeout_ms, answer: RawGenerate::default() }
    }
}

impl RawTools {
    /// The tools and how far the answer may go with them.
    pub(super) fn checked(&self) -> Result<(Vec<String>, ToolLimits), String> {
        if self.allow.is_empty() {
            return Err("allows no tool: `allow` names them".to_owned());
        }
        for (at, name) in self.allow.iter().enumerate() {
            tools::named(name).map_err(|error| format!("allows what cannot be had: {error}"))?;
            if self.allow[..at].contains(name) {
                return Err(format!("allows `{name}` twice"));
            }
        }
        within("rounds", self.rounds, ROUNDS)?;
        within("calls", self.calls, CALLS)?;
        within("timeout_ms", self.timeout_ms, TIMEOUT_MS)?;
        let limits = ToolLimits { rounds: self.rounds, calls: self.calls, timeout_ms: self.timeout_ms };
        Ok((self.allow.clone(), limits))
    }
}

fn within<T: PartialOrd + std::fmt::Display>(name: &str, value: T, range: RangeInclusive<T>) -> Result<(), String> {
    let (low, high) = (range.start(), range.end());
    if range.contains(&value) { Ok(()) } else { Err(format!("has {name} {value}, but it must be {low} to {high}")) }
}
