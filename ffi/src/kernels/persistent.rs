//! See `kernels/persistent.cu`: a pass of few rows as a list of steps that blocks go through together, the tiles of
//! weights that each block will read, and how its shared memory is divided.

use super::experts::Expert;
use super::matmul::Weight;
use super::{Args, Kernel, Packing, args, attention, embed, gdn};
use crate::gpu::{Device, GpuError, Together};

/// Rows of a pass.
pub const ROWS_MAX: usize = 8;
/// Experts of a row, the shared one not counted.
pub const USED_MAX: usize = 8;
/// Threads of a block.
pub const THREADS: u32 = 256;

/// Bytes of `Frame` and of `AttendScratch`, and of a dense step's sums.
const FRAME_BYTES: usize = 1_200;
const ATTEND_BYTES: usize = 8 * 256 * 4 + 64 * 264 * 2;
const SUMS_BYTES: usize = 4 * 8 * 4 * 32 * 4;
const PAYLOAD_WORDS: usize = 30;

args! {
    /// One matrix of a dense step.
    Part { weights: u64, out: u64, rows: u32, packing: u32, tile: u32, staged: u32 }
}

args! {
    /// Up to four products over the same inputs, normalised first where a norm is given.
    Dense {
        parts: [Part; 4],
        q: u64,
        side: u64,
        x: u64,
        norm: u64,
        inputs: u32,
        count: u32,
        tiles: u32,
        add: u32,
        eps: f32,
        pad: u32,
    }
}

args! {
    /// The experts that each row chooses; the shared one's gate and up are products of the step before.
    Experts {
        routed: Expert,
        shared: Expert,
        logits: u64,
        h: u64,
        gate: u64,
        up: u64,
        residual: u64,
        inputs: u32,
        used: u32,
        experts: u32,
        stride: u32,
    }
}

args! {
    /// A launch.
    Persist {
        stages: u64,
        items: u64,
        state: u64,
        stamps: u64,
        count: u32,
        rows: u32,
        spans: u32,
        items_max: u32,
        rows_bytes: u32,
        scratch_bytes: u32,
        ring_bytes: u32,
        pad: u32,
    }
}

/// What a step does, in the order of `StageKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Embed,
    Dense,
    Gdn,
    Cache,
    Attend,
    Join,
    Up,
    Down,
}

/// A tile of weights: address and bytes.
type Tile = (u64, usize);

/// The steps of a pass.
#[derive(Debug, Default)]
pub struct Program {
    steps: Vec<(Kind, [u64; PAYLOAD_WORDS])>,
    /// Of each dense step, the tiles of each part.
    tiles: Vec<(usize, [Vec<Tile>; 4])>,
    /// Widest row that a norm is made of, and widest inner row of an expert.
    width: usize,
    inner: usize,
}

/// How the shared memory of a block is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub items_max: usize,
    rows_bytes: usize,
    scratch_bytes: usize,
    pub ring_bytes: usize,
}

/// A program for so many blocks.
#[derive(Debug)]
pub struct Placed {
    pub layout: Layout,
    /// What `Persist::stages` and `Persist::items` point to.
    pub steps: Vec<u8>,
    pub items: Vec<u8>,
    pub kinds: Vec<Kind>,
}

fn payload(args: &impl Args) -> [u64; PAYLOAD_WORDS] {
    let mut words = [0; PAYLOAD_WORDS];
    for (word, bytes) in words.iter_mut().zip(args.bytes().chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(eight);
    }
    words
}

const _: () = assert!(size_of::<Dense>() <= 8 * PAYLOAD_WORDS && size_of::<Experts>() <= 8 * PAYLOAD_WORDS);
const _: () =
    assert!(size_of::<attention::Attend>() <= 8 * PAYLOAD_WORDS && size_of::<gdn::Gdn>() <= 8 * PAYLOAD_WORDS);

/// Tiles of a matrix, in order.
fn tiles(w: &Weight, inputs: usize) -> Vec<Tile> {
    let tile = w.packing.tile_rows();
    let one = |first: usize| match w.packing.is_float() {
        true => tile.min(w.rows - first) * inputs * w.packing.block_bytes(),
        false => inputs / w.packing.inputs() * w.packing.block_bytes(),
    };
    let mut at = w.at;
    let mut next = |first: usize| {
        let bytes = one(first);
        at += bytes as u64;
        (at - bytes as u64, bytes)
    };
    (0..w.rows).step_by(tile).map(&mut next).collect()
}

