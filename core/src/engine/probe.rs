//! Losses of candidates and of their perturbations: a probe is an evaluation under an adapter that is made for it
//! and forgotten after it. As many are made as there are free sequences for, so memory is that of a few adapters
//! however large the population is.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use super::adapter::Candidate;
use super::backend::{AdapterId, Backend, BackendError};
use super::evaluate::Evaluations;
use super::host::Events;
use super::protocol::{CANDIDATES_MAX, EvalRow, Event, FailureKind, PROBES_MAX, Probe, RequestId};

/// Ids of evaluations that are probes; a daemon's own ids stay below.
const OURS: RequestId = 1 << 63;

/// One `ProbeCandidate` command under way.
struct Probing {
    id: RequestId,
    name: String,
    candidate: Arc<Candidate>,
    probes: Vec<Probe>,
    rows: Arc<Vec<EvalRow>>,
    next: usize,
    open: Vec<Open>,
    /// Nats a scored token; `None`: the model gave no finite number.
    losses: Vec<Option<f64>>,
    done: usize,
}

/// A probe whose evaluation is under way.
struct Open {
    evaluation: RequestId,
    probe: usize,
    adapter: AdapterId,
}

#[derive(Default)]
pub(super) struct Candidates {
    list: Vec<(String, Arc<Candidate>)>,
    probing: VecDeque<Probing>,
    made: u64,
    /// The backend has room for no more adapters until one of ours is dropped.
    full: bool,
}

impl Candidates {
    /// Probes waiting or under way.
    pub(super) fn len(&self) -> usize {
        self.probing.len()
    }

    /// Takes a candidate in under its name, which must be free.
    pub(super) fn begin(&mut self, id: RequestId, name: String, candidate: Candidate) -> Event {
        let failed = |kind, message| Event::Failed { id, kind, message };
        if self.list.iter().any(|(n, _)| *n == name) {
            return failed(FailureKind::Invalid, format!("candidate {name} exists: drop it first"));
        }
        if self.list.len() >= CANDIDATES_MAX {
            return failed(FailureKind::Busy, format!("{CANDIDATES_MAX} candidates exist: drop one first"));
        }
        let event = standing(id, &name, &candidate);
        self.list.push((name, Arc::new(candidate)));
        event
    }

    fn find(&mut self, name: &str) -> Result<&mut Arc<Candidate>, String> {
        let found = self.list.iter_mut().find(|(n, _)| n == name).map(|(_, c)| c);
        found.ok_or_else(|| format!("there is no candidate {name}"))
    }

    /// A copy to be written.
    pub(super) fn snapshot(&mut self, name: &str) -> Result<Arc<Candidate>, String> {
        self.find(name).cloned()
    }

    /// θ ← θ + Σ by · z(seed).
    pub(super) fn step(&mut self, id: RequestId, name: &str, moves: &[Probe]) -> Result<Event, String> {
        if let Some(bad) = moves.iter().find(|m| !m.size.is_finite()) {
            return Err(format!("a step of {} cannot be made", bad.size));
        }
        let candidate = Arc::make_mut(self.find(name)?);
        moves.iter().for_each(|m| candidate.step(m.seed, m.size));
        Ok(standing(id, name, candidate))
    }

    pub(super) fn discard(&mut self, id: RequestId, name: &str) -> Result<Event, String> {
        let event = standing(id, name, self.find(name)?);
        self.list.retain(|(n, _)| n != name);
        Ok(event)
    }

    /// Queues probes of a candidate as it stands now; `rows` were checked.
    pub(super) fn probe(
        &mut self,
        id: RequestId,
        name: &str,
        probes: Vec<Probe>,
        rows: Vec<EvalRow>,
    ) -> Result<(), String> {
        if probes.is_empty() || probes.len() > PROBES_MAX || rows.is_empty() {
            return Err(format!("a probe takes 1 to {PROBES_MAX} directions and at least one row"));
        }
        if let Some(bad) = probes.iter().find(|p| !p.size.is_finite()) {
            return Err(format!("a perturbation of {} cannot be made", bad.size));
        }
        let candidate = self.find(name)?.clone();
        let losses = vec![None; probes.len()];
        let rows = Arc::new(rows);
        self.probing.push_back(Probing {
            id,
            name: name.to_owned(),
            candidate,
            probes,
            rows,
            next: 0,
            open: Vec::new(),
            losses,
            done: 0,
        });
        Ok(())
    }

