//! Files to text: what kind a file is of, its characters, and its blocks. A block is a piece that stands for itself, such
//! as a paragraph, a function or a row, under the heading that it belongs to. What is read here takes time in proportion to the
//! bytes; kinds of which a stranger's file may do worse are read [`apart`](super::apart).

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use serde::{Deserialize, Serialize};

use super::{docx, html, pdf, xlsx};

/// Longest heading path that is kept, characters; its end says the most.
pub(super) const HEADING_CHARS_MAX: usize = 200;
/// Levels of headings.
const LEVELS: usize = 6;
/// Bytes at the beginning of a file that tell whether it is text.
const SNIFFED: usize = 8 << 10;

/// What a file is, for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Markdown,
    Html,
    Csv,
    Source,
    Pdf,
    Docx,
    Xlsx,
}

impl Kind {
    /// Its file is read in a process apart.
    pub fn is_read_apart(self) -> bool {
        matches!(self, Kind::Pdf | Kind::Docx | Kind::Xlsx)
    }
}

/// The kinds with their media types and the ends of their names.
pub const KINDS: &[(Kind, &str, &[&str])] = &[
    (Kind::Text, "text/plain", &["txt", "text", "log", "org", "rst", "tex", "srt", "vtt", "eml"]),
    (Kind::Markdown, "text/markdown", &["md", "markdown", "mdown"]),
    (Kind::Html, "text/html", &["html", "htm", "xhtml"]),
    (Kind::Csv, "text/csv", &["csv", "tsv"]),
    (
        Kind::Source,
        "text/x-source",
        &[
            "c", "h", "cc", "cpp", "hpp", "cs", "cu", "go", "java", "js", "mjs", "jsx", "ts", "tsx", "kt", "lua",
            "php", "pl", "py", "r", "rb", "rs", "scala", "sh", "bash", "sql", "swift", "zig", "css", "json", "toml",
            "yaml", "yml", "ini", "conf", "xml",
        ],
    ),
    (Kind::Pdf, "application/pdf", &["pdf"]),
    (Kind::Docx, "application/vnd.openxmlformats-officedocument.wordprocessingml.document", &["docx"]),
    (Kind::Xlsx, "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", &["xlsx"]),
];

/// Why a file cannot be read as a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ReadError {
    #[error("`{what}` is no kind of file that is read here: known are {}", known())]
    Unknown { what: String },
    #[error("the file is not text, whatever its name says: it holds bytes that no text has")]
    Binary,
    #[error("the file has no text in it")]
    NoText,
    #[error("the file has more than {0} passages: split it")]
    TooLong(usize),
    #[error("the file has no text: it may be a scan. Give it a text layer first, by text recognition (OCR)")]
    Scan,
    #[error("the file is locked with a password: save it without one")]
    Locked,
    #[error("the file cannot be read as {kind}: {why}")]
    Damaged { kind: String, why: String },
    #[error("the file unpacks to more than {0} MiB: split it")]
    Unpacks(u64),
    /// What its limits ended says no more.
    #[error("the file was not read: {0}. Save it anew or split it")]
    Ended(String),
    /// No fault of the file.
    #[error("the process that reads the file cannot be started: {0}")]
    NoReader(String),
}

fn known() -> String {
    let ends = KINDS.iter().flat_map(|(_, _, ends)| ends.iter());
    ends.map(|end| format!(".{end}")).collect::<Vec<_>>().join(" ")
}

/// The kind of a file, by its media type where that says one, else by the end of its name.
pub fn kind(name: &str, media_type: Option<&str>) -> Result<(Kind, &'static str), ReadError> {
    let essence = media_type.and_then(|kind| kind.split(';').next()).map(|kind| kind.trim().to_ascii_lowercase());
    let of_type = |kind: &str| match kind {
        "application/xhtml+xml" => Some((Kind::Html, "text/html")),
        "text/x-markdown" => Some((Kind::Markdown, "text/markdown")),
        "text/tab-separated-values" => Some((Kind::Csv, "text/csv")),
        kind => KINDS.iter().find(|(_, known, _)| *known == kind).map(|(kind, name, _)| (*kind, *name)),
    };
    // What browsers say of a file that they do not know tells nothing, and `text/plain` is said of any text.
    let said = essence.as_deref().filter(|kind| !matches!(*kind, "" | "application/octet-stream"));
    if let Some(found) = said.filter(|kind| *kind != "text/plain").and_then(of_type) {
        return Ok(found);
    }
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let end = file.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    let by_name = KINDS.iter().find(|(_, _, ends)| end.as_deref().is_some_and(|end| ends.contains(&end)));
    // What is sent as text is text, also under the name of what it was taken from.
    let is_text = |kind: &Kind| said == Some("text/plain") && kind.is_read_apart();
    if let Some((kind, media_type, _)) = by_name.filter(|(kind, ..)| !is_text(kind)) {
        return Ok((*kind, media_type));
    }
    if let Some(found) = said.and_then(of_type) {
        return Ok(found);
    }
    let what = match (end, said) {
        (Some(end), _) => format!(".{}", end.chars().take(20).collect::<String>()),
        (None, Some(said)) => said.chars().take(60).collect(),
        (None, None) => file.chars().take(60).collect(),
    };
    Err(ReadError::Unknown { what })
}

