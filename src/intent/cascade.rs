//! The rule cascade: pieces of evidence for every route, from words and file types. The route with the most wins, ties go
//! to the higher priority, no evidence to the default route.

use std::collections::{BTreeSet, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Serialize;

use super::fold::fold;

/// Text looked at, bytes: a question stands before or behind what was pasted.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// Of them, those of its end.
const TAIL_BYTES: usize = 16 << 10;
/// Words looked at: where so many were found, more change nothing.
const MATCHES_MAX: usize = 4_096;
/// Points of a piece of evidence, which is a word.
pub const PIECE: i32 = 2;
const HINT: i32 = 1;
/// A sure word or a file name.
const SURE: i32 = 3 * PIECE;
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
    /// A piece of evidence each.
    pub words: Vec<String>,
    /// Three pieces each, as a file name.
    pub sure: Vec<String>,
    /// Half a piece each.
    pub hints: Vec<String>,
    /// Each takes a piece away; words inside one count nothing.
    pub against: Vec<String>,
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
    /// Evidence; a word is one piece.
    pub pieces: f64,
    pub because: String,
    #[serde(skip)]
    points: i32,
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
        let near = |score: &&Score| score.points > 0 && best.points - score.points <= PIECE;
        let names: Vec<&str> = self.scores.iter().filter(near).map(|score| score.route.as_str()).collect();
        if names.len() > 1 { names } else { Vec::new() }
    }
}

/// One word of the rules, as the automaton has it.
struct Word {
    rule: usize,
    /// As the pipeline file has it.
    written: String,
    points: i32,
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
    Ok(())
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
            for (list, points) in [(&of.sure, SURE), (&of.words, PIECE), (&of.hints, HINT), (&of.against, -PIECE)] {
                for written in list {
                    let (plain, borders) = stem(written);
                    let mut text = String::new();
                    fold(plain, &mut text);
                    if known.insert((text.clone(), borders)) {
                        words.push(Word { rule, written: written.clone(), points, borders });
                        texts.push(text);
                    }
                }
            }
            for extension in &of.extensions {
                extensions.entry(extension.to_lowercase()).or_default().push(rule);
            }
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&texts)?;
        Ok(Cascade { rules, automaton, words, extensions })
    }

    /// Picks a route for texts in order of weight: the first text that gives evidence decides. Without any, the reading
    /// of the first text.
    pub fn read<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Reading {
        let mut first = None;
        for text in texts {
            let reading = self.read_one(text);
            if reading.decided {
                return reading;
            }
            first.get_or_insert(reading);
        }
        first.unwrap_or_default()
    }

    fn read_one(&self, text: &str) -> Reading {
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
        let enough = |rule: usize, points: i32| {
            let needed = self.rules[rule].evidence_min.clamp(1, i32::MAX as u32 / 4) as i32 * PIECE;
            points >= needed
        };
        // Those with the evidence that they need first; of equals the higher priority, then the earlier in the alphabet.
        order.sort_by(|(a, left), (b, right)| {
            let key = |rule: usize, score: &Score| {
                (!enough(rule, score.points), -score.points, -i64::from(self.rules[rule].priority))
            };
            key(*a, left).cmp(&key(*b, right)).then_with(|| left.route.cmp(&right.route))
        });
        let decided = order.first().is_some_and(|(rule, score)| enough(*rule, score.points));
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
        let points: i32 = words.iter().map(|&word| self.words[word].points).sum();
        let points = (points + SURE * files.len() as i32).max(0);
        Score {
            route: self.rules[rule].route.clone(),
            pieces: f64::from(points) / f64::from(PIECE),
            because: self.because(words, files),
            points,
        }
    }

    /// The evidence in words that show no more of the user's text than the pipeline file itself does, the strongest
    /// first: words stand in that order.
    fn because(&self, words: &BTreeSet<usize>, files: &BTreeSet<&str>) -> String {
        let mut parts: Vec<String> = files.iter().map(|extension| format!("a .{extension} file")).collect();
        let quoted = |&word: &usize| format!("`{}`", self.words[word].written);
        parts.extend(words.iter().filter(|&&word| self.words[word].points > 0).map(quoted));
        let more = parts.len().saturating_sub(4);
        parts.truncate(4);
        let mut list = parts.join(", ");
        if more > 0 {
            list += &format!(" and {more} more");
        }
        let against: Vec<String> = words.iter().filter(|&&word| self.words[word].points < 0).map(quoted).collect();
        if against.is_empty() { list } else { format!("{list} (less {})", against.join(", ")) }
    }
}

