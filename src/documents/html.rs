//! HTML to text: the words that a reader would see, in blocks under their headings. Only html5ever's tokenizer is used:
//! without a tree no nesting costs anything.

use std::cell::RefCell;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};

use super::read::{Block, Headings, Reading};

/// Longest title, characters.
const TITLE_CHARS_MAX: usize = 300;

#[derive(Default)]
struct Page {
    text: String,
    blocks: Vec<Block>,
    headings: Headings,
    title: String,
    /// Where the block under way begins.
    start: usize,
    /// White space stands before the next word.
    gap: bool,
    /// The element whose text is not shown, until its end.
    hidden: Option<String>,
    in_title: bool,
    /// Elements `pre` that are open: white space stands as it is.
    pre: usize,
    /// The level of the heading under way.
    level: Option<usize>,
}

struct Sink(RefCell<Page>);

/// The text and blocks of a page.
pub(super) fn read(html: &str) -> Reading {
    let tokenizer = Tokenizer::new(Sink(RefCell::default()), TokenizerOpts::default());
    let input = BufferQueue::default();
    input.push_back(StrTendril::from_slice(html));
    // A script holds it up; nobody runs one here.
    while !input.is_empty() {
        let _ = tokenizer.feed(&input);
    }
    tokenizer.end();
    let mut page = tokenizer.sink.0.take();
    page.end_block();
    let title = page.title.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(TITLE_CHARS_MAX).collect();
    let title = Some(title).filter(|title: &String| !title.is_empty());
    Reading { text: page.text, title, headings: page.headings.paths(), blocks: page.blocks, ..Reading::default() }
}

impl TokenSink for Sink {
    type Handle = ();

    fn process_token(&self, token: Token, _: u64) -> TokenSinkResult<()> {
        let mut page = self.0.borrow_mut();
        match token {
            Token::CharacterTokens(text) => page.words(&text),
            Token::TagToken(tag) => return page.tag(&tag),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

impl Page {
    fn words(&mut self, text: &str) {
        if self.in_title {
            self.title.push_str(text);
            return;
        }
        if self.hidden.is_some() {
            return;
        }
        for c in text.chars() {
            if self.pre > 0 && (!c.is_whitespace() || self.text.len() > self.start) {
                self.text.push(c);
                self.gap = false;
            } else if c.is_whitespace() {
                self.gap = true;
            } else {
                if std::mem::take(&mut self.gap) && self.text.len() > self.start && !self.text.ends_with('\n') {
                    self.text.push(' ');
                }
                self.text.push(c);
            }
        }
    }

    fn tag(&mut self, tag: &Tag) -> TokenSinkResult<()> {
        let (name, begins) = (&*tag.name, tag.kind == TagKind::StartTag);
        if let Some(hidden) = &self.hidden {
            if !begins && hidden == name {
                self.hidden = None;
            }
            return TokenSinkResult::Continue;
        }
        match name {
            "script" | "style" | "noscript" | "template" | "svg" | "iframe" if begins && !tag.self_closing => {
                self.hidden = Some(name.to_owned());
                if matches!(name, "script" | "style") {
                    return TokenSinkResult::RawData(RawKind::Rawtext);
                }
            }
            "title" => {
                self.in_title = begins && self.title.is_empty();
                if begins {
                    return TokenSinkResult::RawData(RawKind::Rcdata);
                }
            }
            "textarea" if begins => return TokenSinkResult::RawData(RawKind::Rcdata),
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => self.heading(name, begins),
            "pre" => {
                self.end_block();
                self.pre = if begins { self.pre + 1 } else { self.pre.saturating_sub(1) };
            }
            "br" => self.line(),
            "tr" | "li" | "dt" | "dd" => self.line(),
            "td" | "th" if begins => {
                if self.text.len() > self.start && !self.text.ends_with('\n') {
                    self.text.push_str(" | ");
                }
                self.gap = false;
            }
            "p" | "div" | "section" | "article" | "header" | "footer" | "main" | "nav" | "aside" | "ul" | "ol"
            | "dl" | "table" | "blockquote" | "figure" | "figcaption" | "form" | "fieldset" | "address" | "hr"
            | "body" | "details" | "summary" => self.end_block(),
            _ => {}
        }
        TokenSinkResult::Continue
    }

    fn heading(&mut self, name: &str, begins: bool) {
        if begins {
            self.end_block();
            self.level = name[1..].parse().ok();
            return;
        }
        let Some(level) = self.level.take() else { return };
        let said = self.text.get(self.start..).unwrap_or_default().to_owned();
        self.headings.begin(level, &said);
        // The heading belongs to what it stands above.
        self.line();
    }

    fn line(&mut self) {
        if self.text.len() > self.start && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.gap = false;
    }

    fn end_block(&mut self) {
        let end = self.text.len();
        if self.text.get(self.start..end).is_some_and(|text| !text.trim().is_empty()) {
            let heading = self.headings.now();
            self.blocks.push(Block { start: self.start, end, heading, ..Block::default() });
            self.text.push_str(if self.text.ends_with('\n') { "\n" } else { "\n\n" });
        }
        self.start = self.text.len();
        self.gap = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_sees_is_read_under_its_headings() {
        let html = "<!DOCTYPE html><html><head><title>The &amp; house</title><style>p{}</style></head><body>\
            <script>if (a < b) { document.write('<p>no</p>') }</script><p>First  <b>bold</b>\nword &eacute;.</p>\
            <h1>Boiler</h1><p>Code <i>4711</i>.<br>Second line</p><h2>Parts</h2>\
            <table><tr><th>name<th>price</tr><tr><td>valve</td><td>3</td></tr></table>\
            <ul><li>one<li>two</ul><pre>a\n  b</pre><template><p>hidden</p></template></body></html>";
        let reading = read(html);
        let of = |block: &Block| {
            (reading.headings[block.heading as usize].as_str(), reading.text[block.start..block.end].trim())
        };
        let blocks: Vec<(&str, &str)> = reading.blocks.iter().map(of).collect();
        let parts = "Boiler > Parts";
        assert_eq!(reading.title.as_deref(), Some("The & house"));
        let wanted = [
            ("", "First bold word é."),
            ("Boiler", "Boiler"),
            ("Boiler", "Code 4711.\nSecond line"),
            (parts, "Parts"),
            (parts, "name | price\nvalve | 3"),
            (parts, "one\ntwo"),
            (parts, "a\n  b"),
        ];
        assert_eq!(blocks, wanted);
    }

    #[test]
    fn nesting_and_broken_marks_cost_nothing() {
        let deep = "<div>".repeat(200_000) + "found" + &"</div>".repeat(200_000);
        assert_eq!(read(&deep).text.trim(), "found");
        for broken in ["<p>a<b", "<script>never closed", "a</h1>b", "<![CDATA[x]]>y", "<title>t", "</pre></pre>z"] {
            let reading = read(broken);
            assert!(reading.blocks.iter().all(|b| reading.text.get(b.start..b.end).is_some()), "{broken}");
        }
    }
}
