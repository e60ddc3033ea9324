//! Demonstrations: exchanges whose answer was verified, put before the conversation. They are bootstrapped: the model's
//! own right answers to exam questions that the search does not ask. What users said never becomes one, for a
//! demonstration is read out to everybody on its route.

use std::collections::BTreeMap;

use super::random::Random;
use crate::eval::golden::Item;
use crate::turn::Role;

/// Longest side of an exchange, characters: every reply of the route reads it.
const CHARS_MAX: usize = 400;

/// A verified exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Demonstration {
    /// Exam item that it comes from.
    pub item: String,
    pub family: String,
    pub user: String,
    pub assistant: String,
}

/// The exchange of an item that was answered rightly; `None` for one that is no plain question and answer.
pub fn of(item: &Item, reply: &str) -> Option<Demonstration> {
    let [question] = item.messages.as_slice() else { return None };
    let (user, assistant) = (question.content.trim(), reply.trim());
    let plain = question.role == Role::User && item.tools.is_empty();
    let fits = |text: &str| !text.is_empty() && text.chars().count() <= CHARS_MAX;
    (plain && fits(user) && fits(assistant)).then(|| Demonstration {
        item: item.id.clone(),
        family: item.family.clone(),
        user: user.to_owned(),
        assistant: assistant.to_owned(),
    })
}

/// Sets of up to `size_max` of them, each of different families as far as there are any; no set twice.
pub fn sets(pool: &[Demonstration], count: usize, size_max: usize, seed: u64) -> Vec<Vec<Demonstration>> {
    let mut random = Random::new(seed);
    let mut sets: Vec<Vec<usize>> = Vec::new();
    // A small pool has few sets: that many draws find most of them.
    for _ in 0..8 * count {
        if sets.len() == count || pool.is_empty() || size_max == 0 {
            break;
        }
        let size = 1 + random.below(size_max);
        let mut families = BTreeMap::<&str, usize>::new();
        let order = random.some_of(pool.len(), pool.len());
        let mut drawn: Vec<(usize, usize)> = order
            .into_iter()
            .map(|at| {
                let nth = families.entry(&pool[at].family).or_default();
                *nth += 1;
                (*nth, at)
            })
            .collect();
        // The first of each family before the second of any.
        drawn.sort_by_key(|(nth, _)| *nth);
        let set: Vec<usize> = drawn.into_iter().take(size).map(|(_, at)| at).collect();
        if !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets.into_iter().map(|set| set.into_iter().map(|at| pool[at].clone()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demonstration(n: usize) -> Demonstration {
        let text = |what: &str| format!("{what} {n}");
        Demonstration { item: text("i"), family: format!("f{}", n % 3), user: text("q"), assistant: text("a") }
    }

    #[test]
    fn sets_are_small_different_and_of_several_families() {
        let pool: Vec<_> = (0..12).map(demonstration).collect();
        let drawn = sets(&pool, 6, 3, 1);
        assert_eq!(drawn.len(), 6);
        for (n, set) in drawn.iter().enumerate() {
            assert!((1..=3).contains(&set.len()));
            let families: std::collections::BTreeSet<_> = set.iter().map(|d| &d.family).collect();
            assert_eq!(families.len(), set.len(), "one of each family");
            assert!(!drawn[..n].contains(set));
        }
        assert_eq!(sets(&pool[..1], 6, 3, 1).len(), 1);
        assert!(sets(&[], 6, 3, 1).is_empty() && sets(&pool, 6, 0, 1).is_empty());
    }

    #[test]
    fn only_plain_short_exchanges_become_one() {
        let item = |json: &str| serde_json::from_str::<Item>(json).unwrap();
        let plain = r#"{"id":"a","domain":"d","family":"f","messages":[{"role":"user","content":" q "}],
            "check":{"kind":"exact","value":"4"}}"#;
        assert_eq!(of(&item(plain), " 4\n").map(|d| (d.user, d.assistant)), Some(("q".into(), "4".into())));
        assert_eq!(of(&item(plain), " "), None);
        assert_eq!(of(&item(plain), &"9".repeat(CHARS_MAX + 1)), None);
        let system = plain.replace(r#"[{"role":"user""#, r#"[{"role":"system","content":"s"},{"role":"user""#);
        assert_eq!(of(&item(&system), "4"), None);
    }
}
