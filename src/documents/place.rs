//! Where a passage stands in its document: as an address, in words, and as the fields that a client reads.

use serde_json::{Map, Value, json};

use super::Chunk;
use crate::turn::ShownPassage;

/// A place in a document: a page, a row of a sheet, else a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'p> {
    pub line: u32,
    pub page: Option<u32>,
    pub sheet: Option<&'p str>,
    pub row: Option<u32>,
}

impl<'p> From<&'p Chunk> for Place<'p> {
    fn from(chunk: &'p Chunk) -> Self {
        Place { line: chunk.line, page: chunk.page, sheet: chunk.sheet.as_deref(), row: chunk.row }
    }
}

impl<'p> From<&'p ShownPassage> for Place<'p> {
    fn from(passage: &'p ShownPassage) -> Self {
        let sheet = Some(passage.sheet.as_str()).filter(|sheet| !sheet.is_empty());
        Place { line: passage.line, page: passage.page, sheet, row: passage.row }
    }
}

impl Place<'_> {
    /// `/v1/documents/ID#page=3`, `#sheet=Prices&row=12` or `#L10`.
    pub fn url(&self, document: &str) -> String {
        let place = match (self.page, self.row) {
            (Some(page), _) => format!("page={page}"),
            (None, Some(row)) => format!("sheet={}&row={row}", encoded(self.sheet.unwrap_or_default())),
            (None, None) => format!("L{}", self.line),
        };
        format!("/v1/documents/{document}#{place}")
    }

    /// As a person reads it.
    pub fn words(&self) -> String {
        match (self.page, self.row) {
            (Some(page), _) => format!("page {page}"),
            (None, Some(row)) => match self.sheet {
                Some(sheet) => format!("sheet {sheet}, row {row}"),
                None => format!("row {row}"),
            },
            (None, None) => format!("line {}", self.line),
        }
    }

    /// `page`, or `sheet` and `row`, where the file has them.
    pub fn fields(&self) -> Map<String, Value> {
        let all = [("page", json!(self.page)), ("sheet", json!(self.sheet)), ("row", json!(self.row))];
        all.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// A text as a part of an address.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_page_a_row_or_a_line() {
        let line = Place { line: 7, page: None, sheet: None, row: None };
        let page = Place { page: Some(3), ..line };
        let row = Place { sheet: Some("Prix d'été"), row: Some(12), ..line };
        let told = |place: Place<'_>| (place.url("d"), place.words(), Value::Object(place.fields()));
        assert_eq!(told(line), ("/v1/documents/d#L7".to_owned(), "line 7".to_owned(), json!({})));
        assert_eq!(told(page), ("/v1/documents/d#page=3".to_owned(), "page 3".to_owned(), json!({"page": 3})));
        let (url, words) = ("/v1/documents/d#sheet=Prix%20d%27%C3%A9t%C3%A9&row=12", "sheet Prix d'été, row 12");
        assert_eq!(told(row), (url.to_owned(), words.to_owned(), json!({"sheet": "Prix d'été", "row": 12})));
    }
}
