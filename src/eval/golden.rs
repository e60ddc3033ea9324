//! Exams of exactly checkable items. Reads a set, asks an engine many items at a time, checks the replies, and
//! reports accuracy by family with 95 % intervals.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::check::Check;
use crate::engine::grammar::Grammar;
use crate::engine::process::Running;
use crate::engine::protocol::{Channel, ChatInput, Command, Event, Generate, Prompt};
use crate::simulate::pool::open;
use crate::toolcall;
use crate::turn::{EngramChoice, EngramUse, FinishReason, Message, Sampling, Thinking, ThoughtPolicy, ThoughtUse};

/// Items of one file.
pub const ITEMS_MAX: usize = 100_000;

/// One question, as `nano/golden/README.md` documents it. The reference thought and answer stay unread here.
#[derive(Clone, Debug, Deserialize)]
pub struct Item {
    pub id: String,
    pub domain: String,
    pub family: String,
    #[serde(default)]
    pub level: String,
    pub messages: Vec<Message>,
    #[serde(default)]
    pub tools: Vec<Value>,
    pub check: Check,
    #[serde(default = "tokens_default")]
    pub max_tokens: u32,
}

fn tokens_default() -> u32 {
    256
}

#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path}:{line}: {source}")]
    Item { path: String, line: usize, source: serde_json::Error },
    #[error("{path} has no items")]
    Empty { path: String },
    #[error("{path} has more than {ITEMS_MAX} items")]
    TooMany { path: String },
    #[error("the engine ended before the exam did")]
    EngineEnded,
}

/// The files that hold the exam of this name, packed as they are shipped or plain.
pub fn files(exam: &str) -> [String; 2] {
    [format!("{exam}.jsonl.gz"), format!("{exam}.jsonl")]
}

/// Reads an exam: JSON lines, plain or gzip.
pub fn read(path: &Path) -> Result<Vec<Item>, GoldenError> {
    let name = path.display().to_string();
    let failed = |source| GoldenError::Read { path: name.clone(), source };
    let mut items = Vec::new();
    for (n, line) in open(path).map_err(failed)?.lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let item = serde_json::from_str(&line);
        items.push(item.map_err(|source| GoldenError::Item { path: name.clone(), line: n + 1, source })?);
        if items.len() > ITEMS_MAX {
            return Err(GoldenError::TooMany { path: name });
        }
    }
    if items.is_empty() { Err(GoldenError::Empty { path: name }) } else { Ok(items) }
}

/// What one item got.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    pub id: String,
    pub family: String,
    pub domain: String,
    pub passed: bool,
    pub thought: String,
    pub reply: String,
    pub finish_reason: Option<FinishReason>,
    pub tokens: u32,
    /// Of them, those of the answer: all but the thought.
    pub answer_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engram: Option<EngramUse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_use: Option<ThoughtUse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Right answers of a group, with the Wilson 95 % interval of the rate.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Score {
    pub n: usize,
    pub passed: usize,
    pub rate: f64,
    pub low: f64,
    pub high: f64,
}

impl Score {
    pub fn of(passed: usize, n: usize) -> Score {
        let (z, total) = (1.959_964f64, n as f64);
        let rate = if n == 0 { 0.0 } else { passed as f64 / total };
        if n == 0 {
            return Score { n, passed, rate, low: 0.0, high: 1.0 };
        }
        let centre = rate + z * z / (2.0 * total);
        let half = z * (rate * (1.0 - rate) / total + z * z / (4.0 * total * total)).sqrt();
        let scale = 1.0 + z * z / total;
        Score { n, passed, rate, low: ((centre - half) / scale).max(0.0), high: ((centre + half) / scale).min(1.0) }
    }
}

/// How the items are asked.
#[derive(Clone, Debug, Default)]
pub struct Exam {
    pub thinking: Thinking,
    /// What the model's certainty changes in its thought.
    pub thought: Option<ThoughtPolicy>,
    /// Requests under way at once.
    pub parallel: usize,
    /// Tables mixed into the replies.
    pub engram: Option<EngramChoice>,
    /// What the reply must be; absent: any text.
    pub grammar: Option<Grammar>,
    /// 0 = greedy; otherwise the items' numbers are the seeds.
    pub temperature: f32,
}

