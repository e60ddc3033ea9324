//! Bookkeeping of open sequences: handles, how much each holds, and the checks of a step before anything is fed.

use std::ops::Range;

use super::passes::{Fed, GRID};
use crate::engine::backend::{BackendError, Kept, Rows, SavedSize, SeqId};

/// What a backend keeps for one sequence.
pub trait SequenceState {
    /// Back to the state of an empty sequence, giving back what can be given back.
    fn wipe(&mut self);
}

/// One place for a sequence; the state stays allocated between two sequences.
#[derive(Debug)]
struct Slot<S> {
    id: Option<SeqId>,
    /// Tokens fed to the trunk, and to the prediction block.
    held: usize,
    drafted: usize,
    state: S,
}

/// All sequences of a backend.
#[derive(Debug)]
pub struct Slots<S> {
    slots: Vec<Slot<S>>,
    sequences_max: usize,
    /// Positions of one sequence.
    context_tokens: usize,
    next_id: u32,
}

/// What a step feeds: the trunk or the prediction block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Trunk,
    Prediction,
}

/// One chunk as the checks see it.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub seq: SeqId,
    pub tokens: &'a [u32],
    pub rows: Rows,
    pub hidden: bool,
}

impl<S: SequenceState> Slots<S> {
    pub fn new(sequences_max: usize, context_tokens: usize) -> Slots<S> {
        Slots { slots: Vec::new(), sequences_max, context_tokens, next_id: 0 }
    }

    /// Opens an empty sequence in a free slot, or in a new one made by `make`.
    pub fn open(&mut self, make: impl FnOnce() -> S) -> Result<SeqId, BackendError> {
        let free = self.slots.iter().position(|s| s.id.is_none());
        let slot = match free {
            Some(i) => i,
            None if self.slots.len() < self.sequences_max => {
                self.slots.push(Slot { id: None, held: 0, drafted: 0, state: make() });
                self.slots.len() - 1
            }
            None => return Err(BackendError::NoSequence(self.sequences_max)),
        };
        let id = SeqId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let s = &mut self.slots[slot];
        s.state.wipe();
        (s.id, s.held, s.drafted) = (Some(id), 0, 0);
        Ok(id)
    }

    /// Closes a sequence and wipes its state.
    pub fn close(&mut self, seq: SeqId) {
        if let Some(i) = self.find(seq) {
            let s = &mut self.slots[i];
            s.state.wipe();
            s.id = None;
        }
    }

    /// Slot of an open sequence.
    pub fn find(&self, seq: SeqId) -> Option<usize> {
        self.slots.iter().position(|s| s.id == Some(seq))
    }

    /// Tokens held by a sequence, 0 if it is not open.
    pub fn held(&self, seq: SeqId) -> usize {
        self.find(seq).map_or(0, |i| self.slots[i].held)
    }

    pub fn state(&self, slot: usize) -> &S {
        &self.slots[slot].state
    }

    pub fn state_mut(&mut self, slot: usize) -> &mut S {
        &mut self.slots[slot].state
    }

