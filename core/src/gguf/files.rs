//! The files of one model: a single one, or the parts that a converter split it into. Parts are read as if they lay one
//! behind the other: a tensor's range counts from the start of the first part.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use chimere_ffi::map::Map;

use super::error::Error;
use super::read::{Gguf, Split};

/// Parts of one model.
const PARTS_MAX: u64 = 1_024;
/// Each part begins at a multiple of so many bytes.
const PART_ALIGNMENT: u64 = 1 << 16;
/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// The open files that a header was read from: whoever maps them maps what was checked.
#[derive(Debug)]
pub struct Files {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: File,
    /// Where it begins among the bytes of all.
    start: u64,
    /// Where its tensor data begins, from its own start.
    data_start: u64,
}

impl Files {
    /// Opens and checks the model at `path`: a file, any of its parts, or the folder that holds one model.
    pub fn open(path: &Path) -> Result<(Gguf, Files), Error> {
        let path = &located(path)?;
        let (part, file) = read_part(path)?;
        let split = part.split()?;
        if split.count <= 1 {
            let data_start = part.data_start();
            let parts = vec![Part { path: path.clone(), file, start: 0, data_start }];
            return Ok((part, Files { parts }));
        }
        let names = names(path, split)?;
        Files::joined(&names)
    }

    fn joined(names: &[PathBuf]) -> Result<(Gguf, Files), Error> {
        let (mut whole, mut parts, mut start): (Option<Gguf>, _, u64) = (None, Vec::with_capacity(names.len()), 0);
        for (no, path) in (0_u64..).zip(names) {
            let within = |source| Error::Part { path: path.clone(), source: Box::new(source) };
            let (part, file) = read_part(path).map_err(within)?;
            let (found, count) = (part.split().map_err(within)?, names.len() as u64);
            if (found.no, found.count) != (no, count) {
                let (found, of) = (found.no.saturating_add(1), found.count);
                return Err(Error::WrongPart { path: path.clone(), found, of, wanted: no + 1, count });
            }
            let (len, data_start) = (part.file_len(), part.data_start());
            parts.push(Part { path: path.clone(), file, start, data_start });
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.append(part, start).map_err(within)?,
            }
            start = (start + len).next_multiple_of(PART_ALIGNMENT);
        }
        let whole = whole.ok_or(Error::Empty { what: "the list of parts".into(), at: 0 })?;
        whole.check_joined()?;
        Ok((whole, Files { parts }))
    }

    /// The file that the library is given: it finds the other parts by its name.
    pub fn first(&self) -> &Path {
        self.parts.first().map_or(Path::new(""), |part| &part.path)
    }

    /// Every file, in order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Maps all of them.
    pub fn map(&self) -> io::Result<Map> {
        Map::joined(self.parts.iter().map(|part| (part.start, &part.file)))
    }

    /// The file that has byte `at` among the bytes of all, and the byte's place there. A tensor lies in one file.
    pub fn place(&self, at: u64) -> io::Result<(&File, u64)> {
        let part = self.parts.iter().rev().find(|part| part.start <= at).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((&part.file, at - part.start))
    }

    /// Fills `bytes` from position `at` among the bytes of all, which must lie in one part.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let (file, at) = self.place(at)?;
        file.read_exact_at(bytes, at)
    }

    /// The header of each file, magic to padding.
    pub fn headers(&self) -> impl Iterator<Item = io::Result<Vec<u8>>> {
        self.parts.iter().map(|part| {
            let mut bytes = vec![0; usize::try_from(part.data_start).map_err(io::Error::other)?];
            // A header without tensors need not be padded.
            let len = part.file.metadata()?.len().min(part.data_start);
            bytes.truncate(usize::try_from(len).map_err(io::Error::other)?);
            part.file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        })
    }
}

/// The file that a path names: itself, or in a folder the one model that lies there.
pub fn located(path: &Path) -> Result<PathBuf, Error> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let unreadable = |source| Error::Read { path: path.to_owned(), source };
    let mut models = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)?.take(ENTRIES_MAX) {
        let file = entry.map_err(unreadable)?.path();
        let later = part_of(&file).is_some_and(|(_, no, _)| no > 1);
        if file.extension().is_some_and(|ending| ending == "gguf") && !later {
            models.push(file);
        }
    }
    models.sort();
    match models.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Error::NoModel { path: path.to_owned() }),
        several => {
            let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
            let names: Vec<String> = several.iter().filter_map(name).take(8).collect();
            Err(Error::SeveralModels { path: path.to_owned(), found: several.len(), names: names.join(", ") })
        }
    }
}

fn read_part(path: &Path) -> Result<(Gguf, File), Error> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.into(), source })?;
    Ok((Gguf::read_part(&file, path)?, file))
}

/// What a name says of a part: what all parts are called, its number from 1 on, and how many there are.
fn part_of(path: &Path) -> Option<(&str, u64, u64)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, no) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (digits(no) && digits(count)).then_some((prefix, no.parse().ok()?, count.parse().ok()?))
}

/// The names of all parts beside the one at `path`.
fn names(path: &Path, split: Split) -> Result<Vec<PathBuf>, Error> {
    let Split { no, count } = split;
    if count > PARTS_MAX {
        return Err(Error::TooMany { what: "the number of parts".into(), found: count, limit: PARTS_MAX });
    }
    match part_of(path) {
        Some((prefix, named, of)) if (no.checked_add(1), count) == (Some(named), of) => {
            let name = |no: u64| path.with_file_name(format!("{prefix}-{no:05}-of-{count:05}.gguf"));
            Ok((1..=count).map(name).collect())
        }
        _ => Err(Error::PartName { no: no.saturating_add(1), count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_read() {
        let part = |name: &str| part_of(Path::new(name)).map(|(prefix, no, of)| (prefix.to_owned(), no, of));
        assert_eq!(part("/m/a-b-00002-of-00010.gguf"), Some(("a-b".to_owned(), 2, 10)));
        for other in ["a.gguf", "a-2-of-3.gguf", "a-00001-of-00002.bin", "a-00001of-00002.gguf", "-of-.gguf"] {
            assert_eq!(part(other), None, "{other}");
        }
    }

    #[test]
    fn a_folder_is_the_model_that_lies_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str| fs::write(dir.path().join(name), b"").unwrap();
        assert!(matches!(located(dir.path()), Err(Error::NoModel { .. })));
        put("notes.txt");
        put("m-00002-of-00002.gguf");
        put("m-00001-of-00002.gguf");
        assert_eq!(located(dir.path()).unwrap(), dir.path().join("m-00001-of-00002.gguf"));
        put("other.gguf");
        let several = located(dir.path()).unwrap_err().to_string();
        assert!(several.contains("2 models") && several.contains("other.gguf"), "{several}");
        assert_eq!(located(&dir.path().join("other.gguf")).unwrap(), dir.path().join("other.gguf"));
    }
}
