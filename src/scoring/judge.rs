//! The judgement of one choice, without input or output: which requests the judge's engine must be sent, what its
//! events mean, and what comes out. Steps are judged independently, so all of them may be under way at once.

use serde_json::Value;

use crate::engine::protocol::{Event, FailureKind, Generate, Prompt, PromptPart};
use crate::turn::{ChoiceJudgement, Message, Sampling};

use super::prompt::{self, Limits, VERIFY_TOKENS_MAX};
use super::reading::{Reading, label_logit, sigmoid};
use super::steps::Steps;

pub const GOOD: &str = "<|good|>";
pub const BAD: &str = "<|bad|>";
/// Alternatives that are read at the label.
const ALTERNATIVES: u8 = 20;
/// Added to both labels where the judge did not write one by itself: a label follows, and their difference stays.
const FORCE_BIAS: f32 = 100.0;

/// Ids of the labels in the judge's vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    pub good: u32,
    pub bad: u32,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JudgeError {
    /// The prompt does not fit even when it is cut narrowly.
    #[error("the judge cannot read the turn: {0}")]
    TooLong(String),
    #[error("the judge's engine refused: {0}")]
    Refused(String),
    #[error("the judge gave no label")]
    NoLabel,
}

/// What an event led to.
#[derive(Debug, PartialEq)]
pub enum Progress {
    Going,
    /// The step has its score; the rest of its request is of no use.
    Judged,
    /// To be sent in the place of the request that ended.
    Again(Box<Generate>),
}

struct Step {
    logit: Option<f32>,
    prompt_ids: Vec<u32>,
    written: Vec<u32>,
    forced: bool,
    narrow: bool,
}

/// One choice under judgement.
pub struct Judging<'a> {
    messages: &'a [Message],
    tools: &'a [Value],
    steps: Steps,
    labels: Labels,
    question: Vec<PromptPart>,
    scores: Vec<Step>,
}

