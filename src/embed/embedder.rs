//! The embedder makes vectors of texts. It is a table in this process, which answers at once, or a model that an
//! engine hosts, which may be late or absent. Vectors of different models, or of other words put before a text, are
//! never compared: the fingerprint tells them apart.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::model::{ARCHITECTURE, TOKENS_MAX};
use super::{Code, Example, Index, Static, windows};
use crate::engine::protocol::EmbedInput;

/// Texts of one request that are with the engine at the same time: while one is computed the next is tokenised.
const TEXTS_AT_ONCE: usize = 2;
/// Longest wait for a vector that nobody waits for.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(300);
/// Times that an exchange is given to the engine, which may die of it, or of something else meanwhile.
const TRIES: usize = 2;

/// What a text is embedded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// As it stands.
    Plain,
    /// To find others by.
    Query,
    /// To be found.
    Document,
}

/// Words before each text, as the model was trained with; empty: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    pub query: String,
    pub document: String,
}

/// On what terms a text is embedded.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Of a text that is too long the beginning counts; otherwise it is read in windows, whose mean is its direction.
    pub cut: bool,
    /// Longest wait.
    pub within: Duration,
    /// A reply waits for it: it stands behind no more than what the engine has in hand.
    pub first: bool,
}

impl Terms {
    /// Of an index, which nobody waits for.
    const INDEX: Terms = Terms { cut: true, within: BACKGROUND_TIMEOUT, first: false };
}

/// A text's direction, one long; zero where it has no token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vector {
    pub values: Vec<f32>,
    pub tokens: u32,
    /// Windows that it was read in: more than one where it was too long for one.
    pub windows: u32,
}

/// Why there is no vector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unembedded {
    /// As it stands: it is too long. `at`: which of the texts.
    #[error("text {at} {why}")]
    Refused { at: usize, why: String },
    /// For now.
    #[error("the engine of the embedding model is not running: {message}")]
    Down { message: String, retry_after_s: u32 },
    #[error("no vector within {0} ms")]
    Late(u128),
    /// Until the daemon is started with another file.
    #[error("the embedding model cannot be hosted: {0}")]
    Never(String),
    #[error("the embedding model: {0}")]
    Failed(String),
}

impl Unembedded {
    /// One word, for metrics.
    pub fn why(&self) -> &'static str {
        match self {
            Unembedded::Late(_) => "late",
            Unembedded::Down { .. } | Unembedded::Never(_) => "down",
            Unembedded::Refused { .. } | Unembedded::Failed(_) => "failed",
        }
    }
}

/// A hosted model, as its file's header describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostFacts {
    pub name: String,
    pub architecture: String,
    pub width: usize,
    pub tokens_max: usize,
    /// Of the file and of what is read of a text.
    pub digest: [u8; 32],
}

/// Who has the engine of a model.
pub trait Host: Send + Sync {
    fn facts(&self) -> &HostFacts;
    /// Waits for an engine that takes texts.
    fn ready(&self, within: Duration) -> BoxFuture<'_, Result<(), Unembedded>>;
    /// The vector of a text that is not too long, or cut. Does not wait for an engine.
    fn embed(&self, input: EmbedInput, terms: Terms) -> BoxFuture<'_, Result<Vector, Unembedded>>;
    /// Tokens of a text.
    fn tokens(&self, text: String, within: Duration) -> BoxFuture<'_, Result<Vec<u32>, Unembedded>>;
    /// `loading`, `ready` …
    fn state(&self) -> &'static str;
    fn status(&self) -> Value;
}

enum Kind {
    Static(Arc<Static>),
    Hosted(Arc<dyn Host>),
}

pub struct Embedder {
    kind: Kind,
    prefixes: Prefixes,
    /// Longest wait of a reply for its question's vector.
    query_timeout: Duration,
    fingerprint: [u8; 32],
}

