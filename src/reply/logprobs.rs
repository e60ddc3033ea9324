//! Which tokens a piece of shown text is made of. Text lags behind its tokens, blanks beside a thought are cut, and
//! stop strings and tool calls are never shown. A token's logprob is told with the text that it begins. It is not told
//! where nothing of that text is shown.

use std::collections::VecDeque;

use crate::service::Logprob;

/// A token, and how many of its bytes are over.
struct Waiting {
    logprob: Logprob,
    over: usize,
    told: bool,
}

/// Tokens of one channel whose text was not shown yet.
#[derive(Default)]
pub(super) struct Unshown(VecDeque<Waiting>);

impl Unshown {
    /// One more token. A control token stands for no text.
    pub(super) fn push(&mut self, logprob: Logprob) {
        if !logprob.chosen.bytes.is_empty() {
            self.0.push_back(Waiting { logprob, over: 0, told: false });
        }
    }

    /// The tokens that begin in this text, which is shown now.
    pub(super) fn shown(&mut self, text: &str) -> Vec<Logprob> {
        if text.is_empty() || self.0.is_empty() {
            return Vec::new();
        }
        let bytes: Vec<u8> = self.0.iter().flat_map(|w| &w.logprob.chosen.bytes[w.over..]).copied().collect();
        let mut told = Vec::new();
        match place(&bytes, text.as_bytes()) {
            Some(at) => {
                self.pass(at, None);
                self.pass(text.len(), Some(&mut told));
            }
            // Text that no bytes say as it stands, such as the mark in the place of what is no UTF-8.
            None => self.pass(bytes.len(), Some(&mut told)),
        }
        told
    }

    /// Goes over so many bytes; what they belong to is told, or dropped.
    fn pass(&mut self, mut bytes: usize, mut told: Option<&mut Vec<Logprob>>) {
        while bytes > 0
            && let Some(front) = self.0.front_mut()
        {
            let step = bytes.min(front.logprob.chosen.bytes.len() - front.over);
            front.over += step;
            bytes -= step;
            if let Some(told) = &mut told
                && !front.told
            {
                front.told = true;
                told.push(front.logprob.clone());
            }
            if front.over == front.logprob.chosen.bytes.len() {
                self.0.pop_front();
            }
        }
    }
}

/// Where the text stands in what its tokens say: at the beginning or behind cut blanks; else as late as it can, for what
/// comes before was a call.
fn place(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let blanks = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let first = (0..=blanks).find(|&at| bytes[at..].starts_with(text));
    first.or_else(|| bytes.windows(text.len()).rposition(|window| window == text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::TokenLogprob;

    fn token(bytes: &[u8]) -> Logprob {
        let text = String::from_utf8_lossy(bytes).into_owned();
        Logprob { chosen: TokenLogprob { id: 1, text, bytes: bytes.to_vec(), logprob: -1.0 }, top: Vec::new() }
    }

    /// What is told, piece by piece; a step is the tokens that come and the text that is shown then.
    fn told(steps: &[(&[&[u8]], &str)]) -> Vec<String> {
        let mut unshown = Unshown::default();
        let step = |(tokens, text): &(&[&[u8]], &str)| {
            tokens.iter().for_each(|bytes| unshown.push(token(bytes)));
            unshown.shown(text).iter().map(|l| l.chosen.text.clone()).collect::<Vec<_>>().join("|")
        };
        steps.iter().map(step).collect()
    }

    #[test]
    fn a_token_is_told_with_the_text_that_it_begins() {
        type Steps = &'static [(&'static [&'static [u8]], &'static str)];
        let table: &[(&str, Steps, &[&str])] = &[
            ("as it comes", &[(&[b"Hi"], "Hi"), (&[b" you"], " you")], &["Hi", " you"]),
            ("held back", &[(&[b"a"], ""), (&[b"b", b"c"], "abc")], &["", "a|b|c"]),
            ("in parts", &[(&[b"abc"], "a"), (&[], "b"), (&[b"d"], "cd")], &["abc", "", "d"]),
            ("blanks cut", &[(&[b"\n\n"], ""), (&[b"So"], "So")], &["", "So"]),
            ("blanks cut within a token", &[(&[b"\n\nSo"], "So")], &["\n\nSo"]),
            ("blanks shown", &[(&[b"\n"], "\n"), (&[b"So"], "So")], &["\n", "So"]),
            ("the end", &[(&[b"a", b""], "a"), (&[b""], "")], &["a", ""]),
            ("a stop string", &[(&[b"a"], "a"), (&[b" EN", b"D"], "")], &["a", ""]),
            ("a stop string within a token", &[(&[b"a EN", b"D"], "a ")], &["a EN"]),
            ("a letter of two tokens", &[(&[b"\xc3"], ""), (&[b"\xa4!"], "\u{e4}!")], &["", "\u{fffd}|\u{fffd}!"]),
            ("no letter", &[(&[b"\xc3"], ""), (&[b"x"], "\u{fffd}x")], &["", "\u{fffd}|x"]),
            ("behind a call", &[(&[b"<call>", b"a", b"</call>", b"\na"], "\na")], &["\na"]),
        ];
        for (what, steps, expected) in table {
            assert_eq!(&told(steps), expected, "{what}");
        }
    }
}