/// A piece of the text under its heading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub start: usize,
    pub end: usize,
    /// Which heading path; 0: none.
    pub heading: u32,
    /// From 1.
    pub page: Option<u32>,
    /// The number of its sheet, from 1, and its first and last row.
    pub rows: Option<(u32, u32, u32)>,
    /// It begins a passage of its own, as a function does.
    pub apart: bool,
}

/// What was read of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    pub text: String,
    pub title: Option<String>,
    /// Heading paths; the first is empty.
    pub headings: Vec<String>,
    pub blocks: Vec<Block>,
    /// Names of a workbook's sheets.
    pub sheets: Vec<String>,
    /// Pages that could not be read.
    pub unread_pages: Vec<u32>,
}

/// Reads a file of this kind here, whatever it may do to its reader.
pub fn read(kind: Kind, bytes: &[u8]) -> Result<Reading, ReadError> {
    let reading = match kind {
        Kind::Text => paragraphs(characters(bytes)?),
        Kind::Markdown => markdown(characters(bytes)?),
        Kind::Html => html::read(&characters(bytes)?),
        Kind::Csv => table(characters(bytes)?),
        Kind::Source => source(characters(bytes)?),
        Kind::Pdf => pdf::read(bytes)?,
        Kind::Docx => docx::read(bytes)?,
        Kind::Xlsx => xlsx::read(bytes)?,
    };
    if reading.text.trim().is_empty() || reading.blocks.is_empty() {
        return Err(ReadError::NoText);
    }
    Ok(reading)
}

/// The characters of a file: UTF-8, UTF-16 that says so, else Windows-1252.
fn characters(bytes: &[u8]) -> Result<String, ReadError> {
    if let Some((encoding, _)) = Encoding::for_bom(bytes) {
        return Ok(encoding.decode_with_bom_removal(bytes).0.into_owned());
    }
    if bytes.iter().take(SNIFFED).any(|byte| *byte == 0) {
        return Err(ReadError::Binary);
    }
    match UTF_8.decode_without_bom_handling_and_without_replacement(bytes) {
        Some(text) => Ok(text.into_owned()),
        None => {
            // Text of the old kind has next to no control characters.
            let strange = bytes.iter().filter(|b| b.is_ascii_control() && !b.is_ascii_whitespace()).count();
            if strange > bytes.len() / 100 {
                return Err(ReadError::Binary);
            }
            Ok(WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned())
        }
    }
}

/// Lines with where they begin; the end of the line is not part of them.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split_inclusive('\n').map(move |line| {
        let start = at;
        at += line.len();
        (start, line.trim_end_matches(['\n', '\r']))
    })
}

/// The headings that stand above a place, and their paths.
#[derive(Debug)]
pub(super) struct Headings {
    open: [Option<String>; LEVELS],
    paths: Vec<String>,
}

impl Default for Headings {
    fn default() -> Self {
        Headings { open: Default::default(), paths: vec![String::new()] }
    }
}

impl Headings {
    /// A heading of this level (from 1) begins.
    pub(super) fn begin(&mut self, level: usize, text: &str) {
        let at = level.clamp(1, LEVELS) - 1;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.open[at..].iter_mut().for_each(|open| *open = None);
        self.open[at] = Some(text).filter(|text| !text.is_empty());
        let path = self.open.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" > ");
        self.paths.push(last(&path, HEADING_CHARS_MAX));
    }

    pub(super) fn now(&self) -> u32 {
        (self.paths.len() - 1) as u32
    }

    pub(super) fn paths(self) -> Vec<String> {
        self.paths
    }
}

/// The last characters of a text.
fn last(text: &str, chars_max: usize) -> String {
    let skip = text.chars().count().saturating_sub(chars_max);
    text.chars().skip(skip).collect()
}

/// Blocks that are made line by line.
#[derive(Default)]
struct Builder {
    blocks: Vec<Block>,
    /// Where the block under way begins, and whether it stands apart.
    open: Option<(usize, bool)>,
}

