//! The judgement of one choice, without input or output: which requests the judge's engine must be sent, what its
//! events mean, and what comes out. Steps are judged independently, so all of them may be under way at once.

use serde_json::Value;

use crate::engine::protocol::{Event, FailureKind, Generate, Prompt};
use crate::turn::{ChoiceJudgement, FinishReason, Message, Sampling};

use super::form::{Asked, Form, Labels};
use super::prompt::Limits;
use super::reading::{Reading, label_logit, sigmoid};
use super::steps::Steps;

/// Alternatives that are read at the label.
const ALTERNATIVES: u8 = 20;
/// Added to both labels where the judge did not write one by itself: a label follows, and their difference stays.
const FORCE_BIAS: f32 = 100.0;

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

#[derive(Default)]
struct Step {
    logit: Option<f32>,
    prompt_ids: Vec<u32>,
    written: Vec<u32>,
    /// The text of what was written.
    said: String,
    /// Labels that counted so far.
    labels: usize,
    /// Nothing but a label can come.
    forced: bool,
    narrow: bool,
}

/// One choice under judgement.
pub struct Judging<'a> {
    /// What the choice answers.
    asked: (&'a [Message], &'a [Value]),
    steps: Steps,
    form: &'a Form,
    labels: &'a Labels,
    scores: Vec<Step>,
}

impl<'a> Judging<'a> {
    /// `asked`: the messages that the choice answers, and the tools that were offered.
    pub fn new(asked: (&'a [Message], &'a [Value]), steps: Steps, form: &'a Form, labels: &'a Labels) -> Judging<'a> {
        let forced = form.think_tokens == 0;
        let scores = (0..steps.len()).map(|_| Step { forced, ..Step::default() }).collect();
        Judging { asked, steps, form, labels, scores }
    }

    /// The request of every step, in order. None at all for a choice that says nothing.
    pub fn requests(&self) -> Vec<Generate> {
        (0..self.steps.len()).map(|at| self.request(at, Limits::USUAL)).collect()
    }

    /// Takes an event of the request of step `at`.
    pub fn take(&mut self, at: usize, event: Event) -> Result<Progress, JudgeError> {
        let Some(step) = self.scores.get_mut(at).filter(|step| step.logit.is_none()) else {
            return Ok(Progress::Going);
        };
        match event {
            Event::Started { prompt_ids, .. } if !step.forced => step.prompt_ids = prompt_ids,
            Event::Token(token) => {
                step.said += &token.text;
                let label = label_logit(&token, self.labels.good, self.labels.bad)
                    .filter(|_| step.forced || self.form.counts(&step.said, token.token == self.labels.good));
                step.labels += usize::from(label.is_some());
                if label.is_some() && (step.forced || !self.form.label_each || step.labels > at) {
                    step.logit = label;
                    return Ok(Progress::Judged);
                }
                step.written.push(token.token);
            }
            Event::Finished { .. } if step.forced => return Err(JudgeError::NoLabel),
            Event::Finished { reason, .. } => {
                step.forced = true;
                // Nothing is said behind the end of a reply. (`nano-prm` reads on, as it always did.)
                if reason == FinishReason::Stop && self.form.asked != Asked::Nano {
                    step.written.pop();
                }
                let ids = [step.prompt_ids.as_slice(), &step.written, &self.labels.before].concat();
                return Ok(Progress::Again(Box::new(self.label_now(Prompt::Ids(ids)))));
            }
            Event::Failed { kind: FailureKind::Context, message, .. } => {
                if step.narrow {
                    return Err(JudgeError::TooLong(message));
                }
                *step = Step { forced: self.form.think_tokens == 0, narrow: true, ..Step::default() };
                return Ok(Progress::Again(Box::new(self.request(at, Limits::NARROW))));
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
            verdict: reading.verdict(p, self.steps.answer_chars()),
            p,
            thought_steps: self.steps.thought.len() as u32,
            steps: logits.into_iter().map(sigmoid).collect(),
        }
    }

    fn request(&self, at: usize, limits: Limits) -> Generate {
        let prompt = self.form.prompt(self.asked, &self.steps, at, limits);
        match self.form.think_tokens {
            0 => self.label_now(prompt),
            most => Generate { thinking: self.form.thinking(), ..ask(prompt, most) },
        }
    }

    /// A request whose first token is a label.
    fn label_now(&self, prompt: Prompt) -> Generate {
        let mut request = ask(prompt, 1);
        request.sampling.logit_bias = vec![(self.labels.good, FORCE_BIAS), (self.labels.bad, FORCE_BIAS)];
        request
    }
}

