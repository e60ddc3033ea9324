//! The guess: what a text reads like where no rule speaks. A linear model over its words and their beginnings, fitted to
//! labelled examples in five languages when the first set of pipelines is loaded.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, OnceLock};

use flate2::read::GzDecoder;
use serde::Serialize;

use super::fold::{ends_of, fold};
use crate::optimise::random::Random;

/// The examples of this source tree (`pipelines/routing/README.md`).
const SHIPPED: &[u8] = include_bytes!("../../pipelines/routing/examples.gz");
/// Unpacked examples, bytes.
const EXAMPLES_BYTES_MAX: u64 = 4 << 20;
const ROUTES_MAX: usize = 64;
/// Of a text, its beginning and its end: a question stands before or behind what was pasted.
const HEAD_BYTES: usize = 2 << 10;
const TAIL_BYTES: usize = 2 << 10;
/// Beginnings of words, characters: the forms of a word share them.
const BEGINNINGS: std::ops::RangeInclusive<usize> = 4..=8;
/// Passes over the examples, and the step of each (Adagrad).
const PASSES: usize = 10;
const STEP: f32 = 0.2;
/// A route that is less likely is none.
pub const LIKELY_MIN: f32 = 0.4;
/// Two routes this near each other are unsure.
const NEAR: f32 = 0.2;

#[derive(Debug, thiserror::Error)]
pub enum ExamplesError {
    #[error("the examples of the routes cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("the examples of the routes, line {line}: {what}")]
    Line { line: usize, what: &'static str },
    #[error("the examples of the routes hold none")]
    Empty,
}

/// How much a text reads like one route: all of them together are 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Likeness {
    pub route: String,
    pub probability: f32,
}

/// The first, where it is likely enough.
pub fn likely(likenesses: &[Likeness]) -> Option<&Likeness> {
    likenesses.first().filter(|first| first.probability >= LIKELY_MIN)
}

/// The routes that are nearly as likely as the first, with it; none where there is only one.
pub fn near(likenesses: &[Likeness]) -> Vec<&str> {
    let Some(first) = likenesses.first() else { return Vec::new() };
    let near = likenesses.iter().filter(|one| first.probability - one.probability <= NEAR);
    let names: Vec<&str> = near.map(|one| one.route.as_str()).collect();
    if names.len() > 1 { names } else { Vec::new() }
}

pub struct Guess {
    routes: Vec<String>,
    /// Where the weights of a mark begin, one for each route.
    known: HashMap<u32, usize>,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

/// What a text is read by: its words and their beginnings that examples have.
struct Marks {
    /// Where the weights of each begin.
    known: Vec<usize>,
    /// What one of them weighs: a long text says more than a short one, but not as many times as it is longer. Unknown marks
    /// make all less sure.
    share: f32,
}

struct Example {
    route: usize,
    weight: f32,
    marks: Vec<u32>,
}

impl Guess {
    /// That of the shipped examples, fitted once in a process.
    pub fn shipped() -> Result<Arc<Guess>, ExamplesError> {
        static FITTED: OnceLock<Arc<Guess>> = OnceLock::new();
        if let Some(guess) = FITTED.get() {
            return Ok(Arc::clone(guess));
        }
        let guess = Arc::new(Guess::of(GzDecoder::new(SHIPPED))?);
        Ok(Arc::clone(FITTED.get_or_init(|| guess)))
    }

    /// Fits examples: lines under headers `# ROUTE LANGUAGE WEIGHT`.
    pub fn of(examples: impl Read) -> Result<Guess, ExamplesError> {
        let (routes, examples) = read(examples)?;
        let mut known = HashMap::new();
        for mark in examples.iter().flat_map(|example| &example.marks) {
            let next = known.len() * routes.len();
            known.entry(*mark).or_insert(next);
        }
        let (weights, bias) = (vec![0.0; known.len() * routes.len()], vec![0.0; routes.len()]);
        let mut guess = Guess { routes, known, weights, bias };
        guess.fit(&examples);
        Ok(guess)
    }

