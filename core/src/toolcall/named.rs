//! Calls whose name stands before their arguments: a mark, the name among marks, a JSON object.

use super::json::arguments_of;
use super::shape::{Balance, Call, End, Functions, Reading, may_become, value};

/// Bytes between the mark of a call and its arguments.
const HEAD_BYTES_MAX: usize = 512;

/// How a family writes such calls.
#[derive(Debug, PartialEq)]
pub struct Named {
    /// Around all calls; empty: nothing.
    pub open: &'static str,
    pub close: &'static str,
    /// Before a call.
    pub begin: &'static str,
    /// Between it and the name, and between the name and the arguments, as the grammar writes them.
    pub before: &'static str,
    pub after: &'static str,
    /// Behind the arguments.
    pub end: &'static str,
    /// Where in a head the name stands.
    pub place: Place,
    /// What a head ends with, right before the arguments; empty: anything.
    pub last: &'static str,
    /// What parts the words of a head, of which one is the name.
    pub parts: &'static [&'static str],
}

/// Which word of a head is the name. Others may be called as a function is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    First,
    Last,
    /// The first behind this mark; a head without it names nobody.
    Behind(&'static str),
}

pub(super) const NAMED: Named =
    Named { open: "", close: "", begin: "", before: "", after: "", end: "", place: Place::First, last: "", parts: &[] };

/// Reads one call from the mark on, or from the mark around all of them.
pub(super) fn read(form: &Named, text: &str, ended: bool, functions: &Functions, balance: &mut Balance) -> Reading {
    let more = if ended { Reading::Text } else { Reading::More };
    let mut rest = text;
    if let Some(inner) = text.strip_prefix(form.open).filter(|_| !form.open.is_empty()) {
        rest = inner.trim_start();
    }
    let Some(head) = rest.strip_prefix(form.begin) else {
        let open = rest.is_empty() || may_become(rest, form.begin);
        return if open { more } else { Reading::Text };
    };
    let Some(at) = head.find('{') else {
        return if head.len() <= HEAD_BYTES_MAX { more } else { Reading::Text };
    };
    if at > HEAD_BYTES_MAX {
        return Reading::Text;
    }
    let Some(name) = name_in(form, &head[..at], functions) else { return Reading::Text };
    let from = text.len() - head.len() + at;
    let (to, unclosed) = match balance.end(text, from, form.end) {
        End::At(to) => (to, false),
        End::Unclosed(to) => (to, true),
        End::More => return more,
        End::Never => return Reading::Text,
    };
    match value(&text[from..to], unclosed).and_then(arguments_of) {
        Some(arguments) => Reading::Calls(vec![Call { name, arguments }], to),
        None => Reading::Text,
    }
}

/// The words of a head.
fn words<'a>(form: &Named, head: &'a str) -> Vec<&'a str> {
    let mut words = vec![head];
    for part in form.parts {
        words = words.into_iter().flat_map(|word| word.split(part)).collect();
    }
    words.into_iter().map(str::trim).filter(|word| !word.is_empty()).collect()
}

/// The function that a whole head names.
fn name_in(form: &Named, head: &str, functions: &Functions) -> Option<String> {
    let head = head.trim_end().strip_suffix(form.last)?;
    let word = match form.place {
        Place::First => words(form, head).first().copied(),
        Place::Last => words(form, head).last().copied(),
        Place::Behind(mark) => words(form, head.split_once(mark)?.1).first().copied(),
    };
    functions.named(word?).map(str::to_owned)
}
