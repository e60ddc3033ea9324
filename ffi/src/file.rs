//! Reading large files at the rate of disk and memory: by several threads, with the disk told what comes next.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// Bytes that a thread reads at least.
const READ_BYTES_MIN: usize = 4 << 20;
/// Bytes that the disk is asked for in advance.
const AHEAD_BYTES: u64 = 512 << 20;

/// Fills `bytes` from position `from` of a file, each of at most `threads` threads a part.
pub fn read(file: &File, from: u64, bytes: &mut [u8], threads: usize) -> io::Result<()> {
    let share = bytes.len().div_ceil(threads.max(1)).max(READ_BYTES_MIN);
    if bytes.len() <= share {
        return file.read_exact_at(bytes, from);
    }
    std::thread::scope(|scope| {
        let parts = bytes.chunks_mut(share).zip((from..).step_by(share));
        let parts: Vec<_> = parts.map(|(part, at)| scope.spawn(move || file.read_exact_at(part, at))).collect();
        parts.into_iter().try_for_each(|part| part.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// What the system was asked to read in advance, so that it is asked once for each byte.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Of which file.
    of: Option<RawFd>,
    asked: Range<u64>,
}

impl Ahead {
    /// Says that `from..to` is read now, and what follows soon. What the system cannot use it ignores.
    pub fn expect(&mut self, file: &File, from: u64, to: u64) {
        let wanted = to.saturating_add(AHEAD_BYTES);
        let descriptor = file.as_raw_fd();
        if self.of.replace(descriptor) != Some(descriptor) {
            self.asked = 0..0;
        }
        // Asked for by halves: the system looks at every page that is named.
        let known = self.asked.contains(&from) || self.asked.end == from;
        if known && self.asked.end >= wanted - AHEAD_BYTES / 2 {
            return;
        }
        let start = if known { self.asked.end } else { from };
        self.asked = start.min(from)..wanted;
        let (Ok(start), Ok(len)) = (libc::off_t::try_from(start), libc::off_t::try_from(wanted - start)) else {
            return;
        };
        // SAFETY: the descriptor is open, and no memory is given away.
        unsafe { libc::posix_fadvise(descriptor, start, len, libc::POSIX_FADV_WILLNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn several_threads_read_what_one_would() {
        let mut file = tempfile::tempfile().unwrap();
        let all: Vec<u8> = (0..(9 << 20) + 5).map(|i: u32| (i * 7 + (i >> 9)) as u8).collect();
        file.write_all(&all).unwrap();
        for threads in [1, 3, 16] {
            let mut found = vec![0; all.len() - 3];
            read(&file, 3, &mut found, threads).unwrap();
            assert!(found == all[3..]);
            assert!(read(&file, 4, &mut found, threads).is_err(), "beyond the end");
        }
    }

    #[test]
    fn the_disk_is_asked_for_each_byte_once() {
        const MIB: u64 = 1 << 20;
        let (file, mut ahead) = (tempfile::tempfile().unwrap(), Ahead::default());
        ahead.expect(&file, 5 * MIB, 6 * MIB);
        assert_eq!(ahead.asked, 5 * MIB..518 * MIB);
        ahead.expect(&file, 6 * MIB, 262 * MIB);
        assert_eq!(ahead.asked.end, 518 * MIB, "256 MiB are under way");
        ahead.expect(&file, 262 * MIB, 263 * MIB);
        assert_eq!(ahead.asked.end, 775 * MIB);
        ahead.expect(&file, MIB, 2 * MIB);
        assert_eq!(ahead.asked, MIB..514 * MIB, "a place before");
        let other = tempfile::tempfile().unwrap();
        ahead.expect(&other, 2 * MIB, 3 * MIB);
        assert_eq!(ahead.asked, 2 * MIB..515 * MIB, "nothing is known of another file");
        ahead.expect(&file, u64::MAX, u64::MAX);
    }
}
