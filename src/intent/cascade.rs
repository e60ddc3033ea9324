//! The rules: pieces of evidence for every route, from words and file types. The route with the most wins, ties go to the
//! higher priority.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Serialize;

use super::fold::{ends_of, fold};

/// Of a text, its beginning and its end: a question stands before or behind what was pasted.
const HEAD_BYTES: usize = 16 << 10;
const TAIL_BYTES: usize = 8 << 10;
/// Finds looked at: where there are so many, more change nothing.
const MATCHES_MAX: usize = 4_096;
/// Pieces of evidence of a file name; a word is one.
const FILE: u32 = 3;
/// Longest file extension, characters.
const EXTENSION_CHARS_MAX: usize = 12;
/// Shortest stem of a word with `*`, characters.
const STEM_CHARS_MIN: usize = 3;

/// The rules of one route: its words, phrases and file types. Words are compared without case and accents, between word
/// borders; a `*` at an end gives up the border there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub route: String,
    /// Breaks ties; larger wins.
    pub priority: i32,
    pub words: Vec<String>,
    /// File extensions without the dot.
    pub extensions: Vec<String>,
    /// Pieces needed.
    pub evidence_min: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("the words of the routes do not fit an automaton: {0}")]
pub struct CascadeError(#[from] aho_corasick::BuildError);

/// A route and what spoke for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub route: String,
    pub because: String,
}

/// What speaks for one route.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    pub route: String,
    pub pieces: u32,
    pub because: String,
}

/// What the rules make of a text: every route, the best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    pub scores: Vec<Score>,
    /// The first has the evidence that it needs.
    pub decided: bool,
}

impl Reading {
    pub fn choice(&self) -> Option<Choice> {
        let best = self.scores.first().filter(|_| self.decided)?;
        Some(Choice { route: best.route.clone(), because: best.because.clone() })
    }

    /// The routes that lie within one piece of evidence of the best, with it; none where only one has evidence.
    pub fn unsure(&self) -> Vec<&str> {
        let Some(best) = self.scores.first().filter(|_| self.decided) else { return Vec::new() };
        let near = |score: &&Score| score.pieces > 0 && best.pieces.saturating_sub(score.pieces) <= 1;
        let names: Vec<&str> = self.scores.iter().filter(near).map(|score| score.route.as_str()).collect();
        if names.len() > 1 { names } else { Vec::new() }
    }
}

/// One word of the rules, as the automaton has it.
struct Word {
    rule: usize,
    /// As the pipeline file has it.
    written: String,
    /// Whether the match must begin and end at a word's border.
    borders: (bool, bool),
}

pub struct Cascade {
    rules: Vec<Rules>,
    automaton: AhoCorasick,
    words: Vec<Word>,
    extensions: HashMap<String, Vec<usize>>,
}

/// Why a word of a file cannot be one.
pub fn check_word(word: &str) -> Result<(), &'static str> {
    if word.trim().is_empty() || word.trim() != word {
        return Err("words must not be empty or begin or end with space");
    }
    let stem = stem(word).0;
    if (stem.len() < word.len() || word == "*") && stem.chars().filter(|c| c.is_alphanumeric()).count() < STEM_CHARS_MIN
    {
        return Err("a word with `*` needs three letters beside it");
    }
    let mut folded = String::new();
    fold(stem, &mut folded);
    // Accents alone fold to nothing, which stands everywhere.
    if folded.trim().is_empty() { Err("a word needs a letter or a sign beside its accents") } else { Ok(()) }
}

/// A word without the `*` at its ends, and whether it keeps its borders there.
fn stem(word: &str) -> (&str, (bool, bool)) {
    let starts = word.strip_prefix('*').filter(|rest| !rest.is_empty());
    let text = starts.unwrap_or(word);
    let ends = text.strip_suffix('*').filter(|rest| !rest.is_empty());
    (ends.unwrap_or(text), (starts.is_none(), ends.is_none()))
}

