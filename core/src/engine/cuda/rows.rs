//! Rows of logits on their way to the host: whole, or only the largest of each, found on the device. The row stays on
//! the device until the next step, in case the whole of it is asked for.

use chimere_ffi::gpu::{Buffer, Device, GpuError};
use chimere_ffi::kernels::sample::{self, GROUPS, LIST_WORDS, Largest};

use super::computing;
use super::memory::{HEAD_ROWS, Memory};
use crate::engine::backend::{BackendError, Output, Rows};
use crate::engine::model::passes::{Fed, Wanted};

/// The largest of each of the rows of logits.
pub(super) struct Likely {
    temperature: Buffer,
    maxes: Buffer,
    sums: Buffer,
    /// [`LIST_WORDS`] a row.
    lists: Buffer,
}

impl Likely {
    /// Words of one row.
    pub(super) const WORDS: usize = 1 + 2 * GROUPS + LIST_WORDS;

    pub(super) fn new(d: &Device) -> Result<Likely, GpuError> {
        let words = |n: usize| d.zeroed(4 * HEAD_ROWS * n);
        let temperature = words(1)?;
        temperature.write_f32(0, &[1.0; HEAD_ROWS])?;
        Ok(Likely { temperature, maxes: words(GROUPS)?, sums: words(GROUPS)?, lists: words(LIST_WORDS)? })
    }

    /// Finds them for the first `rows` rows.
    pub(super) fn find(&self, d: &Device, logits: &Buffer, vocab: usize, rows: usize) -> Result<(), GpuError> {
        let a = sample::Likely {
            logits: logits.at(),
            temperature: self.temperature.at(),
            maxes: self.maxes.at(),
            sums: self.sums.at(),
            list: self.lists.at(),
            vocab: vocab as u32,
            pad: 0,
        };
        sample::likely(d, &a, rows)
    }
}

/// Where the rows lie whose largest logits were told.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Rows of the device's logits, in the order in which they were told; empty where `copies` has them.
    rows: Vec<usize>,
    /// Their logits, where one step had more rows than the device holds.
    copies: Vec<f32>,
    copying: bool,
    /// What the device has.
    temperature: Vec<f32>,
    vocab: usize,
}

impl Left {
    pub(super) fn new(vocab: usize) -> Left {
        Left { temperature: vec![1.0; HEAD_ROWS], vocab, ..Left::default() }
    }

    /// A step begins, whose passes have at most `rows_max` rows.
    pub(super) fn begin(&mut self, fed: &[Fed], rows_max: usize) {
        self.rows.clear();
        self.copies.clear();
        let rows: usize = fed.iter().map(|f| f.len).sum();
        let wanted = fed.iter().map(|f| match f.rows {
            Rows::None => 0,
            Rows::Last | Rows::Likeliest { .. } => 1,
            Rows::All => f.len,
        });
        let wanted: usize = wanted.sum();
        self.copying = rows > rows_max || wanted > HEAD_ROWS;
    }

    /// Tells the device at which temperatures these rows are weighed, before their logits are found.
    pub(super) fn tell(&mut self, m: &Memory, wanted: &[Wanted]) -> Result<(), GpuError> {
        let told = wanted.iter().zip(&self.temperature).all(|(w, have)| w.likeliest.is_none_or(|t| t == *have));
        if told {
            return Ok(());
        }
        for (w, have) in wanted.iter().zip(&mut self.temperature) {
            *have = w.likeliest.unwrap_or(*have);
        }
        m.likely.temperature.write_f32(0, &self.temperature)
    }

    /// The rows of the head's last launch, in order.
    pub(super) fn take(&mut self, m: &Memory, wanted: &[Wanted], out: &mut Output) -> Result<(), GpuError> {
        let whole = |row: usize, count: usize, to: &mut Vec<f32>| {
            let done = to.len();
            to.resize(done + count * self.vocab, 0.0);
            m.logits.read_f32(row * self.vocab, &mut to[done..])
        };
        if wanted.iter().all(|w| w.likeliest.is_none()) {
            return whole(0, wanted.len(), &mut out.logits);
        }
        let mut lists = vec![0; LIST_WORDS * wanted.len()];
        m.likely.lists.read_u32(0, &mut lists)?;
        for (row, (w, list)) in wanted.iter().zip(lists.as_chunks().0).enumerate() {
            if w.likeliest.is_none() {
                whole(row, 1, &mut out.logits)?;
                continue;
            }
            out.likeliest.push(Largest::read(list));
            if self.copying {
                whole(row, 1, &mut self.copies)?;
            } else {
                self.rows.push(row);
            }
        }
        Ok(())
    }

    /// All logits of the `n`th of them.
    pub(super) fn row(&self, m: &Memory, n: usize, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        let missing = BackendError::Unsupported("a row of logits that no step gave");
        logits.clear();
        if self.copying {
            let at = n * self.vocab;
            logits.extend_from_slice(self.copies.get(at..at + self.vocab).ok_or(missing)?);
            return Ok(());
        }
        let row = self.rows.get(n).ok_or(missing)?;
        logits.resize(self.vocab, 0.0);
        m.logits.read_f32(row * self.vocab, logits).map_err(computing)
    }
}
