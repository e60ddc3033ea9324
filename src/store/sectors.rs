//! Files of which the disk does not give every byte. What it gives is read, block by block; the rest is zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Disks lose no less at once.
const BLOCK_BYTES: usize = 4_096;
/// The disk's own fault, a checksum of its or the file system's that does not hold, structures of the file system that are wrong.
const EIO: i32 = 5;
const EBADMSG: i32 = 74;
const EUCLEAN: i32 = 117;

/// Another time it is the same.
pub(super) fn is_of_the_disk(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EIO | EBADMSG | EUCLEAN))
}

/// Fills `bytes` from position `at`; whether some of it cannot be read.
pub(super) fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    match exactly(file, bytes, at) {
        Err(error) if is_of_the_disk(&error) => {}
        read => return read.map(|()| false),
    }
    let mut lost = false;
    for (n, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
        match exactly(file, block, at + (n * BLOCK_BYTES) as u64) {
            Ok(()) => {}
            Err(error) if is_of_the_disk(&error) => {
                block.fill(0);
                lost = true;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(lost)
}

#[cfg(not(test))]
fn exactly(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(bytes, at)
}

/// In tests some blocks of files of one length are lost.
#[cfg(test)]
fn exactly(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let length = file.metadata()?.len();
    let lost = LOST.with_borrow(|lost| {
        let within = |&(of, begins): &(u64, u64)| {
            of == length && begins < at + bytes.len() as u64 && at < begins + BLOCK_BYTES as u64
        };
        lost.iter().any(within)
    });
    if lost { Err(io::Error::from_raw_os_error(EIO)) } else { file.read_exact_at(bytes, at) }
}

#[cfg(test)]
thread_local! {
    /// Length of a file, and where a block of it begins that this thread cannot read.
    pub(super) static LOST: std::cell::RefCell<Vec<(u64, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
}
