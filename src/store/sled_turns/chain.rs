//! Turns that go on with one another: each is kept without what an earlier one has (`links`). Two kinds of keys find them,
//! each with nothing behind it:
//!
//! - `!said/`, a place's digest, `/` and the id of a turn that came to it;
//! - `!follows/`, a turn's id, `/` and the id of one that goes on with it.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use sled::Batch;

use super::{JUDGED_PREFIX, SledTurns, State, TurnCounts, UNSCORED_PREFIX, beside, disk, is_turn, prefix};
use crate::scoring::correction::right_words;
use crate::service::TurnFilter;
use crate::store::forgotten::Forgotten;
use crate::store::record::{Base, pack, pack_turn, unpack, unpack_turn};
use crate::store::{GoesOn, Marks, Piece, StoreError, TurnStore, links, passes, without_forgotten};
use crate::turn::{Feedback, Message, Turn, TurnId};

const FOLLOWS_PREFIX: &str = "!follows/";
/// Turns that are compared before a turn is written whole.
const CANDIDATES_MAX: usize = 8;
/// A turn that is dropped leaves those that go on with it whole as long as that takes at most this part of the log's limit.
const HEIRS_PART: u64 = 64;
/// Looks at a chain that another thread may be writing anew.
const LOOKS: usize = 3;
/// Whole turns that a listing keeps in hand.
const SEEN_MAX: usize = 8;

/// Whole turns that were read last: the next of the same conversation is not put together from its beginning.
#[derive(Default)]
pub(super) struct Seen(VecDeque<Turn>);

impl Seen {
    fn get(&self, id: &TurnId) -> Option<Turn> {
        self.0.iter().find(|turn| turn.id == *id).cloned()
    }

