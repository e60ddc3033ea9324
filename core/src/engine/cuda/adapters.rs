//! Adapters on the card: a room of fixed size that their factors lie in, a table of where, and the adapter of every
//! slot. All of it is taken when the model is loaded, and kernels find the factors of a row themselves. So recorded
//! graphs stay true whatever is loaded and dropped.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use chimere_ffi::gpu::{Buffer, Device, GpuError};
use chimere_ffi::kernels::Args;
use chimere_ffi::kernels::lora::{LowRank, NO_ADAPTER, RANK_MAX, Who};
use chimere_ffi::kernels::low::{self, Tiles};

use super::Cuda;
use super::weights::OnDevice;
use crate::engine::adapter::{self, Adapter, BaseModel, Factors, HEAD, TARGETS, block_of, target_of};
use crate::engine::backend::{AdapterId, Backend, BackendError};
use crate::engine::model::weights::{Layer, Mixer};
use crate::engine::protocol::ADAPTERS_MAX;
use crate::gguf::Gguf;

const _: () = assert!(RANK_MAX == adapter::RANK_MAX, "the kernels take every rank that a file may have");

/// Rank of the adapters that room is made for.
const STANDARD_RANK: usize = 16;
/// Factors begin at multiples of so many bytes.
const ALIGN: usize = 256;

/// Matrices of a layer, in the order of [`TARGETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Q,
    K,
    V,
    AttentionOut,
    Qkv,
    Z,
    Alpha,
    Beta,
    GdnOut,
    SharedGate,
    SharedUp,
    SharedDown,
    Gate,
    Up,
    Down,
}

impl Target {
    /// In their order.
    const ALL: [Target; TARGETS.len()] = [
        Target::Q,
        Target::K,
        Target::V,
        Target::AttentionOut,
        Target::Qkv,
        Target::Z,
        Target::Alpha,
        Target::Beta,
        Target::GdnOut,
        Target::SharedGate,
        Target::SharedUp,
        Target::SharedDown,
        Target::Gate,
        Target::Up,
        Target::Down,
    ];

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Which matrices are changed: a bit for each target of each layer, and in the last place whether the head is. Empty:
/// none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Touched(Vec<u16>);

impl Touched {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_nothing(&self) -> bool {
        self.0.iter().all(|bits| *bits == 0)
    }

    pub(super) fn at(&self, layer: usize, target: Target) -> bool {
        self.0.get(layer).is_some_and(|bits| bits & target.bit() != 0)
    }

    pub(super) fn any(&self, layer: usize, targets: &[Target]) -> bool {
        targets.iter().any(|t| self.at(layer, *t))
    }

    pub(super) fn head(&self) -> bool {
        self.0.last().is_some_and(|bits| *bits != 0)
    }

    pub(super) fn join(&mut self, other: &Touched) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
}

/// What the adapters of a pass change: by factors of floats, whose additions are launches of their own, and by factors in tiles,
/// which the products have in them. Of the latter, how many adapters there may be and tiles of sixteen of their largest rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Changed {
    pub(super) floats: Touched,
    pub(super) tiles: Touched,
    pub(super) groups: usize,
    pub(super) ranks: usize,
}

/// Whether an adapter's factors of this matrix are kept in tiles of halves: those that a night trains, where the products that they
/// are added to are on tensor cores.
pub(super) fn in_tiles(layer: &Layer<OnDevice>, target: Target) -> bool {
    let experts = || {
        let moe = layer.moe()?;
        let routed = [moe.gate.packing, moe.up.packing, moe.down.packing];
        Some(routed.into_iter().chain([&moe.shared_gate, &moe.shared_up, &moe.shared_down].map(|w| w.packing)))
    };
    let matrix = match (target, &layer.mixer) {
        (Target::Q, Mixer::Attention(w)) => &w.q,
        (Target::K, Mixer::Attention(w)) => &w.k,
        (Target::V, Mixer::Attention(w)) => &w.v,
        (Target::AttentionOut, Mixer::Attention(w)) => &w.out,
        (Target::Qkv, Mixer::Gdn(w)) => &w.qkv,
        (Target::Z, Mixer::Gdn(w)) => &w.gate,
        (Target::GdnOut, Mixer::Gdn(w)) => &w.out,
        (Target::SharedGate | Target::SharedUp | Target::SharedDown, _) => {
            return experts().is_some_and(|mut all| all.all(|packing| !packing.is_float()));
        }
        _ => return false,
    };
    !matrix.packing.is_float()
}

