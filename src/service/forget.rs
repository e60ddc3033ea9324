//! What a forgetting reaches, and what it took away.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::TurnFilter;
use crate::turn::TurnId;

/// What a forgetting took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    pub turns: usize,
    pub lessons: usize,
    /// Pairs of prompt and reply that nights had chosen to learn from.
    pub pairs: usize,
}

impl Forgotten {
    pub fn is_nothing(&self) -> bool {
        *self == Forgotten::default()
    }
}

/// What a forgetting reaches: what passes a filter, and what came of turns that went on with such a one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forgetting {
    pub filter: TurnFilter,
    /// They stay in the log, without the words of the forgotten.
    pub followers: BTreeSet<TurnId>,
}
