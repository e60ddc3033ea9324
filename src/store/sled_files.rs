//! The files of sled, read without sled: which messages of its log are sound, and whether anything is damaged. When
//! sled opens a database, it cuts off or overwrites what it cannot read, so this looks first. Whatever the bytes are,
//! nothing here panics, and nothing is written.
//!
//! `db` is segments of 512 KiB: a head (checksum, log number of its first byte), then messages (checksum, kind, length,
//! segment number, page, body). A message replaces a page or changes one key of it. What is larger than an eighth of a
//! segment lies in `blobs`, and the message names it. `snap.*` says where the pages are; `conf` is text.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::sectors;

mod damage;

pub(super) use damage::damage;

pub(super) const SEGMENT_BYTES: usize = 512 << 10;
const SEGMENT_HEAD_BYTES: usize = 20;
/// No message begins nearer to the end of its segment.
const MESSAGE_HEAD_BYTES_MAX: usize = 32;
/// A blob or snapshot above this is taken for damaged, bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;
const SIGN: i64 = i64::MAX;

const CAP: u8 = 2;
const BATCH: u8 = 3;
const FREE: u8 = 4;
const KIND_MAX: u8 = 11;

/// What a message does to its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The body is the whole page.
    Replace,
    /// The body is one change.
    Change,
    Free,
    /// Nothing that is kept here.
    Other,
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Number of its first byte in the log as a whole.
    pub(super) number: i64,
    pub(super) page: u64,
    pub(super) act: Act,
    /// Its checksum holds.
    pub(super) sound: bool,
    /// The body is the number of a blob that holds what it would.
    pub(super) in_blob: bool,
    kind: u8,
    /// Of the body, in the segment.
    pub(super) body: Range<usize>,
}

/// One segment of `db`.
pub(super) struct Segment {
    /// Number of its first byte in the log; the order of segments.
    pub(super) number: i64,
    /// Where it begins in `db`.
    pub(super) place: u64,
    pub(super) messages: Vec<Message>,
    /// What is no sound message, in the segment.
    pub(super) gaps: Vec<Range<usize>>,
    /// Where it ends before it is full: what lies behind, of the time when it was filled before.
    pub(super) older: Range<usize>,
    pub(super) bytes: Vec<u8>,
    /// How far the messages go without a gap.
    end: usize,
    /// Filled to its end.
    whole: bool,
    fault: Option<&'static str>,
}

impl Segment {
    /// One of which nothing can be read.
    fn unread(place: u64) -> Segment {
        let (messages, gaps, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Segment { number: 0, place, messages, gaps, older: 0..0, bytes, end: 0, whole: false, fault: None }
    }
}

/// A cursor over bytes that nobody vouches for.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Reader { bytes, at }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(super) fn int64(&mut self) -> Option<i64> {
        self.take(8).and_then(int64)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    /// A number in sled's variable length.
    pub(super) fn number(&mut self) -> Option<u64> {
        Some(match self.byte()? {
            first @ 0..=240 => u64::from(first),
            first @ 241..=248 => 240 + 256 * (u64::from(first) - 241) + u64::from(self.byte()?),
            249 => 2288 + 256 * u64::from(self.byte()?) + u64::from(self.byte()?),
            first => {
                let digits = self.take(usize::from(first) - 247)?;
                let mut wide = [0; 8];
                wide[..digits.len()].copy_from_slice(digits);
                u64::from_le_bytes(wide)
            }
        })
    }

    fn string(&mut self) -> Option<Range<usize>> {
        let length = usize::try_from(self.number()?).ok()?;
        let start = self.at;
        self.take(length).map(|_| start..self.at)
    }
}