    pub(super) fn keep(&mut self, turn: &Turn) {
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

/// A turn that a forgetting comes to.
struct Visit {
    id: Vec<u8>,
    /// What it went on with, whole.
    was: Option<Rc<Turn>>,
    /// What it goes on with now, and which answer of that where its record does not name it.
    before: Option<Rc<Turn>>,
    answer: Option<Base>,
    /// The turn before it is forgotten.
    orphan: bool,
}

impl SledTurns {
    /// The turn of a record, as it was appended.
    pub(super) fn whole(&self, id: &[u8], record: &[u8], seen: &mut Seen) -> Result<Turn, StoreError> {
        let (mut turn, mut base) = unpack_turn(id, record)?;
        if base.is_none() {
            return Ok(turn);
        }
        let mut looks = 1;
        let (earlier, known, lost) = loop {
            let found = self.earlier(&turn, base.clone(), seen)?;
            if !found.2 || looks == LOOKS {
                break found;
            }
            looks += 1;
            if let Some(now) = self.log.get(id).map_err(disk)? {
                (turn, base) = unpack_turn(id, &now)?;
            }
        };
        let of = earlier.into_iter().rev().fold(known, |of, (turn, base)| Some(links::unfold(turn, base, of)));
        turn = links::unfold(turn, base, of);
        if lost {
            (turn.redacted, turn.prompt_ids) = (true, Vec::new());
        } else {
            seen.keep(&turn);
        }
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
    pub(super) fn folded(&self, turn: &Turn, seen: &mut Seen) -> Result<(Vec<u8>, Option<Base>), StoreError> {
        let mut candidates = 0;
        for place in links::begins(turn) {
            let begins = prefix(&place);
            for key in self.log.scan_prefix(&begins).keys().rev().take(CANDIDATES_MAX) {
                let key = key.map_err(disk)?;
                let id = &key[begins.len()..];
                if id >= turn.id.0.as_bytes() {
                    continue;
                }
                if let Some(of) = self.sound(id, seen)?
                    && let Some((folded, base)) =
                        links::answers(&of, &self.rights(&of)?).find_map(|answer| links::fold(turn, &of, answer))
                {
                    return Ok((pack_turn(&folded, Some(&base))?, Some(base)));
                }
                candidates += 1;
                if candidates == CANDIDATES_MAX {
                    return Ok((pack_turn(turn, None)?, None));
                }
            }
        }
        Ok((pack_turn(turn, None)?, None))
    }

    /// Adds a turn that is not there yet; how many were dropped for it.
    pub(super) fn add(&self, state: &mut State, turn: &Turn) -> Result<u64, StoreError> {
        if self.log.contains_key(&turn.id.0).map_err(disk)? {
            return Ok(0);
        }
        let (record, base) = self.folded(turn, &mut state.seen)?;
        let bytes = record.len() as u64;
        if bytes > self.bytes_max {
            return Err(StoreError::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        let mut change = Change::new(state);
        change.batch.insert(turn.id.0.as_bytes(), record);
        match &turn.judgement {
            Some(judgement) => change.batch.insert(beside(JUDGED_PREFIX, turn.id.0.as_bytes()), pack(judgement)?),
            None => change.batch.insert(beside(UNSCORED_PREFIX, turn.id.0.as_bytes()), &[]),
        }
        self.link(&mut change.batch, turn, base.as_ref())?;
        (change.counts.turns, change.counts.bytes) = (change.counts.turns + 1, change.counts.bytes + bytes);
        self.apply(state, change)?;
        state.seen.keep(turn);
        self.drop_oldest(state, Some(&turn.id))
    }

    /// Makes a turn's links known.
    pub(super) fn link(&self, batch: &mut Batch, turn: &Turn, base: Option<&Base>) -> Result<(), StoreError> {
        for place in links::ends(turn, &self.rights(turn)?) {
            batch.insert(follower(&place, turn.id.0.as_bytes()), &[]);
        }
        if let Some(base) = base {
            batch.insert(follows(base.turn.0.as_bytes(), turn.id.0.as_bytes()), &[]);
        }
        Ok(())
    }

    /// What its own principal said that a turn's first answer should have been.
    fn rights(&self, turn: &Turn) -> Result<Vec<String>, StoreError> {
        let mut rights = Vec::new();
        for vote in self.log.scan_prefix(prefix(turn.id.0.as_bytes())).values() {
            // Damaged feedback vouches for no words.
            let Ok(feedback) = unpack::<Feedback>(turn.id.0.as_bytes(), &vote.map_err(disk)?) else { continue };
            rights.extend(right_of(turn, &feedback));
        }
        Ok(rights)
    }

    /// Lets later turns go on with a turn as it was corrected.
    pub(super) fn link_correction(
        &self,
        state: &mut State,
        batch: &mut Batch,
        id: &TurnId,
        feedback: &Feedback,
    ) -> Result<(), StoreError> {
        if feedback.correction.is_none() {
            return Ok(());
        }
        let Some(turn) = self.sound(id.0.as_bytes(), &mut state.seen)? else { return Ok(()) };
        let right: Vec<String> = right_of(&turn, feedback).into_iter().collect();
        for place in links::ends(&turn, &right).into_iter().skip(turn.generations.len()) {
            batch.insert(follower(&place, id.0.as_bytes()), &[]);
        }
        Ok(())
    }

    /// Takes away what makes a turn found.
    pub(super) fn unlink(&self, batch: &mut Batch, turn: &Turn, base: Option<&Base>) -> Result<(), StoreError> {
        for place in links::ends(turn, &self.rights(turn)?) {
            batch.remove(follower(&place, turn.id.0.as_bytes()));
        }
        if let Some(base) = base {
            batch.remove(follows(base.turn.0.as_bytes(), turn.id.0.as_bytes()));
        }
        Ok(())
    }

    /// Takes out of a turn what it goes on with, where that was forgotten since its reply read it.
    pub(super) fn spare(&self, state: &mut State, turn: &mut Turn, goes_on: &GoesOn) -> Result<(), StoreError> {
        let before = self.sound(goes_on.turn.0.as_bytes(), &mut state.seen)?;
        let same = match before.map(|before| before.said(0)) {
            // The answer that it goes on with is as the reply read it, before or after a correction: forgetting leaves it.
            Some(said) => {
                let theirs = turn.messages[turn.head()..].get(..goes_on.messages);
                theirs.is_some_and(|theirs| same_but_last(theirs, &said))
            }
            // What was dropped for want of room is nobody's secret.
            None => !self.may_be_forgotten(&goes_on.turn),
        };
        if !same {
            without_forgotten(turn, goes_on.messages);
        }
        Ok(())
    }

    /// A turn of this id was forgotten, or the list of those that were is not whole.
    pub(super) fn may_be_forgotten(&self, id: &TurnId) -> bool {
        let forgotten = Forgotten::read(&self.folder);
        !forgotten.complete() || forgotten.holds(&id.0)
    }

    /// The next turns that a forgetting takes. Where nothing is asked of a record it is not read: a damaged one is forgotten
    /// too.
    pub(super) fn chosen(&self, filter: &TurnFilter) -> Result<Piece<Vec<Vec<u8>>>, StoreError> {
        let unread = filter.principal.is_none() && filter.conversation.is_none() && filter.since_ms.is_none();
        let mut value = Vec::new();
        let next = match &filter.turn {
            Some(id) => {
                let here = is_turn(id.0.as_bytes()) && filter.after.as_ref().is_none_or(|after| id > after);
                let there = here && self.log.contains_key(&id.0).map_err(disk)?;
                let passes = there && (unread || !self.list_piece(filter)?.value.is_empty());
                value.extend(passes.then(|| id.0.clone().into_bytes()));
                None
            }
            // All of them are looked at: what is to be forgotten is told by its record, not by its id.
            None => self.walk((filter.after.as_ref(), None), |key, record| {
                value.extend(self.of_filter(filter, key, record).then(|| key.to_vec()));
                Ok(true)
            })?,
        };
        Ok(Piece { value, next })
    }

    /// Whether a forgetting takes a turn. Who said it, when and where stands in its own record.
    pub(super) fn of_filter(&self, filter: &TurnFilter, key: &[u8], record: &[u8]) -> bool {
        let unread = filter.principal.is_none() && filter.conversation.is_none() && filter.since_ms.is_none();
        unread || unpack::<Marks>(key, record).is_ok_and(|turn| passes(filter, &turn))
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
        let chosen: BTreeSet<&Vec<u8>> = chosen.iter().collect();
        let left = found.into_iter().filter(|id| !chosen.contains(id));
        Ok(left.map(|id| TurnId(String::from_utf8_lossy(&id).into_owned())).collect())
    }

    /// Drops a turn for want of room. Those that go on with it are written whole, the newest first, as far as there is
    /// room for that.
    pub(super) fn drop_one(&self, change: &mut Change, id: &[u8], record: &[u8]) -> Result<(), StoreError> {
        let mut room = (self.bytes_max / HEIRS_PART).max(record.len() as u64);
        let mut seen = Seen::default();
        for later in self.followers(id)?.into_iter().rev() {
            change.batch.remove(follows(id, &later));
            let Some(old) = self.log.get(&later).map_err(disk)? else { continue };
            let Some(turn) = self.sound(&later, &mut seen)? else { continue };
            let whole = pack_turn(&turn, None)?;
            let more = whole.len().saturating_sub(old.len()) as u64;
            if more > room {
                continue;
            }
            room -= more;
            change.resize(old.len(), whole.len());
            change.batch.insert(later, whole);
        }
        let turn = self.sound(id, &mut seen)?;
        self.take_out(change, id, record, turn.as_ref())
    }

    /// Takes turns out of the log. Those that go on with them stay, without their words.
    pub(super) fn forget_all(&self, mut chosen: Vec<Vec<u8>>) -> Result<usize, StoreError> {
        let mut state = self.state();
        state.seen = Seen::default();
        let mut change = Change::new(&state);
        let (mut done, mut gone) = (BTreeSet::new(), 0);
        chosen.sort_unstable();
        for first in &chosen {
            let was = self.before(first)?;
            let mut visits = vec![Visit { id: first.clone(), before: was.clone(), was, answer: None, orphan: false }];
            while let Some(visit) = visits.pop() {
                let Some(record) = self.log.get(&visit.id).map_err(disk)?.filter(|_| done.insert(visit.id.clone()))
                else {
                    continue;
                };
                let followers = self.followers(&visit.id)?;
                let orphan = chosen.binary_search(&visit.id).is_ok();
                let next = if orphan {
                    gone += 1;
                    self.forget_one(&mut change, visit, &record)?
                } else {
                    self.redact(&mut change, visit, &record)?
                };
                let (was, before, answer) = next;
                let visit = |id| Visit { id, was: was.clone(), before: before.clone(), answer: answer.clone(), orphan };
                visits.extend(followers.into_iter().map(visit));
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

    /// Takes a turn out; what those that go on with it went on with and go on with now.
    fn forget_one(&self, change: &mut Change, visit: Visit, record: &[u8]) -> Result<Next, StoreError> {
        let Ok((folded, named)) = unpack_turn(&visit.id, record) else {
            self.take_out(change, &visit.id, record, None)?;
            return Ok((None, visit.before, visit.answer));
        };
        let whole = links::unfold(folded, named.clone(), visit.was.as_deref().cloned());
        self.take_out(change, &visit.id, record, Some(&whole))?;
        if let Some(base) = &named {
            change.batch.remove(follows(base.turn.0.as_bytes(), &visit.id));
        }
        Ok((Some(Rc::new(whole)), visit.before, visit.answer.or(named)))
    }

    /// Writes a turn behind what stands before it now, without the prompt that was read.
    fn redact(&self, change: &mut Change, visit: Visit, record: &[u8]) -> Result<Next, StoreError> {
        let Ok((folded, Some(named))) = unpack_turn(&visit.id, record) else { return Ok((None, None, None)) };
        let own = folded.messages[links::own_head(&folded, Some(&named))..].to_vec();
        let whole = links::unfold(folded, Some(named.clone()), visit.was.as_deref().cloned());
        self.unlink(&mut change.batch, &whole, Some(&named))?;
        let answer = visit.answer.as_ref().unwrap_or(&named);
        let before = visit.before.as_deref();
        let said = before.map_or_else(Vec::new, |before| links::said_before(before.clone(), answer));
        let mut turn = whole.clone();
        links::redact(&mut turn, own, said, visit.orphan);
        let linked =
            before.and_then(|before| links::fold(&turn, before, (answer.choice, answer.right.as_deref()))).unzip();
        let written = pack_turn(linked.0.as_ref().unwrap_or(&turn), linked.1.as_ref())?;
        change.resize(record.len(), written.len());
        change.batch.insert(visit.id.as_slice(), written);
        self.link(&mut change.batch, &turn, linked.1.as_ref())?;
        Ok((Some(Rc::new(whole)), Some(Rc::new(turn)), None))
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
                    let (folded, base) = self.folded(&turn, &mut seen)?;
                    change.resize(record.len(), folded.len());
                    change.batch.insert(&id, folded);
                    base
                }
            };
            self.link(&mut change.batch, &turn, base.as_ref())?;
            self.apply(&mut state, change)?;
        }
        Ok(())
    }
}

/// What those that go on with a turn went on with, what they go on with now, and which answer of that.
type Next = (Option<Rc<Turn>>, Option<Rc<Turn>>, Option<Base>);

/// The words of a correction by the one who asked.
fn right_of(turn: &Turn, feedback: &Feedback) -> Option<String> {
    let correction = feedback.correction.as_deref().filter(|_| feedback.principal == turn.principal)?;
    right_words(correction, &turn.tools)
}

fn same_but_last(these: &[Message], those: &[Message]) -> bool {
    let before = these.len().saturating_sub(1);
    these.len() == those.len() && these[..before] == those[..before]
}

fn follows(id: &[u8], later: &[u8]) -> Vec<u8> {
    follower(&beside(FOLLOWS_PREFIX, id), later)
}

fn follower(key: &[u8], later: &[u8]) -> Vec<u8> {
    [&prefix(key), later].concat()
}
