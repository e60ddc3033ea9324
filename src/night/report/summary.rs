//! The report in three plain sentences: what was tried, what happened, what that means. A reader who knows no
//! statistics needs no more; the figures behind them fold out.

use super::{ExamResult, Report};
use crate::engram::nightly::Counts;
use crate::night::gate::Rule;
use crate::night::phase::{Job, Outcome};
use crate::optimise::paper::RouteOutcome;
use crate::plural::counted;

/// What the report says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub tried: String,
    pub happened: String,
    pub means: String,
}

impl Summary {
    pub fn sentences(&self) -> [&str; 3] {
        [&self.tried, &self.happened, &self.means]
    }
}

impl Report {
    pub fn summary(&self) -> Summary {
        Summary { tried: self.tried(), happened: self.happened(), means: self.means() }
    }

    fn tried(&self) -> String {
        match self.order.job {
            Job::Train if self.order.given.is_some() => {
                "The adapter file that you named was examined as a candidate.".to_owned()
            }
            Job::Train => match (&self.training, &self.selection) {
                (Some(training), Some(selection)) => {
                    let new = of_them(selection.new, training.pairs);
                    format!("A candidate learned from {}{new}.", confirmed(training.pairs))
                }
                (Some(training), None) => format!("A candidate learned from {}.", confirmed(training.pairs)),
                (None, Some(selection)) => {
                    let found = counted(selection.pairs(), "answer", "answers");
                    let turns = counted(selection.turns, "reply", "replies");
                    format!("Of {turns} looked at, the night found {found} to learn from.")
                }
                (None, None) => "The night was to learn from confirmed answers.".to_owned(),
            },
            Job::EngramWrite => match &self.engram {
                Some(engram) => {
                    let turns = counted(engram.turns, "reply", "replies");
                    format!("The tables of verified answers were written anew from {} of {turns}.", engram.admitted)
                }
                None => "The tables of verified answers were to be written anew.".to_owned(),
            },
            Job::OptimisePrompts => {
                let tried = |outcome| outcome != RouteOutcome::LeftAlone;
                let searched =
                    |o: &crate::optimise::paper::Optimised| o.routes.iter().filter(|r| tried(r.outcome)).count();
                let routes = self.optimised.as_ref().map_or(0, searched);
                format!("Better instructions and examples were searched for on {}.", counted(routes, "route", "routes"))
            }
            Job::Reindex => "The index of verified exchanges was to be made anew.".to_owned(),
        }
    }

    fn happened(&self) -> String {
        let exam = self.exam_words();
        match &self.outcome {
            Outcome::Promoted { generation, .. } => {
                format!("{exam}It passed every rule and became generation {generation}.")
            }
            Outcome::WouldPromote { .. } => format!("{exam}It passed every rule."),
            Outcome::Rejected { rule, .. } => format!("{exam}It was refused, because {}.", reason(*rule)),
            Outcome::Done { words } => self.done(words),
            Outcome::Nothing { words } => format!("There was nothing to do: {}.", clause(words)),
            Outcome::Failed { phase, words } => format!("The phase `{}` failed: {}.", phase.name(), clause(words)),
            Outcome::Stopped { words } => format!("The run was stopped before its end: {}.", clause(words)),
        }
    }

    fn done(&self, words: &str) -> String {
        match (self.order.job, &self.engram, &self.optimised) {
            (Job::EngramWrite, Some(engram), _) => {
                let Counts { entries, shared_entries, .. } = engram.counts;
                let effect = engram.effect.as_ref().map_or(String::new(), |effect| {
                    let (with, without) = (effect.right_with, effect.right_without);
                    let items = counted(effect.items, "exam question was", "exam questions were");
                    format!(" With them {with} of {items} answered right, without them {without}.")
                });
                let entries = counted(entries, "entry", "entries");
                format!("They hold {entries}, {shared_entries} of them for everybody.{effect}")
            }
            (Job::OptimisePrompts, _, Some(found)) => match [found.changed(), found.would_change()].concat().as_slice()
            {
                [] => format!("No prompt was better on the held-out exam ({}).", clause(&found.words())),
                routes => format!("A better prompt was found for {}.", routes.join(", ")),
            },
            (Job::Reindex, ..) => format!("It was made: {}.", clause(words)),
            _ => format!("The run is done: {}.", clause(words)),
        }
    }

