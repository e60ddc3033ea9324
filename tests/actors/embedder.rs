//! The engine of a hosted embedding model: what becomes of texts when it is slow, refuses, dies, or has another file.

use std::sync::Arc;
use std::time::Duration;

use chimere::actors::embedder::{EmbedEngine, EmbedSettings};
use chimere::actors::supervisor::Place;
use chimere::embed::embedder::{Host, HostFacts, Terms, Unembedded, Vector};
use chimere::engine::protocol::EmbedInput;

use crate::fake::{FATAL, GOOD, spec};
use crate::stage::{PATIENCE, budget, run};

fn engine(script: &str, model_hash: &str) -> Arc<EmbedEngine> {
    let (name, architecture) = ("scripted".to_owned(), "scripted".to_owned());
    let facts = HostFacts { name, architecture, width: 1, tokens_max: 100, digest: [0; 32] };
    let settings = EmbedSettings { spec: spec(script), budget: budget(), facts, model_hash: model_hash.to_owned() };
    let engine = EmbedEngine::new(settings, Place::Here, tokio::runtime::Handle::current());
    engine.start();
    Arc::new(engine)
}

const SOON: Terms = Terms { cut: false, within: Duration::from_millis(300), first: false };
const PATIENT: Terms = Terms { within: PATIENCE, ..SOON };
const FIRST: Terms = Terms { first: true, ..PATIENT };

async fn embed(engine: &EmbedEngine, text: &str, terms: Terms) -> Result<Vector, Unembedded> {
    engine.embed(EmbedInput::Text(text.to_owned()), terms).await
}

#[test]
fn a_reply_waits_for_no_more_than_what_the_engine_has_in_hand() {
    run(async {
        let engine = engine(GOOD, "m");
        assert!(
            matches!(embed(&engine, "a", PATIENT).await, Err(Unembedded::Down { .. })),
            "it does not wait for a start"
        );
        engine.ready(PATIENCE).await.unwrap();
        let one = Vector { values: vec![1.0], tokens: 3, windows: 1 };
        assert_eq!(embed(&engine, "abc", PATIENT).await, Ok(one.clone()));
        // Two that are never answered have every place but those of replies, also when nobody waits for them any more.
        for _ in 0..2 {
            assert_eq!(embed(&engine, "hang", SOON).await, Err(Unembedded::Late(300)));
        }
        assert_eq!(embed(&engine, "abc", SOON).await, Err(Unembedded::Late(300)));
        assert_eq!(embed(&engine, "abc", FIRST).await, Ok(one.clone()));
        // What it has in hand is lost with it, and the next one takes texts again.
        let lost = embed(&engine, "crash", FIRST).await;
        assert!(matches!(&lost, Err(Unembedded::Down { retry_after_s: 1.., .. })), "{lost:?}");
        engine.ready(PATIENCE).await.unwrap();
        assert_eq!(embed(&engine, "abc", PATIENT).await, Ok(one));
        engine.stop().await;
    });
}

#[test]
fn every_refusal_is_told_for_what_it_is() {
    run(async {
        let good = engine(GOOD, "m");
        good.ready(PATIENCE).await.unwrap();
        let told = async |text: &str| embed(&good, text, PATIENT).await.unwrap_err();
        assert_eq!(told("context").await, Unembedded::Refused { at: 0, why: "is context".to_owned() });
        let invalid = Unembedded::Refused { at: 0, why: "cannot be embedded: is invalid".to_owned() };
        assert_eq!(told("invalid").await, invalid);
        assert_eq!(told("fail").await, Unembedded::Failed("is fail".to_owned()));
        assert_eq!(good.tokens("seven".to_owned(), PATIENCE).await.map(|ids| ids.len()), Ok(5));
        good.stop().await;
        let other = engine(GOOD, "another");
        let why = other.ready(PATIENCE).await.unwrap_err();
        assert!(matches!(&why, Unembedded::Never(message) if message.contains("another file")), "{why:?}");
        assert_eq!(embed(&other, "a", PATIENT).await.unwrap_err(), why);
        other.stop().await;
        let never = engine(FATAL, "m");
        let why = never.ready(PATIENCE).await.unwrap_err();
        assert!(matches!(&why, Unembedded::Never(message) if message.contains("no model")), "{why:?}");
    });
}