impl Program {
    fn push(&mut self, kind: Kind, args: &impl Args) {
        self.steps.push((kind, payload(args)));
    }

    pub fn embed(&mut self, a: &embed::Embed) {
        self.push(Kind::Embed, a);
    }

    pub fn gdn(&mut self, a: &gdn::Gdn) {
        self.push(Kind::Gdn, a);
    }

    pub fn attention(&mut self, cache: &attention::Cache, attend: &attention::Attend, join: &attention::Join) {
        self.push(Kind::Cache, cache);
        self.push(Kind::Attend, attend);
        self.push(Kind::Join, join);
    }

    /// out ← W·x or out += W·x for up to four matrices; `a` says of what.
    pub fn dense(&mut self, mut a: Dense, products: &[(Weight, u64)]) {
        let inputs = a.inputs as usize;
        let mut all: [Vec<Tile>; 4] = Default::default();
        for ((part, list), (w, out)) in a.parts.iter_mut().zip(&mut all).zip(products) {
            *list = tiles(w, inputs);
            let (rows, packing) = (w.rows as u32, w.packing as u32);
            *part = Part { weights: w.at, out: *out, rows, packing, tile: a.tiles, staged: 0 };
            a.tiles += list.len() as u32;
        }
        a.count = products.len().min(4) as u32;
        if a.norm != 0 {
            self.width = self.width.max(inputs);
        }
        self.tiles.push((self.steps.len(), all));
        self.push(Kind::Dense, &a);
    }

    /// The experts over the rows that the dense step before has normalised.
    pub fn experts(&mut self, a: &Experts) {
        self.inner = self.inner.max(a.stride as usize);
        self.push(Kind::Up, a);
        self.push(Kind::Down, a);
    }

    /// The division of so much shared memory, if it is enough.
    fn layout(&self, blocks: usize, shared_bytes: usize) -> Option<Layout> {
        let mut items = vec![0; blocks];
        for (_, parts) in &self.tiles {
            (0..parts.iter().map(Vec::len).sum()).for_each(|i: usize| items[i % blocks] += 1);
        }
        let items_max = (items.into_iter().max()? + 1_usize).next_multiple_of(2);
        let rows_bytes = (ROWS_MAX * self.width * 3 / 2).next_multiple_of(16);
        let down = 2 * 16 * 16 * 4 + 8 * self.inner * 3 / 2;
        let scratch_bytes = ATTEND_BYTES.max(rows_bytes + SUMS_BYTES).max(down).next_multiple_of(16);
        let ring_bytes = shared_bytes.checked_sub(FRAME_BYTES + 8 * items_max + scratch_bytes)? / 16 * 16;
        Some(Layout { items_max, rows_bytes, scratch_bytes, ring_bytes })
    }

    /// The program as `together` runs it; nothing where its blocks have too little shared memory.
    pub fn place(mut self, together: Together) -> Option<Placed> {
        let blocks = together.blocks as usize;
        let layout = self.layout(blocks, together.shared_bytes as usize)?;
        let mut lists = vec![vec![0_u64]; blocks];
        // What the ring can hold: sixteen bytes at a time, and an address with the number of these in one word.
        let fits =
            |t: &Tile| t.1 % 16 == 0 && t.0 % 16 == 0 && t.1 <= layout.ring_bytes && t.1 >> 20 == 0 && t.0 >> 48 == 0;
        for (step, parts) in &self.tiles {
            let mut tile = 0;
            for (i, part) in parts.iter().enumerate() {
                let staged = !part.is_empty() && part.iter().all(fits);
                for (at, bytes) in part {
                    if staged {
                        lists[tile % blocks].push(at | (*bytes as u64 / 16) << 48);
                    }
                    tile += 1;
                }
                // The second half of a part's last word.
                self.steps[*step].1[4 * i + 3] |= u64::from(staged) << 32;
            }
        }
        let mut items = Vec::with_capacity(8 * blocks * layout.items_max);
        for mut list in lists {
            list[0] = list.len() as u64 - 1;
            list.resize(layout.items_max, 0);
            items.extend(list.iter().flat_map(|word| word.to_ne_bytes()));
        }
        let kinds = self.steps.iter().map(|(kind, _)| *kind).collect();
        let mut steps = Vec::with_capacity(self.steps.len() * 8 * (PAYLOAD_WORDS + 1));
        for (kind, words) in &self.steps {
            steps.extend((*kind as u32).to_ne_bytes());
            steps.extend([0; 4]);
            steps.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }
        Some(Placed { layout, steps, items, kinds })
    }
}

