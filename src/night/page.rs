//! The report as one HTML page: no script, nothing loaded, everything escaped.

use std::fmt::Write;

use super::report::{Change, EngramReport, Rate, Report, TrendPoint, headline};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;\
padding:.3rem .5rem;text-align:left;vertical-align:top}.strip{padding:1rem;border-left:.5rem solid #b00;\
background:#f6f6f6}.strip.good{border-color:#080}.fail{color:#b00}pre{white-space:pre-wrap;margin:0}\
svg{width:100%;height:auto}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}\
.strip{background:#242424}td,th{border-color:#444}}";
/// Size of the trend, in its own units.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 160.0;

/// Text that cannot be markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn percent(rate: Rate) -> String {
    format!("{:.1} % [{:.1}, {:.1}]", 100.0 * rate.rate, 100.0 * rate.low, 100.0 * rate.high)
}

fn points(change: Change) -> String {
    format!("{:+.2} [{:+.2}, {:+.2}]", 100.0 * change.difference, 100.0 * change.low, 100.0 * change.high)
}

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut out, report);
    out
}

fn write_page(out: &mut String, report: &Report) -> std::fmt::Result {
    let title = format!("While you slept: run {}", report.order.id);
    let good = report.verdict.as_ref().is_some_and(|v| v.promote);
    write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1><p class='strip{}'><b>{}</b><br>{}",
        if good { " good" } else { "" },
        escaped(&headline(&report.outcome)),
        escaped(report.outcome.words()),
        title = escaped(&title),
    )?;
    if let Some(verdict) = &report.verdict {
        write!(out, "<h2>Rules</h2><table>")?;
        for finding in &verdict.findings {
            let mark = if finding.passed { "<td>pass" } else { "<td class=fail>FAIL" };
            write!(out, "<tr>{mark}<td>{}", escaped(&finding.words))?;
        }
        write!(out, "</table>")?;
    }
    write_trend(out, &report.trend)?;
    write!(out, "<h2>Exams</h2><table><tr><th>exam<th>n<th>champion<th>candidate<th>points")?;
    for (name, exam) in [("golden", &report.golden), ("slice", &report.slice)] {
        let Some(exam) = exam else { continue };
        let (champion, candidate) = (percent(exam.champion), percent(exam.candidate));
        let change = points(exam.difference);
        write!(out, "<tr><td>{name}<td>{}<td>{champion}<td>{candidate}<td>{change}", exam.n)?;
    }
    write!(out, "</table><h2>Domains</h2><table><tr><th>domain<th>n<th>points<th>p of a drop")?;
    for d in &report.domains {
        write!(out, "<tr><td>{}<td>{}<td>{}<td>{:.3}", escaped(&d.domain), d.n, points(d.change), d.drop_p)?;
    }
    write!(out, "</table>")?;
    write_rest(out, report)
}

fn write_rest(out: &mut String, report: &Report) -> std::fmt::Result {
    write!(out, "<h2>Worst regressions</h2><table><tr><th>question<th>champion<th>candidate")?;
    for a in &report.worst {
        let cell = |text: &str| format!("<td><pre>{}</pre>", escaped(text));
        write!(out, "<tr>{}{}{}", cell(&a.question), cell(&a.champion), cell(&a.candidate))?;
    }
    write!(out, "</table><h2>Data</h2><table>")?;
    if let Some(selection) = &report.selection {
        for (stage, n) in selection.funnel() {
            write!(out, "<tr><td>{}<td>{n}", escaped(&stage))?;
        }
        for principal in &selection.principals {
            write!(out, "<tr><td colspan=2>{}", escaped(&principal.words()))?;
        }
        for flag in &selection.flags {
            write!(out, "<tr><td colspan=2 class=fail>{}", escaped(flag))?;
        }
    }
    if let Some(training) = &report.training {
        write!(out, "</table><h2>Training</h2><p>{}", escaped(&training.words()))?;
        write_curve(out, &training.curve)?;
        write!(out, "<table>")?;
    }
    if let Some(engram) = &report.engram {
        write_engram(out, engram)?;
    }
    if let Some(optimised) = &report.optimised {
        let mut text = String::new();
        optimised.render(&mut text)?;
        write!(out, "</table><h2>Prompts</h2><pre>{}</pre><table>", escaped(text.trim()))?;
    }
    write!(out, "</table><h2>Phases</h2><table>")?;
    for step in &report.steps {
        write!(out, "<tr><td>{}<td>{}", step.phase.name(), escaped(&step.words))?;
    }
    write!(out, "</table><h2>Lineage</h2><ol>")?;
    for a in &report.lineage {
        let (run, verdict) = (escaped(&a.run), escaped(&a.verdict));
        write!(out, "<li>generation {} from {} (run {run}): {verdict}", a.generation, a.parent)?;
    }
    write!(out, "</ol>")?;
    for notice in &report.notices {
        write!(out, "<p>{}", escaped(notice))?;
    }
    write!(out, "<h2>Undo</h2><pre>{}</pre></html>", escaped(&report.undo))
}

