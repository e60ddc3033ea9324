//! The kinds of steps, a file each: what one does, between the reply that it is a part of and the engine.
//!
//! A new kind is a variant of `turn::Work`, its form in `pipeline::program`, a file here with one `run`, and a line in
//! [`run`]. What it generates goes through `ReplyRun::generate`, which counts it.

mod branch;
mod generate;
mod judge;
mod retrieve;
mod tools;
mod web;

pub(super) use generate::instructed;

use super::run::ReplyRun;
use super::stops::StepError;
use crate::turn::{Step, StepOutcome, Work};

/// What came of a step, for its record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) outcome: StepOutcome,
    /// What it decided, and why, for people.
    pub(super) decided: Option<String>,
    pub(super) because: Option<String>,
    /// The client saw its text.
    pub(super) visible: bool,
    /// What a hidden step wrote.
    pub(super) text: String,
}

impl Outcome {
    pub(super) fn of(outcome: StepOutcome) -> Outcome {
        Outcome { outcome, decided: None, because: None, visible: false, text: String::new() }
    }

    /// There was nothing for it to do.
    pub(super) fn skipped(because: &str) -> Outcome {
        Outcome { because: Some(because.to_owned()), ..Outcome::of(StepOutcome::Skipped) }
    }

    pub(super) fn of_error(error: &StepError) -> Outcome {
        let outcome = match error {
            StepError::Stopped(_) => StepOutcome::Stopped,
            StepError::Failed(_) => StepOutcome::Failed,
        };
        Outcome { because: Some(error.to_string()), ..Outcome::of(outcome) }
    }
}

/// Runs one step.
pub(super) async fn run(run: &mut ReplyRun<'_>, step: &Step) -> Result<Outcome, StepError> {
    match &step.work {
        Work::Answer { instruction } => generate::answer(run, instruction).await,
        Work::Tools(terms) => tools::run(run, terms).await,
        Work::Draft(draft) => generate::draft(run, draft).await,
        Work::Judge(gate) => judge::run(run, *gate).await,
        Work::Branch(branch) => Ok(branch::run(run, branch)),
        Work::Retrieve(terms) => retrieve::run(run, terms).await,
        Work::Web(terms) => web::run(run, terms).await,
    }
}
