//! Files of tables: `NAME.engr`, or `NAME.engr.gz`, which is the same packed. The shipped ones are packed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::format::{EXTENSION, EngramError};

/// The name that a table's file has, or `None` where it is no table's file.
pub fn name_of(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(".gz").unwrap_or(name).strip_suffix(EXTENSION)?.strip_suffix('.')
}

pub fn is_packed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// The bytes of a table, unpacked; an error where there are more than `bytes_max`.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, EngramError> {
    let io = |source| EngramError::Io { path: path.display().to_string(), source };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    match is_packed(path) {
        true => MultiGzDecoder::new(file).take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| {
            match error.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                    EngramError::Damaged("it cannot be unpacked")
                }
                _ => io(error),
            }
        })?,
        false => file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(io)?,
    };
    match bytes.len() as u64 {
        found if found > bytes_max => Err(EngramError::TooLarge { what: "the table's size", found, limit: bytes_max }),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_packed_file_is_read_like_the_plain_one() {
        let dir = tempfile::tempdir().unwrap();
        let table = (0..9000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let (plain, packed) = (dir.path().join("a.engr"), dir.path().join("a.engr.gz"));
        std::fs::write(&plain, &table).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&table).unwrap();
        let small = gzip.finish().unwrap();
        std::fs::write(&packed, &small).unwrap();
        for path in [&plain, &packed] {
            assert_eq!(name_of(path), Some("a"));
            assert!(read(path, table.len() as u64).unwrap() == table);
            let error = read(path, 100).unwrap_err();
            assert!(matches!(error, EngramError::TooLarge { found: 101, limit: 100, .. }), "{error}");
        }
        for (cut, turned) in [(small.len() - 9, 0), (0, 0), (small.len(), small.len() / 2)] {
            let mut damaged = small[..cut].to_vec();
            if turned > 0 {
                damaged[turned] ^= 0x55;
            }
            std::fs::write(&packed, damaged).unwrap();
            let error = read(&packed, 1 << 20).unwrap_err();
            assert!(matches!(error, EngramError::Damaged(_)), "{cut} {turned}: {error}");
        }
        assert!(matches!(read(dir.path(), 100), Err(EngramError::Io { .. })));
        assert_eq!(
            ["a.engr.sig", "engr", "a.gz", ".engr"].map(|n| name_of(Path::new(n))),
            [None, None, None, Some("")]
        );
    }
}
