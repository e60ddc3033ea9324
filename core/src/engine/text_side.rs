//! The text side of the engine: commands become inputs of the engine loop, and those that are only about text are
//! answered here. Two threads with large stacks do that. Short texts are read by the one that takes the commands, long
//! ones by another, so that no text holds up the requests of others.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::grammar::{Desk, Form};
use super::host::{Events, Input};
use super::pending::Pending;
use super::prepare::Preparer;
use super::protocol::{ChatInput, Command, EmbedInput, Event, FailureKind, Generate, Prompt, PromptPart, RequestId};
use super::slot::Prepared;

/// Templates and regular expressions may recurse: this much stack keeps them from ending the process.
const STACK_BYTES: usize = 64 << 20;
/// Texts of more bytes are long. Some libraries read no more than this in a fifth of a second.
const LONG_BYTES: usize = 64 << 10;
/// What a message or a call costs beside its texts, bytes: a template works for each, however short.
const MESSAGE_BYTES: usize = 64;
/// Long texts that wait to be read, as many as commands; more are refused as busy.
const LONG_MAX: usize = 256;

/// A command, and when it was received.
pub type Received = (Command, Instant);

/// What reading a command made of it.
enum Read {
    Job(Box<Prepared>, Option<Form>),
    Input(Input),
    Answer(Event),
}

struct TextSide {
    preparer: Preparer,
    desk: Desk,
    to: SyncSender<Input>,
    events: Events,
}

/// Starts the threads. They end when the commands do, or when nobody takes what they give.
pub fn start(
    preparer: Preparer,
    desk: Desk,
    from: Receiver<Received>,
    to: SyncSender<Input>,
    events: Events,
) -> io::Result<()> {
    let side = Arc::new(TextSide { preparer, desk, to, events });
    let (long, from_short) = sync_channel(LONG_MAX);
    let pending = Pending::default();
    let (own, own_pending) = (Arc::clone(&side), pending.clone());
    named("long-texts").spawn(move || own.read_long(&from_short, &own_pending))?;
    named("text").spawn(move || side.take(&from, &long, &pending))?;
    Ok(())
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(format!("engine-{name}")).stack_size(STACK_BYTES)
}

impl TextSide {
    /// Takes commands in their order until they end.
    fn take(&self, from: &Receiver<Received>, long: &SyncSender<Received>, pending: &Pending) {
        while let Ok((command, received)) = from.recv() {
            let passed = match command {
                Command::Cancel { id } => match pending.cancel(id).or_else(|| self.desk.cancel(id)) {
                    Some(event) => self.tell(event),
                    None => self.to.send(Input::Command(command)).is_ok(),
                },
                Command::ForgetPrefixes { .. } => {
                    pending.forget();
                    self.desk.forget();
                    self.to.send(Input::Command(command)).is_ok()
                }
                command => match long_text_of(&command) {
                    Some(id) => self.put_off(id, (command, received), long, pending),
                    None => self.pass(self.read(command, received)),
                },
            };
            if !passed {
                break;
            }
        }
        // What is left is for nobody.
        pending.clear();
    }

    /// Leaves a command to the thread of long texts.
    fn put_off(&self, id: RequestId, command: Received, long: &SyncSender<Received>, pending: &Pending) -> bool {
        pending.enter(id);
        let message = match long.try_send(command) {
            Ok(()) => return true,
            Err(TrySendError::Full(_)) => format!("{LONG_MAX} long texts wait to be read: try again later"),
            Err(TrySendError::Disconnected(_)) => return false,
        };
        pending.leave(id);
        self.tell(Event::Failed { id, kind: FailureKind::Busy, message })
    }

    fn read_long(&self, from: &Receiver<Received>, pending: &Pending) {
        while let Ok((command, received)) = from.recv() {
            let Some(id) = long_text_of(&command).filter(|id| pending.holds(*id)) else { continue };
            let mut read = self.read(command, received);
            let passed = pending.pass(id, |forgotten| {
                if let (Read::Job(job, _), true) = (&mut read, forgotten) {
                    job.prefix_owner = None;
                }
                self.pass(read)
            });
            if passed == Some(false) {
                return;
            }
        }
    }