impl<'a> Judging<'a> {
    /// `messages` and `tools`: what the choice answers.
    pub fn new(messages: &'a [Message], tools: &'a [Value], steps: Steps, labels: Labels) -> Judging<'a> {
        let question = prompt::question(messages, tools, Limits::USUAL);
        let fresh = || Step { logit: None, prompt_ids: Vec::new(), written: Vec::new(), forced: false, narrow: false };
        let scores = (0..steps.len()).map(|_| fresh()).collect();
        Judging { messages, tools, steps, labels, question, scores }
    }

    /// The request of every step, in order. None at all for a choice that says nothing.
    pub fn requests(&self) -> Vec<Generate> {
        (0..self.steps.len()).map(|at| self.request(self.prompt(at, &self.question, Limits::USUAL))).collect()
    }

    /// Takes an event of the request of step `at`.
    pub fn take(&mut self, at: usize, event: Event) -> Result<Progress, JudgeError> {
        let (good, bad) = (self.labels.good, self.labels.bad);
        let Some(step) = self.scores.get_mut(at).filter(|step| step.logit.is_none()) else {
            return Ok(Progress::Going);
        };
        match event {
            Event::Started { prompt_ids, .. } if !step.forced => step.prompt_ids = prompt_ids,
            Event::Token(token) => {
                step.logit = label_logit(&token, good, bad);
                if step.logit.is_some() {
                    return Ok(Progress::Judged);
                }
                step.written.push(token.token);
            }
            Event::Finished { .. } if step.forced => return Err(JudgeError::NoLabel),
            Event::Finished { .. } => {
                step.forced = true;
                let ids = [step.prompt_ids.as_slice(), step.written.as_slice()].concat();
                return Ok(Progress::Again(Box::new(self.label_now(ids))));
            }
            Event::Failed { kind: FailureKind::Context, message, .. } => {
                if std::mem::replace(&mut step.narrow, true) {
                    return Err(JudgeError::TooLong(message));
                }
                let question = prompt::question(self.messages, self.tools, Limits::NARROW);
                let again = self.request(self.prompt(at, &question, Limits::NARROW));
                return Ok(Progress::Again(Box::new(again)));
            }
            Event::Failed { message, .. } => return Err(JudgeError::Refused(message)),
            _ => {}
        }
        Ok(Progress::Going)
    }

    pub fn complete(&self) -> bool {
        self.scores.iter().all(|step| step.logit.is_some())
    }

    /// What came out. A choice that says nothing is as wrong as can be.
    pub fn judgement(&self, index: u32, reading: &Reading) -> ChoiceJudgement {
        let logits: Vec<f32> = self.scores.iter().filter_map(|step| step.logit).collect();
        let p = logits.iter().copied().reduce(f32::min).map_or(0.0, |weakest| reading.p(weakest));
        ChoiceJudgement {
            index,
            verdict: reading.verdict(p),
            p,
            thought_steps: self.steps.thought.len() as u32,
            steps: logits.into_iter().map(sigmoid).collect(),
        }
    }

    fn prompt(&self, at: usize, question: &[PromptPart], limits: Limits) -> Prompt {
        Prompt::Parts(prompt::judged(question, &self.steps, at, limits))
    }

    fn request(&self, prompt: Prompt) -> Generate {
        let sampling = Sampling { temperature: 0.0, logprobs: Some(ALTERNATIVES), ..Sampling::default() };
        Generate::new(prompt, sampling, VERIFY_TOKENS_MAX)
    }

    /// A request whose first token is a label.
    fn label_now(&self, ids: Vec<u32>) -> Generate {
        let mut again = self.request(Prompt::Ids(ids));
        again.sampling.logit_bias = vec![(self.labels.good, FORCE_BIAS), (self.labels.bad, FORCE_BIAS)];
        again.max_tokens = 1;
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::{Channel, TokenEvent, TokenLogprob};
    use crate::turn::{FinishReason, Role, Timings, Usage};

    const LABELS: Labels = Labels { good: 6, bad: 7 };

    fn asked() -> [Message; 1] {
        [Message::new(Role::User, "What is 7 + 8?")]
    }

    fn judging<'a>(asked: &'a [Message], thinking: &str, content: &str) -> Judging<'a> {
        Judging::new(asked, &[], Steps::split(thinking, content, &[]), LABELS)
    }

    fn token(id: u32, p_good: f32) -> Event {
        let of = |id, p: f32| TokenLogprob { id, text: String::new(), bytes: Vec::new(), logprob: p.ln() };
        let top = vec![of(6, p_good), of(7, 1.0 - p_good)];
        let text = String::new();
        Event::Token(TokenEvent { id: 1, token: id, channel: Channel::Answer, text, forced: false, logprob: None, top })
    }

    fn finished() -> Event {
        let (usage, timings) = (Usage::default(), Timings::default());
        let (text, stop, engram) = (String::new(), None, None);
        Event::Finished { id: 1, reason: FinishReason::Length, text, stop, usage, timings, engram }
    }

    #[test]
    fn the_weakest_step_decides() {
        let asked = asked();
        let mut judging = judging(&asked, "7 + 8 = 16\nso 16", "The answer is 16.");
        assert_eq!(judging.requests().len(), 3);
        assert_eq!(judging.take(1, token(100, 0.5)), Ok(Progress::Going));
        for (at, p) in [(0, 0.1), (1, 0.8), (2, 0.6)] {
            assert!(!judging.complete());
            assert_eq!(judging.take(at, token(if p < 0.5 { 7 } else { 6 }, p)), Ok(Progress::Judged));
        }
        assert_eq!(judging.take(0, finished()), Ok(Progress::Going), "what comes later changes nothing");
        let judgement = judging.judgement(0, &Reading::default());
        assert!(judging.complete() && judgement.verdict == 1 && (judgement.p - 0.1).abs() < 1e-5, "{judgement:?}");
        assert_eq!((judgement.thought_steps, judgement.steps.len()), (2, 3));
    }

    #[test]
    fn a_judge_that_writes_no_label_is_made_to() {
        let asked = asked();
        let mut judging = judging(&asked, "", "15");
        let started = Event::Started { id: 1, prompt_ids: vec![1, 2], cached_tokens: 0, seed: 0 };
        judging.take(0, started).unwrap();
        judging.take(0, token(50, 0.5)).unwrap();
        let Ok(Progress::Again(again)) = judging.take(0, finished()) else { panic!("no second request") };
        assert_eq!((again.prompt, again.max_tokens), (Prompt::Ids(vec![1, 2, 50]), 1));
        assert!(again.sampling.logit_bias.iter().all(|(id, _)| [6, 7].contains(id)));
        assert_eq!(judging.take(0, finished()), Err(JudgeError::NoLabel));
    }

    #[test]
    fn what_does_not_fit_is_cut_once() {
        let asked = asked();
        let mut judging = judging(&asked, "", &"9".repeat(3_000));
        let failed = || Event::Failed { id: 1, kind: FailureKind::Context, message: "too long".to_owned() };
        assert!(matches!(judging.take(0, failed()), Ok(Progress::Again(_))));
        assert_eq!(judging.take(0, failed()), Err(JudgeError::TooLong("too long".to_owned())));
    }

    #[test]
    fn nothing_said_is_wrong() {
        let asked = asked();
        let judging = judging(&asked, "", "");
        assert!(judging.requests().is_empty() && judging.complete());
        assert_eq!(judging.judgement(0, &Reading::default()).verdict, 1);
    }
}
