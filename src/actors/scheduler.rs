//! The Scheduler owns the night: its phase record, the pointer to the served generation, the canary, and the beat
//! that asks which job is due. It writes every phase to disk before it acts, so that a run that was killed resumes or
//! is given up. Whatever fails, the generation that served yesterday keeps serving.

pub mod desk;
mod exam;
mod examine;
mod host;
mod learn;
mod measure;
mod optimise;
mod paper;
mod promote;
mod reindex;
mod reinforce;
mod status;
mod tenure;
mod weigh;
mod window;
mod work;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use actix::fut::wrap_future;
use actix::prelude::*;
use serde_json::{Value, json};
use tokio_cron_scheduler::{Job as CronJob, JobScheduler, JobSchedulerError};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

pub use desk::Desk;
pub use host::Host;
pub use tenure::{Hold, HoldNight};

use super::inference::EngineState;
use crate::engine::learns;
use crate::night::canary::Watched;
use crate::night::generation::{Generations, Pointer};
use crate::night::phase::{Action, Event, Job, Order, Outcome, Phase, phase};
use crate::night::record::{Handled, Past, Record};
use crate::night::schedule::{Conditions, Due, Schedule};
use crate::service::{Forgetting, NightCommand, ServiceError};
use work::{Work, Worked};

/// How often the Scheduler looks at the clock, and of these beats how many for a look at the canary's turns.
const EVERY_SECOND: &str = "* * * * * *";
const BEATS_A_LOOK: u64 = 3;
/// Without a beat for so long, the ticker is started anew.
const WATCH: Duration = Duration::from_secs(15);

/// A command for the night.
#[derive(Message)]
#[rtype(result = "Result<Value, ServiceError>")]
pub struct Night(pub NightCommand);

#[derive(Message)]
#[rtype(result = "Value")]
pub struct SchedulerStatus;

/// `night.yaml` may have changed.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ScheduleChanged;

/// Turns are about to be forgotten: what was learned from them is not learned from again. → pairs that went.
#[derive(Message)]
#[rtype(result = "Result<usize, String>")]
pub struct ForgetPairs(pub Forgetting);

/// Time has passed.
#[derive(Message)]
#[rtype(result = "()")]
struct Beat;

pub struct Scheduler {
    desk: Arc<Desk>,
    /// `Err`: why no generation can be read; the base model serves.
    generations: Result<Arc<Generations>, String>,
    record: Record,
    /// Why the record cannot be trusted: no run begins.
    fault: Option<String>,
    schedule: Result<Arc<Schedule>, String>,
    pointer: Pointer,
    /// The engine (by its number of starts) that holds what the pointer names.
    recovered: Option<u64>,
    recovering: tenure::Recovering,
    /// At the canary.
    looks: tenure::Looks,
    /// Somebody is changing the pointer.
    changing: bool,
    /// There as long as somebody is changing the model.
    held: Weak<()>,
    stop: CancellationToken,
    cron: Result<JobScheduler, String>,
    beats: u64,
    beaten: Instant,
    /// What was seen of the canary's stage.
    watched: Option<Watched>,
}

impl Scheduler {
    pub fn new(desk: Arc<Desk>) -> Self {
        let generations = Generations::open(&desk.state_dir).map(Arc::new).map_err(|error| error.to_string());
        let (record, fault) = match Record::load(&desk.state_dir) {
            Ok(record) => (record, None),
            Err(error) => {
                let path = Record::path(&desk.state_dir);
                let fault =
                    format!("{}: {error}: put a copy of it back, or move it away to begin anew", path.display());
                (Record::default(), Some(fault))
            }
        };
        let schedule = desk.schedule().map(Arc::new).map_err(|error| error.to_string());
        for why in [generations.as_ref().err(), fault.as_ref(), schedule.as_ref().err()].into_iter().flatten() {
            tracing::error!(why, "the night stands still");
        }
        Scheduler {
            desk,
            generations,
            record,
            fault,
            schedule,
            pointer: Pointer::base(),
            recovered: None,
            recovering: tenure::Recovering::default(),
            looks: tenure::Looks::default(),
            changing: false,
            held: Weak::new(),
            stop: CancellationToken::new(),
            cron: Err("starting".to_owned()),
            beats: 0,
            beaten: Instant::now(),
            watched: None,
        }
    }

    fn notice(&mut self, words: String) {
        tracing::warn!("night: {words}");
        self.record.notices.push(words);
    }

