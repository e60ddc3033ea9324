//! The program of a pipeline: the steps that its file names, what may stand in them, and the most that they cost.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::branch::RawBranch;
use super::plan::check_sampling;
use super::retrieve;
use super::tool_loop::RawTools;
use super::web;
use crate::turn::{Condition, DocumentTerms, QualityGate, Sampling, Tier, ToolLimits, WebTerms};

pub const STEPS_MAX: usize = 16;
/// Tokens that the hidden generations of a program may come to together.
pub const HIDDEN_TOKENS_MAX: u32 = 16_384;
/// Tokens of a hidden generation where its step does not say.
const HIDDEN_TOKENS: u32 = 512;
const NAME_CHARS_MAX: usize = 32;
const TEXT_BYTES_MAX: usize = 16 << 10;
const RETRIES_MAX: u32 = 3;
const GATE_TIMEOUT_MS: RangeInclusive<u64> = 100..=600_000;

/// The name of the visible generation, and of a judge.
pub(super) const ANSWER: &str = "answer";
pub(super) const JUDGE: &str = "judge";

/// A step as it is written: one kind, and what it says of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawStep {
    Generate(RawGenerate),
    Judge(RawGate),
    Tools(RawTools),
    Retrieve(DocumentTerms),
    Web(WebTerms),
    TreeSearch(IgnoredAny),
    Branch(RawBranch),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawGenerate {
    pub(super) name: Option<String>,
    /// Absent: every generation but the last.
    hidden: Option<bool>,
    system: Option<String>,
    instruction: String,
    sampling: Option<Sampling>,
    tier: Option<Tier>,
    thinking_tokens: Option<u32>,
    max_tokens: Option<u32>,
}

/// The quality gate, as it is written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawGate {
    verdict_max: u8,
    retries: u32,
    timeout_ms: u64,
    tiers: Vec<Tier>,
}

impl Default for RawGate {
    fn default() -> Self {
        let QualityGate { verdict_max, retries, timeout_ms } = QualityGate::default();
        RawGate { verdict_max, retries, timeout_ms, tiers: vec![Tier::Quality, Tier::Ultra] }
    }
}

impl RawGate {
    pub(super) fn checked(self) -> Result<Gated, String> {
        if !(1..=4).contains(&self.verdict_max) {
            return Err(format!("verdict_max is {}, but must be 1 to 4", self.verdict_max));
        }
        if !(1..=RETRIES_MAX).contains(&self.retries) {
            return Err(format!("retries is {}, but must be 1 to {RETRIES_MAX}", self.retries));
        }
        if !GATE_TIMEOUT_MS.contains(&self.timeout_ms) {
            let (low, high) = (GATE_TIMEOUT_MS.start(), GATE_TIMEOUT_MS.end());
            return Err(format!("timeout_ms is {}, but must be {low} to {high}", self.timeout_ms));
        }
        if self.tiers.is_empty() || self.tiers.contains(&Tier::Fast) {
            return Err("tiers must hold quality, ultra or both: a fast answer is given as it is".to_owned());
        }
        let RawGate { verdict_max, retries, timeout_ms, tiers } = self;
        Ok(Gated { gate: QualityGate { verdict_max, retries, timeout_ms }, tiers })
    }
}

/// Which replies of a route are judged before they end, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gated {
    pub gate: QualityGate,
    pub tiers: Vec<Tier>,
}

/// A step of a checked program.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramStep {
    pub name: String,
    pub work: ProgramWork,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ProgramWork {
    /// The visible one.
    Answer(Terms),
    /// The same, where it may call these built-in tools.
    Tools(Terms, Vec<String>, ToolLimits),
    /// A hidden one of at most so many tokens.
    Draft(Terms, u32),
    Judge(Gated),
    /// One of two lists of hidden steps.
    Branch(Condition, Vec<ProgramStep>, Vec<ProgramStep>),
    /// Passages of documents.
    Retrieve(DocumentTerms),
    /// Passages of web pages.
    Web(WebTerms),
}

