//! Checks that the parts of a vocabulary agree, because libllama reads several of them without looking. A type array
//! shorter than the tokens, or a token that occurs twice, aborts the process. So a file that fails here never
//! reaches it.

use std::collections::HashSet;

use super::TOKEN_BYTES_MAX;
use super::error::{Error, printable};
use super::read::Gguf;
use super::value::{Array, Strings, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// Checks the vocabulary of `gguf`, if it has one.
pub(super) fn check(gguf: &Gguf) -> Result<(), Error> {
    let Some(tokens) = gguf.optional::<&Strings>(TOKENS)? else {
        return check_without_tokens(gguf);
    };
    if tokens.is_empty() {
        return Err(Error::Vocabulary(format!("\"{TOKENS}\" is empty; a model needs tokens")));
    }
    check_tokens(tokens)?;
    check_types(gguf, tokens.len())?;
    check_scores(gguf, tokens.len())?;
    check_merges(gguf)?;
    check_ids(gguf, tokens.len() as u64)?;
    check_embedding(gguf, tokens.len() as u64)
}

/// Without tokens there must be nothing that refers to them.
fn check_without_tokens(gguf: &Gguf) -> Result<(), Error> {
    match [TYPES, SCORES, MERGES].into_iter().find(|key| gguf.get(key).is_some()) {
        Some(key) => Err(Error::Vocabulary(format!("\"{key}\" is there but \"{TOKENS}\" is missing"))),
        None => Ok(()),
    }
}

fn check_tokens(tokens: &Strings) -> Result<(), Error> {
    let mut seen = HashSet::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if token.len() > TOKEN_BYTES_MAX {
            let (len, max) = (token.len(), TOKEN_BYTES_MAX);
            return Err(Error::Vocabulary(format!("token {id} has {len} bytes, over the limit of {max}")));
        }
        if !seen.insert(token) {
            let token = printable(token);
            return Err(Error::Vocabulary(format!("token {id} \"{token}\" occurs twice; ids must be unique")));
        }
    }
    Ok(())
}

fn check_types(gguf: &Gguf, tokens: usize) -> Result<(), Error> {
    let Some(types) = gguf.optional::<&[i32]>(TYPES)? else {
        return Ok(());
    };
    same_length(TYPES, types.len(), tokens)?;
    match types.iter().position(|t| !(0..=6).contains(t)) {
        Some(id) => {
            let found = types[id];
            Err(Error::Vocabulary(format!("token {id} has the type {found}; 0 to 6 are known")))
        }
        None => Ok(()),
    }
}

fn check_scores(gguf: &Gguf, tokens: usize) -> Result<(), Error> {
    let scores = match gguf.get(SCORES) {
        None => return Ok(()),
        Some(Value::Array(Array::I32(scores))) => return same_length(SCORES, scores.len(), tokens),
        Some(_) => gguf.required::<&[f32]>(SCORES)?,
    };
    same_length(SCORES, scores.len(), tokens)?;
    match scores.iter().position(|s| s.is_nan()) {
        Some(id) => Err(Error::Vocabulary(format!("the score of token {id} is not a number"))),
        None => Ok(()),
    }
}

fn same_length(key: &str, found: usize, tokens: usize) -> Result<(), Error> {
    if found == tokens {
        return Ok(());
    }
    Err(Error::Vocabulary(format!("\"{key}\" has {found} entries for {tokens} tokens; they must be as many")))
}

/// A merge is two non-empty parts joined by a space. The first may start with a space character of
/// its own in vocabularies that do not escape it, so the search starts at the second byte.
fn check_merges(gguf: &Gguf) -> Result<(), Error> {
    let Some(merges) = gguf.optional::<&Strings>(MERGES)? else {
        return Ok(());
    };
    for (i, merge) in merges.iter().enumerate() {
        let cut = merge.bytes().skip(1).position(|b| b == b' ').map(|at| at + 1);
        if cut.is_none_or(|at| at + 1 >= merge.len()) {
            let merge = printable(merge);
            return Err(Error::Vocabulary(format!("merge {i} \"{merge}\" is not two parts joined by a space")));
        }
        if merge.len() > 2 * TOKEN_BYTES_MAX {
            let (len, max) = (merge.len(), 2 * TOKEN_BYTES_MAX);
            return Err(Error::Vocabulary(format!("merge {i} has {len} bytes, over the limit of {max}")));
        }
    }
    Ok(())
}

/// Every id that names a special token must exist.
fn check_ids(gguf: &Gguf, tokens: u64) -> Result<(), Error> {
    let is_id = |key: &str| key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
    for (key, _) in gguf.metadata().filter(|(key, _)| is_id(key)) {
        let id = gguf.required::<u64>(key)?;
        if id >= tokens {
            let key = printable(key);
            return Err(Error::Vocabulary(format!("\"{key}\" is {id} but there are only {tokens} tokens")));
        }
    }
    Ok(())
}

/// The embedding must have a row for each token, or a token would read beyond it.
fn check_embedding(gguf: &Gguf, tokens: u64) -> Result<(), Error> {
    for name in ["token_embd.weight", "output.weight"] {
        let Some(tensor) = gguf.find(name) else {
            continue;
        };
        if tensor.rows() < tokens {
            let rows = tensor.rows();
            return Err(Error::Vocabulary(format!("\"{name}\" has {rows} rows for {tokens} tokens")));
        }
    }
    Ok(())
}