/// Bytes of an adapter of the usual kind, in floats: every mixer and shared expert, at [`STANDARD_RANK`].
pub(super) fn standard_bytes(gguf: &Gguf) -> usize {
    let base = BaseModel::new(gguf, "");
    let usual = base.matrices().filter(|(name, shape)| shape.experts == 1 && *name != HEAD);
    usual.map(|(_, shape)| 4 * shape.parameters(STANDARD_RANK) + 2 * ALIGN).sum()
}

/// Places of a table row: the targets of every layer, then the head.
fn places(layers: usize) -> usize {
    layers * TARGETS.len() + 1
}

/// Adapters that can lie on the card at once: the named ones, and one for each sequence, twice over.
fn slots(sequences: usize) -> usize {
    ADAPTERS_MAX + 2 * sequences
}

/// Bytes of the tables and of the list of slots.
pub(super) fn table_bytes(layers: usize, sequences: usize) -> usize {
    slots(sequences) * places(layers) * (size_of::<LowRank>() + size_of::<Tiles>()) + 4 * sequences
}

/// What is free of the room.
struct Shelf {
    /// In order, never touching.
    free: Vec<Range<usize>>,
    taken: Vec<bool>,
}

impl Shelf {
    fn new(bytes: usize, slots: usize) -> Shelf {
        Shelf { free: (bytes > 0).then_some(0..bytes).into_iter().collect(), taken: vec![false; slots] }
    }

    /// The first place that fits, and a row of the table.
    fn take(&mut self, bytes: usize) -> Option<(usize, Range<usize>)> {
        let slot = self.taken.iter().position(|t| !t)?;
        let at = self.free.iter().position(|f| f.len() >= bytes)?;
        let range = self.free[at].start..self.free[at].start + bytes;
        self.free[at].start = range.end;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        self.taken[slot] = true;
        Some((slot, range))
    }

    fn give(&mut self, slot: usize, range: Range<usize>) {
        self.taken[slot] = false;
        let at = self.free.partition_point(|f| f.start < range.start);
        self.free.insert(at, range);
        if self.free.get(at + 1).is_some_and(|next| next.start == self.free[at].end) {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }

    fn largest(&self) -> usize {
        self.free.iter().map(Range::len).max().unwrap_or(0)
    }
}

/// The place of one adapter, given back when nobody uses it any more.
pub(super) struct Held {
    slot: usize,
    range: Range<usize>,
    /// What it changes by factors of floats, and in tiles; tiles of its rank.
    floats: Touched,
    tiles: Touched,
    ranks: usize,
    shelf: Arc<Mutex<Shelf>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).give(self.slot, self.range.clone());
    }
}

/// All adapters of a model.
pub(super) struct Adapters {
    room: Buffer,
    /// [slots][places] of [`LowRank`], and of [`Tiles`].
    table: Buffer,
    tiles: Buffer,
    /// Of every sequence's slot, and what was last written there.
    under: Buffer,
    said: Vec<u32>,
    shelf: Arc<Mutex<Shelf>>,
    loaded: Vec<(AdapterId, Arc<Held>)>,
    next: u32,
    layers: usize,
}

impl Adapters {
    /// Room of `bytes` for the adapters of a model of `layers` main layers.
    pub(super) fn new(d: &Device, layers: usize, sequences: usize, bytes: usize) -> Result<Adapters, GpuError> {
        let (slots, said) = (slots(sequences), vec![NO_ADAPTER; sequences]);
        let under = d.allocate(4 * sequences)?;
        under.write_u32(0, &said)?;
        Ok(Adapters {
            room: d.allocate(bytes)?,
            table: d.zeroed(slots * places(layers) * size_of::<LowRank>())?,
            tiles: d.zeroed(slots * places(layers) * size_of::<Tiles>())?,
            under,
            said,
            shelf: Arc::new(Mutex::new(Shelf::new(bytes, slots))),
            loaded: Vec::new(),
            next: 0,
            layers,
        })
    }

