//! What is kept of a prompt by the library: a sequence that begins with it gets the same bits as one that reads everything.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use chimere::engine::backend::{Backend, Chunk, Kept, Output, Rows, SeqId};
use chimere::engine::llama::{self, Llama, LlamaOptions};
use chimere::engine::protocol::{Command, Event, Generate, Prompt};
use chimere::turn::{Sampling, Usage};

use crate::events::{WAIT, send, start_keeping};
use crate::models::{GENERATORS, VOCAB, alone, load_for, make};

fn ids(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + i / 7 * 11 + 5) % 256).collect()
}

/// Feeds a part of a prompt in pieces that end at multiples of 64, and gives the last row where all is fed.
fn feed(model: &mut Llama, seq: SeqId, prompt: &[u32], piece: usize, to: usize) -> Vec<f32> {
    let mut out = Output::default();
    while model.held(seq) < to {
        let from = model.held(seq);
        let end = ((from + piece) / 64 * 64).clamp(from + 1, to);
        let rows = if end == prompt.len() { Rows::Last } else { Rows::None };
        model.step(&[Chunk { seq, tokens: &prompt[from..end], rows, hidden: false }], &mut out).unwrap();
    }
    out.logits.clone()
}

/// A few tokens of a reply after the row, as bits.
fn reply(model: &mut Llama, seq: SeqId, row: &[f32]) -> Vec<u32> {
    let (mut all, mut out, mut row) = (Vec::new(), Output::default(), row.to_vec());
    for _ in 0..4 {
        all.extend(row.iter().map(|v| v.to_bits()));
        let best = (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
        model.step(&[Chunk { seq, tokens: &[best], rows: Rows::Last, hidden: false }], &mut out).unwrap();
        row = out.logits.clone();
    }
    all
}

#[test]
fn a_sequence_that_was_kept_goes_on_with_the_same_bits() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in GENERATORS {
        let path = make(dir.path(), architecture);
        for exact in [true, false] {
            // Unless it is to be exact, the library sums by threads, and their number follows the machine's load.
            let threads = if exact { 2 } else { 1 };
            let options = LlamaOptions { threads, context_tokens: 1_024, sequences_max: 3, exact };
            let (mut model, _) = llama::load(&path, &options, &mut |_| {}).unwrap();
            let prompt = ids(700);
            let whole = |model: &mut Llama, piece: usize| {
                let seq = model.open().unwrap();
                model.begin_prompt(seq, prompt.len());
                let row = feed(model, seq, &prompt, piece, prompt.len());
                let all = reply(model, seq, &row);
                model.close(seq);
                all
            };
            let cold = whole(&mut model, 1_024);
            assert_eq!(whole(&mut model, 64), cold, "{architecture}, exact {exact}: however it is cut");
            for kept_at in [64, 448, 640] {
                let seq = model.open().unwrap();
                model.begin_prompt(seq, prompt.len());
                feed(&mut model, seq, &prompt, 256, kept_at);
                let saved = model.save(seq, 0).unwrap();
                assert_eq!(saved.state.len(), model.state_bytes(seq), "{architecture}");
                model.close(seq);
                // Another sequence, beside one that is at work.
                let beside = model.open().unwrap();
                feed(&mut model, beside, &ids(100), 64, 100);
                let seq = model.open().unwrap();
                let blocks: Vec<&[u8]> = saved.blocks.iter().map(Vec::as_slice).collect();
                model.begin_prompt(seq, prompt.len());
                model.restore(seq, &Kept { tokens: kept_at, blocks, state: &saved.state }).unwrap();
                assert_eq!(model.held(seq), kept_at);
                let row = feed(&mut model, seq, &prompt, 512, prompt.len());
                assert_eq!(reply(&mut model, seq, &row), cold, "{architecture}, exact {exact}: kept at {kept_at}");
                [seq, beside].into_iter().for_each(|seq| model.close(seq));
            }
        }
    }
}