impl ProgramStep {
    /// Tokens of its hidden generations, at most.
    fn hidden_tokens(&self) -> u64 {
        let all = |steps: &[ProgramStep]| steps.iter().map(ProgramStep::hidden_tokens).sum::<u64>();
        match &self.work {
            ProgramWork::Draft(_, tokens) => u64::from(*tokens),
            ProgramWork::Branch(_, steps, otherwise) => all(steps).max(all(otherwise)),
            ProgramWork::Answer(_) | ProgramWork::Tools(..) | ProgramWork::Judge(_) => 0,
            ProgramWork::Retrieve(_) | ProgramWork::Web(_) => 0,
        }
    }

    /// It and the steps within it.
    fn all(&self) -> Vec<&ProgramStep> {
        let within = match &self.work {
            ProgramWork::Branch(_, steps, otherwise) => {
                steps.iter().chain(otherwise).flat_map(ProgramStep::all).collect()
            }
            _ => Vec::new(),
        };
        std::iter::once(self).chain(within).collect()
    }
}

/// What a generation has of its own; the rest is the pipeline's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    pub system: Option<String>,
    /// Follows the conversation; `{{name}}` stands for the text of an earlier hidden step.
    pub instruction: String,
    pub sampling: Option<Sampling>,
    pub tier: Option<Tier>,
    pub thinking_tokens: Option<u32>,
    pub max_tokens: Option<u32>,
}

/// The checked steps of a pipeline. Exactly one of them is the answer, and no generation follows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub steps: Vec<ProgramStep>,
}

impl Default for Program {
    /// What a file without steps is: the answer alone.
    fn default() -> Self {
        let work = ProgramWork::Answer(Terms::default());
        Program { steps: vec![ProgramStep { name: ANSWER.to_owned(), work }] }
    }
}

impl Program {
    /// The terms of the visible generation.
    pub fn answer(&self) -> Option<&Terms> {
        self.steps.iter().find_map(|step| match &step.work {
            ProgramWork::Answer(terms) | ProgramWork::Tools(terms, ..) => Some(terms),
            _ => None,
        })
    }

    pub fn gate(&self) -> Option<&Gated> {
        self.steps.iter().find_map(|step| match &step.work {
            ProgramWork::Judge(gated) => Some(gated),
            _ => None,
        })
    }

    /// Tokens that its hidden generations come to at most, without what a judge sends back or tools are
    /// called by.
    pub fn hidden_tokens(&self) -> u64 {
        self.steps.iter().map(ProgramStep::hidden_tokens).sum()
    }

    /// Every step, those within others too.
    pub(super) fn all(&self) -> impl Iterator<Item = &ProgramStep> {
        self.steps.iter().flat_map(ProgramStep::all)
    }

    /// It asks something behind the conversation: the last word cannot be the assistant's own.
    pub fn instructs(&self) -> bool {
        let instructs = |step: &ProgramStep| match &step.work {
            ProgramWork::Answer(terms) | ProgramWork::Tools(terms, ..) => !terms.instruction.is_empty(),
            ProgramWork::Draft(..) | ProgramWork::Branch(..) | ProgramWork::Retrieve(_) | ProgramWork::Web(_) => true,
            ProgramWork::Judge(_) => false,
        };
        self.steps.iter().any(instructs)
    }

