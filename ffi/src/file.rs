//! Reading large files at the rate of disk and memory: by several threads, with the disk told what comes next.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Bytes that a thread reads at least.
const READ_BYTES_MIN: usize = 4 << 20;
/// Bytes that the disk is asked for in advance.
const AHEAD_BYTES: libc::off_t = 512 << 20;

/// Fills `bytes` from position `from` of a file, each of at most `threads` threads a part.
pub fn read(file: &File, from: u64, bytes: &mut [u8], threads: usize) -> io::Result<()> {
    let share = bytes.len().div_ceil(threads.max(1)).max(READ_BYTES_MIN);
    std::thread::scope(|scope| {
        let parts = bytes.chunks_mut(share).zip((from..).step_by(share));
        let parts: Vec<_> = parts.map(|(part, at)| scope.spawn(move || file.read_exact_at(part, at))).collect();
        parts.into_iter().try_for_each(|part| part.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// Tells the system that what follows position `from` is read soon. What it cannot use it ignores.
pub fn expect(file: &File, from: u64) {
    let Ok(from) = libc::off_t::try_from(from) else { return };
    // SAFETY: the descriptor is open, and no memory is given away.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), from, AHEAD_BYTES, libc::POSIX_FADV_WILLNEED) };
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
            expect(&file, 3);
            read(&file, 3, &mut found, threads).unwrap();
            assert!(found == all[3..]);
            assert!(read(&file, 4, &mut found, threads).is_err(), "beyond the end");
        }
        expect(&file, u64::MAX);
    }
}
