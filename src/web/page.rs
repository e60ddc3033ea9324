//! The bytes of a page as text in passages, by the readers of documents. Links, scripts and frames are not followed: there is
//! nothing here that could.

use encoding_rs::{Encoding, WINDOWS_1252};
use url::Url;

use super::Fault;
use super::wire::{Answer, essence};
use crate::documents::{DocumentError, Draft, ReadError};

/// Kinds of content that are read.
pub(super) const KINDS: &[&str] = &["text/html", "application/xhtml+xml", "text/plain", "text/markdown"];
/// Bytes within which a page names its characters, as browsers look for it.
const SNIFFED: usize = 1_024;
/// Longest name of a kind that is told, characters.
const KIND_CHARS_MAX: usize = 40;

/// A page that was read.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// Where it was found in the end.
    pub(super) url: Url,
    pub(super) draft: Draft,
    /// It was longer.
    pub(super) cut: bool,
}

impl Page {
    pub(super) fn read(url: Url, answer: Answer) -> Result<Page, Fault> {
        let said = answer.kind.unwrap_or_default();
        let kind = essence(&said);
        if !KINDS.contains(&kind.as_str()) {
            let shown: String = kind.chars().filter(|c| c.is_ascii_graphic()).take(KIND_CHARS_MAX).collect();
            return Err(Fault::Kind(if shown.is_empty() {
                "of no kind".to_owned()
            } else {
                format!("of the kind {shown}")
            }));
        }
        let name = match kind.as_str() {
            "text/plain" => "page.txt",
            "text/markdown" => "page.md",
            _ => "page.html",
        };
        let text = text(&said, &answer.body);
        let mut draft = Draft::read_here(name, &kind, text.as_bytes()).map_err(|error| match error {
            DocumentError::Unreadable(ReadError::NoText) => Fault::Empty,
            other => Fault::Kind(format!("not readable: {other}")),
        })?;
        if draft.title == name {
            draft.title = url.host_str().unwrap_or_default().to_owned();
        }
        Ok(Page { url, draft, cut: answer.cut })
    }

    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.draft.text.len() + 64 * self.draft.chunks.len() + self.url.as_str().len()
    }
}

/// The characters of a page: what its bytes begin with says, its head, or itself; else UTF-8, else Windows-1252.
fn text(kind: &str, bytes: &[u8]) -> String {
    let named = |text: &str| {
        let (_, rest) = text.split_once("charset=")?;
        let label = rest.trim_start_matches(['"', '\'', ' ']);
        let end = label.find(|c: char| !c.is_ascii_alphanumeric() && !"-_:.".contains(c)).unwrap_or(label.len());
        Encoding::for_label(&label.as_bytes()[..end])
    };
    let begins = || String::from_utf8_lossy(&bytes[..bytes.len().min(SNIFFED)]).to_ascii_lowercase();
    if let Some(encoding) = named(&kind.to_ascii_lowercase()).or_else(|| named(&begins())) {
        return encoding.decode(bytes).0.into_owned();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.trim_start_matches('\u{feff}').to_owned(),
        // It was cut within a character.
        Err(error) if error.error_len().is_none() => {
            String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned()
        }
        Err(_) => WINDOWS_1252.decode(bytes).0.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(kind: Option<&str>, body: &[u8]) -> Result<Page, Fault> {
        let answer =
            Answer { status: 200, location: None, kind: kind.map(str::to_owned), body: body.to_vec(), cut: false };
        Page::read(Url::parse("https://a.example/x").unwrap(), answer)
    }

    #[test]
    fn a_page_is_read_in_the_characters_that_it_says() {
        let of = |kind: &str, body: &[u8]| page(Some(kind), body).unwrap().draft.text.trim().to_owned();
        assert_eq!(of("text/html", b"<p>caf\xc3\xa9</p>"), "caf\u{e9}");
        assert_eq!(of("text/html", b"<p>caf\xe9 noir</p>"), "caf\u{e9} noir");
        assert_eq!(of("text/html; charset=ISO-8859-2", b"<p>\xb1</p>"), "\u{105}");
        assert_eq!(of("text/html", b"<meta charset=\"koi8-r\"><p>\xc1</p>"), "\u{430}");
        assert_eq!(of("text/plain; charset=utf-8", b"\xef\xbb\xbfcaf\xc3\xa9"), "caf\u{e9}");
        assert_eq!(of("text/plain", b"caf\xc3\xa9 \xc3"), "caf\u{e9}", "cut within a character");
        assert_eq!(page(Some("text/html"), b"<title>T</title><p>x</p>").unwrap().draft.title, "T");
        assert_eq!(page(Some("text/html"), b"<p>x</p>").unwrap().draft.title, "a.example");
    }

    #[test]
    fn what_is_no_text_is_not_read() {
        let why = |kind: Option<&str>, body: &[u8]| page(kind, body).unwrap_err().to_string();
        assert_eq!(why(Some("application/pdf"), b"%PDF"), "it is of the kind application/pdf");
        assert_eq!(why(Some("image/png; x=y"), b"\x89PNG"), "it is of the kind image/png");
        assert_eq!(why(None, b"x"), "it is of no kind");
        assert_eq!(why(Some("text/html"), b"<script>1</script>"), "it has no text");
        assert!(why(Some("text/plain"), b"PK\x03\x04\0\0").contains("is not text"));
    }
}
