//! DOCX to text: paragraphs under their headings, and tables row by row. What was struck out is not read. Runs in the process
//! apart alone.

use std::collections::HashMap;
use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::read::{Block, Headings, ReadError, Reading};
use super::zipped::{self, Archive};
use super::{DOCUMENT_CHUNKS_MAX, NAME_CHARS_MAX, TEXT_BYTES_MAX};

const KIND: &str = "DOCX";
const BODY: &str = "word/document.xml";
const STYLES: &str = "word/styles.xml";
const PROPERTIES: &str = "docProps/core.xml";
/// What stands beside the body, and under which heading it is read.
const BESIDE: [(&str, &str); 2] = [("word/footnotes.xml", "Footnotes"), ("word/endnotes.xml", "Endnotes")];

pub(super) fn read(bytes: &[u8]) -> Result<Reading, ReadError> {
    let mut archive = zipped::open(KIND, bytes)?;
    let styles = match zipped::part(&mut archive, KIND, STYLES)? {
        Some(part) => styles(part)?,
        None => HashMap::new(),
    };
    let mut out = Out { styles, ..Out::default() };
    let Some(body) = zipped::part(&mut archive, KIND, BODY)? else {
        return Err(ReadError::Damaged { kind: KIND.to_owned(), why: format!("it has no {BODY}") });
    };
    out.part(body)?;
    for (name, heading) in BESIDE {
        if let Some(part) = zipped::part(&mut archive, KIND, name)? {
            out.headings.begin(1, heading);
            out.part(part)?;
        }
    }
    let title = property(&mut archive)?.or(out.title);
    let (headings, blocks) = (out.headings.paths(), out.blocks);
    Ok(Reading { text: out.text, title, headings, blocks, ..Reading::default() })
}

/// What a paragraph is by its style.
#[derive(Clone, Copy)]
enum Style {
    Title,
    /// From 1.
    Heading(usize),
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let mut all = element.attributes();
    let found = all.with_checks(false).flatten().find(|attribute| attribute.key.local_name().as_ref() == name)?;
    Some(found.value.into_owned())
}

/// The styles that are headings. Their names are English in every language of the program that wrote them.
fn styles(mut part: Reader<impl BufRead>) -> Result<HashMap<String, Style>, ReadError> {
    let (mut styles, mut id, mut buffer) = (HashMap::new(), None, Vec::new());
    loop {
        buffer.clear();
        match part.read_event_into(&mut buffer).map_err(|error| zipped::broken(KIND, &error))? {
            Event::Eof => return Ok(styles),
            Event::Start(element) => match element.local_name().as_ref() {
                "style" => id = attribute(&element, "styleId"),
                "name" => {
                    let name = attribute(&element, "val").unwrap_or_default().to_lowercase();
                    let level = name.strip_prefix("heading ").and_then(|level| level.parse().ok());
                    let style = level.map(Style::Heading).or((name == "title").then_some(Style::Title));
                    styles.extend(id.clone().zip(style));
                }
                "outlineLvl" => styles.extend(id.clone().zip(outline(&element))),
                _ => {}
            },
            _ => {}
        }
    }
}

/// Level 9 is that of the body.
fn outline(element: &BytesStart<'_>) -> Option<Style> {
    let level: usize = attribute(element, "val")?.parse().ok()?;
    (level < 9).then_some(Style::Heading(level + 1))
}

/// The title among the properties of the file.
fn property(archive: &mut Archive<'_>) -> Result<Option<String>, ReadError> {
    let Some(mut part) = zipped::part(archive, KIND, PROPERTIES)? else { return Ok(None) };
    let (mut title, mut inside, mut buffer) = (String::new(), false, Vec::new());
    loop {
        buffer.clear();
        match part.read_event_into(&mut buffer).map_err(|error| zipped::broken(KIND, &error))? {
            Event::Eof => break,
            Event::Start(element) => inside = element.local_name().as_ref() == "title",
            Event::End(_) => inside = false,
            event if inside => words(&event, &mut title),
            _ => {}
        }
    }
    let title: String = title.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(NAME_CHARS_MAX).collect();
    Ok(Some(title).filter(|title| !title.is_empty()))
}

/// The characters of an event. An entity that XML does not know stays out.
fn words(event: &Event<'_>, into: &mut String) {
    match event {
        Event::Text(text) => into.push_str(text),
        Event::CData(text) => into.push_str(text),
        Event::GeneralRef(entity) => match entity.resolve_char_ref() {
            Ok(Some(letter)) => into.push(letter),
            _ => into.push_str(quick_xml::escape::resolve_predefined_entity(entity).unwrap_or_default()),
        },
        _ => {}
    }
}

