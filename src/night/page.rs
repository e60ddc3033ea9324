//! The report as one HTML page: three sentences, then figures that fold out. No script, nothing loaded, everything
//! escaped.

use std::fmt::Write;

use super::report::{Change, EngramReport, Rate, Report, TrendPoint, headline};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;\
padding:.3rem .5rem;text-align:left;vertical-align:top}.strip{padding:1rem;border-left:.5rem solid #b00;\
background:#f6f6f6}.strip.good{border-color:#080}.fail{color:#b00}pre{white-space:pre-wrap;margin:0}\
svg{width:100%;height:auto}details{border-top:1px solid #ddd;padding:.5rem 0}summary{cursor:pointer;\
font-weight:600}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}\
.strip{background:#242424}td,th,details{border-color:#444}}";
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
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1><div class='strip{}'><b>{}</b>",
        if good { " good" } else { "" },
        escaped(&headline(report.order.job, &report.outcome)),
        title = escaped(&title),
    )?;
    for sentence in report.summary().sentences() {
        write!(out, "<p>{}", escaped(sentence))?;
    }
    write!(out, "</div>")?;
    for (n, flag) in report.selection.iter().flat_map(|selection| &selection.flags).enumerate() {
        let title = if n == 0 { "<h2>Look at this</h2>" } else { "" };
        write!(out, "{title}<p class=fail>{}", escaped(flag))?;
    }
    for notice in &report.notices {
        write!(out, "<p>{}", escaped(notice))?;
    }
    write!(out, "<h2>Undo</h2><pre>{}</pre><h2>Details</h2>", escaped(&report.undo))?;
    section(out, "Rules", |out| write_rules(out, report))?;
    section(out, "Golden trend", |out| write_trend(out, &report.trend))?;
    section(out, "Exams", |out| write_exams(out, report))?;
    section(out, "Domains", |out| write_domains(out, report))?;
    section(out, "Worst regressions", |out| write_worst(out, report))?;
    section(out, "Data", |out| write_data(out, report))?;
    if let Some(training) = &report.training {
        section(out, "Training", |out| {
            write!(out, "<p>{}", escaped(&training.words()))?;
            write_curve(out, &training.curve)
        })?;
    }
    if let Some(engram) = &report.engram {
        section(out, "Engram", |out| write_engram(out, engram))?;
    }
    if let Some(optimised) = &report.optimised {
        let mut text = String::new();
        optimised.render(&mut text)?;
        section(out, "Prompts", |out| write!(out, "<pre>{}</pre>", escaped(text.trim())))?;
    }
    section(out, "Phases", |out| write_phases(out, report))?;
    section(out, "Lineage", |out| write_lineage(out, report))?;
    write!(out, "</html>")
}

/// Figures under a line that folds them out; nothing where there are none.
fn section(
    out: &mut String,
    title: &str,
    write_inside: impl FnOnce(&mut String) -> std::fmt::Result,
) -> std::fmt::Result {
    let mut inside = String::new();
    write_inside(&mut inside)?;
    if inside.is_empty() { Ok(()) } else { write!(out, "<details><summary>{title}</summary>{inside}</details>") }
}

fn write_rules(out: &mut String, report: &Report) -> std::fmt::Result {
    write!(out, "<p>{}", escaped(report.outcome.words()))?;
    let Some(verdict) = &report.verdict else { return Ok(()) };
    write!(out, "<table>")?;
    for finding in &verdict.findings {
        let mark = if finding.passed { "<td>pass" } else { "<td class=fail>FAIL" };
        write!(out, "<tr>{mark}<td>{}", escaped(&finding.words))?;
    }
    write!(out, "</table>")
}

fn write_exams(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.golden.is_none() && report.slice.is_none() {
        return Ok(());
    }
    write!(out, "<table><tr><th>exam<th>n<th>champion<th>candidate<th>points")?;
    for (name, exam) in [("golden", &report.golden), ("slice", &report.slice)] {
        let Some(exam) = exam else { continue };
        let (champion, candidate) = (percent(exam.champion), percent(exam.candidate));
        let change = points(exam.difference);
        write!(out, "<tr><td>{name}<td>{}<td>{champion}<td>{candidate}<td>{change}", exam.n)?;
    }
    write!(out, "</table>")
}