impl Builder {
    fn take(&mut self, start: usize, apart: bool) {
        self.open.get_or_insert((start, apart));
    }

    fn end(&mut self, end: usize, heading: u32) {
        if let Some((start, apart)) = self.open.take() {
            self.blocks.push(Block { start, end, heading, apart, ..Block::default() });
        }
    }
}

fn paragraphs(text: String) -> Reading {
    let mut builder = Builder::default();
    for (start, line) in lines(&text) {
        match line.trim().is_empty() {
            true => builder.end(start, 0),
            false => builder.take(start, false),
        }
    }
    builder.end(text.len(), 0);
    Reading { headings: vec![String::new()], blocks: builder.blocks, text, ..Reading::default() }
}

/// Functions and their like: what begins at the margin behind an empty line.
fn source(text: String) -> Reading {
    let mut builder = Builder::default();
    let mut behind_empty = true;
    for (start, line) in lines(&text) {
        if line.trim().is_empty() {
            behind_empty = true;
            continue;
        }
        if behind_empty && !line.starts_with([' ', '\t', '}', ')']) {
            builder.end(start, 0);
        }
        builder.take(start, true);
        behind_empty = false;
    }
    builder.end(text.len(), 0);
    Reading { headings: vec![String::new()], blocks: builder.blocks, text, ..Reading::default() }
}

/// The level and text of a line such as `## Heading ##`.
fn heading(line: &str) -> Option<(usize, &str)> {
    let rest = line.trim_start_matches('#');
    let level = line.len() - rest.len();
    let fits = (1..=LEVELS).contains(&level) && (rest.is_empty() || rest.starts_with([' ', '\t']));
    fits.then(|| (level, rest.trim().trim_end_matches('#').trim_end()))
}

/// The mark that opens or closes a fence of code.
fn fence(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let end = line.find(|c| !line.starts_with(c)).unwrap_or(line.len());
    let mark = &line[..end];
    (mark.len() >= 3 && (mark.starts_with('`') || mark.starts_with('~'))).then_some(mark)
}

fn markdown(text: String) -> Reading {
    let (mut builder, mut headings) = (Builder::default(), Headings::default());
    let (mut fenced, mut title): (Option<String>, Option<String>) = (None, None);
    // A line that an underline makes a heading of.
    let mut above: Option<(usize, String)> = None;
    for (start, line) in lines(&text) {
        if let Some(mark) = &fenced {
            if fence(line).is_some_and(|close| close.starts_with(mark.as_str()) && line.trim() == close) {
                fenced = None;
            }
            continue;
        }
        let under = line.trim();
        let underlined = !under.is_empty()
            && (under.chars().all(|c| c == '=') || under.len() > 1 && under.chars().all(|c| c == '-'));
        if let Some(mark) = fence(line) {
            builder.take(start, false);
            fenced = Some(mark.to_owned());
            above = None;
        } else if let Some((level, said)) = heading(line) {
            builder.end(start, headings.now());
            headings.begin(level, said);
            builder.take(start, false);
            title = title.or_else(|| Some(said.to_owned()));
            above = None;
        } else if let Some((_, said)) = above.take_if(|_| underlined) {
            // The block under way is that one line.
            let began = builder.open.take();
            headings.begin(if under.starts_with('=') { 1 } else { 2 }, &said);
            builder.open = began;
            title = title.or(Some(said));
        } else if under.is_empty() {
            builder.end(start, headings.now());
            above = None;
        } else {
            above = builder.open.is_none().then(|| (start, under.to_owned()));
            builder.take(start, false);
        }
    }
    builder.end(text.len(), headings.now());
    let title = title.filter(|title| !title.is_empty());
    Reading { title, headings: headings.paths(), blocks: builder.blocks, text, ..Reading::default() }
}

