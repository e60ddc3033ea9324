//! The engine as a process. Commands are read from one pipe, events written to another. Between them run the
//! engine loop and the threads of the text side, for templates, tokenising and the reading of adapters. End of file on
//! the command pipe ends everything: no engine outlives its daemon.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::backend::BackendError;
use super::grammar::Desk;
use super::host::{Events, Host, HostLimits};
use super::load::Loaded;
use super::prepare::Preparer;
use super::protocol::{self, Command, Event, FailureKind, Frame, FrameError, RequestId};
use super::text_side;

/// Commands read but not yet handled; the daemon is held back by the pipe beyond that.
const COMMANDS_MAX: usize = 256;
/// Batches of events not yet written.
const EVENT_BATCHES_MAX: usize = 64;
/// Events are gathered into writes of about this size.
const WRITE_BYTES: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    #[error("command pipe: {0}")]
    Commands(FrameError),
    #[error("the step loop ended unexpectedly")]
    Loop,
    #[error(transparent)]
    Lost(#[from] BackendError),
}

/// Starts the text side and the step loop of a loaded model. Commands go in with the time they were received;
/// events come out of the other end of `events`, `Ready` first. The loop ends when the commands do.
pub fn start(loaded: Loaded, limits: HostLimits, events: Events) -> Result<Running, ProcessError> {
    let (commands, from_client) = sync_channel(COMMANDS_MAX);
    let (to_loop, from_text) = sync_channel(COMMANDS_MAX);
    let _ = events.send(vec![Event::Ready(Box::new(loaded.hosted.clone()))]);
    let preparer = Preparer::new(Arc::clone(&loaded.vocab), loaded.template, &loaded.hosted, loaded.base);
    let desk = Desk::start(Arc::clone(&loaded.vocab), loaded.vet_with, to_loop.clone(), events.clone())?;
    let forms = desk.counts();
    text_side::start(preparer, desk, from_client, to_loop, events.clone())?;
    let host = Host::new(loaded.backend, loaded.vocab, limits).keeping(loaded.keeper).counting(forms);
    let steps = named("steps").spawn(move || host.run(&from_text, &events))?;
    Ok(Running { commands, steps })
}

/// A step loop under way.
pub struct Running {
    pub commands: SyncSender<(Command, Instant)>,
    pub steps: JoinHandle<Result<(), BackendError>>,
}

/// Hosts a loaded model on a pair of pipes until `Exit` or the end of `commands`.
pub fn serve<R, W>(loaded: Loaded, limits: HostLimits, commands: R, events: W) -> Result<(), ProcessError>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let (to_writer, from_loop) = sync_channel(EVENT_BATCHES_MAX);
    let writer = named("events").spawn(move || write_events(&from_loop, events))?;
    let running = start(loaded, limits, to_writer.clone())?;
    let (to_text, to_daemon) = (running.commands, to_writer.clone());
    // Not joined before it is done: a read from standard input cannot be interrupted, and must not keep a finished
    // engine alive.
    let reader = named("commands").spawn(move || read_commands(commands, &to_text, &to_daemon))?;
    let looped = running.steps.join();
    // The text thread may still wait for commands and hold a sender: the end is told by an empty batch.
    let _ = to_writer.send(Vec::new());
    let _ = writer.join();
    if reader.is_finished()
        && let Ok(Err(error)) = reader.join()
    {
        return Err(ProcessError::Commands(error));
    }
    Ok(looped.map_err(|_| ProcessError::Loop)??)
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(format!("engine-{name}"))
}

/// Reads commands until the pipe ends. What is no command fails the request it is about, and no other: only a lost
/// frame boundary ends the engine.
fn read_commands(mut from: impl Read, to: &SyncSender<(Command, Instant)>, events: &Events) -> Result<(), FrameError> {
    while let Some(frame) = protocol::next_frame::<Command>(&mut from)? {
        let passed = match frame {
            Frame::Message(command) => to.send((command, Instant::now())).is_ok(),
            Frame::Strange { id, error } => {
                tracing::error!(id, %error, "a command that this engine does not understand");
                id.is_none_or(|id| events.send(vec![not_understood(id)]).is_ok())
            }
        };
        if !passed {
            break;
        }
    }
    Ok(())
}