fn write_domains(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.domains.is_empty() {
        return Ok(());
    }
    write!(out, "<table><tr><th>domain<th>n<th>points<th>p of a drop")?;
    for d in &report.domains {
        write!(out, "<tr><td>{}<td>{}<td>{}<td>{:.3}", escaped(&d.domain), d.n, points(d.change), d.drop_p)?;
    }
    write!(out, "</table>")
}

fn write_worst(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.worst.is_empty() {
        return Ok(());
    }
    write!(out, "<table><tr><th>question<th>champion<th>candidate")?;
    for a in &report.worst {
        let cell = |text: &str| format!("<td><pre>{}</pre>", escaped(text));
        write!(out, "<tr>{}{}{}", cell(&a.question), cell(&a.champion), cell(&a.candidate))?;
    }
    write!(out, "</table>")
}

fn write_data(out: &mut String, report: &Report) -> std::fmt::Result {
    let Some(selection) = &report.selection else { return Ok(()) };
    write!(out, "<table>")?;
    for (stage, n) in selection.funnel() {
        write!(out, "<tr><td>{}<td>{n}", escaped(&stage))?;
    }
    for principal in &selection.principals {
        write!(out, "<tr><td colspan=2>{}", escaped(&principal.words()))?;
    }
    write!(out, "</table>")
}

fn write_phases(out: &mut String, report: &Report) -> std::fmt::Result {
    write!(out, "<table>")?;
    for step in &report.steps {
        write!(out, "<tr><td>{}<td>{}", step.phase.name(), escaped(&step.words))?;
    }
    write!(out, "</table>")
}

fn write_lineage(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.lineage.is_empty() {
        return Ok(());
    }
    write!(out, "<ol>")?;
    for a in &report.lineage {
        let (run, verdict) = (escaped(&a.run), escaped(&a.verdict));
        write!(out, "<li>generation {} from {} (run {run}): {verdict}", a.generation, a.parent)?;
    }
    write!(out, "</ol>")
}

/// The writing of the tables, their hit rates, and the slice exam with them and without.
fn write_engram(out: &mut String, engram: &EngramReport) -> std::fmt::Result {
    write!(out, "<p>{}<table>", escaped(&engram.words()))?;
    for (why, n) in &engram.left_out {
        write!(out, "<tr><td>{}<td>{n}", escaped(why))?;
    }
    let used = &engram.used;
    write!(out, "<tr><td>tokens of the last day's answers with learned tables<td>{}", used.tokens)?;
    write!(out, "<tr><td>of them with a known context<td>{} ({:.1} %)", used.hits, 100.0 * used.hit_rate())?;
    write!(out, "<tr><td>changed<td>{}", used.changed)?;
    let Some(effect) = &engram.effect else { return write!(out, "</table>") };
    let (with, without) = effect.rates();
    write!(out, "<tr><td colspan=2><b>{}</b>", escaped(&effect.words()))?;
    write!(out, "<tr><td>right with the learned tables<td>{}", percent(with))?;
    write!(out, "<tr><td>right without<td>{}", percent(without))?;
    write!(out, "<tr><td>points, 95 % interval<td>{}", points(effect.difference))?;
    let (rate, hits, tokens) = (100.0 * effect.hit_rate, effect.hits, effect.tokens);
    write!(out, "<tr><td>hit rate (answer tokens with a known context)<td>{rate:.1} % ({hits} of {tokens})")?;
    write!(out, "<tr><td>tokens changed<td>{}", effect.changed)?;
    write!(out, "<tr><td>answers changed<td>{}</table>", effect.answers_changed)
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
    write!(out, "<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img>")?;
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
            "<p>Nothing changed: the model of yesterday keeps answering",
            "<details><summary>Exams</summary>",
            "<p class=fail>look at anna",
            "<svg",
            "What is &lt;",
            "&amp; more?",
            "Undo",
            "7.5 % (60 of 800)",
            "+5.00 [-1.23, +11.23]",
        ] {
            assert!(page.contains(words), "{words}");
        }
        assert_eq!(page.matches("<details>").count(), page.matches("</details>").count());
        assert!(!page[..page.find("<details>").unwrap()].contains("95"), "figures stand behind the sentences");
        assert!(!page.contains("<script") && !page.contains("http") && !page.contains("What is <"));
    }
}
