//! Short and long texts on their two ways, with a vocabulary that reads when it is told to.

use std::sync::Mutex;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::*;
use crate::engine::host_tests::Letters;
use crate::engine::prepare::tests::preparer;
use crate::engine::vocab::{TokenKind, Vocab, VocabError};
use crate::turn::{Message, Role, ToolCall};

/// What is waited for comes at once on an idle machine; only a test that fails waits for so long on a busy one.
const PATIENCE: Duration = Duration::from_secs(180);

/// Reads a text that begins with `!` when it is told to.
struct Gated(Mutex<Receiver<()>>);

impl Vocab for Gated {
    fn len(&self) -> usize {
        Letters.len()
    }
    fn encode(&self, text: &str, specials: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        if text.starts_with('!') {
            // Nobody holds it any more: the test is over.
            assert_ne!(self.0.lock().unwrap().recv_timeout(PATIENCE), Err(RecvTimeoutError::Timeout));
        }
        Letters.encode(text, specials, ids)
    }
    fn bytes(&self, id: u32) -> Vec<u8> {
        Letters.bytes(id)
    }
    fn name(&self, id: u32) -> String {
        Letters.name(id)
    }
    fn kind(&self, id: u32) -> TokenKind {
        Letters.kind(id)
    }
    fn special(&self, text: &str) -> Option<u32> {
        Letters.special(text)
    }
    fn specials(&self) -> Vec<(u32, String)> {
        Letters.specials()
    }
    fn ends(&self) -> &[u32] {
        &[]
    }
    fn bos(&self) -> Option<u32> {
        None
    }
    fn template(&self) -> Option<String> {
        None
    }
}

struct Stage {
    commands: SyncSender<Received>,
    inputs: Receiver<Input>,
    events: Receiver<Vec<Event>>,
    open: SyncSender<()>,
}

impl Stage {
    fn new() -> Stage {
        let ((open, gate), (commands, from_us)) = (sync_channel(64), sync_channel(64));
        let ((to, inputs), (to_us, events)) = (sync_channel(64), sync_channel(64));
        let vocab: Arc<dyn Vocab> = Arc::new(Gated(Mutex::new(gate)));
        let desk = Desk::start(Arc::clone(&vocab), None, to.clone(), to_us.clone()).unwrap();
        start(preparer(vocab, 1 << 20), desk, from_us, to, to_us).unwrap();
        Stage { commands, inputs, events, open }
    }

    fn send(&self, command: Command) {
        self.commands.send((command, Instant::now())).unwrap();
    }

    fn tokenize(&self, id: u64, text: &str) {
        self.send(Command::Tokenize { id, text: text.to_owned(), specials: false });
    }

    fn generate(&self, id: u64, text: &str) {
        let request = Generate::new(Prompt::Text(text.to_owned()), Default::default(), 1);
        let request = Generate { id, prefix_owner: Some("ann".to_owned()), ..request };
        self.send(Command::Generate(Box::new(request)));
    }

    fn told(&self) -> Event {
        self.events.recv_timeout(PATIENCE).unwrap().remove(0)
    }

    fn passed(&self) -> Input {
        self.inputs.recv_timeout(PATIENCE).unwrap()
    }
}

fn long() -> String {
    format!("!{}", "0".repeat(LONG_BYTES))
}

#[test]
fn a_long_text_holds_up_no_short_one_and_a_request_behind_it_can_be_ended() {
    let stage = Stage::new();
    stage.tokenize(1, &long());
    stage.generate(2, &long());
    stage.tokenize(3, "00");
    assert!(matches!(stage.told(), Event::Tokens { id: 3, .. }));
    stage.generate(4, "00");
    assert!(matches!(stage.passed(), Input::Prepared(job) if job.id == 4 && job.prefix_owner.is_some()));
    stage.send(Command::Cancel { id: 2 });
    assert!(matches!(stage.told(), Event::Failed { id: 2, .. }));
    // One that is unknown here is somewhere else.
    stage.send(Command::Cancel { id: 4 });
    assert!(matches!(stage.passed(), Input::Command(Command::Cancel { id: 4 })));
    stage.open.send(()).unwrap();
    assert!(matches!(stage.told(), Event::Tokens { id: 1, .. }));
}

/// A template works for every message, and may be tried in many forms.
#[test]
fn many_tiny_messages_are_a_long_text() {
    let message = Message::new(Role::User, "a");
    let call = ToolCall { id: String::new(), name: "f".to_owned(), arguments: serde_json::json!({}) };
    let calls = Message { tool_calls: vec![call; 64], ..message.clone() };
    for (messages, long) in [
        (vec![message.clone(); 1_000], false),
        (vec![message; 1_024], true),
        (vec![calls.clone(); 8], false),
        (vec![calls; 16], true),
    ] {
        let chat = ChatInput { messages, ..ChatInput::default() };
        let asked = Generate { id: 7, ..Generate::new(Prompt::Chat(chat.clone()), Default::default(), 1) };
        for command in [Command::ApplyTemplate { id: 7, chat }, Command::Generate(Box::new(asked))] {
            assert_eq!(long_text_of(&command), long.then_some(7));
        }
    }
}

#[test]
fn a_request_that_is_read_while_its_owner_is_forgotten_keeps_nothing() {
    let stage = Stage::new();
    stage.generate(1, &long());
    stage.send(Command::ForgetPrefixes { id: 2, owner: Some("ann".to_owned()) });
    assert!(matches!(stage.passed(), Input::Command(Command::ForgetPrefixes { id: 2, .. })));
    stage.open.send(()).unwrap();
    assert!(matches!(stage.passed(), Input::Prepared(job) if job.id == 1 && job.prefix_owner.is_none()));
}

#[test]
fn more_long_texts_than_may_wait_are_told_so() {
    let stage = Stage::new();
    let one_more = LONG_MAX as u64 + 2;
    (1..=one_more).for_each(|id| stage.tokenize(id, &long()));
    // The first may be read already, or wait as well.
    assert!(matches!(stage.told(), Event::Failed { id, kind: FailureKind::Busy, .. } if id + 1 >= one_more));
}

#[test]
fn a_panic_over_a_text_fails_its_own_request() {
    let failed = contained(7, || std::panic::resume_unwind(Box::new("a defect")));
    assert!(matches!(failed, Read::Answer(Event::Failed { id: 7, kind: FailureKind::Internal, .. })));
}