    /// `in_tiles`: which matrices' factors may be rounded to halves.
    pub(super) fn load(
        &mut self,
        adapter: &Adapter,
        in_tiles: impl Fn(usize, Target) -> bool,
    ) -> Result<AdapterId, BackendError> {
        let nothing = || Touched(vec![0; self.layers + 1]);
        let (mut in_floats, mut tiled, mut values) = (nothing(), nothing(), Vec::new());
        let mut entries = vec![LowRank::default(); places(self.layers)];
        let mut tiles = vec![Tiles::default(); places(self.layers)];
        for factors in &adapter.factors {
            let (layer, target) = place(factors, self.layers)
                .map_err(|reason| BackendError::Adapter(format!("\"{}\": {reason}", factors.tensor)))?;
            let place = layer * TARGETS.len() + target.map_or(0, |t| t as usize);
            let (bit, scale) = (target.map_or(1, Target::bit), adapter.scale());
            let packed = || low::packed(&factors.a, &factors.b, adapter.rank, scale);
            // Offsets in the room, until it is known where in the room they lie.
            if let Some(p) = target.filter(|t| in_tiles(layer, *t)).and_then(|_| packed()) {
                tiled.0[layer] |= bit;
                let (a, b) = (put(&mut values, &p.a), put(&mut values, &p.b));
                tiles[place] = Tiles { a, b, rank: p.rank, unit: p.unit };
            } else {
                in_floats.0[layer] |= bit;
                let bytes =
                    |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
                let a = put(&mut values, &bytes(&mut factors.a.iter().copied()));
                let b = put(&mut values, &bytes(&mut turned(factors, adapter.rank)));
                entries[place] = LowRank { a, b, rank: adapter.rank as u32, scale };
            }
        }
        let needed = values.len();
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((slot, range)) = shelf.take(needed) else {
            return Err(BackendError::AdapterRoom { needed, free: shelf.largest(), room: self.room.len() });
        };
        drop(shelf);
        let ranks = low::rank_tiles(adapter.rank);
        let held = Held { slot, range, floats: in_floats, tiles: tiled, ranks, shelf: Arc::clone(&self.shelf) };
        let start = self.room.from(held.range.start);
        for entry in entries.iter_mut().filter(|e| e.rank > 0) {
            (entry.a, entry.b) = (entry.a + start, entry.b + start);
        }
        for entry in tiles.iter_mut().filter(|e| e.rank > 0) {
            (entry.a, entry.b) = (entry.a + start, entry.b + start);
        }
        let entries: Vec<u8> = entries.iter().flat_map(|e| e.bytes().to_vec()).collect();
        let tiles: Vec<u8> = tiles.iter().flat_map(|e| e.bytes().to_vec()).collect();
        let write = || {
            self.room.write(held.range.start, &values)?;
            self.tiles.write(held.slot * tiles.len(), &tiles)?;
            self.table.write(held.slot * entries.len(), &entries)
        };
        write().map_err(super::unusable)?;
        let id = AdapterId(self.next);
        self.next = self.next.wrapping_add(1);
        self.loaded.push((id, Arc::new(held)));
        Ok(id)
    }

    pub(super) fn discard(&mut self, adapter: AdapterId) {
        self.loaded.retain(|(id, _)| *id != adapter);
    }

    pub(super) fn find(&self, adapter: AdapterId) -> Option<Arc<Held>> {
        self.loaded.iter().find(|(id, _)| *id == adapter).map(|(_, held)| Arc::clone(held))
    }

    /// Says on the device whose adapter the sequence in `slot` is under.
    pub(super) fn seat(&mut self, slot: usize, held: Option<&Arc<Held>>) -> Result<(), GpuError> {
        let index = held.map_or(NO_ADAPTER, |h| h.slot as u32);
        if self.said[slot] != index {
            self.under.write_u32(slot, &[index])?;
            self.said[slot] = index;
        }
        Ok(())
    }

    /// As the kernels are told of it; `slot` and `rows` lie in the plan of a pass.
    pub(super) fn who(&self, slot: u64, rows: u64) -> Who {
        let places = places(self.layers) as u32;
        Who { factors: self.table.at(), adapter: self.under.at(), slot, rows, places, pad: 0 }
    }

    /// What launches over rows under adapters in tiles have in common; `adapter`, `group` and `rows` lie in the plan of a pass.
    pub(super) fn low(&self, changed: &Changed, adapter: u64, group: u64, rows: u64) -> low::Low {
        low::Low {
            tiles: self.tiles.at(),
            adapter,
            group,
            rows,
            places: places(self.layers) as u32,
            groups: changed.groups as u32,
            ranks: changed.ranks as u32,
            of: [low::NONE; low::PARTS_MAX],
            ..Default::default()
        }
    }

    /// Place of a layer's matrix in a row of the table.
    pub(super) fn place(layer: usize, target: Target) -> u32 {
        (layer * TARGETS.len() + target as usize) as u32
    }

    pub(super) fn head_place(&self) -> u32 {
        places(self.layers) as u32 - 1
    }
}

impl Cuda {
    /// Puts every sequence that is opened from now on under one of these, in turn: for measurements.
    pub fn always(&mut self, adapters: &[Adapter]) -> Result<(), BackendError> {
        for adapter in adapters {
            let id = self.load_adapter(adapter)?;
            self.always.extend(self.adapters.find(id));
        }
        Ok(())
    }