#[test]
fn what_was_kept_of_something_else_is_refused_and_leaves_an_empty_sequence() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let options = LlamaOptions { threads: 1, context_tokens: 256, sequences_max: 2, exact: false };
    let load = |name: &str| llama::load(&make(dir.path(), name), &options, &mut |_| {}).unwrap().0;
    let mut states = Vec::new();
    for name in ["qwen2", "mamba2"] {
        let mut model = load(name);
        let seq = model.open().unwrap();
        feed(&mut model, seq, &ids(64), 64, 64);
        states.push(model.save(seq, 0).unwrap().state);
    }
    let mut model = load("qwen2");
    let seq = model.open().unwrap();
    let cut = &states[0][..states[0].len() / 2];
    for (state, tokens) in [(&states[1][..], 64), (cut, 64), (&[][..], 64), (&states[0][..], 128)] {
        assert!(model.restore(seq, &Kept { tokens, blocks: Vec::new(), state }).is_err());
        assert_eq!(model.held(seq), 0);
    }
    let wanted = reply_of(&mut model, seq);
    let other = model.open().unwrap();
    assert_eq!(reply_of(&mut model, other), wanted, "nothing is left of what was refused");
}

fn reply_of(model: &mut Llama, seq: SeqId) -> Vec<u32> {
    let prompt = ids(70);
    model.begin_prompt(seq, prompt.len());
    let row = feed(model, seq, &prompt, 64, prompt.len());
    reply(model, seq, &row)
}

/// The second turn of a conversation reads what is new, and says so.
#[test]
fn the_next_turn_begins_with_what_the_engine_kept() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in GENERATORS {
        let (engine, events) = start_keeping(&make(dir.path(), architecture), 1_024, 64 << 20);
        let ask = |id: u64, tokens: usize| -> (Vec<u32>, Usage) {
            let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
            let prompt = Prompt::Ids(ids(tokens));
            let request = Generate {
                id,
                ignore_end: true,
                prefix_owner: Some("somebody".to_owned()),
                ..Generate::new(prompt, sampling, 6)
            };
            send(&engine, Command::Generate(Box::new(request)));
            let mut made = Vec::new();
            loop {
                for event in events.recv_timeout(WAIT).unwrap() {
                    match event {
                        Event::Token(token) => made.push(token.token),
                        Event::Finished { usage, .. } => return (made, usage),
                        Event::Failed { message, .. } => panic!("{message}"),
                        _ => {}
                    }
                }
            }
        };
        let (first, usage) = ask(1, 500);
        assert_eq!(usage.cached_tokens, 0, "{architecture}");
        let (again, usage) = ask(2, 500);
        assert_eq!((again, usage.cached_tokens), (first, 448), "{architecture}");
        let (_, usage) = ask(3, 900);
        assert_eq!(usage.cached_tokens, 448, "{architecture}");
        send(&engine, Command::Exit);
        engine.steps.join().unwrap().unwrap();
    }
}

/// The lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What of a model is not kept is told at its start, once, and of no other.
#[test]
fn a_model_of_which_no_prompt_is_kept_says_so_at_its_start() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for (architecture, keeps) in GENERATORS.map(|name| (name, true)).into_iter().chain([("bert", false)]) {
        let (lines, path) = (Lines::default(), make(dir.path(), architecture));
        let own = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || own.clone()).finish();
        let (engine, _events) = tracing::subscriber::with_default(log, || start_keeping(&path, 1_024, 64 << 20));
        send(&engine, Command::Exit);
        engine.steps.join().unwrap().unwrap();
        let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let told = log.matches("no prompt is kept with this model: `cached_tokens` is 0").count();
        assert_eq!(told, usize::from(!keeps), "{architecture}: {log}");
    }
    // Nor is a state with a draft beside it, which the library does not give.
    let (mut model, _) = load_for(&make(dir.path(), "qwen35moe"), 256);
    assert!(model.saved_size().is_some());
    let seq = model.open().unwrap();
    let chunk = Chunk { seq, tokens: &[1], rows: Rows::Last, hidden: true };
    model.step(&[chunk], &mut Output::default()).unwrap();
    assert!(model.saved_size().is_none());
}
