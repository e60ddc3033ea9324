//! The adapters that the step loop knows by name. A revision counts its users from the moment a request is queued. So
//! a request's adapter stays loaded until that request has ended, even if it is dropped meanwhile.

use super::adapter::{Adapter, AdapterFacts};
use super::backend::{AdapterId, Backend};
use super::protocol::{ADAPTERS_MAX, Event, FailureKind, RequestId};

/// An adapter that was read and checked, on its way to the step loop.
pub struct Arrived {
    pub id: RequestId,
    pub revision: String,
    pub adapter: Adapter,
    pub facts: Box<AdapterFacts>,
}

struct Entry {
    revision: String,
    handle: AdapterId,
    facts: Box<AdapterFacts>,
    /// Requests queued or running under it.
    users: usize,
    /// Who asked for it to be dropped and has not heard.
    dropping: Vec<RequestId>,
}

#[derive(Default)]
pub(super) struct Revisions {
    entries: Vec<Entry>,
}

impl Revisions {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes an adapter in under its name.
    pub(super) fn load(&mut self, arrived: Arrived, backend: &mut dyn Backend, out: &mut Vec<Event>) {
        let Arrived { id, revision, adapter, facts } = arrived;
        let failed = |kind, message| Event::Failed { id, kind, message };
        if let Some(entry) = self.entries.iter_mut().find(|e| e.revision == revision) {
            if entry.facts.sha256 != facts.sha256 {
                let message = format!("revision {revision} is loaded with another content: drop it first");
                return out.push(failed(FailureKind::Invalid, message));
            }
            for id in entry.dropping.drain(..) {
                let message = format!("revision {revision} was loaded again before its last request had ended");
                out.push(Event::Failed { id, kind: FailureKind::Invalid, message });
            }
            return out.push(Event::AdapterLoaded { id, revision, facts });
        }
        if self.entries.len() >= ADAPTERS_MAX {
            let message = format!("{ADAPTERS_MAX} adapters are loaded: drop one first");
            return out.push(failed(FailureKind::Busy, message));
        }
        match backend.load_adapter(&adapter) {
            Ok(handle) => {
                let entry =
                    Entry { revision: revision.clone(), handle, facts: facts.clone(), users: 0, dropping: Vec::new() };
                self.entries.push(entry);
                out.push(Event::AdapterLoaded { id, revision, facts });
            }
            Err(error) => out.push(failed(FailureKind::Invalid, error.to_string())),
        }
    }

    /// The SHA-256 of what stands behind a handle.
    pub(super) fn content(&self, handle: AdapterId) -> Option<&str> {
        self.entries.iter().find(|e| e.handle == handle).map(|e| e.facts.sha256.as_str())
    }

    /// The handle of a revision for one more request.
    pub(super) fn enter(&mut self, revision: &str) -> Result<AdapterId, String> {
        let entry = self.entries.iter_mut().find(|e| e.revision == revision && e.dropping.is_empty());
        let entry = entry.ok_or_else(|| format!("adapter revision {revision} is not loaded"))?;
        entry.users += 1;
        Ok(entry.handle)
    }

    /// A request under `handle` has ended.
    pub(super) fn leave(&mut self, handle: AdapterId, backend: &mut dyn Backend, out: &mut Vec<Event>) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.handle == handle) {
            entry.users = entry.users.saturating_sub(1);
        }
        self.sweep(backend, out);
    }

    pub(super) fn discard(&mut self, id: RequestId, revision: &str, backend: &mut dyn Backend, out: &mut Vec<Event>) {
        match self.entries.iter_mut().find(|e| e.revision == revision) {
            Some(entry) => entry.dropping.push(id),
            None => {
                let message = format!("adapter revision {revision} is not loaded");
                out.push(Event::Failed { id, kind: FailureKind::Invalid, message });
            }
        }
        self.sweep(backend, out);
    }

    /// Lets go of what is to be dropped and has no user.
    fn sweep(&mut self, backend: &mut dyn Backend, out: &mut Vec<Event>) {
        self.entries.retain_mut(|entry| {
            if entry.users > 0 || entry.dropping.is_empty() {
                return true;
            }
            backend.drop_adapter(entry.handle);
            let told = entry.dropping.drain(..);
            out.extend(told.map(|id| Event::AdapterDropped { id, revision: entry.revision.clone() }));
            false
        });
    }
}