fn ask(prompt: Prompt, max_tokens: u32) -> Generate {
    let sampling = Sampling { temperature: 0.0, logprobs: Some(ALTERNATIVES), ..Sampling::default() };
    Generate::new(prompt, sampling, max_tokens)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::engine::protocol::{Channel, TokenEvent, TokenLogprob};
    use crate::scoring::form::Words;
    use crate::turn::{Role, Timings, Usage};

    static LABELS: Labels = Labels { good: 6, bad: 7, before: Vec::new() };
    static NANO: LazyLock<Form> = LazyLock::new(Form::default);

    fn asked() -> [Message; 1] {
        [Message::new(Role::User, "What is 7 + 8?")]
    }

    fn judging<'a>(asked: &'a [Message], thinking: &str, content: &str) -> Judging<'a> {
        Judging::new((asked, &[]), Steps::split(thinking, content, &[]), &NANO, &LABELS)
    }

    fn token(id: u32, p_good: f32) -> Event {
        let of = |id, p: f32| TokenLogprob { id, text: String::new(), bytes: Vec::new(), logprob: p.ln() };
        let top = vec![of(6, p_good), of(7, 1.0 - p_good)];
        let text = String::new();
        Event::Token(TokenEvent { id: 1, token: id, channel: Channel::Answer, text, forced: false, logprob: None, top })
    }

    fn finished() -> Event {
        finished_by(FinishReason::Length)
    }

    fn finished_by(reason: FinishReason) -> Event {
        let (usage, timings) = (Usage::default(), Timings::default());
        let (text, stop, engram) = (String::new(), None, None);
        Event::Finished { id: 1, reason, text, stop, usage, timings, engram, thought: None }
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
        let started =
            Event::Started { id: 1, prompt_ids: vec![1, 2], cached_tokens: 0, seed: 0, not_enforced: Vec::new() };
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

    /// A judge that writes `judged: ` before each of its labels, and one label for each step that it was shown.
    fn verifier(think_tokens: u32, label_each: bool) -> Form {
        let words = Words { prompt: "{question} {steps}".to_owned(), step: "{step}".to_owned() };
        let (asked, before_label) = (Asked::Text(words), "judged: ".to_owned());
        let (good, bad) = ("yes".to_owned(), "no".to_owned());
        Form { good, bad, asked, before_label, think_tokens, label_each }
    }

    fn says(id: u32, said: &str) -> Event {
        match token(id, 0.25) {
            Event::Token(token) => Event::Token(TokenEvent { text: said.to_owned(), ..token }),
            other => other,
        }
    }

    #[test]
    fn a_verifiers_label_counts_behind_its_words_and_for_the_judged_step() {
        let (asked, labels) = (asked(), Labels { before: vec![30, 31], ..LABELS.clone() });
        let steps = || Steps::split("a\nb", "c", &[]);
        let words = [(50, "yes? "), (6, "yes"), (51, ", judged: "), (7, "no")];
        for (label_each, judged_by_first) in [(false, true), (true, false)] {
            let form = verifier(40, label_each);
            let mut judging = Judging::new((&asked, &[]), steps(), &form, &labels);
            assert_eq!(judging.requests()[1].max_tokens, 40);
            judging
                .take(
                    1,
                    Event::Started { id: 1, prompt_ids: vec![1], cached_tokens: 0, seed: 0, not_enforced: Vec::new() },
                )
                .unwrap();
            let told: Vec<_> = words.iter().map(|(id, said)| judging.take(1, says(*id, said)).unwrap()).collect();
            assert_eq!(told[..3], [Progress::Going, Progress::Going, Progress::Going], "no label behind its words");
            assert_eq!(told[3] == Progress::Judged, judged_by_first);
            if label_each {
                judging.take(1, says(52, "; judged:")).unwrap();
                assert_eq!(judging.take(1, says(6, " yes")), Ok(Progress::Judged), "the second step's own");
            }
            assert!((judging.scores[1].logit.unwrap() - (0.25f32 / 0.75).ln()).abs() < 1e-5);
        }
    }

    #[test]
    fn a_verifier_that_ends_or_may_not_write_is_asked_for_the_label() {
        let (asked, labels) = (asked(), Labels { before: vec![30, 31], ..LABELS.clone() });
        let form = verifier(40, false);
        let mut judging = Judging::new((&asked, &[]), Steps::split("", "c", &[]), &form, &labels);
        judging
            .take(0, Event::Started { id: 1, prompt_ids: vec![1], cached_tokens: 0, seed: 0, not_enforced: Vec::new() })
            .unwrap();
        judging.take(0, says(50, "well")).unwrap();
        judging.take(0, says(2, "")).unwrap();
        let Ok(Progress::Again(again)) = judging.take(0, finished_by(FinishReason::Stop)) else { panic!("no request") };
        assert_eq!(again.prompt, Prompt::Ids(vec![1, 50, 30, 31]), "what ended the reply is left out");
        assert_eq!(judging.take(0, says(7, "no")), Ok(Progress::Judged), "wherever it stands");
        let form = verifier(0, false);
        let mut judging = Judging::new((&asked, &[]), Steps::split("", "c", &[]), &form, &labels);
        let request = judging.requests().remove(0);
        assert_eq!((request.max_tokens, request.sampling.logit_bias.len()), (1, 2));
        assert_eq!(request.prompt, Prompt::Text("What is 7 + 8? cjudged: ".to_owned()));
        assert_eq!(judging.take(0, says(6, "")), Ok(Progress::Judged));
    }

    #[test]
    fn nothing_said_is_wrong() {
        let asked = asked();
        let judging = judging(&asked, "", "");
        assert!(judging.requests().is_empty() && judging.complete());
        assert_eq!(judging.judgement(0, &Reading::default()).verdict, 1);
    }
}