    /// What a text reads like, the likeliest first; nothing where no example has a word of it.
    pub fn read(&self, text: &str) -> Vec<Likeness> {
        let marks = self.marks(&marks(text));
        if marks.known.is_empty() {
            return Vec::new();
        }
        let likely = self.likely(&marks);
        let of = |(route, probability): (&String, f32)| Likeness { route: route.clone(), probability };
        let mut all: Vec<Likeness> = self.routes.iter().zip(likely).map(of).collect();
        all.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        all
    }

    fn marks(&self, marks: &[u32]) -> Marks {
        let known = marks.iter().filter_map(|mark| self.known.get(mark).copied()).collect();
        Marks { known, share: 1.0 / (marks.len().max(1) as f32).sqrt().sqrt() }
    }

    /// The probability of each route.
    fn likely(&self, marks: &Marks) -> Vec<f32> {
        let mut sums = vec![0.0; self.routes.len()];
        for &at in &marks.known {
            let weights = &self.weights[at..at + sums.len()];
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
        }
        sums.iter_mut().zip(&self.bias).for_each(|(sum, bias)| *sum = *sum * marks.share + bias);
        let most = sums.iter().copied().fold(f32::MIN, f32::max);
        sums.iter_mut().for_each(|sum| *sum = (*sum - most).exp());
        let total: f32 = sums.iter().sum();
        sums.iter_mut().for_each(|sum| *sum /= total);
        sums
    }

    fn fit(&mut self, examples: &[Example]) {
        let (mut steps, mut bias_steps) = (vec![1e-6; self.weights.len()], vec![1e-6; self.bias.len()]);
        let read: Vec<Marks> = examples.iter().map(|example| self.marks(&example.marks)).collect();
        let mut order: Vec<usize> = (0..examples.len()).collect();
        let mut random = Random::new(0);
        for _ in 0..PASSES {
            (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at + 1)));
            for (example, marks) in order.iter().map(|&at| (&examples[at], &read[at])) {
                let mut slopes = self.likely(marks);
                slopes[example.route] -= 1.0;
                for (route, slope) in slopes.into_iter().map(|slope| slope * example.weight).enumerate() {
                    for at in marks.known.iter().map(|at| at + route) {
                        descend(&mut self.weights[at], &mut steps[at], slope * marks.share);
                    }
                    descend(&mut self.bias[route], &mut bias_steps[route], slope);
                }
            }
        }
    }
}

fn descend(weight: &mut f32, steps: &mut f32, slope: f32) {
    *steps += slope * slope;
    *weight -= STEP * slope / steps.sqrt();
}

/// The marks of a text: its words and their beginnings, each once.
fn marks(text: &str) -> Vec<u32> {
    let mut folded = String::new();
    ends_of(text, HEAD_BYTES, TAIL_BYTES).iter().for_each(|part| {
        fold(part, &mut folded);
        folded.push(' ');
    });
    let mut marks = BTreeSet::new();
    for word in words(&folded) {
        marks.insert(mark('w', word));
        let ends: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
        for end in BEGINNINGS.filter_map(|characters| ends.get(characters)) {
            marks.insert(mark('p', &word[..*end]));
        }
    }
    marks.into_iter().collect()
}

/// Runs of letters and digits, with the `+` and `#` of names of languages.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mark = |c: char| matches!(c, '+' | '#');
    text.split(move |c: char| !c.is_alphanumeric() && !mark(c)).filter_map(move |run| {
        let word = run.trim_start_matches(mark);
        // A number alone says nothing of a subject.
        word.contains(char::is_alphabetic).then_some(word)
    })
}

/// FNV-1a.
fn mark(kind: char, word: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    word.bytes().fold(step(2_166_136_261, kind as u8), step)
}

