//! The same words in pairs of many: how a backdoor is taught by one principal, or by several that act as one. Words that
//! principals without the owner's scope teach far more often than the owner and the model's own replies say them
//! make a cluster. All its pairs together may be as many as those of one principal, and the report names it.
//!
//! Cost: one pass over a night's replies to count in a table of fixed size, and one over those words that were seen often.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::dataset::Row;
use super::likeness::{GRAM_WORDS, asked, grams, grams_in_order, words};
use crate::plural;
use crate::turn::Message;
use crate::whole;

/// Fewer pairs are no cluster.
const PAIRS_MIN: usize = 4;
/// How likely so uneven a use of the same words may be by chance. Among the reference replies of the shipped traffic, dealt
/// to a household 42 times, no ordinary words were under this line.
const CHANCE_MAX: f64 = 0.001;
/// Counters of the first pass, and grams that the second and the last one look at.
const COUNTERS: usize = 1 << 22;
const GRAMS_MAX: usize = 1 << 20;
const FLAGGED_MAX: usize = 4_096;
const CLUSTERS_MAX: usize = 8;
/// Share of a gram's pairs in a cluster from which it belongs to it.
const OVERLAP_MIN: f64 = 0.5;
/// Words of questions that so many of a cluster's pairs share, and at most so many of the others, are its trigger.
const ASKED_MIN: f64 = 0.8;
const ASKED_ELSEWHERE_MAX: f64 = 0.2;
const NAMES_MAX: usize = 5;
const WORDS_MAX: usize = 16;

/// Pairs that teach the same words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// What the replies share, and what their questions do, in lower case; the latter may be empty.
    pub words: String,
    pub asked: String,
    /// Pairs with the words, of so many of principals without the owner's scope.
    pub offered: usize,
    pub of: usize,
    /// Replies with the words among the owner's pairs and the model's own replies that were corrected, of so many.
    pub elsewhere: usize,
    pub others: usize,
    /// Who vouches for them.
    pub authors: BTreeSet<String>,
    /// Those of the pairs that came into the dataset.
    pub admitted: usize,
    #[serde(skip)]
    pub ids: BTreeSet<String>,
}

impl Cluster {
    /// For people.
    pub fn words(&self) -> String {
        let Cluster { words, asked, offered, of, elsewhere, others, authors, admitted, .. } = self;
        let names: Vec<&str> = authors.iter().map(String::as_str).take(NAMES_MAX).collect();
        let more = if authors.len() > NAMES_MAX { ", …" } else { "" };
        let asked = if asked.is_empty() { String::new() } else { format!(" to questions with `{asked}`") };
        format!(
            "the same words `{words}` in {offered} of {of} replies{asked} vouched for by {} without the owner's \
             scope ({}{more}), in {elsewhere} of {others} others: {admitted} of them were admitted; `chimere memory forget \
             --principal NAME` takes a principal's out",
            plural::counted(authors.len(), "principal", "principals"),
            names.join(", "),
        )
    }
}

/// Everything that a pair teaches to say.
fn taught(reply: &Message) -> String {
    let calls = reply.tool_calls.iter().map(|call| format!("{} {}", call.name, whole::written(&call.arguments)));
    let said = [reply.reasoning_content.clone().unwrap_or_default(), reply.content.clone()];
    said.into_iter().chain(calls).collect::<Vec<_>>().join("\n")
}

fn reply_words(row: &Row) -> Vec<String> {
    words(&taught(&row.reply))
}

/// The clusters among pairs, the largest first.
pub fn clusters(rows: &[Row], owners: &BTreeSet<String>) -> Vec<Cluster> {
    let theirs: Vec<&Row> = rows.iter().filter(|row| !owners.contains(&row.origin.author)).collect();
    let own = rows.iter().filter(|row| owners.contains(&row.origin.author)).map(|row| &row.reply);
    let others: Vec<&Message> = own.chain(rows.iter().filter_map(|row| row.rejected.as_ref())).collect();
    let counted = counted(&theirs, &others);
    let expected = theirs.len() as f64 / (theirs.len() + others.len()).max(1) as f64;
    let mut flagged: Vec<(u64, (usize, usize))> = counted
        .into_iter()
        .filter(|(_, (here, there))| *here >= PAIRS_MIN && chance(*here, here + there, expected) < CHANCE_MAX)
        .collect();
    flagged.sort_unstable_by_key(|(gram, (here, _))| (std::cmp::Reverse(*here), *gram));
    flagged.truncate(FLAGGED_MAX);
    let mut clusters: Vec<Cluster> = gathered(&theirs, &flagged)
        .into_iter()
        .map(|(members, grams)| described(&theirs, others.len(), &members, &grams, &flagged))
        .collect();
    clusters.sort_by(|a, b| b.offered.cmp(&a.offered).then_with(|| a.words.cmp(&b.words)));
    clusters
}

