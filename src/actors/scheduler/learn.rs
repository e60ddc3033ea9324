//! The phases before the gate: `score` waits for the judge, `select` makes the dataset, `train` has the candidate
//! learned from it. What each leaves is on disk before the next begins.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::desk::blocking;
use super::examine::Examined;
use super::measure::Prompted;
use super::window::Window;
use super::work::Work;
use crate::actors::memory::{Get, List, Unscored};
use crate::actors::scorer::ScoreBacklog;
use crate::actors::trainer::{Left, Take, Train};
use crate::eval::golden;
use crate::keys::{KeyRing, OWNER};
use crate::night::admission::{Admission, Chosen, Principals, Rules, choose, spare_others};
use crate::night::dataset::{self, Row};
use crate::night::learning::{self, FORMAT, Mode, SELECTION, Selected, TRAINING, Trained, Training};
use crate::night::library::{Judged, Line, Pairs};
use crate::night::likeness::Exams;
use crate::night::phase::{Candidate, Event, Outcome};
use crate::night::suspicion::{self, Measured};
use crate::plural::counted;
use crate::service::{Scope, TurnFilter};
use crate::store::first_turn_id;
use crate::turn::{Turn, TurnId};

/// Turns that are read at once.
const PAGE_TURNS: usize = 500;
/// Selections of one night, each but the first because something was forgotten during the one before.
const SELECTIONS_MAX: usize = 3;
const MEMORY_TIMEOUT: Duration = Duration::from_secs(60);
const TRAINER_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the backlog is looked at, and the Scorer reminded of it.
const LOOK: Duration = Duration::from_millis(500);
const REMIND: Duration = Duration::from_secs(20);

impl Work {
    /// Waits until the judge has spoken on everything that may be learned from, as long as the time given lasts.
    pub(super) async fn score(&self) -> Result<Event, String> {
        let waiting = self.waiting().await?;
        let total = waiting.0.len() + waiting.1.len();
        let passed = |words: String| Ok(Event::Passed { words });
        if total == 0 {
            return passed("every turn has its verdict".to_owned());
        }
        let within = Duration::from_secs_f64(self.schedule.scoring.minutes_max * 60.0);
        let end = Instant::now() + within;
        let mut left = waiting;
        let mut reminded: Option<Instant> = None;
        self.desk.begin("scoring", total);
        loop {
            if reminded.is_none_or(|at| at.elapsed() > REMIND) {
                let backlog = ScoreBacklog(left.1.iter().cloned().collect());
                match self.desk.scorer.send(backlog).await.map_err(|e| e.to_string())? {
                    Ok(()) => reminded = Some(Instant::now()),
                    Err(why) => {
                        return passed(format!(
                            "{} without a verdict: {why}",
                            counted(total, "turn stays", "turns stay")
                        ));
                    }
                }
            }
            sleep(LOOK.min(end.saturating_duration_since(Instant::now()))).await;
            left = self.still_waiting(left).await?;
            let open = left.0.len() + left.1.len();
            self.desk.reach(total - open.min(total), total);
            if open == 0 {
                return passed(format!("{total} verdicts"));
            }
            if Instant::now() >= end {
                let minutes = self.schedule.scoring.minutes_max;
                return passed(format!(
                    "{} verdicts in {minutes} minutes, {open} are missing",
                    total - open.min(total)
                ));
            }
        }
    }

    /// Turns of the window that wait for a verdict, and those with a correction that does.
    async fn waiting(&self) -> Result<(BTreeSet<TurnId>, BTreeSet<TurnId>), String> {
        let (mut turns, mut corrections) = (BTreeSet::new(), BTreeSet::new());
        let mut after = None;
        while let Some(page) = self.page(&mut after).await? {
            for turn in page.into_iter().filter(|t| t.consent && !t.taint && !t.called_tools() && t.lessons.is_empty())
            {
                if turn.feedback.iter().any(|f| f.correction.is_some() && f.judgement.is_none()) {
                    corrections.insert(turn.id.clone());
                }
                if turn.verdict.is_none() {
                    turns.insert(turn.id);
                }
            }
        }
        Ok((turns, corrections))
    }

