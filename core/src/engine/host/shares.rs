//! How the sequences, and the steps that read prompts, are shared out between keys. The rules are those of `crate::fair`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

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

    /// What everybody wants to feed in the next step.
    pub(super) fn demands(&self) -> Vec<Demand> {
        let served = |slot: &Slot| self.reads.served(&slot.principal);
        let mut demands: Vec<_> = self.slots.iter().map(|slot| slot.demand(served(slot))).collect();
        let due = keys(&self.slots).filter(|key| self.ageing.due(key)).collect::<BTreeSet<_>>();
        for key in due {
            if let Some(longest) = self.longest(&self.reading(&demands, key)) {
                demands[longest].due = true;
            }
        }
        demands.extend(self.evaluations.demands());
        demands
    }

    /// The requests of a key that have a prompt to read.
    fn reading(&self, demands: &[Demand], key: &str) -> Vec<usize> {
        let own = self.slots.iter().zip(demands).enumerate().filter(|(_, (slot, d))| slot.principal == key && reads(d));
        own.map(|(at, _)| at).collect()
    }

    /// The one of them that was passed over most often.
    fn longest(&self, reading: &[usize]) -> Option<usize> {
        reading.iter().copied().max_by_key(|at| (self.slots[*at].passed_over, Reverse(*at)))
    }

    /// Remembers whose prompts a step reads, and who was passed over.
    pub(super) fn read(&mut self, demands: &[Demand], shares: &[Share]) {
        let waiting = || self.slots.iter().zip(demands).enumerate().filter(|(_, (_, d))| reads(d));
        let wait: BTreeSet<String> = waiting().map(|(_, (slot, _))| slot.principal.clone()).collect();
        let fed: BTreeSet<usize> =
            waiting().map(|(at, _)| at).filter(|at| shares.iter().any(|share| share.slot == *at)).collect();
        self.reads.serve(keys(fed.iter().map(|at| &self.slots[*at])));
        self.reads.forget_before(wait.iter().map(String::as_str));
        self.ageing.keep(&wait);
        for key in &wait {
            let own = self.reading(demands, key);
            if own.iter().all(|at| !fed.contains(at)) {
                continue;
            }
            let longest = self.longest(&own).is_some_and(|at| fed.contains(&at));
            self.ageing.turned(key, own.iter().any(|at| !fed.contains(at)), longest);
            for at in own {
                let passed = &mut self.slots[at].passed_over;
                *passed = if fed.contains(&at) { 0 } else { passed.saturating_add(1) };
            }
        }
    }
}

/// A prompt that somebody waits for.
fn reads(demand: &Demand) -> bool {
    demand.pending > 0 && !demand.decoding && !demand.background
}

fn keys<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> impl Iterator<Item = &'a str> {
    slots.into_iter().map(|slot| slot.principal.as_str())
}
