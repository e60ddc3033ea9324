//! Which generation answers which conversation: an immutable snapshot that every reply reads once.

use super::canary::takes_part;
use super::generation::Pointer;

/// The engine's name of a generation's adapter; the base model needs none.
pub fn revision(generation: u64) -> Option<String> {
    (generation > 0).then(|| format!("gen-{generation}"))
}

/// What is served now, with adapters that the engine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    pub champion: u64,
    /// The generation under trial and its share of the conversations, percent.
    pub canary: Option<(u64, u8)>,
}

impl Served {
    pub fn of(pointer: &Pointer) -> Served {
        Served { champion: pointer.champion, canary: pointer.canary.map(|c| (c.generation, c.percent)) }
    }

    /// The generation that answers a conversation: the same one for all of its turns, while nothing is
    /// promoted or rolled back.
    pub fn choose(&self, conversation: &str) -> u64 {
        match self.canary {
            Some((candidate, percent)) if takes_part(conversation, candidate, percent) => candidate,
            _ => self.champion,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conversation_has_one_generation() {
        let served = Served { champion: 3, canary: Some((4, 50)) };
        let chosen: Vec<u64> = (0..200).map(|n| served.choose(&format!("c{n}"))).collect();
        assert!(chosen.contains(&3) && chosen.contains(&4));
        assert_eq!(chosen, (0..200).map(|n| served.choose(&format!("c{n}"))).collect::<Vec<_>>());
        assert!((0..200).all(|n| Served { champion: 3, canary: None }.choose(&format!("c{n}")) == 3));
        assert_eq!((revision(0), revision(7).as_deref()), (None, Some("gen-7")));
    }
}
