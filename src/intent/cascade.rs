//! The rule cascade: file types first (a named file says most), then words and phrases on word borders. The
//! route with the most evidence wins, ties go to the higher priority, no evidence to the default route.

use std::collections::{BTreeSet, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};

/// Text looked at, bytes from its start: what a request is about is said early or not at all.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// Evidence of one file name, in words.
const EXTENSION_WEIGHT: u32 = 3;
/// Longest file extension, characters.
const EXTENSION_CHARS_MAX: usize = 12;

/// The rules of one route: its words, phrases and file types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub route: String,
    /// Breaks ties; larger wins.
    pub priority: i32,
    /// Words or phrases, compared without case, matched between word borders.
    pub words: Vec<String>,
    /// File extensions without the dot.
    pub extensions: Vec<String>,
    /// Evidence needed: different words, a file name counting for `EXTENSION_WEIGHT`.
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

pub struct Cascade {
    rules: Vec<Rules>,
    words: AhoCorasick,
    /// Which rule and which text a pattern of `words` belongs to.
    owners: Vec<(usize, String)>,
    extensions: HashMap<String, Vec<usize>>,
}

#[derive(Clone, Default)]
struct Evidence {
    words: BTreeSet<usize>,
    extensions: BTreeSet<String>,
}

impl Cascade {
    pub fn new(rules: Vec<Rules>) -> Result<Self, CascadeError> {
        let mut owners = Vec::new();
        let mut extensions: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, rule) in rules.iter().enumerate() {
            owners.extend(rule.words.iter().map(|word| (i, word.to_lowercase())));
            for extension in &rule.extensions {
                extensions.entry(extension.to_lowercase()).or_default().push(i);
            }
        }
        let words =
            AhoCorasick::builder().match_kind(MatchKind::Standard).build(owners.iter().map(|(_, word)| word))?;
        Ok(Cascade { rules, words, owners, extensions })
    }

    /// Picks a route for texts in order of weight: the first text that gives evidence decides.
    pub fn choose<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Option<Choice> {
        texts.into_iter().find_map(|text| self.choose_one(text))
    }

    fn choose_one(&self, text: &str) -> Option<Choice> {
        let text = cut(text, TEXT_BYTES_MAX).to_lowercase();
        let mut evidence = vec![Evidence::default(); self.rules.len()];
        for found in self.words.find_overlapping_iter(&text) {
            if on_borders(&text, found.start(), found.end()) {
                let pattern = found.pattern().as_usize();
                evidence[self.owners[pattern].0].words.insert(pattern);
            }
        }
        for extension in file_extensions(&text) {
            for &rule in self.extensions.get(extension).into_iter().flatten() {
                evidence[rule].extensions.insert(extension.to_owned());
            }
        }
        let weight = |e: &Evidence| e.words.len() as u32 + EXTENSION_WEIGHT * e.extensions.len() as u32;
        let best = (0..self.rules.len())
            .filter(|&i| weight(&evidence[i]) >= self.rules[i].evidence_min.max(1))
            // Of equals the earlier in the alphabet: `max_by_key` keeps the last.
            .max_by_key(|&i| (weight(&evidence[i]), self.rules[i].priority, std::cmp::Reverse(&self.rules[i].route)))?;
        Some(Choice { route: self.rules[best].route.clone(), because: self.because(&evidence[best]) })
    }

    /// The evidence in words that show no more of the user's text than the pipeline file itself does.
    fn because(&self, evidence: &Evidence) -> String {
        let mut parts: Vec<String> = evidence.extensions.iter().map(|e| format!("a .{e} file")).collect();
        parts.extend(evidence.words.iter().map(|&i| format!("`{}`", self.owners[i].1)));
        let more = parts.len().saturating_sub(4);
        parts.truncate(4);
        let list = parts.join(", ");
        if more > 0 { format!("{list} and {more} more") } else { list }
    }
}