impl Embedder {
    /// A table never makes anybody wait.
    pub fn of_table(table: Static, prefixes: Prefixes) -> Embedder {
        let fingerprint = fingerprint(table.digest(), &prefixes);
        Embedder { kind: Kind::Static(Arc::new(table)), prefixes, query_timeout: Duration::MAX, fingerprint }
    }

    pub fn hosted(host: Arc<dyn Host>, prefixes: Prefixes, query_timeout: Duration) -> Embedder {
        let fingerprint = fingerprint(host.facts().digest, &prefixes);
        Embedder { kind: Kind::Hosted(host), prefixes, query_timeout, fingerprint }
    }

    /// What the file calls itself.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Static(table) => table.name(),
            Kind::Hosted(host) => &host.facts().name,
        }
    }

    pub fn architecture(&self) -> &str {
        match &self.kind {
            Kind::Static(_) => ARCHITECTURE,
            Kind::Hosted(host) => &host.facts().architecture,
        }
    }

    /// It answers at once: no engine hosts it.
    pub fn is_table(&self) -> bool {
        matches!(self.kind, Kind::Static(_))
    }

    /// Values of a vector.
    pub fn width(&self) -> usize {
        match &self.kind {
            Kind::Static(table) => table.width(),
            Kind::Hosted(host) => host.facts().width,
        }
    }

    /// Tokens of a text that are read.
    pub fn tokens_max(&self) -> usize {
        match &self.kind {
            Kind::Static(_) => TOKENS_MAX,
            Kind::Hosted(host) => host.facts().tokens_max,
        }
    }

    /// `ready`, or where a hosted one is in its engine's life.
    pub fn state(&self) -> &'static str {
        match &self.kind {
            Kind::Static(_) => "ready",
            Kind::Hosted(host) => host.state(),
        }
    }

    /// Vectors with another one are not comparable.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    pub fn status(&self) -> Value {
        let mut status = json!({
            "model": self.name(),
            "architecture": self.architecture(),
            "width": self.width(),
            "context_tokens": self.tokens_max(),
            "state": self.state(),
        });
        if let Kind::Hosted(host) = &self.kind {
            status["engine"] = host.status();
        }
        status
    }

    /// Waits until texts are taken.
    pub async fn ready(&self, within: Duration) -> Result<(), Unembedded> {
        match &self.kind {
            Kind::Static(_) => Ok(()),
            Kind::Hosted(host) => host.ready(within).await,
        }
    }

    fn worded(&self, purpose: Purpose, text: String) -> String {
        match purpose {
            Purpose::Query if !self.prefixes.query.is_empty() => self.prefixes.query.clone() + &text,
            Purpose::Document if !self.prefixes.document.is_empty() => self.prefixes.document.clone() + &text,
            _ => text,
        }
    }

    /// Token ids stand as they are: they have no words before them.
    fn input(&self, purpose: Purpose, input: EmbedInput) -> EmbedInput {
        match input {
            EmbedInput::Text(text) => EmbedInput::Text(self.worded(purpose, text)),
            ids => ids,
        }
    }

    /// The vector of a question that a reply waits for; of its beginning, where it is long.
    pub async fn query(&self, question: String) -> Result<Vector, Unembedded> {
        let texts = vec![(Purpose::Query, EmbedInput::Text(question))];
        let terms = Terms { cut: true, within: self.query_timeout, first: true };
        let mut vectors = self.embed(texts, terms, ()).await?;
        vectors.pop().ok_or_else(|| Unembedded::Failed("it gave no vector".to_owned()))
    }

    /// Vectors of texts, in their order, each on these terms. `held` is kept until the work ends, also where nobody waits
    /// for it any more.
    pub async fn embed(
        &self,
        texts: Vec<(Purpose, EmbedInput)>,
        terms: Terms,
        held: impl Send + 'static,
    ) -> Result<Vec<Vector>, Unembedded> {
        let texts: Vec<EmbedInput> = texts.into_iter().map(|(purpose, input)| self.input(purpose, input)).collect();
        match &self.kind {
            Kind::Static(table) => {
                let table = table.clone();
                aside(move || {
                    let _held = held;
                    windows::looked_up(&table, &texts, terms.cut)
                })
                .await?
            }
            Kind::Hosted(host) => {
                let one = |(at, input): (usize, EmbedInput)| async move {
                    windows::embed(host.as_ref(), input, terms).await.map_err(|error| match error {
                        Unembedded::Refused { why, .. } => Unembedded::Refused { at, why },
                        error => error,
                    })
                };
                let vectors =
                    stream::iter(texts.into_iter().enumerate()).map(one).buffered(TEXTS_AT_ONCE).try_collect();
                let vectors = vectors.await;
                drop(held);
                vectors
            }
        }
    }

    /// The index of these exchanges, newest first. What `known` has of them by this very embedder is taken from there.
    pub async fn index(&self, found: Vec<Example>, known: &Index) -> Result<Index, Unembedded> {
        let rows = match &self.kind {
            Kind::Static(table) => {
                let (table, prefix) = (table.clone(), self.prefixes.document.clone());
                aside(move || found.into_iter().map(|example| row(&table, &prefix, example)).collect()).await?
            }
            Kind::Hosted(host) => {
                let known = if known.model() == self.fingerprint { known.codes().collect() } else { HashMap::new() };
                let mut rows = Vec::with_capacity(found.len());
                // One after the other, so that it is known which of them the engine dies of.
                for example in found {
                    let before = known.get(example.turn.as_str());
                    let same =
                        before.filter(|(old, _)| old.question == example.question && old.answer == example.answer);
                    let row = match same {
                        Some((old, code)) => Some((old.tokens, code.clone())),
                        None => self.exchange(host.as_ref(), &example).await?,
                    };
                    rows.extend(row.map(|(tokens, code)| (Example { tokens, ..example }, code)));
                }
                rows
            }
        };
        Ok(Index::new(self.width(), self.fingerprint, rows))
    }

    /// Tokens of an exchange, and its question's vector. One that has none, or that the engine dies of twice, is left out
    /// (`None`): it must not keep the others from being found.
    async fn exchange(&self, host: &dyn Host, example: &Example) -> Result<Option<(u32, Code)>, Unembedded> {
        for _ in 0..TRIES {
            host.ready(BACKGROUND_TIMEOUT).await?;
            let asked = async {
                let question = self.worded(Purpose::Document, example.question.clone());
                let vector = host.embed(EmbedInput::Text(question), Terms::INDEX).await?;
                let answer = host.tokens(example.answer.clone(), BACKGROUND_TIMEOUT).await?;
                Ok((vector.tokens + answer.len() as u32, Code::of(&vector.values)))
            };
            match asked.await {
                Ok(row) => return Ok(Some(row)),
                Err(why @ Unembedded::Never(_)) => return Err(why),
                Err(why) => tracing::warn!(turn = example.turn, %why, "an exchange has no vector"),
            }
        }
        Ok(None)
    }
}