    fn save(&mut self) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        self.desk.pass("record.save").map_err(|error| error.to_string())?;
        self.record.save(&self.desk.state_dir).map_err(|error| error.to_string())
    }

    /// Starts the ticker. Its job has a pattern and no period: after a delay a periodic one never runs again.
    fn start_cron(&mut self, context: &mut Context<Self>) {
        self.beaten = Instant::now();
        let address = context.address();
        let start = async move {
            let cron = JobScheduler::new().await?;
            // A full mailbox misses a beat; the next one comes.
            let beat = move |_, _| -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
                let _ = address.try_send(Beat);
                Box::pin(async {})
            };
            cron.add(CronJob::new_async(EVERY_SECOND, beat)?).await?;
            cron.start().await?;
            Ok::<_, JobSchedulerError>(cron)
        };
        context.spawn(wrap_future::<_, Self>(start).map(|cron, scheduler, context| {
            let old = std::mem::replace(&mut scheduler.cron, cron.map_err(|error| error.to_string()));
            if let Ok(mut old) = old {
                context.spawn(wrap_future(async move { drop(old.shutdown().await) }));
            }
        }));
    }

    /// One event of the run: the next state is on disk before anything is done in it.
    fn step(&mut self, event: Event, context: &mut Context<Self>) {
        let before = self.record.run.clone();
        let (run, action) = phase(self.record.run.take(), event);
        if let (Some(ended), None) = (&before, &run) {
            let outcome = ended.outcome.clone().unwrap_or(Outcome::Nothing { words: String::new() });
            tracing::info!(run = ended.order.id, job = ended.order.job.name(), words = outcome.words(), "run ended");
            self.record.past.push(Past {
                id: ended.order.id.clone(),
                job: ended.order.job,
                started_ms: ended.order.started_ms,
                ended_ms: self.desk.clock.now_ms(),
                outcome,
            });
        }
        self.record.run = run;
        if let Err(error) = self.save() {
            // What is on disk resumes at the next start; nothing is done that is not written.
            self.record.run = None;
            return self.notice(format!("the run is dropped, its record cannot be written: {error}"));
        }
        if let Action::Run(at) = action {
            self.work(at, context);
        }
    }

    fn work(&mut self, at: Phase, context: &mut Context<Self>) {
        let (Some(run), Ok(generations), Ok(schedule)) = (&self.record.run, &self.generations, &self.schedule) else {
            let words = "the generations or night.yaml cannot be read".to_owned();
            return self.step(Event::Failed { words }, context);
        };
        self.stop = CancellationToken::new();
        self.desk.begin(at.name(), 0);
        let past = self.record.past.iter().rev();
        let work = Work {
            desk: self.desk.clone(),
            generations: generations.clone(),
            schedule: schedule.clone(),
            run: run.clone(),
            pointer: self.pointer,
            notices: self.record.notices.clone(),
            known: past.clone().map(|p| p.id.clone()).collect(),
            before: past.filter(|p| p.job == Job::Train).map(|p| p.id.clone()).next(),
            stop: self.stop.clone(),
        };
        self.changing |= at == Phase::Promote;
        context.spawn(wrap_future::<_, Self>(work.run()).map(move |worked: Worked, this, context| {
            if at == Phase::Promote {
                this.changing = false;
            }
            if let Some(pointer) = worked.pointer {
                (this.pointer, this.watched) = (pointer, None);
            }
            this.step(worked.event, context);
        }));
    }

    /// What of the night is under way.
    fn busy(&self) -> Option<String> {
        let run = self.record.run.as_ref().map(|run| format!("run {} is under way", run.order.id));
        let changing = || self.changing.then(|| "the served generation is being changed".to_owned());
        let held = || (self.held.strong_count() > 0).then(|| "the served model is being changed".to_owned());
        run.or_else(changing).or_else(held)
    }

    /// The pointer is being changed, or is not that of the model that serves now.
    fn moving(&self) -> bool {
        self.changing || self.held.strong_count() > 0 || self.desk.board.withheld()
    }

    /// Whether a run may begin.
    fn free(&self) -> Result<(), String> {
        let faults =
            [self.fault.clone(), self.generations.as_ref().err().cloned(), self.schedule.as_ref().err().cloned()];
        let early = (self.recovered.is_none() || self.desk.board.withheld()).then(|| "no engine serves yet".to_owned());
        match faults.into_iter().flatten().chain(self.busy()).chain(early).next() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    fn begin(
        &mut self,
        job: Job,
        given: Option<std::path::PathBuf>,
        dry_run: bool,
        context: &mut Context<Self>,
    ) -> String {
        let now = self.desk.clock.now_ms();
        let id = self.record.run_id(&self.desk.clock.date(), |id| self.desk.run_dir(id).exists());
        let order = Order { id: id.clone(), job, started_ms: now, dry_run, given, seed: now.unsigned_abs() };
        if job == Job::Train && !dry_run && self.pointer.canary.is_some() {
            self.notice("the canary was not through before the next night: rolled back".to_owned());
            self.move_back(None, context, |this, context| this.step(Event::Begin(order), context));
        } else {
            self.step(Event::Begin(order), context);
        }
        id
    }

    fn beat(&mut self, context: &mut Context<Self>) {
        self.beats += 1;
        self.beaten = Instant::now();
        let ready = matches!(self.desk.board.state(), EngineState::Ready(_));
        if !self.desk.board.behind() {
            self.recovering.caught_up();
        } else if ready && !self.changing && self.recovering.due(Instant::now()) {
            self.recover(context);
        }
        if self.pointer.canary.is_some() && !self.moving() && self.beats % BEATS_A_LOOK == 0 {
            self.look(context);
        }
        if !self.desk.enabled || self.record.paused || self.free().is_err() {
            return;
        }
        let Ok(schedule) = self.schedule.clone() else { return };
        let conditions = self.conditions();
        for (job, entry) in &schedule.jobs {
            let handled = *self.record.jobs.entry(*job).or_insert(Handled { until_ms: conditions.now_ms });
            if let Due::Now { due_ms } = entry.due(handled, conditions, &self.desk.zone) {
                self.record.jobs.insert(*job, Handled { until_ms: due_ms });
                drop(self.begin(*job, None, false, context));
                return;
            }
        }
    }

    fn conditions(&self) -> Conditions {
        let now_ms = self.desk.clock.now_ms();
        Conditions { now_ms, idle_ms: self.desk.board.idle_ms(now_ms), on_battery: desk::on_battery() }
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.start_cron(context);
        // The crate's ticker goes by the wall clock, and stands still when that is set back.
        context.run_interval(WATCH, |this, context| {
            if this.beaten.elapsed() > WATCH {
                tracing::warn!("cron stood still: started anew");
                this.start_cron(context);
                this.beat(context);
            }
        });
        context.add_stream(WatchStream::new(self.desk.board.watch()));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.stop.cancel();
    }
}

