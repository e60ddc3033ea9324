//! An engine in this process, asked one thing at a time. It has the same engine loop and the same commands as the
//! daemon's engine, without a pipe between.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use anyhow::{Context, bail};
use chimere::engine::host::HostLimits;
use chimere::engine::load::Loaded;
use chimere::engine::process::{self, Running};
use chimere::engine::protocol::{Command, Event, RequestId};

/// Sequences of an engine that works for itself: the step loop keeps one of them free.
pub const SEQUENCES: usize = 9;
/// Tokens fed in one step.
const STEP_TOKENS: usize = 512;
/// Batches of events not yet read.
const EVENT_BATCHES_MAX: usize = 64;

pub struct Here {
    running: Running,
    events: Receiver<Vec<Event>>,
    asked: RequestId,
}

impl Here {
    pub fn start(loaded: Loaded) -> anyhow::Result<Here> {
        let (events, from_engine) = sync_channel(EVENT_BATCHES_MAX);
        let running = process::start(
            loaded,
            HostLimits { waiting_max: 1, step_tokens_max: STEP_TOKENS, ..HostLimits::default() },
            events,
        )?;
        Ok(Here { running, events: from_engine, asked: 0 })
    }

    /// Asks, and waits for the event that answers.
    pub fn ask(&mut self, command: impl FnOnce(RequestId) -> Command) -> anyhow::Result<Event> {
        self.asked += 1;
        let sent = self.running.commands.send((command(self.asked), Instant::now()));
        sent.ok().context("the engine takes no commands any more")?;
        loop {
            let Ok(events) = self.events.recv() else { bail!("the engine ended") };
            if let Some(answer) = events.into_iter().find(|event| answers(event) == Some(self.asked)) {
                return Ok(answer);
            }
        }
    }
}

/// The id of the question that an event answers, if it answers one.
fn answers(event: &Event) -> Option<RequestId> {
    match event {
        Event::Failed { id, .. }
        | Event::Evaluated { id, .. }
        | Event::CandidateStands { id, .. }
        | Event::CandidateProbed { id, .. }
        | Event::CandidateSaved { id, .. }
        | Event::Stats { id, .. } => Some(*id),
        _ => None,
    }
}
