//! The Engram tables of this engine: mapped or unpacked, checked whole, given out as they are. A name leads to another table from
//! one request to the next; a request keeps what it was given until it ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use chimere_ffi::map::Map;

use super::control::engram::Engram;
use super::vocab::{Vocab, VocabError, fingerprint};
use crate::engram::TABLES_MAX;
use crate::engram::blend::LAMBDA_MAX;
use crate::engram::dynamic::{Dynamic, PASSAGES_MAX, TOKENS_MAX};
use crate::engram::format::{EngramError, FILE_BYTES_MAX, check_name};
use crate::engram::{Bytes, Table, file};
use crate::turn::EngramChoice;

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(transparent)]
    Engram(#[from] EngramError),
    #[error(transparent)]
    Vocab(#[from] VocabError),
    #[error("there is no engram table `{name}`: {known}")]
    Unknown { name: String, known: String },
    #[error("engram: {found} {what} are over the limit of {limit}")]
    TooMany { what: &'static str, found: usize, limit: usize },
    #[error("engram.lambda is {0}, but must be from 0 to {LAMBDA_MAX}")]
    Lambda(f32),
}

/// Tables by name.
pub struct Tables {
    vocab: Arc<dyn Vocab>,
    /// Made when the first table comes: it reads the whole vocabulary.
    fingerprint: Option<[u8; 32]>,
    tables: BTreeMap<String, Arc<Table>>,
}

impl Tables {
    pub fn new(vocab: Arc<dyn Vocab>) -> Tables {
        Tables { vocab, fingerprint: None, tables: BTreeMap::new() }
    }

    /// Opens and checks a file and gives it `name`; on an error the table that had the name stays. Returns its
    /// contexts and entries.
    pub fn load(&mut self, name: &str, path: &Path, digest: &str) -> Result<(u64, u64), TableError> {
        check_name(name)?;
        if self.tables.len() >= TABLES_MAX && !self.tables.contains_key(name) {
            let found = self.tables.len() + 1;
            return Err(TableError::TooMany { what: "tables", found, limit: TABLES_MAX });
        }
        let fingerprint = *self.fingerprint.get_or_insert_with(|| fingerprint(self.vocab.as_ref()));
        let table = Table::open(bytes_of(path)?, Some(&fingerprint))?;
        if table.digest() != digest {
            return Err(EngramError::Digest { found: table.digest(), wanted: digest.to_owned() }.into());
        }
        let facts = (table.contexts() as u64, table.entries() as u64);
        self.tables.insert(name.to_owned(), Arc::new(table));
        Ok(facts)
    }

    pub fn forget(&mut self, name: &str) {
        self.tables.remove(name);
    }

    /// What a request gets: the tables of today, and a table of its own passages.
    pub fn choose(&self, choice: &EngramChoice, prompt: &[u32]) -> Result<Engram, TableError> {
        if !(0.0..=LAMBDA_MAX).contains(&choice.lambda_max) {
            return Err(TableError::Lambda(choice.lambda_max));
        }
        let mut tables: Vec<Arc<Table>> = Vec::new();
        for name in &choice.tables {
            match self.tables.get(name) {
                // Named twice, it still counts once.
                Some(table) if tables.iter().any(|t| Arc::ptr_eq(t, table)) => {}
                Some(table) => tables.push(Arc::clone(table)),
                None if choice.required => return Err(self.unknown(name)),
                None => {}
            }
        }
        let dynamic = self.dynamic(&choice.passages)?;
        Ok(Engram::new(tables, dynamic, choice, prompt))
    }

    fn dynamic(&self, passages: &[String]) -> Result<Option<Dynamic>, TableError> {
        if passages.is_empty() {
            return Ok(None);
        }
        if passages.len() > PASSAGES_MAX {
            return Err(TableError::TooMany { what: "passages", found: passages.len(), limit: PASSAGES_MAX });
        }
        let mut all = Vec::new();
        let mut tokens = 0;
        for passage in passages {
            let mut ids = Vec::new();
            self.vocab.encode(passage, false, &mut ids)?;
            tokens += ids.len();
            if tokens > TOKENS_MAX {
                return Err(TableError::TooMany { what: "tokens of passages", found: tokens, limit: TOKENS_MAX });
            }
            all.push(ids);
        }
        Ok(Some(Dynamic::of(&all)))
    }

    fn unknown(&self, name: &str) -> TableError {
        let known = match self.tables.is_empty() {
            true => "none is loaded".to_owned(),
            false => format!("the tables are {}", self.tables.keys().cloned().collect::<Vec<_>>().join(", ")),
        };
        TableError::Unknown { name: name.chars().take(80).collect(), known }
    }
}

/// A plain file is mapped, a packed one unpacked into memory.
fn bytes_of(path: &Path) -> Result<Bytes, EngramError> {
    if file::is_packed(path) {
        return Ok(Bytes::Owned(file::read(path, FILE_BYTES_MAX)?));
    }
    let mapped = File::open(path).and_then(|file| Map::new(&file));
    mapped.map(Bytes::Mapped).map_err(|source| EngramError::Io { path: path.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tokenizer::Bpe;
    use crate::gguf::Gguf;

    #[test]
    fn the_shipped_tables_fit_the_shipped_model() {
        let nano = crate::installation().join("nano");
        let vocab = Bpe::from_gguf(&Gguf::open(&nano.join("nano.gguf")).unwrap()).unwrap();
        let mut tables = Tables::new(Arc::new(vocab));
        let digests = std::fs::read_to_string(nano.join("engram/DIGESTS")).unwrap();
        assert_eq!(digests.lines().count(), 4);
        for line in digests.lines() {
            let (name, digest) = line.split_once(' ').unwrap();
            let path = nano.join("engram").join(format!("{name}.engr.gz"));
            assert!(matches!(tables.load(name, &path, "0"), Err(TableError::Engram(EngramError::Digest { .. }))));
            let (contexts, entries) = tables.load(name, &path, digest.trim()).unwrap();
            assert!(entries > contexts && contexts > 1000, "{name}: {contexts} contexts, {entries} entries");
        }
        let choice = |name: &str, required| EngramChoice {
            tables: vec![name.to_owned()],
            lambda_max: 0.1,
            required,
            ..EngramChoice::default()
        };
        assert_eq!(tables.choose(&choice("kine", true), &[1]).unwrap().report().tables, ["kine"]);
        let error = tables.choose(&choice("none", true), &[1]).unwrap_err().to_string();
        assert!(error.ends_with("the tables are code, cyber, general, kine"), "{error}");
        let none = tables.vocab.clone();
        let error = Tables::new(none).choose(&choice("none", true), &[1]).unwrap_err().to_string();
        assert!(error.ends_with("`none`: none is loaded"), "{error}");
        assert_eq!(tables.choose(&choice("none", false), &[1]).unwrap().report().tables, [""; 0]);
        assert!(tables.choose(&EngramChoice { lambda_max: f32::NAN, ..choice("kine", true) }, &[1]).is_err());
        tables.forget("kine");
        assert!(tables.choose(&choice("kine", true), &[1]).is_err());
    }
}