    /// What of them waits still.
    async fn still_waiting(
        &self,
        (mut turns, mut corrections): (BTreeSet<TurnId>, BTreeSet<TurnId>),
    ) -> Result<(BTreeSet<TurnId>, BTreeSet<TurnId>), String> {
        if !turns.is_empty() {
            let all = self.desk.memory.send_within(Unscored(None, usize::MAX), MEMORY_TIMEOUT).await;
            let all: BTreeSet<TurnId> =
                all.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?.into_iter().collect();
            turns.retain(|id| all.contains(id));
        }
        for id in corrections.clone() {
            let turn = self.desk.memory.send_within(Get(id.clone()), MEMORY_TIMEOUT).await;
            let turn = turn.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            let open = |t: &Turn| t.feedback.iter().any(|f| f.correction.is_some() && f.judgement.is_none());
            if !turn.iter().any(open) {
                corrections.remove(&id);
            }
        }
        Ok((turns, corrections))
    }

    async fn list(&self, filter: TurnFilter) -> Result<Vec<Turn>, String> {
        let turns = self.desk.memory.send_within(List(filter), MEMORY_TIMEOUT).await;
        turns.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }

    /// The next turns of the window, behind `after`; `None` behind the last.
    async fn page(&self, after: &mut Option<TurnId>) -> Result<Option<Vec<Turn>>, String> {
        let hours = self.schedule.selection.window_hours;
        let since = self.run.order.started_ms - (hours * 3_600_000.0) as i64;
        let from = after.take().unwrap_or_else(|| first_turn_id(since));
        let page =
            self.list(TurnFilter { after: Some(from), limit: Some(PAGE_TURNS), ..TurnFilter::default() }).await?;
        *after = page.last().map(|turn| turn.id.clone());
        Ok((!page.is_empty()).then_some(page))
    }

    /// Makes the dataset of this night; anew where some of it was forgotten meanwhile.
    pub(super) async fn select(&self) -> Result<Event, String> {
        for _ in 0..SELECTIONS_MAX {
            *self.desk.forgettings() = Some(Vec::new());
            let event = self.select_once().await;
            let since = self.desk.forgettings().take().unwrap_or_default();
            let run_dir = self.desk.run_dir(&self.run.order.id);
            let forget = move || {
                let gone = since.iter().map(|wanted| Ok(dataset::forget(&run_dir, wanted)?.len()));
                gone.sum::<io::Result<usize>>()
            };
            let gone = blocking(forget).await?.map_err(|error| error.to_string())?;
            let event = event?;
            if gone == 0 {
                return Ok(event);
            }
            tracing::info!(gone, "turns were forgotten while pairs were selected: they are selected anew");
        }
        Err(format!("turns were forgotten during each of {SELECTIONS_MAX} selections"))
    }

    /// The newest turns of the window, the oldest first, as many as fit in memory.
    async fn window(&self) -> Result<Vec<Turn>, String> {
        let (mut turns, mut after) = (Window::default(), None);
        while let Some(page) = self.page(&mut after).await? {
            page.into_iter().for_each(|turn| turns.push(turn));
        }
        if turns.dropped > 0 {
            tracing::warn!(
                turns.dropped,
                "a night reads no more turns than this: the oldest of its window are left out"
            );
        }
        Ok(turns.turns.into())
    }

