//! The ends of the step loop: told to, or because the device was lost. Those that wait are told.

use super::{Host, State};
use crate::engine::backend::BackendError;
use crate::engine::evaluate;
use crate::engine::protocol::{Event, FailureKind};

impl Host {
    /// The device took every state with it: all that was under way fails, and the loop ends.
    pub(super) fn lose(&mut self, error: BackendError, out: &mut Vec<Event>) {
        let message = error.to_string();
        while let Some(slot) = self.slots.last() {
            out.push(slot.failed(FailureKind::Internal, message.clone()));
            self.retire(self.slots.len() - 1, out);
        }
        let waiting = std::mem::take(&mut self.waiting).into_iter().chain(std::mem::take(&mut self.background));
        out.extend(waiting.map(|slot| slot.failed(FailureKind::Internal, message.clone())));
        self.end_candidates(&message, out);
        self.lost = Some(error);
        self.state = State::Finished;
    }

    fn end_candidates(&mut self, message: &str, out: &mut Vec<Event>) {
        for id in self.candidates.ids() {
            self.candidates.cancel(id, &mut self.evaluations, self.backend.as_mut());
            out.push(evaluate::failed(id, FailureKind::Internal, message.to_owned()));
        }
        self.fail_evaluations(message, out);
    }

    pub(super) fn abort_all(&mut self, out: &mut Vec<Event>) {
        while let Some(slot) = self.slots.last_mut() {
            out.push(slot.aborted());
            self.retire(self.slots.len() - 1, out);
        }
        let waiting = std::mem::take(&mut self.waiting);
        for mut slot in waiting.into_iter().chain(std::mem::take(&mut self.background)) {
            out.push(slot.aborted());
        }
        self.end_candidates("the engine ends", out);
    }
}
