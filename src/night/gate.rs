//! The gate: may this candidate replace the champion? A pure judgement over paired answers to frozen exams and
//! a few measurements. Every rule is checked and put into words; the first that fails decides, and what was not
//! measured fails.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stats::{Paired, Z_ONE_SIDED_95, holm, items_needed};

/// How one item went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    pub id: String,
    pub domain: String,
    /// The champion was right.
    pub champion: bool,
    /// The candidate was right.
    pub candidate: bool,
}

/// Counts a set of pairs.
pub fn count(pairs: &[Pair]) -> Paired {
    Paired::of(pairs.iter().map(|p| (p.champion, p.candidate)))
}

/// Counts by domain, in the order of their names.
pub fn by_domain(pairs: &[Pair]) -> BTreeMap<String, Paired> {
    let mut domains: BTreeMap<&str, Vec<(bool, bool)>> = BTreeMap::new();
    for pair in pairs {
        domains.entry(&pair.domain).or_default().push((pair.champion, pair.candidate));
    }
    domains.into_iter().map(|(name, pairs)| (name.to_owned(), Paired::of(pairs))).collect()
}

/// What the gate asks for. Rates are shares of one, so 0.01 is a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most that the lower bound may lie under the champion.
    pub margin: f64,
    /// All domain tests together may err with this probability.
    pub domain_alpha: f64,
    /// A domain may not drop by more than this, where it has enough items.
    pub domain_drop_max: f64,
    pub domain_items_min: usize,
    /// Mean KL divergence from the base model, nats a token.
    pub kl_max: f64,
    /// Largest root mean square entry of a weight update.
    pub update_rms_max: f64,
    /// Tokens a second, beside a champion that has an adapter too.
    pub speed_min: f64,
    /// The same beside the shipped weights: what any adapter costs is paid once, by the first. Asks for no more than
    /// `speed_min` does.
    pub speed_first_min: f64,
    /// How likely chance alone may make a candidate that is worth nothing look as good on both exams.
    pub gain_alpha: f64,
    /// Fewest items of an exam that may decide.
    pub items_min: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            margin: 0.01,
            domain_alpha: 0.05,
            domain_drop_max: 0.03,
            domain_items_min: 600,
            kl_max: 0.5,
            update_rms_max: 0.02,
            speed_min: 0.9,
            speed_first_min: 0.5,
            gain_alpha: 0.02,
            items_min: 200,
        }
    }
}

/// Tokens a second of the candidate over those of the champion, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    /// Rounds measured in turn.
    pub rounds: usize,
}

/// What was measured of a candidate. Training reads neither exam, so both together judge it: twice the items tell a
/// true gain of a point from luck where one exam cannot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    pub golden: Vec<Pair>,
    pub slice: Vec<Pair>,
    /// Why the adapter file cannot be used at all.
    pub file_fault: Option<String>,
    /// Mean KL divergence from the base model, nats a token.
    pub kl: Option<f64>,
    /// Largest root mean square entry of a weight update.
    pub update_rms: Option<f64>,
    pub speed: Option<Speed>,
    /// The champion is the shipped weights without an adapter.
    pub first: bool,
}

/// The rules, in the order in which they decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    File,
    UpdateNorm,
    Divergence,
    Overall,
    Domains,
    Improvement,
    Speed,
    /// None failed.
    All,
}

/// What one rule found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub rule: Rule,
    pub passed: bool,
    pub words: String,
}

/// The judgement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub promote: bool,
    /// The first rule that failed, or `all`.
    pub decided_by: Rule,
    /// What that rule said.
    pub words: String,
    pub findings: Vec<Finding>,
}

/// Judges a candidate.
pub fn judge(evidence: &Evidence, limits: &Limits) -> Verdict {
    let all: Vec<Pair> = evidence.golden.iter().chain(&evidence.slice).cloned().collect();
    let findings = vec![
        file(evidence),
        at_most(
            Rule::UpdateNorm,
            "the largest weight update (root mean square)",
            evidence.update_rms,
            limits.update_rms_max,
        ),
        at_most(Rule::Divergence, "the mean divergence from the base model (nats a token)", evidence.kl, limits.kl_max),
        overall(evidence, &all, limits),
        domains(&all, limits),
        improvement(evidence, &all, limits),
        speed(evidence, limits),
    ];
    match findings.iter().find(|f| !f.passed) {
        Some(failed) => Verdict {
            promote: false,
            decided_by: failed.rule,
            words: format!("rejected: {}", failed.words),
            findings: findings.clone(),
        },
        None => {
            let words = format!("promoted: {}; {}", findings[3].words, findings[5].words);
            Verdict { promote: true, decided_by: Rule::All, words, findings }
        }
    }
}

/// Whether more items can still save the candidate: after a first part of the exam its upper bound (99.9 %,
/// one-sided) already lies under the margin. Stopping early can only reject.
pub fn hopeless(golden: &[Pair], limits: &Limits) -> bool {
    const Z_999: f64 = 3.090_232;
    golden.len() >= limits.items_min && count(golden).interval(Z_999).1 < -limits.margin
}