    /// Checks the steps of a file. A message begins with the step that it speaks of.
    pub(super) fn checked(raw: Vec<RawStep>) -> Result<Program, String> {
        if raw.is_empty() || raw.len() > STEPS_MAX {
            return Err(format!("holds {} steps, but must hold 1 to {STEPS_MAX}", raw.len()));
        }
        let last = raw.iter().rposition(|step| matches!(step, RawStep::Generate(_) | RawStep::Tools(_)));
        let last = last.ok_or("hold no `generate` or `tools`: nothing would be answered")?;
        let mut program = Program { steps: Vec::with_capacity(raw.len()) };
        for (at, step) in raw.into_iter().enumerate() {
            let step = program.step(step, at, last).map_err(|message| format!("[{at}] {message}"))?;
            program.push(step).map_err(|message| format!("[{at}] {message}"))?;
        }
        if program.all().count() > STEPS_MAX {
            return Err(format!("holds more than {STEPS_MAX} steps, those of its branches counted"));
        }
        if program.hidden_tokens() > HIDDEN_TOKENS_MAX.into() {
            let tokens = program.hidden_tokens();
            return Err(format!("may come to {tokens} hidden tokens, but {HIDDEN_TOKENS_MAX} are the most"));
        }
        Ok(program)
    }

    /// One more step, under a name of its own.
    pub(super) fn push(&mut self, step: ProgramStep) -> Result<(), String> {
        let mut names: BTreeSet<&str> = self.all().map(|earlier| earlier.name.as_str()).collect();
        if let Some(twice) = step.all().into_iter().find(|step| !names.insert(&step.name)) {
            return Err(format!("is called `{}` as an earlier step is", twice.name));
        }
        self.steps.push(step);
        Ok(())
    }

    fn step(&self, raw: RawStep, at: usize, last: usize) -> Result<ProgramStep, String> {
        let not_built = |kind: &str, part: &str| Err(format!("is `{kind}`, which needs {part}: that is not built yet"));
        match raw {
            RawStep::Generate(raw) => self.generate(raw, at, last),
            RawStep::Judge(_) if at < last => {
                Err("is `judge` before the answer: only the answer can be judged, so it comes last".to_owned())
            }
            RawStep::Judge(raw) => Ok(ProgramStep { name: JUDGE.to_owned(), work: ProgramWork::Judge(raw.checked()?) }),
            RawStep::Tools(_) if at < last => {
                Err("is `tools` before the answer: the answer itself calls the tools, so it comes last".to_owned())
            }
            RawStep::Tools(raw) => {
                let (allowed, limits) = raw.checked()?;
                let step = self.generate(raw.answer, at, last)?;
                match step.work {
                    ProgramWork::Answer(terms) => {
                        Ok(ProgramStep { work: ProgramWork::Tools(terms, allowed, limits), ..step })
                    }
                    work => Ok(ProgramStep { work, ..step }),
                }
            }
            RawStep::Retrieve(_) if at > last => {
                Err("is `retrieve` behind the answer: nothing would see what it finds".to_owned())
            }
            RawStep::Retrieve(terms) => retrieve::checked(terms),
            RawStep::Web(_) if at > last => {
                Err("is `web` behind the answer: nothing would see what it finds".to_owned())
            }
            RawStep::Web(terms) => web::checked(terms),
            RawStep::TreeSearch(_) => not_built("tree_search", "forks of a generation"),
            RawStep::Branch(_) if at > last => Err("is `branch` behind the answer: nothing would see it".to_owned()),
            RawStep::Branch(raw) => raw.checked(self, at),
        }
    }

    /// There is a hidden step of this name.
    pub(super) fn hidden(&self, name: &str) -> bool {
        self.all().any(|step| step.name == name && matches!(step.work, ProgramWork::Draft(..)))
    }

