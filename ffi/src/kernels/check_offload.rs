//! Experts that come to slots, against a plain list of who was used last.

use super::check::Finding;
use super::offload::{self, NONE, Offload};
use crate::gpu::{Buffer, Device, GpuError};
use crate::samples::Random;

const EXPERTS: usize = 40;
const KEPT: usize = 5;
const SLOTS: usize = 9;
/// Of a layer's three matrices: one is no multiple of what a block of threads copies, one larger than all of them copy at once.
const BYTES: [usize; 3] = [16, 4_112, 280_000];
const PASSES: usize = 60;

/// Who is in which slot, and when each was used.
struct Plain {
    slots: [(Option<usize>, u64); SLOTS],
    counts: [u64; 3],
}

impl Plain {
    fn pass(&mut self, now: u64, wanted: &[usize]) {
        for &e in wanted.iter().filter(|e| **e >= KEPT) {
            if let Some(slot) = self.slots.iter_mut().find(|s| s.0 == Some(e)) {
                slot.1 = now;
            }
        }
        for &e in wanted {
            let there = e < KEPT || self.slots.iter().any(|s| s.0 == Some(e) && s.1 == now);
            let oldest = self.slots.iter_mut().filter(|s| s.1 < now).min_by_key(|s| s.1);
            let case = match (there, oldest) {
                (true, _) => 0,
                (false, Some(slot)) => {
                    *slot = (Some(e), now);
                    1
                }
                (false, None) => 2,
            };
            self.counts[case] += 1;
        }
    }
}

/// What an expert's matrix holds.
fn content(expert: usize, matrix: usize) -> Vec<u8> {
    (0..BYTES[matrix]).map(|i| (i * 7 + i / 256 + expert * 31 + matrix * 5) as u8).collect()
}

fn words<const N: usize>(buffer: &Buffer) -> Result<[u64; N], GpuError> {
    let mut bytes = vec![0; 8 * N];
    buffer.read(0, &mut bytes)?;
    Ok(std::array::from_fn(|i| bytes[8 * i..8 * i + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))))
}

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let (mut home, mut room) = (Vec::new(), Vec::new());
    for (m, bytes) in BYTES.into_iter().enumerate() {
        let buffer = d.pinned(bytes * (EXPERTS - KEPT))?;
        (KEPT..EXPERTS).try_for_each(|e| buffer.write((e - KEPT) * bytes, &content(e, m)))?;
        home.push(buffer);
        room.push(d.zeroed(bytes * SLOTS)?);
    }
    let none = |n: usize| d.buffer(&NONE.to_ne_bytes().repeat(n));
    let address = |e: usize, m: usize| home[m].from(e.saturating_sub(KEPT) * BYTES[m]);
    let table: Vec<u8> =
        (0..EXPERTS).flat_map(|e| [0, 1, 2].map(|m| address(e, m))).flat_map(u64::to_ne_bytes).collect();
    let (places, slot_of, holds) = (d.buffer(&table)?, none(EXPERTS)?, none(SLOTS)?);
    let (used, clock, moves, counts) = (d.zeroed(8 * SLOTS)?, d.zeroed(8)?, d.zeroed(4 + 8 * SLOTS)?, d.zeroed(24)?);
    let start = d.zeroed(4 * (EXPERTS + 1))?;
    let a = Offload {
        start: start.at(),
        places: places.at(),
        slot_of: slot_of.at(),
        holds: holds.at(),
        used: used.at(),
        clock: clock.at(),
        moves: moves.at(),
        counts: counts.at(),
        home: [0, 1, 2].map(|m| home[m].at()),
        room: [0, 1, 2].map(|m| room[m].at()),
        bytes: BYTES.map(|b| b as u64),
        experts: EXPERTS as u32,
        kept: KEPT as u32,
        slots: SLOTS as u32,
        pad: 0,
    };
    let mut plain = Plain { slots: [(None, 0); SLOTS], counts: [0; 3] };
    let (mut random, mut wrong, mut bytes_wrong) = (Random(8), 0, 0);
    for pass in 1..=PASSES {
        // Mostly as many as a token needs, now and then more than there are slots, and nearly all.
        let share = [8, 8, 8, 3, 8, 1][pass % 6];
        let wanted: Vec<usize> = (0..EXPERTS).filter(|_| random.bits().is_multiple_of(share)).collect();
        let pairs: Vec<u32> = (0..=EXPERTS).map(|e| 2 * wanted.iter().filter(|w| **w < e).count() as u32).collect();
        start.write_u32(0, &pairs)?;
        offload::launch(d, &a, 2 * wanted.len())?;
        plain.pass(pass as u64, &wanted);
        let places = words::<{ 3 * EXPERTS }>(&places)?;
        for e in KEPT..EXPERTS {
            let slot = plain.slots.iter().position(|s| s.0 == Some(e));
            for m in 0..3 {
                let expected = slot.map_or(address(e, m), |s| room[m].from(s * BYTES[m]));
                wrong += u32::from(places[3 * e + m] != expected);
                if let Some(slot) = slot.filter(|_| pass % 10 == 0) {
                    let mut found = vec![0; BYTES[m]];
                    room[m].read(slot * BYTES[m], &mut found)?;
                    bytes_wrong += u32::from(found != content(e, m));
                }
            }
        }
    }
    let miscounted = words::<3>(&counts)?.iter().zip(plain.counts).filter(|(a, b)| **a != *b).count() as u32;
    // Each of the three cases came up, or nothing was checked.
    let seen = plain.counts.iter().filter(|n| **n == 0).count() as u32;
    let finding =
        |kernel, what: &str, wrong| Finding { kernel, what: what.into(), error: f64::from(wrong), limit: 0.0 };
    Ok(vec![
        finding("offload_choose", "places of experts that share slots", wrong),
        finding("offload_choose", "counts of experts that were there, came and stayed away", miscounted + seen),
        finding("offload_copy", "bytes of experts in their slots", bytes_wrong),
    ])
}
