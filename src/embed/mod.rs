//! Dense retrieval. No actor, no clock; files are read and written whole.
//!
//! - [`embedder`]: texts to vectors, by a table of token vectors ([`model`]) or by a model that an engine hosts.
//! - [`nearest`]: the nearest of many vectors.
//! - [`index`], [`show`]: the index of verified exchanges that a plan may show the model as examples.

pub mod embedder;
mod examples;
pub mod index;
pub mod model;
pub mod nearest;
pub mod show;
mod windows;

pub use embedder::Embedder;
pub use examples::Examples;
pub use index::{Example, Index};
pub use model::Static;
pub use nearest::Code;

/// Why texts cannot be embedded, or an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    #[error("cannot read or write {path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("the embedding model cannot be read: {0}")]
    Gguf(#[from] crate::gguf::Error),
    #[error("the file is no embedding model: {0}")]
    Model(String),
    #[error("the index is damaged ({0}): the next `reindex` makes it anew")]
    Damaged(&'static str),
    #[error("the index has format {0}, this version reads format 1: the next `reindex` makes it anew")]
    Format(u32),
}