/// The writing of the tables, their hit rates, and the slice exam with them and without; it goes on in an open table.
fn write_engram(out: &mut String, engram: &EngramReport) -> std::fmt::Result {
    write!(out, "</table><h2>Engram</h2><p>{}<table>", escaped(&engram.words()))?;
    for (why, n) in &engram.left_out {
        write!(out, "<tr><td>{}<td>{n}", escaped(why))?;
    }
    let used = &engram.used;
    write!(out, "<tr><td>tokens of the last day's answers with learned tables<td>{}", used.tokens)?;
    write!(out, "<tr><td>of them with a known context<td>{} ({:.1} %)", used.hits, 100.0 * used.hit_rate())?;
    write!(out, "<tr><td>changed<td>{}", used.changed)?;
    let Some(effect) = &engram.effect else { return Ok(()) };
    let (with, without) = effect.rates();
    write!(out, "<tr><td colspan=2><b>{}</b>", escaped(&effect.words()))?;
    write!(out, "<tr><td>right with the learned tables<td>{}", percent(with))?;
    write!(out, "<tr><td>right without<td>{}", percent(without))?;
    write!(out, "<tr><td>points, 95 % interval<td>{}", points(effect.difference))?;
    let (rate, hits, tokens) = (100.0 * effect.hit_rate, effect.hits, effect.tokens);
    write!(out, "<tr><td>hit rate (answer tokens with a known context)<td>{rate:.1} % ({hits} of {tokens})")?;
    write!(out, "<tr><td>tokens changed<td>{}", effect.changed)?;
    write!(out, "<tr><td>answers changed<td>{}", effect.answers_changed)
}

/// The loss of the steps.
fn write_curve(out: &mut String, curve: &[(usize, f64)]) -> std::fmt::Result {
    let (Some((_, first)), Some((_, last))) = (curve.first(), curve.last()) else { return Ok(()) };
    let low = curve.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = curve.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    let at = |(n, (_, loss)): (usize, &(usize, f64))| {
        let x = (n as f64 + 0.5) * WIDTH / curve.len() as f64;
        format!("{x:.1},{:.1}", (HEIGHT - 10.0) * (high - loss) / (high - low).max(1e-9) + 5.0)
    };
    let points: Vec<String> = curve.iter().enumerate().map(at).collect();
    write!(
        out,
        "<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img><title>loss from {first:.3} to {last:.3}</title>\
         <polyline points='{}' fill=none stroke='#36c'/></svg>",
        points.join(" ")
    )
}

/// The golden trend: the candidate's 95 % band, its rate, and the line that it had to stay above.
fn write_trend(out: &mut String, trend: &[TrendPoint]) -> std::fmt::Result {
    if trend.is_empty() {
        return Ok(());
    }
    let low = trend.iter().map(|p| p.candidate.low.min(p.gate)).fold(1.0, f64::min) - 0.02;
    let high = trend.iter().map(|p| p.candidate.high.max(p.gate)).fold(0.0, f64::max) + 0.02;
    let x = |n: usize| (n as f64 + 0.5) * WIDTH / trend.len() as f64;
    let y = |rate: f64| HEIGHT * (high - rate) / (high - low).max(0.01);
    let line = |value: fn(&TrendPoint) -> f64| {
        let at = trend.iter().enumerate().map(|(n, p)| format!("{:.1},{:.1}", x(n), y(value(p))));
        at.collect::<Vec<_>>().join(" ")
    };
    write!(out, "<h2>Golden trend</h2><svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img>")?;
    for (n, p) in trend.iter().enumerate() {
        let (x, top, bottom) = (x(n), y(p.candidate.high), y(p.candidate.low));
        let (colour, words) = if p.promoted { ("#080", "promoted") } else { ("#888", "not promoted") };
        let label = format!("{}: {} ({words})", p.run, percent(p.candidate));
        write!(
            out,
            "<g stroke='{colour}'><title>{}</title><line x1='{x:.1}' x2='{x:.1}' y1='{top:.1}' y2='{bottom:.1}' \
             stroke-width=6 opacity=.4 /><circle cx='{x:.1}' cy='{:.1}' r=4 fill='{colour}'/></g>",
            escaped(&label),
            y(p.candidate.rate),
        )?;
    }
    let (rates, gates) = (line(|p| p.candidate.rate), line(|p| p.gate));
    write!(
        out,
        "<polyline points='{rates}' fill=none stroke='#36c'/>\
         <polyline points='{gates}' fill=none stroke='#b00' stroke-dasharray=4 /></svg>\
         <p>Blue: the candidates, with their 95 % interval. Red: the line they had to stay above.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::night::report::tests::report;

    #[test]
    fn the_page_holds_the_report_and_no_foreign_markup() {
        let page = page(&report());
        for words in [
            "While you slept",
            "REJECTED",
            "<svg",
            "What is &lt;",
            "&amp; more?",
            "Undo",
            "7.5 % (60 of 800)",
            "+5.00 [-1.23, +11.23]",
        ] {
            assert!(page.contains(words), "{words}");
        }
        assert!(!page.contains("<script") && !page.contains("http") && !page.contains("What is <"));
    }
}
