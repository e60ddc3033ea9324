//! What is in use as one moment saw it, and how it is read from the disk at the start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::draft::Draft;
use super::store::short;
use super::{
    CHUNKS_MAX, Collection, CollectionId, DEFAULT_COLLECTION, DOCUMENTS_MAX, Document, DocumentError, DocumentId,
    SHARE_OF_ONE, Vectors, file,
};
use crate::store::files::read_bounded;

pub(super) const COLLECTIONS: &str = "collections.json";
const COLLECTIONS_BYTES_MAX: u64 = 16 << 20;
/// What helps where the collections cannot be read.
const COPY: &str = "stop the daemon and put a copy of it back, or move the folder away and add the documents again";
/// Damaged documents that are named.
const DAMAGED_SHOWN: usize = 5;

/// A document that is in use.
#[derive(Clone)]
pub(super) struct Held {
    pub document: Arc<Document>,
    /// Where its text begins in its file.
    pub text_at: u64,
    pub vectors: Option<Arc<Vectors>>,
}

/// What is in use, as one moment saw it.
#[derive(Clone, Default)]
pub(super) struct Shelf {
    pub collections: Vec<Arc<Collection>>,
    pub documents: BTreeMap<DocumentId, Held>,
}

impl Shelf {
    pub fn collection(&self, id: &CollectionId) -> Option<&Arc<Collection>> {
        self.collections.iter().find(|collection| collection.id == *id)
    }

    pub fn own(&self, principal: &str, name: &str) -> Option<&Arc<Collection>> {
        self.collections.iter().find(|collection| collection.principal == principal && collection.name == name)
    }

    /// What a principal may read of the named collections; of all where none is named.
    pub fn readable(&self, principal: &str, names: Option<&[String]>) -> Result<Vec<Arc<Collection>>, DocumentError> {
        let may = |collection: &&Arc<Collection>| collection.read_by(principal);
        let Some(names) = names else { return Ok(self.collections.iter().filter(may).cloned().collect()) };
        let mut found: Vec<Arc<Collection>> = Vec::new();
        for name in names {
            let of = self.collections.iter().filter(may).filter(|c| c.name == *name || c.id.0 == *name);
            let before = found.len();
            for collection in of {
                if !found.contains(collection) {
                    found.push(collection.clone());
                }
            }
            let known = found.len() > before || found.iter().any(|c| c.name == *name || c.id.0 == *name);
            // One's own default collection is there before its first document.
            if !known && name != DEFAULT_COLLECTION {
                return Err(DocumentError::NoCollection(short(name)));
            }
        }
        Ok(found)
    }

    pub fn chunks(&self, of: impl Fn(&Document) -> bool) -> usize {
        self.documents.values().filter(|held| of(&held.document)).map(|held| held.document.chunks.len()).sum()
    }

    /// Is there room for a draft in place of the document before it?
    pub fn room(&self, draft: &Draft, before: Option<&Document>) -> Result<(), DocumentError> {
        let freed = before.map_or(0, |before| before.chunks.len());
        if self.documents.len() >= DOCUMENTS_MAX && before.is_none() {
            return Err(DocumentError::Full(format!("there are {DOCUMENTS_MAX} documents: remove some first")));
        }
        if self.chunks(|_| true) - freed + draft.chunks.len() > CHUNKS_MAX {
            let message = format!("all documents together have at most {CHUNKS_MAX} passages: remove some first");
            return Err(DocumentError::Full(message));
        }
        let own: BTreeSet<&CollectionId> =
            self.collections.iter().filter(|c| c.principal == draft.principal).map(|c| &c.id).collect();
        let most = CHUNKS_MAX / SHARE_OF_ONE;
        if !draft.by_owner && self.chunks(|d| own.contains(&d.collection)) - freed + draft.chunks.len() > most {
            let message = format!("the documents of one key have at most {most} passages: remove some first");
            return Err(DocumentError::Full(message));
        }
        Ok(())
    }
}

