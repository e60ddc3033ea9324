//! The embedding model and the index that are in use: read at the start, the index replaced as a whole when it was
//! made anew. Readers take the snapshot of the moment.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::index::FILE;
use super::{Code, EmbedError, Embedder, Example, Index};
use crate::config::Live;
use crate::service::TurnFilter;
use crate::turn::Retrieve;

pub struct Examples {
    /// `Err`: why there is none.
    embedder: Result<Arc<Embedder>, String>,
    index: Live<Index>,
    path: PathBuf,
    /// Why the index of the last run could not be read.
    unread: Option<String>,
    /// Held while the index is replaced.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// How often something was forgotten.
    forgotten: u64,
    /// The index on the disk, where another embedding model made it: its vectors are never compared, its exchanges are
    /// what it is made anew from.
    outdated: Option<Index>,
}

impl Default for Examples {
    fn default() -> Self {
        Examples::open(Err("no embedding model".to_owned()), Path::new("/nonexistent"))
    }
}

impl Examples {
    /// Takes an embedding model, and reads the index in the state folder. What is wrong with either leaves it out.
    pub fn open(embedder: Result<Arc<Embedder>, String>, state_dir: &Path) -> Examples {
        let path = state_dir.join(FILE);
        let mut kept = Kept::default();
        let (index, unread) = match Index::load(&path) {
            Ok(None) => (Index::default(), None),
            Ok(Some(index)) if embedder.as_ref().is_ok_and(|embedder| embedder.fingerprint() == index.model()) => {
                (index, None)
            }
            Ok(Some(outdated)) => {
                kept.outdated = Some(outdated);
                let why = "the index was made by another embedding model: it is made anew as soon as this one answers";
                (Index::default(), Some(why.to_owned()))
            }
            Err(error) => (Index::default(), Some(error.to_string())),
        };
        Examples { embedder, index: Live::new(index), path, unread, kept: Mutex::new(kept) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing, or nothing before the next run, can be found.
    pub fn why(&self) -> Option<&str> {
        self.embedder.as_ref().err().or(self.unread.as_ref()).map(String::as_str)
    }

    /// The embedding model, or why there is none.
    pub fn embedder(&self) -> Result<&Arc<Embedder>, &str> {
        self.embedder.as_ref().map_err(String::as_str)
    }

    pub fn index(&self) -> Arc<Index> {
        self.index.get()
    }

    /// The examples for a question of `principal` by its vector, likest first, with their likeness.
    pub fn find(&self, vector: &[f32], principal: &str, wanted: &Retrieve, bytes_max: usize) -> Vec<(Example, f32)> {
        let index = self.index();
        let found = index.find(&Code::of(vector), principal, wanted, bytes_max);
        found.into_iter().map(|(example, score)| (example.clone(), score)).collect()
    }

    /// How often something was forgotten until now: to be asked before an index is made.
    pub fn forgotten(&self) -> u64 {
        self.kept().forgotten
    }

    /// What another embedding model's index holds, newest first, and how often something was forgotten until now.
    pub fn outdated(&self) -> Option<(Vec<Example>, u64)> {
        let kept = self.kept();
        kept.outdated.as_ref().map(|index| (index.examples().to_vec(), kept.forgotten))
    }

    /// Writes an index and takes it into use; `false`: something was forgotten since `forgotten` was asked, which may
    /// be in it, so it is not taken.
    pub fn replace(&self, index: Index, forgotten: u64) -> Result<bool, EmbedError> {
        self.put(&mut self.kept(), index, forgotten)
    }

    /// As `replace`, of the outdated index made anew; where a newer one has taken its place, that stays.
    pub fn renew(&self, index: Index, forgotten: u64) -> Result<bool, EmbedError> {
        let mut kept = self.kept();
        if kept.outdated.is_some() { self.put(&mut kept, index, forgotten) } else { Ok(true) }
    }

    fn put(&self, kept: &mut Kept, index: Index, forgotten: u64) -> Result<bool, EmbedError> {
        if kept.forgotten != forgotten {
            return Ok(false);
        }
        index.save(&self.path)?;
        kept.outdated = None;
        self.index.set(index);
        Ok(true)
    }

    /// Takes what a filter forgets out of the index; returns how many exchanges went. An index that is being made
    /// meanwhile will not be taken.
    pub fn forget(&self, filter: &TurnFilter) -> Result<usize, EmbedError> {
        let mut kept = self.kept();
        kept.forgotten += 1;
        if let Some(outdated) = &kept.outdated {
            let Some(left) = outdated.without(filter) else { return Ok(0) };
            let gone = outdated.examples().len() - left.examples().len();
            left.save(&self.path)?;
            kept.outdated = Some(left);
            return Ok(gone);
        }
        let before = self.index();
        let Some(left) = before.without(filter) else { return Ok(0) };
        let gone = before.examples().len() - left.examples().len();
        // Out of use even if the file cannot be written, which is said.
        self.index.set(left);
        self.index().save(&self.path)?;
        Ok(gone)
    }

    pub fn status(&self) -> Value {
        let index = self.index();
        let shared = index.examples().iter().filter(|example| example.shared).count();
        // What could not be read is no matter once there is another.
        let why = self.why().filter(|_| index.examples().is_empty());
        let embedder = self.embedder().ok().map(|embedder| embedder.status());
        json!({ "examples": index.examples().len(), "shared": shared, "message": why, "embedder": embedder })
    }
}

#[cfg(feature = "llama")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::Static;
    use crate::embed::embedder::Prefixes;

    fn embedder(scale: f32) -> Arc<Embedder> {
        let bytes = super::super::model::small(2, |token, d| (token % 7 + d) as f32 * scale);
        Arc::new(Embedder::of_table(Static::read(&bytes).unwrap(), Prefixes::default()))
    }

    fn exchange(name: &str) -> Example {
        let (turn, question) = (name.to_owned(), format!("What is {name}?"));
        let (principal, answer) = ("ada".to_owned(), format!("It is {name}."));
        Example { turn, principal, question, answer, tokens: 4, ..Example::default() }
    }

    async fn made(embedder: &Embedder, names: &[&str]) -> Index {
        embedder.index(names.iter().map(|name| exchange(name)).collect(), &Index::default()).await.unwrap()
    }

    async fn found(examples: &Examples) -> usize {
        let wanted = Retrieve { k: 8, min_score: 0.0, tokens_max: 100 };
        let vector = examples.embedder().unwrap().query("What is this?".to_owned()).await.unwrap();
        examples.find(&vector.values, "ada", &wanted, 10_000).len()
    }

    fn only(name: &str) -> TurnFilter {
        TurnFilter { turn: Some(crate::turn::TurnId(name.into())), ..TurnFilter::default() }
    }

    #[tokio::test]
    async fn an_index_that_was_made_while_something_was_forgotten_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let by = embedder(1.0);
        let open = || Examples::open(Ok(by.clone()), dir.path());
        let examples = open();
        assert!(examples.replace(made(&by, &["one", "two"]).await, examples.forgotten()).unwrap());
        assert_eq!((found(&examples).await, found(&open()).await), (2, 2));
        let before = examples.forgotten();
        assert_eq!(examples.forget(&only("one")).unwrap(), 1);
        assert!(!examples.replace(made(&by, &["one", "two", "three"]).await, before).unwrap());
        assert_eq!((found(&examples).await, found(&open()).await), (1, 1), "neither in use nor on the disk");
        assert_eq!(examples.forget(&only("one")).unwrap(), 0);
        assert!(examples.replace(made(&by, &["two", "three"]).await, examples.forgotten()).unwrap());
        assert_eq!(found(&examples).await, 2);
    }

