//! The part of the engine loop that keeps prompt prefixes. A sequence begins behind the kept part of its prompt. What
//! it holds on the way is kept for later prompts, until its owner is forgotten.

use super::Host;
use crate::engine::backend::{BackendError, Kept, Saved, SavedSize, SeqId};
use crate::engine::model::passes::GRID;
use crate::engine::prefix::Keeper;
use crate::engine::protocol::{Event, RequestId};
use crate::engine::slot::Slot;

impl Host {
    /// Opens a sequence for a request, under its adapter, with the longest prefix of its prompt that is kept.
    pub(super) fn begin(&mut self, slot: &mut Slot) -> Result<SeqId, BackendError> {
        loop {
            let seq = self.backend.open()?;
            let filled = self.fill(seq, slot);
            match filled {
                Ok(true) => return Ok(seq),
                // What was refused is gone: next time less is put in.
                Ok(false) => self.backend.close(seq),
                Err(error) => {
                    self.backend.close(seq);
                    return Err(error);
                }
            }
        }
    }

    /// False: what was kept for it cannot be put in, and is kept no longer. The sequence may hold a part of it.
    fn fill(&mut self, seq: SeqId, slot: &mut Slot) -> Result<bool, BackendError> {
        if let Some(adapter) = slot.adapter {
            self.backend.adapt(seq, adapter)?;
        }
        self.backend.begin_prompt(seq, slot.prompt_tokens() as usize);
        if let Some((tokens, saved)) = slot.kept.take() {
            let blocks = saved.blocks.iter().map(Vec::as_slice).collect();
            let restored = self.backend.restore(seq, &Kept { tokens, blocks, state: &saved.state });
            if refused(restored)? {
                return Ok(false);
            }
            slot.restored(tokens);
            return Ok(true);
        }
        let (Some(size), Some((scope, prompt))) = (self.backend.saved_size(), slot.prefix()) else { return Ok(true) };
        let found = self.prefixes.find(scope, prompt);
        if let Some(node) = found.node
            && refused(self.backend.restore(seq, &self.prefixes.kept(node)))?
        {
            self.prefixes.lose(node);
            return Ok(false);
        }
        let marks = self.prefixes.marks(prompt, self.vocab.ends(), &found, size.grid);
        slot.resume(found.held, marks);
        Ok(true)
    }

    /// Takes a request's sequence away. What it held is kept aside where it can be saved just there and room is left, as
    /// much as for prompts; else it is fed again.
    pub(super) fn take_away(&mut self, at: usize) -> Slot {
        let mut slot = self.slots.remove(at);
        if let Some((seq, held)) = slot.suspend() {
            slot.kept = self.kept_aside(seq, held).map(|saved| (held, saved));
            self.backend.close(seq);
        }
        slot
    }

    fn kept_aside(&mut self, seq: SeqId, held: usize) -> Option<Saved> {
        let size = self.backend.saved_size().filter(|size| size.block > 0)?;
        let bytes = |held: usize| (held.div_ceil(GRID) * size.block + size.state) as u64;
        let aside = self.waiting.iter().chain(&self.background).filter_map(|slot| slot.kept.as_ref());
        let all = aside.map(|(held, _)| bytes(*held)).sum::<u64>() + bytes(held);
        let fits = held > 0 && held.is_multiple_of(size.grid) && all <= self.limits.prefixes.bytes_max;
        // A device that was lost says so at the next step.
        fits.then(|| self.backend.save(seq, 0).ok()).flatten()
    }

    /// Forgets what was kept of an owner's prompts, or of everybody's, and keeps nothing of those that were asked before.
    pub(super) fn forget_prefixes(&mut self, id: RequestId, owner: Option<&str>, out: &mut Vec<Event>) {
        self.slots.iter_mut().chain(&mut self.waiting).for_each(|slot| slot.forget(owner));
        let snapshots = self.prefixes.forget(owner) as u32;
        out.push(Event::PrefixesForgotten { id, snapshots });
    }

    /// Begins with what an engine before this one kept, and leaves what this one keeps for the next.
    pub fn keeping(mut self, keeper: Option<Keeper>) -> Host {
        let (Some(keeper), Some(size)) = (keeper, self.backend.saved_size()) else { return self };
        match keeper.load(self.limits.prefixes, size) {
            Ok(Some(prefixes)) => {
                let (snapshots, bytes) = (prefixes.len(), prefixes.bytes());
                tracing::info!(snapshots, bytes, "prompts of before are kept");
                self.prefixes = prefixes;
            }
            Ok(None) => {}
            // They are read again, and the file is written anew.
            Err(error) => tracing::warn!(file = %keeper.file.display(), %error, "kept prompts are not used"),
        }
        self.keeper = Some(keeper);
        self
    }

    /// Not after a lost device: what it gave last cannot be trusted.
    pub(super) fn save_prefixes(&self) {
        if let (Some(keeper), None) = (&self.keeper, &self.lost)
            && let Err(error) = keeper.save(&self.prefixes)
        {
            tracing::warn!(file = %keeper.file.display(), %error, "kept prompts cannot be written");
        }
    }

    /// Takes the snapshots that are due after a step.
    pub(super) fn keep_prefixes(&mut self, out: &mut Vec<Event>) {
        let Some(size) = self.backend.saved_size() else { return };
        for slot in &mut self.slots {
            let Some((seq, scope, tokens)) = slot.mark() else { continue };
            let size = SavedSize { state: self.backend.state_bytes(seq), ..size };
            let Some(first) = self.prefixes.room(scope, tokens, size) else { continue };
            match self.backend.save(seq, first) {
                Ok(saved) => self.prefixes.put(scope, tokens, saved),
                Err(error @ BackendError::Lost(_)) => return self.lose(error, out),
                // The request goes on without it.
                Err(error) => {
                    tracing::warn!(%error, "a prompt's prefix is not kept");
                    self.prefixes.give_up(scope, tokens);
                }
            }
        }
    }
}

/// Whether a backend does not take what was kept: then it is fed again. A device that was lost is an error.
fn refused(restored: Result<(), BackendError>) -> Result<bool, BackendError> {
    match restored {
        Ok(()) => Ok(false),
        Err(error @ BackendError::Lost(_)) => Err(error),
        Err(error) => {
            tracing::warn!(%error, "what was kept of a prompt cannot be used: it is read again");
            Ok(true)
        }
    }
}
