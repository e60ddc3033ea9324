//! One pipeline file: what may stand in it and what must be true of it. Messages name file, line and column.

use serde::{Deserialize, Serialize};

use super::program::{JUDGE, Program, ProgramStep, ProgramWork, RawGate, RawStep};
use super::yaml::{self, YamlError};
use crate::embed::index::{EXAMPLE_TOKENS_MAX, EXAMPLES_PER_REPLY_MAX};
use crate::engine::defaults::ThinkingBudget;
use crate::engine::protocol::{Hosted, STOPS_MAX};
use crate::engram::blend::LAMBDA_DEFAULT;
use crate::intent::{Rules, check_word};
use crate::turn::{EngramChoice, Message, Retrieve, Role, Sampling, ThoughtPolicy, Tier};

/// Largest pipeline file, bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 10;
/// Most YAML nodes of a file: aliases cannot make a small file large.
const NODES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 32;
const WORDS_MAX: usize = 2_000;
const DEMONSTRATIONS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PipelineError {
    #[error("{place}: {message}")]
    Parse { place: String, message: String },
    #[error("{file}: {field} {message}")]
    Invalid { file: String, field: &'static str, message: String },
    #[error("cannot read {file}: {message}")]
    Read { file: String, message: String },
    #[error("no pipeline `default`: one must exist, requests fall back to it")]
    NoDefault,
    #[error("{0}")]
    Cascade(String),
    #[error("{0}")]
    Examples(String),
}

/// What decides that a request takes this route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Match {
    /// Breaks ties between routes; larger wins.
    priority: i32,
    /// Words or phrases, compared without case and accents; `*` at an end stands for the rest of a word.
    words: Vec<String>,
    /// File extensions without the dot.
    extensions: Vec<String>,
    /// How many different words it takes; a file name counts for three.
    evidence_min: Option<u32>,
}

/// An example exchange put before the conversation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Demonstration {
    user: String,
    assistant: String,
}

/// Engram tables of a route.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEngram {
    tables: Vec<String>,
    lambda: Option<f32>,
}

/// Where an optimised file comes from: it is the daemon's own, and no other file has this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    pub run: String,
    /// Version of the pipeline that it was made from.
    pub parent: String,
    /// Who was asked.
    pub model_hash: String,
    pub adapter_revision: u64,
    /// Held-out items, and what it gained on them: share of one, 95 % interval, exact one-sided p.
    pub items: usize,
    pub difference: f64,
    pub low: f64,
    pub high: f64,
    pub p: f64,
    /// Exam items that the demonstrations come from.
    pub demonstrations: Vec<String>,
}

/// A file as it is written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPipeline {
    name: String,
    version: u32,
    #[serde(default)]
    description: String,
    #[serde(default)]
    tier: Tier,
    #[serde(default, rename = "match")]
    matching: Match,
    /// What the file leaves out of system text, sampling, thought and length is the served model's own, not nothing.
    #[serde(default)]
    follow_model: bool,
    system: Option<String>,
    #[serde(default)]
    demonstrations: Vec<Demonstration>,
    sampling: Option<Sampling>,
    thinking: Option<ThinkingBudget>,
    thought: Option<ThoughtPolicy>,
    max_tokens: Option<u32>,
    #[serde(default)]
    stop: Vec<String>,
    engram: Option<RawEngram>,
    /// A `judge` behind the answer.
    quality_gate: Option<RawGate>,
    /// Absent: the answer alone.
    steps: Option<Vec<RawStep>>,
    provenance: Option<Provenance>,
    retrieve: Option<Retrieve>,
    #[serde(default)]
    lessons: LessonsUse,
}

/// Whether answers of a route are shown lessons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LessonsUse {
    #[default]
    Recall,
    None,
}

/// What a file leaves to the served model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub system: bool,
    pub sampling: bool,
}