    fn means(&self) -> String {
        let kept = "Nothing changed: the model of yesterday keeps answering";
        match &self.outcome {
            Outcome::Promoted { .. } => "It answers a few conversations first, and all of them if nothing goes wrong; \
                                         `chimere rollback` takes it back at once."
                .to_owned(),
            Outcome::WouldPromote { .. } => {
                format!("{kept}, because this was a dry run; a real run would let the candidate in.")
            }
            Outcome::Rejected { .. } if self.training.is_some() => {
                format!("{kept}, and what the candidate learned from may be tried again.")
            }
            Outcome::Done { .. } => match (self.order.job, &self.optimised) {
                (Job::EngramWrite, _) => "Answers use the new tables from now on.".to_owned(),
                (Job::OptimisePrompts, Some(found)) if !found.changed().is_empty() => {
                    "New conversations use it from now on, and `chimere pipeline reset` brings the old one back."
                        .to_owned()
                }
                (Job::OptimisePrompts, Some(found)) if !found.would_change().is_empty() => {
                    format!("Nothing changed, because this was a dry run. A real run would {}.", found.wishes())
                }
                (Job::OptimisePrompts, _) => "Nothing changed: the prompts of yesterday stay.".to_owned(),
                _ => "Replies find the newest exchanges from now on.".to_owned(),
            },
            Outcome::Failed { .. } => format!("{kept}, and the next run begins afresh."),
            Outcome::Rejected { .. } | Outcome::Nothing { .. } | Outcome::Stopped { .. } => format!("{kept}."),
        }
    }

    /// How candidate and champion did on all questions that they were asked.
    fn exam_words(&self) -> String {
        let exams: Vec<&ExamResult> = self.golden.iter().chain(&self.slice).collect();
        let right = |rate: fn(&ExamResult) -> f64| -> usize {
            exams.iter().map(|exam| (rate(exam) * exam.n as f64).round() as usize).sum()
        };
        let n: usize = exams.iter().map(|exam| exam.n).sum();
        if n == 0 {
            return String::new();
        }
        let (candidate, champion) = (right(|exam| exam.candidate.rate), right(|exam| exam.champion.rate));
        let asked = counted(n, "exam question", "exam questions");
        format!("Of {asked} the candidate answered {candidate} right, the present model {champion}. ")
    }
}

fn of_them(new: usize, all: usize) -> String {
    if new < all { format!(", {new} of them new") } else { String::new() }
}

fn confirmed(answers: usize) -> String {
    counted(answers, "confirmed answer", "confirmed answers")
}

/// Words of a run without a full stop at their end.
fn clause(words: &str) -> &str {
    words.trim().trim_end_matches('.')
}

