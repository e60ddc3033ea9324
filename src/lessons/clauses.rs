//! A question as clauses of words: which of seven languages it is in, which words are names, owners or parts of a phrase.

use std::collections::HashMap;

use super::classes::{Class, Classes, LANGUAGES, Language};
use super::words::stem;
use crate::intent::fold::fold;

/// Words that are read of a question.
const WORDS_MAX: usize = 256;
/// What stands before the hyphen in `Wi-Fi` and `e-mail`.
const LETTERS: &[&str] = &["wi", "e", "x", "u"];
/// What follows `when`, `where` and `why` where they ask, in English.
pub(super) const AUXILIARIES: &[&str] = &[
    "is", "s", "are", "am", "was", "were", "do", "does", "did", "can", "could", "will", "would", "shall", "should",
    "must", "may", "might", "has", "have", "had", "d", "ll", "re",
];
pub(super) const PREPOSITIONS: &[&str] =
    &["of", "for", "in", "on", "at", "to", "with", "from", "by", "about", "into", "behind", "under", "as", "that"];
const ASKERS: &[&str] = &["i", "we", "you", "they", "one", "he", "she"];
/// Words behind `what` among which its noun stands.
pub(super) const PHRASE_WORDS: usize = 8;
/// Endings of words that are made of one another: `teach` and `teacher`, `allergic` and `allergies`.
const DERIVED: &[&str] = &["ers", "er", "ies", "ics", "ic", "y", "i"];
const DERIVED_LETTERS_MIN: usize = 4;
/// Letters that end an English word twice, as `call` and `class`.
const TWICE: &str = "aeiouls";

#[derive(Debug, Default)]
pub(super) struct Token {
    pub(super) text: String,
    /// It begins with a capital letter, and no sentence begins with it.
    pub(super) named: bool,
    /// An English `'s` follows, and it is no `is`.
    pub(super) owner: bool,
    /// A hyphen joins it to the one before.
    glued: bool,
    pub(super) clause: usize,
    /// It says what is asked.
    pub(super) asks: bool,
    /// It does so as a part of a phrase.
    pub(super) phrase: bool,
    /// It says more of what is asked, or what the asker does: "which internal number should I note".
    pub(super) aside: bool,
}

impl Token {
    pub(super) fn is(&self, list: &[&str]) -> bool {
        list.contains(&self.text.as_str())
    }
}

/// The words of a text with their clauses. An `'s` of an owner is no word of its own.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let plain = text.replace(['’', '‘'], "'");
    let (mut found, mut clause, mut opens, mut before): (Vec<Token>, usize, bool, char) = (Vec::new(), 0, true, ' ');
    for piece in plain.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let end = piece.chars().next_back().filter(|c| !c.is_alphanumeric());
        let word = &piece[..piece.len() - end.map_or(0, char::len_utf8)];
        if !word.is_empty() && found.len() < WORDS_MAX {
            let mut text = String::new();
            fold(word, &mut text);
            let named = !opens && word.starts_with(char::is_uppercase);
            match found.last_mut() {
                Some(last) if before == '\'' && text == "s" && !LANGUAGES[0].function.contains(last.text.as_str()) => {
                    last.owner = true;
                }
                Some(last) if before == '-' && last.is(LETTERS) => last.text.push_str(&text),
                _ => found.push(Token { text, named, glued: before == '-', clause, ..Token::default() }),
            }
            opens = false;
        }
        before = end.unwrap_or(' ');
        opens |= matches!(before, '.' | '!' | '?' | ':' | '\n' | '¿' | '¡');
        let ends = matches!(before, '.' | '!' | '?' | ':' | ';' | ',' | '\n');
        clause += usize::from(ends && found.last().is_some_and(|token| token.clause == clause));
    }
    found
}

/// `stand-up` is one word in English, since its parts say nothing.
pub(super) fn join(tokens: &mut Vec<Token>, words: &Language) {
    let mut joined: Vec<Token> = Vec::with_capacity(tokens.len());
    for token in tokens.drain(..) {
        let empty = |text: &str| words.function.contains(text) || words.light.contains(text);
        match joined.last_mut() {
            Some(last) if token.glued && (empty(&last.text) || empty(&token.text)) => {
                last.text.push_str(&token.text);
                last.owner |= token.owner;
            }
            _ => joined.push(token),
        }
    }
    *tokens = joined;
}