    async fn select_once(&self) -> Result<Event, String> {
        self.desk.begin("selecting", 0);
        let turns = self.window().await?;
        let room = Classroom {
            rules: self.schedule.selection,
            training: self.schedule.training,
            state_dir: self.desk.state_dir.clone(),
            exams: [&self.desk.golden, &self.desk.slice].into_iter().filter_map(|p| p.clone().ok()).collect(),
            line: self.line(),
            run: self.run.order.id.clone(),
            seed: self.schedule.training.seed.unwrap_or(self.run.order.seed),
        };
        let library = self.desk.library.clone();
        let base_hash = self.hosted().await?.model_hash.clone();
        let made = blocking(move || -> Result<_, String> {
            let known = library.load().map_err(|error| error.to_string())?;
            let (mut rows, selected, offered) = room.select(&turns, &known)?;
            spare_others(&mut rows, &turns, &base_hash);
            let chosen: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
            // Ids of another model mean something else.
            let own = |turn: &&Turn| chosen.contains(turn.id.0.as_str()) && turn.model_hash == base_hash;
            let prompted = turns.iter().filter(own);
            let prompted: BTreeMap<_, _> = prompted.map(|turn| (turn.id.0.clone(), Prompted::of(turn))).collect();
            Ok((rows, selected, offered, prompted))
        });
        let (rows, mut selected, offered, prompted) = made.await??;
        let losses = self.losses(&rows, &prompted).await.unwrap_or_else(|error| {
            tracing::warn!(error, "the pairs were not measured under the champion");
            BTreeMap::new()
        });
        let fresh = rows.iter().filter(|row| !row.origin.replayed);
        let measured: Vec<Measured> = fresh.map(|row| Measured { row, loss: losses.get(&row.id).copied() }).collect();
        selected.principals = suspicion::by_principal(&measured, &offered);
        (selected.flags, selected.suspects) = suspicion::flags(&measured, &selected.clusters);
        drop(measured);
        let run_dir = self.desk.run_dir(&self.run.order.id);
        let selected = blocking(move || keep(&run_dir, &rows, selected)).await??;
        let rules = &self.schedule.selection;
        let fresh = selected.new + selected.retried;
        if fresh < rules.pairs_min {
            let most = selected.most_refused().map_or(String::new(), |why| format!(". Most refused: {why}"));
            let words = format!(
                "nothing to learn: {}, {} are needed{most}",
                counted(fresh, "new pair", "new pairs"),
                rules.pairs_min
            );
            return Ok(Event::Nothing { words });
        }
        Ok(Event::Passed { words: selected.words() })
    }

    /// The champion's descent.
    fn line(&self) -> Line {
        let mut line = Line::default();
        let mut next = self.pointer.champion;
        while next > 0 {
            line.generations.insert(next);
            match self.generations.manifest(next) {
                Ok(manifest) => next = manifest.parent,
                // Older ones are not kept.
                Err(_) => {
                    line.unknown_to = next - 1;
                    break;
                }
            }
        }
        line
    }

    /// A candidate: one that was made elsewhere, or one learned from this night's dataset.
    pub(super) async fn train(&self) -> Result<Event, String> {
        match self.run.order.given.clone() {
            Some(given) => self.take(given).await,
            None => self.learn().await,
        }
    }

    async fn take(&self, given: PathBuf) -> Result<Event, String> {
        let words = format!("candidate taken from {}", given.display());
        let take = Take { path: given, run: self.run.order.id.clone() };
        let candidate = self.desk.trainer.send_within(take, TRAINER_TIMEOUT).await.map_err(|e| e.to_string())??;
        Ok(Event::Trained { candidate, words })
    }