fn not_understood(id: RequestId) -> Event {
    let message = "the engine does not understand this command of the daemon; after an update, restart the daemon";
    Event::Failed { id, kind: FailureKind::Internal, message: message.to_owned() }
}

/// Writes every event that is ready in one go; ends at an empty batch, or when nobody reads.
fn write_events(from: &Receiver<Vec<Event>>, mut to: impl Write) {
    let mut buffer = Vec::new();
    let mut ended = false;
    while !ended && let Ok(first) = from.recv() {
        let mut batch = Some(first);
        while let Some(events) = batch {
            ended |= events.is_empty();
            for event in &events {
                if let Err(error) = protocol::encode(event, &mut buffer) {
                    tracing::error!(%error, "an event could not be encoded");
                    let failed = serde_json::to_vec(event).ok().and_then(|body| unsaid(&body, &error));
                    let _ = failed.map(|failed| protocol::encode(&failed, &mut buffer));
                }
            }
            batch = if buffer.len() < WRITE_BYTES { from.try_recv().ok() } else { None };
        }
        if to.write_all(&buffer).and_then(|()| to.flush()).is_err() {
            return;
        }
        buffer.clear();
    }
}

/// What a request is told whose answer fits no frame: nobody waits for what cannot come.
fn unsaid(body: &[u8], error: &FrameError) -> Option<Event> {
    let message = format!("the answer cannot be handed over: {error}");
    Some(Event::Failed { id: protocol::id_of(body)?, kind: FailureKind::Internal, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_le_bytes(), body].concat()
    }

    #[test]
    fn what_is_no_command_fails_its_own_request_and_the_engine_reads_on() {
        let mut pipe = [frame(b"noise"), frame(br#"{"dream":{"id":7,"of":"sheep"}}"#)].concat();
        protocol::encode(&Command::Cancel { id: 8 }, &mut pipe).unwrap();
        let ((to, commands), (events, said)) = (sync_channel(4), sync_channel(4));
        read_commands(pipe.as_slice(), &to, &events).unwrap();
        assert!(matches!(&said.try_recv().unwrap()[..], [Event::Failed { id: 7, kind: FailureKind::Internal, .. }]));
        assert!(said.try_recv().is_err());
        assert!(matches!(commands.try_recv(), Ok((Command::Cancel { id: 8 }, _))));
    }

    #[test]
    fn a_lost_frame_boundary_ends_the_engine() {
        let ((to, _commands), (events, _said)) = (sync_channel(4), sync_channel(4));
        assert!(matches!(read_commands(&b"GET / HTTP"[..], &to, &events), Err(FrameError::TooLarge { .. })));
        assert!(matches!(read_commands(&[9, 0, 0, 0, b'x'][..], &to, &events), Err(FrameError::Io(_))));
    }

    #[test]
    fn an_answer_too_large_for_a_frame_is_told_as_a_failure() {
        let (events, from) = sync_channel(4);
        let text = "a".repeat(protocol::FRAME_BYTES_MAX);
        events.send(vec![Event::Text { id: 7, text }, Event::Paused]).unwrap();
        events.send(Vec::new()).unwrap();
        let mut pipe = Vec::new();
        write_events(&from, &mut pipe);
        let mut pipe = pipe.as_slice();
        let first: Option<Event> = protocol::read_frame(&mut pipe).unwrap();
        assert!(matches!(first, Some(Event::Failed { id: 7, .. })), "{first:?}");
        assert_eq!(protocol::read_frame(&mut pipe).unwrap(), Some(Event::Paused));
    }

    #[test]
    fn the_writer_ends_at_an_empty_batch_though_a_sender_is_left() {
        let (events, from) = sync_channel(4);
        events.send(vec![Event::Paused]).unwrap();
        events.send(Vec::new()).unwrap();
        let mut pipe = Vec::new();
        write_events(&from, &mut pipe);
        let first: Option<Event> = protocol::read_frame(pipe.as_slice()).unwrap();
        assert_eq!(first, Some(Event::Paused));
        drop(events);
    }
}
