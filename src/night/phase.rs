//! The night as a state machine: `phase(run, event) → (run, action)`, pure. The Scheduler writes the new state to
//! disk before it does the action. So a run that crashed resumes at its phase or is given up, and the served
//! generation is always a verified one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::gate::Rule;

/// Lives of the daemon that may begin one phase; then the run is given up.
const ATTEMPTS_MAX: u32 = 3;

/// What a run is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Score, select, train, gate, promote.
    #[default]
    Train,
    /// Write verified answers to the engram tables, and let old ones decay.
    EngramWrite,
    /// Search better instructions and demonstrations.
    OptimisePrompts,
    /// Bring the retrieval index up to date.
    Reindex,
}

impl Job {
    pub const ALL: [Job; 4] = [Job::Train, Job::EngramWrite, Job::OptimisePrompts, Job::Reindex];

    pub fn name(self) -> &'static str {
        match self {
            Job::Train => "train",
            Job::EngramWrite => "engram_write",
            Job::OptimisePrompts => "optimise_prompts",
            Job::Reindex => "reindex",
        }
    }

    fn phases(self) -> &'static [Phase] {
        match self {
            Job::Train => &[Phase::Score, Phase::Select, Phase::Train, Phase::Gate, Phase::Promote, Phase::Report],
            Job::EngramWrite => &[Phase::Reinforce, Phase::Weigh, Phase::Report],
            Job::OptimisePrompts => &[Phase::Optimise, Phase::Report],
            Job::Reindex => &[Phase::Reindex, Phase::Report],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Score,
    Select,
    Train,
    Gate,
    Promote,
    Reinforce,
    /// Ask an exam with the written tables and without. What is written stays whatever comes of it.
    Weigh,
    Optimise,
    Reindex,
    Report,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Score => "score",
            Phase::Select => "select",
            Phase::Train => "train",
            Phase::Gate => "gate",
            Phase::Promote => "promote",
            Phase::Reinforce => "reinforce",
            Phase::Weigh => "weigh",
            Phase::Optimise => "optimise",
            Phase::Reindex => "reindex",
            Phase::Report => "report",
        }
    }
}

/// An adapter that may be promoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Under the state folder.
    pub path: PathBuf,
    pub sha256: String,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub id: String,
    pub job: Job,
    pub started_ms: i64,
    /// Work and report, but put nothing into use.
    pub dry_run: bool,
    /// An adapter made elsewhere, in place of training.
    pub given: Option<PathBuf>,
    pub seed: u64,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Promoted {
        generation: u64,
        words: String,
    },
    /// The gate said no.
    Rejected {
        rule: Rule,
        words: String,
    },
    /// The gate said yes to a dry run.
    WouldPromote {
        words: String,
    },
    /// The work of a job without a gate is done.
    Done {
        words: String,
    },
    /// What it would change is known, and this was a dry run.
    WouldChange {
        words: String,
    },
    /// There was nothing to judge.
    Nothing {
        words: String,
    },
    Failed {
        phase: Phase,
        words: String,
    },
    Stopped {
        words: String,
    },
}

impl Outcome {
    pub fn words(&self) -> &str {
        match self {
            Outcome::Promoted { words, .. }
            | Outcome::Rejected { words, .. }
            | Outcome::WouldPromote { words }
            | Outcome::Done { words }
            | Outcome::WouldChange { words }
            | Outcome::Nothing { words }
            | Outcome::Failed { words, .. }
            | Outcome::Stopped { words } => words,
        }
    }
}

/// A phase that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub phase: Phase,
    pub words: String,
}

