//! What of an answer stands on a passage: marks such as `[2]` that the model wrote, and sentences whose words the program
//! found in a passage. A mark of a number that was not shown is no citation.

use std::collections::BTreeSet;

use crate::turn::ShownPassage;

/// Longest quote, characters.
const QUOTE_CHARS_MAX: usize = 300;
/// Citations of one answer.
const CITATIONS_MAX: usize = 64;
/// Sentences of an answer that are looked at.
const SENTENCES_MAX: usize = 400;
/// Of the words of a sentence that stands on a passage, so many of ten are in it, and at least so many.
const WORDS_OF_TEN: usize = 8;
const WORDS_MIN: usize = 3;
/// Shortest word that says something by itself, characters.
const WORD_CHARS_MIN: usize = 4;

/// A place of an answer that stands on a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Citation {
    /// The passage's place among those that were shown.
    pub passage: usize,
    /// The model wrote its mark; otherwise its words were found.
    pub written: bool,
    /// Characters of the answer: the mark, or the sentence.
    pub start: usize,
    pub end: usize,
    /// The sentence of the passage that fits best, and its bytes in the document's text. Absent: no word of the answer's
    /// sentence is in the passage.
    pub quote: Option<(String, u64, u64)>,
}

/// The citations of an answer, in their order.
pub fn citations(answer: &str, shown: &[ShownPassage]) -> Vec<Citation> {
    let mut found = Vec::new();
    // Bytes that were passed, and their characters.
    let (mut passed, mut first) = (0, 0);
    for (start, end) in sentences(answer).into_iter().take(SENTENCES_MAX) {
        first += answer[passed..start].chars().count();
        passed = start;
        let sentence = &answer[start..end];
        let said = words(&without_marks(sentence));
        let marks = marks(sentence);
        for mark in &marks {
            let chars = |bytes: usize| first + sentence[..bytes].chars().count();
            for number in &mark.numbers {
                let Some(passage) = shown.iter().position(|passage| passage.number == *number) else { continue };
                let quote = quote(&shown[passage], &said);
                found.push(Citation { passage, written: true, start: chars(mark.start), end: chars(mark.end), quote });
            }
        }
        let length = sentence.chars().count();
        if !found.iter().any(|citation: &Citation| citation.written && citation.start >= first)
            && let Some(passage) = aligned(&said, shown)
        {
            let quote = quote(&shown[passage], &said);
            found.push(Citation { passage, written: false, start: first, end: first + length, quote });
        }
    }
    found.truncate(CITATIONS_MAX);
    found
}

/// The byte of a character.
fn at_byte(text: &str, chars: usize) -> usize {
    text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
}

/// A mark, as bytes of its sentence, and the numbers in it.
struct Mark {
    start: usize,
    end: usize,
    numbers: Vec<u32>,
}

/// `[2]` and `[1, 3]`.
fn marks(text: &str) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (start, _) in text.match_indices('[') {
        let Some(length) = text[start..].find(']') else { break };
        let inside = &text[start + 1..start + length];
        let numbers: Option<Vec<u32>> = inside.split(',').map(|number| number.trim().parse().ok()).collect();
        if let Some(numbers) = numbers.filter(|_| inside.len() <= 40) {
            marks.push(Mark { start, end: start + length + 1, numbers });
        }
    }
    marks
}

fn without_marks(text: &str) -> String {
    let mut left = text.to_owned();
    for mark in marks(text).into_iter().rev() {
        left.replace_range(mark.start..mark.end, " ");
    }
    left
}

