//! Whether anything is damaged in a folder of sled's: segments, blobs, `conf` and snapshot, each by itself and together.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use super::{
    Act, BATCH, SEGMENT_BYTES, Segment, blob, blob_number, blob_numbers, blob_path, int64, segments, whole, word,
};
use crate::store::{forgotten, sled_snapshot};

/// What is damaged in the folder, in a few words; `None` where everything that sled would read is sound.
pub(in crate::store) fn damage(folder: &Path) -> io::Result<Option<String>> {
    if fs::metadata(folder.join("db")).map_or(0, |db| db.len()) == 0 {
        let begun = forgotten::has_begun(folder) || !blob_numbers(folder)?.is_empty();
        return Ok(begun.then(|| "the file `db` is missing or empty".to_owned()));
    }
    let mut log = Log::default();
    segments(folder, |segment| log.add(&segment))?;
    if let Some(fault) = log.fault() {
        return Ok(Some(fault));
    }
    for ((page, message), number) in &log.blobs {
        let Some(number) = number else { continue };
        let live = log.pages.get(page).is_some_and(|last| message >= last);
        match blob(&blob_path(folder, *number))? {
            Some((_, true)) => {}
            // Also one whose page was replaced since: sled reads it on its way, and takes it for the end of the log.
            Some((_, false)) => return Ok(Some(format!("blob {number} is damaged"))),
            None if live => return Ok(Some(format!("blob {number} is missing"))),
            None => {}
        }
    }
    if whole(&folder.join("conf"))?.is_none_or(|conf| sealed(&conf).is_none()) {
        return Ok(Some("the file `conf` is damaged or missing".to_owned()));
    }
    snapshot_fault(folder, &log)
}

/// The bytes before a checksum at the end, where it holds.
fn sealed(bytes: &[u8]) -> Option<&[u8]> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    (!body.is_empty() && word(sum) == Some(crc32fast::hash(body))).then_some(body)
}

fn snapshot_fault(folder: &Path, log: &Log) -> io::Result<Option<String>> {
    let segments: HashSet<i64> = log.segments.iter().map(|(number, _)| *number).collect();
    // What a page was made of before it was replaced need not be there.
    let there = |page: u64, message: i64| {
        segments.contains(&(message - message.rem_euclid(SEGMENT_BYTES as i64)))
            || log.pages.get(&page).is_some_and(|last| *last > message)
    };
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("snap.") || name.ends_with(".generating") {
            continue;
        }
        let Some(bytes) = whole(&folder.join(&name))? else { continue };
        // The length before the checksum is not under it.
        let body = bytes.len().checked_sub(12).filter(|length| *length > 0).map(|length| bytes.split_at(length));
        let sound = body.filter(|(body, end)| word(&end[8..]) == Some(crc32fast::hash(body))).map(|(body, _)| body);
        match sound.and_then(int64) {
            None => return Ok(Some(format!("the file `{name}` is damaged"))),
            // sled keeps it one too high, so that 0 can say `none`.
            Some(stable) if stable - 1 > log.tip => return Ok(Some("the end of the log is missing".to_owned())),
            Some(_) => {
                if sled_snapshot::missing(sound.unwrap_or_default(), there).is_some() {
                    return Ok(Some("a part of the log is missing".to_owned()));
                }
            }
        }
    }
    Ok(None)
}

/// The log as a whole, as its segments say.
#[derive(Default)]
struct Log {
    fault: Option<String>,
    /// Number and whether it is whole, of every segment.
    segments: Vec<(i64, bool)>,
    /// Where the messages end.
    tip: i64,
    /// The last message of the batch that goes furthest.
    batch_end: i64,
    /// Of every page the last message that replaced it, and the blobs from there on.
    pages: HashMap<u64, i64>,
    blobs: HashMap<(u64, i64), Option<i64>>,
}

impl Log {
    fn add(&mut self, segment: &Segment) {
        if let Some(fault) = segment.fault {
            let at = segment.number;
            self.fault.get_or_insert_with(|| format!("{fault} (segment {})", at / SEGMENT_BYTES as i64));
        }
        self.segments.push((segment.number, segment.whole));
        let end = segment.number + if segment.whole { SEGMENT_BYTES } else { segment.end } as i64;
        self.tip = self.tip.max(end);
        for message in &segment.messages {
            let body = &segment.bytes[message.body.clone()];
            match message.act {
                Act::Replace | Act::Free => {
                    let last = self.pages.entry(message.page).or_insert(message.number);
                    *last = (*last).max(message.number);
                }
                Act::Other if message.kind == BATCH => {
                    self.batch_end = self.batch_end.max(int64(body).unwrap_or(0));
                }
                _ => {}
            }
            if message.in_blob && message.page != 0 {
                self.blobs.insert((message.page, message.number), blob_number(body));
            }
        }
    }

    fn fault(&mut self) -> Option<String> {
        if self.fault.is_some() {
            return self.fault.take();
        }
        let newest = self.segments.iter().map(|(number, _)| *number).max().unwrap_or(0);
        if self.segments.iter().any(|(number, whole)| !whole && *number < newest) {
            return Some("a segment ends too early".to_owned());
        }
        if self.batch_end > self.tip {
            return Some("the end of a batch is missing".to_owned());
        }
        None
    }
}
