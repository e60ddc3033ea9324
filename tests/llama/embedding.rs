//! A model that only embeds: it loads, gives embeddings, and says that it cannot write.

use chimere::engine::backend::{Backend, BackendError, Chunk, Output, Rows};
use chimere::engine::vocab::Vocab;

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
