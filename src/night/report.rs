//! What the owner reads in the morning. Three plain sentences come first: what was tried, what happened, what that
//! means. Behind them stand the rules, the exams, the worst regressions, the data, the lineage and how to undo it.

mod engram;
mod summary;
mod text;

use serde::{Deserialize, Serialize};

use super::gate::{Pair, Verdict, by_domain, count};
use super::learning::{Selected, Trained};
use super::manifest::{Manifest, Metrics};
use super::phase::{Job, Order, Outcome, Step};
use super::stats::{Paired, Z_TWO_SIDED_95};
use crate::eval::golden::Score;
use crate::optimise::paper::Optimised;

pub use engram::{EngramEffect, EngramReport, EngramUsed};
pub use summary::{Summary, undo};

pub const FORMAT: u32 = 1;
/// Nights of the trend.
const TREND_MAX: usize = 60;
const WORST_MAX: usize = 10;
const TEXT_CHARS_MAX: usize = 400;

/// One item as both revisions answered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    pub pair: Pair,
    pub question: String,
    pub champion: String,
    pub candidate: String,
}

/// One exam, summed up. Rates and differences are shares of one, with 95 % intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExamResult {
    pub n: usize,
    pub champion: Rate,
    pub candidate: Rate,
    pub difference: Change,
    /// Share of the items on which the two differ.
    pub discordance: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    pub rate: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub difference: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainResult {
    pub domain: String,
    pub n: usize,
    pub champion: f64,
    pub candidate: f64,
    pub change: Change,
    /// Exact one-sided p of a drop.
    pub drop_p: f64,
}

/// One night of the golden trend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrendPoint {
    pub run: String,
    /// What serves after that night.
    pub generation: u64,
    pub promoted: bool,
    pub n: usize,
    pub champion: Rate,
    pub candidate: Rate,
    /// The candidate's lower bound had to lie above this.
    pub gate: f64,
}

/// A generation in the line of the served one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ancestor {
    pub generation: u64,
    pub parent: u64,
    pub run: String,
    pub created_ms: i64,
    pub verdict: String,
}

impl Ancestor {
    pub fn of(manifest: &Manifest) -> Ancestor {
        Ancestor {
            generation: manifest.generation,
            parent: manifest.parent,
            run: manifest.run.clone(),
            created_ms: manifest.created_ms,
            verdict: manifest.verdict.clone(),
        }
    }
}

/// What `report.json` holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub format: u32,
    pub order: Order,
    pub ended_ms: i64,
    pub outcome: Outcome,
    pub steps: Vec<Step>,
    pub verdict: Option<Verdict>,
    /// What the gate measured.
    #[serde(default)]
    pub metrics: Option<Metrics>,
    pub golden: Option<ExamResult>,
    pub slice: Option<ExamResult>,
    pub domains: Vec<DomainResult>,
    pub trend: Vec<TrendPoint>,
    pub worst: Vec<Answered>,
    /// Where the night's data went.
    #[serde(default)]
    pub selection: Option<Selected>,
    /// What was learned from it.
    #[serde(default)]
    pub training: Option<Trained>,
    /// What the writing of the engram tables did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engram: Option<EngramReport>,
    /// What the search for prompts found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimised: Option<Optimised>,
    /// The served generation first.
    pub lineage: Vec<Ancestor>,
    pub undo: String,
    pub notices: Vec<String>,
}

fn rate(right: usize, n: usize) -> Rate {
    let score = Score::of(right, n);
    Rate { rate: score.rate, low: score.low, high: score.high }
}

fn change(paired: &Paired) -> Change {
    let (low, high) = paired.interval(Z_TWO_SIDED_95);
    Change { difference: paired.difference(), low, high }
}

/// Sums an exam up; `None` of one that was not asked.
pub fn sum_up(answered: &[Answered]) -> Option<ExamResult> {
    let pairs: Vec<Pair> = answered.iter().map(|a| a.pair.clone()).collect();
    let counted = count(&pairs);
    (counted.n > 0).then(|| ExamResult {
        n: counted.n,
        champion: rate(counted.champion, counted.n),
        candidate: rate(counted.candidate, counted.n),
        difference: change(&counted),
        discordance: counted.discordance(),
    })
}

