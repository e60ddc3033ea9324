//! Who serves, while it serves: recovery when an engine comes up, the canary's watch, and every move of the
//! pointer that no run makes.

use std::sync::Arc;

use actix::fut::wrap_future;
use actix::prelude::*;

use super::Scheduler;
use super::promote::{self, Recovered};
use crate::actors::memory::{List, MemoryError};
use crate::night::canary::{Decision, Watched, decide};
use crate::night::generation::{Canary, Pointer};
use crate::night::phase::Event;
use crate::night::served::Served;
use crate::reply::first_turn_id;
use crate::service::TurnFilter;
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
        let (desk, store) = (self.desk.clone(), generations.clone());
        let recover = async move { promote::recover(&desk, &store).await };
        context.spawn(wrap_future::<_, Self>(recover).map(move |found, this, context| match found {
            // It was lost meanwhile: its successor has a recovery of its own.
            _ if this.desk.board.starts() != engine => {}
            // The pointer was moved meanwhile. It is replaced before anybody is told of it, so that what is told here
            // is never older than what is told there.
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
            Err(error) => this.notice(format!("what serves is not known: {error}")),
        }));
    }

    /// Looks at what the canary answered, and lets it go on, end or go back.
    pub(super) fn look(&mut self, context: &mut Context<Self>) {
        let Some(canary) = self.pointer.canary else { return };
        let after = Some(first_turn_id(canary.stage_ms));
        let filter = TurnFilter { after, limit: Some(STAGE_TURNS_MAX), ..TurnFilter::default() };
        let memory = self.desk.memory.clone();
        let turns = async move { memory.send(List(filter)).await };
        context.spawn(wrap_future::<_, Self>(turns).map(move |turns, this, context| {
            let turns: Result<Vec<Turn>, MemoryError> = match turns {
                Ok(turns) => turns,
                Err(error) => return tracing::warn!(%error, "the canary was not looked at"),
            };
            // Something else changed the pointer meanwhile.
            if this.pointer.canary != Some(canary) || this.moving() {
                return;
            }
            // What another base model answered meanwhile says nothing of this one.
            let base = this.desk.board.hosted().map(|hosted| hosted.model_hash.clone());
            match turns {
                Ok(mut turns) => {
                    turns.retain(|turn| base.as_ref().is_none_or(|base| turn.model_hash == *base));
                    this.judge(canary, &turns, context);
                }
                Err(error) => tracing::warn!(%error, "the canary was not looked at"),
            }
        }));
    }

    fn judge(&mut self, canary: Canary, turns: &[Turn], context: &mut Context<Self>) {
        let Ok(schedule) = self.schedule.clone() else { return };
        let watched = Watched::of(turns, self.pointer.champion, canary.generation);
        let now = self.desk.clock.now_ms();
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
        let Ok(generations) = self.generations.clone() else { return };
        let desk = self.desk.clone();
        self.changing = true;
        let point = async move { promote::point(&desk, &generations, &next).await.map(|()| next) };
        context.spawn(wrap_future::<_, Self>(point).map(|moved, this, _| drop(this.moved(moved))));
    }
}