/// A checked pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    pub name: String,
    /// `3`, or `3+overlay` when a file of the state folder replaced the shipped one; `3+overlay.RUN` when a run of the
    /// prompt optimisation wrote that file.
    pub version: String,
    pub description: String,
    pub tier: Tier,
    pub rules: Rules,
    /// Begins the system message; empty = none.
    pub system: String,
    /// User and assistant in turn, put before the conversation.
    pub demonstrations: Vec<Message>,
    pub sampling: Sampling,
    /// Absent: as the template does by itself.
    pub thinking: Option<ThinkingBudget>,
    /// What the model's certainty changes in its thought; absent: nothing.
    pub thought: Option<ThoughtPolicy>,
    pub max_tokens: Option<u32>,
    /// Present: the served model's own defaults stand for what the file leaves out.
    pub left: Option<Left>,
    pub stop: Vec<String>,
    /// Tables that help this route's answers, as far as they are there.
    pub engram: Option<EngramChoice>,
    /// What is done for an answer.
    pub program: Program,
    /// Present: the prompt optimisation wrote the file.
    pub provenance: Option<Provenance>,
    /// Absent: no examples are looked for.
    pub retrieve: Option<Retrieve>,
    /// Lessons that bear on the question are shown.
    pub recall: bool,
}

impl Pipeline {
    /// Reads and checks a file; `place` is its name in messages, `stem` the name it must carry.
    pub fn parse(text: &str, place: &str, stem: &str, overlay: bool) -> Result<Pipeline, PipelineError> {
        let raw: RawPipeline = read(text, place)?;
        let invalid = |field, message: String| Err(PipelineError::Invalid { file: place.to_owned(), field, message });
        if raw.name != stem {
            return invalid("name", format!("is `{}`, but the file is called `{stem}`", raw.name));
        }
        if raw.name.is_empty() || !raw.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
            return invalid("name", "may hold a-z, 0-9 and _ only".to_owned());
        }
        if raw.matching.words.len() > WORDS_MAX {
            return invalid("match.words", format!("holds more than {WORDS_MAX} entries"));
        }
        for word in &raw.matching.words {
            if let Err(why) = check_word(word) {
                return invalid("match.words", format!("holds {word:?}: {why}"));
            }
        }
        if let Some(e) = raw.matching.extensions.iter().find(|e| !e.chars().all(|c| c.is_ascii_alphanumeric())) {
            return invalid("match.extensions", format!("holds `{e}`: write extensions without the dot"));
        }
        if raw.thinking.is_none() && !raw.follow_model {
            return invalid("thinking", "is missing: give the budget of each tier, or `follow_model: true`".to_owned());
        }
        if raw.demonstrations.len() > DEMONSTRATIONS_MAX {
            return invalid("demonstrations", format!("holds more than {DEMONSTRATIONS_MAX} entries"));
        }
        if let Some(Err(message)) = raw.thought.map(ThoughtPolicy::check) {
            return invalid("thought", message);
        }
        if raw.max_tokens == Some(0) {
            return invalid("max_tokens", "is 0: no reply could be given".to_owned());
        }
        let stop_bytes = crate::engine::protocol::STOP_BYTES_MAX;
        if raw.stop.len() > STOPS_MAX || raw.stop.iter().any(|s| s.is_empty() || s.len() > stop_bytes) {
            return invalid("stop", format!("may hold up to {STOPS_MAX} strings of 1 to {stop_bytes} bytes"));
        }
        if let Some(Err(message)) = raw.sampling.as_ref().map(super::plan::check_sampling) {
            return invalid("sampling", message);
        }
        if let Some(Err(message)) = raw.engram.as_ref().map(|e| super::plan::check_engram(&e.tables, e.lambda, &[])) {
            return invalid("engram", message);
        }
        let program = match raw.program() {
            Ok(program) => program,
            Err((field, message)) => return invalid(field, message),
        };
        let fits = |r: &Retrieve| {
            let k = (1..=EXAMPLES_PER_REPLY_MAX).contains(&r.k);
            k && (0.0..=1.0).contains(&r.min_score) && (1..=EXAMPLE_TOKENS_MAX).contains(&r.tokens_max)
        };
        if raw.retrieve.is_some_and(|r| !fits(&r)) {
            return invalid(
                "retrieve",
                format!(
                    "takes k from 1 to {EXAMPLES_PER_REPLY_MAX}, min_score from 0 to 1, tokens_max up to {EXAMPLE_TOKENS_MAX}"
                ),
            );
        }
        Ok(raw.checked(overlay, program))
    }

    /// The pipeline as it is for a model: with that model's defaults where the file leaves something to it. What was
    /// searched for other weights is left out.
    pub fn for_model(&self, hosted: &Hosted) -> Pipeline {
        let mut own = self.clone();
        let Some(mut left) = self.left else { return own };
        if self.provenance.as_ref().is_some_and(|from| from.model_hash != hosted.model_hash) {
            own.demonstrations.clear();
            left.system = true;
        }
        let defaults = &hosted.defaults;
        let route = defaults.routes.get(&self.name).cloned().unwrap_or_default();
        if left.system {
            own.system = route.system;
        }
        if left.sampling {
            own.sampling = defaults.sampling.clone();
        }
        own.thinking = own.thinking.or(route.thinking);
        own.max_tokens = own.max_tokens.or(route.max_tokens);
        own
    }
}