/// The language with most of its words in the text; `None`: there is no function word of any.
pub(super) fn language(tokens: &[Token]) -> Option<&'static Language> {
    let count = |language: &Language| {
        let function = tokens.iter().filter(|token| language.function.contains(token.text.as_str())).count();
        let known = tokens.iter().filter(|token| language.knows(&token.text)).count();
        if function == 0 { 0 } else { function + known }
    };
    let counted = LANGUAGES.iter().map(|language| (count(language), language));
    // Of two that have as many the first one.
    let (count, language) = counted.rev().max_by_key(|(count, _)| *count)?;
    (count > 0).then_some(language)
}

/// What a word of a table asks for, or one of which it is the plural.
pub(super) fn listed(words: &HashMap<&'static str, Classes>, word: &str) -> Classes {
    let one = || word.strip_suffix('s').filter(|one| one.len() > 2).and_then(|one| words.get(one));
    words.get(word).or_else(one).copied().unwrap_or_default()
}

/// What a verb asks for behind `what`.
pub(super) fn of_verb(words: &Language, token: &Token) -> Classes {
    listed(&words.verbs, &token.text).and(listed(&words.light_verbs, &token.text))
}

/// Marks the phrases that ask in a clause.
pub(super) fn phrases(clause: &mut [Token], words: &Language) -> Classes {
    let mut asked = Classes::default();
    for (phrase, of) in &words.phrases {
        for at in 0..(clause.len() + 1).saturating_sub(phrase.len()) {
            let here = &mut clause[at..at + phrase.len()];
            if here.iter().zip(phrase).all(|(token, word)| token.text == *word && !token.asks) {
                asked = asked.and(*of);
                here.iter_mut().for_each(|token| (token.asks, token.phrase) = (true, true));
            }
        }
    }
    asked
}

/// Marks what is no other thing that is asked for: words beside the noun behind `which`, and what the asker does.
pub(super) fn set_aside(clause: &mut [Token], opener: Option<usize>, noun: &impl Fn(&Token) -> Classes) {
    let verb = clause.iter().position(|token| token.is(AUXILIARIES)).unwrap_or(clause.len());
    let thing = opener.map_or(0..0, |opener| opener.min(verb)..verb);
    if clause[thing.clone()].iter().any(|token| !noun(token).is_empty()) {
        clause[thing].iter_mut().for_each(|token| token.aside = true);
    }
    for at in 2..clause.len() {
        clause[at].aside |= clause[at - 2].is(AUXILIARIES) && clause[at - 1].is(ASKERS);
    }
}

/// What the noun of an English phrase asks for: the last one before a preposition, behind an owner.
pub(super) fn head(phrase: &[Token], noun: &impl Fn(&Token) -> Classes) -> Classes {
    let mut found = Classes::default();
    for token in phrase.iter().take(PHRASE_WORDS) {
        let of = noun(token);
        if token.is(PREPOSITIONS) && !found.is_empty() {
            break;
        }
        if token.owner {
            found = Classes::default();
        } else if !of.is_empty() {
            found = of;
        }
    }
    found
}

/// The word of a class that stands for all of its words, since nobody asks for it without one of them.
pub(super) const STANDING: &[(Class, &str)] =
    &[(Class::Birth, "#birth"), (Class::Food, "#food"), (Class::Drink, "#drink"), (Class::Job, "#job")];

pub(super) fn standing(token: &Token, words: &Language) -> Option<&'static str> {
    let of = listed(&words.nouns, &token.text).and(listed(&words.verbs, &token.text));
    let (_, word) = STANDING.iter().filter(|_| !token.phrase).find(|(class, _)| of.has(*class))?;
    Some(word)
}

/// A word as all that mean the same have it.
pub(super) fn root<'a>(word: &'a str, words: &Language) -> &'a str {
    let mut plain = stem(word);
    // `cutting` and `cut`.
    let mut letters = plain.chars().rev();
    if let (Some(last), Some(before)) = (letters.next(), letters.next())
        && last == before
        && plain.len() < word.len()
        && !TWICE.contains(last)
    {
        plain = &plain[..plain.len() - last.len_utf8()];
    }
    if let Some(one) = words.same.get(word).or_else(|| words.same.get(plain)) {
        return one;
    }
    let derived = |ending: &&&str| plain.len() >= ending.len() + DERIVED_LETTERS_MIN && plain.ends_with(**ending);
    match DERIVED.iter().find(derived) {
        Some(ending) if words.name == "en" => &plain[..plain.len() - ending.len()],
        _ => plain,
    }
}