    fn read(&self, command: Command, received: Instant) -> Read {
        let preparer = &self.preparer;
        match command {
            Command::Generate(mut request) => {
                let (id, terms) = (request.id, std::mem::take(&mut request.form_terms));
                let form = request.grammar.take().map(|grammar| Form { grammar, terms });
                contained(id, || preparer.generate(*request, received).map(|job| Read::Job(Box::new(job), form)))
            }
            Command::LoadAdapter { id, revision, path, sha256 } => contained(id, || {
                let arrived = preparer.adapter(id, revision, &path, &sha256)?;
                Ok(Read::Input(Input::Adapter(Box::new(arrived))))
            }),
            Command::Embed { id, input, cut } => {
                contained(id, || preparer.embed(id, &input, cut).map(|ids| Read::Input(Input::Embed { id, ids })))
            }
            Command::BeginCandidate { id, candidate, start, sides } => contained(id, || {
                let made = Box::new(preparer.candidate(id, start, sides)?);
                Ok(Read::Input(Input::Candidate { id, name: candidate, candidate: made }))
            }),
            Command::Tokenize { id, .. }
            | Command::Detokenize { id, .. }
            | Command::ApplyTemplate { id, .. }
            | Command::LoadTable { id, .. }
            | Command::DropTable { id, .. } => contained(id, || Ok(Read::Answer(preparer.text(command)))),
            other => Read::Input(Input::Command(other)),
        }
    }

    /// False: nobody takes it.
    fn pass(&self, read: Read) -> bool {
        match read {
            Read::Job(mut job, Some(form)) => {
                if form.grammar.answers_in_form() {
                    job.control.calls_first();
                }
                self.desk.take(job, form).map_or_else(|event| self.tell(event), |()| true)
            }
            Read::Job(job, None) => self.to.send(Input::Prepared(job)).is_ok(),
            Read::Input(input) => self.to.send(input).is_ok(),
            Read::Answer(event) => self.tell(event),
        }
    }

    fn tell(&self, event: Event) -> bool {
        self.events.send(vec![event]).is_ok()
    }
}

/// What a text does to a template or a tokenizer must not end the requests of others: a panic fails one request.
fn contained(id: RequestId, work: impl FnOnce() -> Result<Read, Event>) -> Read {
    let read = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let message = "a defect in the engine kept this request from being prepared: its log tells where".to_owned();
        Err(Event::Failed { id, kind: FailureKind::Internal, message })
    });
    read.unwrap_or_else(Read::Answer)
}

/// The id of a command that comes with a long text.
fn long_text_of(command: &Command) -> Option<RequestId> {
    let (id, bytes) = match command {
        Command::Generate(request) => (request.id, asked(request)),
        Command::Tokenize { id, text, .. } => (*id, text.len()),
        Command::Detokenize { id, ids } => (*id, size_of_val(ids.as_slice())),
        Command::ApplyTemplate { id, chat } => (*id, said(chat)),
        Command::Embed { id, input: EmbedInput::Text(text), .. } => (*id, text.len()),
        _ => return None,
    };
    (bytes > LONG_BYTES).then_some(id)
}

/// Bytes of the texts of a request.
fn asked(request: &Generate) -> usize {
    let prompt = match &request.prompt {
        Prompt::Chat(chat) => said(chat),
        Prompt::Text(text) | Prompt::Marked(text) => text.len(),
        Prompt::Parts(parts) => parts.iter().map(part).sum(),
        Prompt::Ids(_) => 0,
    };
    let passages = request.engram.iter().flat_map(|engram| &engram.passages);
    prompt + passages.map(String::len).sum::<usize>()
}

fn part(part: &PromptPart) -> usize {
    match part {
        PromptPart::Text(text) | PromptPart::Control(text) => text.len(),
    }
}

fn said(chat: &ChatInput) -> usize {
    let messages = chat.messages.iter().map(|message| {
        let calls = message.tool_calls.iter().map(|call| MESSAGE_BYTES + written(&call.arguments)).sum::<usize>();
        MESSAGE_BYTES + message.content.len() + message.reasoning_content.as_ref().map_or(0, String::len) + calls
    });
    messages.sum::<usize>() + chat.tools.iter().chain(chat.arguments.values()).map(written).sum::<usize>()
}

/// Bytes of the texts in a value.
fn written(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 1 + written(item)).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + written(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

#[cfg(test)]
mod tests;
