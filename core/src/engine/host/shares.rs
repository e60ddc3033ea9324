//! How the sequences, and the steps that read prompts, are shared out between keys. The rules are those of `crate::fair`.

use super::Host;
use crate::engine::batch::{Demand, Share};
use crate::engine::slot::Slot;
use crate::fair::{owes, places};

impl Host {
    /// Takes the live request out of its line that gets a sequence now, and sees to it that one is free.
    pub(super) fn next_live(&mut self) -> Option<Slot> {
        let at = self.rounds.next(keys(&self.waiting), &places(keys(self.live())))?;
        let giving = match self.free() > 0 || self.evict() {
            true => None,
            false => Some(self.gives_way(&self.waiting[at].principal)?),
        };
        let slot = self.waiting.remove(at)?;
        if let Some(giving) = giving {
            self.suspend(giving);
        }
        if slot.began() {
            self.stats.resumed += 1;
        }
        self.rounds.serve([slot.principal.as_str()].into_iter());
        self.rounds.forget_before(keys(&self.waiting));
        Some(slot)
    }

    fn live(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| !slot.background)
    }

    /// The reply whose sequence is due to a key: of the key that has most, and two more at least, the one that was asked
    /// last. It goes on later with the same bits, so where a backend cannot do that, none gives way.
    fn gives_way(&self, principal: &str) -> Option<usize> {
        if !self.backend.replays() {
            return None;
        }
        let held = places(keys(self.live()));
        let of = |key: &str| held.get(key).copied().unwrap_or_default();
        let may = |slot: &Slot| !slot.background && slot.may_give_way() && owes(of(&slot.principal), of(principal));
        let giving = self.slots.iter().enumerate().filter(|(_, slot)| may(slot));
        giving.max_by_key(|(_, slot)| (of(&slot.principal), slot.id)).map(|(at, _)| at)
    }

    /// Takes a reply's sequence away. It goes on before what its key asked later.
    fn suspend(&mut self, at: usize) {
        let slot = self.take_away(at);
        self.stats.suspended += 1;
        self.waiting.push_front(slot);
    }

    /// Remembers whose prompts a step reads.
    pub(super) fn read(&mut self, demands: &[Demand], shares: &[Share]) {
        let prompt = |at: usize| demands.get(at).is_some_and(|d| d.pending > 0 && !d.decoding && !d.background);
        let slots = &self.slots;
        let fed = shares.iter().filter(|share| prompt(share.slot)).filter_map(|share| slots.get(share.slot));
        self.reads.serve(keys(fed));
        let reading = slots.iter().enumerate().filter(|(at, _)| prompt(*at)).map(|(_, slot)| slot);
        self.reads.forget_before(keys(reading));
    }
}

fn keys<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> impl Iterator<Item = &'a str> {
    slots.into_iter().map(|slot| slot.principal.as_str())
}
