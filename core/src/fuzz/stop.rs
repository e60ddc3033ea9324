//! Stop strings, found in a text however it is cut. Text and string are the same as when the whole text is searched. At
//! every moment nothing is held back but the longest end that may begin one.

use super::reader::{Reader, cut};
use crate::engine::control::stop::StopMatcher;

pub fn check(data: &[u8]) {
    let mut reader = Reader(data);
    let step = 1 + usize::from(reader.byte());
    let stops: Vec<String> = (0..reader.byte() % 6).map(|_| reader.text()).collect();
    let text = reader.rest();
    let expected = reference(&text, &stops);
    for step in [1, step, text.len().max(1)] {
        let (mut told, mut seen, mut stop) = (String::new(), 0, None);
        let mut matcher = StopMatcher::new(&stops);
        for piece in cut(&text, step) {
            let found = matcher.push(piece);
            told += &found.text;
            seen += piece.len();
            stop = found.stop;
            if stop.is_some() {
                break;
            }
            assert_eq!(seen - told.len(), begun(&text[..seen], &stops), "held back of {:?}", &text[..seen]);
        }
        if stop.is_none() {
            told += &matcher.flush();
        }
        assert_eq!((told, stop), expected, "cut behind every {step} bytes");
    }
}

/// Length of the longest end of a text that a stop string begins with.
fn begun(text: &str, stops: &[String]) -> usize {
    let lengths = stops.iter().flat_map(|stop| {
        let stop = stop.as_bytes();
        (1..stop.len()).rev().find(|length| text.as_bytes().ends_with(&stop[..*length]))
    });
    lengths.max().unwrap_or(0)
}

/// By definition: the least end of any occurrence, then the longest string.
pub fn reference(text: &str, stops: &[String]) -> (String, Option<String>) {
    let ends = stops.iter().filter(|s| !s.is_empty()).filter_map(|s| text.find(s.as_str()).map(|at| (at + s.len(), s)));
    match ends.min_by_key(|(end, s)| (*end, usize::MAX - s.len())) {
        Some((end, s)) => (text[..end - s.len()].to_owned(), Some(s.clone())),
        None => (text.to_owned(), None),
    }
}