    async fn learn(&self) -> Result<Event, String> {
        let (run, training) = (self.run.order.id.clone(), self.schedule.training);
        let dir = self.desk.run_dir(&run);
        let read_dir = dir.clone();
        let (rows, data_hash) = blocking(move || dataset::read(&read_dir))
            .await?
            .map_err(|error| error.to_string())?
            .ok_or("the dataset of this run is gone")?;
        if let Some((candidate, trained)) = self.left(&dir, &data_hash).await {
            return Ok(Event::Trained { candidate, words: trained.words() });
        }
        let from = match training.mode {
            Mode::Continue => self.pointer.champion,
            Mode::Fresh => 0,
        };
        let seed = training.seed.unwrap_or(self.run.order.seed);
        self.desk.begin("loading the trainer", 0);
        let desk = self.desk.clone();
        let train = Train {
            run,
            pairs: dir.join(dataset::FILE),
            from: (from > 0).then(|| self.generations.adapter(from)),
            seed,
            training,
            stop: self.stop.clone(),
            told: std::sync::Arc::new(move |step| desk.learned(step)),
        };
        let patience = Duration::from_secs_f64(training.minutes_max * 60.0) + TRAINER_TIMEOUT;
        let (candidate, said) = self.desk.trainer.send_within(train, patience).await.map_err(|e| e.to_string())??;
        let outcome = said.outcome;
        let losses: Vec<f64> = outcome.steps.iter().map(|step| step.loss).collect();
        let trained = Trained {
            format: FORMAT,
            method: training.method,
            mode: training.mode,
            from,
            seed,
            data_hash,
            sha256: candidate.sha256.clone(),
            pairs: rows.len(),
            left_out: said.refused,
            steps: outcome.steps.len(),
            tokens: outcome.tokens,
            held_out: outcome.held_out,
            loss_before: outcome.loss_before,
            loss_after: outcome.loss_after,
            compared: outcome.compared,
            margin_before: outcome.margin_before,
            margin_after: outcome.margin_after,
            curve: learning::thinned(&losses),
            seconds: said.seconds,
        };
        let words = trained.words();
        self.desk.pass("train.learned").map_err(|error| error.to_string())?;
        let kept = blocking(move || learning::write(&dir, TRAINING, &trained)).await?;
        kept.map_err(|error| format!("what was learned cannot be kept: {error}"))?;
        Ok(Event::Trained { candidate, words })
    }

    /// What an earlier life of this run trained on the same data, when it is whole.
    async fn left(&self, dir: &Path, data_hash: &str) -> Option<(Candidate, Trained)> {
        let trained: Trained = learning::read(dir, TRAINING).ok()??;
        let left = Left { run: self.run.order.id.clone() };
        let candidate = self.desk.trainer.send_within(left, TRAINER_TIMEOUT).await.ok()??;
        (candidate.sha256 == trained.sha256 && trained.data_hash == data_hash).then_some((candidate, trained))
    }

    /// At the end of a run that was judged, its new pairs go to the library.
    pub(super) async fn file_pairs(&self) -> Result<(), String> {
        if self.run.order.dry_run {
            return Ok(());
        }
        let promoted = match self.run.outcome {
            Some(Outcome::Promoted { generation, .. }) => Some(generation),
            Some(Outcome::Rejected { .. }) => None,
            _ => return Ok(()),
        };
        let (library, run) = (self.desk.library.clone(), self.run.order.id.clone());
        let dir = self.desk.run_dir(&run);
        let filed = blocking(move || -> Result<(), String> {
            let Some((rows, _)) = dataset::read(&dir).map_err(|e| e.to_string())? else { return Ok(()) };
            let fresh = rows.into_iter().filter(|row| !row.origin.replayed).collect();
            let selected: Option<Selected> = learning::read(&dir, SELECTION)?;
            let suspects = selected.map(|selected| selected.suspects).unwrap_or_default();
            let harm = || Ok::<_, String>(Examined::read(&dir)?.is_some_and(|examined| examined.harm()));
            let judged = match promoted {
                Some(generation) => Judged::Promoted(generation),
                None if harm()? => Judged::Harmful,
                None => Judged::Refused,
            };
            library.file(&run, fresh, judged, &suspects).map_err(|e| e.to_string())
        });
        filed.await?
    }
}

/// How many pairs each principal offered.
type Offered = BTreeMap<String, usize>;

/// What a selection is made with.
struct Classroom {
    rules: Rules,
    training: Training,
    state_dir: PathBuf,
    exams: Vec<PathBuf>,
    line: Line,
    run: String,
    seed: u64,
}

