//! The archives that DOCX and XLSX files are: opened if what they declare to unpack to is bearable, and each part read no
//! further than that, whatever it declared.

use std::io::{self, BufReader, Cursor, Read};

use quick_xml::Reader;
use zip::ZipArchive;
use zip::result::ZipError;

use super::read::ReadError;

/// Parts of an archive, and what all of them may unpack to.
const PARTS_MAX: usize = 10_000;
const UNPACKED_MIB_MAX: u64 = 512;
/// How files of the old office formats begin, and those that are locked with a password.
const OLD: [u8; 4] = [0xd0, 0xcf, 0x11, 0xe0];

pub(super) type Archive<'b> = ZipArchive<Cursor<&'b [u8]>>;

/// Opens a file of this kind.
pub(super) fn open<'b>(kind: &str, bytes: &'b [u8]) -> Result<Archive<'b>, ReadError> {
    let damaged = |why: String| ReadError::Damaged { kind: kind.to_owned(), why };
    if bytes.starts_with(&OLD) {
        return Err(damaged("it is locked with a password, or in the old format of office programs".to_owned()));
    }
    let archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| damaged(error.to_string()))?;
    if archive.len() > PARTS_MAX {
        return Err(damaged(format!("it has more than {PARTS_MAX} parts")));
    }
    match archive.decompressed_size() {
        Some(declared) if declared > u128::from(UNPACKED_MIB_MAX << 20) => Err(ReadError::Unpacks(UNPACKED_MIB_MAX)),
        _ => Ok(archive),
    }
}

/// Reads the XML of a part; absent where the archive has none of this name.
pub(super) fn part<'a, 'b>(
    archive: &'a mut Archive<'b>,
    kind: &str,
    name: &str,
) -> Result<Option<Reader<impl io::BufRead + use<'a, 'b>>>, ReadError> {
    let part = match archive.by_name(name) {
        Ok(part) => part,
        Err(ZipError::FileNotFound) => return Ok(None),
        Err(error) => return Err(ReadError::Damaged { kind: kind.to_owned(), why: error.to_string() }),
    };
    let mut reader = Reader::from_reader(BufReader::new(Bounded { part, left: UNPACKED_MIB_MAX << 20 }));
    reader.config_mut().expand_empty_elements = true;
    Ok(Some(reader))
}

/// Why the XML of a part is not read on.
pub(super) fn broken(kind: &str, error: &quick_xml::Error) -> ReadError {
    match error {
        quick_xml::Error::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            ReadError::Unpacks(UNPACKED_MIB_MAX)
        }
        error => ReadError::Damaged { kind: kind.to_owned(), why: error.to_string() },
    }
}

/// Ends with an error behind so many bytes.
struct Bounded<R> {
    part: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.part.read(into)?;
        self.left = self.left.checked_sub(read as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}