impl StreamHandler<EngineState> for Scheduler {
    fn handle(&mut self, state: EngineState, context: &mut Self::Context) {
        if let EngineState::Ready(hosted) = state
            && self.recovered != Some(self.desk.board.starts())
        {
            let words = learns::told(hosted.frozen.as_deref());
            match self.desk.enabled {
                true => tracing::info!(model = hosted.model.name, "nights: {words}"),
                false => tracing::info!(model = hosted.model.name, "nights are off (night.enabled): {words}"),
            }
            self.recover(context);
        }
    }
}

impl Handler<Beat> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: Beat, context: &mut Self::Context) {
        self.beat(context);
    }
}

impl Handler<ScheduleChanged> for Scheduler {
    type Result = ();

    fn handle(&mut self, _: ScheduleChanged, _: &mut Self::Context) {
        match self.desk.schedule() {
            Ok(schedule) => self.schedule = Ok(Arc::new(schedule)),
            Err(error) if self.schedule.is_ok() => tracing::error!(%error, "night.yaml: the one read before stays"),
            Err(error) => self.schedule = Err(error.to_string()),
        }
    }
}

impl Handler<ForgetPairs> for Scheduler {
    type Result = ResponseActFuture<Self, Result<usize, String>>;

    fn handle(&mut self, ForgetPairs(wanted): ForgetPairs, _: &mut Self::Context) -> Self::Result {
        let current = self.record.run.as_ref().map(|run| run.order.id.clone());
        let desk = self.desk.clone();
        let forgotten = desk::blocking(move || desk.forget_pairs(&wanted, current.as_deref()));
        Box::pin(wrap_future::<_, Self>(forgotten).map(|forgotten, this, _| {
            let (gone, of_this_run) = forgotten??;
            if of_this_run {
                this.notice("the run was stopped: some of its pairs were forgotten".to_owned());
                this.stop.cancel();
            }
            Ok(gone)
        }))
    }
}

impl Handler<SchedulerStatus> for Scheduler {
    type Result = MessageResult<SchedulerStatus>;