/// Reads what lies in the folder, and removes what a kill left.
pub(super) fn load(folder: &Path, damaged: &mut BTreeMap<DocumentId, String>) -> Result<Shelf, String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    if !folder.exists() {
        return Ok(Shelf::default());
    }
    let known = collections(&folder.join(COLLECTIONS))?;
    let mut shelf = Shelf { collections: known.clone().unwrap_or_default(), ..Shelf::default() };
    for entry in fs::read_dir(folder).map_err(told)? {
        let entry = entry.map_err(told)?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        // Written aside, and never renamed.
        if name.starts_with('.') {
            remove_file(&path).map_err(told)?;
            continue;
        }
        let Some(id) = name.strip_suffix(&format!(".{}", file::END)) else { continue };
        if known.is_none() {
            return Err(without_collections(folder));
        }
        let id = DocumentId(id.to_owned());
        match file::read(&path) {
            Ok((filed, _)) if shelf.collection(&filed.document.collection).is_none() => {
                remove_file(&path).map_err(told)?;
            }
            Ok((filed, _)) => {
                let vectors = Vectors::read(&folder.join(format!("{}.{}", id.0, file::VECTORS_END)));
                let vectors = vectors.filter(|vectors| vectors.len() == filed.document.chunks.len()).map(Arc::new);
                let held = Held { document: Arc::new(filed.document), text_at: filed.text_at, vectors };
                shelf.documents.insert(id, held);
            }
            Err(why) => drop(damaged.insert(id, why)),
        }
    }
    tidy(folder, &mut shelf, damaged).map_err(told)?;
    Ok(shelf)
}

/// How many documents lie in the folder; an error says which are damaged and what to do. Nothing is written.
pub(super) fn look(folder: &Path) -> Result<usize, String> {
    let unread = |error: std::io::Error| format!("no document is in use: {}: {error}", folder.display());
    if !folder.exists() {
        return Ok(0);
    }
    let known = collections(&folder.join(COLLECTIONS)).map_err(|why| format!("no document is in use: {why}"))?;
    let (mut sound, mut damaged) = (0, BTreeMap::new());
    for entry in fs::read_dir(folder).map_err(unread)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).map_err(unread)?;
        let name = name.to_string_lossy();
        let Some(id) = name.strip_suffix(&format!(".{}", file::END)).filter(|id| !id.starts_with('.')) else {
            continue;
        };
        match file::read(&path) {
            Ok(_) => sound += 1,
            // A daemon that runs may have removed it.
            Err(_) if !path.exists() => {}
            Err(why) => drop(damaged.insert(DocumentId(id.to_owned()), why)),
        }
    }
    if known.is_none() && sound + damaged.len() > 0 {
        return Err(format!("no document is in use: {}", without_collections(folder)));
    }
    damage(&damaged).map_or(Ok(sound), Err)
}

/// Which documents are damaged, as their owner is told it.
pub(super) fn damage(damaged: &BTreeMap<DocumentId, String>) -> Option<String> {
    if damaged.is_empty() {
        return None;
    }
    let all = crate::plural::counted(damaged.len(), "document is", "documents are");
    let mut each: Vec<String> =
        damaged.iter().take(DAMAGED_SHOWN).map(|(id, why)| format!("{} ({why})", id.0)).collect();
    each.extend((damaged.len() > DAMAGED_SHOWN).then(|| format!("{} more", damaged.len() - DAMAGED_SHOWN)));
    Some(format!(
        "{all} damaged and not in use: {}. Stop the daemon and put a copy of each file back, or remove it with `chimere \
         documents remove ID` and add the document again",
        each.join(", ")
    ))
}

fn without_collections(folder: &Path) -> String {
    let lost = folder.join(COLLECTIONS);
    format!("{} is missing, and documents are there: {COPY}", lost.display())
}

/// Removes documents that another took the place of, and vectors without a document.
fn tidy(folder: &Path, shelf: &mut Shelf, damaged: &BTreeMap<DocumentId, String>) -> std::io::Result<()> {
    let old: Vec<DocumentId> = shelf.documents.values().filter_map(|held| held.document.replaces.clone()).collect();
    for id in old {
        if shelf.documents.remove(&id).is_some() {
            remove_file(&folder.join(format!("{}.{}", id.0, file::END)))?;
        }
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(id) = name.strip_suffix(&format!(".{}", file::VECTORS_END)) else { continue };
        let id = DocumentId(id.to_owned());
        if !shelf.documents.contains_key(&id) && !damaged.contains_key(&id) {
            remove_file(&folder.join(&name))?;
        }
    }
    Ok(())
}

fn collections(path: &Path) -> Result<Option<Vec<Arc<Collection>>>, String> {
    #[derive(serde::Deserialize)]
    struct Kept {
        format: u32,
        collections: Vec<Arc<Collection>>,
    }
    let wrong = |why: String| format!("{} is damaged: {why}; {COPY}", path.display());
    let Some(text) = read_bounded(path, COLLECTIONS_BYTES_MAX).map_err(|error| wrong(error.to_string()))? else {
        return Ok(None);
    };
    let kept: Kept = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    match kept.format {
        1 => Ok(Some(kept.collections)),
        other => Err(wrong(format!("it has format {other}, this version reads format 1"))),
    }
}

pub(super) fn remove_file(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
