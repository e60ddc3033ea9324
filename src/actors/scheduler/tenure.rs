//! Who serves, while it serves: recovery when an engine comes up, the canary's watch, and every move of the
//! pointer that no run makes.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::fut::wrap_future;
use actix::prelude::*;

use super::Scheduler;
use super::promote::{self, Recovered};
use crate::actors::memory::Survey;
use crate::night::canary::{Decision, Watched, decide};
use crate::night::generation::{Canary, Pointer};
use crate::night::phase::Event;
use crate::night::served::Served;
use crate::service::TurnFilter;
use crate::store::first_turn_id;
use crate::turn::Turn;

/// Another model is to take the place of the served one: no run begins and nobody moves the pointer until the answer is
/// dropped. `Err`: why that cannot be now.
#[derive(Message)]
#[rtype(result = "Result<Hold, String>")]
pub struct HoldNight;

/// Dropping it lets the night go on.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "it counts as long as it is there")] Arc<()>);

impl Handler<HoldNight> for Scheduler {
    type Result = Result<Hold, String>;

    fn handle(&mut self, _: HoldNight, _: &mut Self::Context) -> Self::Result {
        if let Some(why) = self.busy() {
            return Err(why);
        }
        let hold = Arc::new(());
        self.held = Arc::downgrade(&hold);
        Ok(Hold(hold))
    }
}

/// Turns of a canary's stage that are looked at.
const STAGE_TURNS_MAX: usize = 20_000;
const LOOK_TIMEOUT: Duration = Duration::from_secs(120);
const REST_AFTER_LOOK: u32 = 20;
/// Pauses between recoveries that come to nothing; they double.
const RECOVER_FIRST: Duration = Duration::from_secs(1);
const RECOVER_MAX: Duration = Duration::from_secs(60);

/// What a look at the canary has seen.
struct Look {
    watched: Watched,
    champion: u64,
    candidate: u64,
    base: Option<String>,
}

impl Look {
    /// What another base model answered meanwhile says nothing of this one.
    fn take(&mut self, turn: Turn) {
        if self.base.as_ref().is_none_or(|base| turn.model_hash == *base) {
            self.watched.add(&turn, self.champion, self.candidate);
        }
    }
}

/// The canary with no time later than `now`, where it has one: it would pass every turn over, and never grow old.
fn not_ahead(canary: Canary, now: i64) -> Option<Canary> {
    let (began_ms, stage_ms) = (canary.began_ms.min(now), canary.stage_ms.min(now));
    Some(Canary { began_ms, stage_ms, ..canary }).filter(|other| *other != canary)
}

/// When an engine that came up may be recovered again: one recovery at a time, and after one that came to nothing a
/// pause.
#[derive(Default)]
pub(super) struct Recovering {
    /// The engine that it is for.
    engine: Option<u64>,
    failures: u32,
    not_before: Option<Instant>,
    /// Told once, not at every try.
    error: Option<String>,
}

impl Recovering {
    /// May one begin because the replies are behind, at `now`?
    pub(super) fn due(&self, now: Instant) -> bool {
        self.engine.is_none() && self.not_before.is_none_or(|at| now >= at)
    }

    /// The one for `engine` is over, at `now`. → an error that was not told yet.
    fn ended(&mut self, engine: u64, error: Option<String>, now: Instant) -> Option<String> {
        if self.engine == Some(engine) {
            self.engine = None;
        }
        // Also one that went well: if the replies are still behind, it has not helped.
        let pause = RECOVER_FIRST.saturating_mul(1 << self.failures.min(16)).min(RECOVER_MAX);
        self.not_before = Some(now + pause);
        self.failures += 1;
        let news = error.clone().filter(|error| self.error.as_ref() != Some(error));
        self.error = error;
        news
    }

    /// The replies have what they answer with.
    pub(super) fn caught_up(&mut self) {
        if self.engine.is_none() {
            (self.failures, self.not_before) = (0, None);
        }
    }
}

impl Scheduler {
    /// Rolls back and then goes on, whatever came of it.
    pub(super) fn move_back(
        &mut self,
        wanted: Option<u64>,
        context: &mut Context<Self>,
        then: impl FnOnce(&mut Self, &mut Context<Self>) + 'static,
    ) {
        let Ok(generations) = self.generations.clone() else { return then(self, context) };
        self.changing = true;
        let (desk, pointer) = (self.desk.clone(), self.pointer);
        let back = async move { promote::roll_back(&desk, &generations, pointer, wanted).await };
        context.spawn(wrap_future::<_, Self>(back).map(move |moved, this, context| {
            // What went wrong is a notice already; the caller goes on in any case.
            let _ = this.moved(moved);
            then(this, context);
        }));
    }

