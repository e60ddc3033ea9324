//! What a sequence holds, copied between the device and the host: the recurrent states of its slot, and its pages of keys
//! and values.

use std::ops::Range;

use chimere_ffi::gpu::{Buffer, GpuError};
use chimere_ffi::kernels::attention::PAGE;
use chimere_ffi::kernels::gdn::{WINDOW_FLOATS, state_bytes};

use super::{LayerState, Sequence, States};
use crate::engine::backend::{Kept, Saved, SavedSize};

impl States {
    /// Bytes of what the first `layers` layers hold.
    pub(in crate::engine::cuda) fn saved_size(&self, layers: usize) -> SavedSize {
        let mut size = SavedSize { block: 0, state: 0, grid: 1 };
        for layer in &self.layers[..layers] {
            match layer {
                LayerState::Gdn { state, window } => {
                    size.state +=
                        self.of_head(state, window).iter().map(|(_, bytes)| self.heads * bytes).sum::<usize>();
                }
                LayerState::Kv { keys, values } => size.block += self.page_bytes(keys) + self.page_bytes(values),
            }
        }
        size
    }

    /// The states of a slot, and its pages `blocks`.
    pub(in crate::engine::cuda) fn save(
        &self,
        layers: usize,
        slot: usize,
        sequence: &Sequence,
        blocks: Range<usize>,
    ) -> Result<Saved, GpuError> {
        let size = self.saved_size(layers);
        let pages = sequence.pages.get(blocks).unwrap_or_default();
        let mut saved = Saved {
            blocks: pages.iter().map(|_| Vec::with_capacity(size.block)).collect(),
            state: Vec::with_capacity(size.state),
        };
        for layer in &self.layers[..layers] {
            match layer {
                LayerState::Gdn { state, window } => {
                    for (buffer, bytes) in self.of_head(state, window) {
                        append(buffer, self.of_slot(slot, bytes), &mut saved.state)?;
                    }
                }
                LayerState::Kv { keys, values } => {
                    for (page, to) in pages.iter().zip(&mut saved.blocks) {
                        append(keys, self.of_page(keys, *page), to)?;
                        append(values, self.of_page(values, *page), to)?;
                    }
                }
            }
        }
        Ok(saved)
    }

    /// Puts into a slot what was saved, which is of the size of [`States::saved_size`]; it has no pages yet.
    pub(in crate::engine::cuda) fn restore(
        &self,
        layers: usize,
        slot: usize,
        sequence: &mut Sequence,
        kept: &Kept<'_>,
    ) -> Result<(), GpuError> {
        self.grow(slot, sequence, kept.blocks.len() * PAGE)?;
        let (mut state_at, mut block_at) = (0, 0);
        for layer in &self.layers[..layers] {
            match layer {
                LayerState::Gdn { state, window } => {
                    for (buffer, bytes) in self.of_head(state, window) {
                        let to = self.of_slot(slot, bytes);
                        buffer.write(to.start, &kept.state[state_at..state_at + to.len()])?;
                        state_at += to.len();
                    }
                }
                LayerState::Kv { keys, values } => {
                    for buffer in [keys, values] {
                        let bytes = self.page_bytes(buffer);
                        for (page, from) in sequence.pages.iter().zip(&kept.blocks) {
                            let to = self.of_page(buffer, *page);
                            buffer.write(to.start, &from[block_at..block_at + bytes])?;
                        }
                        block_at += bytes;
                    }
                }
            }
        }
        Ok(())
    }

    /// What a recurrent layer holds, with the bytes of a head.
    pub(super) fn of_head<'a>(&self, state: &'a Buffer, window: &'a Buffer) -> [(&'a Buffer, usize); 2] {
        [(state, state_bytes(self.state)), (window, 4 * WINDOW_FLOATS)]
    }

    /// Bytes of a slot in a buffer of so many a head.
    pub(super) fn of_slot(&self, slot: usize, a_head: usize) -> Range<usize> {
        let bytes = self.heads * a_head;
        slot * bytes..(slot + 1) * bytes
    }

    /// Bytes of a page of keys, or of values.
    fn page_bytes(&self, buffer: &Buffer) -> usize {
        buffer.len() / (self.table.len() / 4)
    }

    fn of_page(&self, buffer: &Buffer, page: u32) -> Range<usize> {
        let bytes = self.page_bytes(buffer);
        page as usize * bytes..(page as usize + 1) * bytes
    }
}

fn append(buffer: &Buffer, range: Range<usize>, to: &mut Vec<u8>) -> Result<(), GpuError> {
    let at = to.len();
    to.resize(at + range.len(), 0);
    buffer.read(range.start, &mut to[at..])
}