    pub(super) fn generate(&self, raw: RawGenerate, at: usize, last: usize) -> Result<ProgramStep, String> {
        let hidden = at < last;
        let name = raw.name.unwrap_or_else(|| if hidden { format!("step{}", at + 1) } else { ANSWER.to_owned() });
        check_name(&name)?;
        match (raw.hidden, hidden) {
            (Some(true), false) => return Err("is hidden, but the last `generate` is what the client sees".to_owned()),
            (Some(false), true) => {
                return Err("is not hidden, but only the last `generate` can be what the client sees".to_owned());
            }
            _ => {}
        }
        let system = raw.system.map(|text| text.trim().to_owned());
        let instruction = raw.instruction.trim().to_owned();
        if instruction.len().max(system.as_ref().map_or(0, String::len)) > TEXT_BYTES_MAX {
            return Err(format!("has a text of more than {TEXT_BYTES_MAX} bytes"));
        }
        if system.as_ref().is_some_and(|system| system.contains("{{")) {
            return Err("names a step in `system`: texts of steps are evidence and stand in `instruction`".to_owned());
        }
        self.check_named(&instruction)?;
        if raw.max_tokens == Some(0) {
            return Err("has max_tokens 0: nothing could be written".to_owned());
        }
        if let Some(Err(message)) = raw.sampling.as_ref().map(check_sampling) {
            return Err(format!("has sampling that cannot be: {message}"));
        }
        let RawGenerate { sampling, tier, thinking_tokens, max_tokens, .. } = raw;
        let terms = Terms { system, instruction, sampling, tier, thinking_tokens, max_tokens };
        let work = match hidden {
            true => ProgramWork::Draft(terms, max_tokens.unwrap_or(HIDDEN_TOKENS)),
            false => ProgramWork::Answer(terms),
        };
        Ok(ProgramStep { name, work })
    }

    /// What an instruction names are hidden steps before it.
    fn check_named(&self, instruction: &str) -> Result<(), String> {
        let mut unknown = None;
        let rest = fill(instruction, |name| {
            if !self.hidden(name) {
                unknown.get_or_insert_with(|| name.to_owned());
            }
            String::new()
        });
        match unknown {
            Some(name) => Err(format!("names `{{{{{name}}}}}`, which is no hidden step before it")),
            None if rest.contains("{{") => Err("has a `{{` without its `}}`".to_owned()),
            None => Ok(()),
        }
    }
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(good) {
        return Err(format!("has the name {name:?}: 1 to {NAME_CHARS_MAX} of a-z, 0-9 and _ may be one"));
    }
    Ok(())
}