/// Whether the slice need not be asked: on the golden exam the candidate won no more than it lost, and that luck alone
/// could do as well is not allowed. Stopping early can only reject.
pub fn futile(golden: &[Pair], limits: &Limits) -> bool {
    let counted = count(golden);
    limits.gain_alpha < 1.0 && counted.wins <= counted.losses
}

fn finding(rule: Rule, passed: bool, words: String) -> Finding {
    Finding { rule, passed, words }
}

fn file(evidence: &Evidence) -> Finding {
    match &evidence.file_fault {
        Some(fault) => finding(Rule::File, false, format!("the adapter file cannot be used: {fault}")),
        None => finding(Rule::File, true, "the adapter file is whole and made for this model".to_owned()),
    }
}

fn at_most(rule: Rule, what: &str, value: Option<f64>, limit: f64) -> Finding {
    match value {
        None => finding(rule, false, format!("{what} was not measured")),
        Some(value) if value <= limit => finding(rule, true, format!("{what} is {value:.4}, at most {limit}")),
        Some(value) => finding(rule, false, format!("{what} is {value:.4}, more than {limit}")),
    }
}

fn points(share: f64) -> String {
    format!("{:+.2}", 100.0 * share)
}

fn overall(evidence: &Evidence, all: &[Pair], limits: &Limits) -> Finding {
    let counted = count(all);
    let (low, _) = counted.interval(Z_ONE_SIDED_95);
    let enough = evidence.golden.len() >= limits.items_min;
    let passed = enough && low > -limits.margin;
    let needed = items_needed(counted.discordance(), limits.margin);
    let mut words = format!(
        "both exams {} points, 95 % lower bound {} against a margin of {} (n = {} + {}, {:.1} % differ)",
        points(counted.difference()),
        points(low),
        points(-limits.margin),
        evidence.golden.len(),
        evidence.slice.len(),
        100.0 * counted.discordance(),
    );
    if !enough {
        words += &format!("; at least {} items of the golden exam must be answered", limits.items_min);
    } else if !passed && counted.n < needed {
        words += &format!("; an equal candidate would need about {needed} items");
    }
    finding(Rule::Overall, passed, words)
}

fn domains(all: &[Pair], limits: &Limits) -> Finding {
    let counted = by_domain(all);
    let p: Vec<f64> = counted.values().map(Paired::loss_p).collect();
    let significant = holm(&p, limits.domain_alpha);
    let mut faults = Vec::new();
    for (((name, domain), p), significant) in counted.iter().zip(&p).zip(significant) {
        let change = format!("{name} {} points (n = {})", points(domain.difference()), domain.n);
        if significant {
            faults.push(format!("{change}, a significant drop (p = {p:.4})"));
        } else if domain.n >= limits.domain_items_min && domain.difference() < -limits.domain_drop_max {
            faults.push(format!("{change}, a drop of more than {} points", 100.0 * limits.domain_drop_max));
        }
    }
    if faults.is_empty() {
        let words = format!("none of {} domains dropped", counted.len());
        return finding(Rule::Domains, !counted.is_empty(), words);
    }
    finding(Rule::Domains, false, faults.join("; "))
}

fn improvement(evidence: &Evidence, all: &[Pair], limits: &Limits) -> Finding {
    let counted = count(all);
    let p = counted.gain_p();
    let enough = evidence.slice.len() >= limits.items_min;
    let passed = enough && p <= limits.gain_alpha;
    let mut words = format!(
        "{} items won and {} lost; chance alone does as well with p = {p:.3}, at most {}",
        counted.wins, counted.losses, limits.gain_alpha,
    );
    if evidence.slice.is_empty() && futile(all, limits) {
        words += ": no improvement is shown, and the slice was not asked";
    } else if !enough {
        words += &format!("; at least {} items of the slice must be answered", limits.items_min);
    } else if !passed {
        words += ": no improvement is shown";
    }
    finding(Rule::Improvement, passed, words)
}

fn speed(evidence: &Evidence, limits: &Limits) -> Finding {
    let Some(speed) = evidence.speed else {
        return finding(Rule::Speed, false, "tokens a second were not measured".to_owned());
    };
    let (limit, why) = if evidence.first {
        (limits.speed_first_min.min(limits.speed_min), "the first adapter: what any adapter costs is paid once")
    } else {
        (limits.speed_min, "the champion has an adapter too")
    };
    let passed = speed.high >= limit;
    let words = format!(
        "{:.3} × the champion's tokens a second [{:.3}, {:.3}], {} rounds, {} the limit ({why}, limit {limit})",
        speed.ratio,
        speed.low,
        speed.high,
        speed.rounds,
        if passed { "not shown to be under" } else { "under" },
    );
    finding(Rule::Speed, passed, words)
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