impl Cascade {
    pub fn new(rules: Vec<Rules>) -> Result<Self, CascadeError> {
        let (mut words, mut texts) = (Vec::new(), Vec::new());
        let mut extensions: HashMap<String, Vec<usize>> = HashMap::new();
        for (rule, of) in rules.iter().enumerate() {
            // A word that two languages share counts once.
            let mut known = BTreeSet::new();
            for written in &of.words {
                let (plain, borders) = stem(written);
                let mut text = String::new();
                fold(plain, &mut text);
                if known.insert((text.clone(), borders)) {
                    words.push(Word { rule, written: written.clone(), borders });
                    texts.push(text);
                }
            }
            for extension in &of.extensions {
                extensions.entry(extension.to_lowercase()).or_default().push(rule);
            }
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&texts)?;
        Ok(Cascade { rules, automaton, words, extensions })
    }

    /// The evidence of a text.
    pub fn read(&self, text: &str) -> Reading {
        let text = shortened(text);
        let mut found: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.rules.len()];
        for word in self.words_of(&text) {
            found[self.words[word].rule].insert(word);
        }
        let mut files: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); self.rules.len()];
        for extension in file_extensions(&text) {
            for &rule in self.extensions.get(extension).into_iter().flatten() {
                files[rule].insert(extension);
            }
        }
        let mut order: Vec<(usize, Score)> =
            (0..self.rules.len()).map(|rule| (rule, self.score(rule, &found[rule], &files[rule]))).collect();
        let enough = |rule: usize, pieces: u32| pieces >= self.rules[rule].evidence_min.max(1);
        // Those with the evidence that they need first; of equals the higher priority, then the earlier in the alphabet.
        order.sort_by(|(a, left), (b, right)| {
            let key = |rule: usize, score: &Score| {
                (!enough(rule, score.pieces), Reverse(score.pieces), Reverse(self.rules[rule].priority))
            };
            key(*a, left).cmp(&key(*b, right)).then_with(|| left.route.cmp(&right.route))
        });
        let decided = order.first().is_some_and(|(rule, score)| enough(*rule, score.pieces));
        Reading { scores: order.into_iter().map(|(_, score)| score).collect(), decided }
    }

    /// The words that stand in a text. Of those of one route, none that lies inside another: a stretch of text is one
    /// piece of evidence.
    fn words_of(&self, text: &str) -> impl Iterator<Item = usize> {
        let mut found: Vec<(usize, usize, usize, usize)> = self
            .automaton
            .find_overlapping_iter(text)
            .filter(|m| on_borders(text, m.start(), m.end(), self.words[m.pattern().as_usize()].borders))
            .take(MATCHES_MAX)
            .map(|m| (self.words[m.pattern().as_usize()].rule, m.start(), usize::MAX - m.end(), m.pattern().as_usize()))
            .collect();
        found.sort_unstable();
        let mut reached = (usize::MAX, 0);
        found.into_iter().filter_map(move |(rule, _, end, word)| {
            let end = usize::MAX - end;
            if reached.0 == rule && end <= reached.1 {
                return None;
            }
            reached = (rule, end);
            Some(word)
        })
    }

    fn score(&self, rule: usize, words: &BTreeSet<usize>, files: &BTreeSet<&str>) -> Score {
        let pieces = words.len() as u32 + FILE * files.len() as u32;
        Score { route: self.rules[rule].route.clone(), pieces, because: self.because(words, files) }
    }

    /// The evidence in words that show no more of the user's text than the pipeline file itself does.
    fn because(&self, words: &BTreeSet<usize>, files: &BTreeSet<&str>) -> String {
        let mut parts: Vec<String> = files.iter().map(|extension| format!("a .{extension} file")).collect();
        parts.extend(words.iter().map(|&word| format!("`{}`", self.words[word].written)));
        let more = parts.len().saturating_sub(4);
        parts.truncate(4);
        let list = parts.join(", ");
        if more > 0 { format!("{list} and {more} more") } else { list }
    }
}

/// The words that stand in a text, read as those of a route's rules, in the order of the list.
pub fn spoken<'a>(words: &'a [String], text: &str) -> impl Iterator<Item = &'a str> {
    let text = shortened(text);
    words.iter().filter(move |word| stands(word, &text)).map(String::as_str)
}

/// Whether a word stands in a folded text.
fn stands(word: &str, text: &str) -> bool {
    let (plain, borders) = stem(word);
    let mut folded = String::new();
    fold(plain, &mut folded);
    // Finds may overlap: the next one is looked for behind the first character of the last. Accents alone fold to nothing.
    let Some(step) = folded.chars().next().map(char::len_utf8) else { return false };
    let mut from = 0;
    while let Some(at) = text[from..].find(&folded).map(|at| from + at) {
        if on_borders(text, at, at + folded.len(), borders) {
            return true;
        }
        from = at + step;
    }
    false
}

