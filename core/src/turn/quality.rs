//! What the quality gate did with an answer, in the record of its turn.

use serde::{Deserialize, Serialize};

use super::Generation;

/// What the quality gate made of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QualityOutcome {
    /// The judge thought well enough of the first attempt.
    Passed,
    /// A later attempt was judged better, and stands in its place.
    Revised,
    /// It was tried again, and the first attempt stayed the best.
    Kept,
    /// There was no verdict: the first attempt stands.
    Unjudged,
}

impl QualityOutcome {
    pub fn name(self) -> &'static str {
        match self {
            QualityOutcome::Passed => "passed",
            QualityOutcome::Revised => "revised",
            QualityOutcome::Kept => "kept",
            QualityOutcome::Unjudged => "unjudged",
        }
    }
}

/// What the quality gate did with an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    pub outcome: QualityOutcome,
    /// Verdicts of the attempts that were judged, in their order.
    pub verdicts: Vec<u8>,
    /// Which attempt was kept; the first is 0.
    pub kept: u32,
    pub took_ms: u64,
    /// Why it ended before it was through, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// The other attempts, in their order. A client is not told of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Generation>,
}
