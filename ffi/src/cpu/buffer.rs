//! Zeroed memory aligned to cache lines, on huge pages where the system grants them: streaming
//! gigabytes of weights through 4 KiB pages loses bandwidth to address translation.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of small buffers, and of those that can use huge pages.
const LINE: usize = 64;
const HUGE: usize = 2 << 20;

/// An owned, zero-initialised block of bytes.
pub(super) struct Buffer {
    start: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: a `Buffer` owns its memory exclusively, like a `Vec<u8>`.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes; `None` if the system has no such amount.
    pub(super) fn zeroed(len: usize) -> Option<Buffer> {
        let align = if len >= HUGE { HUGE } else { LINE };
        let layout = Layout::from_size_align(len.max(LINE), align).ok()?;
        // SAFETY: the layout has a size of at least one line.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        #[cfg(target_os = "linux")]
        if align == HUGE {
            // SAFETY: advice on memory that we own; a refusal changes nothing.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Some(Buffer { start, len, layout })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes while `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