    /// Starts the next probe; false if none is left to start, or one under way must end first to make room.
    pub(super) fn start(
        &mut self,
        evaluations: &mut Evaluations,
        backend: &mut dyn Backend,
    ) -> Result<bool, (RequestId, BackendError)> {
        let alone = self.probing.iter().all(|p| p.open.is_empty());
        let Some(p) = self.probing.iter_mut().find(|p| p.next < p.probes.len()) else { return Ok(false) };
        if self.full && !alone {
            return Ok(false);
        }
        let Probe { seed, size } = p.probes[p.next];
        let adapter = match backend.load_probe(&p.candidate.perturbed(seed, size)) {
            Ok(adapter) => adapter,
            Err(BackendError::AdapterRoom { .. }) if !alone => {
                self.full = true;
                return Ok(false);
            }
            Err(error) => return Err((p.id, error)),
        };
        let evaluation = OURS | self.made;
        self.made += 1;
        p.open.push(Open { evaluation, probe: p.next, adapter });
        p.next += 1;
        evaluations.push(evaluation, Some(adapter), p.rows.clone(), false);
        Ok(true)
    }

    /// Takes the last event of an evaluation: one of ours becomes a loss, and with the last loss the answer.
    pub(super) fn take(&mut self, event: Event, backend: &mut dyn Backend) -> Option<Event> {
        let (Event::Evaluated { id, .. } | Event::Failed { id, .. }) = &event else { return Some(event) };
        if *id < OURS {
            return Some(event);
        }
        let place = self.probing.iter().position(|p| p.open.iter().any(|o| o.evaluation == *id))?;
        let p = &mut self.probing[place];
        let at = p.open.iter().position(|o| o.evaluation == *id)?;
        let open = p.open.swap_remove(at);
        backend.drop_adapter(open.adapter);
        self.full = false;
        if let Event::Evaluated { rows, .. } = event {
            let tokens: f64 = rows.iter().map(|r| f64::from(r.tokens)).sum();
            p.losses[open.probe] = Some(rows.iter().map(|r| r.nll).sum::<f64>() / tokens.max(1.0));
        }
        p.done += 1;
        if p.done < p.probes.len() {
            return None;
        }
        self.probing.remove(place).map(|p| Event::CandidateProbed { id: p.id, losses: p.losses })
    }

    /// Ends probes early; false if there are none of this id.
    pub(super) fn cancel(&mut self, id: RequestId, evaluations: &mut Evaluations, backend: &mut dyn Backend) -> bool {
        let Some(place) = self.probing.iter().position(|p| p.id == id) else { return false };
        for open in self.probing.remove(place).into_iter().flat_map(|p| p.open) {
            evaluations.cancel(open.evaluation, backend);
            backend.drop_adapter(open.adapter);
        }
        self.full = false;
        true
    }

    /// The probes of a candidate, waiting or under way.
    pub(super) fn probes_of(&self, name: &str) -> Vec<RequestId> {
        self.probing.iter().filter(|p| p.name == name).map(|p| p.id).collect()
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.probing.iter().map(|p| p.id).collect()
    }
}

/// Writes a candidate on a thread of its own: the disk must not hold up a step.
pub(super) fn save(id: RequestId, candidate: Arc<Candidate>, path: PathBuf, events: Events) -> Result<(), String> {
    let write = move || {
        let event = match candidate.adapter.write(&path) {
            Ok((bytes, sha256)) => Event::CandidateSaved { id, facts: candidate.adapter.facts(bytes, &sha256) },
            Err(error) => Event::Failed { id, kind: FailureKind::Internal, message: error.to_string() },
        };
        let _ = events.send(vec![event]);
    };
    let thread = std::thread::Builder::new().name("engine-save".to_owned()).spawn(write);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}

fn standing(id: RequestId, name: &str, candidate: &Candidate) -> Event {
    let a = &candidate.adapter;
    Event::CandidateStands { id, candidate: name.to_owned(), parameters: a.parameters(), norm: a.norm() }
}