impl Classroom {
    /// The pairs, what became of the turns, and who offered how many.
    fn select(&self, turns: &[Turn], known: &Pairs) -> Result<(Vec<Row>, Selected, Offered), String> {
        let (principals, exams) = (principals(&self.state_dir)?, exams(&self.exams)?);
        let retries = self.training.retries_max;
        let learned = known.questions(&self.line, retries);
        let known =
            &known.of(|row| principals.teaches(&row.origin.principal) && principals.teaches(&row.origin.author));
        let admission =
            Admission { rules: &self.rules, principals: &principals, exams: &exams, learned: &learned, run: &self.run };
        let mut refused = BTreeMap::new();
        let mut rows = known.again(&self.line, retries);
        let again: BTreeSet<String> = rows.iter().map(|row| row.id.clone()).collect();
        for turn in turns.iter().filter(|turn| !again.contains(&turn.id.0)) {
            match admission.examine(turn) {
                Ok(row) => rows.push(row),
                Err(why) => *refused.entry(why).or_insert(0) += 1,
            }
        }
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        let Chosen { rows: mut chosen, refused: of_the_set, offered, clusters } =
            choose(rows, &self.rules, &principals);
        of_the_set.into_iter().for_each(|(why, count)| *refused.entry(why).or_insert(0) += count);
        chosen.truncate(self.training.pairs_max);
        let fresh = chosen.len();
        let retried = chosen.iter().filter(|row| again.contains(&row.id)).count();
        let room = ((fresh as f64 * self.training.replay) as usize).min(self.training.pairs_max - fresh);
        let mut shown = known.replay(&self.line, room, self.seed);
        shown.iter_mut().for_each(|row| row.origin.replayed = true);
        let selected = Selected {
            format: FORMAT,
            turns: turns.len(),
            refused: refused.into_iter().collect(),
            new: fresh - retried,
            retried,
            replayed: shown.len(),
            clusters,
            ..Selected::default()
        };
        Ok(([shown, chosen].concat(), selected, offered))
    }
}

fn keep(run_dir: &Path, rows: &[Row], selected: Selected) -> Result<Selected, String> {
    let write = || -> std::io::Result<Selected> {
        let data_hash = dataset::write(run_dir, rows)?;
        let selected = Selected { data_hash, ..selected };
        learning::write(run_dir, SELECTION, &selected)?;
        Ok(selected)
    };
    write().map_err(|error| format!("the dataset cannot be kept: {error}"))
}

/// Everybody with a key, and the machine's owner.
pub(super) fn principals(state_dir: &Path) -> Result<Principals, String> {
    let ring = KeyRing::load(state_dir).map_err(|error| error.to_string())?;
    let mut principals = Principals::default();
    principals.known.insert(OWNER.to_owned());
    principals.owners.insert(OWNER.to_owned());
    for entry in ring.entries().iter().filter(|entry| entry.revoked.is_none()) {
        principals.known.insert(entry.name.clone());
        if entry.scopes.contains(&Scope::Admin) {
            principals.owners.insert(entry.name.clone());
        }
        if !entry.consent {
            principals.withdrawn.insert(entry.name.clone());
        }
    }
    Ok(principals)
}

/// The prompts of the exams, and of the exam of whole weeks beside them: its questions are read so that none of them is
/// ever learned, and for nothing else.
pub(super) fn exams(paths: &[PathBuf]) -> Result<Exams, String> {
    let mut exams = Exams::default();
    let weeks = paths.iter().flat_map(|path| golden::files("week").map(|file| path.with_file_name(file)));
    let beside = weeks.filter(|path| path.is_file());
    let all: BTreeSet<PathBuf> = paths.iter().cloned().chain(beside).collect();
    for path in all {
        let items = golden::read(&path).map_err(|error| error.to_string())?;
        items.iter().for_each(|item| exams.add(&item.messages));
    }
    Ok(exams)
}