impl RawPipeline {
    /// Its steps, or the field that is wrong and how.
    fn program(&self) -> Result<Program, (&'static str, String)> {
        let mut program = match self.steps.clone() {
            Some(steps) => Program::checked(steps).map_err(|message| ("steps", message))?,
            None => Program::default(),
        };
        if let Some(gate) = self.quality_gate.clone() {
            if program.gate().is_some() {
                return Err(("quality_gate", "is said twice: `steps` holds a `judge`".to_owned()));
            }
            let gated = gate.checked().map_err(|message| ("quality_gate", message))?;
            program.steps.push(ProgramStep { name: JUDGE.to_owned(), work: ProgramWork::Judge(gated) });
        }
        Ok(program)
    }

    fn checked(self, overlay: bool, program: Program) -> Pipeline {
        let pair = |d: Demonstration| [Message::new(Role::User, d.user), Message::new(Role::Assistant, d.assistant)];
        Pipeline {
            version: match (&self.provenance, overlay) {
                (Some(provenance), true) => format!("{}+overlay.{}", self.version, provenance.run),
                (None, true) => format!("{}+overlay", self.version),
                (_, false) => self.version.to_string(),
            },
            description: self.description,
            tier: self.tier,
            rules: Rules {
                route: self.name.clone(),
                priority: self.matching.priority,
                words: self.matching.words,
                extensions: self.matching.extensions,
                evidence_min: self.matching.evidence_min.unwrap_or(1),
            },
            name: self.name,
            left: self
                .follow_model
                .then_some(Left { system: self.system.is_none(), sampling: self.sampling.is_none() }),
            system: self.system.unwrap_or_default().trim().to_owned(),
            demonstrations: self.demonstrations.into_iter().flat_map(pair).collect(),
            sampling: self.sampling.unwrap_or_default(),
            thinking: self.thinking,
            thought: self.thought,
            max_tokens: self.max_tokens,
            stop: self.stop,
            engram: self.engram.map(|e| EngramChoice {
                tables: e.tables,
                lambda_max: e.lambda.unwrap_or(LAMBDA_DEFAULT),
                ..EngramChoice::default()
            }),
            program,
            provenance: self.provenance,
            retrieve: self.retrieve,
            recall: self.lessons == LessonsUse::Recall,
        }
    }
}

