//! The report in three plain sentences: what was tried, what happened, what that means. A reader who knows no
//! statistics needs no more; the figures behind them fold out.

use super::{ExamResult, Report};
use crate::engram::nightly::Counts;
use crate::night::gate::Rule;
use crate::night::phase::{Job, Outcome};
use crate::optimise::paper::{Optimised, RouteOutcome};
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
            Job::EngramWrite => match (&self.engram, &self.outcome) {
                (Some(engram), Outcome::Done { .. }) => {
                    let turns = counted(engram.turns, "reply", "replies");
                    format!("The tables of verified answers were written anew from {} of {turns}.", engram.admitted)
                }
                (Some(engram), _) => {
                    let turns = counted(engram.turns, "reply", "replies");
                    format!("Of {turns} looked at, {} may enter the tables of verified answers.", engram.admitted)
                }
                (None, _) => "The tables of verified answers were to be written anew.".to_owned(),
            },
            Job::OptimisePrompts => match &self.optimised {
                Some(found) => {
                    let searched = found.routes.iter().filter(|r| r.outcome != RouteOutcome::LeftAlone).count();
                    let routes = counted(searched, "route", "routes");
                    format!("Better instructions and examples were searched for on {routes}.")
                }
                None => "Better instructions and examples were to be searched for.".to_owned(),
            },
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
            Outcome::WouldChange { words } => self.would_change(words),
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
            (Job::OptimisePrompts, _, Some(found)) => match found.changed().as_slice() {
                [] => "No prompt was better on the held-out exam.".to_owned(),
                routes => better(routes),
            },
            (Job::Reindex, ..) => format!("It was made: {}.", clause(words)),
            _ => format!("The run is done: {}.", clause(words)),
        }
    }

    fn would_change(&self, words: &str) -> String {
        match (self.order.job, &self.engram, &self.optimised) {
            (Job::EngramWrite, Some(engram), _) => {
                let Counts { entries, shared_entries, entries_before, .. } = engram.counts;
                let entries = counted(entries, "entry", "entries");
                format!(
                    "They would hold {entries}, {shared_entries} of them for everybody; they hold {entries_before}."
                )
            }
            (Job::OptimisePrompts, _, Some(found)) => better(&found.would_change()),
            (Job::Reindex, ..) => format!("A new one was made for a trial: {}.", clause(words)),
            _ => format!("This was found: {}.", clause(words)),
        }
    }

    fn means(&self) -> String {
        let (job, kept) = (self.order.job, kept(self.order.job));
        let changed = self.optimised.as_ref().map(Optimised::changed).unwrap_or_default();
        match (&self.outcome, job) {
            (Outcome::Promoted { .. }, _) => "It answers a few conversations first, and all of them if nothing goes \
                                              wrong; `chimere rollback` takes it back at once."
                .to_owned(),
            (Outcome::WouldPromote { .. }, _) => {
                format!("{kept}, because this was a dry run; a real run would let the candidate in.")
            }
            (Outcome::Rejected { .. }, _) if self.training.is_some() => {
                format!("{kept}, and what the candidate learned from may be tried again.")
            }
            (Outcome::Done { .. }, Job::EngramWrite) => "Answers use the new tables from now on.".to_owned(),
            (Outcome::Done { .. }, Job::Reindex) => "Replies find the newest exchanges from now on.".to_owned(),
            (Outcome::WouldChange { .. }, _) => {
                let real = match (job, &self.optimised) {
                    (Job::OptimisePrompts, Some(found)) => found.wishes(),
                    (Job::EngramWrite, _) => "write these tables and use them".to_owned(),
                    _ => "put this into use".to_owned(),
                };
                format!("Nothing changed, because this was a dry run. A real run would {real}.")
            }
            (_, Job::OptimisePrompts) if !changed.is_empty() => {
                "New conversations use it from now on, and `chimere pipeline reset` brings the old one back.".to_owned()
            }
            // They may have ended behind a change.
            (Outcome::Failed { .. } | Outcome::Stopped { .. }, Job::EngramWrite) => {
                "The tables that are there stay in use, and the next run begins afresh.".to_owned()
            }
            (Outcome::Failed { .. } | Outcome::Stopped { .. }, Job::Reindex) => {
                "The index that is there stays in use, and the next run begins afresh.".to_owned()
            }
            (Outcome::Failed { .. }, _) => format!("{kept}, and the next run begins afresh."),
            _ => format!("{kept}."),
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

fn better(routes: &[&str]) -> String {
    format!("A better prompt was found for {}.", routes.join(", "))
}

/// What stays as it was where a job changes nothing.
fn kept(job: Job) -> &'static str {
    match job {
        Job::Train => "Nothing changed: the model of yesterday keeps answering",
        Job::EngramWrite => "Nothing changed: the tables of yesterday stay",
        Job::OptimisePrompts => "Nothing changed: the prompts of yesterday stay",
        Job::Reindex => "Nothing changed: the index of yesterday stays",
    }
}

/// How a run is taken back.
pub fn undo(job: Job, outcome: &Outcome, optimised: Option<&Optimised>) -> String {
    match (outcome, job) {
        (Outcome::Promoted { generation, .. }, _) => {
            format!("`chimere rollback` ends the canary of generation {generation} and keeps the champion")
        }
        (Outcome::Done { .. } | Outcome::Failed { .. } | Outcome::Stopped { .. }, Job::EngramWrite) => {
            "`chimere engram revoke --principal NAME` takes out what somebody said; forgotten turns go at the next writing"
                .to_owned()
        }
        (Outcome::Done { .. }, Job::Reindex) => {
            "`chimere memory forget` takes a turn out of the index at once; there is no way back to the old index".to_owned()
        }
        _ => match optimised.map(Optimised::changed).filter(|routes| !routes.is_empty()) {
            Some(routes) => {
                let commands: Vec<_> = routes.iter().map(|route| format!("`chimere pipeline reset {route}`")).collect();
                format!("{}: the shipped prompt answers again, at once", commands.join(", "))
            }
            None => "nothing was changed, there is nothing to undo".to_owned(),
        },
    }
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
    use crate::night::phase::{Order, Phase};
    use crate::night::report::tests::report;
    use crate::night::report::{EngramReport, headline};
    use crate::optimise::paper::{FORMAT, RouteResult};
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
            (Outcome::Done { words: words() }, "did not answer.", "Nothing changed"),
            (Outcome::WouldChange { words: words() }, "did not answer.", "dry run"),
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
                let model = [&second, &third].into_iter().any(|sentence| sentence.contains("the model of"));
                assert!(!model || job == Job::Train, "{job:?}: {second} {third}");
                if job == Job::Train {
                    assert!(second.contains(happened) && third.contains(means), "{second} {third}");
                }
            }
        }
    }

    /// The longest words that the jobs themselves say, and figures of a busy year.
    #[test]
    fn real_words_fit_a_breath_and_a_dry_run_claims_no_change() {
        let counts = Counts {
            principals: 123,
            records: 12_345,
            records_in: 1_234,
            records_aged: 1_234,
            records_withdrawn: 1_234,
            entries_before: 123_456,
            entries: 123_456,
            shared_entries: 12_345,
        };
        let engram = EngramReport { turns: 12_345, admitted: 1_234, counts, ..EngramReport::default() };
        let tables = engram.words();
        for (outcome, written) in [
            (Outcome::Done { words: tables.clone() }, true),
            (Outcome::WouldChange { words: tables.clone() }, false),
            (Outcome::Nothing { words: tables.clone() }, false),
            (Outcome::Stopped { words: tables.clone() }, false),
        ] {
            let mut report = Report { outcome, engram: Some(engram.clone()), ..report() };
            (report.order.job, report.order.dry_run) = (Job::EngramWrite, !written);
            let sentences = said(&report);
            let whole = sentences.join(" ");
            for part in whole.split(". ") {
                assert!(part.split_whitespace().count() <= 25, "{part}");
            }
            assert_eq!(
                whole.contains("were written anew") && whole.contains("new tables from now on"),
                written,
                "{whole}"
            );
            let headline = headline(report.order.job, &report.outcome);
            assert!(
                !matches!(report.outcome, Outcome::WouldChange { .. }) || headline.contains("dry run"),
                "{headline}"
            );
        }
        let would = Outcome::WouldChange { words: tables };
        let report = Report { outcome: would.clone(), engram: Some(engram), ..report() };
        let report = Report { order: Order { job: Job::EngramWrite, ..report.order.clone() }, ..report };
        assert_eq!(
            said(&report),
            [
                "Of 12345 replies looked at, 1234 may enter the tables of verified answers.",
                "They would hold 123456 entries, 12345 of them for everybody; they hold 123456.",
                "Nothing changed, because this was a dry run. A real run would write these tables and use them.",
            ]
        );
        assert!(undo(Job::EngramWrite, &would, None).contains("nothing was changed"));
    }

    /// An index that was built is a change, and how it is taken back is said.
    #[test]
    fn an_index_speaks_of_no_model() {
        let done = Outcome::Done { words: "12 verified exchanges in the index".to_owned() };
        assert!(undo(Job::Reindex, &done, None).starts_with("`chimere memory forget`"));
        let nothing = Outcome::Nothing { words: "12 verified exchanges in the index".to_owned() };
        let mut report = Report { outcome: nothing.clone(), ..report() };
        report.order.job = Job::Reindex;
        assert_eq!(said(&report)[2], "Nothing changed: the index of yesterday stays.");
        assert!(undo(Job::Reindex, &nothing, None).contains("nothing to undo"));
        for outcome in
            [Outcome::Failed { phase: Phase::Reindex, words: String::new() }, Outcome::Stopped { words: String::new() }]
        {
            assert!(!headline(Job::Reindex, &outcome).contains("nothing changed"));
            assert!(headline(Job::Train, &outcome).contains("nothing changed"));
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
        let of = |outcome: Outcome, routes: Vec<RouteResult>| {
            let optimised = Some(Optimised { format: FORMAT, alpha: 0.05, routes });
            let mut report = Report { outcome, optimised, ..report() };
            report.order.job = Job::OptimisePrompts;
            said(&report)
        };
        let words = String::new;
        let would = Outcome::WouldChange { words: words() };
        let [_, happened, means] = of(would, vec![route("code", RouteOutcome::WouldChange)]);
        assert_eq!(happened, "A better prompt was found for code.");
        let real = "A real run would tell `code` \"Give only the number.\" with 1 example.";
        assert_eq!(means, format!("Nothing changed, because this was a dry run. {real}"));
        let [_, happened, means] =
            of(Outcome::Done { words: words() }, vec![route("kine", RouteOutcome::NothingBetter)]);
        assert_eq!(happened, "No prompt was better on the held-out exam.");
        assert_eq!(means, "Nothing changed: the prompts of yesterday stay.");
        // Stopped behind a change: what was changed is in force.
        let [_, _, means] = of(Outcome::Stopped { words: words() }, vec![route("code", RouteOutcome::Changed)]);
        assert!(means.contains("from now on"), "{means}");
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