    /// The pointer was moved, or not.
    pub(super) fn moved(&mut self, moved: Result<Pointer, String>) -> Result<(), String> {
        self.changing = false;
        let pointer =
            moved.inspect_err(|error| self.notice(format!("the served generation was not changed: {error}")))?;
        (self.pointer, self.watched) = (pointer, None);
        if let Err(error) = self.save() {
            tracing::error!(error, "the night's record was not written");
        }
        Ok(())
    }

    /// An engine came up: verify and load what it must answer with, then go on with a run that was cut off.
    pub(super) fn recover(&mut self, context: &mut Context<Self>) {
        let engine = self.desk.board.starts();
        let Ok(generations) = self.generations.clone() else {
            self.recovered = Some(engine);
            return self.desk.board.serve(engine, Default::default());
        };
        if self.recovering.engine.replace(engine) == Some(engine) {
            return;
        }
        let (desk, store) = (self.desk.clone(), generations.clone());
        let recover = async move { promote::recover(&desk, &store).await };
        context.spawn(wrap_future::<_, Self>(recover).map(move |found, this, context| {
            let error = found.as_ref().err().map(|error| format!("what serves is not known: {error}"));
            if let Some(news) = this.recovering.ended(engine, error, Instant::now()) {
                this.notice(news);
            }
            match found {
                // It was lost meanwhile: its successor has a recovery of its own.
                _ if this.desk.board.starts() != engine => {}
                // The pointer was moved meanwhile. It is replaced before anybody is told of it, so that what is told
                // here is never older than what is told there.
                Ok(Recovered { read, base_hash, .. }) if generations.pointer(&base_hash).ok().flatten() != read => {
                    this.recover(context);
                }
                Ok(Recovered { pointer, why, .. }) => {
                    this.desk.board.serve(engine, Served::of(&pointer));
                    this.pointer = pointer;
                    if let Some(why) = why {
                        this.notice(format!("{why}; generation {} serves", pointer.champion));
                    }
                    let first = this.recovered.replace(engine).is_none();
                    if first && this.record.run.is_some() {
                        this.step(Event::Restarted, context);
                    }
                }
                Err(_) => {}
            }
        }));
    }

    /// Looks at what the canary answered, and lets it go on, end or go back. One look at a time, and the next not before
    /// `REST_AFTER_LOOK` times as long as this one took: a long stage is much to read.
    pub(super) fn look(&mut self, context: &mut Context<Self>) {
        let began = Instant::now();
        let Some(canary) = self.pointer.canary.filter(|_| self.looks.begin(began)) else { return };
        let after = Some(first_turn_id(canary.stage_ms));
        let filter = TurnFilter { after, limit: Some(STAGE_TURNS_MAX), ..TurnFilter::default() };
        let seen = Look {
            watched: Watched::beginning(self.pointer.champion),
            champion: self.pointer.champion,
            candidate: canary.generation,
            base: self.desk.board.hosted().map(|hosted| hosted.model_hash.clone()),
        };
        let memory = self.desk.memory.clone();
        let survey = Survey { filter, seen, take: Look::take };
        let seen = async move { memory.send_within(survey, LOOK_TIMEOUT).await };
        context.spawn(wrap_future::<_, Self>(seen).map(move |seen, this, context| {
            this.looks.ended(began, Instant::now());
            let unseen = |error: &dyn Display| {
                tracing::warn!(%error, "the canary was not looked at");
                // Its time goes on all the same.
                this.watched.clone().unwrap_or_else(|| Watched::beginning(this.pointer.champion))
            };
            let watched = match seen {
                Ok(Ok(seen)) => seen.watched,
                Ok(Err(error)) => unseen(&error),
                Err(error) => unseen(&error),
            };
            // Something else changed the pointer meanwhile.
            if this.pointer.canary == Some(canary) && !this.moving() {
                this.judge(canary, watched, context);
            }
        }));
    }