/// The golden exam by domain.
pub fn domains(answered: &[Answered]) -> Vec<DomainResult> {
    let pairs: Vec<Pair> = answered.iter().map(|a| a.pair.clone()).collect();
    let result = |(domain, paired): (String, Paired)| DomainResult {
        domain,
        n: paired.n,
        champion: rate(paired.champion, paired.n).rate,
        candidate: rate(paired.candidate, paired.n).rate,
        change: change(&paired),
        drop_p: paired.loss_p(),
    };
    by_domain(&pairs).into_iter().map(result).collect()
}

/// Items that only the champion got right, from the domain that lost most on.
pub fn worst(answered: &[Answered]) -> Vec<Answered> {
    let results = domains(answered);
    let loss = |domain: &str| results.iter().find(|d| d.domain == domain).map_or(0.0, |d| d.change.difference);
    let mut lost: Vec<&Answered> = answered.iter().filter(|a| a.pair.champion && !a.pair.candidate).collect();
    lost.sort_by(|a, b| loss(&a.pair.domain).total_cmp(&loss(&b.pair.domain)).then_with(|| a.pair.id.cmp(&b.pair.id)));
    let short = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
    lost.into_iter()
        .take(WORST_MAX)
        .map(|a| Answered {
            pair: a.pair.clone(),
            question: short(&a.question),
            champion: short(&a.champion),
            candidate: short(&a.candidate),
        })
        .collect()
}

/// The trend with this night at its end.
pub fn trend(mut before: Vec<TrendPoint>, point: Option<TrendPoint>) -> Vec<TrendPoint> {
    before.extend(point);
    let surplus = before.len().saturating_sub(TREND_MAX);
    before.drain(..surplus);
    before
}