fn int64(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// The message at `at`, of the segment `number`-th in the log where that is known. `None`: none can be there.
fn message(bytes: &[u8], at: usize, segment: Option<u64>) -> Option<Message> {
    let mut reader = Reader::new(bytes, at);
    let sum = word(reader.take(4)?)?;
    let kind = reader.byte().filter(|kind| (1..=KIND_MAX).contains(kind))?;
    let length = usize::try_from(reader.number()?).ok()?;
    let of = reader.number()?;
    if segment.is_some_and(|segment| segment != of) {
        return None;
    }
    let page = reader.number()?;
    let (start, body) = (reader.at, reader.take(length)?);
    let mut hash = crc32fast::Hasher::new();
    hash.update(body);
    hash.update(&bytes[at + 4..start]);
    let number = i64::try_from(of).ok()?.checked_mul(SEGMENT_BYTES as i64)?.checked_add(at as i64)?;
    let act = match kind {
        8 | 9 => Act::Replace,
        10 | 11 => Act::Change,
        FREE => Act::Free,
        _ => Act::Other,
    };
    let sound = hash.finalize() ^ u32::MAX == sum;
    Some(Message { number, page, act, sound, in_blob: matches!(kind, 7 | 9 | 11), kind, body: start..start + length })
}

/// Reads one segment. `None`: it was never written, or given back.
fn segment(place: u64, bytes: Vec<u8>) -> Option<Segment> {
    let messages_end = SEGMENT_BYTES - MESSAGE_HEAD_BYTES_MAX;
    if is_blank(&bytes) {
        return None;
    }
    let known = head(&bytes);
    let mut of = known.map(|number| number as u64 / SEGMENT_BYTES as u64);
    let mut read = Segment {
        number: known.unwrap_or(0),
        place,
        messages: Vec::new(),
        gaps: Vec::new(),
        older: 0..0,
        bytes,
        end: SEGMENT_HEAD_BYTES,
        whole: false,
        fault: known.is_none().then_some("the head of a segment is damaged"),
    };
    let mut at = SEGMENT_HEAD_BYTES;
    while at <= messages_end && at < read.bytes.len() {
        let here = message(&read.bytes, at, of);
        if let Some(found) = here.clone().filter(|found| found.sound) {
            of.get_or_insert((found.number / SEGMENT_BYTES as i64) as u64);
            at = found.body.end;
            if read.gaps.is_empty() {
                read.end = at;
            }
            read.whole |= found.kind == CAP;
            read.messages.push(found);
            if read.whole {
                break;
            }
            continue;
        }
        let Some(next) = next_sound(&read.bytes, at, here.as_ref(), of, messages_end) else {
            let blank = is_blank(read.bytes.get(at..messages_end).unwrap_or(&read.bytes[at..]));
            let older =
                here.is_none() && !blank && holds_older(&read.bytes, at, of) && !is_one_off(&mut read.bytes, at, of);
            if !blank && !older {
                read.fault = read.fault.or(Some("a message is damaged or was not written to its end"));
            }
            read.messages.extend(here.filter(|_| of.is_some()));
            let rest = at..read.bytes.len();
            read.gaps.extend((!older).then(|| rest.clone()));
            read.older = if older { rest } else { 0..0 };
            read.number = of.map_or(0, |of| of as i64 * SEGMENT_BYTES as i64);
            return Some(read);
        };
        read.fault = read.fault.or(Some("a message is damaged"));
        read.messages.extend(here);
        read.gaps.push(at..next);
        at = next;
    }
    read.older = at.min(read.bytes.len())..read.bytes.len();
    read.whole |= at > messages_end;
    read.number = of.map_or(0, |of| of as i64 * SEGMENT_BYTES as i64);
    Some(read)
}

/// Where the next sound message of the segment begins behind the damage at `at`.
fn next_sound(bytes: &[u8], at: usize, here: Option<&Message>, of: Option<u64>, end: usize) -> Option<usize> {
    let sound = |&at: &usize| message(bytes, at, of).is_some_and(|found| found.sound);
    let behind = here.map(|here| here.body.end).filter(|&next| next <= end).filter(sound);
    behind.or_else(|| (at + 1..=end.min(bytes.len())).find(sound))
}

/// Is there a sound message behind `from` of the time when the segment was filled before? Its closing one is, at least.
fn holds_older(bytes: &[u8], from: usize, of: Option<u64>) -> bool {
    let now = of.map_or(i64::MAX, |of| of as i64 * SEGMENT_BYTES as i64);
    (from..bytes.len()).any(|at| message(bytes, at, None).is_some_and(|found| found.sound && found.number < now))
}

/// Whether a message of this time begins at `at` that one byte of its head hides: with another one there its checksum
/// holds. More damage than that leaves nothing to tell such a head from the rest of an older message. Then the log's last
/// message passes for one that was never written; of a batch the missing end is seen all the same. So the most that can
/// be lost unsaid is one change of one key, where nothing came behind it and no snapshot knows it.
fn is_one_off(bytes: &mut [u8], at: usize, of: Option<u64>) -> bool {
    let heads = at..bytes.len().min(at + MESSAGE_HEAD_BYTES_MAX);
    of.is_some()
        && heads.into_iter().any(|place| {
            let own = bytes[place];
            let found = (0..=u8::MAX).any(|byte| {
                bytes[place] = byte;
                message(bytes, at, of).is_some_and(|found| found.sound)
            });
            bytes[place] = own;
            found
        })
}

/// The log number in a segment's head, where its checksum holds.
fn head(bytes: &[u8]) -> Option<i64> {
    let sum = crc32fast::hash(bytes.get(4..SEGMENT_HEAD_BYTES)?);
    let number = int64(&bytes[4..])? ^ SIGN;
    (word(bytes)? ^ u32::MAX == sum && number >= 0 && number % SEGMENT_BYTES as i64 == 0).then_some(number)
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Calls for every segment of `db` that was written, in the order of the file.
pub(super) fn segments(folder: &Path, mut each: impl FnMut(Segment)) -> io::Result<()> {
    let file = match File::open(folder.join("db")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let length = file.metadata()?.len();
    for place in (0..length).step_by(SEGMENT_BYTES) {
        if let Some(segment) = segment_at(&file, place)? {
            each(segment);
        }
    }
    Ok(())
}

/// The segment at a place of `db`, where it was written.
pub(super) fn segment_at(db: &File, place: u64) -> io::Result<Option<Segment>> {
    let left = db.metadata()?.len().saturating_sub(place).min(SEGMENT_BYTES as u64);
    let mut bytes = vec![0; left as usize];
    let unreadable = sectors::read(db, &mut bytes, place)?;
    let Some(mut segment) = segment(place, bytes) else {
        let lost = "a segment cannot be read from the disk";
        return Ok(unreadable.then(|| Segment { fault: Some(lost), ..Segment::unread(place) }));
    };
    if unreadable {
        segment.fault = Some("a part of the file `db` cannot be read from the disk");
    }
    Ok(Some(segment))
}

/// Keys, whole, and where the value of each lies.
pub(super) type Items = Vec<(Vec<u8>, Range<usize>)>;

/// What a page holds: what its keys begin with, keys and where their values lie in the body. Of a damaged body what can be read of it.
pub(super) fn page(body: &[u8]) -> Option<(Vec<u8>, Items)> {
    let mut reader = Reader::new(body, 0);
    let (_next, _merging_child, _merging) = (reader.number()?, reader.number()?, reader.byte()?);
    let prefix_bytes = usize::from(reader.byte()?);
    let (low, _high) = (reader.string()?, reader.string()?);
    let prefix = body[low].get(..prefix_bytes)?.to_vec();
    if reader.byte()? != 0 {
        // An index: no records.
        return Some((prefix, Vec::new()));
    }
    let count = reader.number()?;
    let mut keys = Vec::new();
    for _ in 0..count {
        let Some(key) = reader.string() else { break };
        keys.push([&prefix, &body[key]].concat());
    }
    let items = keys.into_iter().map_while(|key| reader.string().map(|value| (key, value)));
    let items = items.collect();
    Some((prefix, items))
}

/// One change of a page: the key without the page's prefix, and where its value lies; `None` for one that was removed.
pub(super) fn change(body: &[u8]) -> Option<(&[u8], Option<Range<usize>>)> {
    let mut reader = Reader::new(body, 0);
    match reader.byte()? {
        0 => {
            let key = reader.string()?;
            Some((&body[key], Some(reader.string()?)))
        }
        1 => Some((&body[reader.string()?], None)),
        _ => None,
    }
}

/// The number of the blob that a message names.
pub(super) fn blob_number(body: &[u8]) -> Option<i64> {
    int64(body)
}

pub(super) fn blob_path(folder: &Path, number: i64) -> PathBuf {
    folder.join("blobs").join(number.to_string())
}

/// The numbers of all blobs that are there.
pub(super) fn blob_numbers(folder: &Path) -> io::Result<Vec<i64>> {
    match fs::read_dir(folder.join("blobs")) {
        Ok(blobs) => Ok(blobs.flatten().filter_map(|blob| blob.file_name().to_str()?.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Bytes before the body of a blob: its checksum and its kind.
pub(super) const BLOB_HEAD_BYTES: usize = 5;

/// A blob's bytes, its head included, and whether its checksum holds. `None`: it is not there.
pub(super) fn blob(path: &Path) -> io::Result<Option<(Vec<u8>, bool)>> {
    let Some(bytes) = whole(path)? else { return Ok(None) };
    let sound = bytes.len() >= BLOB_HEAD_BYTES && word(&bytes) == Some(crc32fast::hash(&bytes[4..]));
    Ok(Some((bytes, sound)))
}

fn whole(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if sectors::is_of_the_disk(&error) => return Ok(Some(Vec::new())),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; file.metadata()?.len().min(FILE_BYTES_MAX) as usize];
    // What cannot be read is zeros, and no checksum holds over them.
    sectors::read(&file, &mut bytes, 0)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_are_read() {
        let read = |bytes: &[u8]| Reader::new(bytes, 0).number();
        for (bytes, number) in [
            (&[0u8][..], Some(0)),
            (&[240], Some(240)),
            (&[241, 0], Some(240)),
            (&[248, 255], Some(2287)),
            (&[249, 0, 0], Some(2288)),
            (&[250, 1, 2, 3], Some(0x030201)),
            (&[255, 1, 0, 0, 0, 0, 0, 0, 0], Some(1)),
            (&[250, 1, 2], None),
            (&[], None),
        ] {
            assert_eq!(read(bytes), number, "{bytes:?}");
        }
    }
}
