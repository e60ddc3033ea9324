//! Does a request take the right route? Labelled prompts, the rules with and without file types, with the guess, and with a
//! model's vote. Macro-F1 by language with bootstrap intervals, and the confusion matrix.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::gain::Gain;
use crate::intent::{Cascade, Rules};
use crate::optimise::random::Random;
use crate::pipeline::{DEFAULT_ROUTE, PipelineSet};
use crate::simulate::pool::open;
use crate::turn::{Message, Role};

/// Prompts of one file.
pub const PROMPTS_MAX: usize = 100_000;
const DRAWS: usize = 2_000;
/// Name of all languages together.
pub const ALL: &str = "all";
/// What the vote must gain on unsure prompts to be worth a generation.
pub const VOTE_GAIN_MIN: f64 = 0.05;

/// A prompt and the route that it should take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    pub id: String,
    pub language: String,
    pub route: String,
    pub text: String,
}

#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path}:{line}: {source}")]
    Prompt { path: String, line: usize, source: serde_json::Error },
    #[error("{path}:{line}: there is no route `{route}`: the routes are {known}")]
    Route { path: String, line: usize, route: String, known: String },
    #[error("{path} has no prompts")]
    Empty { path: String },
    #[error("{path} has more than {PROMPTS_MAX} prompts")]
    TooMany { path: String },
}

/// Reads labelled prompts: JSON lines, plain or gzip, every label a route of `known`.
pub fn read(path: &Path, known: &BTreeSet<&str>) -> Result<Vec<Prompt>, RoutingError> {
    let name = path.display().to_string();
    let failed = |source| RoutingError::Read { path: name.clone(), source };
    let mut prompts = Vec::new();
    for (n, line) in open(path).map_err(failed)?.lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let of_line = |source| RoutingError::Prompt { path: name.clone(), line: n + 1, source };
        let prompt: Prompt = serde_json::from_str(&line).map_err(of_line)?;
        if !known.contains(prompt.route.as_str()) {
            let known = known.iter().copied().collect::<Vec<_>>().join(", ");
            return Err(RoutingError::Route { path: name, line: n + 1, route: prompt.route, known });
        }
        prompts.push(prompt);
        if prompts.len() > PROMPTS_MAX {
            return Err(RoutingError::TooMany { path: name });
        }
    }
    if prompts.is_empty() { Err(RoutingError::Empty { path: name }) } else { Ok(prompts) }
}

/// The rules without their file types.
pub fn words_alone(rules: &[Rules]) -> Vec<Rules> {
    rules.iter().map(|rules| Rules { extensions: Vec::new(), ..rules.clone() }).collect()
}

/// What came of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Routed {
    pub id: String,
    pub language: String,
    pub route: String,
    pub taken: String,
    /// Routes between which it is unsure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsure: Vec<String>,
}

/// The route of every prompt by the rules alone.
pub fn by_rules(cascade: &Cascade, prompts: &[Prompt]) -> Vec<Routed> {
    let routed = |prompt: &Prompt| {
        let reading = cascade.read(&prompt.text);
        let taken = reading.choice().map_or_else(|| DEFAULT_ROUTE.to_owned(), |choice| choice.route);
        routed(prompt, taken, &reading.unsure())
    };
    prompts.iter().map(routed).collect()
}

/// The route of every prompt as a request takes it.
pub fn as_shipped(set: &PipelineSet, prompts: &[Prompt]) -> Vec<Routed> {
    let routed = |prompt: &Prompt| {
        let routing = set.read(&[Message::new(Role::User, &*prompt.text)]);
        routed(prompt, routing.choice.route.clone(), &routing.unsure())
    };
    prompts.iter().map(routed).collect()
}

fn routed(prompt: &Prompt, taken: String, unsure: &[&str]) -> Routed {
    Routed {
        id: prompt.id.clone(),
        language: prompt.language.clone(),
        route: prompt.route.clone(),
        taken,
        unsure: unsure.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// Macro-F1 of a group: the mean of the F1 of its labels, with the 95 % interval of `DRAWS` draws with replacement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub n: usize,
    pub right: usize,
    pub unsure: usize,
    pub macro_f1: f64,
    pub low: f64,
    pub high: f64,
}

/// Of all prompts that a way of routing was asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arm {
    /// By language, and of all.
    pub figures: BTreeMap<String, Figure>,
    pub f1: BTreeMap<String, f64>,
    /// Prompts by label, then by the route taken.
    pub confusion: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Arm {
    pub fn of(routed: &[Routed]) -> Arm {
        let mut groups: BTreeMap<&str, Vec<&Routed>> = BTreeMap::new();
        for one in routed {
            groups.entry(&one.language).or_default().push(one);
            groups.entry(ALL).or_default().push(one);
        }
        let mut confusion: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for one in routed {
            *confusion.entry(one.route.clone()).or_default().entry(one.taken.clone()).or_default() += 1;
        }
        let all: Vec<&Routed> = routed.iter().collect();
        Arm {
            figures: groups.into_iter().map(|(name, group)| (name.to_owned(), figure(&group))).collect(),
            f1: f1(&all).into_iter().map(|(route, f1)| (route.to_owned(), f1)).collect(),
            confusion,
        }
    }
}

fn figure(group: &[&Routed]) -> Figure {
    let mut random = Random::new(group.len() as u64);
    let mut draws: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn: Vec<&Routed> = group.iter().map(|_| group[random.below(group.len())]).collect();
            macro_f1(&drawn)
        })
        .collect();
    draws.sort_by(f64::total_cmp);
    Figure {
        n: group.len(),
        right: group.iter().filter(|one| one.route == one.taken).count(),
        unsure: group.iter().filter(|one| !one.unsure.is_empty()).count(),
        macro_f1: macro_f1(group),
        low: draws[DRAWS / 40],
        high: draws[DRAWS - 1 - DRAWS / 40],
    }
}

