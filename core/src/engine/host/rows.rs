//! Who gets which row of logits of a step.

use super::Host;
use crate::engine::backend::{BackendError, Output, Rows};
use crate::engine::batch::Share;
use crate::engine::protocol::{Event, FailureKind};
use crate::engine::slot::Row;

/// What a request is told whose row did not come.
const NO_LOGITS: &str = "the model returned no logits";

impl Host {
    /// Of a row that a request samples from the largest logits may be enough.
    pub(super) fn ask_likeliest(&self, share: &mut Share) {
        if let (Rows::Last, Some(slot)) = (share.rows, self.slots.get(share.slot)) {
            share.rows = slot.row();
        }
    }

    /// Whole rows of logits that a share gives.
    pub(super) fn rows_of(&self, share: &Share) -> usize {
        match self.slots.get(share.slot) {
            Some(_) => match share.rows {
                Rows::Last => 1,
                Rows::All => share.tokens,
                Rows::None | Rows::Likeliest { .. } => 0,
            },
            None => self.evaluations.rows(share.slot - self.slots.len(), share),
        }
    }

    /// Hands the rows of a step to their requests and closes those that ended; gives the buffers back.
    pub(super) fn harvest(&mut self, fed: &[(Share, usize)], mut output: Output, out: &mut Vec<Event>) -> Output {
        let width = self.backend.info().vocab.max(1);
        let requests = self.slots.len();
        let mut rest = output.logits.as_mut_slice();
        let mut likeliest = output.likeliest.iter().enumerate();
        let (mut ended, mut scored, mut broken) = (Vec::new(), Vec::new(), Vec::new());
        for (share, rows) in fed {
            let taken = std::mem::take(&mut rest);
            let (own, later) = taken.split_at_mut((rows * width).min(taken.len()));
            rest = later;
            let whole = own.len() == rows * width;
            let Some(slot) = self.slots.get_mut(share.slot) else {
                let at = share.slot - requests;
                match self.evaluations.take(at, share, own, width) {
                    _ if !whole => broken.extend(self.evaluations.id(at).map(|id| (id, NO_LOGITS.to_owned()))),
                    Ok(done) => scored.extend(done.then_some(at)),
                    Err(message) => broken.extend(self.evaluations.id(at).map(|id| (id, message))),
                }
                continue;
            };
            slot.advance(share.tokens);
            let (backend, vocab) = (&mut self.backend, self.vocab.as_ref());
            let done = match share.rows {
                Rows::Likeliest { .. } => likeliest.next().map(|(n, largest)| {
                    let row = Row::Likely(largest, &mut |row| backend.row(n, row));
                    slot.take_row(row, vocab, out)
                }),
                Rows::All => whole.then(|| slot.take_prompt(own, width, vocab, out)),
                _ => whole.then(|| *rows > 0 && slot.take_row(Row::Whole(own), vocab, out)),
            };
            if done.is_none() {
                out.push(slot.failed(FailureKind::Internal, NO_LOGITS.to_owned()));
            }
            if done.unwrap_or(true) {
                ended.push(share.slot);
            }
        }
        // From the end, so that indices stay true.
        ended.sort_unstable_by(|a, b| b.cmp(a));
        ended.into_iter().for_each(|at| self.retire(at, out));
        scored.sort_unstable_by(|a, b| b.cmp(a));
        for at in scored {
            if let Some((event, adapter)) = self.evaluations.close(at, self.backend.as_mut()) {
                self.told(event, adapter, out);
            }
        }
        broken.into_iter().for_each(|(id, message)| self.fail_evaluation(id, message, out));
        output
    }

    /// After a step that failed as a whole: each request alone, so that only the guilty one ends.
    pub(super) fn step_one_by_one(&mut self, shares: &[Share], out: &mut Vec<Event>) {
        let (mut guilty, mut evaluations) = (Vec::new(), Vec::new());
        let (mut fed, mut all) = (Vec::new(), Output::default());
        for share in shares {
            // A later step would take the row away that the largest logits are of.
            let rows = if let Rows::Likeliest { .. } = share.rows { Rows::Last } else { share.rows };
            let share = &Share { rows, ..*share };
            match self.feed(std::slice::from_ref(share)) {
                Ok(()) => {
                    fed.push((*share, self.rows_of(share)));
                    all.logits.extend_from_slice(&self.output.logits);
                }
                Err(error @ BackendError::Lost(_)) => return self.lose(error, out),
                Err(error) => match self.slots.get(share.slot) {
                    Some(slot) => {
                        out.push(slot.failed(FailureKind::Internal, error.to_string()));
                        guilty.push(slot.id);
                    }
                    None => {
                        let id = self.evaluations.id(share.slot - self.slots.len());
                        evaluations.extend(id.map(|id| (id, error.to_string())));
                    }
                },
            }
        }
        // Rows are handed out before anything is retired, so that slot indices stay true.
        self.harvest(&fed, all, out);
        for id in guilty {
            if let Some(at) = self.slots.iter().position(|s| s.id == id) {
                self.retire(at, out);
            }
        }
        evaluations.into_iter().for_each(|(id, message)| self.fail_evaluation(id, message, out));
    }
}