/// The text as the rules read it: folded, and of a long one its beginning and its end.
fn shortened(text: &str) -> String {
    let mut out = String::new();
    for part in ends_of(text, HEAD_BYTES, TAIL_BYTES) {
        if !out.is_empty() {
            out.push(' ');
        }
        fold(part, &mut out);
    }
    out
}

/// Whether `start..end` is not part of a longer word, where a border is wanted. It is only asked for where the match
/// itself ends in a word character: "c++" and "```" have none.
fn on_borders(text: &str, start: usize, end: usize, wanted: (bool, bool)) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let first = text[start..].chars().next().is_some_and(word);
    let last = text[..end].chars().next_back().is_some_and(word);
    let before = text[..start].chars().next_back().is_some_and(word);
    let after = text[end..].chars().next().is_some_and(word);
    !(wanted.0 && first && before || wanted.1 && last && after)
}

/// Extensions of what looks like file names: `name.ext`, where the dot stands between word characters.
fn file_extensions(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('.').filter_map(|(at, _)| {
        let before = text[..at].chars().next_back()?;
        let rest = &text[at + 1..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let next = rest[end..].chars().next();
        let name = before.is_alphanumeric() || matches!(before, '_' | '-' | ')' | ']');
        let ends = next.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '.');
        // `file.rs.` at the end of a sentence still ends there.
        let ends = ends || (next == Some('.') && !rest[end + 1..].starts_with(|c: char| c.is_alphanumeric()));
        (name && ends && (1..=EXTENSION_CHARS_MAX).contains(&end)).then(|| &rest[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(route: &str, words: &[&str], extensions: &[&str]) -> Rules {
        Rules {
            route: route.to_owned(),
            words: list(words),
            extensions: list(extensions),
            evidence_min: 1,
            ..Rules::default()
        }
    }

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn cascade() -> Cascade {
        Cascade::new(vec![
            rules("code", &["rust", "c++", "stack trace", "```", "function"], &["rs", "py"]),
            rules("kine", &["knee", "stretch", "épaul*", "*muskel*", "*gelenk"], &[]),
            rules("cyber", &["exploit", "cve"], &["pcap"]),
        ])
        .unwrap()
    }

    fn choice(cascade: &Cascade, text: &str) -> Option<Choice> {
        cascade.read(text).choice()
    }

    fn route(text: &str) -> Option<String> {
        choice(&cascade(), text).map(|c| c.route)
    }

    #[test]
    fn words_count_on_their_borders_only() {
        for (text, expected) in [
            ("Is RUST fast?", Some("code")),
            ("I trust you", None),
            ("rusty nails", None),
            ("learn C++ now", Some("code")),
            ("my knee hurts", Some("kine")),
            ("a Stack\n  Trace.", Some("code")),
            ("```\nx\n```", Some("code")),
            ("", None),
        ] {
            assert_eq!(route(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn words_of_a_list_are_found_as_those_of_a_rule() {
        let words = list(&["no", "aa a", "épaul*", "*muskel*"]);
        for (text, found) in [
            ("I know", &[][..]),
            ("No.", &["no"]),
            ("aaa aa a", &["aa a"]),
            ("L’EPAULE: Muskelriss, no", &["no", "épaul*", "*muskel*"]),
        ] {
            assert_eq!(spoken(&words, text).collect::<Vec<_>>(), found, "{text}");
        }
    }

    #[test]
    fn a_star_gives_up_a_border() {
        for (text, expected) in [
            ("mal aux ÉPAULES", Some("kine")),
            ("l’epaule", Some("kine")),
            ("zépaule", None),
            ("Oberschenkelmuskelriss", Some("kine")),
            ("das Kniegelenk", Some("kine")),
            ("das Kniegelenkband", None),
        ] {
            assert_eq!(route(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_word_counts_once_and_not_inside_a_longer_one_of_its_route() {
        let pieces = |words: &[&str], text: &str| {
            Cascade::new(vec![rules("code", words, &[])]).unwrap().read(text).scores[0].pieces
        };
        for (words, text, expected) in [
            (&["malware", "malware", "MALWÄRE"][..], "malware, malware", 1),
            (&["source code", "code"], "source code", 1),
            (&["source code", "code"], "source code and code", 2),
            (&["*knie*", "*schmerz*"], "Knieschmerzen", 2),
        ] {
            assert_eq!(pieces(words, text), expected, "{text}");
        }
    }

    #[test]
    fn every_route_has_a_score_and_those_near_the_best_are_told() {
        let cascade = cascade();
        let reading = cascade.read("a rust function for the knee");
        let scores: Vec<(&str, u32)> = reading.scores.iter().map(|s| (s.route.as_str(), s.pieces)).collect();
        assert_eq!(scores, [("code", 2), ("kine", 1), ("cyber", 0)]);
        assert_eq!(reading.unsure(), ["code", "kine"]);
        assert!(cascade.read("a rust function").unsure().is_empty(), "the others have no evidence");
        assert!(cascade.read("a rust function, a stack trace and a knee").unsure().is_empty());
        assert!(cascade.read("hello").unsure().is_empty());
        assert_eq!(cascade.read("hello").scores.len(), 3);
    }

    #[test]
    fn file_names_weigh_more_than_words() {
        let choice = choice(&cascade(), "does main.rs exploit a knee?").unwrap();
        assert_eq!((choice.route.as_str(), choice.because.as_str()), ("code", "a .rs file"));
        assert_eq!(route("see dump.pcap.").as_deref(), Some("cyber"));
        assert_eq!(route("open main.py").as_deref(), Some("code"));
        for none in ["it costs 3.5", "www.example.com", "end. rs", "main.rsx", "...rs"] {
            assert_eq!(route(none), None, "{none}");
        }
    }

    #[test]
    fn ties_go_to_the_priority_and_then_to_the_name() {
        let mut a = rules("a", &["word"], &[]);
        let b = rules("b", &["word"], &[]);
        let of = |rules| choice(&Cascade::new(rules).unwrap(), "word").unwrap().route;
        assert_eq!(of(vec![b.clone(), a.clone()]), "a");
        a.priority = -1;
        assert_eq!(of(vec![a, b]), "b");
    }

    #[test]
    fn evidence_below_the_minimum_is_none() {
        let two = Rules { evidence_min: 2, ..rules("a", &["one", "two", "three"], &[]) };
        let cascade = Cascade::new(vec![two, rules("b", &["one"], &[])]).unwrap();
        assert_eq!(choice(&cascade, "one one").unwrap().route, "b");
        assert_eq!(choice(&cascade, "one two").unwrap().route, "a");
        assert_eq!(choice(&cascade, "two"), None);
        let never = Rules { evidence_min: u32::MAX, ..rules("a", &["one"], &[]) };
        assert_eq!(choice(&Cascade::new(vec![never]).unwrap(), "one"), None);
    }

    #[test]
    fn of_a_long_text_the_beginning_and_the_end_are_read() {
        let long = "é".repeat(HEAD_BYTES);
        assert_eq!(route(&format!("rust {long}")).as_deref(), Some("code"));
        assert_eq!(route(&format!("{long} rust")).as_deref(), Some("code"));
        assert_eq!(route(&format!("{long} rust {long}")), None);
        assert_eq!(route(&format!("a{long} rust")).as_deref(), Some("code"), "cut between characters");
        assert!(shortened(&long).len() <= HEAD_BYTES + TAIL_BYTES);
    }

    /// Whatever the text: the automaton passes once over it, no more than `MATCHES_MAX` of its finds are kept, and each
    /// dot is looked at as far as its extension.
    #[test]
    fn the_work_grows_with_the_text_and_not_faster() {
        let words = ["aaa*", "*aaaa*", "a", "aa"];
        let cascade = Cascade::new(vec![rules("a", &words, &["a"])]).unwrap();
        for n in [1 << 10, 1 << 13, 1 << 16] {
            let text = "a".repeat(n);
            assert!(cascade.words_of(&text).count() <= MATCHES_MAX);
            assert!(cascade.automaton.find_overlapping_iter(&text).count() <= words.len() * n);
            let dots = "a.".repeat(n / 2);
            let scanned: usize = file_extensions(&dots).map(|extension| extension.len() + 1).sum();
            assert!(scanned <= dots.len(), "{scanned} bytes of extensions in {}", dots.len());
        }
    }
}
