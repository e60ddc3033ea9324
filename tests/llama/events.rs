//! The engine's commands and events over the library: the same as over the native backend.

use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use chimere::engine::host::HostLimits;
use chimere::engine::load::{self, Kind, LoadOptions};
use chimere::engine::prefix::PrefixLimits;
use chimere::engine::process::{self, Running};
use chimere::engine::protocol::{ChatInput, Command, Event, FailureKind, Generate, Prompt};
use chimere::turn::{FinishReason, Message, Role, Sampling};

use crate::models::{GENERATORS, VOCAB, alone, make, options};

pub(crate) const WAIT: Duration = Duration::from_secs(60);

pub(crate) fn start(path: &Path) -> (Running, Receiver<Vec<Event>>) {
    start_keeping(path, 256, 0)
}

/// An engine that keeps prompts in so many bytes.
pub(crate) fn start_keeping(path: &Path, context_tokens: usize, bytes_max: u64) -> (Running, Receiver<Vec<Event>>) {
    let options = LoadOptions { context_tokens, ..options(Kind::Llama) };
    let loaded = load::load(path, &options, &mut |_| {}).unwrap();
    assert_eq!(loaded.hosted.model.backend, "llama");
    let (to_us, events) = sync_channel(64);
    let prefixes = PrefixLimits { bytes_max, gain_tokens_min: 64, ..PrefixLimits::default() };
    let limits = HostLimits { waiting_max: 8, step_tokens_max: 64, prefixes };
    (process::start(loaded, limits, to_us).unwrap(), events)
}

fn ask(id: u64, prompt: Prompt, max_tokens: u32) -> Generate {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    Generate { id, ignore_end: true, ..Generate::new(prompt, sampling, max_tokens) }
}

/// What a request came to.
#[derive(Debug, Default, PartialEq)]
struct Reply {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    failure: Option<(FailureKind, String)>,
}

pub(crate) fn send(engine: &Running, command: Command) {
    engine.commands.send((command, Instant::now())).unwrap();
}

/// Collects events until all `requests` ended; `each` sees every event first.
fn replies(events: &Receiver<Vec<Event>>, requests: usize, mut each: impl FnMut(&Event)) -> HashMap<u64, Reply> {
    let mut all: HashMap<u64, Reply> = HashMap::new();
    let mut ended = 0;
    while ended < requests {
        for event in events.recv_timeout(WAIT).unwrap() {
            each(&event);
            match event {
                Event::Started { id, prompt_ids, .. } => all.entry(id).or_default().prompt = prompt_ids,
                Event::Token(t) => all.entry(t.id).or_default().tokens.push(t.token),
                Event::Finished { id, reason, .. } => {
                    all.entry(id).or_default().reason = Some(reason);
                    ended += 1;
                }
                Event::Failed { id, kind, message } => {
                    all.entry(id).or_default().failure = Some((kind, message));
                    ended += 1;
                }
                _ => {}
            }
        }
    }
    all
}

#[test]
fn replies_stream_and_neighbours_do_not_change_them() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in GENERATORS {
        let (engine, events) = start(&make(dir.path(), architecture));
        let prompts = ["the first", "another, somewhat longer prompt", "x"];
        let text = |i: usize| Prompt::Text(prompts[i].to_owned());
        let mut alone = Vec::new();
        for i in 0..prompts.len() {
            send(&engine, Command::Generate(Box::new(ask(i as u64, text(i), 20))));
            alone.push(replies(&events, 1, |_| {}).remove(&(i as u64)).unwrap());
        }
        for i in 0..prompts.len() {
            send(&engine, Command::Generate(Box::new(ask(i as u64, text(i), 20))));
        }
        let together = replies(&events, prompts.len(), |_| {});
        for (i, reply) in alone.iter().enumerate() {
            assert_eq!((reply.tokens.len(), reply.reason), (20, Some(FinishReason::Length)), "{architecture}");
            assert_eq!(reply.prompt.len(), prompts[i].len(), "a token a byte");
            assert_eq!(&together[&(i as u64)], reply, "{architecture}");
        }
        send(&engine, Command::Exit);
        engine.steps.join().unwrap().unwrap();
    }
}

#[test]
fn cancel_pause_and_a_failing_request_leave_the_others_alone() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (engine, events) = start(&make(dir.path(), "qwen2"));
    let ids = |len: usize| Prompt::Ids((0..len as u32).map(|i| i % 256).collect());
    send(&engine, Command::Generate(Box::new(ask(1, ids(10), 200))));
    send(&engine, Command::Generate(Box::new(ask(2, ids(400), 10))));
    send(&engine, Command::Generate(Box::new(ask(3, Prompt::Ids(vec![VOCAB as u32]), 10))));
    send(&engine, Command::Generate(Box::new(ask(4, ids(5), 200))));
    let mut seen = 0;
    let (mut paused, mut resumed) = (false, false);
    let all = replies(&events, 4, |event| match event {
        Event::Token(t) if t.id == 4 => {
            seen += 1;
            if seen == 5 {
                send(&engine, Command::Cancel { id: 4 });
                send(&engine, Command::Pause);
            }
        }
        Event::Paused => {
            paused = true;
            send(&engine, Command::Resume);
        }
        Event::Resumed => resumed = true,
        _ => {}
    });
    assert!(paused && resumed);
    assert_eq!((all[&1].tokens.len(), all[&1].reason), (200, Some(FinishReason::Length)));
    assert_eq!(all[&2].failure.as_ref().map(|f| f.0), Some(FailureKind::Context));
    assert_eq!(all[&3].failure.as_ref().map(|f| f.0), Some(FailureKind::Invalid));
    assert_eq!(all[&4].reason, Some(FinishReason::Aborted));
    assert!((5..200).contains(&all[&4].tokens.len()));
    send(&engine, Command::Exit);
    engine.steps.join().unwrap().unwrap();
}

#[test]
fn the_files_template_and_end_tokens_are_used() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (engine, events) = start(&make(dir.path(), "qwen2"));
    let chat = || ChatInput {
        messages: vec![Message::new(Role::User, "<|im_end|>hi")],
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    send(&engine, Command::Generate(Box::new(ask(1, Prompt::Chat(chat()), 3))));
    let reply = replies(&events, 1, |_| {}).remove(&1).unwrap();
    assert_eq!(reply.prompt.len(), "<|im_end|>hi".len(), "the template prints the content, no control token in it");
    // A bias makes the end-of-turn token the likeliest: the reply ends by itself.
    let mut ended = ask(2, Prompt::Chat(chat()), 50);
    ended.ignore_end = false;
    ended.sampling.logit_bias = vec![(VOCAB as u32 - 1, 100.0)];
    send(&engine, Command::Generate(Box::new(ended)));
    assert_eq!(replies(&events, 1, |_| {})[&2].reason, Some(FinishReason::Stop));
    send(&engine, Command::Exit);
    engine.steps.join().unwrap().unwrap();
}

#[test]
fn a_model_that_only_embeds_refuses_to_write() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (engine, events) = start(&make(dir.path(), "bert"));
    send(&engine, Command::Generate(Box::new(ask(1, Prompt::Text("hello".into()), 5))));
    let reply = replies(&events, 1, |_| {}).remove(&1).unwrap();
    let (kind, message) = reply.failure.unwrap();
    assert_eq!(kind, FailureKind::Invalid);
    assert!(message.contains("cannot generate"), "{message}");
    send(&engine, Command::Exit);
    engine.steps.join().unwrap().unwrap();
}
