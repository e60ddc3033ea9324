//! The text of one channel while it comes: what is decided of it, what may be a mark, and which blanks wait.

use aho_corasick::{AhoCorasick, MatchKind};

use super::formats::{Format, Shape};
use super::shape::{Balance, may_become};
use crate::engine::protocol::Channel;

/// Decided text is dropped from memory in steps of this.
const COMPACT_BYTES: usize = 64 << 10;

/// Positions are bytes of `text`.
#[derive(Debug)]
pub(super) struct Stream {
    text: String,
    /// What of it the prompt said: a part of a call, but no text of the reply.
    begun: usize,
    /// Where the text that is not yet decided starts: at the mark of a call where `mark` has its bytes.
    at: usize,
    mark: Option<usize>,
    /// Undecided text that readers have seen.
    seen: usize,
    balance: Balance,
    /// Blanks behind what was said: they are text if more of it follows.
    blank: String,
    spoke: bool,
    called: bool,
    /// Nothing but blanks came since the beginning or the last call.
    fresh: bool,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing that can be decided now.
    Nothing,
    /// Bytes of text.
    Plain(usize),
    /// Bytes that mean nothing.
    Dropped(usize),
    /// A mark of so many bytes that may open a call.
    Opening(usize),
}

impl Default for Stream {
    fn default() -> Self {
        Stream::beginning("")
    }
}

impl Stream {
    /// A stream that begins with what the prompt said already.
    pub(super) fn beginning(text: &str) -> Stream {
        Stream {
            text: text.to_owned(),
            begun: text.len(),
            at: 0,
            mark: None,
            seen: 0,
            balance: Balance::default(),
            blank: String::new(),
            spoke: false,
            called: false,
            fresh: true,
        }
    }

    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Nothing was said, and nothing called.
    pub(super) fn is_silent(&self) -> bool {
        !self.spoke && !self.called
    }

    pub(super) fn has_spoken(&self) -> bool {
        self.spoke
    }

    pub(super) fn undecided(&self) -> usize {
        self.text.len() - self.at
    }

    pub(super) fn next(&mut self, format: &Format, marks: &Marks, ended: bool) -> Next {
        let rest = &self.text[self.at..];
        if let Some(mark) = self.mark {
            // What means nothing may begin like a call.
            return match format.noise.iter().find(|noise| rest.starts_with(**noise)) {
                Some(noise) => Next::Dropped(noise.len()),
                None if !ended && format.noise.iter().any(|noise| may_become(rest, noise)) => Next::Nothing,
                None => Next::Opening(mark),
            };
        }
        if rest.is_empty() {
            return Next::Nothing;
        }
        if self.fresh {
            let blanks = rest.len() - rest.trim_start().len();
            if blanks > 0 {
                return Next::Plain(blanks);
            }
            let closers = if self.called { format.closers } else { &[] };
            if let Some(closer) = closers.iter().find(|closer| rest.starts_with(**closer)) {
                return Next::Dropped(closer.len());
            }
            if closers.iter().any(|closer| may_become(rest, closer)) {
                // A reply that was cut at its limit ends within it.
                return if ended { Next::Dropped(rest.len()) } else { Next::Nothing };
            }
            if rest.starts_with(['{', '[']) && format.shapes.iter().any(Shape::is_bare) {
                self.mark = Some(1);
                return Next::Opening(1);
            }
        }
        let found = marks.search.find(rest);
        match found {
            Some(found) if found.start() > 0 => Next::Plain(found.start()),
            Some(found) if format.noise.contains(&&rest[..found.end()]) => Next::Dropped(found.end()),
            Some(found) => {
                self.mark = Some(found.end());
                Next::Opening(found.end())
            }
            None => match rest.len() - if ended { 0 } else { marks.held(rest) } {
                0 => Next::Nothing,
                bytes => Next::Plain(bytes),
            },
        }
    }

    /// The undecided text from the mark on, what of it is new, and the search for its end.
    pub(super) fn body(&mut self) -> (&str, &str, &mut Balance) {
        let body = &self.text[self.at..];
        // A mark may have been cut.
        let new = body.floor_char_boundary(self.seen.saturating_sub(64));
        self.seen = body.len();
        (body, &body[new..], &mut self.balance)
    }

