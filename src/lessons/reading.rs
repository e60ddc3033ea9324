//! A question as it is read: what it asks for, and the words that say of whom or of what. "What's the cat's name?" asks the
//! name of `cat`, and so does "What is our cat called?". [`super::likeness`] compares two of them.

use super::classes::{Class, Classes, LANGUAGES, Language};
use super::clauses::{
    AUXILIARIES, PHRASE_WORDS, PREPOSITIONS, STANDING, Token, head, join, language, listed, of_verb, phrases, root,
    set_aside, standing, tokens,
};

/// Where an asking word asks: among the first words of a clause.
const OPENING: usize = 3;
const COPULAS: &[&str] = &["is", "s", "are", "am", "was", "were", "re"];
const NOT: &[&str] = &["not", "never", "nicht"];
const TOWARDS: &[&str] = &["to", "in", "at"];
const FIRST_PERSON: &[&str] = &["i", "my", "mine", "me", "we", "our", "ours", "us"];
const OTHER_PERSON: &[&str] =
    &["you", "your", "yours", "he", "him", "his", "she", "her", "hers", "they", "them", "their"];
/// Classes of words that ask for nothing in so many words.
pub(super) const WEAK: Classes = Classes::of(&[Class::Thing, Class::Which, Class::Manner]);

/// A word of what a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct About {
    pub(super) word: String,
    /// A name, or somebody whose something is asked for.
    pub(super) strong: bool,
    pub(super) owner: bool,
    /// It says more of what is asked, or what the asker does.
    pub(super) aside: bool,
    /// It stands in a clause that asks.
    pub(super) within: bool,
}

#[derive(Debug, Default)]
pub(super) struct Reading {
    /// What it asks for in so many words.
    pub(super) asks: Classes,
    /// What its nouns would ask for.
    pub(super) mentions: Classes,
    pub(super) about: Vec<About>,
    /// `What does …`: it asks for a thing that something is done with.
    pub(super) object: bool,
    pub(super) first_person: bool,
    pub(super) other_person: bool,
}

/// The words of a text's language; where it has none, the nouns of all.
#[derive(Clone, Copy)]
struct Known {
    words: &'static Language,
    sure: bool,
}

impl Known {
    fn noun(self, token: &Token) -> Classes {
        if self.sure {
            return listed(&self.words.nouns, &token.text);
        }
        LANGUAGES.iter().map(|language| listed(&language.nouns, &token.text)).fold(Classes::default(), Classes::and)
    }

    fn english(self) -> bool {
        self.words.name == "en"
    }
}

impl Reading {
    pub(super) fn of(text: &str) -> Reading {
        let mut tokens = tokens(text);
        let language = language(&tokens);
        let known = Known { words: language.unwrap_or(&LANGUAGES[0]), sure: language.is_some() };
        if known.english() {
            join(&mut tokens, known.words);
        }
        let has = |list: &[&str]| tokens.iter().any(|token| token.is(list));
        let mut reading =
            Reading { first_person: has(FIRST_PERSON), other_person: has(OTHER_PERSON), ..Reading::default() };
        reading.mentions = tokens.iter().map(|token| known.noun(token)).fold(Classes::default(), Classes::and);
        let mut anything = false;
        for clause in tokens.chunk_by_mut(|a, b| a.clause == b.clause) {
            anything |= reading.clause(clause, known);
        }
        if !anything {
            tokens.chunk_by_mut(|a, b| a.clause == b.clause).for_each(|clause| reading.named(clause, known));
        }
        reading.about(&tokens, known.words);
        reading
    }

    /// Reads what a clause asks for, if it asks at all.
    fn clause(&mut self, clause: &mut [Token], known: Known) -> bool {
        let mut asked = phrases(clause, known.words);
        let (mut weak, mut opener) = (Classes::default(), None);
        for at in 0..clause.len() {
            let asks = known.words.asks.get(clause[at].text.as_str()).copied().unwrap_or_default();
            let last = at + 1 == clause.len();
            let here = at < OPENING || last || opener.is_none() && known.english();
            if clause[at].asks || asks.is_empty() || !here {
                continue;
            }
            // "When I come home" asks for no time, and "When do I come home" does.
            let follows = || clause.get(at + 1).is_some_and(|next| next.is(AUXILIARIES));
            if asks.meets(WEAK) {
                weak = weak.and(asks);
                opener = opener.or(Some(at));
            } else if !known.english() || asks.has(Class::Person) || last || follows() {
                asked = asked.and(asks);
            } else {
                continue;
            }
            clause[at].asks = true;
        }
        // To get into something asks for a code where somebody asks how.
        if known.english() && asked.has(Class::Manner) && !weak.has(Class::Manner) {
            asked = asked.without(Classes::of(&[Class::Manner, Class::Code]));
        }
        let anything = !asked.is_empty() || opener.is_some();
        if asked.is_empty()
            && let Some(opener) = opener
        {
            asked = self.behind(&clause[opener + 1..], weak, known);
        }
        set_aside(clause, opener, &|token| known.noun(token));
        self.takes(clause, asked, |token| known.noun(token).and(of_verb(known.words, token)));
        anything
    }

