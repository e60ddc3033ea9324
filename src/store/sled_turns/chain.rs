//! Turns that go on with one another: each is kept without what an earlier one has (`links`). Two kinds of keys find them:
//! `!said/` and a place's digest → the turn that came to it last; `!follows/`, a turn's id, `/` and a later one's → nothing.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use sled::Batch;

use super::{SledTurns, State, TurnCounts, beside, disk, is_turn, prefix};
use crate::store::record::{Base, pack_turn, unpack_turn};
use crate::store::{StoreError, links};
use crate::turn::{Turn, TurnId};

const FOLLOWS_PREFIX: &str = "!follows/";
/// Turns of one place that are compared before a turn is written whole.
const CANDIDATES_MAX: usize = 8;
/// Whole turns that a listing keeps in hand.
const SEEN_MAX: usize = 8;

/// Whole turns that were read last: the next of the same conversation is not put together from its beginning.
#[derive(Default)]
pub(super) struct Seen(VecDeque<Turn>);

impl Seen {
    fn get(&self, id: &TurnId) -> Option<Turn> {
        self.0.iter().find(|turn| turn.id == *id).cloned()
    }

    fn keep(&mut self, turn: &Turn) {
        self.0.truncate(SEEN_MAX - 1);
        self.0.push_front(turn.clone());
    }
}

/// What changes the log in one batch.
pub(super) struct Change {
    pub(super) batch: Batch,
    pub(super) counts: TurnCounts,
}

impl Change {
    pub(super) fn new(state: &State) -> Change {
        Change { batch: Batch::default(), counts: state.counts }
    }

    fn resize(&mut self, before: usize, after: usize) {
        self.counts.bytes = (self.counts.bytes + after as u64).saturating_sub(before as u64);
    }
}

/// A turn that a forgetting comes to, and what stands before it then.
struct Visit {
    id: Vec<u8>,
    before: Option<Rc<Turn>>,
    /// Which answer of `before` it goes on with, where that is not the turn that its record names.
    answer: Option<Base>,
}

impl SledTurns {
    /// The turn of a record, as it was appended.
    pub(super) fn whole(&self, id: &[u8], record: &[u8], seen: &mut Seen) -> Result<Turn, StoreError> {
        let (turn, base) = unpack_turn(id, record)?;
        if base.is_none() {
            return Ok(turn);
        }
        let (earlier, known, lost) = self.earlier(&turn, base.clone(), seen)?;
        if lost && let Some(now) = self.log.get(id).map_err(disk)?.filter(|now| now != record) {
            // It was written anew between two looks.
            return self.whole(id, &now, seen);
        }
        let of = earlier.into_iter().rev().fold(known, |of, (turn, base)| Some(links::unfold(turn, base, of)));
        let turn = links::unfold(turn, base, of);
        seen.keep(&turn);
        Ok(turn)
    }

    /// What a turn goes on with, the nearest first, up to one that is known whole; whether one of them is lost.
    #[allow(clippy::type_complexity)]
    fn earlier(
        &self,
        turn: &Turn,
        mut base: Option<Base>,
        seen: &Seen,
    ) -> Result<(Vec<(Turn, Option<Base>)>, Option<Turn>, bool), StoreError> {
        let (mut chain, mut later) = (Vec::new(), turn.id.clone());
        while let Some(at) = base {
            // No turn goes on with a later one.
            if at.turn >= later {
                return Ok((chain, None, true));
            }
            if let Some(known) = seen.get(&at.turn) {
                return Ok((chain, Some(known), false));
            }
            let id = at.turn.0.as_bytes();
            let found = self.log.get(id).map_err(disk)?.map(|record| unpack_turn(id, &record));
            let Some(Ok((turn, next))) = found else { return Ok((chain, None, true)) };
            chain.push((turn, next.clone()));
            (base, later) = (next, at.turn);
        }
        Ok((chain, None, false))
    }

