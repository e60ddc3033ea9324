//! See `kernels/sample.cu`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

args! {
    /// The most probable token becomes the next one.
    Argmax {
        logits: u64,
        largest: u64,
        token: u64,
        position: u64,
        history: u64,
        step: u64,
        vocab: u32,
        steps_max: u32,
    }
}

args! {
    /// The largest logits of rows.
    Likely {
        logits: u64,
        temperature: u64,
        maxes: u64,
        sums: u64,
        list: u64,
        vocab: u32,
        pad: u32,
    }
}

/// Groups into which a row is cut.
pub const GROUPS: usize = 1024;
/// Words of the largest logits of a row's groups, each with its index.
pub const LARGEST_WORDS: usize = 2 * GROUPS;
/// Logits of a row that are found at least, of those that it has.
pub const LIKELY: usize = 128;
/// And those that are written at most.
pub const LISTED_MAX: usize = 512;
/// Words of a row's list.
pub const LIST_WORDS: usize = 4 + 2 * LISTED_MAX;
/// Logits that a block looks at, and blocks of a row at most.
const COLLECTED: usize = 4096;
const COLLECT_BLOCKS_MAX: usize = 64;

/// The largest logits of a row, as the device found them.
#[derive(Clone, Debug, PartialEq)]
pub struct Largest {
    /// Tokens and logits, tokens ascending. Empty where too many are equal.
    pub candidates: Vec<(u32, f32)>,
    /// What no other logit of the row reaches; +inf where nothing is known of them.
    pub floor: f32,
    /// Sum of e^((logit − maximum) / temperature) over the row.
    pub total: f32,
}

impl Largest {
    /// Of a list that the device wrote.
    pub fn read(list: &[u32; LIST_WORDS]) -> Largest {
        let [count, bound, total, _, rest @ ..] = list;
        let (count, total) = (*count as usize, f32::from_bits(*total));
        if count > LISTED_MAX {
            return Largest { candidates: Vec::new(), floor: f32::INFINITY, total };
        }
        let (ids, logits) = rest.split_at(LISTED_MAX);
        let found = ids.iter().zip(logits).take(count);
        let mut candidates: Vec<_> = found.map(|(id, logit)| (*id, f32::from_bits(*logit))).collect();
        candidates.sort_unstable_by_key(|(id, _)| *id);
        Largest { candidates, floor: of_key(*bound), total }
    }
}

/// The float of a key of `kernels/sample.cu`, −inf of what is below all of them.
fn of_key(key: u32) -> f32 {
    let float = f32::from_bits(if key >> 31 == 1 { key ^ 1 << 31 } else { !key });
    if float.is_nan() { f32::NEG_INFINITY } else { float }
}

/// Finds the largest logits of `rows` rows.
pub fn likely(d: &Device, a: &Likely, rows: usize) -> Result<(), GpuError> {
    let blocks = (a.vocab as usize).div_ceil(COLLECTED).min(COLLECT_BLOCKS_MAX) as u32;
    d.launch(Kernel::LikelyMax, [GROUPS as u32 / 8, rows as u32, 1], 256, a)?;
    d.launch(Kernel::LikelyCollect, [blocks, rows as u32, 1], GROUPS as u32, a)
}

/// Takes the most probable token of `rows` rows; `largest` has room for [`LARGEST_WORDS`] of each.
pub fn argmax(d: &Device, a: &Argmax, rows: usize) -> Result<(), GpuError> {
    d.launch(Kernel::ArgmaxGroups, [GROUPS as u32 / 8, rows as u32, 1], 256, a)?;
    d.launch(Kernel::Argmax, [rows as u32, 1, 1], GROUPS as u32, a)
}
