//! Fair shares between keys, wherever several want the places of one thing. The engine's sequences, the reading of prompts
//! and the replies under way follow these rules. The key that has least comes first. Among equals it is the one that was
//! served longest ago, and within a key the first that came.

use std::collections::HashMap;

/// How many places each key has, of those that are named once for each place.
pub fn places<'a>(keys: impl Iterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    let mut held = HashMap::new();
    keys.for_each(|key| *held.entry(key).or_default() += 1);
    held
}

/// Whether one of the places of a key is due to another: after the move the other would not have more.
pub fn owes(held: usize, other: usize) -> bool {
    held >= other + 2
}

/// Which key was served when, as far as that matters to those who wait.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    now: u64,
    served: HashMap<String, u64>,
}

impl Rounds {
    /// The round in which a key was served last; 0: before all that are remembered.
    pub fn served(&self, key: &str) -> u64 {
        self.served.get(key).copied().unwrap_or_default()
    }

    /// These were served, in one round.
    pub fn serve<'a>(&mut self, keys: impl Iterator<Item = &'a str>) {
        self.now += 1;
        for key in keys {
            match self.served.get_mut(key) {
                Some(served) => *served = self.now,
                None => drop(self.served.insert(key.to_owned(), self.now)),
            }
        }
    }

    /// Forgets who was served before all of those who wait: they come first as they would have.
    pub fn forget_before<'a>(&mut self, waiting: impl Iterator<Item = &'a str>) {
        match waiting.map(|key| self.served(key)).min() {
            Some(first) => self.served.retain(|_, served| *served >= first),
            None => self.served.clear(),
        }
    }

    /// Who of those who wait, in order of arrival, gets the next place.
    pub fn next<'a>(&self, waiting: impl Iterator<Item = &'a str>, held: &HashMap<&str, usize>) -> Option<usize> {
        let rank = |key: &str| (held.get(key).copied().unwrap_or_default(), self.served(key));
        waiting.enumerate().min_by_key(|(at, key)| (rank(key), *at)).map(|(at, _)| at)
    }
}

/// Places that are not taken away again. One key alone may have all. When all are taken, a key that has less than its
/// share still gets one: the others have theirs only as long as they need it.
#[derive(Clone, Debug)]
pub struct Shares {
    max: usize,
    held: HashMap<String, usize>,
    total: usize,
}

/// Why a key gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Places that are taken.
    pub total: usize,
    /// Those of the key.
    pub own: usize,
}

impl Shares {
    pub fn new(max: usize) -> Shares {
        Shares { max, held: HashMap::new(), total: 0 }
    }

    /// Places that may be taken at once, where no more keys than `max` take part: as many again for those that come when
    /// all are taken, and one for each key that has none.
    pub fn most(max: usize) -> usize {
        max.saturating_mul(3)
    }

    pub fn total(&self) -> usize {
        self.total
    }

    /// Takes a place for a key, unless all are taken and it has its share.
    pub fn enter(&mut self, key: &str) -> Result<(), Full> {
        let own = self.held.get(key).copied().unwrap_or_default();
        let keys = self.held.len() + usize::from(own == 0);
        let below = own < self.max / keys && self.total < self.max.saturating_mul(2);
        if self.total >= self.max && own > 0 && !below {
            return Err(Full { total: self.total, own });
        }
        *self.held.entry(key.to_owned()).or_default() += 1;
        self.total += 1;
        Ok(())
    }

    /// Gives a place of a key back.
    pub fn leave(&mut self, key: &str) {
        let Some(own) = self.held.get_mut(key) else { return };
        *own -= 1;
        self.total -= 1;
        if *own == 0 {
            self.held.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves until nobody waits, with `free` places of which none is given back.
    fn order(waiting: &str, held: &str) -> String {
        let (mut rounds, mut waiting): (_, Vec<&str>) =
            (Rounds::default(), waiting.split_terminator("").skip(1).collect());
        let mut held: Vec<&str> = held.split_terminator("").skip(1).collect();
        let mut order = String::new();
        while let Some(at) = rounds.next(waiting.iter().copied(), &places(held.iter().copied())) {
            let key = waiting.remove(at);
            rounds.serve([key].into_iter());
            rounds.forget_before(waiting.iter().copied());
            held.push(key);
            order.push_str(key);
        }
        order
    }

    #[test]
    fn whoever_has_least_comes_first_then_whoever_came_first() {
        for (waiting, held, served) in [
            ("aaaab", "", "abaaa"),
            ("aaabbb", "", "ababab"),
            ("aabbcc", "a", "bcabca"),
            ("aaab", "bb", "aaba"),
            ("aaaa", "aa", "aaaa"),
        ] {
            assert_eq!(order(waiting, held), served, "{waiting} beside {held}");
        }
    }

    #[test]
    fn equals_take_turns_and_one_that_always_comes_back_passes_nobody_twice() {
        // One place, given back after each.
        let mut rounds = Rounds::default();
        let mut waiting = vec!["a", "b", "b", "c"];
        let mut order = String::new();
        for _ in 0..8 {
            let at = rounds.next(waiting.iter().copied(), &HashMap::new()).unwrap();
            let key = waiting.remove(at);
            rounds.serve([key].into_iter());
            rounds.forget_before(waiting.iter().copied());
            order.push_str(key);
            // Another one of it comes at once.
            waiting.insert(0, key);
        }
        assert_eq!(order, "abcabcab");
        rounds.forget_before(["d"].into_iter());
        assert_eq!(rounds.served.len(), 3, "whoever waits now was served before them");
        rounds.forget_before([].into_iter());
        assert_eq!(rounds.served.len(), 0);
    }

    #[test]
    fn one_key_has_all_places_and_another_still_finds_its_share() {
        let mut shares = Shares::new(4);
        let mut script = |script: &str| {
            let mut step = |(key, what): (&str, &str)| match what {
                "-" => {
                    shares.leave(key);
                    true
                }
                _ => shares.enter(key).is_ok(),
            };
            let steps = script.split(' ').map(|s| step(s.split_at(1))).collect::<Vec<_>>();
            (steps.iter().map(|ok| if *ok { '.' } else { 'x' }).collect::<String>(), shares.total())
        };
        assert_eq!(script("a+ a+ a+ a+ a+"), ("....x".to_owned(), 4));
        // Two of four are b's share, one of four c's; d finds one for it has none.
        assert_eq!(script("b+ b+ b+ c+ c+ d+ d+ e+ e+"), ("..x.x.x.x".to_owned(), 9));
        // A key above its share gets none while all are taken.
        assert_eq!(script("a- a+ b- b+ e- d- c- b- b+"), (".x.x.....".to_owned(), 4));
        assert_eq!(script("a+ b+ b+"), ("x.x".to_owned(), 5));
    }
}
