//! The report as text for a terminal: three sentences and what the owner should look at, then all figures.

use std::fmt::Write;

use super::{Change, EngramReport, Rate, Report, TrendPoint, headline};
use crate::plural::counted;

fn percent(rate: Rate) -> String {
    format!("{:.1} % [{:.1}, {:.1}]", 100.0 * rate.rate, 100.0 * rate.low, 100.0 * rate.high)
}

fn points(change: Change) -> String {
    format!("{:+.2} [{:+.2}, {:+.2}]", 100.0 * change.difference, 100.0 * change.low, 100.0 * change.high)
}

impl Report {
    /// Everything.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write_first(&mut out).and_then(|()| self.write_figures(&mut out));
        out
    }

    /// What an owner in a hurry reads, and how to see the rest.
    pub fn render_brief(&self) -> String {
        let mut out = String::new();
        let _ = self.write_first(&mut out);
        out + &format!("Details: chimere night report {} --details\n", self.order.id)
    }

    /// The headline, the three sentences, and whatever must not be missed.
    fn write_first(&self, out: &mut String) -> std::fmt::Result {
        let dry = if self.order.dry_run { ", dry run" } else { "" };
        let (job, headline) = (self.order.job.name(), headline(self.order.job, &self.outcome));
        writeln!(out, "Run {} ({job}{dry}): {headline}\n", self.order.id)?;
        for sentence in self.summary().sentences() {
            writeln!(out, "  {sentence}")?;
        }
        writeln!(out)?;
        for flag in self.selection.iter().flat_map(|selection| &selection.flags) {
            writeln!(out, "LOOK   {flag}")?;
        }
        for notice in &self.notices {
            writeln!(out, "Note: {notice}")?;
        }
        writeln!(out, "Undo: {}", self.undo)
    }

    fn write_figures(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\nOutcome: {}", self.outcome.words())?;
        if let Some(verdict) = &self.verdict {
            writeln!(out, "\nRules")?;
            for finding in &verdict.findings {
                writeln!(out, "  {} {}", if finding.passed { "pass" } else { "FAIL" }, finding.words)?;
            }
        }
        for (name, exam) in [("Golden", &self.golden), ("Slice", &self.slice)] {
            let Some(exam) = exam else { continue };
            let (champion, candidate) = (percent(exam.champion), percent(exam.candidate));
            writeln!(out, "\n{name} exam, n = {}", exam.n)?;
            writeln!(out, "  champion {champion}, candidate {candidate}, points {}", points(exam.difference))?;
        }
        if !self.domains.is_empty() {
            writeln!(out, "\nDomains (golden; points with 95 % interval, exact p of a drop)")?;
        }
        for d in &self.domains {
            writeln!(out, "  {:<12} n = {:<5} {:<28} p = {:.3}", d.domain, d.n, points(d.change), d.drop_p)?;
        }
        if !self.trend.is_empty() {
            writeln!(out, "\nGolden trend (candidate; | is the line it had to stay above)")?;
        }
        for point in self.trend.iter().rev().take(14).rev() {
            let mark = if point.promoted { "promoted" } else { "" };
            writeln!(out, "  {:<14} {} {} {mark}", point.run, bar(point), percent(point.candidate))?;
        }
        self.write_rest(out)
    }

    fn write_rest(&self, out: &mut String) -> std::fmt::Result {
        if !self.worst.is_empty() {
            writeln!(out, "\nWorst regressions")?;
        }
        for a in &self.worst {
            writeln!(out, "  {} ({}): {}", a.pair.id, a.pair.domain, one_line(&a.question))?;
            writeln!(out, "    champion  {}", one_line(&a.champion))?;
            writeln!(out, "    candidate {}", one_line(&a.candidate))?;
        }
        if let Some(selection) = &self.selection {
            writeln!(out, "\nData")?;
            for (stage, n) in selection.funnel() {
                writeln!(out, "  {n:>6} {stage}")?;
            }
            for p in &selection.principals {
                writeln!(out, "  {}", p.words())?;
            }
        }
        if let Some(training) = &self.training {
            writeln!(out, "\nTraining: {}", training.words())?;
            writeln!(out, "  loss {}", sparkline(&training.curve))?;
        }
        if let Some(engram) = &self.engram {
            write_engram(out, engram)?;
        }
        if let Some(optimised) = &self.optimised {
            optimised.render(out)?;
        }
        writeln!(out, "\nPhases")?;
        for step in &self.steps {
            writeln!(out, "  {:<10} {}", step.phase.name(), step.words)?;
        }
        if !self.lineage.is_empty() {
            let line: Vec<_> = self.lineage.iter().map(|a| format!("{} ({})", a.generation, a.run)).collect();
            writeln!(out, "\nLineage: {} ← base model", line.join(" ← "))?;
        }
        Ok(())
    }
}

fn write_engram(out: &mut String, engram: &EngramReport) -> std::fmt::Result {
    writeln!(out, "\nEngram: {}", engram.words())?;
    writeln!(out, "  {} of 90 days, {} learned from", counted(engram.turns, "turn", "turns"), engram.admitted)?;
    for (why, n) in &engram.left_out {
        writeln!(out, "  {n:>7} {why}")?;
    }
    let used = &engram.used;
    if used.replies > 0 {
        let rate = 100.0 * used.hit_rate();
        writeln!(
            out,
            "  last day: {} learned tables, which knew the context of {} of {} answer tokens ({rate:.1} %), \
             were mixed in at {} and changed {}",
            counted(used.replies, "reply had", "replies had"),
            used.hits,
            used.tokens,
            used.mixed,
            used.changed
        )?;
    }
    let Some(effect) = &engram.effect else { return Ok(()) };
    let (with, without) = effect.rates();
    writeln!(out, "  slice exam with and without the learned tables: {}", effect.words())?;
    writeln!(
        out,
        "    with {}, without {}, points {} with 95 % interval",
        percent(with),
        percent(without),
        points(effect.difference)
    )?;
    writeln!(
        out,
        "    hit rate {:.1} %: the tables knew the context of {} of {} answer tokens, were mixed in at {} and changed {}",
        100.0 * effect.hit_rate,
        effect.hits,
        effect.tokens,
        effect.mixed,
        effect.changed
    )
}

/// The loss curve in a line: its first and last value, and blocks between the lowest and the highest.
fn sparkline(curve: &[(usize, f64)]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return "(no steps)".to_owned() };
    let low = curve.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = curve.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    let block = |value: f64| BLOCKS[(((value - low) / (high - low).max(1e-9)) * 7.0).round().clamp(0.0, 7.0) as usize];
    let line: String = curve.iter().map(|p| block(p.1)).collect();
    format!("{:.3} {line} {:.3}", first.1, last.1)
}

fn one_line(text: &str) -> String {
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let visible: String = text.chars().filter(|c| !c.is_control()).take(160).collect();
    if visible.is_empty() { "(nothing)".to_owned() } else { visible }
}

/// 40 columns from 0 to 100 %: the interval as `=`, the rate as `o`, the gate's line as `|`.
fn bar(point: &TrendPoint) -> String {
    let at = |rate: f64| ((rate * 39.0).round().clamp(0.0, 39.0)) as usize;
    let mut columns = vec!['.'; 40];
    columns[at(point.candidate.low)..=at(point.candidate.high)].fill('=');
    columns[at(point.candidate.rate)] = 'o';
    columns[at(point.gate)] = '|';
    columns.into_iter().collect()
}
