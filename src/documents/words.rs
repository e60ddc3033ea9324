//! The words of a collection: an inverted index of its passages, searched by BM25 (k1 = 1.2, b = 0.75). It lies in memory
//! and is made of the documents' files, so nothing can stay behind in it. Words are cut to their stems by the rules of the
//! document's language, and weighed among the passages of that language.

use std::collections::{BTreeSet, HashMap};

use rust_stemmers::{Algorithm, Stemmer};

use super::stop::{LANGUAGES, is_stop};
use super::{Document, DocumentId};
use crate::intent::fold::fold;

const K1: f32 = 1.2;
const B: f32 = 0.75;
/// Longest word, bytes: what is longer is no word.
const WORD_BYTES_MAX: usize = 64;
/// Different words of one question that are looked up.
const TERMS_MAX: usize = 64;
/// A posting is a passage's number above so many bits of how often it has the word.
const COUNT_BITS: u32 = 12;
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;

fn stemmer(code: &str) -> Option<Stemmer> {
    let algorithm = match code {
        "en" => Algorithm::English,
        "fr" => Algorithm::French,
        "de" => Algorithm::German,
        "es" => Algorithm::Spanish,
        "it" => Algorithm::Italian,
        _ => return None,
    };
    Some(Stemmer::create(algorithm))
}

/// Tells the words of a text in one language that say something, as they are looked up.
fn each_term(code: &str, text: &str, mut take: impl FnMut(&str)) {
    let stemmer = stemmer(code);
    let mut term = String::new();
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        if word.is_empty() || word.len() > WORD_BYTES_MAX {
            continue;
        }
        let small = word.to_lowercase();
        if is_stop(code, &small) {
            continue;
        }
        term.clear();
        match &stemmer {
            Some(stemmer) => fold(&stemmer.stem(&small), &mut term),
            None => fold(&small, &mut term),
        }
        if !term.is_empty() {
            take(&term);
        }
    }
}

/// A passage.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    /// Which of the documents.
    document: u32,
    chunk: u32,
    words: u32,
    language: u8,
}

/// The passages of one language.
#[derive(Clone, Debug, Default)]
struct Language {
    passages: usize,
    words: u64,
    /// Of each word the passages that have it, in their order.
    terms: HashMap<Box<str>, Vec<u32>>,
}

/// A passage that has words of the question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hit {
    pub document: DocumentId,
    pub chunk: usize,
    pub score: f32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    documents: Vec<DocumentId>,
    rows: Vec<Row>,
    /// In the order of `LANGUAGES`.
    languages: [Language; LANGUAGES.len()],
}

impl Words {
    pub(super) fn add(&mut self, document: &Document, text: &str) {
        let at = LANGUAGES.iter().position(|code| *code == document.language).unwrap_or(LANGUAGES.len() - 1);
        let language = &mut self.languages[at];
        let number = self.documents.len() as u32;
        self.documents.push(document.id.clone());
        for (n, chunk) in document.chunks.iter().enumerate() {
            let mut counts: HashMap<Box<str>, u32> = HashMap::new();
            let mut words = 0;
            each_term(LANGUAGES[at], &indexed(document, n, text_of(text, chunk.start, chunk.end)), |term| {
                words += 1;
                match counts.get_mut(term) {
                    Some(count) => *count += 1,
                    None => drop(counts.insert(term.into(), 1)),
                }
            });
            let row = self.rows.len() as u32;
            self.rows.push(Row { document: number, chunk: n as u32, words, language: at as u8 });
            language.passages += 1;
            language.words += u64::from(words);
            for (term, count) in counts {
                language.terms.entry(term).or_default().push(row << COUNT_BITS | count.min(COUNT_MAX));
            }
        }
    }

    /// Takes a document out, with every word that no other has.
    pub(super) fn remove(&mut self, document: &DocumentId) {
        let Some(gone) = self.documents.iter().position(|known| known == document) else { return };
        let gone = gone as u32;
        self.documents.remove(gone as usize);
        // Rows of a document are neighbours: those behind it move up.
        let first = self.rows.iter().position(|row| row.document == gone).unwrap_or(self.rows.len());
        let count = self.rows[first..].iter().take_while(|row| row.document == gone).count();
        for row in self.rows.drain(first..first + count) {
            let language = &mut self.languages[usize::from(row.language)];
            language.passages -= 1;
            language.words -= u64::from(row.words);
        }
        self.rows[first..].iter_mut().for_each(|row| row.document -= 1);
        let (first, last) = (first as u32, (first + count) as u32);
        for language in &mut self.languages {
            language.terms.retain(|_, postings| {
                postings.retain(|posting| !(first..last).contains(&(posting >> COUNT_BITS)));
                for posting in postings.iter_mut().filter(|posting| **posting >> COUNT_BITS >= last) {
                    *posting -= (last - first) << COUNT_BITS;
                }
                !postings.is_empty()
            });
        }
    }

    /// The passages that have words of a question, best first.
    pub(super) fn search(&self, question: &str, k: usize) -> Vec<Hit> {
        let mut scores = vec![0.0f32; self.rows.len()];
        for (language, code) in self.languages.iter().zip(LANGUAGES).filter(|(language, _)| language.passages > 0) {
            let mut asked = BTreeSet::new();
            each_term(code, question, |term| {
                if asked.len() < TERMS_MAX && !asked.contains(term) {
                    asked.insert(term.to_owned());
                }
            });
            asked.iter().for_each(|term| self.weigh(language, term, &mut scores));
        }
        let mut hits: Vec<(f32, u32)> =
            (0..).zip(&scores).filter(|(_, s)| **s > 0.0).map(|(row, s)| (*s, row)).collect();
        // Of equals the order is that of their ids, in whatever order they came.
        let place = |row: u32| {
            let row = &self.rows[row as usize];
            (&self.documents[row.document as usize], row.chunk)
        };
        let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then_with(|| place(a.1).cmp(&place(b.1)));
        if hits.len() > k && k > 0 {
            hits.select_nth_unstable_by(k - 1, order);
        }
        hits.truncate(k);
        hits.sort_by(order);
        let hit = |(score, row): (f32, u32)| {
            let (document, chunk) = place(row);
            Hit { document: document.clone(), chunk: chunk as usize, score }
        };
        hits.into_iter().map(hit).collect()
    }