    #[tokio::test]
    async fn another_models_index_is_not_searched_and_gives_its_exchanges_to_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (by, other) = (embedder(1.0), embedder(2.0));
        assert_ne!(by.fingerprint(), other.fingerprint());
        let first = Examples::open(Ok(by.clone()), dir.path());
        assert!(first.replace(made(&by, &["one", "two", "three"]).await, 0).unwrap());
        assert!(first.outdated().is_none());
        // Nobody embeds: what is forgotten goes from the disk nevertheless.
        let none = Examples::open(Err("none".to_owned()), dir.path());
        assert_eq!(none.forget(&only("three")).unwrap(), 1);
        let second = Examples::open(Ok(other.clone()), dir.path());
        assert_eq!(found(&second).await, 0);
        assert!(second.why().unwrap().contains("another embedding model"));
        let (texts, forgotten) = second.outdated().unwrap();
        assert_eq!(texts.len(), 2);
        let index = other.index(texts, &second.index()).await.unwrap();
        assert_eq!(second.forget(&only("one")).unwrap(), 1);
        assert!(!second.renew(index.clone(), forgotten).unwrap(), "it was made before");
        let (texts, forgotten) = second.outdated().unwrap();
        let newer = other.index(texts, &second.index()).await.unwrap();
        assert!(second.renew(newer, forgotten).unwrap());
        assert_eq!((found(&second).await, second.outdated()), (1, None));
        assert!(second.renew(index, forgotten).unwrap());
        assert_eq!(found(&second).await, 1, "the one in use stays");
        assert_eq!(found(&Examples::open(Ok(other), dir.path())).await, 1);
        assert_eq!(found(&Examples::open(Ok(by), dir.path())).await, 0);
    }
}
