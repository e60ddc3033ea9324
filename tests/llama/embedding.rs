//! Models that only embed, by either kind of attention: they load, give embeddings, and say that they cannot write.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use chimere::engine::backend::{Backend, BackendError, Chunk, Output, Rows};
use chimere::engine::embedder::{Pooling, facts};
use chimere::engine::protocol::{Command, EmbedInput, Event, FailureKind};
use chimere::engine::vocab::Vocab;
use chimere::gguf::Gguf;
use chimere_ffi::ggml::llama::{Batch, Context, ContextOptions, Hidden};
use serde_json::Value;

use crate::events::{WAIT, send, start};
use crate::models::{VOCAB, alone, bert_file, load, load_for, make};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/llama/bert")
}

fn expected() -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join("expected.json")).unwrap()).unwrap()
}

#[test]
fn bert_embeds_and_refuses_to_write() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (mut model, vocab) = load(&make(dir.path(), "bert"));
    assert!(model.info().embedding_only);
    let mut embed = |text: &str| {
        let mut ids = Vec::new();
        vocab.encode(text, false, &mut ids).unwrap();
        assert_eq!(ids.len(), text.replace(' ', "").len(), "a token a letter");
        model.embed(&ids).unwrap()
    };
    let (a, b, again) = (embed("hello world"), embed("hello worlds"), embed("hello world"));
    assert_eq!(a.len(), 64);
    assert!(a.iter().all(|v| v.is_finite()) && a.iter().any(|v| *v != 0.0));
    assert_eq!(a, again);
    assert_ne!(a, b);
    assert!(matches!(model.embed(&[]), Err(BackendError::ContextFull { .. })));
    let seq = model.open().unwrap();
    let chunk = Chunk { seq, tokens: &[2, 5, 3], rows: Rows::Last, hidden: false };
    let error = model.step(&[chunk], &mut Output::default()).unwrap_err().to_string();
    assert_eq!(error, "generating text with a model that only gives embeddings is not supported by this backend");
}

#[test]
fn a_model_that_writes_does_not_embed() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (mut model, _) = load(&make(dir.path(), "qwen2"));
    assert!(matches!(model.embed(&[1, 2]), Err(BackendError::Unsupported(_))));
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn one_long(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt();
    vector.iter().map(|v| v / length).collect()
}

/// `bert/make.py` computed what is expected by the formulas of the papers, and made the files.
#[test]
fn vectors_are_those_of_the_papers_formulas_for_either_pooling() {
    let _turn = alone();
    let expected = expected();
    let all = expected.as_object().unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["mean", "cls"]);
    for (pooling, rows) in all {
        let path = bert_file(pooling);
        let (mut model, vocab) = load(&path);
        assert!(model.info().embedding_only);
        assert_eq!(model.info().context_tokens, 96, "no more than there are positions, whatever was asked for");
        let said = facts(&Gguf::open(&path).unwrap(), &path).unwrap();
        assert_eq!(
            (said.name, said.width, said.trained_tokens, said.pooling.name()),
            (pooling.clone(), 32, 96, pooling.as_str())
        );
        for row in rows.as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            let (mut ids, behind) = vocab.marks().unwrap();
            vocab.encode(text, false, &mut ids).unwrap();
            ids.extend(behind);
            let said: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
            assert_eq!(ids, said, "{text}: the marks around a text are those of the file");
            assert_eq!(model.model().tokenize(text, true, false).unwrap(), said);
            let wanted: Vec<f32> = serde_json::from_value(row["vector"].clone()).unwrap();
            let far = farthest(&one_long(&model.embed(&ids).unwrap()), &wanted);
            // The library reads its GELU from a table of halves: a few in ten thousand.
            assert!(far < 2e-3, "{pooling}, {text}: {far} from the reference");
        }
    }
}

