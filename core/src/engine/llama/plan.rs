//! What a model that the library hosts takes of the memory, and how long a context may be for it to fit. The library
//! allocates everything at once and fills it with zeros, so what does not fit must be found before.

use std::sync::Arc;

use chimere_ffi::ggml::llama::{Bytes, Context, ContextOptions, Model};

use crate::engine::backend::BackendError;

/// A context that nobody asked for is not made shorter than this.
const CONTEXT_TOKENS_MIN: usize = 1_024;
/// Positions of all sequences that the library is given.
const POSITIONS_MAX: usize = 1 << 24;
/// Left to the daemon, to what is kept of prompts, and to other programs.
const SPARE_BYTES: u64 = 256 << 20;

/// A context that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub context_tokens: usize,
    pub sequences: usize,
    pub bytes: Bytes,
}

/// Plans for `model`, which was loaded without its weights. With `free_choice` a context is made shorter until it takes
/// half of the memory at most.
pub(super) fn plan(
    model: &Arc<Model>,
    wanted: ContextOptions,
    free_choice: bool,
    available: Option<u64>,
) -> Result<Plan, BackendError> {
    let mut options = wanted;
    let first = bytes(model, options)?;
    let mut found = first;
    loop {
        if let Some(bytes) = found.filter(|bytes| fits(bytes, free_choice, available)) {
            if options.positions < wanted.positions {
                let (tokens, trained) = (options.positions, wanted.positions);
                tracing::info!(tokens, trained, "a shorter context than the model was trained for, for want of memory");
            }
            return Ok(Plan { context_tokens: options.positions, sequences: options.sequences, bytes });
        }
        if !free_choice || options.positions < 2 * CONTEXT_TOKENS_MIN {
            return Err(BackendError::Load(refusal(model, wanted, first, available)?));
        }
        options.positions /= 2;
        found = bytes(model, options)?;
    }
}

fn fits(bytes: &Bytes, free_choice: bool, available: Option<u64>) -> bool {
    let Some(available) = available else { return true };
    let half = bytes.caches + bytes.compute <= available / 2;
    bytes.total().saturating_add(SPARE_BYTES) <= available && (half || !free_choice)
}

/// What a context takes; `None`: it has more positions than the library bears.
fn bytes(model: &Arc<Model>, options: ContextOptions) -> Result<Option<Bytes>, BackendError> {
    if options.positions.saturating_mul(options.sequences) > POSITIONS_MAX {
        return Ok(None);
    }
    let context = Context::new(model, options).map_err(|e| BackendError::Load(e.to_string()))?;
    context.bytes().map(Some).map_err(|e| BackendError::Load(e.to_string()))
}

/// Says what does not fit and which setting to change.
fn refusal(
    model: &Arc<Model>,
    wanted: ContextOptions,
    first: Option<Bytes>,
    available: Option<u64>,
) -> Result<String, BackendError> {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let (sequences, positions) = (wanted.sequences, wanted.positions);
    let needs = match first {
        Some(bytes) => format!("takes {:.1} GB of memory", gb(bytes.total())),
        None => format!("has more than {POSITIONS_MAX} positions"),
    };
    let there = available.map_or_else(String::new, |bytes| format!(", and {:.1} GB are free", gb(bytes)));
    let said = format!("with {sequences} sequences of {positions} tokens the model {needs}{there}");
    let (mut shorter, mut room) = (wanted, None);
    while room.is_none() && shorter.positions >= 2 * 256 {
        shorter.positions /= 2;
        room = bytes(model, shorter)?.filter(|bytes| fits(bytes, false, available));
    }
    Ok(match room {
        Some(_) => format!(
            "{said}: set `engine.context_tokens` to {} or less, or `engine.sequences` to fewer",
            shorter.positions
        ),
        None => format!("{said}: it needs a machine with more memory"),
    })
}