/// A run under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub order: Order,
    pub phase: Phase,
    /// Lives that began this phase.
    pub attempt: u32,
    pub steps: Vec<Step>,
    pub candidate: Option<Candidate>,
    /// Why the gate let the candidate through.
    pub verdict: Option<String>,
    pub outcome: Option<Outcome>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Begin(Order),
    /// The phase is done; the next may begin.
    Passed {
        words: String,
    },
    /// There is a candidate.
    Trained {
        candidate: Candidate,
        words: String,
    },
    /// The gate judged.
    Judged {
        promote: bool,
        rule: Rule,
        words: String,
    },
    /// The candidate is a generation, and the pointer names it.
    Promoted {
        generation: u64,
    },
    /// A dry run: the phase would change something, and left it as it is.
    WouldChange {
        words: String,
    },
    /// The phase found nothing to do, and the run ends.
    Nothing {
        words: String,
    },
    Failed {
        words: String,
    },
    /// The owner wants no night now.
    Stop {
        words: String,
    },
    /// A new life read this run from disk.
    Restarted,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Run(Phase),
    Rest,
}

/// The next state and what to do in it. An event that the state does not await changes nothing.
pub fn phase(run: Option<Run>, event: Event) -> (Option<Run>, Action) {
    let Some(run) = run else {
        return match event {
            Event::Begin(order) => begin(order),
            _ => (None, Action::Rest),
        };
    };
    let at = run.phase;
    match (at, event) {
        (_, Event::Begin(_)) => (Some(run), Action::Rest),
        (_, Event::Restarted) => restarted(run),
        (Phase::Report, Event::Passed { .. } | Event::Failed { .. }) => (None, Action::Rest),
        (Phase::Report, _) => (Some(run), Action::Rest),
        (Phase::Promote, Event::Promoted { generation }) => {
            let words = run.verdict.clone().unwrap_or_default();
            end(run, Outcome::Promoted { generation, words })
        }
        // Short, and safe to finish: a stop must not leave it half done.
        (Phase::Promote, Event::Stop { .. }) => (Some(run), Action::Rest),
        (Phase::Gate, Event::Judged { promote, rule, words }) => judged(run, promote, rule, words),
        (Phase::Train, Event::Trained { candidate, words }) => next(Run { candidate: Some(candidate), ..run }, words),
        (Phase::Score | Phase::Select, Event::Passed { words }) => next(run, words),
        (Phase::Reinforce, Event::Passed { words }) => {
            next(Run { outcome: Some(Outcome::Done { words: words.clone() }), ..run }, words)
        }
        (
            Phase::Weigh,
            Event::Passed { words } | Event::Nothing { words } | Event::Failed { words } | Event::Stop { words },
        ) => next(run, words),
        (Phase::Optimise | Phase::Reindex, Event::Passed { words }) => end(run, Outcome::Done { words }),
        (Phase::Reinforce | Phase::Optimise | Phase::Reindex, Event::WouldChange { words }) => {
            end(run, Outcome::WouldChange { words })
        }
        (_, Event::Nothing { words }) => end(run, Outcome::Nothing { words }),
        (_, Event::Stop { words }) => end(run, Outcome::Stopped { words }),
        (_, Event::Failed { words }) => end(run, Outcome::Failed { phase: at, words }),
        (
            _,
            Event::Passed { .. }
            | Event::WouldChange { .. }
            | Event::Trained { .. }
            | Event::Judged { .. }
            | Event::Promoted { .. },
        ) => (Some(run), Action::Rest),
    }
}

fn begin(order: Order) -> (Option<Run>, Action) {
    // A candidate that was made elsewhere needs no data.
    let phases = order.job.phases();
    let first = if order.given.is_some() { Phase::Train } else { phases[0] };
    let run = Run { order, phase: first, attempt: 1, steps: Vec::new(), candidate: None, verdict: None, outcome: None };
    (Some(run), Action::Run(first))
}

fn restarted(mut run: Run) -> (Option<Run>, Action) {
    run.attempt += 1;
    if run.attempt <= ATTEMPTS_MAX {
        let action = Action::Run(run.phase);
        return (Some(run), action);
    }
    if run.phase == Phase::Report {
        return (None, Action::Rest);
    }
    let (phase, words) = (run.phase, format!("interrupted {ATTEMPTS_MAX} times in the phase `{}`", run.phase.name()));
    if phase == Phase::Weigh {
        return next(run, words);
    }
    end(run, Outcome::Failed { phase, words })
}

