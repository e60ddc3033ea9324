//! A model that only embeds: it loads, gives embeddings, and says that it cannot write.

use std::path::Path;

use chimere::engine::backend::{Backend, BackendError, Chunk, Output, Rows};
use chimere::engine::vocab::Vocab;
use serde_json::Value;

use crate::models::{alone, load, make};

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

/// `bert/make.py` computed what is expected by the formulas of the papers, and made the files.
#[test]
fn vectors_are_those_of_the_papers_formulas_for_either_pooling() {
    let _turn = alone();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/llama/bert");
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let all = expected.as_object().unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["mean", "cls"]);
    for (pooling, rows) in all {
        let (mut model, _) = load(&folder.join(format!("{pooling}.gguf")));
        assert!(model.info().embedding_only);
        for row in rows.as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            let ids = model.model().tokenize(text, true, false).unwrap();
            let said: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
            assert_eq!(ids, said, "{text}: the marks around a text are those of the file");
            let vector = model.embed(&ids).unwrap();
            let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt();
            let wanted: Vec<f32> = serde_json::from_value(row["vector"].clone()).unwrap();
            assert_eq!(vector.len(), wanted.len());
            let far = vector.iter().zip(&wanted).map(|(v, w)| (v / length - w).abs()).fold(0.0, f32::max);
            // The library reads its GELU from a table of halves: a few in ten thousand.
            assert!(far < 2e-3, "{pooling}, {text}: {far} from the reference");
        }
    }
}