    fn handle(&mut self, _: SchedulerStatus, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.status())
    }
}

type Answer = Result<Value, ServiceError>;

impl Handler<Night> for Scheduler {
    type Result = ResponseActFuture<Self, Answer>;

    fn handle(&mut self, Night(command): Night, context: &mut Self::Context) -> Self::Result {
        let answer = match command {
            NightCommand::Status => Ok(self.status()),
            NightCommand::RunNow { job, candidate, dry_run } => match self.free() {
                Ok(()) => Ok(json!({ "run": self.begin(job, candidate, dry_run, context) })),
                Err(message) => Err(ServiceError::Busy { message, retry_after_s: 10 }),
            },
            NightCommand::Pause => self.set_paused(true),
            NightCommand::Resume => self.set_paused(false),
            NightCommand::ResetPipeline { route } => optimise::reset(&self.desk, &route),
            NightCommand::Report { run } => return self.report(run),
            NightCommand::Rollback { generation } => return self.roll_back(generation),
        };
        Box::pin(fut::ready(answer))
    }
}

impl Scheduler {
    fn set_paused(&mut self, paused: bool) -> Answer {
        self.record.paused = paused;
        self.save().map_err(ServiceError::Internal)?;
        if paused {
            self.stop.cancel();
        }
        Ok(json!({ "paused": paused }))
    }

    fn report(&self, run: Option<String>) -> ResponseActFuture<Self, Answer> {
        let named = |id: &String| self.record.past.iter().any(|p| p.id == *id);
        let newest = |job: Option<Job>| {
            let mut past = self.record.past.iter().rev();
            past.find(|p| job.is_none_or(|job| p.job == job)).map(|p| p.id.clone())
        };
        // A night is what people ask for; the small jobs in between are asked for by name.
        let last = || newest(Some(Job::Train)).or_else(|| newest(None));
        let Some(id) = run.clone().map_or_else(last, |id| named(&id).then_some(id)) else {
            let none = || "no run has ended yet: `chimere night run --now` begins one".to_owned();
            let message = run.map_or_else(none, |run| match newest(None) {
                Some(last) => format!("there is no report of a run `{run}`: the last one is `{last}`"),
                None => none(),
            });
            return Box::pin(fut::err(ServiceError::NotFound(message)));
        };
        let dir = self.desk.run_dir(&id);
        let read = async move {
            let report = desk::blocking(move || paper::read(&dir)).await.and_then(|read| read);
            match report.map_err(ServiceError::Internal)? {
                Some(report) => serde_json::to_value(report).map_err(|e| ServiceError::Internal(e.to_string())),
                None => Err(ServiceError::NotFound(format!("run {id} left no report"))),
            }
        };
        Box::pin(wrap_future(read))
    }

    fn roll_back(&mut self, wanted: Option<u64>) -> ResponseActFuture<Self, Answer> {
        let busy = |message: String| ServiceError::Busy { message, retry_after_s: 1 };
        if self.moving() || self.recovered.is_none() {
            return Box::pin(fut::err(busy("what is served is being changed".to_owned())));
        }
        let generations = match &self.generations {
            Ok(generations) => generations.clone(),
            Err(error) => return Box::pin(fut::err(ServiceError::Internal(error.clone()))),
        };
        let pointer = self.pointer;
        if wanted.is_none() && pointer.canary.is_none() && pointer.previous == pointer.champion {
            let message = format!("there is no earlier generation: generation {} serves", pointer.champion);
            return Box::pin(fut::err(ServiceError::Invalid { message, param: Some("generation".to_owned()) }));
        }
        self.changing = true;
        let (desk, pointer, began) = (self.desk.clone(), self.pointer, Instant::now());
        let back = async move { promote::roll_back(&desk, &generations, pointer, wanted).await };
        Box::pin(wrap_future::<_, Self>(back).map(move |moved, this, _| {
            let invalid = |message| ServiceError::Invalid { message, param: Some("generation".to_owned()) };
            if let Ok(to) = moved.as_ref()
                && *to != pointer
            {
                this.notice(format!(
                    "rolled back by the owner from generation {} to {}",
                    pointer.champion, to.champion
                ));
            }
            this.moved(moved).map_err(invalid)?;
            let took_ms = began.elapsed().as_millis() as u64;
            Ok(json!({ "champion": this.pointer.champion, "before": pointer.champion, "took_ms": took_ms }))
        }))
    }
}
