//! Which turns were forgotten, as a file in the log's folder. A copy of such a turn may still lie in sled's files, and
//! a salvage must not bring it back. It begins with the log, so that it is complete; ids hold no text of anybody's.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::turn::TurnId;

/// A list above this is not read, and no longer complete; bytes.
const BYTES_MAX: u64 = 256 << 20;
/// Digits of the checksum behind each id.
const SUM_DIGITS: usize = 8;
/// Behind the id of a turn that is kept without what others of its conversation said; no id holds it.
const REDACTED_MARK: char = '~';

fn path(folder: &Path) -> PathBuf {
    folder.join("forgotten")
}

pub(super) fn has_begun(folder: &Path) -> bool {
    path(folder).exists()
}

/// Begins the list of a log that begins, in place of one of an earlier log.
pub(super) fn begin(folder: &Path) -> io::Result<()> {
    super::files::write_durable(&path(folder), b"")
}

/// Adds turns, before they are taken out of the log.
pub(super) fn add<'a>(folder: &Path, ids: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    let mut lines = String::new();
    for id in ids {
        let sum = crc32fast::hash(id);
        lines.push_str(&format!("{} {sum:0SUM_DIGITS$x}\n", String::from_utf8_lossy(id)));
    }
    // A log without a list is older than lists are: one begun now would not be complete.
    let mut file = match OpenOptions::new().append(true).mode(0o600).open(path(folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    file.write_all(lines.as_bytes())?;
    file.sync_data()
}

/// The turns that stay without the words of forgotten ones: their records of before must not come back.
pub(super) fn add_redacted(folder: &Path, ids: &[TurnId]) -> io::Result<()> {
    let marked: Vec<String> = ids.iter().map(|id| format!("{}{REDACTED_MARK}", id.0)).collect();
    add(folder, marked.iter().map(String::as_bytes))
}

/// The forgotten turns of a log.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    complete: bool,
    ids: HashSet<String>,
}

impl Forgotten {
    pub(super) fn read(folder: &Path) -> Forgotten {
        let Ok(bytes) = fs::metadata(path(folder)).and_then(|file| match file.len() {
            length if length > BYTES_MAX => Err(io::Error::other("too long")),
            _ => fs::read(path(folder)),
        }) else {
            return Forgotten::default();
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut forgotten = Forgotten { complete: text.is_empty() || text.ends_with('\n'), ids: HashSet::new() };
        for line in text.lines() {
            let known = line.rsplit_once(' ').filter(|(id, sum)| {
                sum.len() == SUM_DIGITS && u32::from_str_radix(sum, 16) == Ok(crc32fast::hash(id.as_bytes()))
            });
            match known {
                Some((id, _)) => drop(forgotten.ids.insert(id.to_owned())),
                None => forgotten.complete = false,
            }
        }
        forgotten
    }

    /// Every turn that was ever forgotten is among them.
    pub(super) fn complete(&self) -> bool {
        self.complete
    }

    /// Its records of before are forgotten.
    pub(super) fn redacted(&self, id: &str) -> bool {
        self.ids.contains(&format!("{id}{REDACTED_MARK}"))
    }

    pub(super) fn holds(&self, id: &str) -> bool {
        self.ids.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_complete_only_from_its_beginning_and_undamaged() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_owned();
        add(&folder, [b"turn-0".as_slice()].into_iter()).unwrap();
        assert!(!Forgotten::read(&folder).complete(), "it did not begin with the log");
        begin(&folder).unwrap();
        add(&folder, [b"turn-1".as_slice(), b"turn-2"].into_iter()).unwrap();
        let read = Forgotten::read(&folder);
        assert!(read.complete() && read.holds("turn-1") && read.holds("turn-2") && !read.holds("turn-0"));
        let mut bytes = fs::read(path(&folder)).unwrap();
        bytes[5] ^= 1;
        fs::write(path(&folder), &bytes).unwrap();
        let read = Forgotten::read(&folder);
        assert!(!read.complete() && !read.holds("turn-1") && read.holds("turn-2"));
    }
}