    /// The whole turn under an id; `None`: it is not there, or damaged.
    fn sound(&self, id: &[u8], seen: &mut Seen) -> Result<Option<Turn>, StoreError> {
        let Some(record) = self.log.get(id).map_err(disk)?.filter(|_| is_turn(id)) else { return Ok(None) };
        match self.whole(id, &record, seen) {
            Err(StoreError::Damaged { .. }) => Ok(None),
            read => read.map(Some),
        }
    }

    /// A turn's record, without what an earlier turn has.
    pub(super) fn folded(&self, turn: &Turn) -> Result<(Vec<u8>, Option<Base>), StoreError> {
        let mut candidates = 0;
        for place in links::begins(turn) {
            let Some(id) = self.log.get(&place).map_err(disk)?.filter(|id| **id < *turn.id.0.as_bytes()) else {
                continue;
            };
            if let Some(of) = self.sound(&id, &mut Seen::default())?
                && let Some((folded, base)) =
                    (0..of.generations.len()).find_map(|choice| links::fold(turn, &of, choice))
            {
                return Ok((pack_turn(&folded, Some(&base))?, Some(base)));
            }
            candidates += 1;
            if candidates == CANDIDATES_MAX {
                break;
            }
        }
        Ok((pack_turn(turn, None)?, None))
    }

    /// Makes a turn's links known.
    pub(super) fn link(&self, batch: &mut Batch, turn: &Turn, base: Option<&Base>) {
        for place in links::ends(turn) {
            batch.insert(place, turn.id.0.as_bytes());
        }
        if let Some(base) = base {
            batch.insert(follower(base.turn.0.as_bytes(), turn.id.0.as_bytes()), &[]);
        }
    }

    /// Takes away what makes a turn found.
    pub(super) fn unlink(&self, batch: &mut Batch, id: &[u8], record: &[u8]) -> Result<(), StoreError> {
        let Ok((_, base)) = unpack_turn(id, record) else { return Ok(()) };
        if let Some(base) = base {
            batch.remove(follower(base.turn.0.as_bytes(), id));
        }
        let Some(turn) = self.sound(id, &mut Seen::default())? else { return Ok(()) };
        for place in links::ends(&turn) {
            if self.log.get(&place).map_err(disk)?.is_some_and(|at| *at == *id) {
                batch.remove(place);
            }
        }
        Ok(())
    }

    /// The turns that go on with a turn.
    fn followers(&self, id: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        let begins = prefix(&beside(FOLLOWS_PREFIX, id));
        let keys = self.log.scan_prefix(&begins).keys();
        keys.map(|key| Ok(key.map_err(disk)?[begins.len()..].to_vec())).collect()
    }

    /// The turns, not chosen themselves, that go on with a chosen one, in whatever distance.
    pub(super) fn followers_of(&self, chosen: &[Vec<u8>]) -> Result<Vec<TurnId>, StoreError> {
        let (mut found, mut next) = (BTreeSet::new(), chosen.to_vec());
        while let Some(id) = next.pop() {
            next.extend(self.followers(&id)?.into_iter().filter(|id| found.insert(id.clone())));
        }
        let left = found.into_iter().filter(|id| !chosen.contains(id));
        Ok(left.map(|id| TurnId(String::from_utf8_lossy(&id).into_owned())).collect())
    }

    /// Before a turn is dropped for want of room: those that go on with it are written without it.
    pub(super) fn keep_followers(&self, change: &mut Change, id: &[u8]) -> Result<(), StoreError> {
        for later in self.followers(id)? {
            change.batch.remove(follower(id, &later));
            let Some(record) = self.log.get(&later).map_err(disk)? else { continue };
            let Some(turn) = self.sound(&later, &mut Seen::default())? else { continue };
            let whole = pack_turn(&turn, None)?;
            change.resize(record.len(), whole.len());
            change.batch.insert(later, whole);
        }
        Ok(())
    }