    /// Adds what one word is worth to the passages that have it.
    fn weigh(&self, language: &Language, term: &str, scores: &mut [f32]) {
        let Some(postings) = language.terms.get(term) else { return };
        let (all, with) = (language.passages as f32, postings.len() as f32);
        let rare = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
        let usual = (language.words as f32 / all).max(1.0);
        for posting in postings {
            let row = (posting >> COUNT_BITS) as usize;
            let count = (posting & COUNT_MAX) as f32;
            let length = self.rows[row].words as f32 / usual;
            scores[row] += rare * count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length));
        }
    }

    /// Every word of it.
    #[cfg(test)]
    pub(super) fn terms(&self) -> impl Iterator<Item = &str> {
        self.languages.iter().flat_map(|language| language.terms.keys()).map(AsRef::as_ref)
    }
}

pub(super) fn text_of(text: &str, start: u64, end: u64) -> &str {
    text.get(start as usize..end as usize).unwrap_or_default()
}

/// What a passage is found by: its title and headings stand before its text.
pub(super) fn indexed(document: &Document, chunk: usize, text: &str) -> String {
    let heading = document.chunks.get(chunk).map(|chunk| chunk.heading.as_str()).unwrap_or_default();
    let title = if heading.starts_with(&document.title) { "" } else { document.title.as_str() };
    let before = [title, heading].into_iter().filter(|part| !part.is_empty());
    before.chain([text]).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::{Chunk, CollectionId};
    use super::*;

    fn document(n: usize, language: &str, texts: &[&str]) -> (Document, String) {
        let (mut text, mut chunks) = (String::new(), Vec::new());
        for piece in texts {
            let start = text.len() as u64;
            text.push_str(piece);
            let (heading, end) = (String::new(), text.len() as u64);
            chunks.push(Chunk { heading, start, end, line: 1, line_end: 1, ..Chunk::default() });
        }
        let document = Document {
            id: DocumentId(format!("d{n}")),
            collection: CollectionId("c".to_owned()),
            name: String::new(),
            title: String::new(),
            media_type: String::new(),
            sha256: String::new(),
            bytes: 0,
            text_bytes: 0,
            language: language.to_owned(),
            created_ms: 0,
            replaces: None,
            unread_pages: Vec::new(),
            chunks,
        };
        (document, text)
    }

    fn of(documents: &[(Document, String)]) -> Words {
        let mut words = Words::default();
        documents.iter().for_each(|(document, text)| words.add(document, text));
        words
    }

    #[test]
    fn a_score_is_bm25_by_hand() {
        let words = of(&[document(1, "en", &["boiler boiler house", "garden shed", "house"])]);
        let found = words.search("Boilers?", 5);
        // Three passages of 3, 2 and 1 words; one of them has the word, twice.
        let rare = (1.0 + (3.0 - 1.0 + 0.5) / (1.0 + 0.5f32)).ln();
        let wanted = rare * 2.0 * 2.2 / (2.0 + 1.2 * (0.25 + 0.75 * 3.0 / 2.0));
        assert!((found[0].score - wanted).abs() < 1e-5 && found.len() == 1, "{found:?} {wanted}");
        // Two words of the question are worth what each is.
        let both = words.search("the boiler of the house", 5);
        assert!(both[0].chunk == 0 && both[0].score > wanted && both[1].chunk == 2, "{both:?}");
        assert_eq!(words.search("the of", 5), []);
        assert_eq!(words.search("house", 1).len(), 1);
        assert_eq!(words.search("house", 0), []);
    }

    #[test]
    fn words_that_say_nothing_find_nothing_in_tables_and_programs_either() {
        let words = of(&[document(1, "", &["name phone plumber", "opens the valve of the tank"])]);
        let found = words.search("the phone number of the plumber", 5);
        assert!(found.len() == 1 && found[0].chunk == 0, "{found:?}");
    }

    #[test]
    fn what_is_left_after_a_removal_is_what_would_be_there_without_it() {
        let all = [
            document(1, "en", &["one house", "two keys"]),
            document(2, "fr", &["une maison", "deux cl\u{e9}s dans la maison", "secretword"]),
            document(3, "en", &["three houses and keys"]),
            document(4, "", &["house 4711"]),
        ];
        let mut words = of(&all);
        assert!(words.terms().any(|term| term == "secretword"));
        words.remove(&all[1].0.id);
        words.remove(&DocumentId("none".to_owned()));
        let without = of(&[all[0].clone(), all[2].clone(), all[3].clone()]);
        for question in ["house keys", "maison cl\u{e9}", "4711", "three"] {
            assert_eq!(words.search(question, 9), without.search(question, 9), "{question}");
        }
        assert_eq!(words.terms().collect::<BTreeSet<_>>(), without.terms().collect::<BTreeSet<_>>());
        for (document, _) in [&all[0], &all[2], &all[3]] {
            words.remove(&document.id);
        }
        assert!(words.terms().next().is_none() && words.rows.is_empty());
    }
}
