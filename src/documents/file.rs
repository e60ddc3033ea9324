//! A document on the disk: one file with a first line, what is known of the document as JSON in a second, and its text.
//! It is written aside and renamed, so it is there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::Document;
use crate::store::files::write_durable;

/// The ends of the names of a document's files.
pub const END: &str = "document";
pub const VECTORS_END: &str = "vectors";

const MAGIC: &str = "chimere document 1";
/// Longest first line, bytes.
const FIRST_BYTES_MAX: usize = 64;
/// Bytes within which a file names its collection.
const NAMED_BYTES: u64 = 512;

/// A document, and where in its file its text begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filed {
    pub document: Document,
    pub text_at: u64,
}

pub(super) fn write(path: &Path, document: &Document, text: &str) -> io::Result<u64> {
    let known = serde_json::to_string(document)?;
    let body = format!("{known}\n{text}");
    let first = format!("{MAGIC} {:08x} {}\n", crc32fast::hash(body.as_bytes()), known.len());
    let text_at = first.len() + known.len() + 1;
    write_durable(path, &[first.as_bytes(), body.as_bytes()].concat())?;
    Ok(text_at as u64)
}

/// What a file says, all of it checked; the error says what is wrong with it.
pub(super) fn read(path: &Path) -> Result<(Filed, String), String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let wrong = |what: &str| what.to_owned();
    let end =
        bytes.iter().take(FIRST_BYTES_MAX).position(|byte| *byte == b'\n').ok_or_else(|| wrong("no first line"))?;
    let first = std::str::from_utf8(&bytes[..end]).map_err(|_| wrong("its first line is no text"))?;
    let rest = first.strip_prefix(MAGIC).ok_or_else(|| wrong("it is of another version"))?;
    let (crc, length) = rest.trim().split_once(' ').ok_or_else(|| wrong("its first line is not whole"))?;
    let body = &bytes[end + 1..];
    if u32::from_str_radix(crc, 16) != Ok(crc32fast::hash(body)) {
        return Err(wrong("its sum is not what it was"));
    }
    let length: usize = length.parse().map_err(|_| wrong("its first line is not whole"))?;
    let (known, text) = body.split_at_checked(length).ok_or_else(|| wrong("it is too short"))?;
    let document: Document = serde_json::from_slice(known).map_err(|error| error.to_string())?;
    let text = String::from_utf8(text.get(1..).unwrap_or_default().to_vec()).map_err(|error| error.to_string())?;
    Ok((Filed { document, text_at: (end + 1 + length + 1) as u64 }, text))
}

/// A part of a document's text.
pub(super) fn passage(path: &Path, text_at: u64, start: u64, end: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(text_at + start))?;
    let mut text = String::new();
    let length = end.saturating_sub(start);
    file.take(length).read_to_string(&mut text)?;
    match text.len() as u64 == length {
        true => Ok(text),
        false => Err(io::Error::other("the file is shorter than it was")),
    }
}

/// Does the beginning of a file, damaged or not, name this?
pub(super) fn names(path: &Path, what: &str) -> bool {
    let mut begins = Vec::new();
    let read = File::open(path).and_then(|file| file.take(NAMED_BYTES).read_to_end(&mut begins));
    read.is_ok() && String::from_utf8_lossy(&begins).contains(what)
}
