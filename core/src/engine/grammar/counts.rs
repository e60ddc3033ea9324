//! Counts of the requests that brought a form, by their outcome, for the engine's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::GrammarError;

/// Requests with a form since the engine began, by what became of the form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FormStats {
    /// Compiled for this request, or found compiled.
    pub compiled: u64,
    pub compiled_kept: u64,
    /// Examined and refused for this request, or known to be refused.
    pub refused: u64,
    pub refused_kept: u64,
    /// Neither: this machine was too busy, or failed.
    pub failed: u64,
}

/// The same, while it is counted.
#[derive(Debug, Default)]
pub struct FormCounts([AtomicU64; 5]);

impl FormCounts {
    /// `kept`: known from a request before.
    pub(super) fn count<T>(&self, made: &Result<T, GrammarError>, kept: bool) {
        let which = match made {
            Ok(_) => usize::from(kept),
            // Nobody hears of it.
            Err(GrammarError::Left) => return,
            Err(error) if error.is_of_the_machine() => 4,
            Err(_) => 2 + usize::from(kept),
        };
        self.0[which].fetch_add(1, Ordering::Relaxed);
    }

    /// A request that found no room at the desk.
    pub(super) fn turned_away(&self) {
        self.0[4].fetch_add(1, Ordering::Relaxed);
    }

    pub fn told(&self) -> FormStats {
        let [compiled, compiled_kept, refused, refused_kept, failed] =
            self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        FormStats { compiled, compiled_kept, refused, refused_kept, failed }
    }
}