/// What one line says of the night.
pub fn headline(job: Job, outcome: &Outcome) -> String {
    // What other jobs wrote before they ended so stays.
    let unchanged = if job == Job::Train { ": nothing changed" } else { "" };
    match outcome {
        Outcome::Promoted { generation, .. } => format!("PROMOTED: generation {generation} comes in by its canary"),
        Outcome::Rejected { .. } => "REJECTED: nothing changed, the champion serves on".to_owned(),
        Outcome::WouldPromote { .. } => "WOULD PROMOTE: a dry run, nothing changed".to_owned(),
        Outcome::Done { .. } => "DONE".to_owned(),
        Outcome::WouldChange { .. } => "WOULD CHANGE: a dry run, nothing changed".to_owned(),
        Outcome::Nothing { .. } => "NOTHING TO DO: nothing changed".to_owned(),
        Outcome::Failed { phase, .. } => format!("FAILED in the phase `{}`{unchanged}", phase.name()),
        Outcome::Stopped { .. } => format!("STOPPED{unchanged}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::night::admission::Refusal;
    use crate::night::gate::{Finding, Rule};
    use crate::night::learning::{Mode, PrincipalPairs};
    use crate::night::phase::Phase;
    use crate::training::Method;

    fn answered(n: usize, domain: &str, champion: bool, candidate: bool) -> Answered {
        Answered {
            pair: Pair { id: format!("i{n}"), domain: domain.into(), champion, candidate },
            question: format!("What is <{n}> & more?"),
            champion: "right\n".into(),
            candidate: String::new(),
        }
    }

    fn trained() -> Trained {
        Trained {
            format: 1,
            method: Method::Gradient,
            mode: Mode::Fresh,
            from: 0,
            seed: 1,
            data_hash: "d".into(),
            sha256: "a".into(),
            pairs: 4,
            left_out: 0,
            steps: 2,
            tokens: 100,
            held_out: 1,
            loss_before: Some(2.0),
            loss_after: Some(1.0),
            compared: 0,
            margin_before: None,
            margin_after: None,
            curve: vec![(1, 2.0), (2, 1.0)],
            seconds: 3.0,
        }
    }

    pub fn report() -> Report {
        let items: Vec<_> =
            (0..40).map(|n| answered(n, if n % 2 == 0 { "chat" } else { "code" }, n % 4 != 0, n % 4 != 1)).collect();
        let exam = sum_up(&items).unwrap();
        let gate = exam.champion.rate - 0.01;
        let point = TrendPoint {
            run: "2026-01-01".into(),
            generation: 0,
            promoted: false,
            n: 40,
            champion: exam.champion,
            candidate: exam.candidate,
            gate,
        };
        let order =
            Order { id: "2026-01-01".into(), job: Job::Train, started_ms: 0, dry_run: false, given: None, seed: 1 };
        let words = "rejected: code dropped".to_owned();
        Report {
            format: FORMAT,
            order,
            ended_ms: 5,
            metrics: None,
            outcome: Outcome::Rejected { rule: Rule::Domains, words: words.clone() },
            steps: vec![Step { phase: Phase::Gate, words: words.clone() }],
            verdict: Some(Verdict {
                promote: false,
                decided_by: Rule::Domains,
                words,
                findings: vec![Finding { rule: Rule::Domains, passed: false, words: "code dropped".into() }],
            }),
            domains: domains(&items),
            worst: worst(&items),
            trend: trend(vec![point.clone(); TREND_MAX], Some(point)),
            golden: Some(exam.clone()),
            slice: Some(exam),
            selection: Some(Selected {
                turns: 9,
                refused: vec![(Refusal::NoConsent, 5)],
                new: 4,
                principals: vec![PrincipalPairs { principal: "<anna>".into(), pairs: 4, offered: 9, loss: Some(1.5) }],
                flags: vec!["look at anna".into()],
                ..Selected::default()
            }),
            training: Some(trained()),
            engram: Some(EngramReport {
                left_out: [("unscored".to_owned(), 3)].into(),
                used: EngramUsed { replies: 2, tokens: 50, hits: 10, mixed: 9, changed: 1 },
                effect: Some(EngramEffect {
                    items: 40,
                    failed: 0,
                    right_with: 30,
                    right_without: 28,
                    difference: Change { difference: 0.05, low: -0.0123, high: 0.1123 },
                    answers_changed: 3,
                    tokens: 800,
                    hits: 60,
                    hit_rate: 0.075,
                    mixed: 50,
                    changed: 4,
                }),
                ..EngramReport::default()
            }),
            optimised: None,
            lineage: Vec::new(),
            undo: "nothing to undo".into(),
            notices: vec!["a note".into()],
        }
    }

    #[test]
    fn a_report_says_everything_and_comes_back_from_json() {
        let report = report();
        assert_eq!(report.trend.len(), TREND_MAX);
        let chat = &report.domains[0];
        assert_eq!((chat.domain.as_str(), chat.n, chat.champion, chat.candidate), ("chat", 20, 0.5, 1.0));
        assert!(report.worst.iter().all(|a| a.pair.domain == "code") && report.worst.len() == 10);
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        let brief = report.render_brief();
        let text = report.render();
        assert!(text.starts_with(&brief[..brief.find("Details:").unwrap()]), "{brief}\n{text}");
        assert!(brief.contains("REJECTED") && brief.contains("Undo:") && !brief.contains("Golden exam"), "{brief}");
        assert!(brief.contains("LOOK   look at anna") && brief.contains("Note: a note"), "{brief}");
        assert!(brief.contains("chimere night report 2026-01-01 --details"), "{brief}");
        for words in [
            "REJECTED",
            "Nothing changed: the model of yesterday",
            "FAIL code dropped",
            "Golden exam, n = 40",
            "code         n = 20",
            "     5 refused: no consent",
            "     4 new pairs",
            "LOOK   look at anna",
            "loss 2.000 █▁ 1.000",
            "3 unscored",
            "10 of 50 answer tokens (20.0 %)",
            "with 75.0 % [59.8, 85.8], without 70.0 % [54.6, 81.9], points +5.00 [-1.23, +11.23]",
            "hit rate 7.5 %: the tables knew the context of 60 of 800 answer tokens",
            "Undo:",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert_eq!(sum_up(&[]), None);
    }
}
