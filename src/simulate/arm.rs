//! Which parts of the night a simulated week may use, so that each can be measured alone and against nothing.

use serde::{Deserialize, Serialize};

use crate::night::phase::Job;

/// One way to live the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    /// Every job of the night.
    Full,
    /// Training alone.
    Adapter,
    /// The engram write alone.
    Engram,
    /// Prompt optimisation alone.
    Prompts,
    /// Every job, but the users' verdicts are shuffled among the day's turns, and nobody corrects.
    Placebo,
    /// No job: the daemon only serves.
    None,
}

impl Arm {
    pub const NAMES: [&'static str; 6] = ["full", "adapter", "engram", "prompts", "placebo", "none"];

    pub fn parse(name: &str) -> Option<Arm> {
        let arms = [Arm::Full, Arm::Adapter, Arm::Engram, Arm::Prompts, Arm::Placebo, Arm::None];
        Arm::NAMES.iter().position(|n| *n == name).map(|at| arms[at])
    }

    pub fn name(self) -> &'static str {
        Arm::NAMES[self as usize]
    }

    /// Jobs of a night with their hours, in order, as the shipped schedule has them.
    pub fn jobs(self, monday: bool) -> Vec<(i64, Job)> {
        let all = [(2, Job::OptimisePrompts), (3, Job::Train), (4, Job::EngramWrite)];
        all.into_iter().filter(|(_, job)| self.runs(*job) && (monday || *job != Job::OptimisePrompts)).collect()
    }

    fn runs(self, job: Job) -> bool {
        match self {
            Arm::Full | Arm::Placebo => true,
            Arm::Adapter => job == Job::Train,
            Arm::Engram => job == Job::EngramWrite,
            Arm::Prompts => job == Job::OptimisePrompts,
            Arm::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_jobs_fit() {
        for name in Arm::NAMES {
            let arm = Arm::parse(name).unwrap();
            assert_eq!(arm.name(), name);
            assert_eq!(serde_json::to_value(arm).unwrap(), name);
        }
        assert_eq!(Arm::parse("all"), None);
        assert_eq!(Arm::Full.jobs(true).len(), 3);
        assert_eq!(Arm::Full.jobs(false), [(3, Job::Train), (4, Job::EngramWrite)]);
        assert_eq!(Arm::Adapter.jobs(true), [(3, Job::Train)]);
        assert!(Arm::Prompts.jobs(false).is_empty() && Arm::None.jobs(true).is_empty());
    }
}
