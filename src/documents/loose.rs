//! Texts that belong to no collection, such as web pages: searched by words as one would be, and kept nowhere.

use super::words::Words;
use super::{Chunk, CollectionId, Document, DocumentId, Draft};

/// A passage of one of the texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Which text, and which of its passages.
    pub text: usize,
    pub chunk: usize,
    pub score: f32,
}

/// Texts with their words.
pub struct Loose {
    texts: Vec<(Document, String)>,
    words: Words,
}

impl Loose {
    pub fn of(drafts: Vec<Draft>) -> Loose {
        let (mut texts, mut words) = (Vec::with_capacity(drafts.len()), Words::default());
        for (n, draft) in drafts.into_iter().enumerate() {
            // In the order of the texts, which is that of equals.
            let id = DocumentId(format!("{n:06}"));
            let document = draft.document(id, CollectionId(String::new()), 0, None);
            words.add(&document, &draft.text);
            texts.push((document, draft.text));
        }
        Loose { texts, words }
    }

    /// The passages that have words of a question, best first.
    pub fn by_words(&self, question: &str, k: usize) -> Vec<Place> {
        let place = |hit: super::words::Hit| {
            Some(Place { text: hit.document.0.parse().ok()?, chunk: hit.chunk, score: hit.score })
        };
        self.words.search(question, k).into_iter().filter_map(place).collect()
    }

    /// What a passage is found by: its title and headings stand before its text.
    pub fn indexed(&self, place: Place) -> String {
        let Some((document, _)) = self.texts.get(place.text) else { return String::new() };
        super::words::indexed(document, place.chunk, self.passage(place).map_or("", |(_, text)| text))
    }

    /// A passage and its text.
    pub fn passage(&self, place: Place) -> Option<(&Chunk, &str)> {
        let (document, text) = self.texts.get(place.text)?;
        let chunk = document.chunks.get(place.chunk)?;
        Some((chunk, super::words::text_of(text, chunk.start, chunk.end)))
    }

    pub fn texts(&self) -> usize {
        self.texts.len()
    }

    pub fn title(&self, place: Place) -> &str {
        self.texts.get(place.text).map_or("", |(document, _)| document.title.as_str())
    }

    /// Passages of all texts.
    pub fn passages(&self) -> usize {
        self.texts.iter().map(|(document, _)| document.chunks.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_kept_nowhere_are_found_by_their_words() {
        let page = |text: &str| Draft::read_here("page.html", "text/html", text.as_bytes()).unwrap();
        let loose = Loose::of(vec![
            page("<title>Pears</title><h1>Pears</h1><p>Prune them in March.</p>"),
            page("<title>Boilers</title><h1>Codes</h1><p>The code is 4711.</p>"),
        ]);
        let found = loose.by_words("Which code has the boiler?", 9);
        assert_eq!((found.len(), found[0].text, loose.title(found[0])), (1, 1, "Boilers"));
        let (chunk, text) = loose.passage(found[0]).unwrap();
        assert!(chunk.heading == "Codes" && text.ends_with("The code is 4711."), "{chunk:?} {text}");
        assert!(loose.indexed(found[0]).starts_with("Boilers\nCodes\n") && loose.passages() == 2);
        assert!(loose.by_words("nothing here", 9).is_empty() && Loose::of(Vec::new()).passages() == 0);
    }
}