fn read(text: &str, place: &str) -> Result<RawPipeline, PipelineError> {
    yaml::read(text, place, NODES_MAX, DEPTH_MAX)
        .map_err(|YamlError { place, message }| PipelineError::Parse { place, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::QualityGate;

    const GOOD: &str = "name: code\nversion: 3\nmatch:\n  words: [rust]\n  extensions: [rs]\nsystem: Be exact.\n\
        sampling:\n  temperature: 0.2\nthinking: {fast_tokens: 0, quality_tokens: 10, ultra_tokens: 20}\n";

    #[test]
    fn a_good_file_is_read() {
        let pipeline = Pipeline::parse(GOOD, "code.yaml", "code", true).unwrap();
        assert_eq!(pipeline.version, "3+overlay");
        assert_eq!(pipeline.sampling.temperature, 0.2);
        assert_eq!(pipeline.thinking.unwrap().quality_tokens, 10);
        assert_eq!(pipeline.rules.evidence_min, 1);
    }

    #[test]
    fn lessons_are_recalled_unless_the_file_says_otherwise() {
        let of = |more: &str| Pipeline::parse(&format!("{GOOD}{more}"), "code.yaml", "code", false);
        let recall = |more: &str| of(more).unwrap().recall;
        assert_eq!((recall(""), recall("lessons: recall\n"), recall("lessons: none\n")), (true, true, false));
        assert!(of("lessons: some\n").unwrap_err().to_string().contains("some"));
    }

    #[test]
    fn a_quality_gate_is_read_and_never_for_fast_answers() {
        let gated = |gate: &str| Pipeline::parse(&format!("{GOOD}quality_gate: {gate}\n"), "code.yaml", "code", false);
        let usual = gated("{}").unwrap().program.gate().cloned().unwrap();
        assert_eq!((usual.gate, usual.tiers.len()), (QualityGate::default(), 2));
        let own = gated("{verdict_max: 3, timeout_ms: 500, tiers: [ultra]}").unwrap().program.gate().cloned().unwrap();
        assert_eq!((own.gate.verdict_max, own.gate.timeout_ms, own.tiers), (3, 500, vec![Tier::Ultra]));
        for wrong in ["{verdict_max: 5}", "{retries: 0}", "{timeout_ms: 1}", "{tiers: [fast]}", "{tiers: []}"] {
            let error = gated(wrong).unwrap_err().to_string();
            assert!(error.starts_with("code.yaml: quality_gate "), "{error}");
        }
        assert!(gated("{below: 2}").unwrap_err().to_string().contains("below"));
    }

    #[test]
    fn a_policy_for_the_thought_is_read_and_held_to_its_ranges() {
        let of = |policy: &str| Pipeline::parse(&format!("{GOOD}thought: {policy}\n"), "code.yaml", "code", false);
        let forcing = of("{budget_forcing: {certainty_min: 0.95}}").unwrap().thought.unwrap().budget_forcing.unwrap();
        assert_eq!((forcing.certainty_min, forcing.tokens, forcing.tokens_min), (0.95, 8, 16));
        for wrong in [
            "{budget_forcing: {certainty_min: 1.5}}",
            "{budget_forcing: {certainty_min: 0.9, tokens: 0}}",
            "{reflection_suppression: {certainty_min: -1}}",
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.starts_with("code.yaml: thought "), "{error}");
        }
        assert!(of("{certain: 1}").unwrap_err().to_string().contains("certain"));
    }

    fn message(text: &str) -> String {
        Pipeline::parse(text, "p/code.yaml", "code", false).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_name_file_and_line() {
        let error = message(&GOOD.replace("temperature", "temprature"));
        assert!(error.starts_with("p/code.yaml:8:"), "{error}");
        assert!(error.contains("temprature"), "{error}");
        let error = message(&GOOD.replace("version: 3", "version: three"));
        assert!(error.starts_with("p/code.yaml:2:"), "{error}");
        let error = message(&GOOD.replace("name: code", "name: cod"));
        assert_eq!(error, "p/code.yaml: name is `cod`, but the file is called `code`");
        let error = message(&GOOD.replace("0.2", "9"));
        assert!(error.contains("temperature"), "{error}");
        let error = message("a: [");
        assert!(error.starts_with("p/code.yaml:"), "{error}");
    }

    #[test]
    fn bombs_are_refused() {
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for i in 1..10 {
            bomb += &format!("a{i}: &a{i} [*a{0},*a{0},*a{0},*a{0},*a{0},*a{0},*a{0},*a{0},*a{0}]\n", i - 1);
        }
        let deep = "[".repeat(100_000);
        for text in [bomb, deep, "\0".to_owned(), "\t- x".to_owned()] {
            let error = Pipeline::parse(&text, "p", "p", false).unwrap_err().to_string();
            assert!(error.starts_with("p:1:") && error.len() < 1_000, "{error}");
        }
    }
}