/// The longest prefix of at most `bytes` bytes that ends between characters.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Whether `start..end` is not part of a longer word. A border is only asked for where the match itself ends
/// in a word character: "c++" and "```" have none.
fn on_borders(text: &str, start: usize, end: usize) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let first = text[start..].chars().next().is_some_and(word);
    let last = text[..end].chars().next_back().is_some_and(word);
    let before = text[..start].chars().next_back().is_some_and(word);
    let after = text[end..].chars().next().is_some_and(word);
    !(first && before || last && after)
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
            priority: 0,
            words: words.iter().map(|w| (*w).to_owned()).collect(),
            extensions: extensions.iter().map(|w| (*w).to_owned()).collect(),
            evidence_min: 1,
        }
    }

    fn cascade() -> Cascade {
        Cascade::new(vec![
            rules("code", &["rust", "c++", "stack trace", "```", "function"], &["rs", "py"]),
            rules("kine", &["knee", "stretch"], &[]),
            rules("cyber", &["exploit", "cve"], &["pcap"]),
        ])
        .unwrap()
    }

    fn route(text: &str) -> Option<String> {
        cascade().choose([text]).map(|c| c.route)
    }

    #[test]
    fn words_count_on_their_borders_only() {
        assert_eq!(route("Is RUST fast?").as_deref(), Some("code"));
        assert_eq!(route("I trust you").as_deref(), None);
        assert_eq!(route("rusty nails").as_deref(), None);
        assert_eq!(route("learn C++ now").as_deref(), Some("code"));
        assert_eq!(route("my knee hurts").as_deref(), Some("kine"));
        assert_eq!(route("a Stack Trace.").as_deref(), Some("code"));
        assert_eq!(route("```\nx\n```").as_deref(), Some("code"));
        assert_eq!(route(""), None);
    }

    #[test]
    fn file_names_weigh_more_than_words() {
        let choice = cascade().choose(["does main.rs exploit a knee?"]).unwrap();
        assert_eq!((choice.route.as_str(), choice.because.as_str()), ("code", "a .rs file"));
        assert_eq!(route("see dump.pcap.").as_deref(), Some("cyber"));
        assert_eq!(route("open main.py").as_deref(), Some("code"));
        for none in ["it costs 3.5", "www.example.com", "end. rs", "main.rsx", "...rs"] {
            assert_eq!(route(none), None, "{none}");
        }
    }

    #[test]
    fn the_first_text_with_evidence_decides() {
        let choice = cascade().choose(["and then?", "about my knee", "in rust"]).unwrap();
        assert_eq!(choice.route, "kine");
    }

    #[test]
    fn ties_go_to_the_priority_and_then_to_the_name() {
        let mut a = rules("a", &["word"], &[]);
        let b = rules("b", &["word"], &[]);
        assert_eq!(Cascade::new(vec![b.clone(), a.clone()]).unwrap().choose(["word"]).unwrap().route, "a");
        a.priority = -1;
        assert_eq!(Cascade::new(vec![a, b]).unwrap().choose(["word"]).unwrap().route, "b");
    }

    #[test]
    fn evidence_below_the_minimum_is_none() {
        let mut rule = rules("a", &["one", "two"], &[]);
        rule.evidence_min = 2;
        let cascade = Cascade::new(vec![rule]).unwrap();
        assert_eq!(cascade.choose(["one one"]), None);
        assert!(cascade.choose(["one two"]).is_some());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "é".repeat(TEXT_BYTES_MAX) + " rust";
        assert_eq!(route(&text), None);
        assert_eq!(cut("aé", 2), "a");
    }

    /// The work beside the automaton's one pass is a constant for each match and each dot. Of these there are never
    /// more than characters, whatever the text.
    #[test]
    fn the_work_grows_with_the_text_and_not_faster() {
        let words = ["a", "aa", "aaa", "aaaa"];
        let cascade = Cascade::new(vec![rules("a", &words, &["a"])]).unwrap();
        for n in [1 << 10, 1 << 13, 1 << 16] {
            let text = "a".repeat(n);
            assert_eq!(cascade.choose([text.as_str()]), None);
            assert!(cascade.words.find_overlapping_iter(&text).count() <= words.len() * n);
            let dots = "a.".repeat(n / 2);
            let scanned: usize = file_extensions(&dots).map(|extension| extension.len() + 1).sum();
            assert!(scanned <= dots.len(), "{scanned} bytes of extensions in {}", dots.len());
        }
    }
}