    /// Takes turns out of the log. Those that go on with them stay, without their words.
    pub(super) fn forget_all(&self, mut chosen: Vec<Vec<u8>>) -> Result<usize, StoreError> {
        let mut state = self.state();
        let mut change = Change::new(&state);
        let (mut seen, mut gone) = (BTreeSet::new(), 0);
        chosen.sort_unstable();
        for first in &chosen {
            let mut visits = vec![Visit { id: first.clone(), before: self.before(first)?, answer: None }];
            while let Some(visit) = visits.pop() {
                let Some(record) = self.log.get(&visit.id).map_err(disk)? else { continue };
                if !seen.insert(visit.id.clone()) {
                    continue;
                }
                let followers = self.followers(&visit.id)?;
                let (before, answer) = match chosen.binary_search(&visit.id).is_ok() {
                    true => {
                        self.take_out(&mut change, &visit.id, &record)?;
                        gone += 1;
                        let named = unpack_turn(&visit.id, &record).ok().and_then(|(_, base)| base);
                        (visit.before, visit.answer.or(named))
                    }
                    false => (self.redact(&mut change, &visit, &record)?.map(Rc::new), None),
                };
                let next = |id| Visit { id, before: before.clone(), answer: answer.clone() };
                visits.extend(followers.into_iter().map(next));
            }
        }
        self.apply(&mut state, change)?;
        Ok(gone)
    }

    /// What a turn goes on with.
    fn before(&self, id: &[u8]) -> Result<Option<Rc<Turn>>, StoreError> {
        let record = self.log.get(id).map_err(disk)?;
        let base = record.and_then(|record| unpack_turn(id, &record).ok()).and_then(|(_, base)| base);
        let Some(base) = base else { return Ok(None) };
        Ok(self.sound(base.turn.0.as_bytes(), &mut Seen::default())?.map(Rc::new))
    }

    /// Writes a turn behind what stands before it now, without the prompt that was read; how it is whole.
    fn redact(&self, change: &mut Change, visit: &Visit, record: &[u8]) -> Result<Option<Turn>, StoreError> {
        let (Ok((folded, Some(named))), Some(mut turn)) =
            (unpack_turn(&visit.id, record), self.sound(&visit.id, &mut Seen::default())?)
        else {
            return Ok(None);
        };
        self.unlink(&mut change.batch, &visit.id, record)?;
        let head = turn.head();
        let own = folded.messages.len() - links::own_head(&folded, Some(&named));
        let said = turn.messages.split_off(turn.messages.len() - own);
        turn.messages.truncate(head);
        let answer = visit.answer.as_ref().unwrap_or(&named);
        if let Some(before) = &visit.before {
            turn.messages.extend(links::said_before(before.as_ref().clone(), answer));
        }
        turn.messages.extend(said);
        (turn.prompt_ids, turn.redacted) = (Vec::new(), true);
        let linked = visit.before.as_deref().and_then(|before| links::fold(&turn, before, answer.choice)).unzip();
        let written = pack_turn(linked.0.as_ref().unwrap_or(&turn), linked.1.as_ref())?;
        change.resize(record.len(), written.len());
        change.batch.insert(visit.id.as_slice(), written);
        self.link(&mut change.batch, &turn, linked.1.as_ref());
        Ok(Some(turn))
    }

    /// Links all turns, of a log that was written before there were links or that was made of a damaged one.
    pub(in crate::store) fn link_all(&self) -> Result<(), StoreError> {
        let mut seen = Seen::default();
        for id in self.log.range(super::FIRST_TURN..).keys() {
            let id = id.map_err(disk)?;
            let mut state = self.state();
            let Some(record) = self.log.get(&id).map_err(disk)?.filter(|_| is_turn(&id)) else { continue };
            let turn = match self.whole(&id, &record, &mut seen) {
                Err(StoreError::Damaged { .. }) => continue,
                read => read?,
            };
            let mut change = Change::new(&state);
            let (_, named) = unpack_turn(&id, &record)?;
            let base = match named {
                Some(base) => Some(base),
                None => {
                    let (folded, base) = self.folded(&turn)?;
                    change.resize(record.len(), folded.len());
                    change.batch.insert(&id, folded);
                    base
                }
            };
            self.link(&mut change.batch, &turn, base.as_ref());
            self.apply(&mut state, change)?;
        }
        Ok(())
    }
}

fn follower(id: &[u8], later: &[u8]) -> Vec<u8> {
    [&prefix(&beside(FOLLOWS_PREFIX, id)), later].concat()
}
