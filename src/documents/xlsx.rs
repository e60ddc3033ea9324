//! XLSX to text: each sheet row by row, under its name and the names of its columns. A formula is read as what it gave. Runs
//! in the process apart alone.

use std::io::Cursor;

use calamine::{DataRef, ExcelDateTime, Reader, Xlsx, XlsxError, open_workbook_from_rs};

use super::read::{Block, HEADING_CHARS_MAX, ReadError, Reading};
use super::{DOCUMENT_CHUNKS_MAX, TEXT_BYTES_MAX, zipped};

const KIND: &str = "XLSX";
/// Empty cells between two others that are shown as such.
const GAP_MAX: usize = 16;
/// Digits of a number that spreadsheets keep.
const DIGITS: usize = 15;

pub(super) fn read(bytes: &[u8]) -> Result<Reading, ReadError> {
    let damaged = |error: XlsxError| match error {
        XlsxError::Password => ReadError::Locked,
        error => ReadError::Damaged { kind: KIND.to_owned(), why: error.to_string() },
    };
    zipped::open(KIND, bytes)?;
    let mut book: Xlsx<_> = open_workbook_from_rs(Cursor::new(bytes)).map_err(damaged)?;
    let sheets = book.sheet_names();
    let mut out = Out { headings: vec![String::new()], ..Out::default() };
    for (number, name) in (1..).zip(&sheets) {
        // A sheet that is a diagram has no cells.
        let Ok(mut cells) = book.worksheet_cells_reader(name) else { continue };
        out.begin(number, name);
        while let Some(cell) = cells.next_cell().map_err(damaged)? {
            let (row, column) = cell.get_position();
            out.cell(row, column, said(cell.get_value()));
            if out.text.len() + out.row.iter().map(String::len).sum::<usize>() > TEXT_BYTES_MAX {
                return Err(ReadError::TooLong(DOCUMENT_CHUNKS_MAX));
            }
        }
        out.end_row();
        out.text.push('\n');
    }
    Ok(Reading { text: out.text, headings: out.headings, blocks: out.blocks, sheets, ..Reading::default() })
}

/// The words of a cell.
fn said(value: &DataRef<'_>) -> String {
    match value {
        DataRef::Empty => String::new(),
        DataRef::Int(number) => number.to_string(),
        DataRef::Float(number) => self::number(*number),
        DataRef::String(text) => line(text),
        DataRef::SharedString(text) => line(text),
        DataRef::Bool(yes) => if *yes { "TRUE" } else { "FALSE" }.to_owned(),
        DataRef::DateTime(time) => self::time(*time),
        DataRef::DateTimeIso(text) | DataRef::DurationIso(text) => line(text),
        DataRef::Error(error) => error.to_string(),
        // Kinds to come.
        #[allow(unreachable_patterns)]
        _ => String::new(),
    }
}

/// A text in one line, so that a row is one.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A number with the digits that a spreadsheet has of it: 0.3 where the sum is 0.30000000000000004.
fn number(number: f64) -> String {
    let rounded: f64 = format!("{number:.*e}", DIGITS - 1).parse().unwrap_or(number);
    match rounded.abs() {
        small if (1e-6..1e15).contains(&small) || small == 0.0 => rounded.to_string(),
        _ => format!("{rounded:e}"),
    }
}

/// A day, a time of day, or both; a duration in hours.
fn time(time: ExcelDateTime) -> String {
    let value = time.as_f64();
    if time.is_duration() {
        let seconds = (value * 86_400.0).round() as i64;
        let (sign, seconds) = (if seconds < 0 { "-" } else { "" }, seconds.unsigned_abs());
        return format!("{sign}{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    }
    let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
    let clock =
        if second == 0 { format!("{hour:02}:{minute:02}") } else { format!("{hour:02}:{minute:02}:{second:02}") };
    match (value >= 1.0, value.fract() != 0.0) {
        (false, _) => clock,
        (true, false) => format!("{year}-{month:02}-{day:02}"),
        (true, true) => format!("{year}-{month:02}-{day:02} {clock}"),
    }
}

#[derive(Default)]
struct Out {
    text: String,
    headings: Vec<String>,
    blocks: Vec<Block>,
    sheet: u32,
    name: String,
    /// The row under way: its number from 0, its cells, and the column of the last one.
    number: u32,
    row: Vec<String>,
    column: u32,
    /// No row of the sheet was read yet.
    first: bool,
}

impl Out {
    fn begin(&mut self, sheet: u32, name: &str) {
        self.headings.push(name.chars().take(HEADING_CHARS_MAX).collect());
        (self.sheet, self.name, self.first) = (sheet, name.to_owned(), true);
        (self.number, self.column) = (0, 0);
    }

    fn cell(&mut self, row: u32, column: u32, said: String) {
        if row != self.number {
            self.end_row();
            (self.number, self.column) = (row, 0);
        }
        if said.is_empty() {
            return;
        }
        let gap = (column.saturating_sub(self.column) as usize).min(GAP_MAX);
        self.row.extend(std::iter::repeat_n(String::new(), gap));
        self.row.push(said);
        self.column = column.saturating_add(1);
    }

    fn end_row(&mut self) {
        let cells = std::mem::take(&mut self.row);
        if cells.is_empty() {
            return;
        }
        // Names stand above columns; a number there is none.
        let several = cells.iter().filter(|cell| !cell.is_empty()).count() > 1;
        let names = cells.iter().all(|cell| cell.parse::<f64>().is_err());
        if std::mem::take(&mut self.first) && several && names {
            let path = format!("{} > {}", self.name, cells.join(" | "));
            self.headings.push(path.chars().take(HEADING_CHARS_MAX).collect());
        }
        let (start, row) = (self.text.len(), self.number.saturating_add(1));
        self.text.push_str(&cells.join(" | "));
        let (end, heading) = (self.text.len(), (self.headings.len() - 1) as u32);
        self.blocks.push(Block { start, end, heading, rows: Some((self.sheet, row, row)), ..Block::default() });
        self.text.push('\n');
    }
}
