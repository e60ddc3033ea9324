//! A file that was read, before it is a document of a collection.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::chunk::{self, Chunk};
use super::read::{self, ReadError, Reading};
use super::{CollectionId, Document, DocumentError, DocumentId, NAME_CHARS_MAX, Vectors, apart, stop, words};

/// A document that is to be kept, read already.
#[derive(Clone, Debug)]
pub struct Draft {
    pub principal: String,
    pub by_owner: bool,
    pub collection: Option<String>,
    pub name: String,
    pub title: String,
    pub media_type: &'static str,
    pub sha256: String,
    pub bytes: u64,
    pub text: String,
    pub language: &'static str,
    pub chunks: Vec<Chunk>,
    pub unread_pages: Vec<u32>,
    /// Absent: they are made later.
    pub vectors: Option<Vectors>,
}

impl Draft {
    /// Reads a file, by `program` where its kind is read apart. No passage of it is embedded yet.
    pub fn read(name: &str, media_type: Option<&str>, bytes: &[u8], program: &Path) -> Result<Draft, DocumentError> {
        let (kind, media_type) = read::kind(name, media_type)?;
        Draft::of(name, kind, media_type, bytes, apart::read(program, kind, bytes)?)
    }

    /// Reads a text in this process. A kind that is read apart is refused.
    pub fn read_here(name: &str, media_type: &str, bytes: &[u8]) -> Result<Draft, DocumentError> {
        let (kind, media_type) = read::kind(name, Some(media_type))?;
        if kind.is_read_apart() {
            return Err(ReadError::Binary.into());
        }
        Draft::of(name, kind, media_type, bytes, read::read(kind, bytes)?)
    }

    fn of(
        name: &str,
        kind: read::Kind,
        media_type: &'static str,
        bytes: &[u8],
        reading: Reading,
    ) -> Result<Draft, DocumentError> {
        let chunks = chunk::chunks(&reading)?;
        if chunks.is_empty() {
            return Err(ReadError::NoText.into());
        }
        let language = if kind == read::Kind::Source { "" } else { stop::language(&reading.text) };
        let file = name.rsplit(['/', '\\']).next().unwrap_or(name);
        Ok(Draft {
            principal: String::new(),
            by_owner: false,
            collection: None,
            name: name.to_owned(),
            title: reading.title.unwrap_or_else(|| file.to_owned()).chars().take(NAME_CHARS_MAX).collect(),
            media_type,
            sha256: Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: bytes.len() as u64,
            text: reading.text,
            language,
            chunks,
            unread_pages: reading.unread_pages,
            vectors: None,
        })
    }

    /// The texts that its passages are found by.
    pub fn passages(&self) -> Vec<String> {
        let document = self.document(DocumentId(String::new()), CollectionId(String::new()), 0, None);
        passages(&document, &self.text)
    }

    pub(super) fn document(
        &self,
        id: DocumentId,
        collection: CollectionId,
        created_ms: i64,
        replaces: Option<DocumentId>,
    ) -> Document {
        Document {
            id,
            collection,
            name: self.name.clone(),
            title: self.title.clone(),
            media_type: self.media_type.to_owned(),
            sha256: self.sha256.clone(),
            bytes: self.bytes,
            text_bytes: self.text.len() as u64,
            language: self.language.to_owned(),
            created_ms,
            replaces,
            unread_pages: self.unread_pages.clone(),
            chunks: self.chunks.clone(),
        }
    }
}

/// The texts that a document's passages are found by.
pub(super) fn passages(document: &Document, text: &str) -> Vec<String> {
    let of = |(n, chunk): (usize, &Chunk)| words::indexed(document, n, words::text_of(text, chunk.start, chunk.end));
    document.chunks.iter().enumerate().map(of).collect()
}
