//! Zeroed memory for weights, aligned to cache lines and on huge pages where the system grants them.
//! Through 4 KiB pages much of the bandwidth is lost to address translation, most of all in a
//! virtual machine. Small matrices therefore share regions, in the order of their loading.

use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of buffers, and of regions.
const LINE: usize = 64;
const HUGE: usize = 2 << 20;
/// Bytes of a shared region; a buffer larger than a quarter of it has its own. Untouched pages cost nothing.
const REGION: usize = 64 << 20;

/// One mapping of the system: `len` bytes from `base`, of which those from `start` are used.
struct Region {
    base: *mut u8,
    len: usize,
    start: *mut u8,
}

// SAFETY: a region is only memory; who may touch which part of it is decided by `Buffer`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

#[cfg(unix)]
impl Region {
    /// A fresh mapping is zero and untouched, so that the advice comes before the first page does.
    fn zeroed(size: usize) -> Option<Region> {
        let len = size.checked_add(HUGE)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the system's choice touches nothing else.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base: *mut u8 = base.cast();
        let start = base.wrapping_add(base.align_offset(HUGE));
        #[cfg(target_os = "linux")]
        // SAFETY: advice on memory that we own; a refusal changes nothing.
        unsafe {
            libc::madvise(start.cast(), size, libc::MADV_HUGEPAGE);
        }
        Some(Region { base, len, start })
    }
}

#[cfg(unix)]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `zeroed` with this length; no buffer refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

#[cfg(not(unix))]
impl Region {
    fn zeroed(size: usize) -> Option<Region> {
        let layout = std::alloc::Layout::from_size_align(size, LINE).ok()?;
        // SAFETY: the layout has a size above zero (see the callers).
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        (!base.is_null()).then_some(Region { base, len: size, start: base })
    }
}

#[cfg(not(unix))]
impl Drop for Region {
    fn drop(&mut self) {
        if let Ok(layout) = std::alloc::Layout::from_size_align(self.len, LINE) {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { std::alloc::dealloc(self.base, layout) }
        }
    }
}

/// The region that small buffers are cut from, and how much of it is given away.
static OPEN: Mutex<Option<(Arc<Region>, usize)>> = Mutex::new(None);

/// An owned, zero-initialised block of bytes.
pub struct Buffer {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

impl Buffer {
    /// `len` zero bytes; `None` if the system has no such amount.
    pub fn zeroed(len: usize) -> Option<Buffer> {
        let size = len.max(1).checked_next_multiple_of(LINE)?;
        if size > REGION / 4 {
            return Some(Buffer { region: Arc::new(Region::zeroed(size)?), at: 0, len });
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (region, used) = match open.take() {
            Some((region, used)) if used + size <= REGION => (region, used),
            _ => (Arc::new(Region::zeroed(REGION)?), 0),
        };
        *open = Some((Arc::clone(&region), used + size));
        Some(Buffer { region, at: used, len })
    }

    fn start(&self) -> *mut u8 {
        self.region.start.wrapping_add(self.at)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes at..at + len of the region were given to this buffer alone, are initialised (zero at
        // first) and live while it holds the region.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zero_and_apart() {
        let mut all: Vec<Buffer> = (1..200).map(|i| Buffer::zeroed(i * 7919 % 100_000 + 1).unwrap()).collect();
        all.push(Buffer::zeroed(REGION / 2).unwrap());
        for (i, b) in all.iter_mut().enumerate() {
            assert_eq!(b.start() as usize % LINE, 0);
            assert!(b.bytes().iter().all(|x| *x == 0));
            b.bytes_mut().fill(i as u8 | 1);
        }
        for (i, b) in all.iter().enumerate() {
            assert!(b.bytes().iter().all(|x| *x == i as u8 | 1));
        }
    }
}