/// A text with what `of` says in the place of each `{{name}}`.
pub fn fill(text: &str, mut of: impl FnMut(&str) -> String) -> String {
    let (mut filled, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, (name, after))) =
        rest.split_once("{{").and_then(|(before, after)| Some((before, after.split_once("}}")?)))
    {
        filled.push_str(before);
        filled.push_str(&of(name.trim()));
        rest = after;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::pipeline::{Pipeline, PipelineSet, Sources, yaml};

    fn read(steps: &str) -> Result<Program, String> {
        let text = format!("name: code\nversion: 1\nfollow_model: true\n{steps}");
        let read = Pipeline::parse(&text, "code.yaml", "code", false);
        read.map(|pipeline| pipeline.program).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_without_steps_is_the_answer_alone() {
        assert_eq!(read("").unwrap(), Program::default());
        assert_eq!(read("steps: [{generate: {}}]\n").unwrap(), Program::default());
        let gated = read("quality_gate: {verdict_max: 3}\n").unwrap();
        assert_eq!(gated, read("steps: [{generate: {}}, {judge: {verdict_max: 3}}]\n").unwrap());
        assert_eq!(gated.gate().unwrap().gate.verdict_max, 3);
    }

    #[test]
    fn every_generation_but_the_last_is_hidden() {
        let program = read(
            "steps:\n  - generate: {name: architect, instruction: Plan it., max_tokens: 100}\n  \
             - generate: {instruction: 'Review. {{ architect }}'}\n  - generate: {instruction: '{{step2}} Write it.'}\n",
        )
        .unwrap();
        let names: Vec<&str> = program.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["architect", "step2", "answer"]);
        assert_eq!(program.hidden_tokens(), 100 + u64::from(HIDDEN_TOKENS));
        assert_eq!(program.answer().unwrap().instruction, "{{step2}} Write it.");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_step_and_the_reason() {
        let many = format!("steps: [{}]\n", vec!["{generate: {}}"; STEPS_MAX + 1].join(", "));
        for (steps, words) in [
            ("steps: []\n", "must hold 1 to 16"),
            (many.as_str(), "holds 17 steps"),
            ("steps: [{judge: {}}]\n", "no `generate`"),
            ("steps: [{judge: {}}, {generate: {}}]\n", "[0] is `judge` before the answer"),
            ("steps: [{generate: {}}, {judge: {}}, {judge: {}}]\n", "[2] is called `judge`"),
            ("steps: [{generate: {name: a}}, {generate: {name: a}}]\n", "[1] is called `a`"),
            ("steps: [{generate: {name: 'a b'}}]\n", "[0] has the name \"a b\""),
            ("steps: [{generate: {hidden: true}}]\n", "[0] is hidden"),
            ("steps: [{generate: {hidden: false}}, {generate: {}}]\n", "[0] is not hidden"),
            ("steps: [{generate: {instruction: '{{later}}'}}, {generate: {name: later}}]\n", "{{later}}"),
            ("steps: [{generate: {}}, {generate: {name: b, instruction: '{{b}}'}}]\n", "{{b}}"),
            ("steps: [{generate: {name: a}}, {generate: {instruction: 'see {{a'}}]\n", "without its"),
            (
                "steps: [{generate: {name: a}}, {generate: {system: 'You saw {{a}}.'}}]\n",
                "[1] names a step in `system`",
            ),
            ("steps: [{generate: {max_tokens: 0}}]\n", "max_tokens 0"),
            ("steps: [{generate: {max_tokens: 16385}}, {generate: {}}]\n", "16385 hidden tokens"),
            ("steps: [{generate: {sampling: {temperature: 9}}}]\n", "temperature is 9"),
            ("steps: [{generate: {judge: 1}}]\n", "judge"),
            ("steps: [{tools: {}}]\n", "[0] allows no tool"),
            ("steps: [{tools: {allow: [abacus]}}]\n", "there is no tool \"abacus\""),
            ("steps: [{tools: {allow: [search_web]}}]\n", "needs the user's word before a model searches the web"),
            ("steps: [{tools: {allow: [calculate, calculate]}}]\n", "`calculate` twice"),
            ("steps: [{tools: {allow: [calculate], rounds: 9}}]\n", "has rounds 9, but it must be 1 to 8"),
            ("steps: [{tools: {allow: [calculate], calls: 0}}]\n", "has calls 0"),
            ("steps: [{tools: {allow: [calculate], timeout_ms: 1}}]\n", "has timeout_ms 1"),
            ("steps: [{tools: {allow: [calculate], answer: {hidden: true}}}]\n", "[0] is hidden"),
            ("steps: [{tools: {allow: [calculate]}}, {generate: {}}]\n", "[0] is `tools` before the answer"),
            ("steps: [{retrieve: {k: 0}}, {generate: {}}]\n", "steps [0] has k 0, but must have 1 to 20"),
            ("steps: [{retrieve: {tokens_max: 9}}, {generate: {}}]\n", "has tokens_max 9, but must have 64 to 16384"),
            ("steps: [{retrieve: {collections: []}}, {generate: {}}]\n", "must name 1 to 64"),
            ("steps: [{generate: {}}, {retrieve: {}}]\n", "steps [1] is `retrieve` behind the answer"),
            ("steps: [{retrieve: {}}, {retrieve: {}}, {generate: {}}]\n", "is called `retrieve` as an earlier step is"),
            ("steps: [{web: {k: 21}}, {generate: {}}]\n", "steps [0] has k 21, but must have 1 to 20"),
            ("steps: [{web: {tokens_max: 9}}, {generate: {}}]\n", "has tokens_max 9, but must have 64 to 16384"),
            ("steps: [{web: {url: 'http://a'}}, {generate: {}}]\n", "url"),
            ("steps: [{generate: {}}, {web: {}}]\n", "steps [1] is `web` behind the answer"),
            ("steps: [{tree_search: {}}]\n", "no `generate`"),
            ("steps: [{tree_search: {beams: 4}}, {generate: {}}]\n", "`tree_search`, which needs forks"),
            ("steps: [{dance: {}}, {generate: {}}]\n", "dance"),
            ("quality_gate: {}\nsteps: [{generate: {}}, {judge: {}}]\n", "said twice"),
        ] {
            let error = read(steps).expect_err(steps);
            assert!(error.starts_with("code.yaml") && error.contains(words), "{steps}: {error}");
        }
    }

    /// Every key of a file is in the schema, in its place.
    fn known(schema: &Value, root: &Value, value: &Value, at: &str) {
        let schema = match schema["$ref"].as_str() {
            Some(place) => root.pointer(place.trim_start_matches('#')).unwrap(),
            None => schema,
        };
        match value {
            Value::Object(map) if schema["properties"].is_object() => {
                for (key, value) in map {
                    let of = schema["properties"].get(key).unwrap_or_else(|| panic!("{at}.{key} is not in the schema"));
                    known(of, root, value, &format!("{at}.{key}"));
                }
            }
            Value::Array(items) => items.iter().for_each(|item| match schema["items"]["oneOf"].as_array() {
                Some(kinds) => {
                    let key = item.as_object().unwrap().keys().next().unwrap();
                    let kind = kinds.iter().find(|kind| kind["properties"].get(key).is_some()).expect(at);
                    known(kind, root, item, at);
                }
                None => known(&schema["items"], root, item, at),
            }),
            _ => {}
        }
    }

    #[test]
    fn the_schema_knows_what_files_say() {
        let schema: Value = serde_json::from_str(crate::pipeline::SCHEMA).unwrap();
        let all = "name: a\nversion: 1\ndescription: d\ntier: fast\nmatch: {priority: 1, words: [w], extensions: [e], \
            evidence_min: 1}\nfollow_model: true\nsystem: s\ndemonstrations: [{user: u, assistant: a}]\nmax_tokens: 9\n\
            thinking: {fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}\nstop: [x]\nengram: {tables: [t], lambda: 0.1}\n\
            retrieve: {k: 1, min_score: 0.5, tokens_max: 9}\nsampling: {temperature: 0, top_p: 1, top_k: 1, min_p: 0, \
            repetition_penalty: 1, frequency_penalty: 0, presence_penalty: 0, penalty_window_tokens: 1, seed: 1, logprobs: 1}\n\
            steps:\n  - generate: {name: n, hidden: true, system: s, instruction: i, tier: ultra, thinking_tokens: 0, \
            max_tokens: 9, sampling: {top_k: 1}}\n  - retrieve: {collections: [c], k: 3, tokens_max: 99}\n  - web: {k: 3, tokens_max: 99}\n  - branch: {name: b, when: {tiers: [fast], words_min: 1, asks: [y], \
            step: n, says: [x]}, steps: [{generate: {name: c}}], otherwise: [{generate: {}}]}\n  - tools: \
            {allow: [calculate], rounds: 2, calls: 3, timeout_ms: 500, answer: {name: n2}}\n  - judge: {verdict_max: 1, retries: 1, \
            timeout_ms: 100, tiers: [ultra]}\n";
        Pipeline::parse(all, "a.yaml", "a", false).unwrap();
        let shipped = PipelineSet::texts(&Sources::default()).unwrap();
        for text in shipped.values().map(|file| file.text.as_str()).chain([all]) {
            let file: Value = yaml::read(text, "file", 20_000, 32).unwrap();
            known(&schema, &schema, &file, "file");
        }
    }

    #[test]
    fn names_are_filled_in_and_everything_else_is_left() {
        let of = |name: &str| format!("<{name}>");
        assert_eq!(fill("a {{ b }} c {{d}}", of), "a <b> c <d>");
        for text in ["", "plain", "}} {{", "{ {a} }"] {
            assert_eq!(fill(text, of), text);
        }
    }
}
