//! Blocks to passages of 200 to 300 tokens. Neighbours under one heading are put together. Long ones are cut at the end of a
//! line, of a sentence or of a word.

use serde::{Deserialize, Serialize};

use super::DOCUMENT_CHUNKS_MAX;
use super::read::{Block, ReadError, Reading};

/// Bytes that a passage has about; four of them are a token in European languages.
const BYTES: usize = 1_000;
/// Bytes that a passage has at most. A piece of less than `REST_BYTES` does not stand alone behind a cut.
const BYTES_MAX: usize = 1_400;
const REST_BYTES: usize = 300;

/// A passage, without its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// The headings above it, or the names of the columns.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub heading: String,
    /// Bytes of the text.
    pub start: u64,
    pub end: u64,
    /// Its first and last line, from 1.
    pub line: u32,
    pub line_end: u32,
    /// From 1, where the file has pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// Where the file has sheets: the name of one, and its first and last row, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sheet: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_end: Option<u32>,
}

/// The passages of what was read.
pub fn chunks(reading: &Reading) -> Result<Vec<Chunk>, ReadError> {
    let mut pieces: Vec<Block> = Vec::new();
    for block in &reading.blocks {
        for piece in cut(&reading.text, *block) {
            match pieces.last_mut().filter(|last| joins(last, &piece)) {
                Some(last) => {
                    last.end = piece.end;
                    last.rows = last.rows.zip(piece.rows).map(|((sheet, row, _), (.., end))| (sheet, row, end));
                }
                None => pieces.push(piece),
            }
        }
    }
    let mut lines = Lines { text: &reading.text, at: 0, line: 1 };
    let mut chunks = Vec::new();
    for piece in pieces {
        let Some((start, end)) = trimmed(&reading.text, piece.start, piece.end) else { continue };
        if chunks.len() == DOCUMENT_CHUNKS_MAX {
            return Err(ReadError::TooLong(DOCUMENT_CHUNKS_MAX));
        }
        let heading = reading.headings.get(piece.heading as usize).cloned().unwrap_or_default();
        let (line, line_end) = (lines.of(start), lines.of(end.saturating_sub(1)));
        let sheet = piece.rows.and_then(|(sheet, ..)| reading.sheets.get(sheet.checked_sub(1)? as usize).cloned());
        chunks.push(Chunk {
            heading,
            start: start as u64,
            end: end as u64,
            line,
            line_end,
            page: piece.page,
            sheet,
            row: piece.rows.map(|(_, row, _)| row),
            row_end: piece.rows.map(|(.., row_end)| row_end),
        });
    }
    Ok(chunks)
}

/// Do two neighbours make one passage?
fn joins(last: &Block, next: &Block) -> bool {
    let small = last.end - last.start < REST_BYTES || !next.apart;
    let sheet = |block: &Block| block.rows.map(|(sheet, ..)| sheet);
    let alike = last.heading == next.heading && last.page == next.page && sheet(last) == sheet(next);
    alike && small && next.end - last.start <= BYTES
}

/// A block in pieces that are not too long.
fn cut(text: &str, block: Block) -> Vec<Block> {
    let (mut pieces, mut start) = (Vec::new(), block.start);
    while block.end - start > BYTES_MAX {
        let end = start + place(&text[start..block.end]);
        pieces.push(Block { start, end, ..block });
        start = end;
    }
    pieces.push(Block { start, ..block });
    pieces
}

/// Where a text of more than `BYTES_MAX` is cut.
fn place(text: &str) -> usize {
    let boundary = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let window = &text[..boundary(BYTES)];
    let late = |at: &usize| *at >= REST_BYTES;
    let behind = |mark: &str| window.rfind(mark).map(|at| at + mark.len()).filter(late);
    let sentence = || [". ", "! ", "? ", "。", "; "].iter().filter_map(|mark| behind(mark)).max();
    behind("\n").or_else(sentence).or_else(|| behind(" ")).unwrap_or(window.len()).max(1)
}

/// Without the white space around it; `None`: there is nothing else.
fn trimmed(text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
    let piece = text.get(start..end)?;
    // The indentation of a first line belongs to it.
    let blank = piece.len() - piece.trim_start_matches(['\n', '\r']).len();
    let kept = piece.trim_end();
    (!piece.trim().is_empty()).then(|| (start + blank.min(kept.len()), start + kept.len()))
}

/// Counts lines on the way through a text.
struct Lines<'t> {
    text: &'t str,
    at: usize,
    line: u32,
}

impl Lines<'_> {
    /// The line of a place, which is not before the last one by more than a passage.
    fn of(&mut self, place: usize) -> u32 {
        if place >= self.at {
            let passed = self.text.as_bytes().get(self.at..place).unwrap_or_default();
            self.line = self.line.saturating_add(passed.iter().filter(|b| **b == b'\n').count() as u32);
            self.at = place;
        }
        self.line
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::read::{Kind, read};
    use super::*;

    fn of(kind: Kind, text: &str) -> Vec<(String, u32, u32, String)> {
        let reading = read(kind, text.as_bytes()).unwrap();
        let told = |c: &Chunk| {
            let text = reading.text[c.start as usize..c.end as usize].to_owned();
            (c.heading.clone(), c.line, c.line_end, text)
        };
        chunks(&reading).unwrap().iter().map(told).collect()
    }

    #[test]
    fn what_stands_under_one_heading_is_one_passage_with_its_lines() {
        let text = "# House\n\nOne.\n\nTwo.\n\n# Garden\n\nThree.\n";
        let wanted = [
            ("House".to_owned(), 1, 5, "# House\n\nOne.\n\nTwo.".to_owned()),
            ("Garden".to_owned(), 7, 9, "# Garden\n\nThree.".to_owned()),
        ];
        assert_eq!(of(Kind::Markdown, text), wanted);
    }

    #[test]
    fn rows_are_put_together_under_their_columns() {
        let rows: String = (0..100).map(|n| format!("person {n},street {n}\n")).collect();
        let passages = of(Kind::Csv, &format!("name,address\n{rows}"));
        assert!(passages.len() > 1 && passages.iter().all(|p| p.0 == "name | address" && p.3.len() <= BYTES));
        assert!(passages.iter().all(|p| p.3.lines().all(|line| line.contains(','))), "no row is cut");
        let all: usize = passages.iter().map(|p| (p.2 - p.1 + 1) as usize).sum();
        assert_eq!(all, 101, "each row is in one passage");
    }

    #[test]
    fn a_long_paragraph_is_cut_behind_its_sentences() {
        let text = "A sentence of some length stands here. ".repeat(100);
        let passages = of(Kind::Text, &text);
        assert!(passages.len() >= 4 && passages.iter().all(|p| p.3.ends_with('.') && p.3.len() <= BYTES_MAX));
    }

    proptest! {
        #[test]
        fn passages_hold_all_words_in_their_order(text in "(é|a|b|\\.| |\n){0,6000}") {
            let Ok(reading) = read(Kind::Text, text.as_bytes()) else { return Ok(()) };
            let found = chunks(&reading).unwrap();
            let joined: String = found.iter().map(|c| &reading.text[c.start as usize..c.end as usize]).collect();
            let words = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(words(&joined), words(&text));
            for chunk in &found {
                let line = |at: u64| 1 + text[..at as usize].matches('\n').count() as u32;
                prop_assert!(chunk.end - chunk.start <= BYTES_MAX as u64);
                prop_assert_eq!(chunk.line, line(chunk.start));
            }
        }
    }
}
