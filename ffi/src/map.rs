//! Read-only memory maps of model files, for the engine process only. If the file shrinks while it
//! is mapped, touching the lost pages ends the process with SIGBUS. That costs the engine and not
//! the daemon.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};

/// A whole file, mapped read-only; or several that are read as if they lay one behind the other.
#[derive(Debug)]
pub struct Map {
    /// Where each begins; the first at 0.
    files: Vec<(u64, memmap2::Mmap)>,
}

impl Map {
    /// Maps `file` whole. The file must not be written to while it is mapped; writers of this
    /// project never do that, they write aside and rename.
    pub fn new(file: &File) -> io::Result<Map> {
        Map::joined([(0, file)].into_iter())
    }

    /// Maps several files whole, each from the position that is given with it on; the first begins at 0.
    pub fn joined<'a>(files: impl Iterator<Item = (u64, &'a File)>) -> io::Result<Map> {
        let map = |(start, file): (u64, &File)| {
            // SAFETY: the map is read-only and lives as long as this value. Changing a mapped file under
            // us is outside the contract above; the bytes are only ever read as plain numbers (u8, f16
            // bits, f32), for which every bit pattern is a valid value.
            let map = unsafe { memmap2::Mmap::map(file)? };
            Ok((start, map))
        };
        Ok(Map { files: files.map(map).collect::<io::Result<_>>()? })
    }

    /// The file in which a position lies, and the position there.
    fn find(&self, at: u64) -> Option<(&memmap2::Mmap, u64)> {
        let (start, map) = self.files.iter().rev().find(|(start, _)| *start <= at)?;
        Some((map, at - start))
    }

    /// The bytes of `range` (from the start of the first file), `None` if it leaves its file.
    pub fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        let (map, at) = self.find(range.start)?;
        let start = usize::try_from(at).ok()?;
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        map.get(start..start.checked_add(len)?)
    }

    /// Asks the kernel to read `range` ahead; only a hint, so errors are ignored.
    pub fn prefetch(&self, range: Range<u64>) {
        let Some((map, at)) = self.find(range.start) else { return };
        let len = map.len() as u64;
        let (start, end) = (at.min(len), at.saturating_add(range.end.saturating_sub(range.start)).min(len));
        let _ = map.advise_range(memmap2::Advice::WillNeed, start as usize, end.saturating_sub(start) as usize);
    }
}

impl Deref for Map {
    type Target = [u8];

    /// The bytes of the first file, which is the only one of a map that was made with [`Map::new`].
    fn deref(&self) -> &[u8] {
        self.files.first().map_or(&[][..], |(_, map)| &map[..])
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

    #[test]
    fn several_files_are_read_as_one_and_no_range_goes_from_one_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            fs::write(dir.path().join(name), bytes).unwrap();
            fs::File::open(dir.path().join(name)).unwrap()
        };
        let (a, b) = (file("a", b"0123"), file("b", b"abcdef"));
        let map = Map::joined([(0, &a), (100, &b)].into_iter()).unwrap();
        map.prefetch(2..200);
        let text = |range| map.slice(range).map(|bytes| std::str::from_utf8(bytes).unwrap());
        assert_eq!((text(1..3), text(100..106), text(104..105)), (Some("12"), Some("abcdef"), Some("e")));
        assert_eq!((text(2..5), text(50..51), text(105..107), text(2..101)), (None, None, None, None));
    }
}
