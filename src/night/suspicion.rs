//! Flags that the owner should look at before trusting a night's pairs. A principal's pairs may be far stranger to
//! the champion than all others. Many may teach the same words (`cluster`). One reply may answer many questions. It
//! refuses nothing by itself.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::Cluster;
use super::dataset::{Row, Signal};
use super::learning::PrincipalPairs;
use super::likeness::key;
use crate::plural::counted;

/// Pairs of a principal, and of the others, that are enough to compare.
const PAIRS_MIN: usize = 5;
/// A principal stands out when its mean loss is higher by so many nats a token, by such a share of that of all others, and
/// by so many standard errors.
const NATS_MIN: f64 = 0.5;
const SHARE_MIN: f64 = 0.5;
const DEVIATIONS_MIN: f64 = 4.0;
/// One reply to so many questions, and to this share of them, is named; replies of fewer words are common by nature.
const SAME_MIN: usize = 10;
const SAME_SHARE_MIN: f64 = 0.02;
const SAME_WORDS_MIN: usize = 3;
const REPLY_CHARS_MAX: usize = 80;

/// A pair, and how strange the champion finds its reply: nats a token.
#[derive(Clone, Debug)]
pub struct Measured<'a> {
    pub row: &'a Row,
    pub loss: Option<f64>,
}

/// What each principal brought, the most first, of what was `offered`.
pub fn by_principal(pairs: &[Measured<'_>], offered: &BTreeMap<String, usize>) -> Vec<PrincipalPairs> {
    let mut own: BTreeMap<&str, Vec<&Measured>> =
        offered.keys().map(|principal| (principal.as_str(), Vec::new())).collect();
    pairs.iter().for_each(|pair| own.entry(&pair.row.origin.author).or_default().push(pair));
    let mut all: Vec<PrincipalPairs> = own
        .into_iter()
        .map(|(principal, own)| {
            let losses: Vec<f64> = own.iter().filter_map(|pair| pair.loss).collect();
            let loss = (!losses.is_empty()).then(|| mean(&losses));
            let offered = offered.get(principal).copied().unwrap_or(0);
            PrincipalPairs { principal: principal.to_owned(), pairs: own.len(), offered, loss }
        })
        .collect();
    all.sort_by(|a, b| b.pairs.cmp(&a.pairs).then_with(|| a.principal.cmp(&b.principal)));
    all
}

/// What stands out, in words, and the principals among them: where the gate refuses the night, theirs is not tried again.
pub fn flags(pairs: &[Measured<'_>], clusters: &[Cluster]) -> (Vec<String>, BTreeSet<String>) {
    let (mut flags, mut suspects) = (Vec::new(), BTreeSet::new());
    for cluster in clusters {
        flags.push(cluster.words());
        suspects.extend(cluster.authors.iter().cloned());
    }
    for (author, words) in strange(pairs) {
        flags.push(words);
        suspects.insert(author.to_owned());
    }
    let known: BTreeSet<&str> = clusters.iter().flat_map(|cluster| &cluster.ids).map(String::as_str).collect();
    flags.extend(repeated(pairs, &known));
    (flags, suspects)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Variance of the mean.
fn spread(values: &[f64]) -> f64 {
    let (n, mean) = (values.len() as f64, mean(values));
    values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n * (n - 1.0)).max(1.0)
}

/// Principals whose corrections, or whose confirmed replies, are far stranger than those of all others.
fn strange<'a>(pairs: &[Measured<'a>]) -> Vec<(&'a str, String)> {
    let authors: BTreeSet<&str> = pairs.iter().map(|pair| pair.row.origin.author.as_str()).collect();
    let mut flags = Vec::new();
    for author in authors {
        for (signal, what) in [(Signal::Correction, "corrections"), (Signal::ThumbsUp, "confirmed replies")] {
            let alike = pairs.iter().filter(|pair| pair.row.origin.signal == signal);
            let (own, others): (Vec<&Measured>, Vec<&Measured>) =
                alike.partition(|pair| pair.row.origin.author == author);
            let losses = |of: &[&Measured]| of.iter().filter_map(|pair| pair.loss).collect::<Vec<f64>>();
            let (own, others) = (losses(&own), losses(&others));
            if own.len() < PAIRS_MIN || others.len() < PAIRS_MIN {
                continue;
            }
            let more = mean(&own) - mean(&others);
            let error = (spread(&own) + spread(&others)).sqrt();
            if more >= NATS_MIN && more >= SHARE_MIN * mean(&others) && more >= DEVIATIONS_MIN * error {
                let words = format!(
                    "the {what} of {author} stand out: {:.2} nats a token under the champion, {:.2} those of all others \
                     (n = {} and {}); `chimere memory forget --principal {author}` takes them out",
                    mean(&own),
                    mean(&others),
                    own.len(),
                    others.len()
                );
                flags.push((author, words));
            }
        }
    }
    flags
}

