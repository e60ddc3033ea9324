//! The embedding model and the index that are in use: read at the start, the index replaced as a whole when it was
//! made anew. Readers take the snapshot of the moment.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::index::FILE;
use super::{Code, EmbedError, Embedder, Example, Index};
use crate::config::Live;
use crate::service::TurnFilter;
use crate::turn::Retrieve;

pub struct Examples {
    /// `Err`: why there is none.
    embedder: Result<Embedder, String>,
    index: Live<Index>,
    path: PathBuf,
    /// Why the index of the last run could not be read.
    unread: Option<String>,
    /// How often something was forgotten; held while the index is replaced.
    forgotten: Mutex<u64>,
}

impl Default for Examples {
    fn default() -> Self {
        Examples::open(None, Path::new("/nonexistent"))
    }
}

impl Examples {
    /// Reads the embedding model and the index in the state folder. What is wrong with either leaves it out.
    pub fn open(model: Option<&Path>, state_dir: &Path) -> Examples {
        let path = state_dir.join(FILE);
        let none =
            || "no embedding model: put nano-embed.gguf beside the model, or name one (`embed.model`)".to_owned();
        let embedder = model
            .ok_or_else(none)
            .and_then(|model| Embedder::open(model).map_err(|error| format!("{}: {error}", model.display())));
        let loaded = match &embedder {
            Ok(embedder) => Index::load(&path, embedder.digest()),
            Err(_) => Ok(None),
        };
        let (index, unread) = match loaded {
            Ok(index) => (index.unwrap_or_default(), None),
            Err(error) => (Index::default(), Some(error.to_string())),
        };
        Examples { embedder, index: Live::new(index), path, unread, forgotten: Mutex::new(0) }
    }

    /// Why nothing, or nothing before the next run, can be found.
    pub fn why(&self) -> Option<&str> {
        self.embedder.as_ref().err().or(self.unread.as_ref()).map(String::as_str)
    }

    /// The embedding model, or why there is none.
    pub fn embedder(&self) -> Result<&Embedder, &str> {
        self.embedder.as_ref().map_err(String::as_str)
    }

    pub fn index(&self) -> Arc<Index> {
        self.index.get()
    }

    /// The examples for a question of `principal`, likest first, with their likeness.
    pub fn find(&self, question: &str, principal: &str, wanted: &Retrieve, bytes_max: usize) -> Vec<(Example, f32)> {
        let index = self.index();
        let Ok(embedder) = self.embedder() else { return Vec::new() };
        if index.examples().is_empty() {
            return Vec::new();
        }
        let found = index.find(&Code::of(&embedder.embed(question)), principal, wanted, bytes_max);
        found.into_iter().map(|(example, score)| (example.clone(), score)).collect()
    }

    /// How often something was forgotten until now: to be asked before an index is made.
    pub fn forgotten(&self) -> u64 {
        *self.forgotten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an index and takes it into use; `false`: something was forgotten since `forgotten` was asked, which may
    /// be in it, so it is not taken.
    pub fn replace(&self, index: Index, forgotten: u64) -> Result<bool, EmbedError> {
        let now = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        if *now != forgotten {
            return Ok(false);
        }
        index.save(&self.path)?;
        self.index.set(index);
        Ok(true)
    }

    /// Takes what a filter forgets out of the index; returns how many exchanges went. An index that is being made
    /// meanwhile will not be taken.
    pub fn forget(&self, filter: &TurnFilter) -> Result<usize, EmbedError> {
        let mut now = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        *now += 1;
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
        json!({ "examples": index.examples().len(), "shared": shared, "message": why })
    }
}

#[cfg(feature = "llama")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_was_made_while_something_was_forgotten_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("e.gguf");
        std::fs::write(&model, super::super::model::small(2, |token, d| (token % 7 + d) as f32)).unwrap();
        let open = || Examples::open(Some(&model), dir.path());
        let examples = open();
        let embedder = examples.embedder().unwrap();
        let made = |names: &[&str]| {
            let found = names.iter().map(|name| {
                let (turn, question) = ((*name).to_owned(), format!("What is {name}?"));
                let code = Code::of(&embedder.embed(&question));
                let (principal, answer) = ("ada".to_owned(), format!("It is {name}."));
                (Example { turn, principal, question, answer, tokens: 4, ..Example::default() }, code)
            });
            Index::new(2, embedder.digest(), found.collect())
        };
        let wanted = Retrieve { k: 8, min_score: 0.0, tokens_max: 100 };
        let found = |examples: &Examples| examples.find("What is this?", "ada", &wanted, 10_000).len();
        assert!(examples.replace(made(&["one", "two"]), examples.forgotten()).unwrap());
        assert_eq!((found(&examples), found(&open())), (2, 2));
        let before = examples.forgotten();
        let filter = TurnFilter { turn: Some(crate::turn::TurnId("one".into())), ..TurnFilter::default() };
        assert_eq!(examples.forget(&filter).unwrap(), 1);
        assert!(!examples.replace(made(&["one", "two", "three"]), before).unwrap());
        assert_eq!((found(&examples), found(&open())), (1, 1), "neither in use nor on the disk");
        assert_eq!(examples.forget(&filter).unwrap(), 0);
        assert!(examples.replace(made(&["two", "three"]), examples.forgotten()).unwrap());
        assert_eq!(found(&examples), 2);
    }
}
