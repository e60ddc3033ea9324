//! What the server sees of the steps of a reply: the wish of a request, the news of a step, a reply under way.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::turn::{CallRecord, StepRecord, TurnId};

/// What a request says of the steps of its route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepsWish {
    /// Nothing: the route's program runs.
    #[default]
    Program,
    /// It runs, and the client is told of each step as it happens.
    Events,
    /// The answer alone, as if the route's file held no steps.
    None,
}

/// What a client hears of a step as it happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum StepEvent {
    Began {
        kind: String,
        name: String,
    },
    /// A built-in tool is called, and has answered.
    Calling {
        name: String,
        arguments: Value,
    },
    Called(CallRecord),
    Ended(StepRecord),
}

/// A reply under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// Of the turn that it will leave.
    pub id: TurnId,
    pub principal: String,
    pub route: String,
    pub model: String,
    /// Unix milliseconds.
    pub began_ms: i64,
    /// Which of its steps is under way, from 1.
    pub step: usize,
    pub steps: usize,
    /// Of that step.
    pub kind: String,
    pub name: String,
    /// The most that it can come to.
    pub generations_max: u32,
    pub tokens_max: u64,
}