#[derive(Default)]
struct Paragraph {
    text: String,
    style: Option<Style>,
}

#[derive(Default)]
struct Out {
    styles: HashMap<String, Style>,
    text: String,
    blocks: Vec<Block>,
    headings: Headings,
    title: Option<String>,
    /// Paragraphs that are open: a box of text stands in one.
    open: Vec<Paragraph>,
    /// Tables that are open, and the cells of the outermost one's row.
    tables: usize,
    cells: Vec<String>,
    /// Inside a run of text, and inside its words.
    run: usize,
    inside: bool,
}

impl Out {
    fn part(&mut self, mut part: Reader<impl BufRead>) -> Result<(), ReadError> {
        let (mut buffer, mut skipped) = (Vec::new(), Vec::new());
        loop {
            buffer.clear();
            let failed = |error| zipped::broken(KIND, &error);
            match part.read_event_into(&mut buffer).map_err(failed)? {
                Event::Eof => return Ok(()),
                // The same once more for older programs, and what was moved away.
                Event::Start(element) if matches!(element.local_name().as_ref(), "Fallback" | "moveFrom") => {
                    part.read_to_end_into(element.name(), &mut skipped).map_err(failed)?;
                }
                Event::Start(element) => self.begin(&element),
                Event::End(element) => self.end(element.local_name().as_ref()),
                event if self.inside => {
                    if let Some(paragraph) = self.open.last_mut() {
                        words(&event, &mut paragraph.text);
                    }
                }
                _ => {}
            }
            if self.text.len() > TEXT_BYTES_MAX {
                return Err(ReadError::TooLong(DOCUMENT_CHUNKS_MAX));
            }
        }
    }

    fn begin(&mut self, element: &BytesStart<'_>) {
        let mark = match element.local_name().as_ref() {
            "p" => {
                self.open.push(Paragraph::default());
                return;
            }
            "pStyle" => {
                let style = attribute(element, "val").and_then(|id| self.styles.get(&id).copied());
                return self.style(style);
            }
            "outlineLvl" => return self.style(outline(element)),
            "r" => {
                self.run += 1;
                return;
            }
            "t" => {
                self.inside = true;
                return;
            }
            "tbl" => {
                self.tables += 1;
                return;
            }
            "tc" if self.tables == 1 => {
                self.cells.push(String::new());
                return;
            }
            // Inside a run; elsewhere it says where tabulators stand.
            "tab" if self.run > 0 => '\t',
            "br" | "cr" => '\n',
            "noBreakHyphen" => '-',
            _ => return,
        };
        self.open.iter_mut().last().into_iter().for_each(|paragraph| paragraph.text.push(mark));
    }

    fn style(&mut self, style: Option<Style>) {
        if let (Some(paragraph), Some(style)) = (self.open.last_mut(), style) {
            paragraph.style = Some(style);
        }
    }

    fn end(&mut self, name: &str) {
        match name {
            "p" => {
                let paragraph = self.open.pop().unwrap_or_default();
                self.paragraph(paragraph);
            }
            "r" => self.run = self.run.saturating_sub(1),
            "t" => self.inside = false,
            "tbl" => {
                self.tables = self.tables.saturating_sub(1);
                if self.tables == 0 {
                    self.text.push('\n');
                }
            }
            "tr" if self.tables == 1 => {
                let row = std::mem::take(&mut self.cells).join(" | ");
                self.block(&row, "\n");
            }
            _ => {}
        }
    }

    fn paragraph(&mut self, Paragraph { text, style }: Paragraph) {
        let said = text.trim();
        if said.is_empty() {
            return;
        }
        if let Some(cell) = self.cells.last_mut() {
            if !cell.is_empty() {
                cell.push(' ');
            }
            cell.extend(said.split_whitespace().flat_map(|word| [word, " "]));
            cell.truncate(cell.trim_end().len());
            return;
        }
        match style {
            Some(Style::Title) if self.title.is_none() => {
                self.title = Some(said.chars().take(NAME_CHARS_MAX).collect());
            }
            Some(Style::Heading(level)) => self.headings.begin(level, said),
            _ => {}
        }
        self.block(said, "\n\n");
    }

    fn block(&mut self, said: &str, behind: &str) {
        if said.trim_matches([' ', '|']).is_empty() {
            return;
        }
        let (start, heading) = (self.text.len(), self.headings.now());
        self.text.push_str(said);
        self.blocks.push(Block { start, end: self.text.len(), heading, ..Block::default() });
        self.text.push_str(behind);
    }
}
