//! The phase `gate`: measures a candidate against the champion, cheapest first, and lets the gate judge. What was
//! found is on disk before the judgement counts.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::desk::{Desk, ExamPath, blocking};
use super::exam::{self, Asked, Both, SPEED_STEPS};
use super::host::Contender;
use crate::eval::golden::Item;
use crate::night::answers::Answers;
use crate::night::gate::{Evidence, Limits, Pair, Rule, Verdict, count, futile, hopeless, judge};
use crate::night::inspect::{Facts, inspect};
use crate::night::manifest::{AdapterFile, Metrics};
use crate::night::phase::{Candidate, Run};
use crate::night::report::Answered;
use crate::night::schedule::Schedule;
use crate::night::stats::{Paired, Z_ONE_SIDED_95, Z_TWO_SIDED_95, items_needed};
use crate::store::files::{create_private_dir, places, read_bounded, write_durable};

pub const FORMAT: u32 = 1;
const FILE: &str = "gate.json";
const BYTES_MAX: u64 = 256 << 20;
/// Items that the divergence is measured on, and items before the number of all of them is chosen.
const FIRST_ITEMS: usize = 64;
const PILOT_ITEMS: usize = 600;

/// Everything that a run found out about its candidate: `runs/<run>/gate.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Examined {
    pub format: u32,
    pub verdict: Verdict,
    /// The generation that the candidate was compared with.
    pub champion: u64,
    pub base_model: String,
    pub base_hash: String,
    pub adapter: Option<AdapterFile>,
    pub metrics: Metrics,
    pub golden: Vec<Answered>,
    pub slice: Vec<Answered>,
}

impl Examined {
    pub fn read(run_dir: &Path) -> Result<Option<Examined>, String> {
        let text = read_bounded(&run_dir.join(FILE), BYTES_MAX).map_err(|error| error.to_string())?;
        text.map(|text| serde_json::from_str(&text).map_err(|error| format!("{FILE} is damaged: {error}"))).transpose()
    }

    /// Whether the candidate was clearly worse than the champion: the whole 95 % interval of the difference lies below zero.
    pub(super) fn harm(&self) -> bool {
        let answered = self.golden.iter().chain(&self.slice).map(|item| (item.pair.champion, item.pair.candidate));
        Paired::of(answered).interval(Z_TWO_SIDED_95).1 < 0.0
    }

    fn write(&self, run_dir: &Path) -> io::Result<()> {
        create_private_dir(run_dir)?;
        write_durable(&run_dir.join(FILE), &serde_json::to_vec(self).map_err(io::Error::other)?)
    }
}

/// What is compared, and by which rules.
pub(super) struct Trial<'a> {
    pub(super) desk: &'a Desk,
    pub(super) schedule: &'a Schedule,
    pub(super) run: &'a Run,
    pub(super) champion: u64,
    pub(super) champion_asked: Contender,
    pub(super) base: (String, String),
}