/// Asks every item and returns the outcomes in the order of the items.
pub fn run(
    engine: &Running,
    events: &Receiver<Vec<Event>>,
    items: &[Item],
    exam: &Exam,
    progress: &mut dyn FnMut(bool),
) -> Result<Vec<Outcome>, GoldenError> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; items.len()];
    let mut open: HashMap<u64, Outcome> = HashMap::new();
    let mut next = 0;
    while next < items.len() || !open.is_empty() {
        while next < items.len() && open.len() < exam.parallel.max(1) {
            let request = Command::Generate(Box::new(ask(next as u64, &items[next], exam)));
            engine.commands.send((request, Instant::now())).map_err(|_| GoldenError::EngineEnded)?;
            open.insert(next as u64, Outcome::blank(&items[next]));
            next += 1;
        }
        for event in events.recv().map_err(|_| GoldenError::EngineEnded)? {
            let Some((id, outcome)) = settle(event, &mut open) else { continue };
            let at = id as usize;
            let finished = judge(&items[at], outcome);
            progress(finished.passed);
            outcomes[at] = Some(finished);
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}

/// The request that asks an item.
pub fn ask(id: u64, item: &Item, exam: &Exam) -> Generate {
    let thinking = exam.thinking;
    let chat = ChatInput {
        messages: item.messages.clone(),
        tools: item.tools.clone(),
        thinking,
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let sampling = Sampling { temperature: exam.temperature, seed: Some(id), ..Sampling::default() };
    let (engram, thought, grammar) = (exam.engram.clone(), exam.thought, exam.grammar.clone());
    Generate { id, thinking, thought, engram, grammar, ..Generate::new(Prompt::Chat(chat), sampling, item.max_tokens) }
}

impl Outcome {
    /// The outcome of an item that was not answered yet.
    pub fn blank(item: &Item) -> Outcome {
        Outcome {
            id: item.id.clone(),
            family: item.family.clone(),
            domain: item.domain.clone(),
            passed: false,
            thought: String::new(),
            reply: String::new(),
            finish_reason: None,
            tokens: 0,
            answer_tokens: 0,
            engram: None,
            thought_use: None,
            error: None,
        }
    }

    /// Takes an event of the item's request; true when it was the last one.
    pub fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Token(token) => {
                match token.channel {
                    Channel::Thinking => self.thought.push_str(&token.text),
                    Channel::Answer => self.reply.push_str(&token.text),
                }
                false
            }
            Event::Finished { reason, text, usage, engram, thought, .. } => {
                self.reply.push_str(&text);
                self.finish_reason = Some(reason);
                self.tokens = usage.completion_tokens;
                self.answer_tokens = usage.completion_tokens.saturating_sub(usage.thinking_tokens);
                self.engram = engram.map(|told| *told);
                self.thought_use = thought;
                true
            }
            Event::Failed { message, .. } => {
                self.error = Some(message);
                true
            }
            _ => false,
        }
    }
}

/// Adds an event to its outcome; returns the outcome when it was the last one.
fn settle(event: Event, open: &mut HashMap<u64, Outcome>) -> Option<(u64, Outcome)> {
    let id = match &event {
        Event::Token(token) => token.id,
        Event::Finished { id, .. } | Event::Failed { id, .. } => *id,
        _ => return None,
    };
    open.get_mut(&id)?.take(event).then(|| open.remove(&id)).flatten().map(|outcome| (id, outcome))
}

/// Checks a complete reply.
pub fn judge(item: &Item, mut outcome: Outcome) -> Outcome {
    let (content, calls) = toolcall::parse(&outcome.reply, &item.tools);
    outcome.passed = outcome.error.is_none() && item.check.passes(&content, &calls);
    outcome
}

/// Scores by group, in the order of the names.
pub fn scores(outcomes: &[Outcome], group: fn(&Outcome) -> &str) -> BTreeMap<String, Score> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for outcome in outcomes {
        let (passed, n) = counts.entry(group(outcome).to_owned()).or_default();
        *passed += usize::from(outcome.passed);
        *n += 1;
    }
    counts.into_iter().map(|(name, (passed, n))| (name, Score::of(passed, n))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{GoldenError, Score, files, read};

    #[test]
    fn an_exam_is_read_plain_or_packed_and_a_wrong_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let [packed, plain] = files("golden").map(|file| dir.path().join(file));
        let item = r#"{"id":"a","domain":"d","family":"f","messages":[],"check":{"kind":"exact","value":"4"}}"#;
        let keep = |text: &str| {
            std::fs::write(&plain, text).unwrap();
            let mut file = flate2::write::GzEncoder::new(std::fs::File::create(&packed).unwrap(), Default::default());
            file.write_all(text.as_bytes()).unwrap();
            file.finish().unwrap();
        };
        keep(&format!("{item}\n\n{}\n", item.replace("\"a\"", "\"b\"")));
        for path in [&packed, &plain] {
            let items = read(path).unwrap();
            assert_eq!(items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        }
        keep(&format!("{item}\nnonsense\n"));
        for path in [&packed, &plain] {
            let line = |error| matches!(error, GoldenError::Item { line: 2, .. });
            assert!(read(path).is_err_and(line), "{}", path.display());
        }
        // Cut in the middle it is no shorter exam, but an error.
        let bytes = std::fs::read(&packed).unwrap();
        std::fs::write(&packed, &bytes[..bytes.len() - 9]).unwrap();
        assert!(matches!(read(&packed), Err(GoldenError::Read { .. } | GoldenError::Item { .. })));
        assert!(matches!(read(&dir.path().join("none")), Err(GoldenError::Read { .. })));
    }

    #[test]
    fn wilson_intervals_match_published_values() {
        // 81 of 263 (Newcombe 1998, method 3): 0.2553 to 0.3662.
        let score = Score::of(81, 263);
        assert!((score.low - 0.2553).abs() < 5e-5 && (score.high - 0.3662).abs() < 5e-5, "{score:?}");
        assert_eq!(Score::of(0, 0).high, 1.0);
        assert!(Score::of(5, 5).low > 0.5);
    }
}