/// The vector is what a model of the same weights that writes hands to its head.
#[test]
fn a_causal_embedder_gives_the_last_tokens_state_of_texts_of_any_length() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path(), "qwen2-last");
    let said = facts(&Gguf::open(&path).unwrap(), &path).unwrap();
    assert_eq!((said.width, said.trained_tokens, said.pooling), (64, 1_024, Pooling::Last));
    let (mut embedder, vocab) = load_for(&path, 0);
    assert!(embedder.info().embedding_only);
    assert_eq!(vocab.marks().unwrap(), (vec![], vec![VOCAB as u32 - 1]), "the file asks for a mark of the end");
    let (writer, _) = load(&make(dir.path(), "qwen2"));
    let options = ContextOptions {
        positions: 1_024,
        sequences: 1,
        batch: 1_024,
        micro_batch: 1_024,
        threads: 1,
        threads_batch: 1,
        embeddings: false,
        mtp: false,
        hidden: Hidden::AfterNorm,
        exact_cache: true,
    };
    let mut context = Context::new(writer.model(), options).unwrap();
    // The last are read in two batches.
    for length in [1usize, 7, 300, 700] {
        let ids: Vec<u32> = (0..length as u32).map(|i| (i * 37 + 11) % 256).collect();
        let mut batch = Batch::default();
        ids.iter().enumerate().for_each(|(at, id)| batch.push(*id, 0, at, at + 1 == length));
        context.decode(&batch).unwrap();
        let wanted = one_long(context.hidden(length - 1).unwrap());
        context.remove(0, 0, None);
        let (vector, again) = (embedder.embed(&ids).unwrap(), embedder.embed(&ids).unwrap());
        assert_eq!(vector, again, "nothing is left of the text before");
        let far = farthest(&one_long(&vector), &wanted);
        assert!(far < 1e-3, "{length} tokens: {far} from the state");
    }
}

#[test]
fn what_gives_no_vectors_says_why() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for (name, embeds, why) in [
        ("qwen2", false, "it writes text and gives no vectors: its file has no `pooling_type`"),
        ("bert-rank", true, "it is a reranker, which gives no vectors"),
        ("bert-bare", true, "its file does not say how the vectors of a text's tokens become one (`pooling_type`)"),
    ] {
        let path = make(dir.path(), name);
        assert_eq!(facts(&Gguf::open(&path).unwrap(), &path).unwrap_err(), why);
        let (mut model, _) = load(&path);
        assert_eq!(model.info().embedding_only, embeds, "{name}");
        let error = model.embed(&[2, 5, 3]).unwrap_err().to_string();
        assert!(!embeds || error.ends_with(why), "{error}");
    }
}

fn heard(events: &Receiver<Vec<Event>>, wanted: u64) -> Event {
    loop {
        for event in events.recv_timeout(WAIT).unwrap() {
            match &event {
                Event::Embedded { id, .. } | Event::Failed { id, .. } if *id == wanted => return event,
                _ => {}
            }
        }
    }
}

#[test]
fn the_engine_tells_vectors_one_long_and_refuses_what_is_too_long() {
    let _turn = alone();
    let (engine, events) = start(&folder().join("mean.gguf"));
    let embed = |id: u64, text: &str, cut: bool| {
        send(&engine, Command::Embed { id, input: EmbedInput::Text(text.to_owned()), cut });
        heard(&events, id)
    };
    let long = "a".repeat(95);
    let Event::Failed { kind, message, .. } = embed(1, &long, false) else { panic!("97 tokens of 96") };
    assert_eq!(kind, FailureKind::Context);
    assert_eq!(message, "has 97 tokens, and this embedding model reads at most 96: split it");
    let whole = embed(2, &long[1..], false);
    let Event::Embedded { vector, tokens: 96, .. } = &whole else { panic!("{whole:?}") };
    let cut = embed(2, &"a".repeat(20_000), true);
    assert_eq!(cut, whole, "its beginning, between the same marks");
    assert!((vector.iter().map(|v| v * v).sum::<f32>() - 1.0).abs() < 1e-5);
    for row in expected()["mean"].as_array().unwrap() {
        let told = embed(3, row["text"].as_str().unwrap(), false);
        let Event::Embedded { vector, .. } = told else { panic!("{told:?}") };
        let wanted: Vec<f32> = serde_json::from_value(row["vector"].clone()).unwrap();
        assert!(farthest(&vector, &wanted) < 2e-3);
    }
    let nothing = embed(4, " ", false);
    assert_eq!(nothing, Event::Embedded { id: 4, vector: vec![0.0; 32], tokens: 0 });
    // A control token in a text is letters.
    let Event::Embedded { tokens, .. } = embed(5, "[SEP]", false) else { panic!("embedded") };
    assert!(tokens > 3, "{tokens}");
    send(&engine, Command::Exit);
    engine.steps.join().unwrap().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (writer, events) = start(&make(dir.path(), "qwen2"));
    send(&writer, Command::Embed { id: 1, input: EmbedInput::Text("a".to_owned()), cut: false });
    let refused = heard(&events, 1);
    assert!(matches!(&refused, Event::Failed { kind: FailureKind::Invalid, .. }), "{refused:?}");
    send(&writer, Command::Exit);
    writer.steps.join().unwrap().unwrap();
}
