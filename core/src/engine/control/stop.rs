//! Stop strings, found across token borders. The string whose last character comes first wins; of several
//! that end there, the longest. So the result does not depend on how the text was cut into tokens. Linear:
//! one Knuth–Morris–Pratt automaton a string.

use crate::toolcall::Piece;

/// A stop string and how much of it the text so far ends with.
#[derive(Debug)]
struct Pattern {
    text: String,
    /// For each prefix length: the length of its longest border.
    borders: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        let bytes = text.as_bytes();
        let mut borders = vec![0; bytes.len() + 1];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[at] != bytes[border] {
                border = borders[border];
            }
            border += usize::from(bytes[at] == bytes[border]);
            borders[at + 1] = border;
        }
        Pattern { text: text.to_owned(), borders, matched: 0 }
    }

    /// Whether `byte` completes the string.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes.get(self.matched) != Some(&byte) {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(!bytes.is_empty() && bytes[self.matched] == byte);
        self.matched == bytes.len() && !bytes.is_empty()
    }
}

/// Looks for stop strings in a text that comes piece by piece.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    patterns: Vec<Pattern>,
    /// The end of the text that may be the beginning of a stop string.
    held: String,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    /// Text that is certainly not part of a stop string.
    pub(crate) text: String,
    /// The stop string that ended the text.
    pub(crate) stop: Option<String>,
}

impl StopMatcher {
    pub(crate) fn new(stops: &[String]) -> StopMatcher {
        StopMatcher { patterns: stops.iter().map(|s| Pattern::new(s)).collect(), held: String::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Adds text. After a stop string was found there is nothing more to push.
    pub(crate) fn push(&mut self, text: &str) -> Found {
        let mut all = std::mem::take(&mut self.held);
        let start = all.len();
        all.push_str(text);
        for (at, &byte) in all.as_bytes().iter().enumerate().skip(start) {
            let mut longest: Option<&Pattern> = None;
            for pattern in &mut self.patterns {
                if pattern.step(byte) && longest.is_none_or(|l| l.text.len() < pattern.text.len()) {
                    longest = Some(pattern);
                }
            }
            if let Some(pattern) = longest {
                let stop = Some(pattern.text.clone());
                all.truncate(at + 1 - pattern.text.len());
                return Found { text: all, stop };
            }
        }
        let hold = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        self.held = all.split_off(all.len() - hold);
        Found { text: all, stop: None }
    }

    /// The text ends here: returns what was held back.
    pub(crate) fn flush(&mut self) -> String {
        self.patterns.iter_mut().for_each(|p| p.matched = 0);
        std::mem::take(&mut self.held)
    }
}

/// The pieces up to the end of the last call, and the text behind it.
pub(super) fn parted(mut pieces: Vec<Piece>) -> (Vec<Piece>, String) {
    let behind = pieces.iter().rposition(|piece| !matches!(piece, Piece::Content(..))).map_or(0, |last| last + 1);
    let rest = pieces.split_off(behind).into_iter().filter_map(|piece| match piece {
        Piece::Content(_, text) => Some(text),
        _ => None,
    });
    let rest = rest.collect();
    (pieces, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::stop::reference;

    fn stops(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|s| s.to_string()).collect()
    }

    fn run(pieces: &[&str], stops: &[String]) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops);
        let mut text = String::new();
        for piece in pieces {
            let found = matcher.push(piece);
            text += &found.text;
            if found.stop.is_some() {
                return (text, found.stop);
            }
        }
        (text + &matcher.flush(), None)
    }

    #[test]
    fn every_split_in_three_gives_the_same() {
        let cases: [(&str, &[&str]); 9] = [
            ("one two END three", &["END"]),
            ("aaaaab", &["aab", "aaaab"]),
            ("xabcdx", &["abcd", "bc"]),
            ("xabc", &["bc", "abc", "c"]),
            ("é€é€🦀", &["€🦀", "€é🦀"]),
            ("abababac", &["ababac"]),
            ("nothing here", &["\n\n", "###", "nothing there"]),
            ("ends with pre", &["prefix", "ref"]),
            ("", &["x"]),
        ];
        for (text, list) in cases {
            let list = stops(list);
            let expected = reference(text, &list);
            let cuts: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
            for &a in &cuts {
                for &b in cuts.iter().filter(|&&b| b >= a) {
                    let found = run(&[&text[..a], &text[a..b], &text[b..]], &list);
                    assert_eq!(found, expected, "{text:?} cut at {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn holds_back_no_more_than_needed() {
        let mut matcher = StopMatcher::new(&stops(&["</s>", "\n\n"]));
        assert_eq!(matcher.push("ab<").text, "ab");
        assert_eq!(matcher.push("/x").text, "</x");
        assert_eq!(matcher.push("<</s").text, "<");
        assert_eq!(matcher.push("\n").text, "</s");
        assert_eq!(matcher.push("c").text, "\nc");
        assert_eq!(matcher.push("<").text, "");
        assert_eq!(matcher.flush(), "<");
    }

    #[test]
    fn random_texts_agree_with_the_definition() {
        let mut state = 1u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..20_000 {
            let mut word =
                |most: u64| (0..1 + next(most)).map(|_| ['a', 'b', 'é'][next(3) as usize]).collect::<String>();
            let list: Vec<String> = (0..3).map(|_| word(4)).collect();
            let pieces: Vec<String> = (0..6).map(|_| word(5)).collect();
            let whole = pieces.concat();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(run(&pieces, &list), reference(&whole, &list), "{pieces:?} {list:?}");
        }
    }
}