/// F1 of every label: the harmonic mean of precision and recall.
fn f1<'a>(group: &[&'a Routed]) -> BTreeMap<&'a str, f64> {
    // Of a route: taken rightly, labels, taken.
    let mut counts: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    for one in group {
        counts.entry(&one.route).or_default().1 += 1;
        counts.entry(&one.taken).or_default().2 += 1;
        if one.route == one.taken {
            counts.entry(&one.route).or_default().0 += 1;
        }
    }
    counts.retain(|_, (_, labels, _)| *labels > 0);
    let share = |(right, labels, taken): (usize, usize, usize)| 2.0 * right as f64 / (labels + taken) as f64;
    counts.into_iter().map(|(route, count)| (route, share(count))).collect()
}

fn macro_f1(group: &[&Routed]) -> f64 {
    let f1 = f1(group);
    f1.values().sum::<f64>() / f1.len().max(1) as f64
}

/// What a vote gives where the rules are unsure.
#[derive(Clone, Debug, Serialize)]
pub struct Voted {
    pub unsure: Gain,
    /// Votes that came too late or not at all: the rules' route stands.
    pub missed: usize,
    pub median_ms: f64,
    /// It gains what it must.
    pub worth: bool,
}

/// Compares the rules' routes with those of a vote, prompt by prompt.
pub fn voted(rules: &[Routed], vote: &[Routed], missed: usize, mut ms: Vec<f64>) -> Voted {
    let unsure = Gain::of(
        rules
            .iter()
            .zip(vote)
            .filter(|(rules, _)| !rules.unsure.is_empty())
            .map(|(rules, vote)| (rules.route == rules.taken, vote.route == vote.taken)),
    );
    ms.sort_by(f64::total_cmp);
    let median_ms = ms.get(ms.len() / 2).copied().unwrap_or_default();
    Voted { worth: unsure.difference >= VOTE_GAIN_MIN, unsure, missed, median_ms }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn one(language: &str, route: &str, taken: &str) -> Routed {
        let [language, route, taken] = [language, route, taken].map(str::to_owned);
        Routed { id: String::new(), language, route, taken, unsure: Vec::new() }
    }

    #[test]
    fn macro_f1_is_the_mean_of_the_labels_however_many_prompts_each_has() {
        // a: 2 right of 3, taken 2: 0.8. b: 1 of 1, taken 2: 2/3. c is no label.
        let routed = [one("en", "a", "a"), one("en", "a", "a"), one("en", "a", "b"), one("de", "b", "b")];
        let arm = Arm::of(&routed);
        let all = &arm.figures[ALL];
        assert!((all.macro_f1 - (0.8 + 2.0 / 3.0) / 2.0).abs() < 1e-12, "{all:?}");
        assert_eq!((all.n, all.right), (4, 3));
        assert!(all.low < all.macro_f1 && all.high > all.macro_f1);
        assert_eq!(arm.figures["de"].macro_f1, 1.0);
        assert_eq!((arm.figures["de"].low, arm.figures["de"].high), (1.0, 1.0));
        assert_eq!(arm.confusion["a"], BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]));
        assert_eq!(Arm::of(&routed), arm, "the draws are the same each time");
        let missed = Arm::of(&[one("en", "a", "c"), one("en", "a", "a")]);
        assert_eq!(missed.f1.len(), 1);
        assert!((missed.f1["a"] - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn file_types_can_be_left_out() {
        let rules = Rules { route: "code".to_owned(), extensions: vec!["rs".to_owned()], ..Rules::default() };
        let prompt = Prompt {
            id: "1".to_owned(),
            language: "en".to_owned(),
            route: "code".to_owned(),
            text: "see main.rs".to_owned(),
        };
        let taken =
            |rules: Vec<Rules>| by_rules(&Cascade::new(rules).unwrap(), std::slice::from_ref(&prompt)).remove(0).taken;
        assert_eq!(taken(vec![rules.clone()]), "code");
        assert_eq!(taken(words_alone(&[rules])), "default");
    }

    #[test]
    fn a_vote_counts_where_the_rules_are_unsure() {
        let unsure =
            |route: &str, taken: &str| Routed { unsure: vec!["a".into(), "b".into()], ..one("en", route, taken) };
        let rules = [unsure("a", "b"), unsure("b", "b"), one("en", "a", "b")];
        let vote = [unsure("a", "a"), unsure("b", "b"), one("en", "a", "b")];
        let gain = voted(&rules, &vote, 1, vec![3.0, 1.0, 2.0]);
        assert_eq!((gain.unsure.with.n, gain.unsure.with.passed, gain.unsure.wins), (2, 2, 1));
        assert!(gain.worth && gain.missed == 1 && gain.median_ms == 2.0);
        assert!(!voted(&rules, &rules, 0, Vec::new()).worth);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.jsonl");
        let line = r#"{"id":"1","language":"en","route":"code","text":"x"}"#;
        let known = BTreeSet::from(["code", "default"]);
        let error = |text: &str| {
            fs::write(&path, text).unwrap();
            read(&path, &known).unwrap_err().to_string()
        };
        assert!(error(&format!("{line}\n{}", line.replace("code", "kin"))).contains(":2: there is no route `kin`"));
        assert!(error(&format!("\n{line}\n{{}}")).contains("prompts.jsonl:3:"));
        assert!(error("\n").contains("has no prompts"));
        fs::write(&path, format!("{line}\n\n{line}\n")).unwrap();
        assert_eq!(read(&path, &known).unwrap().len(), 2);
    }
}
