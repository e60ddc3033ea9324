//! `chimere bench --forms`: the cost of holding an answer to its form. Each schema of a file is compiled as the engine does it
//! for a request. Each of its documents is followed token by token: take a token, forbid what cannot come next. That stands
//! between two tokens of every reply with a form. Nothing here asks the model.

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use chimere::engine::grammar::{Compiler, Grammar};
use chimere::engine::protocol::Channel;
use chimere::engine::tokenizer::Bpe;
use chimere::engine::vocab::Vocab;
use chimere::gguf::Gguf;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    schema: Value,
    /// Values that satisfy it, their properties in its order.
    documents: Vec<Value>,
}

/// Times of one kind, microseconds.
#[derive(Debug, Serialize)]
pub struct Times {
    pub n: usize,
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Times {
    fn of(mut us: Vec<f64>) -> Times {
        us.sort_by(f64::total_cmp);
        let at = |share: f64| us.get(((share * us.len() as f64).ceil() as usize).max(1) - 1).copied().unwrap_or(0.0);
        let mean = us.iter().sum::<f64>() / us.len().max(1) as f64;
        Times { n: us.len(), mean, p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    /// Tokens that each mask decides on.
    pub vocab: usize,
    pub forms: usize,
    pub documents: usize,
    /// A token taken and the next ones masked.
    pub mask_us: Times,
    /// A form compiled in the engine, with the first mask.
    pub compile_us: Times,
    /// The same as a request waits for it: examined in a process apart first.
    pub examined_us: Times,
    /// The same form asked for again.
    pub kept_us: Times,
}

pub fn run(model: &Path, file: &Path, done: &mut dyn FnMut()) -> anyhow::Result<Report> {
    let vocab: Arc<dyn Vocab> = Arc::new(Bpe::from_gguf(&Gguf::open(model)?)?);
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut plain = Compiler::new(Arc::clone(&vocab), None);
    let mut examining = Compiler::new(Arc::clone(&vocab), Some(chimere::program::own()?));
    // What is made once in the life of an engine is made here.
    plain.constraint(&Grammar::Json(serde_json::json!({"type": "null"})))?;
    examining.constraint(&Grammar::Json(serde_json::json!({"type": "null"})))?;
    let (mut compiled, mut examined, mut kept, mut masks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut forms, mut documents) = (0, 0);
    let mut row = vec![0.0; vocab.len()];
    let words: Vec<Vec<u8>> = (0..vocab.len() as u32).map(|id| vocab.bytes(id)).collect();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{}:{}", file.display(), at + 1);
        let form: Form = serde_json::from_str(line).with_context(place)?;
        let grammar = Grammar::Json(form.schema);
        let timed = |compiler: &mut Compiler| -> anyhow::Result<f64> {
            let began = Instant::now();
            compiler.constraint(&grammar).with_context(place)?;
            Ok(us(began))
        };
        compiled.push(timed(&mut plain)?);
        kept.push(timed(&mut plain)?);
        examined.push(timed(&mut examining)?);
        for document in form.documents {
            let text = document.to_string();
            let (mut at, mut ids) = (0, VecDeque::new());
            let mut constraint = plain.constraint(&grammar)?;
            constraint.mask(Channel::Answer, &mut row)?;
            while at < text.len() {
                if ids.is_empty()
                    && let Some(rest) = text.get(at..)
                {
                    let mut encoded = Vec::new();
                    vocab.encode(rest, false, &mut encoded)?;
                    ids.extend(encoded);
                }
                let own = ids.pop_front().filter(|&id| row[id as usize] != f32::NEG_INFINITY);
                let Some(id) = own.or_else(|| longest(&words, &row, &text.as_bytes()[at..])) else {
                    bail!("{}: the form does not allow {document} from byte {at} on", place());
                };
                if own.is_none() {
                    ids.clear();
                }
                at += words[id as usize].len();
                row.fill(0.0);
                let began = Instant::now();
                constraint.took(Channel::Answer, id, false)?;
                if constraint.complete() {
                    break;
                }
                constraint.mask(Channel::Answer, &mut row)?;
                masks.push(us(began));
            }
            let ends = constraint.complete() || vocab.ends().iter().any(|&end| row[end as usize] == 0.0);
            ensure!(ends && at == text.len(), "{}: {document} is no whole answer", place());
            row.fill(0.0);
            documents += 1;
        }
        forms += 1;
        done();
    }
    ensure!(!masks.is_empty(), "{} has no form with a document", file.display());
    Ok(Report {
        model: model.display().to_string(),
        vocab: vocab.len(),
        forms,
        documents,
        mask_us: Times::of(masks),
        compile_us: Times::of(compiled),
        examined_us: Times::of(examined),
        kept_us: Times::of(kept),
    })
}

/// The longest allowed token that the text goes on with: where a form leaves one way on, its own cutting of the text counts.
fn longest(words: &[Vec<u8>], row: &[f32], text: &[u8]) -> Option<u32> {
    let allowed = (0u32..).zip(words).zip(row).filter(|(_, logit)| **logit != f32::NEG_INFINITY);
    let fits = allowed.map(|(word, _)| word).filter(|(_, word)| !word.is_empty() && text.starts_with(word));
    fits.max_by_key(|(_, word)| word.len()).map(|(id, _)| id)
}

fn us(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "model      {} ({} tokens)", self.model, self.vocab)?;
        writeln!(f, "forms      {} with {} documents\n", self.forms, self.documents)?;
        writeln!(f, "{:<34} {:>8} {:>10} {:>10} {:>10} {:>10}", "µs", "n", "mean", "p50", "p99", "max")?;
        for (what, times) in [
            ("a token taken, the next ones masked", &self.mask_us),
            ("a form compiled", &self.compile_us),
            ("examined apart, then compiled", &self.examined_us),
            ("a form that was kept", &self.kept_us),
        ] {
            let Times { n, mean, p50, p99, max } = times;
            writeln!(f, "{what:<35} {n:>7} {mean:>10.1} {p50:>10.1} {p99:>10.1} {max:>10.1}")?;
        }
        Ok(())
    }
}
