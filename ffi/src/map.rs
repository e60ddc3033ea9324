//! Read-only memory maps of model files, for the engine process only: if the file shrinks while it
//! is mapped, touching the lost pages ends the process with SIGBUS, which costs the engine and not
//! the daemon.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};

/// A whole file, mapped read-only.
#[derive(Debug)]
pub struct Map {
    map: memmap2::Mmap,
}

impl Map {
    /// Maps `file` whole. The file must not be written to while it is mapped; writers of this
    /// project never do that, they write aside and rename.
    pub fn new(file: &File) -> io::Result<Map> {
        // SAFETY: the map is read-only and lives as long as this value. Changing a mapped file under
        // us is outside the contract above; the bytes are only ever read as plain numbers (u8, f16
        // bits, f32), for which every bit pattern is a valid value.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Map { map })
    }

    /// The bytes of `range` (from the start of the file), `None` if it leaves the file.
    pub fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(range.start).ok()?;
        let end = usize::try_from(range.end).ok()?;
        self.map.get(start..end)
    }

    /// Asks the kernel to read `range` ahead; only a hint, so errors are ignored.
    pub fn prefetch(&self, range: Range<u64>) {
        let len = self.map.len() as u64;
        let (start, end) = (range.start.min(len), range.end.min(len));
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, start as usize, end.saturating_sub(start) as usize);
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::Map;
    use std::fs;

    #[test]
    fn ranges_outside_the_file_are_refused() {
        let path = std::env::temp_dir().join(format!("chimere-map-{}", std::process::id()));
        fs::write(&path, b"0123456789").unwrap();
        let map = Map::new(&fs::File::open(&path).unwrap()).unwrap();
        map.prefetch(2..u64::MAX);
        assert_eq!(map.slice(2..5), Some(&b"234"[..]));
        assert_eq!(map.slice(10..10), Some(&b""[..]));
        assert_eq!(map.slice(5..11), None);
        assert_eq!(map.slice(u64::MAX - 1..u64::MAX), None);
        fs::remove_file(&path).unwrap();
    }
}