/// The text as the rules read it: folded, and of a long one its beginning and its end.
fn shortened(text: &str) -> String {
    let mut out = String::new();
    if text.len() <= TEXT_BYTES_MAX {
        fold(text, &mut out);
        return out;
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX - TAIL_BYTES);
    fold(&text[..end], &mut out);
    out.push(' ');
    fold(&text[text.ceil_char_boundary(text.len() - TAIL_BYTES)..], &mut out);
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
        cascade.read([text]).choice()
    }

    fn route(text: &str) -> Option<String> {
        choice(&cascade(), text).map(|c| c.route)
    }

    /// Pieces of evidence of the only route.
    fn pieces(rules: &Rules, text: &str) -> f64 {
        Cascade::new(vec![rules.clone()]).unwrap().read([text]).scores[0].pieces
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
    fn each_list_has_its_weight_and_a_word_in_two_languages_counts_once() {
        let rules = Rules {
            sure: list(&["it-sicherheit"]),
            hints: list(&["virus", "link"]),
            against: list(&["flu"]),
            ..rules("cyber", &["malware", "malware", "MALWÄRE"], &["pcap"])
        };
        for (text, expected) in [
            ("malware, malware", 1.0),
            ("a virus", 0.5),
            ("a virus behind a link", 1.0),
            ("IT-Sicherheit", 3.0),
            ("x.pcap with malware", 4.0),
            ("malware of the flu", 0.0),
            ("a flu virus", 0.0),
        ] {
            assert_eq!(pieces(&rules, text), expected, "{text}");
        }
        let cascade = Cascade::new(vec![rules]).unwrap();
        assert_eq!(choice(&cascade, "a virus"), None, "half a piece is not enough");
        let because = choice(&cascade, "malware, IT-Sicherheit and flu").unwrap().because;
        assert_eq!(because, "`it-sicherheit`, `malware` (less `flu`)");
    }

    #[test]
    fn a_word_inside_a_longer_one_of_its_route_counts_nothing() {
        let rules = Rules { against: list(&["dress code"]), ..rules("code", &["source code", "code"], &[]) };
        for (text, expected) in [("source code", 1.0), ("source code and code", 2.0), ("code: dress code", 0.0)] {
            assert_eq!(pieces(&rules, text), expected, "{text}");
        }
        let beside = self::rules("kine", &["*knie*", "*schmerz*"], &[]);
        assert_eq!(pieces(&beside, "Knieschmerzen"), 2.0);
    }

    #[test]
    fn every_route_has_a_score_and_those_near_the_best_are_told() {
        let cascade = cascade();
        let reading = cascade.read(["a rust function for the knee"]);
        let scores: Vec<(&str, f64)> = reading.scores.iter().map(|s| (s.route.as_str(), s.pieces)).collect();
        assert_eq!(scores, [("code", 2.0), ("kine", 1.0), ("cyber", 0.0)]);
        assert_eq!(reading.unsure(), ["code", "kine"]);
        assert!(cascade.read(["a rust function"]).unsure().is_empty(), "the others have no evidence");
        assert!(cascade.read(["a rust function, a stack trace and a knee"]).unsure().is_empty());
        assert!(cascade.read(["hello"]).unsure().is_empty());
        assert_eq!(cascade.read(["hello"]).scores.len(), 3);
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
    fn the_first_text_with_evidence_decides() {
        let choice = cascade().read(["and then?", "about my knee", "in rust"]).choice().unwrap();
        assert_eq!(choice.route, "kine");
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
        let long = "é".repeat(TEXT_BYTES_MAX);
        assert_eq!(route(&format!("rust {long}")).as_deref(), Some("code"));
        assert_eq!(route(&format!("{long} rust")).as_deref(), Some("code"));
        assert_eq!(route(&format!("{long} rust {long}")), None);
        assert_eq!(route(&format!("a{long} rust")).as_deref(), Some("code"), "cut between characters");
        assert!(shortened(&long).len() <= TEXT_BYTES_MAX);
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
