//! Decoding that stays on the device. The most probable token of a step is the next step's input, and the host hears
//! of all tokens at the end. So it measures what the card can do without waiting for anybody.

use chimere_ffi::gpu::Recording;
use chimere_ffi::kernels::sample::{self, Argmax, LARGEST_WORDS};

use super::run::Shape;
use super::{Cuda, GRAPH_ROWS_MAX, PLAN_LISTS, computing, plan_words};
use crate::engine::backend::{BackendError, SeqId};
use crate::engine::model::state::Part;

/// What was decoded.
#[derive(Clone, Debug)]
pub struct Greedy {
    /// [steps][sequences].
    pub tokens: Vec<u32>,
    /// Of all steps, measured on the device.
    pub seconds: f64,
}

impl Cuda {
    /// Feeds `first` (one token a sequence) and then, `steps` − 1 times, the most probable next token.
    pub fn greedy(&mut self, seqs: &[SeqId], first: &[u32], steps: usize) -> Result<Greedy, BackendError> {
        let rows = seqs.len();
        if rows == 0 || rows > GRAPH_ROWS_MAX || first.len() != rows {
            return Err(BackendError::Unsupported("decoding so many sequences at once on the device"));
        }
        let slots = self.place(seqs, first, steps)?;
        let history = self.device.zeroed(4 * rows * steps).map_err(computing)?;
        let step = self.device.zeroed(4 * rows).map_err(computing)?;
        let largest = self.device.zeroed(4 * LARGEST_WORDS * rows).map_err(computing)?;
        let (m, changed) = (&self.memory, self.changed(slots.iter().copied()));
        let argmax = Argmax {
            logits: m.logits.at(),
            largest: largest.at(),
            token: m.plan.at(),
            position: m.plan.from(8 * plan_words(rows)),
            history: history.at(),
            step: step.at(),
            vocab: self.hp.vocab as u32,
            steps_max: steps as u32,
        };
        let whole = || {
            self.launches(Part::Trunk, &Shape::decoding(rows, changed.clone()))?;
            sample::argmax(&self.device, &argmax, rows)
        };
        let graph: Recording = self.device.record(whole).map_err(computing)?;
        let seconds = self.device.time(|| (0..steps).try_for_each(|_| graph.replay())).map_err(computing)?;
        let mut tokens = vec![0; rows * steps];
        history.read_u32(0, &mut tokens).map_err(computing)?;
        for slot in slots {
            self.slots.advance(slot, Part::Trunk, steps);
        }
        Ok(Greedy { tokens, seconds })
    }

    /// What each kernel takes in one step of these sequences, launched one by one: name, launches, seconds.
    pub fn profile(&mut self, seqs: &[SeqId], first: &[u32]) -> Result<Vec<(&'static str, u32, f64)>, BackendError> {
        let slots = self.place(seqs, first, 1)?;
        let rows = slots.len();
        let shape = Shape::decoding(rows, self.changed(slots.iter().copied()));
        let found = self.device.profile(|| self.launches(Part::Trunk, &shape)).map_err(computing)?;
        slots.into_iter().for_each(|slot| self.slots.advance(slot, Part::Trunk, 1));
        Ok(found)
    }

    /// Seconds that a pass over some tokens of one sequence takes, once it is recorded; the mean of `rounds`. The
    /// sequence's state is spoilt by the repetition.
    pub fn together(&mut self, seq: SeqId, tokens: &[u32], rounds: usize) -> Result<f64, BackendError> {
        let (rows, t) = (tokens.len(), plan_words(tokens.len()));
        let slots = self.place(&[seq], &tokens[..1], rows)?;
        let mut plan = vec![0_u32; PLAN_LISTS * t];
        let held = self.slots.held(seq);
        for (row, token) in tokens.iter().enumerate() {
            (plan[row], plan[t + row], plan[2 * t + row], plan[3 * t + row]) =
                (*token, slots[0] as u32, (held + row) as u32, row as u32);
        }
        plan[4 * t..4 * t + 4].copy_from_slice(&[slots[0] as u32, 0, rows as u32, held as u32]);
        self.groups(&mut plan, t, rows);
        self.memory.plan.write_u32(0, &plan).map_err(computing)?;
        let shape = Shape { spans: 1, ..Shape::decoding(rows, self.changed(slots.iter().copied())) };
        let graph = self.device.record(|| self.launches(Part::Trunk, &shape)).map_err(computing)?;
        graph.replay().map_err(computing)?;
        let seconds = self.device.time(|| (0..rounds).try_for_each(|_| graph.replay())).map_err(computing)?;
        Ok(seconds / rounds as f64)
    }

    /// Pages for all steps, and the plan of the first one.
    pub(super) fn place(&mut self, seqs: &[SeqId], first: &[u32], steps: usize) -> Result<Vec<usize>, BackendError> {
        let t = plan_words(seqs.len());
        let mut plan = vec![0_u32; PLAN_LISTS * t];
        let mut slots = Vec::with_capacity(seqs.len());
        for (row, (seq, token)) in seqs.iter().zip(first).enumerate() {
            let slot = self.slots.find(*seq).ok_or(BackendError::UnknownSequence(seq.0))?;
            let held = self.slots.held(*seq);
            let capacity = self.sizes.context;
            if held + steps > capacity {
                return Err(BackendError::ContextFull { held, fed: steps, capacity });
            }
            if held == 0 {
                self.states.clear(slot).map_err(computing)?;
            }
            self.adapters.seat(slot, self.slots.state(slot).adapter.as_ref()).map_err(computing)?;
            self.states.grow(slot, self.slots.state_mut(slot), held + steps).map_err(computing)?;
            (plan[row], plan[t + row], plan[2 * t + row]) = (*token, slot as u32, held as u32);
            plan[4 * t + 4 * row..][..4].copy_from_slice(&[slot as u32, row as u32, 1, held as u32]);
            slots.push(slot);
        }
        self.groups(&mut plan, t, slots.len());
        self.memory.plan.write_u32(0, &plan).map_err(computing)?;
        Ok(slots)
    }
}