    /// What the adapters of these slots change.
    pub(super) fn changed(&self, slots: impl Iterator<Item = usize>) -> Changed {
        let (mut all, mut adapters) = (Changed::default(), Vec::new());
        for held in slots.filter_map(|slot| self.slots.state(slot).adapter.as_ref()) {
            all.floats.join(&held.floats);
            if held.in_tiles() && !adapters.contains(&held.slot) {
                adapters.push(held.slot);
                all.tiles.join(&held.tiles);
                all.ranks = all.ranks.max(held.ranks);
            }
        }
        // Few numbers of them, so that few shapes are recorded.
        all.groups = if adapters.is_empty() { 0 } else { adapters.len().next_power_of_two() };
        if all.floats.is_nothing() { Changed { floats: Touched::default(), ..all } } else { all }
    }

    /// Tells a plan, whose lists are `t` words long, which of its rows are under the same adapter in tiles.
    pub(super) fn groups(&self, plan: &mut [u32], t: usize, rows: usize) {
        let mut adapters = Vec::new();
        plan[8 * t..10 * t].fill(low::NONE);
        for row in 0..rows {
            let held = self.slots.state(plan[t + row] as usize).adapter.as_ref();
            let Some(held) = held.filter(|held| held.in_tiles()) else { continue };
            let known = adapters.iter().position(|slot| *slot == held.slot);
            let group = known.unwrap_or(adapters.len());
            if known.is_none() {
                adapters.push(held.slot);
                plan[9 * t + group] = held.slot as u32;
            }
            plan[8 * t + row] = group as u32;
        }
    }
}

impl Held {
    fn in_tiles(&self) -> bool {
        !self.tiles.is_nothing()
    }
}

/// Layer and target of a matrix; the head lies behind the layers and has no target.
fn place(factors: &Factors, layers: usize) -> Result<(usize, Option<Target>), &'static str> {
    if factors.tensor == HEAD {
        return Ok((layers, None));
    }
    let layer = block_of(&factors.tensor).filter(|i| *i < layers).ok_or("the model has no such layer")?;
    let target = target_of(&factors.tensor).unwrap_or_default();
    let target = TARGETS.iter().position(|t| *t == target).ok_or("this matrix takes no adapter")?;
    Ok((layer, Some(Target::ALL[target])))
}

/// Appends bytes at a whole multiple of [`ALIGN`]; where they begin.
fn put(values: &mut Vec<u8>, new: &[u8]) -> u64 {
    values.resize(values.len().next_multiple_of(ALIGN), 0);
    let start = values.len() as u64;
    values.extend_from_slice(new);
    values.resize(values.len().next_multiple_of(ALIGN), 0);
    start
}

/// B [experts][outputs][rank] as [experts][rank][outputs]: neighbouring threads read neighbouring outputs.
fn turned(f: &Factors, rank: usize) -> impl Iterator<Item = f32> + '_ {
    let outputs = f.shape.outputs;
    let one =
        move |b: &[f32]| -> Vec<f32> { (0..rank).flat_map(|r| b.iter().skip(r).step_by(rank).copied()).collect() };
    f.b.chunks_exact(rank * outputs).flat_map(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_in_the_order_of_their_names() {
        use Target::*;
        let named = [
            (Q, "attn_q"),
            (K, "attn_k"),
            (V, "attn_v"),
            (AttentionOut, "attn_output"),
            (Qkv, "attn_qkv"),
            (Z, "attn_gate"),
            (Alpha, "ssm_alpha"),
            (Beta, "ssm_beta"),
            (GdnOut, "ssm_out"),
            (SharedGate, "ffn_gate_shexp"),
            (SharedUp, "ffn_up_shexp"),
            (SharedDown, "ffn_down_shexp"),
            (Gate, "ffn_gate_exps"),
            (Up, "ffn_up_exps"),
            (Down, "ffn_down_exps"),
        ];
        assert_eq!(named.len(), TARGETS.len());
        assert!(named.iter().all(|(target, name)| TARGETS[*target as usize] == *name));
        assert!(named.iter().zip(Target::ALL).all(|((named, _), listed)| *named == listed));
    }

    #[test]
    fn what_is_given_back_can_be_taken_whole() {
        let mut shelf = Shelf::new(1000, 8);
        let taken: Vec<_> = [300, 200, 400].iter().map(|n| shelf.take(*n).unwrap()).collect();
        assert_eq!((shelf.largest(), shelf.take(101).is_none()), (100, true));
        for i in [1, 0, 2] {
            let (slot, range) = taken[i].clone();
            shelf.give(slot, range);
        }
        assert_eq!((shelf.free.len(), shelf.free[0].clone()), (1, 0..1000));
        let (slot, range) = shelf.take(1000).unwrap();
        assert_eq!((slot, range, shelf.largest()), (0, 0..1000, 0));
        assert!(shelf.take(1).is_none());
        let mut narrow = Shelf::new(1000, 1);
        assert!(narrow.take(10).is_some() && narrow.take(10).is_none(), "a row of the table each");
    }
}
