//! Cutting a step into passes over the layers. A pass holds a bounded number of rows, so the buffers of a backend are
//! bounded whatever is fed. Long chunks are cut at multiples of [`GRID`] positions of their sequence. So the cuts
//! that shape the arithmetic are a function of the tokens alone.

use crate::engine::backend::Rows;
use std::ops::Range;

/// Positions between two possible cuts: the block of the chunked GDN form and of the KV cache.
pub const GRID: usize = 64;
/// Rows in one pass of the processor's backend, a multiple of [`GRID`].
pub const PASS_ROWS_MAX: usize = 512;

/// One chunk of a step, without its data.
#[derive(Clone, Copy, Debug)]
pub struct Fed {
    /// Slot of the sequence.
    pub slot: usize,
    /// Position of the first token.
    pub position: usize,
    pub len: usize,
    pub rows: Rows,
    /// Hidden states are asked for as well.
    pub hidden: bool,
}

/// The part of a chunk that is in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Slot of the sequence.
    pub slot: usize,
    /// Index of the chunk in the step, and where in it this part begins.
    pub chunk: usize,
    pub offset: usize,
    /// First row in the pass.
    pub start: usize,
    pub len: usize,
    /// Position of the first row in its sequence.
    pub position: usize,
}

impl Span {
    /// Rows of the pass that belong to this span.
    pub fn rows(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// Tokens of the chunk that belong to this span.
    pub fn tokens(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// A row whose results are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Row of the pass, and index of its span.
    pub row: usize,
    pub span: usize,
    /// The hidden state of the row is wanted beside its logits.
    pub hidden: bool,
    /// The largest of its logits are wanted, and their weight at this temperature.
    pub likeliest: Option<f32>,
}

/// Rows computed together in one run over the stages.
#[derive(Debug, Default)]
pub struct Pass {
    pub spans: Vec<Span>,
    pub rows: usize,
    pub wanted: Vec<Wanted>,
}

/// Walks over the chunks of a step.
#[derive(Debug)]
pub struct Cursor {
    chunk: usize,
    offset: usize,
    rows_max: usize,
}

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor::new(PASS_ROWS_MAX)
    }
}

impl Cursor {
    /// `rows_max`: most rows of a pass, a multiple of [`GRID`].
    pub fn new(rows_max: usize) -> Cursor {
        Cursor { chunk: 0, offset: 0, rows_max }
    }

    /// Fills `pass` with the next rows; false once all chunks are done. Chunks are finished in order, so results
    /// come in the order of the batch.
    pub fn next(&mut self, fed: &[Fed], pass: &mut Pass) -> bool {
        pass.spans.clear();
        pass.wanted.clear();
        pass.rows = 0;
        while let Some(f) = fed.get(self.chunk) {
            let len = cut(f.position + self.offset, f.len - self.offset, self.rows_max - pass.rows);
            if len == 0 {
                break;
            }
            self.take(f, len, pass);
            if self.offset < f.len {
                break;
            }
            self.chunk += 1;
            self.offset = 0;
        }
        !pass.spans.is_empty()
    }

    fn take(&mut self, f: &Fed, len: usize, pass: &mut Pass) {
        let (start, span) = (pass.rows, pass.spans.len());
        let ends = self.offset + len == f.len;
        let wanted = match f.rows {
            Rows::None => 0..0,
            Rows::Last | Rows::Likeliest { .. } if ends => start + len - 1..start + len,
            Rows::Last | Rows::Likeliest { .. } => 0..0,
            Rows::All => start..start + len,
        };
        let likeliest = match f.rows {
            Rows::Likeliest { temperature } => Some(temperature),
            _ => None,
        };
        pass.wanted.extend(wanted.map(|row| Wanted { row, span, hidden: f.hidden, likeliest }));
        let position = f.position + self.offset;
        pass.spans.push(Span { slot: f.slot, chunk: self.chunk, offset: self.offset, start, len, position });
        pass.rows += len;
        self.offset += len;
    }
}

/// How many of `left` tokens from `position` on go into `room` rows: all, or as many as end on the grid.
fn cut(position: usize, left: usize, room: usize) -> usize {
    if left <= room {
        return left;
    }
    let end = (position + room) / GRID * GRID;
    end.saturating_sub(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(position: usize, len: usize, rows: Rows) -> Fed {
        Fed { slot: position % 7, position, len, rows, hidden: false }
    }

    fn passes(fed: &[Fed]) -> Vec<(Vec<Span>, Vec<usize>)> {
        let (mut cursor, mut pass, mut all) = (Cursor::default(), Pass::default(), Vec::new());
        while cursor.next(fed, &mut pass) {
            assert!(pass.rows <= PASS_ROWS_MAX);
            all.push((pass.spans.clone(), pass.wanted.iter().map(|w| w.row).collect()));
        }
        all
    }

    #[test]
    fn long_chunks_are_cut_on_the_grid_of_their_sequence() {
        let all = passes(&[fed(10, 1, Rows::Last), fed(100, 1000, Rows::Last), fed(5, 3, Rows::All)]);
        let mut fed_rows = [0; 3];
        for (spans, _) in &all {
            for s in spans {
                fed_rows[s.chunk] += s.len;
                if s.chunk == 1 && s.position + s.len < 1100 {
                    assert_eq!((s.position + s.len) % GRID, 0);
                }
            }
        }
        assert_eq!(fed_rows, [1, 1000, 3]);
        let wanted: usize = all.iter().map(|(_, w)| w.len()).sum();
        assert_eq!(wanted, 1 + 1 + 3);
        assert_eq!(all[0].1, [0]);
    }

    #[test]
    fn the_cuts_do_not_depend_on_the_room_left_by_neighbours_except_on_the_grid() {
        assert_eq!(cut(0, 63, 64), 63);
        assert_eq!(cut(0, 65, 64), 64);
        assert_eq!(cut(1, 65, 64), 63);
        assert_eq!(cut(1, 65, 62), 0);
    }
}