/// A table of values: each row is a block, under the names of its columns.
fn table(text: String) -> Reading {
    let first = text.lines().next().unwrap_or_default();
    let count = |mark: char| first.matches(mark).count();
    let delimiter = [',', ';', '\t', '|'].into_iter().rev().max_by_key(|mark| count(*mark)).unwrap_or(',');
    let mut builder = csv::ReaderBuilder::new();
    let mut reader = builder.has_headers(false).flexible(true).delimiter(delimiter as u8).from_reader(text.as_bytes());
    let (mut blocks, mut columns) = (Vec::new(), String::new());
    let mut record = csv::ByteRecord::new();
    while reader.read_byte_record(&mut record).unwrap_or(false) {
        let start = record.position().map_or(0, |place| place.byte() as usize);
        let end = (reader.position().byte() as usize).min(text.len());
        if columns.is_empty() {
            let names = record.iter().map(|field| String::from_utf8_lossy(field).trim().to_owned());
            columns = names.collect::<Vec<_>>().join(" | ").chars().take(HEADING_CHARS_MAX).collect();
        }
        if start < end && text.is_char_boundary(start) && text.is_char_boundary(end) {
            blocks.push(Block { start, end, heading: 1, ..Block::default() });
        }
    }
    Reading { headings: vec![String::new(), columns], blocks, text, ..Reading::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(kind: Kind, text: &str) -> Vec<(String, String)> {
        let reading = read(kind, text.as_bytes()).unwrap();
        let of = |block: &Block| {
            let heading = reading.headings[block.heading as usize].clone();
            (heading, reading.text[block.start..block.end].trim().to_owned())
        };
        reading.blocks.iter().map(of).collect()
    }

    fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
        wanted.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn headings_of_markdown_stand_above_what_follows_them() {
        let text = "Intro\n\n# House\n\nOne.\n\n## Boiler\nTwo\nlines.\n\n```\n# no heading\n\nstill code\n```\n\n# Garden #\nThree.\n\nOld\n===\nFour.\n";
        let wanted = [
            ("", "Intro"),
            ("House", "# House"),
            ("House", "One."),
            ("House > Boiler", "## Boiler\nTwo\nlines."),
            ("House > Boiler", "```\n# no heading\n\nstill code\n```"),
            ("Garden", "# Garden #\nThree."),
            ("Old", "Old\n===\nFour."),
        ];
        assert_eq!(blocks(Kind::Markdown, text), pairs(&wanted));
        assert_eq!(read(Kind::Markdown, text.as_bytes()).unwrap().title.as_deref(), Some("House"));
    }

    #[test]
    fn functions_rows_and_paragraphs_are_blocks() {
        let code = "use a;\n\nfn one() {\n    1\n\n    + 2\n}\n\nfn two() {}\n";
        let wanted = [("", "use a;"), ("", "fn one() {\n    1\n\n    + 2\n}"), ("", "fn two() {}")];
        assert_eq!(blocks(Kind::Source, code), pairs(&wanted));
        let rows = "name;phone\n\"Ada\n Lovelace\";12\nBob;13";
        let names = "name | phone";
        let wanted = [(names, "name;phone"), (names, "\"Ada\n Lovelace\";12"), (names, "Bob;13")];
        assert_eq!(blocks(Kind::Csv, rows), pairs(&wanted));
        assert_eq!(blocks(Kind::Text, "a\nb\n \n\nc"), pairs(&[("", "a\nb"), ("", "c")]));
    }

    #[test]
    fn a_kind_is_known_by_type_or_name_and_others_are_refused_with_the_list() {
        for (name, said, kind_wanted) in [
            ("a.MD", None, Kind::Markdown),
            ("a.b/notes.txt", None, Kind::Text),
            ("page", Some("text/html; charset=utf-8"), Kind::Html),
            ("a.md", Some("text/plain"), Kind::Markdown),
            ("note", Some("text/plain"), Kind::Text),
            ("a.csv", Some("application/octet-stream"), Kind::Csv),
            ("main.rs", None, Kind::Source),
        ] {
            assert_eq!(kind(name, said).unwrap().0, kind_wanted, "{name} {said:?}");
        }
        for (name, said, what) in
            [("a.xyz", None, "`.xyz`"), ("note", None, "`note`"), ("x", Some("image/png"), "`image/png`")]
        {
            let why = kind(name, said).unwrap_err().to_string();
            assert!(why.starts_with(what) && why.contains(".txt .text") && why.contains(".md"), "{why}");
        }
    }

    #[test]
    fn characters_are_read_in_each_encoding_and_bytes_without_text_are_refused() {
        let utf16: Vec<u8> = "\u{feff}été".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in ["été".as_bytes(), b"\xef\xbb\xbf\xc3\xa9t\xc3\xa9", b"\xe9t\xe9", &utf16] {
            assert_eq!(read(Kind::Text, bytes).unwrap().text, "été", "{bytes:?}");
        }
        assert_eq!(read(Kind::Text, b"PK\x03\x04\0\0"), Err(ReadError::Binary));
        assert_eq!(read(Kind::Text, b"\xff\x01\x02\x03\x04\x05abc"), Err(ReadError::Binary));
        for (kind, empty) in
            [(Kind::Text, " \n"), (Kind::Html, "<p> </p><script>x</script>"), (Kind::Csv, ""), (Kind::Markdown, "")]
        {
            assert_eq!(read(kind, empty.as_bytes()), Err(ReadError::NoText), "{kind:?}");
        }
    }
}