fn judged(run: Run, promote: bool, rule: Rule, words: String) -> (Option<Run>, Action) {
    match (promote, run.order.dry_run) {
        (true, false) => next(Run { verdict: Some(words.clone()), ..run }, words),
        (true, true) => end(run, Outcome::WouldPromote { words }),
        (false, _) => end(run, Outcome::Rejected { rule, words }),
    }
}

/// To the phase after this one.
fn next(mut run: Run, words: String) -> (Option<Run>, Action) {
    let phases = run.order.job.phases();
    let at = phases.iter().position(|p| *p == run.phase).unwrap_or(phases.len());
    let following = phases.get(at + 1).copied().unwrap_or(Phase::Report);
    run.steps.push(Step { phase: run.phase, words });
    (run.phase, run.attempt) = (following, 1);
    (Some(run), Action::Run(following))
}

/// To the report.
fn end(mut run: Run, outcome: Outcome) -> (Option<Run>, Action) {
    run.steps.push(Step { phase: run.phase, words: outcome.words().to_owned() });
    run.outcome = Some(outcome);
    (run.phase, run.attempt) = (Phase::Report, 1);
    (Some(run), Action::Run(Phase::Report))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(job: Job) -> Order {
        Order { id: "2026-01-01".into(), job, started_ms: 1, dry_run: false, given: None, seed: 1 }
    }

    fn candidate() -> Candidate {
        Candidate { path: "candidate.gguf".into(), sha256: "00".into() }
    }

    fn words() -> String {
        "w".to_owned()
    }

    /// Runs events in order and returns the last state and every action.
    fn play(events: impl IntoIterator<Item = Event>) -> (Option<Run>, Vec<Action>) {
        let mut run = None;
        let mut actions = Vec::new();
        for event in events {
            let (after, action) = phase(run.take(), event);
            run = after;
            actions.push(action);
        }
        (run, actions)
    }

    fn night(judged: bool) -> Vec<Event> {
        vec![
            Event::Begin(order(Job::Train)),
            Event::Passed { words: words() },
            Event::Passed { words: words() },
            Event::Trained { candidate: candidate(), words: words() },
            Event::Judged { promote: judged, rule: Rule::All, words: words() },
        ]
    }

    #[test]
    fn a_good_night_goes_through_every_phase() {
        let mut events = night(true);
        events.push(Event::Promoted { generation: 4 });
        events.push(Event::Passed { words: words() });
        let (run, actions) = play(events);
        let phases = [Phase::Score, Phase::Select, Phase::Train, Phase::Gate, Phase::Promote, Phase::Report];
        let wanted: Vec<_> = phases.into_iter().map(Action::Run).chain([Action::Rest]).collect();
        assert_eq!((run, actions), (None, wanted));
    }

    #[test]
    fn a_rejected_candidate_and_a_dry_run_never_reach_promotion() {
        let (run, actions) = play(night(false));
        assert_eq!(actions.last(), Some(&Action::Run(Phase::Report)));
        assert!(matches!(run.unwrap().outcome, Some(Outcome::Rejected { .. })));
        let mut events = night(true);
        events[0] = Event::Begin(Order { dry_run: true, ..order(Job::Train) });
        let (run, _) = play(events);
        assert!(matches!(run.unwrap().outcome, Some(Outcome::WouldPromote { .. })));
    }

    #[test]
    fn a_given_candidate_starts_at_training() {
        let given = Order { given: Some("a.gguf".into()), ..order(Job::Train) };
        assert_eq!(phase(None, Event::Begin(given)).1, Action::Run(Phase::Train));
    }

    #[test]
    fn tables_that_are_written_stay_done_whatever_comes_of_weighing_them() {
        let written = || [Event::Begin(order(Job::EngramWrite)), Event::Passed { words: "written".to_owned() }];
        let (run, actions) = play(written());
        assert_eq!(actions.last(), Some(&Action::Run(Phase::Weigh)));
        let given_up = vec![Event::Restarted; ATTEMPTS_MAX as usize];
        for ends in [
            vec![Event::Passed { words: words() }],
            vec![Event::Nothing { words: words() }],
            vec![Event::Failed { words: words() }],
            vec![Event::Stop { words: words() }],
            given_up,
        ] {
            let (after, actions) = play_from(run.clone(), ends.clone());
            let after = after.unwrap();
            assert_eq!(actions.last(), Some(&Action::Run(Phase::Report)), "{ends:?}");
            assert_eq!(after.outcome, Some(Outcome::Done { words: "written".to_owned() }), "{ends:?}");
            assert_eq!(after.steps.iter().map(|s| s.phase).collect::<Vec<_>>(), [Phase::Reinforce, Phase::Weigh]);
        }
        // Nothing written, nothing to weigh.
        let nothing = [Event::Begin(order(Job::EngramWrite)), Event::Nothing { words: words() }];
        assert_eq!(play(nothing).1.last(), Some(&Action::Run(Phase::Report)));
    }

    #[test]
    fn a_life_that_ended_resumes_its_phase_until_it_gives_up() {
        for cut in 1..=night(true).len() {
            let (run, actions) = play(night(true).into_iter().take(cut));
            let resumed = phase(run.clone(), Event::Restarted);
            assert_eq!(resumed.1, *actions.last().unwrap(), "the same phase again");
            let (given_up, _) = play_from(run, [Event::Restarted, Event::Restarted, Event::Restarted]);
            assert!(matches!(given_up.unwrap().outcome, Some(Outcome::Failed { .. })));
        }
    }

    fn play_from(run: Option<Run>, events: impl IntoIterator<Item = Event>) -> (Option<Run>, Vec<Action>) {
        let mut run = run;
        let mut actions = Vec::new();
        for event in events {
            let (after, action) = phase(run.take(), event);
            run = after;
            actions.push(action);
        }
        (run, actions)
    }

    #[test]
    fn nothing_promotes_but_a_judgement_and_nothing_begins_twice() {
        let every = || {
            vec![
                Event::Begin(order(Job::Reindex)),
                Event::Passed { words: words() },
                Event::Trained { candidate: candidate(), words: words() },
                Event::Judged { promote: true, rule: Rule::All, words: words() },
                Event::Promoted { generation: 9 },
                Event::WouldChange { words: words() },
                Event::Nothing { words: words() },
                Event::Failed { words: words() },
                Event::Stop { words: words() },
                Event::Restarted,
            ]
        };
        // Every event in every state: promotion follows a judgement alone, an outcome `promoted` a promotion.
        for cut in 1..=night(true).len() {
            let (run, _) = play(night(true).into_iter().take(cut));
            let at = run.clone().unwrap().phase;
            for event in every() {
                let (after, action) = phase(run.clone(), event.clone());
                if action == Action::Run(Phase::Promote) {
                    let may = at == Phase::Promote || (at == Phase::Gate && matches!(event, Event::Judged { .. }));
                    assert!(may, "{at:?} {event:?}");
                }
                let outcome = after.as_ref().and_then(|r| r.outcome.clone());
                if matches!(outcome, Some(Outcome::Promoted { .. })) {
                    assert!(at == Phase::Promote && matches!(event, Event::Promoted { .. }));
                }
                if matches!(event, Event::Begin(_)) {
                    assert_eq!((after, action), (run.clone(), Action::Rest));
                }
            }
        }
        assert_eq!(phase(None, Event::Promoted { generation: 1 }), (None, Action::Rest));
    }

    #[test]
    fn other_jobs_have_one_phase_and_a_report() {
        for (job, at) in [
            (Job::EngramWrite, Phase::Reinforce),
            (Job::OptimisePrompts, Phase::Optimise),
            (Job::Reindex, Phase::Reindex),
        ] {
            let begun = phase(None, Event::Begin(order(job)));
            assert_eq!(begun.1, Action::Run(at));
            let (run, action) = phase(begun.0.clone(), Event::Nothing { words: words() });
            assert_eq!(action, Action::Run(Phase::Report));
            assert!(matches!(run.unwrap().outcome, Some(Outcome::Nothing { .. })));
            let (run, action) = phase(begun.0, Event::WouldChange { words: words() });
            assert_eq!(action, Action::Run(Phase::Report), "a dry run weighs nothing");
            assert_eq!(run.unwrap().outcome, Some(Outcome::WouldChange { words: words() }));
        }
    }
}