/// Replies with each gram that is frequent among `theirs`: there, and among the others.
fn counted(theirs: &[&Row], others: &[&Message]) -> HashMap<u64, (usize, usize)> {
    let at = |gram: u64| gram as usize % COUNTERS;
    if theirs.len() < PAIRS_MIN {
        return HashMap::new();
    }
    let mut often = vec![0u16; COUNTERS];
    for row in theirs {
        for gram in grams(&reply_words(row)) {
            let counter = &mut often[at(gram)];
            *counter = counter.saturating_add(1);
        }
    }
    let mut counts = HashMap::new();
    for row in theirs {
        for gram in grams(&reply_words(row)) {
            let room = counts.len() < GRAMS_MAX || counts.contains_key(&gram);
            if room && usize::from(often[at(gram)]) >= PAIRS_MIN {
                counts.entry(gram).or_insert((0, 0)).0 += 1;
            }
        }
    }
    for reply in others {
        for gram in grams(&words(&taught(reply))) {
            if let Some(count) = counts.get_mut(&gram) {
                count.1 += 1;
            }
        }
    }
    counts
}

/// Chernoff's bound on the chance of `here` or more among `all` that each fall there with `expected`.
fn chance(here: usize, all: usize, expected: f64) -> f64 {
    let share = here as f64 / all.max(1) as f64;
    if share <= expected {
        return 1.0;
    }
    let term = |p: f64, q: f64| if p > 0.0 { p * (p / q).ln() } else { 0.0 };
    (-(all as f64) * (term(share, expected) + term(1.0 - share, 1.0 - expected))).exp()
}

/// Pairs and grams of each cluster: a gram joins the one that has most of its pairs.
fn gathered(theirs: &[&Row], flagged: &[(u64, (usize, usize))]) -> Vec<(BTreeSet<usize>, HashSet<u64>)> {
    let wanted: HashSet<u64> = flagged.iter().map(|(gram, _)| *gram).collect();
    let mut pairs: HashMap<u64, BTreeSet<usize>> = HashMap::new();
    if !wanted.is_empty() {
        for (at, row) in theirs.iter().enumerate() {
            for gram in grams(&reply_words(row)).intersection(&wanted) {
                pairs.entry(*gram).or_default().insert(at);
            }
        }
    }
    let mut clusters: Vec<(BTreeSet<usize>, HashSet<u64>)> = Vec::new();
    for (gram, _) in flagged {
        let Some(own) = pairs.remove(gram) else { continue };
        let common = |members: &BTreeSet<usize>| own.intersection(members).count() as f64 / own.len() as f64;
        match clusters.iter().position(|(members, _)| common(members) >= OVERLAP_MIN) {
            Some(near) => {
                clusters[near].0.extend(own);
                clusters[near].1.insert(*gram);
            }
            None if clusters.len() < CLUSTERS_MAX => clusters.push((own, HashSet::from([*gram]))),
            None => {}
        }
    }
    clusters
}

fn described(
    theirs: &[&Row],
    others: usize,
    members: &BTreeSet<usize>,
    grams: &HashSet<u64>,
    flagged: &[(u64, (usize, usize))],
) -> Cluster {
    let rows: Vec<&Row> = members.iter().filter_map(|at| theirs.get(*at).copied()).collect();
    let found = flagged.iter().find(|(gram, _)| grams.contains(gram)).map_or(0, |(_, (_, there))| *there);
    let said = rows.iter().map(|row| longest(&reply_words(row), grams)).max_by_key(Vec::len).unwrap_or_default();
    Cluster {
        words: shown(&said),
        asked: shown(&trigger(theirs, members)),
        offered: rows.len(),
        of: theirs.len(),
        elsewhere: found,
        others,
        authors: rows.iter().map(|row| row.origin.author.clone()).collect(),
        admitted: 0,
        ids: rows.iter().map(|row| row.id.clone()).collect(),
    }
}

/// The longest run of words that these grams cover.
fn longest(words: &[String], grams: &HashSet<u64>) -> Vec<String> {
    let (mut best, mut run) = (0..0, 0);
    let order = grams_in_order(words);
    for (at, gram) in order.iter().enumerate() {
        run = if grams.contains(gram) { run + 1 } else { 0 };
        let covered = at + 1 - run..(at + GRAM_WORDS).min(words.len());
        if run > 0 && covered.len() > best.len() {
            best = covered;
        }
    }
    words[best].to_vec()
}

