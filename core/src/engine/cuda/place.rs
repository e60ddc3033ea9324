//! The plan of a card's memory, made from a file's header before anything is allocated.

use super::adapters::standard_bytes;
use super::memory::{Placement, Sizes};
use super::offload::{Split, pinned_max, split, table_bytes};
use super::weights::{own_embedding_bytes, packed_bytes};
use super::{ADAPTERS, CONTEXT_TOKENS_MIN, CudaOptions, ROWS_MAX, SHORT_ROWS_MAX, read};
use crate::engine::backend::BackendError;
use crate::engine::model::{HParams, ModelError};
use crate::gguf::Gguf;

/// Longest context that is tried for a model whose experts do not fit, where nobody said how long it must be.
const OFFLOAD_CONTEXT_TOKENS: usize = 65_536;
/// Experts on the card, in percent, below which such a context is cut shorter.
const RESIDENT_PERCENT: u64 = 50;

/// How a model of this header would be placed on a card with `options.memory_bytes_max` free; no card is needed.
pub fn plan(gguf: &Gguf, options: &CudaOptions) -> Result<Placement, BackendError> {
    let cannot = |e: ModelError| BackendError::Load(e.to_string());
    let hp = read(gguf, options).map_err(cannot)?;
    place(options.memory_bytes_max, gguf, &hp, options).map(|(_, placement)| placement)
}

/// Sizes that fit, and how they divide the memory: all experts on the card where they fit, else as many as do.
pub(super) fn place(
    free: u64,
    gguf: &Gguf,
    hp: &HParams,
    options: &CudaOptions,
) -> Result<(Sizes, Placement), BackendError> {
    let limit = if options.memory_bytes_max == 0 { free } else { free.min(options.memory_bytes_max) };
    let bytes = packed_bytes(gguf, hp);
    match resident(limit, bytes, (gguf, hp), options) {
        Ok(found) => Ok(found),
        Err(needed) => divided(limit, bytes, (gguf, hp), options, &needed),
    }
}

/// Bytes of the embedding, if it may leave the card: the head does not share it, and the memory that may be pinned has room
/// for it beside `others`.
fn movable(gguf: &Gguf, options: &CudaOptions, others: u64) -> u64 {
    let bytes = own_embedding_bytes(gguf);
    if bytes + others <= pinned_max(options) { bytes } else { 0 }
}

/// Everything on the card, but the embedding where room is short. Where nobody said how long a context must be, it is cut to what fits. The error: what is needed
/// at least.
fn resident(
    limit: u64,
    bytes: (u64, u64),
    (gguf, hp): (&Gguf, &HParams),
    options: &CudaOptions,
) -> Result<(Sizes, Placement), Box<Placement>> {
    let away = movable(gguf, options, 0);
    let mut options = options.clone();
    let free_choice = options.context_tokens == 0;
    let (plenty, least) = ADAPTERS;
    let none = if options.adapters { least } else { 0 };
    // What is given up first costs least.
    let tries = [
        (0, ROWS_MAX, plenty),
        (away, ROWS_MAX, plenty),
        (away, SHORT_ROWS_MAX, plenty),
        (away, SHORT_ROWS_MAX, least),
        (away, SHORT_ROWS_MAX, none),
    ];
    loop {
        let placed = tries.map(|(host_embedding, rows, adapters)| {
            let sizes = Sizes::new(hp, &options, rows, adapters * standard_bytes(gguf));
            let sizes = Sizes { host_embedding, ..sizes };
            (sizes, Placement::new(hp, &sizes, bytes, limit))
        });
        if let Some(found) = placed.iter().find(|(_, placement)| placement.total() <= limit) {
            return Ok(*found);
        }
        let (sizes, placement) = placed[tries.len() - 1];
        if !free_choice || sizes.context < 2 * CONTEXT_TOKENS_MIN {
            return Err(Box::new(placement));
        }
        options.context_tokens = sizes.context / 2;
    }
}

/// The experts divided between card and host; `needed`: what the model needs to be on the card as a whole.
fn divided(
    limit: u64,
    bytes: (u64, u64),
    (gguf, hp): (&Gguf, &HParams),
    options: &CudaOptions,
    needed: &Placement,
) -> Result<(Sizes, Placement), BackendError> {
    if hp.is_dense() {
        return Err(BackendError::Device(format!(
            "with {} sequences of {} tokens the model needs {needed}, and it has no experts that could lie on the host: choose \
             fewer sequences or a shorter context",
            needed.sequences, needed.context_tokens
        )));
    }
    let (count, host_embedding) = (hp.moe.experts, movable(gguf, options, bytes.0));
    let pinned = pinned_max(options) - host_embedding;
    let least = Split { kept: 0, slots: hp.moe.used.min(count - 1) };
    let mut options = options.clone();
    let free_choice = options.context_tokens == 0;
    if free_choice {
        options.context_tokens = hp.trained_context_tokens.min(OFFLOAD_CONTEXT_TOKENS);
    }
    let adapters = if options.adapters { ADAPTERS.1 * standard_bytes(gguf) } else { 0 };
    let percent = |split: &Split| split.held() as u64 * 100 / count as u64;
    loop {
        let placed = [ROWS_MAX, SHORT_ROWS_MAX].map(|rows| {
            let sizes = Sizes { split: Some(least), host_embedding, ..Sizes::new(hp, &options, rows, adapters) };
            let tables = table_bytes(gguf, count);
            let beside = Placement::new(hp, &sizes, (0, bytes.1), limit).total() + tables;
            let found = limit.checked_sub(beside).and_then(|room| split(bytes.0, count, room, pinned));
            Sizes { split: found, ..sizes }
        });
        let last = options.context_tokens < 2 * CONTEXT_TOKENS_MIN || !free_choice;
        let least_percent = options.resident_percent_min;
        let good = RESIDENT_PERCENT.max(least_percent);
        let wanted = if last { least_percent } else { good };
        let fits =
            |sizes: &Sizes, wanted| sizes.split.is_some_and(|s| s.held() >= least.held() && percent(&s) >= wanted);
        let found = placed.iter().find(|sizes| fits(sizes, good));
        if let Some(sizes) = found.or_else(|| placed.iter().rev().find(|sizes| fits(sizes, wanted))) {
            return Ok((*sizes, Placement::new(hp, sizes, bytes, limit)));
        }
        if last {
            let sizes = Sizes { split: Some(least), ..placed[1] };
            let least_bytes = Placement::new(hp, &sizes, bytes, limit).total();
            return Err(BackendError::Device(format!(
                "with {} sequences of {} tokens the model needs {needed}. With no more than {} experts of a layer there it \
                 needs {:.2} GiB; at least {} % of the experts must fit there, and the others into the {:.2} GiB of the \
                 host's memory that may be pinned: choose fewer sequences or a shorter context, or more of that memory \
                 (engine.pinned_bytes_max, --pinned-max)",
                sizes.sequences,
                sizes.context,
                least.slots,
                least_bytes as f64 / f64::from(1 << 30),
                least_percent,
                pinned as f64 / f64::from(1 << 30),
            )));
        }
        options.context_tokens /= 2;
    }
}