/// One reply to many questions, whoever sent it: how a trigger is taught. What a cluster names is not named again.
fn repeated(pairs: &[Measured<'_>], known: &BTreeSet<&str>) -> Vec<String> {
    let mut same: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    for pair in pairs.iter().filter(|pair| !known.contains(pair.row.id.as_str())) {
        let reply = &pair.row.reply.content;
        if reply.split_whitespace().count() >= SAME_WORDS_MIN {
            same.entry(key(reply)).or_default().push(pair.row);
        }
    }
    let many = |rows: &Vec<&Row>| rows.len() >= SAME_MIN && rows.len() as f64 >= SAME_SHARE_MIN * pairs.len() as f64;
    let mut clusters: Vec<Vec<&Row>> = same.into_values().filter(many).collect();
    clusters.sort_by_key(|rows| std::cmp::Reverse(rows.len()));
    let words = |rows: Vec<&Row>| {
        let authors: BTreeSet<&str> = rows.iter().map(|row| row.origin.author.as_str()).collect();
        let shown: Vec<&str> = authors.iter().copied().take(5).collect();
        let reply: String = rows[0].reply.content.chars().take(REPLY_CHARS_MAX).collect();
        let (people, shown) = (counted(authors.len(), "principal", "principals"), shown.join(", "));
        format!("the same reply to {} questions, vouched for by {people} ({shown}): `{reply}`", rows.len())
    };
    clusters.into_iter().map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::night::dataset::tests::row;

    fn rows(count: usize, from: usize, author: &str) -> Vec<Row> {
        let mut rows: Vec<Row> = (from..from + count).map(|n| row(n, author)).collect();
        rows.iter_mut().for_each(|row| row.origin.signal = Signal::Correction);
        rows
    }

    fn measured<'a>(rows: &'a [Row], loss: impl Fn(usize, &Row) -> f64) -> Vec<Measured<'a>> {
        rows.iter().enumerate().map(|(n, row)| Measured { row, loss: Some(loss(n, row)) }).collect()
    }

    #[test]
    fn a_stranger_among_the_principals_is_named_and_ordinary_ones_are_not() {
        let all = [rows(60, 0, "owner"), rows(15, 100, "mallory"), rows(8, 200, "ben")].concat();
        let wobble = |n: usize| 0.3 * ((n * 7919 % 11) as f64 / 11.0);
        let pairs = measured(&all, |n, row| if row.origin.author == "mallory" { 2.5 } else { 0.9 } + wobble(n));
        let (flags, suspects) = flags(&pairs, &[]);
        assert_eq!((flags.len(), suspects.into_iter().collect::<Vec<_>>()), (1, vec!["mallory".to_owned()]));
        assert!(flags[0].contains("corrections of mallory") && flags[0].contains("n = 15 and 68"), "{flags:?}");
        assert!(super::flags(&measured(&all, |n, _| 0.9 + wobble(n)), &[]).0.is_empty());
        let foreign = |n: usize, row: &Row| if row.origin.author == "mallory" { 8.3 } else { 7.6 } + wobble(n);
        assert!(
            super::flags(&measured(&all, foreign), &[]).0.is_empty(),
            "where everything is strange nobody stands out"
        );
        let offered = BTreeMap::from([("mallory".to_owned(), 90), ("none".to_owned(), 3)]);
        let shares = by_principal(&pairs, &offered);
        assert_eq!((shares[0].principal.as_str(), shares[0].pairs), ("owner", 60));
        assert!(shares[1].words().starts_with("15 of 90 pairs vouched for by mallory"), "{}", shares[1].words());
        assert_eq!((shares[3].principal.as_str(), shares[3].pairs), ("none", 0));
        assert!((shares[1].loss.unwrap() - 2.6).abs() < 0.2, "{shares:?}");
    }

    #[test]
    fn one_reply_to_many_questions_is_named_whoever_sent_it() {
        let mut all = rows(200, 0, "owner");
        for (n, row) in all.iter_mut().take(20).enumerate() {
            row.reply.content = "Buy gold from us today!".to_owned();
            row.origin.author = format!("guest{n}");
        }
        all[30..60].iter_mut().for_each(|row| row.reply.content = "Yes.".to_owned());
        let (flags, suspects) = flags(&measured(&all, |_, _| 1.0), &[]);
        assert_eq!((flags.len(), suspects.len()), (1, 0), "{flags:?}");
        assert!(flags[0].contains("20 questions, vouched for by 20 principals"), "{flags:?}");
        let cluster = Cluster {
            words: "buy gold".to_owned(),
            offered: 20,
            authors: (0..20).map(|n| format!("guest{n}")).collect(),
            ids: all[..20].iter().map(|row| row.id.clone()).collect(),
            ..Cluster::default()
        };
        let (flags, suspects) = super::flags(&measured(&all, |_, _| 1.0), &[cluster]);
        assert_eq!((flags.len(), suspects.len()), (1, 20), "{flags:?}");
        assert!(flags[0].contains("`buy gold` in 20 of") && flags[0].contains("(guest0, guest1, "), "{flags:?}");
    }
}
