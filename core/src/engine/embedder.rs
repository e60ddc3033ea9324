//! What a file's header says of an embedding model: whether it is one, how its vectors come about, how much it reads.
//! The engine hosts it by the library; the daemon asks here before it starts one.

use std::path::Path;

use crate::gguf::Gguf;

/// The architecture of a table of token vectors, which needs no engine.
pub const TABLE: &str = "static-embedding";

/// Tokens of a text that are read where nobody says otherwise: the library's buffers grow with the square of them.
pub const TOKENS_DEFAULT: usize = 2_048;

/// What makes one vector of those of a text's tokens (`pooling_type`, by the library's numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first.
    Cls,
    /// That of the last.
    Last,
}

impl Pooling {
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
        }
    }
}

/// An embedding model as its header describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedderFacts {
    /// `general.name`, or the file's stem.
    pub name: String,
    pub architecture: String,
    /// Values of a vector.
    pub width: usize,
    /// Positions that it was trained for: beyond them it has none.
    pub trained_tokens: usize,
    pub pooling: Pooling,
}

fn number(gguf: &Gguf, key: &str) -> Option<u64> {
    gguf.optional(&format!("{}.{key}", gguf.architecture().ok()?)).ok().flatten()
}

/// Whether every position sees only what stands before it.
pub(super) fn causal(gguf: &Gguf) -> bool {
    let architecture = gguf.architecture().unwrap_or_default();
    gguf.optional(&format!("{architecture}.attention.causal")).ok().flatten() != Some(false)
}

/// Whether the file is of a model that embeds and does not write: one that reads in both directions, or whose vectors
/// are pooled.
pub fn embeds(gguf: &Gguf) -> bool {
    !causal(gguf) || number(gguf, "pooling_type").is_some_and(|kind| kind != 0)
}

/// How its vectors are pooled, or why none come of it.
pub(super) fn pooling(gguf: &Gguf) -> Result<Pooling, String> {
    match number(gguf, "pooling_type") {
        Some(1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::Cls),
        Some(3) => Ok(Pooling::Last),
        Some(4) => Err("it is a reranker, which gives no vectors".to_owned()),
        None | Some(0) if embeds(gguf) => {
            Err("its file does not say how the vectors of a text's tokens become one (`pooling_type`)".to_owned())
        }
        None | Some(0) => Err("it writes text and gives no vectors: its file has no `pooling_type`".to_owned()),
        Some(other) => Err(format!("its `pooling_type` {other} is not known")),
    }
}

/// Reads the header of the file at `path`; an error says why it is no embedding model.
pub fn facts(gguf: &Gguf, path: &Path) -> Result<EmbedderFacts, String> {
    let architecture = gguf.architecture().map_err(|error| error.to_string())?.to_owned();
    let pooling = pooling(gguf)?;
    let named = |key: &str| number(gguf, key).ok_or_else(|| format!("`{architecture}.{key}` is missing"));
    let width = match number(gguf, "embedding_length_out").filter(|width| *width > 0) {
        Some(width) => width,
        None => named("embedding_length")?,
    };
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = gguf.optional::<&str>("general.name").ok().flatten().map_or_else(stem, str::to_owned);
    let trained_tokens = named("context_length")? as usize;
    Ok(EmbedderFacts { name, width: width as usize, trained_tokens, pooling, architecture })
}