    /// Moves on by `bytes`, which become decided; returns those that the reply said.
    fn decide(&mut self, bytes: usize) -> String {
        let begun = self.begun.min(bytes);
        self.begun -= begun;
        let text = self.text[self.at + begun..self.at + bytes].to_owned();
        self.at += bytes;
        self.mark = None;
        self.seen = 0;
        self.balance = self.balance.anew();
        if self.at >= COMPACT_BYTES && self.at >= self.text.len() / 2 {
            self.text.drain(..self.at);
            self.at = 0;
        }
        text
    }

    /// Passes over bytes that mean nothing.
    pub(super) fn drop(&mut self, bytes: usize) {
        self.decide(bytes);
    }

    /// Passes over a call; returns its text, in a thought with the blanks before it.
    pub(super) fn take_call(&mut self, bytes: usize, channel: Channel) -> String {
        let text = self.decide(bytes);
        self.fresh = true;
        if channel == Channel::Thinking {
            return std::mem::take(&mut self.blank) + &text;
        }
        self.called = true;
        text
    }

    /// The next bytes as text, with the blanks before them and without those at their end.
    pub(super) fn say(&mut self, bytes: usize) -> String {
        let text = self.decide(bytes);
        let end = text.trim_end().len();
        if end == 0 {
            self.blank += &text;
            return String::new();
        }
        let before = std::mem::take(&mut self.blank);
        self.blank = text[end..].to_owned();
        let before = if self.called && !self.spoke { "" } else { before.as_str() };
        (self.spoke, self.fresh) = (true, false);
        before.to_owned() + &text[..end]
    }

    /// The text was cut off: a mark at its end that nothing follows is dropped.
    pub(super) fn cut(&mut self, marks: &Marks) {
        let rest = self.text[self.at..].trim_end();
        if self.mark.is_some_and(|mark| rest.len() > mark) {
            return;
        }
        let begun = marks.begun(rest);
        if begun > 0 {
            self.text.truncate(self.at + rest.len() - begun);
            self.mark = None;
        }
    }

    /// What was held back, at the end of the reply.
    pub(super) fn rest(&mut self) -> String {
        let undecided = self.undecided();
        std::mem::take(&mut self.blank) + &self.decide(undecided)
    }
}

/// The marks of a format, to be found in text.
#[derive(Debug)]
pub(super) struct Marks {
    texts: Vec<&'static str>,
    /// The longest at each place.
    search: AhoCorasick,
}

impl Marks {
    pub(super) fn of(format: &Format) -> Marks {
        let texts: Vec<&str> =
            format.shapes.iter().flat_map(Shape::openings).chain(format.noise.iter().copied()).collect();
        let texts: Vec<&str> = texts.into_iter().filter(|mark| !mark.is_empty()).collect();
        let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        // A few short texts: they can always be searched for.
        let search =
            built.or_else(|_| AhoCorasick::new([""; 0])).unwrap_or_else(|_| unreachable!("no texts to search for"));
        Marks { texts, search }
    }

    /// Bytes at the end of `text` that are a mark or begin one, and no word.
    pub(super) fn begun(&self, text: &str) -> usize {
        let begins = |at: &usize| self.texts.iter().any(|mark| mark.starts_with(&text[*at..]));
        let places = text.char_indices().rev().take_while(|(at, _)| text.len() - at <= self.longest());
        places
            .filter(|(_, c)| !c.is_alphanumeric())
            .map(|(at, _)| at)
            .filter(begins)
            .last()
            .map_or(0, |at| text.len() - at)
    }

    fn longest(&self) -> usize {
        self.texts.iter().map(|mark| mark.len()).max().unwrap_or(1)
    }

    /// Bytes at the end of `text` that may be the beginning of a mark.
    fn held(&self, text: &str) -> usize {
        let longest = self.longest().min(text.len() + 1);
        let may = |n: &usize| {
            let at = text.len() - n;
            text.is_char_boundary(at) && self.texts.iter().any(|mark| may_become(&text[at..], mark))
        };
        (1..longest).rev().find(may).unwrap_or(0)
    }
}