impl Layout {
    /// The arguments of a launch, its addresses and rows left out.
    pub fn args(&self, steps: usize) -> Persist {
        Persist {
            count: steps as u32,
            items_max: self.items_max as u32,
            rows_bytes: self.rows_bytes as u32,
            scratch_bytes: self.scratch_bytes as u32,
            ring_bytes: self.ring_bytes as u32,
            ..Default::default()
        }
    }
}

/// Blocks that the card runs at the same time, and their shared memory; nothing where it cannot.
pub fn together(d: &Device) -> Result<Option<Together>, GpuError> {
    let both = [Kernel::DecodeOne, Kernel::DecodeFew].map(|kernel| d.together(kernel, THREADS));
    let [one, few] = both;
    let (Some(one), Some(few)) = (one?, few?) else { return Ok(None) };
    Ok(Some(Together { blocks: one.blocks.min(few.blocks), shared_bytes: one.shared_bytes.min(few.shared_bytes) }))
}

pub fn launch(d: &Device, a: &Persist, together: Together) -> Result<(), GpuError> {
    let kernel = if a.rows == 1 { Kernel::DecodeOne } else { Kernel::DecodeFew };
    d.launch_together(kernel, together, THREADS, a)
}

/// Whether rows of this packing can be multiplied by the experts' steps.
pub fn reaches(packing: Packing) -> bool {
    !packing.is_float()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(rows: usize) -> Program {
        let mut p = Program::default();
        let q5 = Weight { at: 0x1000, packing: Packing::Q5, rows };
        let floats = Weight { at: 0x900_0000, packing: Packing::F32, rows: 257 };
        p.dense(Dense { inputs: 2048, norm: 1, ..Default::default() }, &[(q5, 7), (floats, 8)]);
        p
    }

    #[test]
    fn every_tile_is_an_item_of_one_block_in_order() {
        let placed = program(100).place(Together { blocks: 5, shared_bytes: 110 << 10 }).unwrap();
        let words: Vec<u64> = placed.items.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        let lists: Vec<&[u64]> = words.chunks(placed.layout.items_max).collect();
        let mut found = Vec::new();
        for tile in 0..7 + 65 {
            let word = lists[tile % 5][1 + tile / 5];
            found.push((word & 0xffff_ffff_ffff, (word >> 48) * 16));
        }
        let packed = 8 * 2880;
        for (i, (at, bytes)) in found[..7].iter().enumerate() {
            assert_eq!((*at, *bytes), (0x1000 + i as u64 * packed, packed));
        }
        assert_eq!(found[7], (0x900_0000, 4 * 2048 * 4));
        assert_eq!(found[71], (0x900_0000 + 64 * 4 * 2048 * 4, 2048 * 4), "the last tile is one row");
        let counts: Vec<u64> = lists.iter().map(|l| l[0]).collect();
        assert_eq!(counts.iter().sum::<u64>(), 72);
    }

    #[test]
    fn what_the_ring_cannot_hold_is_read_where_it_lies() {
        let whole = program(100);
        let least = whole.layout(5, 1 << 20).unwrap();
        let shared = (1 << 20) - least.ring_bytes + 24_000;
        let placed = whole.place(Together { blocks: 5, shared_bytes: shared as u32 }).unwrap();
        let staged = |part: usize| placed.steps[8 + 32 * part + 28];
        assert_eq!((staged(0), staged(1)), (1, 0), "tiles of 23 KB fit, those of 32 KB do not");
        assert!(program(100).place(Together { blocks: 5, shared_bytes: 40 << 10 }).is_none());
    }
}