    /// States of all slots in order, the closed ones among them.
    pub fn states_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.slots.iter_mut().map(|s| &mut s.state)
    }

    /// Counts rows that were fed.
    pub fn advance(&mut self, slot: usize, part: Part, rows: usize) {
        match part {
            Part::Trunk => self.slots[slot].held += rows,
            Part::Prediction => self.slots[slot].drafted += rows,
        }
    }

    /// Slot of a sequence that can be saved, and its blocks from `first` on.
    pub fn whole(&self, seq: SeqId, first: usize, size: SavedSize) -> Result<(usize, Range<usize>), BackendError> {
        let slot = self.find(seq).ok_or(BackendError::UnknownSequence(seq.0))?;
        let held = self.slots[slot].held;
        if !held.is_multiple_of(size.grid) || held < first * GRID {
            return Err(BackendError::Compute(format!(
                "a sequence of {held} tokens cannot be saved from block {first}"
            )));
        }
        Ok((slot, first..held.div_ceil(GRID)))
    }

    /// Slot of an empty sequence that can take what was kept.
    pub fn empty(&self, seq: SeqId, kept: &Kept<'_>, size: SavedSize) -> Result<usize, BackendError> {
        let slot = self.find(seq).ok_or(BackendError::UnknownSequence(seq.0))?;
        let (held, tokens) = (self.slots[slot].held, kept.tokens);
        if held > 0 || tokens > self.context_tokens {
            let capacity = self.context_tokens;
            return Err(BackendError::ContextFull { held, fed: tokens, capacity });
        }
        if tokens.div_ceil(GRID) != kept.blocks.len()
            || kept.state.len() != size.state
            || kept.blocks.iter().any(|block| block.len() != size.block)
        {
            return Err(BackendError::Compute("what was kept is not of this model".to_owned()));
        }
        Ok(slot)
    }

    /// Checks one chunk of a step and adds it to `fed`, which holds the chunks before it.
    pub fn check(&self, part: Part, vocab: usize, c: Input<'_>, fed: &mut Vec<Fed>) -> Result<(), BackendError> {
        let slot = self.find(c.seq).ok_or(BackendError::UnknownSequence(c.seq.0))?;
        if fed.iter().any(|f| f.slot == slot) {
            return Err(BackendError::Compute(format!("sequence {} occurs twice in one step", c.seq.0)));
        }
        if c.tokens.is_empty() {
            return Err(BackendError::Compute(format!("no token is fed to sequence {}", c.seq.0)));
        }
        if let Some(token) = c.tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(BackendError::TokenRange { token: *token, vocab });
        }
        let s = &self.slots[slot];
        let held = match part {
            Part::Trunk => s.held,
            Part::Prediction => s.drafted,
        };
        if c.tokens.len() > self.context_tokens.saturating_sub(held) {
            return Err(BackendError::ContextFull { held, fed: c.tokens.len(), capacity: self.context_tokens });
        }
        fed.push(Fed { slot, position: held, len: c.tokens.len(), rows: c.rows, hidden: c.hidden });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Wipes(usize);

    impl SequenceState for Wipes {
        fn wipe(&mut self) {
            self.0 += 1;
        }
    }

    fn input(seq: SeqId, tokens: &[u32]) -> Input<'_> {
        Input { seq, tokens, rows: Rows::Last, hidden: false }
    }

    #[test]
    fn handles_are_not_reused_and_states_are_wiped() {
        let mut slots = Slots::<Wipes>::new(2, 8);
        let a = slots.open(Wipes::default).unwrap();
        let b = slots.open(Wipes::default).unwrap();
        assert!(matches!(slots.open(Wipes::default), Err(BackendError::NoSequence(2))));
        slots.advance(0, Part::Trunk, 5);
        slots.close(a);
        slots.close(a);
        let c = slots.open(Wipes::default).unwrap();
        assert!(c != a && c != b);
        assert_eq!((slots.held(a), slots.held(c)), (0, 0));
        assert_eq!(slots.state(0).0, 3, "wiped at open, close and open again");
    }

    #[test]
    fn a_step_is_checked_with_both_numbers() {
        let mut slots = Slots::<Wipes>::new(1, 8);
        let a = slots.open(Wipes::default).unwrap();
        slots.advance(0, Part::Trunk, 6);
        let mut fed = Vec::new();
        let full = slots.check(Part::Trunk, 10, input(a, &[1, 2, 3]), &mut fed).unwrap_err();
        assert!(matches!(full, BackendError::ContextFull { held: 6, fed: 3, capacity: 8 }));
        let range = slots.check(Part::Trunk, 10, input(a, &[10]), &mut fed).unwrap_err();
        assert!(matches!(range, BackendError::TokenRange { token: 10, vocab: 10 }));
        assert!(slots.check(Part::Trunk, 10, input(SeqId(9), &[1]), &mut fed).is_err());
        assert!(slots.check(Part::Trunk, 10, input(a, &[]), &mut fed).is_err());
        assert!(fed.is_empty());
        slots.check(Part::Trunk, 10, input(a, &[1, 2]), &mut fed).unwrap();
        assert!(slots.check(Part::Trunk, 10, input(a, &[1]), &mut fed).is_err(), "twice in a step");
        assert_eq!(fed.len(), 1);
        assert_eq!(fed[0].position, 6);
    }
}
