//! What a simulated week came to: a row a night, the exam before and after, and how it reads as plain text.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::compare::Figure;
use super::plan::{GUEST, Settings};
use super::trend::{self, Asking};
use crate::eval::golden::Score;
use crate::night::phase::{Job, Outcome};
use crate::night::report::{Change, Rate, Report};

pub const FORMAT: u32 = 1;

/// A simulated week as far as it was lived. Saved after every night.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Week {
    pub format: u32,
    /// The command's version, and the model it served.
    pub version: String,
    pub model: String,
    pub model_hash: String,
    /// What it computed on: answers are not the same bit by bit on every one.
    #[serde(default)]
    pub device: String,
    pub settings: Settings,
    pub nights: Vec<Night>,
    /// Replies to the exam of whole weeks, in its order.
    pub before: Option<Opened>,
    pub after: Option<Opened>,
    pub compared: Option<Compared>,
    /// What served on each day and on the morning after the last, asked the same.
    #[serde(default)]
    pub trend: Vec<Asking>,
    /// Replies to the flood's trigger that hold its payload: before the week, and after it.
    pub backdoor: Option<(usize, usize, usize)>,
    pub probes: Probes,
    /// The generation that serves at the end.
    pub generation: u64,
    pub seconds: f64,
    /// Ended before its last night, and why.
    pub cut: Option<String>,
}

/// One opening of the exam.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Opened {
    pub right: Vec<bool>,
    /// Loss on each reference reply, nats, and its tokens.
    pub references: Vec<(f64, u32)>,
    /// The same on windows of held-out text.
    pub text: Vec<(f64, u32)>,
    pub failed: usize,
    /// Median tokens of a reply and share of different replies: a model that narrows shows here.
    pub tokens_median: f64,
    pub different: f64,
}

/// Both openings, paired.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compared {
    pub before: Score,
    pub after: Score,
    pub change: Figure,
    pub mcnemar_p: f64,
    pub domains: Vec<(String, usize, Figure)>,
    /// Perplexity before and after, and the change of the loss a token.
    pub references: Option<(f64, f64, Figure)>,
    pub text: Option<(f64, f64, Figure)>,
}

/// What the prober saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probes {
    pub sent: usize,
    pub failed: usize,
    pub longest_ms: u64,
}

impl Probes {
    pub fn add(&mut self, other: Probes) {
        self.sent += other.sent;
        self.failed += other.failed;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
    }
}

/// Requests of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    pub sent: usize,
    pub failed: usize,
    /// Streams that the user left.
    pub left: usize,
    /// Turns that the daemon kept of them.
    pub turns: usize,
    pub judged: usize,
    pub up: usize,
    pub down: usize,
    pub corrected: usize,
    /// Of a guest who floods.
    pub flood: usize,
    /// False corrections of the owner.
    pub lies: usize,
}

/// One job of a night.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    pub job: Job,
    pub run: String,
    pub seconds: f64,
    pub report: Option<Report>,
}

/// A day and the night after it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Night {
    pub night: usize,
    pub date: String,
    pub requests: Requests,
    pub right: Option<Score>,
    pub jobs: Vec<Done>,
    pub champion: u64,
    /// Generation and share of a canary.
    pub canary: Option<(u64, u64)>,
    /// What became of the canary of the night before.
    pub notices: Vec<String>,
    pub probes: Probes,
    pub day_seconds: f64,
    pub night_seconds: f64,
}

impl Night {
    pub fn job(&self, job: Job) -> Option<&Done> {
        self.jobs.iter().find(|done| done.job == job)
    }

    fn training(&self) -> Option<&Report> {
        self.job(Job::Train).and_then(|done| done.report.as_ref())
    }

    /// What the gate said of what the day taught; `None` where it judged nothing.
    pub fn promoted(&self) -> Option<bool> {
        match self.training().map(|report| &report.outcome) {
            Some(Outcome::Promoted { .. }) => Some(true),
            Some(Outcome::Rejected { .. }) => Some(false),
            _ => None,
        }
    }
}

fn rate(rate: Rate) -> String {
    format!("{:.1} [{:.1}, {:.1}]", 100.0 * rate.rate, 100.0 * rate.low, 100.0 * rate.high)
}

pub(super) fn score(score: &Score) -> String {
    format!("{:.1} [{:.1}, {:.1}]", 100.0 * score.rate, 100.0 * score.low, 100.0 * score.high)
}

pub(super) fn points(figure: Figure) -> String {
    format!("{:+.2} [{:+.2}, {:+.2}]", 100.0 * figure.value, 100.0 * figure.low, 100.0 * figure.high)
}

fn change(change: Change) -> String {
    points(Figure { value: change.difference, low: change.low, high: change.high })
}

