//! The collections in use and every change of them. A document is there once its file is, and gone once its file is; words
//! and vectors are made of the files. What a kill left between goes at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use serde_json::{Value, json};

use super::draft::{self, Draft};
use super::shelf::{self, COLLECTIONS, Held, Shelf, load, remove_file};
use super::words::{Hit, Words};
use super::{
    CHUNKS_MAX, COLLECTION_CHARS_MAX, COLLECTIONS_MAX, Collection, CollectionId, DEFAULT_COLLECTION, DOCUMENTS_MAX,
    Document, DocumentError, DocumentId, NAME_CHARS_MAX, READERS_MAX, Vectors, file,
};
use crate::config::Live;
use crate::store::files::{create_private_dir, write_durable};

/// Under the state folder.
pub const FOLDER: &str = "documents";

/// What came of adding a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Added {
    pub document: Arc<Document>,
    pub collection: Arc<Collection>,
    /// The document of this name before it, which is gone.
    pub replaced: Option<DocumentId>,
    /// It was there already, byte for byte.
    pub unchanged: bool,
}

pub struct Documents {
    folder: PathBuf,
    shelf: Live<Shelf>,
    /// Made when it is first needed.
    indexes: Mutex<BTreeMap<CollectionId, Arc<RwLock<Words>>>>,
    /// One change after the other.
    changes: Mutex<()>,
    /// Files that cannot be read, each with why.
    damaged: Mutex<BTreeMap<DocumentId, String>>,
    /// Why nothing is kept.
    closed: Option<String>,
}

impl Default for Documents {
    /// None, and none can be added.
    fn default() -> Self {
        Documents {
            folder: PathBuf::from("/nonexistent"),
            shelf: Live::new(Shelf::default()),
            indexes: Mutex::default(),
            changes: Mutex::default(),
            damaged: Mutex::default(),
            closed: Some("there is no state folder".to_owned()),
        }
    }
}

impl Documents {
    /// Opens what lies under a state folder.
    pub fn open(state_dir: &Path) -> Documents {
        let folder = state_dir.join(FOLDER);
        let mut damaged = BTreeMap::new();
        let (shelf, closed) = match load(&folder, &mut damaged) {
            Ok(shelf) => (shelf, None),
            Err(why) => (Shelf::default(), Some(why)),
        };
        if let Some(why) = &closed {
            tracing::error!(why, "the documents are not in use");
        }
        for (id, why) in &damaged {
            tracing::error!(id = id.0, why, "the file of a document is damaged and not in use");
        }
        Documents {
            folder,
            shelf: Live::new(shelf),
            indexes: Mutex::default(),
            changes: Mutex::default(),
            damaged: Mutex::new(damaged),
            closed,
        }
    }

    /// How many documents a state folder has; an error says what is damaged and what to do. Nothing is written.
    pub fn look(state_dir: &Path) -> Result<usize, String> {
        shelf::look(&state_dir.join(FOLDER))
    }

