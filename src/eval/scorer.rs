//! A judge against the truth. Every answer of an exam is judged, and its score is compared with the exact check of its
//! item.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use serde::Serialize;

use super::golden::{GoldenError, Item, Outcome, Score};
use crate::engine::process::Running;
use crate::engine::protocol::{Command, Event, Generate};
use crate::scoring::judge::Progress;
use crate::scoring::measure::{Auc, Calibration, auc, calibration};
use crate::scoring::{Form, Judging, Labels, Reading, Steps};
use crate::toolcall;

/// One answer with its score and the truth.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    pub id: String,
    pub domain: String,
    pub passed: bool,
    pub p: f32,
    pub verdict: u8,
    pub steps: Vec<f32>,
}

/// Who judges.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    pub form: &'a Form,
    pub labels: &'a Labels,
    pub reading: &'a Reading,
    /// Revision of the adapter that makes the judge of the model; it is loaded.
    pub adapter: Option<&'a str>,
}

/// What the judge is worth.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    pub n: usize,
    pub auc: Option<Auc>,
    pub calibration: Calibration,
    /// Share of wrong answers that get verdict 3 or better, and of right ones.
    pub wrong_passed: Score,
    pub right_passed: Score,
    pub domains: BTreeMap<String, Option<Auc>>,
}

/// Judges the answers, `parallel` steps at once. An answer that the judge could not read is left out.
pub fn judge<'a>(
    engine: &Running,
    events: &Receiver<Vec<Event>>,
    answers: &[(&'a Item, &Outcome)],
    judge: Judge<'a>,
    parallel: usize,
    told: &mut dyn FnMut(usize),
) -> Result<Vec<Judged>, GoldenError> {
    let begin = |(item, outcome): &(&'a Item, &Outcome)| {
        let asked = (item.messages.as_slice(), item.tools.as_slice());
        Judging::new(asked, split(item, outcome), judge.form, judge.labels)
    };
    let mut open: Vec<Judging<'_>> = answers.iter().map(begin).collect();
    let mut waiting: VecDeque<(usize, usize, Generate)> = VecDeque::new();
    for (answer, judging) in open.iter().enumerate() {
        waiting.extend(judging.requests().into_iter().enumerate().map(|(step, request)| (answer, step, request)));
    }
    let (mut under_way, mut next, mut done) = (HashMap::new(), 1u64, 0);
    while !waiting.is_empty() || !under_way.is_empty() {
        while under_way.len() < parallel
            && let Some((answer, step, mut request)) = waiting.pop_front()
        {
            request.id = next;
            request.adapter = judge.adapter.map(str::to_owned);
            next += 1;
            under_way.insert(request.id, (answer, step));
            send(engine, Command::Generate(Box::new(request)))?;
        }
        for event in events.recv().map_err(|_| GoldenError::EngineEnded)? {
            let Some((id, last)) = about(&event) else { continue };
            let Some(&(answer, step)) = under_way.get(&id) else { continue };
            match open[answer].take(step, event) {
                Ok(Progress::Going) => {}
                Ok(Progress::Judged) => send(engine, Command::Cancel { id })?,
                Ok(Progress::Again(request)) => waiting.push_front((answer, step, *request)),
                Err(error) => tracing::warn!(%error, step, "a step was not judged"),
            }
            if last {
                under_way.remove(&id);
                done += 1;
                told(done);
            }
        }
    }
    let judged = answers.iter().zip(&open).filter(|(_, judging)| judging.complete());
    Ok(judged.map(|((item, outcome), judging)| judged_answer(item, outcome, judging, judge.reading)).collect())
}

/// Steps of all answers: the length of the work.
pub fn steps(answers: &[(&Item, &Outcome)]) -> usize {
    answers.iter().map(|(item, outcome)| split(item, outcome).len()).sum()
}

pub fn agreement(judged: &[Judged]) -> Agreement {
    let scored = |of: &[&Judged]| auc(&of.iter().map(|j| (f64::from(j.p), j.passed)).collect::<Vec<_>>());
    let passing = |passed: bool| {
        let of: Vec<&Judged> = judged.iter().filter(|j| j.passed == passed).collect();
        Score::of(of.iter().filter(|j| j.verdict >= 3).count(), of.len())
    };
    let mut domains: BTreeMap<String, Vec<&Judged>> = BTreeMap::new();
    for answer in judged {
        domains.entry(answer.domain.clone()).or_default().push(answer);
    }
    Agreement {
        n: judged.len(),
        auc: scored(&judged.iter().collect::<Vec<_>>()),
        calibration: calibration(&judged.iter().map(|j| (f64::from(j.p), j.verdict, j.passed)).collect::<Vec<_>>()),
        wrong_passed: passing(false),
        right_passed: passing(true),
        domains: domains.into_iter().map(|(name, of)| (name, scored(&of))).collect(),
    }
}

fn split(item: &Item, outcome: &Outcome) -> Steps {
    let (content, calls) = toolcall::parse(&outcome.reply, &item.tools);
    Steps::split(&outcome.thought, &content, &calls)
}

fn judged_answer(item: &Item, outcome: &Outcome, judging: &Judging<'_>, reading: &Reading) -> Judged {
    let said = judging.judgement(0, reading);
    Judged {
        id: item.id.clone(),
        domain: item.domain.clone(),
        passed: outcome.passed,
        p: said.p,
        verdict: said.verdict,
        steps: said.steps,
    }
}

fn send(engine: &Running, command: Command) -> Result<(), GoldenError> {
    engine.commands.send((command, Instant::now())).map_err(|_| GoldenError::EngineEnded)
}

/// The request that an event is about, and whether it is its last one.
fn about(event: &Event) -> Option<(u64, bool)> {
    match event {
        Event::Started { id, .. } => Some((*id, false)),
        Event::Token(token) => Some((token.id, false)),
        Event::Finished { id, .. } | Event::Failed { id, .. } => Some((*id, true)),
        _ => None,
    }
}