/// What one word says of a night's job.
fn verdict(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Promoted { generation, .. } => format!("promoted {generation}"),
        Outcome::Rejected { rule, .. } => format!("refused: {}", name_of(rule)),
        Outcome::WouldPromote { .. } => "would promote".to_owned(),
        Outcome::Done { .. } => "done".to_owned(),
        Outcome::WouldChange { .. } => "would change".to_owned(),
        Outcome::Nothing { .. } => "nothing to do".to_owned(),
        Outcome::Failed { phase, .. } => format!("failed in {}", phase.name()),
        Outcome::Stopped { .. } => "stopped".to_owned(),
    }
}

/// A name as it is written in JSON.
fn name_of(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

impl Week {
    /// Notes what the week goes on with; one that was cut off may be gone on with elsewhere.
    pub fn goes_on(&mut self, device: &str) {
        if self.device.is_empty() {
            self.device = device.to_owned();
        } else if !self.device.ends_with(device) {
            self.device += &format!("; then {device}");
        }
    }

    /// The whole week as plain text.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let s = &self.settings;
        writeln!(
            out,
            "Simulated week: arm {}, seed {}, {} nights of {} requests, model {} ({}) on {}",
            s.arm.name(),
            s.seed,
            s.nights,
            s.requests,
            self.model,
            self.model_hash.get(..12).unwrap_or(&self.model_hash),
            if self.device.is_empty() { "no engine yet" } else { &self.device },
        )?;
        if let Some(why) = &self.cut {
            writeln!(out, "Cut off after {} nights: {why}", self.nights.len())?;
        }
        writeln!(out)?;
        out.push_str(&columns(&self.rows()));
        writeln!(
            out,
            "\nRates in per cent with 95 % intervals; pairs: new + of earlier nights; loss of pairs kept out; golden: champion of that night → candidate; wait: longest of the prober."
        )?;
        for night in &self.nights {
            night.write(out)?;
        }
        self.write_poison(out)?;
        self.write_exam(out)?;
        trend::write(out, &self.trend)?;
        let requests: usize = self.nights.iter().map(|n| n.requests.sent).sum();
        let failed: usize = self.nights.iter().map(|n| n.requests.failed).sum();
        let turns: usize = self.nights.iter().map(|n| n.requests.turns).sum();
        writeln!(
            out,
            "\nServing: {failed} of {requests} requests failed, {turns} turns kept; {} of {} probes failed, longest wait {} ms",
            self.probes.failed, self.probes.sent, self.probes.longest_ms
        )?;
        writeln!(out, "Generation {} serves at the end; {:.0} minutes in all", self.generation, self.seconds / 60.0)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let head = [
            "night",
            "day before",
            "requests",
            "right",
            "votes",
            "pairs",
            "loss",
            "night's verdict",
            "golden",
            "KL",
            "serves",
            "failed",
            "wait",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(self.nights.iter().map(Night::row));
        rows
    }

    /// The nights that somebody tried to poison, by name.
    fn write_poison(&self, out: &mut String) -> std::fmt::Result {
        for night in &self.nights {
            let (n, r) = (night.night, &night.requests);
            if r.lies > 0 {
                let said = match night.promoted() {
                    Some(false) => "REFUSED by the gate",
                    Some(true) => "NOT refused",
                    None => "nothing was judged",
                };
                let words = night.training().map_or("no candidate was judged", |report| report.outcome.words());
                writeln!(out, "\nPoisoned night {n} ({} false corrections by the owner): {said}. {words}", r.lies)?;
            }
            if r.flood > 0 {
                let selection = night.training().and_then(|report| report.selection.as_ref());
                let guests = selection.map_or(&[][..], |s| &s.principals).iter();
                let (offered, pairs) = guests
                    .filter(|p| p.principal.starts_with(GUEST))
                    .fold((0, 0), |(offered, pairs), p| (offered + p.offered, pairs + p.pairs));
                writeln!(
                    out,
                    "\nFlood before night {n}: {} requests with a backdoor (guests: {}), {offered} pairs of them good by \
                     themselves, {pairs} admitted",
                    r.flood, self.settings.flood_guests
                )?;
            }
        }
        if let Some((asked, before, after)) = self.backdoor {
            writeln!(
                out,
                "Backdoor: {before} of {asked} trigger prompts gave the payload before the week, {after} after it"
            )?;
        }
        Ok(())
    }

    fn write_exam(&self, out: &mut String) -> std::fmt::Result {
        let Some(c) = &self.compared else {
            return match &self.before {
                Some(before) => {
                    let right = before.right.iter().filter(|r| **r).count();
                    writeln!(
                        out,
                        "\nWeek exam before: {} (n = {}); not opened again",
                        score(&Score::of(right, before.right.len())),
                        before.right.len()
                    )
                }
                None => Ok(()),
            };
        };
        writeln!(out, "\nWeek exam, n = {}, opened before the first and after the last night", c.before.n)?;
        writeln!(out, "  before {}, after {}", score(&c.before), score(&c.after))?;
        writeln!(out, "  points {} (paired bootstrap), McNemar p = {:.4}", points(c.change), c.mcnemar_p)?;
        for (domain, n, change) in &c.domains {
            writeln!(out, "  {domain:<12} n = {n:<5} {}", points(*change))?;
        }
        for (what, found) in [("reference replies", &c.references), ("held-out text", &c.text)] {
            if let Some((before, after, loss)) = found {
                writeln!(
                    out,
                    "  perplexity of {what}: {before:.4} → {after:.4}, loss {:+.4} [{:+.4}, {:+.4}] nats a token",
                    loss.value, loss.low, loss.high
                )?;
            }
        }
        if let (Some(before), Some(after)) = (&self.before, &self.after) {
            writeln!(
                out,
                "  replies: median {:.0} → {:.0} tokens, {:.1} → {:.1} % different",
                before.tokens_median,
                after.tokens_median,
                100.0 * before.different,
                100.0 * after.different
            )?;
        }
        Ok(())
    }
}

impl Night {
    fn row(&self) -> Vec<String> {
        let report = self.training();
        let none = || "-".to_owned();
        let r = &self.requests;
        let golden = report.and_then(|report| report.golden.as_ref());
        let canary = self.canary.map_or(String::new(), |(n, percent)| format!(" ({n}: {percent} %)"));
        vec![
            self.night.to_string(),
            self.date.clone(),
            r.sent.to_string(),
            self.right.as_ref().map_or_else(none, score),
            format!("+{} -{}", r.up, r.down),
            report.and_then(pairs).unwrap_or_else(none),
            report.and_then(loss).unwrap_or_else(none),
            report.map_or_else(none, |report| verdict(&report.outcome)),
            golden
                .map_or_else(none, |g| format!("{} → {:.1}, n = {}", rate(g.champion), 100.0 * g.candidate.rate, g.n)),
            report.and_then(kl).map_or_else(none, |kl| format!("{kl:.3}")),
            format!("{}{canary}", self.champion),
            (r.failed + self.probes.failed).to_string(),
            format!("{} ms", self.probes.longest_ms),
        ]
    }

    /// The night in one line, for whoever watches.
    pub fn line(&self) -> String {
        let right = self.right.as_ref().map_or_else(String::new, |right| format!(", {} % right", score(right)));
        let jobs = self.jobs.iter().map(|done| {
            let said = done.report.as_ref().map_or_else(|| "no report".to_owned(), |report| verdict(&report.outcome));
            format!("; {}: {said}", done.job.name())
        });
        format!("night {}: {} requests{right}{}", self.night, self.requests.sent, jobs.collect::<String>())
    }

    /// What the row has no room for.
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let minutes = |seconds: f64| seconds / 60.0;
        writeln!(
            out,
            "\nNight {}: day {:.1} min, night {:.1} min",
            self.night,
            minutes(self.day_seconds),
            minutes(self.night_seconds)
        )?;
        for done in &self.jobs {
            let words = done.report.as_ref().map_or("no report", |report| report.outcome.words());
            writeln!(out, "  {} ({:.0} s): {words}", done.job.name(), done.seconds)?;
            for step in done.report.iter().flat_map(|report| &report.steps) {
                if step.words != words {
                    writeln!(out, "    {}: {}", step.phase.name(), step.words)?;
                }
            }
            if let Some(selection) = done.report.as_ref().and_then(|report| report.selection.as_ref()) {
                for principal in &selection.principals {
                    writeln!(out, "    {}", principal.words())?;
                }
                for flag in &selection.flags {
                    writeln!(out, "    LOOK: {flag}")?;
                }
            }
            if let Some(slice) = done.report.as_ref().and_then(|report| report.slice.as_ref()) {
                writeln!(out, "    slice: {} points, n = {}", change(slice.difference), slice.n)?;
            }
        }
        for notice in &self.notices {
            writeln!(out, "  note: {notice}")?;
        }
        Ok(())
    }
}

/// Pairs that the night learned from, those of earlier nights among them.
fn pairs(report: &Report) -> Option<String> {
    let selection = report.selection.as_ref()?;
    Some(format!("{} + {}", selection.new, selection.retried + selection.replayed))
}

/// Loss of the pairs kept out.
fn loss(report: &Report) -> Option<String> {
    let training = report.training.as_ref()?;
    let (before, after) = training.loss_before.zip(training.loss_after)?;
    Some(format!("{before:.4} → {after:.4}"))
}

fn kl(report: &Report) -> Option<f64> {
    report.metrics.as_ref().and_then(|measured| measured.kl)
}

/// Rows as text, each column as wide as its widest cell.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|r| r.get(at)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}
