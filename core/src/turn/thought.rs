//! What bounds a thought beside its budget, and what came of it.

use serde::{Deserialize, Serialize};

/// What the model's certainty changes in its thought while it thinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThoughtPolicy {
    /// Ends a thought before its budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_forcing: Option<BudgetForcing>,
    /// Forbids the words that begin a thought again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reflection_suppression: Option<ReflectionSuppression>,
}

/// A thought ends once its certainty (`engine::control::certainty`) has been high for some tokens in a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetForcing {
    /// 0 to 1.
    pub certainty_min: f32,
    /// Tokens in a row, at least 1.
    #[serde(default = "certain_tokens")]
    pub tokens: u32,
    /// No thought ends before so many.
    #[serde(default = "thought_tokens_min")]
    pub tokens_min: u32,
}

fn certain_tokens() -> u32 {
    8
}

fn thought_tokens_min() -> u32 {
    16
}

/// Words that begin a thought again are forbidden at a sentence's start while it is certain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReflectionSuppression {
    /// 0 to 1.
    pub certainty_min: f32,
}

impl ThoughtPolicy {
    /// Every field in its range; the message begins with the field's name.
    pub fn check(self) -> Result<(), String> {
        let certainty = |field: &str, value: f32| match (0.0..=1.0).contains(&value) {
            true => Ok(()),
            false => Err(format!("{field}.certainty_min is {value}, but must be 0 to 1")),
        };
        if let Some(forcing) = self.budget_forcing {
            certainty("budget_forcing", forcing.certainty_min)?;
            if !(1..=THOUGHT_TOKENS_MAX).contains(&forcing.tokens) || forcing.tokens_min > THOUGHT_TOKENS_MAX {
                return Err(format!(
                    "budget_forcing.tokens must be 1 to {THOUGHT_TOKENS_MAX}, tokens_min at most {THOUGHT_TOKENS_MAX}"
                ));
            }
        }
        self.reflection_suppression.map_or(Ok(()), |s| certainty("reflection_suppression", s.certainty_min))
    }
}

/// Most tokens that a [`BudgetForcing`] may name.
pub const THOUGHT_TOKENS_MAX: u32 = 65_536;

/// Who ended a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThoughtEnd {
    /// The model itself.
    Model,
    /// Its budget was spent.
    Budget,
    /// It was certain.
    Certain,
}

/// What a [`ThoughtPolicy`] did in a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThoughtUse {
    /// Absent: the reply ended first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<ThoughtEnd>,
    /// At its end, 0 to 1.
    pub certainty: f32,
    /// Tokens before which words were forbidden.
    pub suppressed: u32,
}
