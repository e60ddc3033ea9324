//! PDF to text, page by page: what its text layer says, in lines and paragraphs as they stand on the page. Runs in the
//! process apart alone, for the reader of PDF may panic or recurse without end.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pdf_extract::{Document, MediaBox, Object, OutputDev, OutputError, Transform, output_doc, output_doc_page};

use super::read::{Block, ReadError, Reading};
use super::{DOCUMENT_CHUNKS_MAX, NAME_CHARS_MAX, TEXT_BYTES_MAX};

/// Most pages of a file.
const PAGES_MAX: usize = 20_000;
/// In heights of a letter: how far down another line is, how far down another paragraph, and how wide a space.
const LINE: f64 = 0.5;
const PARAGRAPH: f64 = 1.8;
const SPACE: f64 = 0.15;
/// A title that a program wrote of itself.
const NO_TITLES: [&str; 4] = ["microsoft ", "untitled", "powerpoint ", "(anonymous)"];

pub(super) fn read(bytes: &[u8]) -> Result<Reading, ReadError> {
    let damaged = |why: String| ReadError::Damaged { kind: "PDF".to_owned(), why };
    let mut document = Document::load_mem(bytes).map_err(|error| damaged(error.to_string()))?;
    // Still locked, for no password opened it.
    if document.trailer.has(b"Encrypt") {
        document.decrypt("").map_err(|_| ReadError::Locked)?;
    }
    let pages = document.get_pages();
    if pages.is_empty() {
        return Err(damaged("it has no pages".to_owned()));
    }
    if pages.len() > PAGES_MAX {
        return Err(damaged(format!("it has more than {PAGES_MAX} pages: split it")));
    }
    let mut out = Pages::default();
    // A page that fails costs itself: the others are asked for one by one then.
    let whole = catch_unwind(AssertUnwindSafe(|| output_doc(&document, &mut out).is_ok())).unwrap_or(false);
    if !whole {
        let done = out.done;
        for page in pages.keys().copied().filter(|page| *page > done) {
            out.forget_half();
            let one = AssertUnwindSafe(|| output_doc_page(&document, &mut out, page).is_ok());
            if !catch_unwind(one).unwrap_or(false) {
                out.unread.push(page);
            }
            if out.full {
                break;
            }
        }
        out.forget_half();
    }
    if out.full {
        return Err(ReadError::TooLong(DOCUMENT_CHUNKS_MAX));
    }
    if out.text.trim().is_empty() {
        return Err(match out.unread.len() == pages.len() {
            true => damaged("none of its pages can be read".to_owned()),
            false => ReadError::Scan,
        });
    }
    let title = title(&document);
    Ok(Reading {
        text: out.text,
        title,
        headings: vec![String::new()],
        blocks: out.blocks,
        unread_pages: out.unread,
        ..Reading::default()
    })
}

/// What the file says that it is called, where a person seems to have said it.
fn title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?.as_reference().ok()?;
    let title = match document.get_object(info).ok()?.as_dict().ok()?.get(b"Title").ok()? {
        title @ Object::String(..) => pdf_extract::decode_text_string(title).ok()?,
        _ => return None,
    };
    let title: String = title.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(NAME_CHARS_MAX).collect();
    let low = title.to_lowercase();
    let own = !title.is_empty() && !NO_TITLES.iter().any(|no| low.starts_with(no));
    own.then_some(title)
}

/// The words of the pages, in the order in which the file draws them.
#[derive(Default)]
struct Pages {
    text: String,
    blocks: Vec<Block>,
    page: u32,
    /// The last page that was read whole, and where its text and its blocks end.
    done: u32,
    done_text: usize,
    done_blocks: usize,
    /// Where the paragraph under way begins.
    start: usize,
    /// Where the last letter ended, and how high it was.
    x: f64,
    y: f64,
    height: f64,
    /// The next letter begins a string of the file's.
    begins: bool,
    unread: Vec<u32>,
    full: bool,
}

impl Pages {
    fn end_paragraph(&mut self) {
        let end = self.text.len();
        if !self.text[self.start..end].trim().is_empty() {
            let page = Some(self.page);
            self.blocks.push(Block { start: self.start, end, page, ..Block::default() });
            self.text.push_str("\n\n");
        }
        self.start = self.text.len();
    }

    /// Nothing stays of a page that was begun and not ended.
    fn forget_half(&mut self) {
        self.text.truncate(self.done_text);
        self.blocks.truncate(self.done_blocks);
        self.start = self.done_text;
    }
}

impl OutputDev for Pages {
    fn begin_page(&mut self, page: u32, _: &MediaBox, _: Option<(f64, f64, f64, f64)>) -> Result<(), OutputError> {
        (self.page, self.start) = (page, self.text.len());
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        self.end_paragraph();
        (self.done, self.done_text, self.done_blocks) = (self.page, self.text.len(), self.blocks.len());
        Ok(())
    }

    fn output_character(
        &mut self,
        at: &Transform,
        width: f64,
        _: f64,
        font_size: f64,
        letter: &str,
    ) -> Result<(), OutputError> {
        let scale = (at.m11 * at.m22 - at.m12 * at.m21).abs().sqrt();
        let (height, x, y) = (scale * font_size.abs(), at.m31, at.m32);
        if std::mem::take(&mut self.begins) && self.text.len() > self.start {
            let tall = height.max(self.height);
            let down = (self.y - y).abs();
            if down > PARAGRAPH * tall {
                self.end_paragraph();
            } else if down > LINE * tall {
                self.text.push('\n');
            } else if (x > self.x + SPACE * height || x < self.x - height) && !self.text.ends_with(char::is_whitespace)
            {
                self.text.push(' ');
            }
        }
        self.text.extend(letter.chars().filter(|c| !c.is_control()).flat_map(plain));
        (self.x, self.y, self.height) = (x + width * height, y, height);
        if self.text.len() > TEXT_BYTES_MAX {
            self.full = true;
            return Err(OutputError::IoError(io::Error::other("too long")));
        }
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.begins = true;
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
}

/// A letter as words are written: ligatures apart, every blank a space, no soft hyphen.
fn plain(letter: char) -> impl Iterator<Item = char> {
    let apart = match letter {
        '\u{fb00}' => "ff",
        '\u{fb01}' => "fi",
        '\u{fb02}' => "fl",
        '\u{fb03}' => "ffi",
        '\u{fb04}' => "ffl",
        '\u{fb05}' | '\u{fb06}' => "st",
        '\u{a0}' => " ",
        '\u{ad}' => "",
        _ => "\0",
    };
    let own = (apart == "\0").then_some(letter);
    own.into_iter().chain(apart.chars().filter(|c| *c != '\0'))
}