impl Trial<'_> {
    /// Examines the candidate and keeps what was found.
    pub(super) async fn run(&self, candidate: &Candidate) -> Result<Verdict, String> {
        let mut evidence = Evidence { first: !self.champion_asked.adapted(), ..Evidence::default() };
        let (path, base_hash) = (candidate.path.clone(), self.base.1.clone());
        let mut facts = match blocking(move || inspect(&path, &base_hash)).await? {
            Ok(facts) => Some(facts),
            Err(fault) => {
                evidence.file_fault = Some(fault.to_string());
                None
            }
        };
        if facts.as_ref().is_some_and(|f| f.sha256 != candidate.sha256) {
            (facts, evidence.file_fault) = (None, Some("it changed since it was made".to_owned()));
        }
        let mut answers = (Vec::new(), Vec::new());
        if let Some(facts) = &facts {
            evidence.update_rms = Some(facts.update_rms);
            if self.promising(&evidence) {
                let revision = format!("candidate-{}", self.run.order.id);
                let asked = Contender::new(revision, candidate.path.clone(), facts.sha256.clone());
                let measured = self.measure(&asked, &mut evidence, &mut answers).await;
                asked.unload(self.desk).await;
                measured?;
            }
        }
        self.keep(evidence, facts, answers).await
    }

    /// Whether no rule that was measured so far rejects: the rest is not worth measuring otherwise.
    fn promising(&self, evidence: &Evidence) -> bool {
        let so_far = [Rule::File, Rule::UpdateNorm, Rule::Divergence];
        let measured = if evidence.kl.is_some() { 3 } else { 2 };
        judge(evidence, &self.schedule.gate).findings.iter().all(|f| f.passed || !so_far[..measured].contains(&f.rule))
    }

    async fn measure(
        &self,
        candidate: &Contender,
        evidence: &mut Evidence,
        answers: &mut (Vec<Answered>, Vec<Answered>),
    ) -> Result<(), String> {
        let (limits, exam) = (&self.schedule.gate, self.schedule.exam);
        let seed = self.run.order.seed;
        let golden = open(&self.desk.golden, exam.items_max, seed).await?;
        let slice = open(&self.desk.slice, exam.items_max, seed).await?;
        self.champion_asked.load(self.desk).await?;
        if let Err(fault) = candidate.load(self.desk).await {
            evidence.file_fault = Some(format!("the engine refuses it: {fault}"));
            return Ok(());
        }
        self.desk.begin("golden exam", golden.len() + slice.len() + SPEED_STEPS);
        let mut both = self.both(candidate).await?;
        let first = self.ask(&golden, 0..FIRST_ITEMS, &mut both).await?;
        evidence.kl = candidate.divergence(self.desk, &first).await?;
        let mut asked: Vec<Answered> = first.into_iter().map(|a| a.answered).collect();
        if self.promising(evidence) {
            let pilot = self.ask(&golden, FIRST_ITEMS..PILOT_ITEMS, &mut both).await?;
            asked.extend(pilot.into_iter().map(|a| a.answered));
        }
        evidence.golden = pairs(&asked);
        if self.promising(evidence) && !hopeless(&evidence.golden, limits) {
            let wanted = wanted(&evidence.golden, limits, golden.len());
            let rest = self.ask(&golden, PILOT_ITEMS..wanted, &mut both).await?;
            asked.extend(rest.into_iter().map(|a| a.answered));
            evidence.golden = pairs(&asked);
            if !futile(&evidence.golden, limits) {
                let tuned = self.ask(&slice, 0..wanted, &mut both).await?;
                answers.1 = tuned.into_iter().map(|a| a.answered).collect();
                evidence.slice = pairs(&answers.1);
            }
            evidence.speed = exam::speed(self.desk, &golden, &self.champion_asked, candidate, exam.parallel).await?;
        }
        answers.0 = asked;
        Ok(())
    }

    /// Both contenders with their answers of earlier nights, and of an earlier life of this one.
    async fn both<'a>(&'a self, candidate: &'a Contender) -> Result<Both<'a>, String> {
        let how = exam::asked_how(self.desk, &self.base.1, [&self.desk.golden, &self.desk.slice]).await?;
        let contenders = [&self.champion_asked, candidate];
        let (state_dir, shas) = (self.desk.state_dir.clone(), contenders.map(|c| c.sha256().to_owned()));
        let answers = blocking(move || {
            let load = |sha: &String| {
                let whose: Vec<&str> = how.iter().chain([sha]).map(String::as_str).collect();
                Answers::load(&state_dir, &whose)
            };
            Ok([load(&shas[0])?, load(&shas[1])?])
        });
        let answers: io::Result<[Answers; 2]> = answers.await?;
        let answers = answers.map_err(|error| format!("the answers of earlier nights cannot be read: {error}"))?;
        Ok(Both { contenders, answers })
    }

    async fn ask(
        &self,
        items: &[Item],
        range: std::ops::Range<usize>,
        both: &mut Both<'_>,
    ) -> Result<Vec<Asked>, String> {
        let part = &items[range.start.min(items.len())..range.end.clamp(range.start.min(items.len()), items.len())];
        exam::ask(self.desk, part, both, self.schedule.exam.parallel).await
    }

    async fn keep(
        &self,
        evidence: Evidence,
        facts: Option<Facts>,
        (golden, slice): (Vec<Answered>, Vec<Answered>),
    ) -> Result<Verdict, String> {
        let verdict = judge(&evidence, &self.schedule.gate);
        let examined = Examined {
            format: FORMAT,
            verdict: verdict.clone(),
            champion: self.champion,
            base_model: self.base.0.clone(),
            base_hash: self.base.1.clone(),
            adapter: facts.map(|f| AdapterFile {
                bytes: f.bytes,
                sha256: f.sha256,
                rank: f.rank,
                alpha: f.alpha,
                targets: f.targets,
            }),
            metrics: metrics(&evidence),
            golden,
            slice,
        };
        let dir = self.desk.run_dir(&self.run.order.id);
        let written = blocking(move || examined.write(&dir)).await?;
        written.map_err(|error| format!("cannot keep what the gate found: {error}"))?;
        Ok(verdict)
    }
}

/// Items that decide: as many as the disagreement of the first ones calls for. It depends on how often the two
/// differ, never on who wins, and so the test that follows stays honest.
fn wanted(golden: &[Pair], limits: &Limits, available: usize) -> usize {
    items_needed(count(golden).discordance(), limits.margin).max(PILOT_ITEMS).min(available)
}

fn pairs(answered: &[Answered]) -> Vec<Pair> {
    answered.iter().map(|a| a.pair.clone()).collect()
}

fn metrics(evidence: &Evidence) -> Metrics {
    let (golden, slice) = (count(&evidence.golden), count(&evidence.slice));
    let rate = |right: usize| right as f64 / golden.n.max(1) as f64;
    Metrics {
        golden_items: golden.n,
        golden_champion: rate(golden.champion),
        golden_candidate: rate(golden.candidate),
        golden_low: golden.interval(Z_ONE_SIDED_95).0,
        slice_items: slice.n,
        slice_difference: slice.difference(),
        kl: evidence.kl,
        update_rms: evidence.update_rms,
        speed: evidence.speed.map(|s| s.ratio),
        ..Metrics::default()
    }
}

/// Reads an exam that the configuration names, its items in an order that the seed draws.
pub(super) async fn open(path: &ExamPath, items_max: usize, seed: u64) -> Result<Vec<Item>, String> {
    match path {
        Ok(path) => {
            let path = path.clone();
            blocking(move || exam::read(&path, items_max, seed)).await?
        }
        Err(paths) => {
            let places = places(paths);
            Err(format!("no exam: set night.golden and night.slice, or put them in one of {places}"))
        }
    }
}