/// Of the file and of the words before texts.
fn fingerprint(file: [u8; 32], prefixes: &Prefixes) -> [u8; 32] {
    if *prefixes == Prefixes::default() {
        return file;
    }
    let mut hash = Sha256::new_with_prefix(file);
    for prefix in [&prefixes.query, &prefixes.document] {
        hash.update((prefix.len() as u64).to_le_bytes());
        hash.update(prefix);
    }
    hash.finalize().into()
}

/// Counting tokens costs time, which others need not wait for.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Unembedded> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Unembedded::Failed(error.to_string()))
}

fn row(table: &Static, prefix: &str, example: Example) -> (Example, Code) {
    let tokens = table.tokens(&example.question).len() + table.tokens(&example.answer).len();
    let code = Code::of(&table.embed(&format!("{prefix}{}", example.question)));
    (Example { tokens: tokens as u32, ..example }, code)
}

#[cfg(feature = "llama")]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::embed::windows::looked_up;

    /// Counts the letters of a text, and how many texts it was asked for. It dies of `poison`.
    struct Counter {
        facts: HostFacts,
        asked: AtomicUsize,
    }

    impl Host for Counter {
        fn facts(&self) -> &HostFacts {
            &self.facts
        }
        fn ready(&self, _: Duration) -> BoxFuture<'_, Result<(), Unembedded>> {
            Box::pin(async { Ok(()) })
        }
        fn embed(&self, input: EmbedInput, terms: Terms) -> BoxFuture<'_, Result<Vector, Unembedded>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let most = self.facts.tokens_max;
            Box::pin(async move {
                let letters = match &input {
                    EmbedInput::Text(text) if text == "poison" => {
                        return Err(Unembedded::Down { message: "it died".to_owned(), retry_after_s: 1 });
                    }
                    EmbedInput::Text(text) => text.len(),
                    EmbedInput::Ids(ids) => ids.len(),
                };
                match letters > most && !terms.cut {
                    true => Err(Unembedded::Refused { at: 0, why: "is too long".to_owned() }),
                    false => {
                        let (values, tokens) = (vec![letters as f32, 1.0], letters.min(most) as u32);
                        Ok(Vector { values, tokens, windows: 1 })
                    }
                }
            })
        }
        fn tokens(&self, text: String, _: Duration) -> BoxFuture<'_, Result<Vec<u32>, Unembedded>> {
            Box::pin(async move { Ok(text.bytes().map(u32::from).collect()) })
        }
        fn state(&self) -> &'static str {
            "ready"
        }
        fn status(&self) -> Value {
            Value::Null
        }
    }

    fn counter() -> (Arc<Counter>, Embedder) {
        let (name, architecture) = ("counter".to_owned(), "letters".to_owned());
        let facts = HostFacts { name, architecture, width: 2, tokens_max: 30, digest: [7; 32] };
        let host = Arc::new(Counter { facts, asked: AtomicUsize::new(0) });
        let prefixes = Prefixes { query: "question: ".to_owned(), document: String::new() };
        (host.clone(), Embedder::hosted(host, prefixes, Duration::from_secs(60)))
    }

    #[tokio::test]
    async fn an_exchange_that_is_known_is_not_embedded_again() {
        let example = |turn: &str, question: &str| Example {
            turn: turn.to_owned(),
            question: question.to_owned(),
            answer: "yes".to_owned(),
            ..Example::default()
        };
        let (host, embedder) = counter();
        let asked = || host.asked.swap(0, Ordering::SeqCst);
        let none = Index::default();
        let first = embedder.index(vec![example("b", "what?"), example("a", "who, then?")], &none).await.unwrap();
        assert_eq!((asked(), first.examples()[0].tokens), (2, 8), "of question and answer");
        let same = embedder.index(vec![example("b", "what?"), example("a", "who, then?")], &first).await.unwrap();
        assert_eq!((asked(), &same), (0, &first));
        let changed = vec![example("c", "when?"), example("b", "what else?"), example("a", "who, then?")];
        assert_eq!(embedder.index(changed, &first).await.unwrap().examples().len(), 3);
        assert_eq!(asked(), 2, "the new one, and the one that is another now");
        let deadly = vec![example("d", "poison"), example("b", "what?")];
        let left = embedder.index(deadly, &none).await.unwrap();
        assert_eq!((asked(), left.examples().len()), (3, 1), "tried twice, and left out");
        let foreign = Index::new(2, [8; 32], first.codes().map(|(_, (e, code))| (e.clone(), code)).collect());
        let again = embedder.index(first.examples().to_vec(), &foreign).await.unwrap();
        assert_eq!((asked(), &again), (2, &first), "another model's vectors are not taken");
        let found = embedder.query("what?".to_owned()).await.unwrap();
        assert_eq!(found.values[0], 15.0, "with the words before it");
        let terms = |cut| Terms { cut, within: Duration::from_secs(60), first: false };
        let texts = ["a", &"a".repeat(31)].map(|text| (Purpose::Plain, EmbedInput::Text(text.to_owned()))).to_vec();
        let cut = embedder.embed(texts.clone(), terms(true), ()).await.unwrap();
        assert_eq!((cut[0].tokens, cut[1].tokens), (1, 30), "in their order");
        let whole = embedder.embed(texts, terms(false), ()).await.unwrap();
        assert_eq!((whole[0].windows, whole[1].windows, whole[1].tokens), (1, 2, 31));
    }

    fn table() -> Static {
        Static::read(&crate::embed::model::small(2, |_, d| d as f32)).unwrap()
    }

    #[test]
    fn a_text_is_cut_where_that_was_asked() {
        let long = "a".repeat(TOKENS_MAX + 1);
        let text = |text: &str| EmbedInput::Text(text.to_owned());
        let cut = looked_up(&table(), &[text("a"), text(&long)], true).unwrap();
        assert_eq!((cut[0].tokens, cut[1].tokens), (1, TOKENS_MAX as u32));
        assert_eq!(cut[0].values, cut[1].values);
    }

    #[test]
    fn a_long_text_is_read_in_windows_and_ids_are_those_of_its_text() {
        let text = |text: String| EmbedInput::Text(text);
        // So many of the letter a, then so many of the letter b: the mean leans to what there is more of.
        let (a, b) = ("a".repeat(TOKENS_MAX), "b".repeat(TOKENS_MAX / 2));
        let ids = EmbedInput::Ids(table().tokens(&format!("{a}{b}")));
        let all = [text(format!("{a}{b}")), ids, text(a.clone()), text(b.clone())];
        let [whole, by_ids, first, second] = looked_up(&table(), &all, false).unwrap().try_into().unwrap();
        assert_eq!((whole.windows, whole.tokens), (2, (TOKENS_MAX + TOKENS_MAX / 2) as u32));
        assert_eq!(whole, by_ids);
        assert_eq!((first.windows, second.windows), (1, 1));
        let dot = |v: &[f32], w: &[f32]| v.iter().zip(w).map(|(a, b)| a * b).sum::<f32>();
        assert!((dot(&whole.values, &whole.values) - 1.0).abs() < 1e-5, "one long");
        assert!(dot(&whole.values, &first.values) >= dot(&whole.values, &second.values));
        let foreign = looked_up(&table(), &[EmbedInput::Ids(vec![1, 1 << 20])], false).unwrap_err();
        assert!(foreign.to_string().contains("outside the vocabulary"), "{foreign}");
        let endless = text("a".repeat(TOKENS_MAX * windows::WINDOWS_MAX + 1));
        let refused = looked_up(&table(), &[endless], false).unwrap_err();
        assert!(refused.to_string().contains("split it"), "{refused}");
        assert!(matches!(refused, Unembedded::Refused { at: 0, .. }));
    }

    #[test]
    fn other_words_before_a_text_make_another_embedder() {
        let with = |query: &str, document: &str| {
            let prefixes = Prefixes { query: query.to_owned(), document: document.to_owned() };
            Embedder::of_table(table(), prefixes)
        };
        let all = [with("", ""), with("q", ""), with("", "q"), with("q", "q"), with("qq", "")];
        assert_eq!(all[0].fingerprint(), table().digest());
        let different: std::collections::BTreeSet<[u8; 32]> = all.iter().map(Embedder::fingerprint).collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(all[3].worded(Purpose::Query, "a".to_owned()), "qa");
        assert_eq!(all[2].worded(Purpose::Document, "a".to_owned()), "qa");
        assert_eq!(all[2].worded(Purpose::Query, "a".to_owned()), "a");
        assert_eq!(all[3].worded(Purpose::Plain, "a".to_owned()), "a");
    }
}
