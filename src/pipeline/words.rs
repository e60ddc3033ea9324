//! A list of words in a pipeline file: one list, or one for each language. The languages are for the reader of the file;
//! every word is looked for in every text.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::intent::check_word;

/// Most words of one list, all languages together.
const WORDS_MAX: usize = 2_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Words(pub(super) Vec<String>);

impl Words {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.0.len() > WORDS_MAX {
            return Err(format!("holds more than {WORDS_MAX} entries"));
        }
        self.0.iter().try_for_each(|word| check_word(word).map_err(|why| format!("holds {word:?}: {why}")))
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Lists)
    }
}

struct Lists;

impl<'de> Visitor<'de> for Lists {
    type Value = Words;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of words, or one for each language: `{any: [docker], de: [Quelltext]}`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = list.next_element()? {
            words.push(word);
        }
        Ok(Words(words))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut lists: A) -> Result<Words, A::Error> {
        // In the order of the languages: a file that is written again may hold them in another.
        let mut languages: BTreeMap<String, Vec<String>> = BTreeMap::new();
        while let Some(language) = lists.next_key::<String>()? {
            if !(2..=3).contains(&language.len()) || !language.bytes().all(|b| b.is_ascii_lowercase()) {
                return Err(A::Error::custom(format!(
                    "`{language}` is no language: write `any`, `en`, `de` and so on"
                )));
            }
            languages.entry(language).or_default().append(&mut lists.next_value()?);
        }
        Ok(Words(languages.into_values().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use crate::pipeline::Pipeline;

    fn parsed(rules: &str) -> Result<Vec<String>, String> {
        let text = format!("name: a\nversion: 1\nfollow_model: true\nmatch:\n  {rules}\n");
        Pipeline::parse(&text, "a.yaml", "a", false).map(|p| p.rules.words).map_err(|error| error.to_string())
    }

    #[test]
    fn words_stand_in_one_list_or_by_language() {
        assert_eq!(parsed("words: [docker, épaul*]").unwrap(), ["docker", "épaul*"]);
        for rules in ["words: {any: [docker], fr: [épaul*]}", "words: {fr: [épaul*], any: [docker]}"] {
            assert_eq!(parsed(rules).unwrap(), ["docker", "épaul*"], "{rules}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_one_says_where_and_why() {
        for (rules, says) in [
            ("words: docker", "a list of words, or one for each language"),
            ("words: {french: [a]}", "`french` is no language"),
            ("words: {fr: a}", "a.yaml:5:"),
            ("words: ['a ']", "match.words holds \"a \": words must not be empty"),
            ("sure: [ab*]", "match.sure holds \"ab*\": a word with `*` needs three letters"),
            ("hints: {de: ['*']}", "match.hints holds"),
            ("against: ['']", "match.against holds"),
        ] {
            let error = parsed(rules).unwrap_err();
            assert!(error.starts_with("a.yaml:") && error.contains(says), "{rules}: {error}");
        }
        assert!(parsed(&format!("words: [{}]", "a,".repeat(2_001))).unwrap_err().contains("more than 2000 entries"));
    }
}