/// Sentences and lines of a text, as bytes. A mark behind the stop belongs to the sentence before it.
fn sentences(text: &str) -> Vec<(usize, usize)> {
    let (mut found, mut start) = (Vec::new(), 0);
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let ends = match bytes[at] {
            b'\n' => true,
            b'.' | b'!' | b'?' => bytes.get(at + 1).is_none_or(u8::is_ascii_whitespace),
            _ => false,
        };
        at += 1;
        if !ends {
            continue;
        }
        // Marks that follow, with blanks before them.
        let rest = &text[at..];
        let follows = rest.len()
            - rest.trim_start_matches([' ', '[', ']', ',', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']).len();
        let behind = rest[..follows].rfind(']').map_or(0, |end| end + 1);
        if rest.trim_start_matches(' ').starts_with('[') && behind > 0 && !marks(&rest[..behind]).is_empty() {
            at += behind;
        }
        found.push((start, at));
        start = at;
    }
    found.push((start, text.len()));
    found.retain(|(start, end)| !text[*start..*end].trim().is_empty());
    found
}

/// Words that say something: long ones and those with a digit, in lower case.
fn words(text: &str) -> BTreeSet<String> {
    let pieces = text.split(|c: char| !c.is_alphanumeric()).filter(|word| {
        word.chars().count() >= WORD_CHARS_MIN || word.chars().any(|c| c.is_ascii_digit()) && word.len() > 1
    });
    pieces.map(str::to_lowercase).collect()
}

fn shared(said: &BTreeSet<String>, text: &str) -> usize {
    let there = words(text);
    said.iter().filter(|word| there.contains(*word)).count()
}

/// The passage that has nearly all words of a sentence.
fn aligned(said: &BTreeSet<String>, shown: &[ShownPassage]) -> Option<usize> {
    let counts = shown.iter().map(|passage| shared(said, &passage.text));
    let (passage, most) = counts.enumerate().max_by_key(|(at, count)| (*count, std::cmp::Reverse(*at)))?;
    // A number or code alone says enough, where it is all that was said.
    let code = said.len() == 1 && said.iter().all(|word| word.len() > 2 && word.chars().any(|c| c.is_ascii_digit()));
    let enough = most >= WORDS_MIN && most * 10 >= said.len() * WORDS_OF_TEN || code && most == 1;
    enough.then_some(passage)
}

/// The sentence of a passage that shares most words with what was said.
fn quote(passage: &ShownPassage, said: &BTreeSet<String>) -> Option<(String, u64, u64)> {
    let found = sentences(&passage.text);
    let best = found
        .iter()
        .max_by_key(|(start, end)| (shared(said, &passage.text[*start..*end]), std::cmp::Reverse(*start)))?;
    let text = &passage.text[best.0..best.1];
    if shared(said, text) == 0 {
        return None;
    }
    let kept = text.trim();
    let start = best.0 + (text.len() - text.trim_start().len());
    let cut = at_byte(kept, QUOTE_CHARS_MAX);
    let from = passage.start + start as u64;
    Some((kept[..cut].to_owned(), from, from + cut as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(number: u32, text: &str) -> ShownPassage {
        let end = 100 + text.len() as u64;
        ShownPassage {
            number,
            document: "d".to_owned(),
            start: 100,
            end,
            line: 1,
            title: "T".to_owned(),
            text: text.to_owned(),
            ..ShownPassage::default()
        }
    }

    fn told(answer: &str, shown: &[ShownPassage]) -> Vec<(u32, bool, String, Option<String>)> {
        let chars: Vec<char> = answer.chars().collect();
        let of = |citation: Citation| {
            let place: String = chars[citation.start..citation.end].iter().collect();
            let quote = citation.quote.map(|(text, start, end)| {
                let passage = &shown[citation.passage];
                assert_eq!(&passage.text[(start - passage.start) as usize..(end - passage.start) as usize], text);
                text
            });
            (shown[citation.passage].number, citation.written, place.trim().to_owned(), quote)
        };
        citations(answer, shown).into_iter().map(of).collect()
    }

    #[test]
    fn marks_of_what_was_shown_are_citations_with_the_sentence_that_they_stand_on() {
        let shown = [
            passage(1, "The boiler is from 1987. Its code is 4711."),
            passage(2, "The shed stands behind the p\u{ea}che tree."),
        ];
        let code = Some("Its code is 4711.".to_owned());
        let shed = Some("The shed stands behind the p\u{ea}che tree.".to_owned());
        let of = |n: u32, place: &str, quote: &Option<String>| (n, true, place.to_owned(), quote.clone());
        assert_eq!(told("It is 4711 [1].", &shown), [of(1, "[1]", &code)]);
        assert_eq!(
            told("\u{c9}t\u{e9}: it is 4711. [1] The shed [2].", &shown),
            [of(1, "[1]", &code), of(2, "[2]", &shed)]
        );
        assert_eq!(told("Code 4711, shed [1, 2]", &shown), [of(1, "[1, 2]", &code), of(2, "[1, 2]", &shed)]);
        // A number that was not shown, a list and a link are none.
        for none in ["It is so [3].", "a[i] [x] []", "[12345678901234567890]", "see [1](http://x)x"] {
            assert!(told(none, &shown).iter().all(|found| found.2 == "[1]" && none.contains("[1]")), "{none}");
        }
        // What shares no word with its passage has no quote.
        assert_eq!(told("Yes [2].", &shown), [of(2, "[2]", &None)]);
    }

    #[test]
    fn sentences_whose_words_stand_in_a_passage_are_told_apart_from_marks() {
        let shown =
            [passage(1, "The boiler of the house was installed in 1987."), passage(2, "The code of it is 4711.")];
        let found = told("The boiler was installed in 1987. Nothing else is known about anything here. 4711", &shown);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].0, found[0].1, found[0].2.as_str()), (1, false, "The boiler was installed in 1987."));
        assert_eq!((found[1].0, found[1].1, found[1].2.as_str()), (2, false, "4711"));
        assert_eq!(told("The garden was planted by somebody else in spring.", &shown), []);
        assert_eq!(told("", &shown), []);
        assert_eq!(told("The boiler was installed in 1987.", &[]), []);
    }
}
