//! Documents: files that people gave the daemon, found again passage by passage. No actor, no HTTP, no clock.
//!
//! - [`Documents`]: the collections in use, their files, and every change of them. The files are the truth.
//! - [`read`]: the bytes of a file to text and blocks; [`apart`]: in a process of its own; [`chunk`]: blocks to passages.
//! - [`place`]: where a passage stands, as an address and in words.
//! - [`file`]: how a document lies on the disk.
//! - [`words`]: the words of a collection (BM25); [`vectors`]: the directions of a document's passages.
//! - [`search`]: both, fused by rank.
//! - [`folder`]: what lies in a folder of files.
//! - [`loose`]: the same search over texts that are kept nowhere.
//! - [`show`]: how the model is shown passages; [`cite`]: what of an answer stands on them.

pub mod apart;
mod chunk;
pub mod cite;
mod docx;
mod draft;
mod file;
pub mod folder;
mod html;
pub mod loose;
#[cfg(test)]
mod office_tests;
mod pdf;
pub mod place;
pub mod read;
#[cfg(test)]
mod samples;
mod search;
mod shelf;
pub mod show;
mod stop;
mod store;
#[cfg(test)]
mod tests;
mod vectors;
mod words;
mod xlsx;
mod zipped;

use serde::{Deserialize, Serialize};

pub use chunk::Chunk;
pub use draft::Draft;
pub use read::{KINDS, Kind, ReadError, Reading};
pub use search::{FUSED, Found, MODEL_WEIGHT, Query, Rank, Sought, TABLE_WEIGHT};
pub use store::{Added, Documents, FOLDER};
pub use vectors::Vectors;

/// All documents together, and their passages.
pub const DOCUMENTS_MAX: usize = 20_000;
pub const CHUNKS_MAX: usize = 200_000;
/// Of these a principal that is not the owner may have one part in so many.
pub const SHARE_OF_ONE: usize = 4;
/// Passages of one document.
pub const DOCUMENT_CHUNKS_MAX: usize = 40_000;
/// Bytes of a text that is read apart: more would make too many passages.
const TEXT_BYTES_MAX: usize = 64 << 20;
/// Largest file, unless the configuration says otherwise, and the most that it may say.
pub const FILE_BYTES_DEFAULT: u64 = 64 << 20;
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// Collections in all, and principals that one is shared with.
pub const COLLECTIONS_MAX: usize = 1_000;
pub const READERS_MAX: usize = 64;
/// Longest name of a file, and longest title, characters.
pub const NAME_CHARS_MAX: usize = 300;
/// Longest name of a collection, characters.
pub const COLLECTION_CHARS_MAX: usize = 64;
/// Longest question of a search, characters, and the most passages that it finds.
pub const QUERY_CHARS_MAX: usize = 4_000;
pub const K_MAX: usize = 100;
/// The collection of who names none.
pub const DEFAULT_COLLECTION: &str = "documents";
/// Among the readers of a collection: everybody.
pub const EVERYBODY: &str = "*";

/// Identifier of a document: time-ordered, shown to clients as `document-…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DocumentId(pub String);

/// Identifier of a collection: `collection-…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CollectionId(pub String);

/// Documents that the same people may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collection {
    pub id: CollectionId,
    /// Of all collections of its principal it alone has it.
    pub name: String,
    pub principal: String,
    /// Who may read it beside its principal; [`EVERYBODY`] among them: all.
    pub readers: Vec<String>,
    pub created_ms: i64,
}

impl Collection {
    pub fn read_by(&self, principal: &str) -> bool {
        self.principal == principal || self.readers.iter().any(|reader| reader == principal || reader == EVERYBODY)
    }
}

/// A document without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    pub id: DocumentId,
    pub collection: CollectionId,
    /// As it was given: of all documents of its collection it alone has it.
    pub name: String,
    pub title: String,
    pub media_type: String,
    /// Of the file that was given, in hexadecimal.
    pub sha256: String,
    /// Of the file that was given.
    pub bytes: u64,
    pub text_bytes: u64,
    /// Whose words it is indexed by, as an ISO 639-1 code; empty: none that is known.
    pub language: String,
    pub created_ms: i64,
    /// The document of this name before it. Where both are found on the disk, the older one goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<DocumentId>,
    /// Pages whose words are missing, for they could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_pages: Vec<u32>,
    pub chunks: Vec<Chunk>,
}

/// Why a document cannot be kept, found or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("{message}")]
    Invalid { param: &'static str, message: String },
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    #[error("there is no document {0}")]
    Unknown(String),
    #[error("there is no collection {0}")]
    NoCollection(String),
    #[error("{0}")]
    Full(String),
    #[error("the documents cannot be written: {0}")]
    Disk(String),
    /// Nothing is written before somebody looks at it.
    #[error("the documents are not in use: {0}")]
    Closed(String),
}

impl From<std::io::Error> for DocumentError {
    fn from(error: std::io::Error) -> Self {
        DocumentError::Disk(error.to_string())
    }
}
