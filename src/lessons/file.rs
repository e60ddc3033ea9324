//! The file `lessons.txt` of the state folder. Its first line is `chimere lessons 1 N`; each of the N lines behind it is
//! the CRC-32 of a lesson in hexadecimal, a space, and the lesson as JSON. Damage costs the damaged lines alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{BYTES_MAX, Book, Lesson};
use crate::plural::counted;
use crate::store::files::write_durable;

pub const FILE: &str = "lessons.txt";
/// A copy of a damaged file; it goes when something is forgotten.
pub const DAMAGED: &str = "lessons.damaged";
const HEAD: &str = "chimere lessons ";
const FORMAT: u32 = 1;
/// The limits of a book count less than JSON with its escapes takes.
const FILE_BYTES_MAX: u64 = 8 * BYTES_MAX as u64;

/// What came of reading a file.
#[derive(Debug, PartialEq)]
pub(super) struct Read {
    pub(super) book: Book,
    /// What is wrong with it, where something is.
    pub(super) damage: Option<String>,
}

pub(super) fn write(path: &Path, book: &Book) -> io::Result<()> {
    let mut text = format!("{HEAD}{FORMAT} {}\n", book.lessons().len());
    for lesson in book.lessons() {
        let json = serde_json::to_string(&**lesson)?;
        text.push_str(&format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())));
    }
    write_durable(path, text.as_bytes())
}

/// Reads the file; an error: it is there, and must not be written over.
pub(super) fn read(path: &Path) -> Result<Read, String> {
    let shown = path.display();
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Read { book: Book::default(), damage: None });
        }
        Err(error) => return Err(format!("{shown}: {error}")),
        Ok(file) if file.len() > FILE_BYTES_MAX => {
            return Err(format!("{shown} is larger than {FILE_BYTES_MAX} bytes: move it away"));
        }
        Ok(_) => {}
    }
    let bytes = fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
    parse(&String::from_utf8_lossy(&bytes)).map_err(|why| format!("{shown} {why}"))
}

/// How many lessons a state folder has; an error says what is damaged and what to do. Nothing is written.
pub(super) fn look(state_dir: &Path) -> Result<usize, String> {
    let path = state_dir.join(FILE);
    let Read { book, damage } = read(&path).map_err(|why| format!("no lesson is in use: {why}"))?;
    if let Some(why) = damage {
        return Err(format!(
            "{} is damaged: {why}. The next start keeps the sound ones and sets the file aside; put a copy of it back \
             before, where there is one",
            path.display()
        ));
    }
    let aside = path.with_file_name(DAMAGED);
    if aside.exists() {
        return Err(format!(
            "lessons of a damaged file were lost, which is kept as {}: stop the daemon and put a copy of {} back, or \
             remove the damaged file if none of them is missed",
            aside.display(),
            path.display()
        ));
    }
    Ok(book.lessons().len())
}

fn parse(text: &str) -> Result<Read, String> {
    let (head, rest) = text.split_once('\n').unwrap_or((text, ""));
    let said = head.strip_prefix(HEAD).and_then(|numbers| numbers.split_once(' '));
    let said = said.and_then(|(format, count)| Some((format.parse::<u32>().ok()?, count.parse::<usize>().ok()?)));
    if let Some((format, _)) = said.filter(|(format, _)| *format != FORMAT) {
        return Err(format!(
            "has format {format}, this version reads {FORMAT}: start the version that wrote it, or move it away"
        ));
    }
    let lines: Vec<&str> = rest.lines().collect();
    let mut lessons = Vec::new();
    for line in &lines {
        lessons.extend(lesson(line)?.map(Arc::new));
    }
    let sound = lessons.len();
    lessons.sort_by(|a, b| a.id.cmp(&b.id));
    lessons.dedup_by(|a, b| a.id == b.id);
    let damage = match said {
        None => {
            Some(format!("its first line is damaged; {} sound", counted(sound, "lesson of it is", "lessons of it are")))
        }
        Some((_, count)) if count != sound || lines.len() != sound => {
            Some(format!("{} of {count} lessons are lost", count.max(lines.len()).saturating_sub(sound)))
        }
        Some(_) => None,
    };
    Ok(Read { book: Book::new(lessons), damage })
}

/// `None`: the line is damaged. An error: it is sound, and this version cannot read it.
fn lesson(line: &str) -> Result<Option<Lesson>, String> {
    let Some((sum, json)) = line.split_once(' ') else { return Ok(None) };
    if u32::from_str_radix(sum, 16) != Ok(crc32fast::hash(json.as_bytes())) {
        return Ok(None);
    }
    let read: Result<Lesson, _> = serde_json::from_str(json);
    let lesson =
        read.map_err(|error| format!("was written by another version ({error}): start that, or move it away"))?;
    Ok((!lesson.questions.is_empty()).then_some(lesson))
}

/// Takes away what a killed process left of a file that it was writing.
pub(super) fn sweep(path: &Path) {
    let left = |name: &str| [FILE, DAMAGED].iter().any(|file| name.starts_with(&format!(".{file}.")));
    let entries = path.parent().and_then(|folder| fs::read_dir(folder).ok());
    for entry in entries.into_iter().flatten().flatten().filter(|entry| left(&entry.file_name().to_string_lossy())) {
        let _ = fs::remove_file(entry.path());
    }
}

/// Keeps a damaged file beside the one that takes its place.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_file_name(DAMAGED);
    let bytes = fs::read(path)?;
    write_durable(&aside, &bytes)?;
    Ok(aside)
}

/// Takes away what was set aside, where it holds what is forgotten now.
pub(super) fn discard(path: &Path, holds: impl Fn(&str) -> bool) -> io::Result<()> {
    let aside = path.with_file_name(DAMAGED);
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    };
    match fs::read(&aside) {
        // One that cannot be read may hold anything.
        Ok(bytes) if !holds(&String::from_utf8_lossy(&bytes)) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => fs::remove_file(&aside).or_else(gone),
    }
}

/// Does a text of a file of lessons have this field with this value?
pub(super) fn names(text: &str, field: &str, value: &str) -> bool {
    text.contains(&format!("\"{field}\":{}", serde_json::Value::from(value)))
}