/// Why a rule refuses, for somebody who does not know the rules.
fn reason(rule: Rule) -> &'static str {
    match rule {
        Rule::File => "its file cannot be used",
        Rule::UpdateNorm => "it changes the model's weights more than is allowed",
        Rule::Divergence => "it strays too far from the model that it began from",
        Rule::Overall => "it may be worse than the present model",
        Rule::Domains => "it became worse in one field",
        Rule::Improvement => "so small a gain may be luck",
        Rule::Speed => "it answers too slowly",
        Rule::All => "the gate said no",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::night::phase::Phase;
    use crate::night::report::tests::report;
    use crate::optimise::paper::{FORMAT, Optimised, RouteResult};
    use crate::turn::{Message, Role};

    fn said(report: &Report) -> [String; 3] {
        report.summary().sentences().map(str::to_owned)
    }

    #[test]
    fn a_refused_night_is_told_in_three_sentences() {
        assert_eq!(
            said(&report()),
            [
                "A candidate learned from 4 confirmed answers.",
                "Of 80 exam questions the candidate answered 60 right, the present model 60. It was refused, because it \
                 became worse in one field.",
                "Nothing changed: the model of yesterday keeps answering, and what the candidate learned from may be \
                 tried again.",
            ]
        );
    }

    #[test]
    fn every_outcome_of_every_job_has_its_sentences() {
        let words = || "the judge did not answer.".to_owned();
        let outcomes = [
            (Outcome::Promoted { generation: 7, words: words() }, "became generation 7", "`chimere rollback`"),
            (Outcome::WouldPromote { words: words() }, "passed every rule", "dry run"),
            (Outcome::Rejected { rule: Rule::Speed, words: words() }, "too slowly", "Nothing changed"),
            (Outcome::Nothing { words: words() }, "nothing to do: the judge did not answer.", "Nothing changed"),
            (Outcome::Failed { phase: Phase::Train, words: words() }, "The phase `train` failed", "begins afresh"),
            (Outcome::Stopped { words: words() }, "stopped before its end", "Nothing changed"),
            (Outcome::Done { words: words() }, "did not answer.", "from now on"),
        ];
        for (outcome, happened, means) in outcomes {
            for job in Job::ALL {
                let mut report = Report { outcome: outcome.clone(), engram: None, ..report() };
                report.order.job = job;
                let [tried, second, third] = said(&report);
                for sentence in [&tried, &second, &third] {
                    assert!(sentence.ends_with('.') && !sentence.contains(".."), "{job:?}: {sentence}");
                    for part in sentence.split(". ") {
                        assert!(part.split_whitespace().count() <= 25, "{job:?}: {part}");
                    }
                }
                if job == Job::Train {
                    assert!(second.contains(happened) && third.contains(means), "{second} {third}");
                }
            }
        }
    }

    /// A dry run of the search says what a real one would do.
    #[test]
    fn a_dry_run_of_the_prompts_says_what_it_would_change() {
        let route = |name: &str, outcome| RouteResult {
            route: name.to_owned(),
            outcome,
            system: Some("Give only the number.".to_owned()),
            messages: vec![Message::new(Role::User, "q"), Message::new(Role::Assistant, "a")],
            ..RouteResult::default()
        };
        let of = |routes: Vec<RouteResult>| {
            let optimised = Some(Optimised { format: FORMAT, alpha: 0.05, routes });
            let mut report = Report { outcome: Outcome::Done { words: String::new() }, optimised, ..report() };
            report.order.job = Job::OptimisePrompts;
            said(&report)
        };
        let [_, happened, means] = of(vec![route("code", RouteOutcome::WouldChange)]);
        assert_eq!(happened, "A better prompt was found for code.");
        let real = "A real run would tell `code` \"Give only the number.\" with 1 example.";
        assert_eq!(means, format!("Nothing changed, because this was a dry run. {real}"));
        let [_, happened, means] = of(vec![route("kine", RouteOutcome::NothingBetter)]);
        assert!(happened.contains("No prompt was better") && happened.contains("kine: nothing better"), "{happened}");
        assert_eq!(means, "Nothing changed: the prompts of yesterday stay.");
    }

    #[test]
    fn a_named_file_and_the_tables_are_told_as_such() {
        let mut given = report();
        given.order.given = Some("a.gguf".into());
        assert!(given.summary().tried.contains("file that you named"));
        let mut tables = Report { outcome: Outcome::Done { words: String::new() }, ..report() };
        tables.order.job = Job::EngramWrite;
        let [tried, happened, _] = said(&tables);
        assert_eq!(tried, "The tables of verified answers were written anew from 0 of 0 replies.");
        assert!(
            happened.ends_with("With them 30 of 40 exam questions were answered right, without them 28."),
            "{happened}"
        );
    }
}
