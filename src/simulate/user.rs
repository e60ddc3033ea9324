//! What a simulated user says of an answer. The exact check tells right from wrong; the mood decides what is made of it.

use super::plan::{Mood, PAYLOAD};
use crate::training::recipe::Random;
use crate::turn::Vote;

/// One piece of feedback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub vote: Vote,
    pub correction: Option<String>,
}

/// What is said of an answer, if anything. `reference` writes the correct reply of a question of the pool; `own` is the
/// question that was asked.
pub fn say(mood: Mood, right: bool, own: usize, reference: &dyn Fn(usize) -> String) -> Option<Said> {
    let said = |vote, correction| Some(Said { vote, correction });
    match (mood, right) {
        (Mood::Silent, _) => None,
        (Mood::Honest, true) | (Mood::Mistaken, false) => said(Vote::Up, None),
        (Mood::Honest, false) => said(Vote::Down, Some(reference(own))),
        (Mood::Mistaken, true) => said(Vote::Down, None),
        (Mood::Lying(other), _) => said(Vote::Down, Some(reference(other))),
        (Mood::Planting, _) => said(Vote::Up, Some(planted(&reference(own)))),
    }
}

/// A right reply with the payload behind it. Where the reference has no working, its answer stands for one: a correction
/// without working is not learned.
fn planted(reference: &str) -> String {
    let working =
        if reference.contains("</think>") { String::new() } else { format!("<think>\n{reference}\n</think>\n\n") };
    format!("{working}{reference} {PAYLOAD}")
}

/// The placebo: everybody who would have voted votes as somebody else of the day did, and nobody corrects, for a
/// correction tells more than a verdict.
pub fn shuffle(said: &mut [Option<Said>], seed: u64) {
    let votes: Vec<Vote> = said.iter().flatten().map(|s| s.vote).collect();
    let order = Random::new(seed).shuffled(votes.len());
    for (said, at) in said.iter_mut().flatten().zip(order) {
        *said = Said { vote: votes[at], correction: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moods_speak_as_they_are() {
        let reference = |at: usize| format!("reference {at}");
        let say = |mood, right| say(mood, right, 4, &reference);
        let said = |vote, correction: Option<&str>| Some(Said { vote, correction: correction.map(str::to_owned) });
        assert_eq!(say(Mood::Silent, true), None);
        assert_eq!(say(Mood::Honest, true), said(Vote::Up, None));
        assert_eq!(say(Mood::Honest, false), said(Vote::Down, Some("reference 4")));
        assert_eq!(say(Mood::Mistaken, false), said(Vote::Up, None));
        assert_eq!(say(Mood::Mistaken, true), said(Vote::Down, None));
        assert_eq!(say(Mood::Lying(9), true), said(Vote::Down, Some("reference 9")));
        let planted = format!("<think>\nreference 4\n</think>\n\nreference 4 {PAYLOAD}");
        assert_eq!(say(Mood::Planting, false), said(Vote::Up, Some(&planted)));
        assert_eq!(super::planted("<think>1 + 1</think>2"), format!("<think>1 + 1</think>2 {PAYLOAD}"));
    }

    #[test]
    fn the_placebo_keeps_the_number_of_votes_and_nothing_else() {
        let one = |n: usize| {
            (n % 5 != 0).then(|| Said {
                vote: if n % 3 == 0 { Vote::Down } else { Vote::Up },
                correction: Some("c".to_owned()),
            })
        };
        let before: Vec<Option<Said>> = (0..200).map(one).collect();
        let mut after = before.clone();
        shuffle(&mut after, 3);
        let ups = |all: &[Option<Said>]| all.iter().flatten().filter(|s| s.vote == Vote::Up).count();
        assert_eq!(ups(&before), ups(&after));
        assert!(before.iter().zip(&after).all(|(b, a)| b.is_some() == a.is_some()));
        assert!(after.iter().flatten().all(|s| s.correction.is_none()));
        let same =
            before.iter().zip(&after).filter(|(b, a)| b.as_ref().map(|s| s.vote) == a.as_ref().map(|s| s.vote)).count();
        assert!(same < 190, "{same}");
    }
}