    /// Takes what is asked, and marks the words that say so. A birthday is asked for as a time; its word stays.
    fn takes(&mut self, clause: &mut [Token], asked: Classes, of: impl Fn(&Token) -> Classes) {
        self.asks = self.asks.and(asked.without(Classes::of(&[Class::Birth])));
        clause.iter_mut().for_each(|token| token.asks |= of(token).meets(asked));
        let within = |(class, word): &(Class, &'static str)| {
            let (word, asked) = ((*word).to_owned(), asked.has(*class));
            asked.then_some(About { word, strong: false, owner: false, aside: false, within: true })
        };
        STANDING.iter().filter_map(within).for_each(|about| self.add(about));
    }

    /// What is asked behind `what`, `which` and `how`.
    fn behind(&mut self, rest: &[Token], weak: Classes, known: Known) -> Classes {
        let noun = |token: &Token| known.noun(token);
        let verbs = || rest.iter().map(|token| of_verb(known.words, token)).fold(Classes::default(), Classes::and);
        let or_weak = |asked: Classes| if asked.is_empty() { weak } else { asked };
        if !known.english() {
            let between = |token: &&Token| known.words.function.contains(token.text.as_str()) || token.asks;
            let next = rest.iter().find(|token| !between(token)).map(noun).unwrap_or_default();
            return or_weak(if next.is_empty() { verbs() } else { next });
        }
        let verb = rest.iter().position(|token| token.is(AUXILIARIES)).unwrap_or(rest.len());
        let thing = &rest[..verb.min(PHRASE_WORDS)];
        if !thing.is_empty() && !weak.has(Class::Manner) {
            // Up to a preposition: "which person in the house".
            let end = thing.iter().position(|token| token.is(PREPOSITIONS)).unwrap_or(thing.len());
            let asked = thing[..end].iter().map(noun).fold(Classes::default(), Classes::and);
            // `Which school does Tom go to?` asks for a place.
            let place = rest.last().is_some_and(|token| token.is(TOWARDS));
            let which = Classes::of(if place { &[Class::Which, Class::Place] } else { &[Class::Which] });
            return if asked.is_empty() { verbs().and(which) } else { asked };
        }
        if rest.get(verb).is_some_and(|token| token.is(COPULAS)) {
            let asked = head(&rest[verb + 1..], &noun);
            if !asked.is_empty() {
                return asked;
            }
        } else {
            self.object = weak.has(Class::Thing);
        }
        if weak.has(Class::Manner) { verbs().and(weak) } else { or_weak(verbs()) }
    }

    /// What is asked without a word that asks: "alarm code please".
    fn named(&mut self, clause: &mut [Token], known: Known) {
        let noun = |token: &Token| known.noun(token);
        let asked = match known.english() {
            true => head(clause, &noun),
            false => clause.iter().map(noun).find(|of| !of.is_empty()).unwrap_or_default(),
        };
        let at = clause.iter().position(|token| noun(token).meets(asked));
        let indefinite = |token: &Token| known.words.indefinite.contains(token.text.as_str());
        if at.is_some_and(|at| at == 0 || !indefinite(&clause[at - 1])) {
            self.takes(clause, asked, noun);
            // "Barn door code": words beside it say more of it.
            clause.iter_mut().for_each(|token| token.aside = true);
        }
    }

    /// The words of what it is about.
    fn about(&mut self, tokens: &[Token], words: &Language) {
        let until = tokens.iter().any(|token| words.until.contains(token.text.as_str()));
        let asking: Vec<usize> = tokens.iter().filter(|token| token.asks).map(|token| token.clause).collect();
        for (at, token) in tokens.iter().enumerate() {
            let text = token.text.as_str();
            let open = words.open.contains(text);
            let empty = || token.asks || words.function.contains(text) || words.is_light(text) && !token.named;
            let word = if words.close.contains(text) || open && (until || at > 0 && tokens[at - 1].is(NOT)) {
                "close"
            } else if open && !token.asks {
                "open"
            } else if let Some(word) = standing(token, words) {
                word
            } else if empty() || words.light_verbs.contains_key(text) {
                continue;
            } else {
                root(text, words)
            };
            let within = asking.contains(&token.clause);
            let (word, strong) = (word.to_owned(), token.named || token.owner);
            self.add(About { word, strong, owner: token.owner, aside: token.aside, within });
        }
    }

    fn add(&mut self, about: About) {
        if !self.about.iter().any(|known| known.word == about.word) {
            self.about.push(about);
        }
    }
}