    fn judge(&mut self, canary: Canary, watched: Watched, context: &mut Context<Self>) {
        let Ok(schedule) = self.schedule.clone() else { return };
        let now = self.desk.clock.now_ms();
        if let Some(canary) = not_ahead(canary, now) {
            self.notice(format!(
                "the canary of generation {} began by a clock that ran ahead: it counts from now",
                canary.generation
            ));
            return self.point(Pointer { canary: Some(canary), ..self.pointer }, context);
        }
        let decision = decide(&schedule.canary, canary.stage, now - canary.began_ms, &watched);
        self.watched = Some(watched);
        let number = canary.generation;
        let next = match decision {
            Decision::Stay => return,
            Decision::RollBack(why) => {
                self.notice(format!("the canary of generation {number} was rolled back: {why}"));
                return self.move_back(None, context, |_, _| {});
            }
            Decision::Advance(stage) => {
                let percent = schedule.canary.stages.get(stage).map_or(canary.percent, |s| s.percent);
                self.notice(format!("the canary of generation {number} goes on to {percent} %"));
                let canary = Canary { stage, percent, stage_ms: now, ..canary };
                Pointer { canary: Some(canary), ..self.pointer }
            }
            Decision::Finish => {
                self.notice(format!("generation {number} passed its canary and serves"));
                Pointer { champion: number, canary: None, previous: self.pointer.champion, ..self.pointer }
            }
        };
        self.point(next, context);
    }

    fn point(&mut self, next: Pointer, context: &mut Context<Self>) {
        let Ok(generations) = self.generations.clone() else { return };
        let desk = self.desk.clone();
        self.changing = true;
        let point = async move { promote::point(&desk, &generations, &next).await.map(|()| next) };
        context.spawn(wrap_future::<_, Self>(point).map(|moved, this, _| drop(this.moved(moved))));
    }
}

/// Looks at a canary: one at a time, and a rest behind each.
#[derive(Debug, Default)]
pub(super) struct Looks {
    under_way: bool,
    /// When the next may begin.
    after: Option<Instant>,
}

impl Looks {
    /// Whether one begins now.
    fn begin(&mut self, now: Instant) -> bool {
        let begins = !self.under_way && self.after.is_none_or(|after| now >= after);
        self.under_way |= begins;
        begins
    }

    /// It came to something, or failed.
    fn ended(&mut self, began: Instant, now: Instant) {
        *self = Looks { under_way: false, after: Some(now + REST_AFTER_LOOK * (now - began)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_look_at_a_time_and_a_rest_behind_each() {
        let (mut looks, start) = (Looks::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        assert!(looks.begin(at(0)));
        // However long it takes.
        assert!(!looks.begin(at(3)) && !looks.begin(at(90)));
        looks.ended(at(0), at(10));
        assert!(!looks.begin(at(12)) && !looks.begin(at(209)) && looks.begin(at(210)));
        looks.ended(at(210), at(210));
        assert!(looks.begin(at(210)) && !looks.begin(at(211)));
    }

    #[test]
    fn a_canary_of_a_clock_that_ran_ahead_counts_from_now() {
        let canary = Canary { generation: 2, percent: 10, stage: 0, began_ms: 5_000, stage_ms: 9_000 };
        assert_eq!(not_ahead(canary, 9_000), None);
        assert_eq!(not_ahead(canary, 7_000), Some(Canary { stage_ms: 7_000, ..canary }));
        assert_eq!(not_ahead(canary, 1_000), Some(Canary { began_ms: 1_000, stage_ms: 1_000, ..canary }));
    }

    #[test]
    fn one_recovery_at_a_time_and_ever_longer_pauses_while_nothing_helps() {
        let (mut recovering, start) = (Recovering::default(), Instant::now());
        assert!(recovering.due(start));
        recovering.engine = Some(1);
        assert!(!recovering.due(start + RECOVER_MAX), "it is under way");
        let fault = || Some("no".to_owned());
        assert_eq!(recovering.ended(1, fault(), start), fault());
        assert!(!recovering.due(start) && recovering.due(start + RECOVER_FIRST));
        recovering.engine = Some(1);
        assert_eq!(recovering.ended(1, fault(), start), None, "the same is told once");
        assert!(!recovering.due(start + RECOVER_FIRST) && recovering.due(start + 2 * RECOVER_FIRST));
        for _ in 0..40 {
            recovering.ended(1, None, start);
        }
        assert!(recovering.due(start + RECOVER_MAX));
        // The end of one for an engine that is gone does not end that of its successor.
        recovering.engine = Some(2);
        recovering.ended(1, None, start);
        assert!(!recovering.due(start + RECOVER_MAX));
        recovering.ended(2, None, start);
        recovering.caught_up();
        assert!(recovering.due(start));
    }
}