    /// Which documents are damaged and not in use, and what to do.
    pub fn damage(&self) -> Option<String> {
        shelf::damage(&self.damaged.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An error: no document is in use.
    pub fn usable(&self) -> Result<(), DocumentError> {
        self.closed.clone().map_or(Ok(()), |why| Err(DocumentError::Closed(why)))
    }

    pub(super) fn shelf(&self) -> Arc<Shelf> {
        self.shelf.get()
    }

    pub(super) fn path(&self, id: &DocumentId, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{end}", id.0))
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The words of a collection, made of its files where nobody needed them yet.
    fn index(&self, collection: &CollectionId) -> Arc<RwLock<Words>> {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = indexes.entry(collection.clone()).or_insert_with(|| {
            let mut words = Words::default();
            for held in self.shelf().documents.values().filter(|held| held.document.collection == *collection) {
                match file::read(&self.path(&held.document.id, file::END)) {
                    Ok((filed, text)) => words.add(&filed.document, &text),
                    Err(why) => tracing::error!(id = held.document.id.0, why, "a document cannot be read any more"),
                }
            }
            Arc::new(RwLock::new(words))
        });
        known.clone()
    }

    /// The passages of a collection that have words of a question, best first.
    pub(super) fn by_words(&self, collection: &CollectionId, question: &str, k: usize) -> Vec<Hit> {
        let index = self.index(collection);
        index.read().unwrap_or_else(PoisonError::into_inner).search(question, k)
    }

    /// Every word that the index of a collection has.
    #[cfg(test)]
    pub(super) fn terms(&self, collection: &CollectionId) -> BTreeSet<String> {
        let index = self.index(collection);
        let words = index.read().unwrap_or_else(PoisonError::into_inner);
        words.terms().map(str::to_owned).collect()
    }

    /// Makes the words of every collection, so that nobody waits for it.
    pub fn prepare(&self) {
        self.shelf().collections.iter().for_each(|collection| drop(self.index(&collection.id)));
    }

    /// Collections that a principal may read, or everybody's, each with its documents and passages.
    pub fn collections(&self, principal: Option<&str>) -> Vec<(Arc<Collection>, usize, usize)> {
        let shelf = self.shelf();
        let may = |collection: &&Arc<Collection>| principal.is_none_or(|principal| collection.read_by(principal));
        let counted = |collection: &Arc<Collection>| {
            let of = |document: &Document| document.collection == collection.id;
            let documents = shelf.documents.values().filter(|held| of(&held.document)).count();
            (collection.clone(), documents, shelf.chunks(of))
        };
        shelf.collections.iter().filter(may).map(counted).collect()
    }

    /// Every document with its collection, in the order of time.
    pub fn list(&self) -> Vec<(Arc<Document>, Arc<Collection>)> {
        let shelf = self.shelf();
        let with = |held: &Held| Some((held.document.clone(), shelf.collection(&held.document.collection)?.clone()));
        shelf.documents.values().filter_map(with).collect()
    }

    pub fn get(&self, id: &DocumentId) -> Option<(Arc<Document>, Arc<Collection>)> {
        let shelf = self.shelf();
        let document = shelf.documents.get(id)?.document.clone();
        let collection = shelf.collection(&document.collection)?.clone();
        Some((document, collection))
    }

    /// The texts of some passages of a document.
    pub fn texts(&self, id: &DocumentId, chunks: std::ops::Range<usize>) -> Result<Vec<String>, DocumentError> {
        let shelf = self.shelf();
        let held = shelf.documents.get(id).ok_or_else(|| DocumentError::Unknown(short(&id.0)))?;
        let wanted = held.document.chunks.iter().take(chunks.end).skip(chunks.start);
        let path = self.path(id, file::END);
        wanted.map(|c| Ok(file::passage(&path, held.text_at, c.start, c.end)?)).collect()
    }

    /// Keeps a document; it is on the disk and found when this returns. `id` and `collection` name what is new.
    pub fn add(
        &self,
        draft: Draft,
        id: DocumentId,
        collection: CollectionId,
        now_ms: i64,
    ) -> Result<Added, DocumentError> {
        let _change = self.change();
        self.usable()?;
        if draft.name.trim().is_empty() || draft.name.chars().count() > NAME_CHARS_MAX {
            let message = format!("the name of a document has 1 to {NAME_CHARS_MAX} characters");
            return Err(DocumentError::Invalid { param: "name", message });
        }
        let name = draft.collection.as_deref().unwrap_or(DEFAULT_COLLECTION);
        let collection = match self.shelf().own(&draft.principal, name) {
            Some(collection) => collection.clone(),
            None => self.begin(&draft.principal, name, Vec::new(), collection, now_ms)?,
        };
        let shelf = self.shelf();
        let mut of = shelf.documents.values().map(|held| &held.document);
        let before = of.find(|document| document.collection == collection.id && document.name == draft.name).cloned();
        if let Some(document) = before.clone().filter(|before| {
            before.sha256 == draft.sha256 && before.title == draft.title && before.media_type == draft.media_type
        }) {
            return Ok(Added { document, collection, replaced: None, unchanged: true });
        }
        shelf.room(&draft, before.as_deref())?;
        let replaced = before.map(|before| before.id.clone());
        let document = Arc::new(draft.document(id, collection.id.clone(), now_ms, replaced.clone()));
        self.keep(&document, &draft)?;
        if let Some(old) = &replaced {
            self.drop_one(old)?;
        }
        Ok(Added { document, collection, replaced, unchanged: false })
    }

    /// Keeps a document of a new name whose collection nobody else uses, without asking whether there is room or whether the
    /// disk has it. For a measurement, which has the folder to itself.
    pub fn put(&self, draft: &Draft, id: DocumentId, collection: &Arc<Collection>) -> Result<(), DocumentError> {
        let _change = self.change();
        self.keep(&Arc::new(draft.document(id, collection.id.clone(), 0, None)), draft)
    }

    /// Writes a document's files; where one of them fails nothing stays.
    fn keep(&self, document: &Arc<Document>, draft: &Draft) -> Result<(), DocumentError> {
        let kept = || -> std::io::Result<u64> {
            if let Some(vectors) = &draft.vectors {
                vectors.write(&self.path(&document.id, file::VECTORS_END))?;
            }
            file::write(&self.path(&document.id, file::END), document, &draft.text)
        };
        let text_at = match kept() {
            Ok(text_at) => text_at,
            Err(error) => {
                let _ = self.unlink(&document.id);
                return Err(error.into());
            }
        };
        let index = self.index(&document.collection);
        writing(&index).add(document, &draft.text);
        let vectors = draft.vectors.clone().map(Arc::new);
        let mut shelf = (*self.shelf()).clone();
        shelf.documents.insert(document.id.clone(), Held { document: document.clone(), text_at, vectors });
        self.shelf.set(shelf);
        Ok(())
    }

    /// Makes a collection, or changes who may read it.
    pub fn share(
        &self,
        principal: &str,
        name: &str,
        readers: Vec<String>,
        new: CollectionId,
        now_ms: i64,
    ) -> Result<Arc<Collection>, DocumentError> {
        let _change = self.change();
        self.usable()?;
        let readers: BTreeSet<String> = readers.into_iter().filter(|reader| reader != principal).collect();
        if readers.len() > READERS_MAX {
            let message = format!("a collection is shared with at most {READERS_MAX} principals, or with \"*\"");
            return Err(DocumentError::Invalid { param: "readers", message });
        }
        let readers: Vec<String> = readers.into_iter().collect();
        let shelf = self.shelf();
        let Some(collection) = shelf.own(principal, name) else {
            return self.begin(principal, name, readers, new, now_ms);
        };
        let changed = Arc::new(Collection { readers, ..(**collection).clone() });
        let others = shelf.collections.iter().filter(|c| c.id != changed.id).cloned();
        self.set_collections(others.chain([changed.clone()]).collect())?;
        Ok(changed)
    }

    fn begin(
        &self,
        principal: &str,
        name: &str,
        readers: Vec<String>,
        id: CollectionId,
        created_ms: i64,
    ) -> Result<Arc<Collection>, DocumentError> {
        let fits = !name.trim().is_empty()
            && name.chars().count() <= COLLECTION_CHARS_MAX
            && !name.chars().any(|c| c.is_control() || c == '/' || c == '*');
        if !fits {
            let message = format!(
                "the name of a collection has 1 to {COLLECTION_CHARS_MAX} characters, without `/`, `*` and line ends"
            );
            return Err(DocumentError::Invalid { param: "collection", message });
        }
        let shelf = self.shelf();
        if shelf.collections.len() >= COLLECTIONS_MAX {
            return Err(DocumentError::Full(format!("there are {COLLECTIONS_MAX} collections: remove one first")));
        }
        let (name, principal) = (name.to_owned(), principal.to_owned());
        let collection = Arc::new(Collection { id, name, principal, readers, created_ms });
        self.set_collections(shelf.collections.iter().cloned().chain([collection.clone()]).collect())?;
        Ok(collection)
    }

    fn set_collections(&self, collections: Vec<Arc<Collection>>) -> Result<(), DocumentError> {
        create_private_dir(&self.folder)?;
        let text =
            serde_json::to_vec(&json!({"format": 1, "collections": collections})).map_err(std::io::Error::from)?;
        write_durable(&self.folder.join(COLLECTIONS), &text)?;
        let mut shelf = (*self.shelf()).clone();
        shelf.collections = collections;
        self.shelf.set(shelf);
        Ok(())
    }

    /// Removes a document for good: file, index and vectors. One whose file is damaged goes too.
    pub fn remove(&self, id: &DocumentId) -> Result<(), DocumentError> {
        let _change = self.change();
        self.usable()?;
        let was_damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner).remove(id).is_some();
        if was_damaged {
            return Ok(self.unlink(id)?);
        }
        self.drop_one(id)
    }

    fn drop_one(&self, id: &DocumentId) -> Result<(), DocumentError> {
        let mut shelf = (*self.shelf()).clone();
        let held = shelf.documents.remove(id).ok_or_else(|| DocumentError::Unknown(short(&id.0)))?;
        self.unlink(id)?;
        self.shelf.set(shelf);
        let index = self.index(&held.document.collection);
        writing(&index).remove(id);
        Ok(())
    }

    /// Removes a collection and its documents for good; how many they were.
    pub fn remove_collection(&self, id: &CollectionId) -> Result<usize, DocumentError> {
        let _change = self.change();
        self.usable()?;
        let shelf = self.shelf();
        shelf.collection(id).ok_or_else(|| DocumentError::NoCollection(short(&id.0)))?;
        // Without its collection a document is none, also after a kill.
        self.set_collections(shelf.collections.iter().filter(|c| c.id != *id).cloned().collect())?;
        let of = shelf.documents.values().filter(|held| held.document.collection == *id);
        let gone: Vec<DocumentId> = of.map(|held| held.document.id.clone()).collect();
        let mut left = (*self.shelf()).clone();
        left.documents.retain(|_, held| held.document.collection != *id);
        self.shelf.set(left);
        for id in gone.iter().chain(&self.damaged_of(id)) {
            self.unlink(id)?;
        }
        self.indexes.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        Ok(gone.len())
    }

    /// Damaged files that belonged to a collection that is gone, as far as they still tell.
    fn damaged_of(&self, gone: &CollectionId) -> Vec<DocumentId> {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let others: Vec<CollectionId> = self.shelf().collections.iter().map(|c| c.id.clone()).collect();
        let stays = |id: &DocumentId| others.iter().any(|other| file::names(&self.path(id, file::END), &other.0));
        let of: Vec<DocumentId> = damaged.keys().filter(|id| !stays(id)).cloned().collect();
        of.iter().for_each(|id| {
            tracing::info!(id = id.0, collection = gone.0, "a damaged file goes with its collection");
            damaged.remove(id);
        });
        of
    }

    /// Removes a document's files, and makes that durable.
    fn unlink(&self, id: &DocumentId) -> std::io::Result<()> {
        for end in [file::END, file::VECTORS_END] {
            remove_file(&self.path(id, end))?;
        }
        File::open(&self.folder)?.sync_all()
    }

    /// Documents whose vectors this embedder did not make.
    pub fn without_vectors(&self, fingerprint: [u8; 32]) -> Vec<DocumentId> {
        let lacks = |held: &&Held| held.vectors.as_ref().is_none_or(|vectors| vectors.fingerprint != fingerprint);
        self.shelf().documents.values().filter(lacks).map(|held| held.document.id.clone()).collect()
    }

    /// The texts that a document's passages are found by.
    pub fn passages(&self, id: &DocumentId) -> Result<Vec<String>, DocumentError> {
        let (filed, text) = file::read(&self.path(id, file::END)).map_err(DocumentError::Disk)?;
        Ok(draft::passages(&filed.document, &text))
    }

    /// Keeps the vectors of a document's passages, unless it is gone.
    pub fn set_vectors(&self, id: &DocumentId, vectors: Vectors) -> Result<(), DocumentError> {
        let _change = self.change();
        let mut shelf = (*self.shelf()).clone();
        let Some(held) = shelf.documents.get_mut(id).filter(|held| held.document.chunks.len() == vectors.len()) else {
            return Ok(());
        };
        vectors.write(&self.path(id, file::VECTORS_END))?;
        held.vectors = Some(Arc::new(vectors));
        self.shelf.set(shelf);
        Ok(())
    }

    /// Documents and passages in use.
    pub fn counts(&self) -> (usize, usize) {
        let shelf = self.shelf();
        (shelf.documents.len(), shelf.chunks(|_| true))
    }

    /// For `/v1/status`.
    pub fn status(&self) -> Value {
        let shelf = self.shelf();
        let (documents, chunks) = self.counts();
        let message = self.closed.clone().or_else(|| self.damage());
        let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let damaged: Vec<Value> = damaged.iter().map(|(id, why)| json!({"id": id, "why": why})).collect();
        json!({
            "state": if self.closed.is_some() { "closed" } else { "ready" },
            "why": self.closed,
            "message": message,
            "documents": documents,
            "documents_max": DOCUMENTS_MAX,
            "passages": chunks,
            "passages_max": CHUNKS_MAX,
            "collections": shelf.collections.len(),
            "without_vectors": shelf.documents.values().filter(|held| held.vectors.is_none()).count(),
            "damaged": damaged,
        })
    }
}

fn writing(index: &RwLock<Words>) -> RwLockWriteGuard<'_, Words> {
    index.write().unwrap_or_else(PoisonError::into_inner)
}

/// The beginning of what a client sent.
pub(super) fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
