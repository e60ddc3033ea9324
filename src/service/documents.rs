//! Documents, as a server asks for them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::ServiceError;
use crate::documents::{Collection, CollectionId, Document, DocumentError, DocumentId, Found, ReadError};
use crate::turn::DocumentTerms;

/// What a request says of documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DocumentsWish {
    /// Nothing: the pipeline decides.
    #[default]
    Pipeline,
    Off,
    Use(DocumentTerms),
}

/// What a request says of the web.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebWish {
    /// Nothing: the pipeline decides.
    #[default]
    Pipeline,
    Off,
    Use,
}

/// A file that is to be a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewDocument {
    pub name: String,
    pub title: Option<String>,
    /// Absent: the default one of its principal.
    pub collection: Option<String>,
    pub media_type: Option<String>,
    pub bytes: Vec<u8>,
}

/// A command for documents. A principal reads its own collections and those that are shared with it, and changes its own;
/// the admin scope lists, shows and removes everybody's. A search is always that of the principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentCommand {
    Add(NewDocument),
    /// In the order of time, behind a document, at most so many.
    List {
        collection: Option<String>,
        principal: Option<String>,
        after: Option<DocumentId>,
        limit: usize,
    },
    /// A document and some of its passages.
    Show {
        id: DocumentId,
        from: usize,
        limit: usize,
    },
    Remove(DocumentId),
    Search {
        query: String,
        /// Absent: all that the principal may read.
        collections: Option<Vec<String>>,
        k: usize,
    },
    Collections,
    /// Makes one of the principal's own, or says who may read it. The admin scope names anybody's by its id.
    Share {
        name: String,
        readers: Vec<String>,
    },
    /// By its name among the principal's own, or by its id.
    RemoveCollection(String),
}

/// A document with the collection that it lies in.
pub type Shelved = (Arc<Document>, Arc<Collection>);

/// A collection with what it has.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedCollection {
    pub collection: Arc<Collection>,
    pub documents: usize,
    pub passages: usize,
    /// Its documents are the files of this folder.
    pub folder: Option<FolderState>,
}

/// A folder whose files are documents, as it was seen last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FolderState {
    pub path: PathBuf,
    /// `reading`, `followed` or `failed`.
    pub state: &'static str,
    /// Why it is not followed now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Files of known kinds, those of them that are still to be read, and files of other kinds.
    pub files: usize,
    pub waiting: usize,
    pub others: usize,
    /// Files that are no documents, the first of them with the reason.
    pub left_out_count: usize,
    pub left_out: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DocumentAnswer {
    Added {
        document: Shelved,
        replaced: Option<DocumentId>,
        unchanged: bool,
    },
    List(Vec<Shelved>),
    /// The texts of its passages from this one on.
    Shown {
        document: Shelved,
        from: usize,
        texts: Vec<String>,
    },
    Removed {
        documents: usize,
    },
    /// `dense`: the question had a direction; else words alone were looked for, for this reason.
    Found {
        passages: Vec<Found>,
        no_vectors: Option<String>,
    },
    Collections(Vec<ListedCollection>),
    Collection {
        collection: Arc<Collection>,
    },
    RemovedCollection {
        id: CollectionId,
        documents: usize,
    },
}

/// What people have told the daemon to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taught {
    Lessons,
    Documents,
}

impl From<DocumentError> for ServiceError {
    fn from(error: DocumentError) -> Self {
        let message = error.to_string();
        match error {
            DocumentError::Invalid { param, .. } => ServiceError::Invalid { message, param: Some(param.to_owned()) },
            DocumentError::Unreadable(ReadError::Unknown { .. }) => {
                ServiceError::Invalid { message, param: Some("name".to_owned()) }
            }
            DocumentError::Unreadable(ReadError::NoReader(_)) => {
                ServiceError::Unavailable { message, retry_after_s: 10 }
            }
            DocumentError::Unreadable(_) => ServiceError::Invalid { message, param: None },
            DocumentError::Unknown(_) | DocumentError::NoCollection(_) => ServiceError::NotFound(message),
            DocumentError::Full(_) => ServiceError::Conflict(message),
            DocumentError::Disk(_) => ServiceError::Unavailable { message, retry_after_s: 10 },
            DocumentError::Closed(_) => ServiceError::Internal(message),
        }
    }
}
