//! What a search found, route by route: kept with the run, shown in its report.

use std::fmt::Write;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::night::stats::{Paired, Z_TWO_SIDED_95};
use crate::plural::counted;
use crate::store::files::{create_private_dir, read_bounded, write_durable};
use crate::turn::Message;

/// Characters of an instruction that a summary shows.
const SHOWN_CHARS: usize = 80;
const FILE: &str = "optimise.json";
const BYTES_MAX: u64 = 16 << 20;
/// Points of the search that are kept.
pub const POINTS_MAX: usize = 10;

/// Paired answers of the prompt in force and of another one. Rates and differences are shares of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    pub n: usize,
    pub current: f64,
    pub candidate: f64,
    pub difference: f64,
    /// 95 % interval of the difference.
    pub low: f64,
    pub high: f64,
    /// Exact one-sided p: how likely so many wins are by chance alone.
    pub p: f64,
}

impl Compared {
    /// Of pairs (current right, candidate right).
    pub fn of(pairs: impl IntoIterator<Item = (bool, bool)>) -> Compared {
        let paired = Paired::of(pairs);
        let (low, high) = paired.interval(Z_TWO_SIDED_95);
        let rate = |right: usize| right as f64 / paired.n.max(1) as f64;
        Compared {
            n: paired.n,
            current: rate(paired.champion),
            candidate: rate(paired.candidate),
            difference: paired.difference(),
            low,
            high,
            p: paired.gain_p(),
        }
    }

    fn words(&self) -> String {
        format!(
            "{:.1} % to {:.1} %, {:+.1} points [{:+.1}, {:+.1}], p = {:.4}, n = {}",
            100.0 * self.current,
            100.0 * self.candidate,
            100.0 * self.difference,
            100.0 * self.low,
            100.0 * self.high,
            self.p,
            self.n
        )
    }
}

/// One point of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub instruction: usize,
    pub set: usize,
    /// Mean difference from the prompt in force, on minibatches.
    pub score: f64,
    pub looks: usize,
}

/// What came of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteOutcome {
    /// The gate let a new prompt in.
    Changed,
    /// It would have, but this was a dry run.
    WouldChange,
    /// No point of the search was better on all of its items.
    NothingBetter,
    /// The best was not significantly better on the held-out exam.
    Refused,
    /// It was not searched.
    #[default]
    LeftAlone,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteResult {
    pub route: String,
    pub outcome: RouteOutcome,
    /// Why it was left alone or ended early, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub because: String,
    /// Items of the search, instructions and sets of demonstrations that it chose among, points that it looked at.
    pub items: usize,
    pub instructions: Vec<String>,
    pub sets: usize,
    pub looks: usize,
    pub best: Vec<Point>,
    /// The best on every item of the search.
    pub search: Option<Compared>,
    /// And on the held-out exam.
    pub gate: Option<Compared>,
    /// What the best says.
    pub system: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Exam items that its demonstrations come from.
    pub demonstrations: Vec<String>,
}

impl RouteResult {
    pub fn words(&self) -> String {
        let what = match self.outcome {
            RouteOutcome::Changed => "changed",
            RouteOutcome::WouldChange => "would change",
            RouteOutcome::NothingBetter => "nothing better was found",
            RouteOutcome::Refused => "refused",
            RouteOutcome::LeftAlone => "left alone",
        };
        let because = if self.because.is_empty() { String::new() } else { format!(" ({})", self.because) };
        let gate = self.gate.map(|gate| format!(": {}", gate.words())).unwrap_or_default();
        format!("{}: {what}{because}{gate}", self.route)
    }
}

/// What a run's search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimised {
    pub format: u32,
    /// A route's p had to be at most this.
    pub alpha: f64,
    pub routes: Vec<RouteResult>,
}

pub const FORMAT: u32 = 1;

impl Optimised {
    pub fn words(&self) -> String {
        let words: Vec<String> = self.routes.iter().map(RouteResult::words).collect();
        words.join("; ")
    }

    /// Routes whose prompt changed.
    pub fn changed(&self) -> Vec<&str> {
        let changed = self.routes.iter().filter(|route| route.outcome == RouteOutcome::Changed);
        changed.map(|route| route.route.as_str()).collect()
    }

    /// Routes whose prompt a real run would have changed.
    pub fn would_change(&self) -> Vec<&str> {
        let would = self.routes.iter().filter(|route| route.outcome == RouteOutcome::WouldChange);
        would.map(|route| route.route.as_str()).collect()
    }