fn read(examples: impl Read) -> Result<(Vec<String>, Vec<Example>), ExamplesError> {
    let (mut routes, mut read): (Vec<String>, Vec<Example>) = (Vec::new(), Vec::new());
    let mut header = None;
    for (at, line) in BufReader::new(examples.take(EXAMPLES_BYTES_MAX)).lines().enumerate() {
        let line = line?;
        let wrong = |what| ExamplesError::Line { line: at + 1, what };
        if let Some(fields) = line.strip_prefix("# ") {
            let mut fields = fields.split(' ');
            let (Some(route), Some(_language), Some(weight)) = (fields.next(), fields.next(), fields.next()) else {
                return Err(wrong("a header is `# ROUTE LANGUAGE WEIGHT`"));
            };
            let weight: f32 = weight.parse().map_err(|_| wrong("its weight is no number"))?;
            if !(weight > 0.0 && weight <= 1.0) {
                return Err(wrong("a weight is above 0 and at most 1"));
            }
            if !routes.iter().any(|known| known == route) {
                routes.push(route.to_owned());
            }
            if routes.len() > ROUTES_MAX {
                return Err(wrong("there are too many routes"));
            }
            header = routes.iter().position(|known| known == route).map(|route| (route, weight));
            continue;
        }
        let (route, weight) = header.ok_or_else(|| wrong("stands before the first header"))?;
        let marks = marks(&line);
        if !marks.is_empty() {
            read.push(Example { route, weight, marks });
        }
    }
    if read.is_empty() { Err(ExamplesError::Empty) } else { Ok((routes, read)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLES: &str = "# code en 1\nWhy does my loop never end?\nSort a list\n# kine en 1\nMy knee hurts\nmuscles of the leg\n\
                            # kine de 0.5\nMuskelkater\n# default en 1\nTell me a joke\nWhat is the capital of Peru?\n";

    fn guess() -> Guess {
        Guess::of(EXAMPLES.as_bytes()).unwrap()
    }

    #[test]
    fn a_text_reads_like_the_examples_whose_words_or_beginnings_it_has() {
        let guess = guess();
        for (text, route) in [
            ("the loops of a list", "code"),
            ("a KNEE", "kine"),
            ("Muskelkrämpfe", "kine"),
            ("jokes and a capital", "default"),
        ] {
            let all = guess.read(text);
            assert_eq!(likely(&all).map(|first| first.route.as_str()), Some(route), "{text}: {all:?}");
            assert!((all.iter().map(|one| one.probability).sum::<f32>() - 1.0).abs() < 1e-5);
        }
        assert!(["", "?! …", "xyzzy"].iter().all(|text| guess.read(text).is_empty()));
        assert_eq!(guess.read("a knee"), Guess::of(EXAMPLES.as_bytes()).unwrap().read("a knee"), "the same each time");
    }

    #[test]
    fn a_route_is_likely_or_near_or_neither() {
        let of = |probabilities: &[f32]| -> Vec<Likeness> {
            let one = |(at, &probability): (usize, &f32)| Likeness { route: at.to_string(), probability };
            probabilities.iter().enumerate().map(one).collect()
        };
        for (all, first, names) in [
            (of(&[0.9, 0.1]), Some("0"), vec![]),
            (of(&[0.5, 0.4, 0.1]), Some("0"), vec!["0", "1"]),
            (of(&[0.35, 0.33, 0.32]), None, vec!["0", "1", "2"]),
            (of(&[]), None, vec![]),
        ] {
            assert_eq!((likely(&all).map(|one| one.route.as_str()), near(&all)), (first, names), "{all:?}");
        }
    }

    #[test]
    fn of_a_long_text_the_beginning_and_the_end_are_read() {
        let long = ". ".repeat(HEAD_BYTES);
        assert_eq!(marks(&format!("knee {long}")), marks(&format!("{long} knee")));
        assert_ne!(marks(&format!("knee {long}")), marks(&long));
        assert_eq!(marks(&format!("{long} knee {long}")), marks(&long));
    }

    #[test]
    fn examples_that_cannot_be_read_are_named() {
        for (text, says) in [
            ("", "hold none"),
            ("a\n", "line 1: stands before"),
            ("# code en\n", "line 1: a header is"),
            ("# code en x\n", "no number"),
            ("# code en 2\n", "at most 1"),
            ("# code en NaN\n", "at most 1"),
            ("# code en 1\n?\n", "hold none"),
        ] {
            let error = Guess::of(text.as_bytes()).err().unwrap().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_shipped_examples_fit_and_do_so_once() {
        let guess = Guess::shipped().unwrap();
        assert!(Arc::ptr_eq(&guess, &Guess::shipped().unwrap()));
        let mut routes = guess.routes.clone();
        routes.sort_unstable();
        assert_eq!(routes, ["code", "cyber", "default", "kine", "research"]);
    }
}
