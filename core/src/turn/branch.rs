//! A branch of a reply's program: hidden steps that a condition decides on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Step, Tier};

/// Hidden steps on two sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    pub when: Condition,
    pub steps: Vec<Step>,
    pub otherwise: Vec<Step>,
}

/// What a branch asks. All that it says must hold. Words are compared as those of a route's rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Condition {
    /// The reply's tier is one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
    /// The user's last message has so many words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words_min: Option<u32>,
    /// It holds one of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<String>,
    /// The text of this earlier hidden step holds one of `says`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub says: Vec<String>,
}

/// Words of a list that people are shown.
const SHOWN_MAX: usize = 4;

/// For people, as a pipeline file says it.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Condition { tiers, words_min, asks, step, says } = self;
        let tiers: Vec<&str> = tiers.iter().map(|tier| tier.name()).collect();
        let parts = [
            (!tiers.is_empty()).then(|| format!("the tier is {}", tiers.join(" or "))),
            words_min.map(|least| format!("the question has {least} words or more")),
            (!asks.is_empty()).then(|| format!("it holds {}", one_of(asks))),
            step.as_ref().map(|step| format!("`{step}` says {}", one_of(says))),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", and "))
    }
}

fn one_of(words: &[String]) -> String {
    let shown = words.iter().take(SHOWN_MAX).map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
    match words.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} or one of {more} more"),
    }
}