    /// What a real run would have made of the prompts, after "would".
    pub fn wishes(&self) -> String {
        let would = self.routes.iter().filter(|route| route.outcome == RouteOutcome::WouldChange);
        let wish = |route: &RouteResult| {
            let system = route.system.as_deref().unwrap_or_default();
            let shown: String = system.chars().take(SHOWN_CHARS).collect();
            let more = if shown.len() < system.len() { "…" } else { "" };
            let examples = counted(route.messages.len() / 2, "example", "examples");
            match (system.trim().is_empty(), route.messages.is_empty()) {
                (true, _) => format!("show `{}` {examples}", route.route),
                (false, true) => format!("tell `{}` {shown:?}{more}", route.route),
                (false, false) => format!("tell `{}` {shown:?}{more} with {examples}", route.route),
            }
        };
        would.map(wish).collect::<Vec<_>>().join(". It would ")
    }

    pub fn write(&self, run_dir: &Path) -> io::Result<()> {
        create_private_dir(run_dir)?;
        write_durable(&run_dir.join(FILE), &serde_json::to_vec_pretty(self).map_err(io::Error::other)?)
    }

    pub fn read(run_dir: &Path) -> Result<Option<Optimised>, String> {
        let text = read_bounded(&run_dir.join(FILE), BYTES_MAX).map_err(|error| error.to_string())?;
        text.map(|text| serde_json::from_str(&text).map_err(|error| format!("{FILE} is damaged: {error}"))).transpose()
    }

    /// The section of the report.
    pub fn render(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\nPrompts (a change needed p of at most {:.4} on the held-out exam)", self.alpha)?;
        for route in &self.routes {
            writeln!(out, "  {}", route.words())?;
            if let Some(search) = &route.search {
                writeln!(
                    out,
                    "    search: {} looked at; the best: {}",
                    counted(route.looks, "point", "points"),
                    search.words()
                )?;
            }
            if let Some(system) = &route.system {
                writeln!(
                    out,
                    "    instruction: {system:?}, {}",
                    counted(route.messages.len() / 2, "demonstration", "demonstrations")
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_p_of_a_gain_is_the_exact_one() {
        // 12 won, 3 lost: P(X ≥ 12), X ~ B(15, ½) = 0.017578125.
        let pairs = (0..100).map(|n| (!(3..50).contains(&n), (3..15).contains(&n) || n >= 50));
        let compared = Compared::of(pairs);
        assert!((compared.p - 0.017_578_125).abs() < 1e-12 && (compared.difference - 0.09).abs() < 1e-12);
        assert!(compared.low > 0.0 && compared.high < 0.2, "{compared:?}");
    }

    #[test]
    fn a_dry_run_wishes_what_it_found_and_no_more() {
        let message = |text: &str| Message::new(crate::turn::Role::User, text);
        let route = |route: &str, system: Option<&str>, examples: usize| RouteResult {
            route: route.into(),
            outcome: RouteOutcome::WouldChange,
            system: system.map(str::to_owned),
            messages: (0..2 * examples).map(|_| message("a")).collect(),
            ..RouteResult::default()
        };
        let routes = vec![route("kine", None, 2), route("code", Some("Be exact."), 0), route("cyber", Some("Be."), 1)];
        let made = Optimised { format: FORMAT, alpha: 0.01, routes };
        assert_eq!(
            made.wishes(),
            "show `kine` 2 examples. It would tell `code` \"Be exact.\". It would tell `cyber` \"Be.\" with 1 example"
        );
    }

    #[test]
    fn a_paper_comes_back_and_says_what_was_done() {
        let dir = tempfile::tempdir().unwrap();
        let gate = Compared::of((0..200).map(|n| (n % 2 == 0, n % 4 != 1)));
        let route = RouteResult {
            route: "code".into(),
            outcome: RouteOutcome::Changed,
            gate: Some(gate),
            search: Some(gate),
            system: Some("Be exact.".into()),
            looks: 24,
            ..RouteResult::default()
        };
        let made = Optimised { format: FORMAT, alpha: 0.01, routes: vec![route, RouteResult::default()] };
        made.write(dir.path()).unwrap();
        let read = Optimised::read(dir.path()).unwrap().unwrap();
        // Numbers come back but for their last digit.
        assert_eq!((read.words(), read.routes.len(), read.changed()), (made.words(), 2, vec!["code"]));
        let mut text = String::new();
        made.render(&mut text).unwrap();
        for words in ["code: changed: 50.0 % to 75.0 %, +25.0 points", "24 points looked at", "\"Be exact.\""] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }
}