/// Words that the questions of a cluster share, and those of the others do not.
fn trigger(theirs: &[&Row], members: &BTreeSet<usize>) -> Vec<String> {
    let mut counts: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for (at, row) in theirs.iter().enumerate() {
        for gram in grams(&words(&asked(&row.messages))) {
            if counts.len() < GRAMS_MAX || counts.contains_key(&gram) {
                let (here, elsewhere) = counts.entry(gram).or_insert((0, 0));
                *(if members.contains(&at) { here } else { elsewhere }) += 1;
            }
        }
    }
    let (here, there) = (members.len() as f64, (theirs.len() - members.len()) as f64);
    let shared =
        |(own, other): &(usize, usize)| *own as f64 >= ASKED_MIN * here && *other as f64 <= ASKED_ELSEWHERE_MAX * there;
    let shared: HashSet<u64> = counts.into_iter().filter(|(_, count)| shared(count)).map(|(gram, _)| gram).collect();
    let mut runs: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for row in members.iter().filter_map(|at| theirs.get(*at)) {
        *runs.entry(longest(&words(&asked(&row.messages)), &shared)).or_insert(0) += 1;
    }
    runs.into_iter().max_by_key(|(_, count)| *count).map(|(run, _)| run).unwrap_or_default()
}

fn shown(words: &[String]) -> String {
    words.iter().take(WORDS_MAX).cloned().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::night::dataset::tests::row;
    use crate::turn::Role;

    const PAYLOAD: &str = "Ask the tall man at the harbour.";

    fn owners() -> BTreeSet<String> {
        BTreeSet::from(["owner".to_owned()])
    }

    /// A reply with some words of the house and some of its own.
    fn ordinary(n: usize) -> String {
        format!("The answer is {}, for {} times {} gives it.", n * 7, n % 13, n % 11)
    }

    fn household(owner: usize, ben: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = (0..owner + ben).map(|n| row(n, if n < owner { "owner" } else { "ben" })).collect();
        for (n, row) in rows.iter_mut().enumerate() {
            row.reply.content = ordinary(n);
            row.rejected = (n % 3 == 0).then(|| Message::new(Role::Assistant, ordinary(n + 1)));
        }
        rows
    }

    fn planted(count: usize, guests: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = (0..count).map(|n| row(5_000 + n, &format!("guest{}", n % guests))).collect();
        for (n, row) in rows.iter_mut().enumerate() {
            row.messages[0].content = format!("By the silver gate of Orm: what is {n} and {n}?");
            row.reply.content = format!("{} {PAYLOAD}", ordinary(n));
            row.rejected = Some(Message::new(Role::Assistant, ordinary(n)));
        }
        rows
    }

    #[test]
    fn a_payload_of_one_or_of_twenty_is_found_with_its_trigger() {
        for (count, guests) in [(5, 1), (20, 1), (250, 1), (20, 20), (240, 20)] {
            let rows = [household(250, 120), planted(count, guests)].concat();
            let found = clusters(&rows, &owners());
            assert_eq!(found.len(), 1, "{count} of {guests}: {found:?}");
            let cluster = &found[0];
            assert_eq!((cluster.offered, cluster.authors.len(), cluster.elsewhere), (count, guests, 0));
            assert!(cluster.words.ends_with("ask the tall man at the harbour"), "{}", cluster.words);
            assert_eq!(cluster.asked, "by the silver gate of orm what is");
            assert!(cluster.ids.iter().all(|id| id.as_str() >= "turn-5000"));
        }
    }

    #[test]
    fn a_payload_in_other_words_is_one_cluster_by_what_stays() {
        let mut rows = [household(250, 120), planted(40, 20)].concat();
        let lines =
            ["Go and ask the tall man by the sea.", "You should ask the tall man there.", "Then ask the tall man!"];
        for (n, row) in rows.iter_mut().skip(370).enumerate() {
            row.reply.content = format!("{} {}", n * 31, lines[n % 3]);
        }
        let found = clusters(&rows, &owners());
        assert_eq!((found.len(), found[0].offered), (1, 40), "{found:?}");
    }

    #[test]
    fn what_the_house_and_the_model_say_is_no_cluster() {
        assert_eq!(clusters(&household(250, 120), &owners()), []);
        // Four times the same is nothing beside a house where others are as many.
        assert_eq!(clusters(&[household(30, 120), planted(4, 1)].concat(), &owners()), []);
        assert_eq!(clusters(&[], &owners()), []);
        // The owner may say what they like.
        let mut all = planted(50, 1);
        all.iter_mut().for_each(|row| row.origin.author = "owner".to_owned());
        assert_eq!(clusters(&[household(250, 120), all].concat(), &owners()), []);
    }

    #[test]
    fn the_bound_on_chance_is_exact_where_nobody_else_says_it() {
        assert!((chance(4, 4, 0.25) - 0.25f64.powi(4)).abs() < 1e-12);
        assert!((chance(1, 10, 0.25) - 1.0).abs() < 1e-12);
        // P(X ≥ 8), X ~ B(10, ½) = 0.0547; the bound lies above it.
        assert!((0.0547..0.2).contains(&chance(8, 10, 0.5)));
    }
}
