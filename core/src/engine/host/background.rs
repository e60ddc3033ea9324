//! The part of the step loop that nobody waits for: evaluations, candidates and their probes, and giving their
//! sequences back to live requests.

use std::sync::Arc;

use super::{Events, Host};
use crate::engine::backend::AdapterId;
use crate::engine::evaluate;
use crate::engine::probe;
use crate::engine::protocol::{Command, EvalRow, Event, FailureKind, RequestId};

impl Host {
    pub(super) fn evaluate(
        &mut self,
        id: RequestId,
        adapter: Option<String>,
        rows: Vec<EvalRow>,
        with_kl: bool,
        out: &mut Vec<Event>,
    ) -> Result<(), (FailureKind, String)> {
        let info = self.backend.info();
        if info.embedding_only {
            return Err((FailureKind::Invalid, "this model gives embeddings and no likelihoods".to_owned()));
        }
        if let Some(reason) = evaluate::refusal(&rows, with_kl, info) {
            return Err((FailureKind::Invalid, reason));
        }
        if self.evaluations.is_full() {
            return Err((FailureKind::Busy, format!("{} evaluations are already waiting", self.evaluations.len())));
        }
        if rows.is_empty() {
            out.push(Event::Evaluated { id, rows: Vec::new() });
            return Ok(());
        }
        let adapter = adapter.map(|revision| self.revisions.enter(&revision)).transpose();
        self.evaluations.push(id, adapter.map_err(|m| (FailureKind::Invalid, m))?, Arc::new(rows), with_kl);
        Ok(())
    }

    /// A command about a candidate that exists.
    pub(super) fn candidate(&mut self, command: Command, events: &Events, out: &mut Vec<Event>) {
        let (id, done) = match command {
            Command::ProbeCandidate { id, candidate, probes, rows } => {
                let done = match evaluate::refusal(&rows, false, self.backend.info()) {
                    Some(reason) => Err(reason),
                    None => self.candidates.probe(id, &candidate, probes, rows).map(|()| None),
                };
                (id, done)
            }
            Command::MoveCandidate { id, candidate, moves } => {
                (id, self.candidates.step(id, &candidate, &moves).map(Some))
            }
            Command::DropCandidate { id, candidate } => {
                for probe in self.candidates.probes_of(&candidate) {
                    self.cancel(probe, out);
                }
                (id, self.candidates.discard(id, &candidate).map(Some))
            }
            Command::SaveCandidate { id, candidate, path } => {
                let saved = self.candidates.snapshot(&candidate).and_then(|c| probe::save(id, c, path, events.clone()));
                (id, saved.map(|()| None))
            }
            _ => return,
        };
        match done {
            Ok(event) => out.extend(event),
            Err(message) => out.push(Event::Failed { id, kind: FailureKind::Invalid, message }),
        }
    }

    /// Makes as many perturbed adapters as there are sequences for.
    pub(super) fn start_probes(&mut self, free: usize, out: &mut Vec<Event>) {
        while self.evaluations.wanted() < free {
            match self.candidates.start(&mut self.evaluations, self.backend.as_mut()) {
                Ok(true) => {}
                Ok(false) => return,
                Err((id, error)) => {
                    self.candidates.cancel(id, &mut self.evaluations, self.backend.as_mut());
                    out.push(evaluate::failed(id, FailureKind::Internal, error.to_string()));
                }
            }
        }
    }

    /// Takes a sequence from background work; false if none has one.
    pub(super) fn evict(&mut self) -> bool {
        if self.evaluations.evict(self.backend.as_mut()) {
            return true;
        }
        let Some(at) = self.slots.iter().rposition(|s| s.background) else { return false };
        let slot = self.take_away(at);
        self.background.push_front(slot);
        true
    }

    pub(super) fn fail_evaluations(&mut self, message: &str, out: &mut Vec<Event>) {
        for id in self.evaluations.ids() {
            self.fail_evaluation(id, message.to_owned(), out);
        }
    }

    pub(super) fn fail_evaluation(&mut self, id: RequestId, message: String, out: &mut Vec<Event>) {
        if let Some(adapter) = self.evaluations.cancel(id, self.backend.as_mut()) {
            self.told(evaluate::failed(id, FailureKind::Internal, message), adapter, out);
        }
    }

    /// The last event of an evaluation, which may be a probe.
    pub(super) fn told(&mut self, event: Event, adapter: Option<AdapterId>, out: &mut Vec<Event>) {
        out.extend(self.candidates.take(event, self.backend.as_mut()));
        self.leave(adapter, out);
    }
}
