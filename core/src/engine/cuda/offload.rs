//! Experts beyond the card's memory. The first experts of every layer lie on the card for good, all others in pinned
//! memory of the host. Slots on the card hold those of the others that were used last. The device decides which expert
//! takes which slot (`kernels/offload.cu`), inside the recorded graph. Where slots run out, kernels read the host's
//! memory. The same kernels multiply by the same bytes wherever they lie, so no number depends on it.

use chimere_ffi::gpu::{Buffer, Device, GpuError};
use chimere_ffi::kernels::offload;

use super::CudaOptions;
use super::weights::{Experts, OnDevice};
use crate::engine::backend::Offloaded;
use crate::engine::model::weights::{Layer, Moe, Weights};
use crate::gguf::{Gguf, TensorInfo};

/// Share of the memory that is available on the host, in percent, that may be pinned where nothing is said.
const PINNED_PERCENT: u64 = 75;

/// How many experts of each layer lie where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// On the card for good: the first ones.
    pub(super) kept: usize,
    /// Slots on the card for all others, whose home is the host.
    pub(super) slots: usize,
}

impl Split {
    /// Experts of a layer that are on the card at once.
    pub(super) fn held(&self) -> usize {
        self.kept + self.slots
    }
}

/// Whether a tensor holds the routed experts of a layer.
pub(super) fn is_experts(t: &TensorInfo) -> bool {
    t.name.ends_with("_exps.weight")
}

/// Bytes of pinned memory that a model may have.
pub(super) fn pinned_max(options: &CudaOptions) -> u64 {
    match options.pinned_bytes_max {
        0 => available_bytes() / 100 * PINNED_PERCENT,
        bytes => bytes,
    }
}

/// Memory of this machine that can be had without swapping; 0 where the system does not say.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// The largest split whose experts on the card take at most `room` bytes and those on the host at most `pinned`, of
/// experts that take `all` bytes, `count` a layer. All of them are under the slots unless the host's memory is too small:
/// what is used often then comes to the card whichever it is.
pub(super) fn split(all: u64, count: usize, room: u64, pinned: u64) -> Option<Split> {
    let each = all / count as u64;
    let held = (room / each.max(1)).min(count as u64 - 1) as usize;
    let kept = (all.saturating_sub(pinned)).div_ceil(each.max(1)) as usize;
    (kept <= held).then(|| Split { kept, slots: held - kept })
}

/// Bytes of the tables of all layers.
pub(super) fn table_bytes(gguf: &Gguf, experts: usize) -> u64 {
    let layers = gguf.tensors().iter().filter(|t| t.name.ends_with(".ffn_down_exps.weight")).count() as u64;
    layers * (40 * experts as u64 + 512) + 8 * (experts as u64 + 4)
}

/// What one layer's kernels need beside the experts' bytes.
struct Tables {
    places: Buffer,
    slot_of: Buffer,
    holds: Buffer,
    used: Buffer,
    clock: Buffer,
}

/// The tables of all layers, those of the prediction block last.
pub(super) struct Tier {
    split: Split,
    layers: Vec<Tables>,
    moves: Buffer,
    counts: Buffer,
    /// Of one expert in one layer.
    expert_bytes: u64,
}

impl Tier {
    pub(super) fn new(d: &Device, w: &Weights<OnDevice>, experts: usize, split: Split) -> Result<Tier, GpuError> {
        let layers: Vec<_> = w.layers.iter().chain(w.mtp.as_ref().map(|m| &m.layer)).filter_map(Layer::moe).collect();
        let tables = |moe: &&Moe<OnDevice>| {
            let of = matrices(moe);
            let place = |e: usize| of.map(|m| m.home(e, split).unwrap_or_else(|| m.buffer.from(e * m.bytes)));
            let places: Vec<u8> = (0..experts).flat_map(place).flat_map(u64::to_ne_bytes).collect();
            let none = |count: usize| d.buffer(&offload::NONE.to_ne_bytes().repeat(count));
            Ok(Tables {
                places: d.buffer(&places)?,
                slot_of: none(experts)?,
                holds: none(split.slots.max(1))?,
                used: d.zeroed(8 * split.slots.max(1))?,
                clock: d.zeroed(8)?,
            })
        };
        Ok(Tier {
            split,
            expert_bytes: layers.first().map_or(0, |l| matrices(l).iter().map(|m| m.bytes as u64).sum()),
            layers: layers.iter().map(tables).collect::<Result<_, GpuError>>()?,
            moves: d.zeroed(4 * (1 + 2 * split.slots))?,
            counts: d.zeroed(24)?,
        })
    }

    /// Address of the table of places of layer `i`.
    pub(super) fn places(&self, i: usize) -> u64 {
        self.layers[i].places.at()
    }

    /// Brings the experts of a pass of `pairs` pairs; `start` as the routing left it.
    pub(super) fn bring(
        &self,
        d: &Device,
        (i, moe): (usize, &Moe<OnDevice>),
        (start, experts, pairs): (&Buffer, usize, usize),
    ) -> Result<(), GpuError> {
        let (t, of, Split { kept, slots }) = (&self.layers[i], matrices(moe), self.split);
        let a = offload::Offload {
            start: start.at(),
            places: t.places.at(),
            slot_of: t.slot_of.at(),
            holds: t.holds.at(),
            used: t.used.at(),
            clock: t.clock.at(),
            moves: self.moves.at(),
            counts: self.counts.at(),
            home: of.map(|m| m.home(kept, self.split).unwrap_or(0)),
            room: of.map(|m| m.buffer.from(kept * m.bytes)),
            bytes: of.map(|m| m.bytes as u64),
            experts: experts as u32,
            kept: kept as u32,
            slots: slots as u32,
            pad: 0,
        };
        offload::launch(d, &a, pairs)
    }

    pub(super) fn offloaded(&self) -> Result<Offloaded, GpuError> {
        let mut bytes = [0; 24];
        self.counts.read(0, &mut bytes)?;
        let [hits, misses, direct] = std::array::from_fn(|i| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
            u64::from_ne_bytes(word)
        });
        Ok(Offloaded { hits, misses, direct, moved_bytes: misses * self.expert_bytes })
    }
}

fn matrices(moe: &Moe<OnDevice>) -> [&Experts; 3] {
    [&moe.gate, &moe.up, &moe.down]
}

impl Experts {
    /// Address of expert `e` on the host, if that is its home.
    fn home(&self, e: usize, split: Split) -> Option<u64> {
        Some(self.home.as_ref()?.from(e.checked_sub(split.kept)? * self.bytes))
    }
}
