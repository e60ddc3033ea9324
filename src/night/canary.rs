//! The canary: a promoted generation first answers a few conversations, then half, then all. Which conversation
//! is among them follows from its hash alone; the stage advances by scored turns; an alarm rolls back. Pure:
//! the turns and the time are given.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::served::revision;
use super::stats::{higher_p, median};
use crate::turn::{FinishReason, Turn, Vote};

/// One stage before the candidate answers everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Share of the conversations, 1 … 99.
    pub percent: u8,
    /// Scored turns of the candidate that end the stage.
    pub scored_turns: usize,
}

/// How a canary is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    pub stages: Vec<Stage>,
    /// A difference counts when chance explains it with less than this probability. Small, because it is
    /// looked at again and again.
    pub alarm_p: f64,
    /// Turns of the candidate before any alarm.
    pub alarm_turns_min: usize,
    /// Median milliseconds a token, beside those of a champion that has an adapter too.
    pub latency_ratio_max: f64,
    /// The same beside the shipped weights: what any adapter costs is paid once, by the first. Allows no less than
    /// `latency_ratio_max` does.
    pub latency_ratio_first_max: f64,
    /// A canary that is not through after so long is rolled back, hours.
    pub hours_max: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            stages: vec![Stage { percent: 5, scored_turns: 50 }, Stage { percent: 50, scored_turns: 200 }],
            alarm_p: 0.005,
            alarm_turns_min: 10,
            latency_ratio_max: 1.5,
            latency_ratio_first_max: 2.5,
            hours_max: 23.0,
        }
    }
}

/// Whether a conversation is among the `percent` that the candidate `generation` answers. A conversation of an
/// earlier stage stays in the later ones, and each generation draws anew.
pub fn takes_part(conversation: &str, generation: u64, percent: u8) -> bool {
    let mut hash = Sha256::new();
    hash.update(generation.to_le_bytes());
    hash.update(conversation.as_bytes());
    let digest = hash.finalize();
    let draw = u64::from_le_bytes(std::array::from_fn(|i| digest[i])) % 10_000;
    draw < u64::from(percent) * 100
}

/// What was seen of one revision since the stage began.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Seen {
    pub turns: usize,
    pub scored: usize,
    /// Verdicts of 1 and 2.
    pub low: usize,
    pub voted: usize,
    pub down: usize,
    /// Replies that the engine failed at.
    pub failed: usize,
    /// Decode time a token of each reply, milliseconds.
    #[serde(skip)]
    pub token_ms: Vec<f64>,
}

impl Seen {
    fn add(&mut self, turn: &Turn) {
        self.turns += 1;
        if let Some(verdict) = turn.verdict {
            self.scored += 1;
            self.low += usize::from(verdict <= 2);
        }
        if let Some(vote) = turn.feedback.iter().rev().find_map(|f| f.vote) {
            self.voted += 1;
            self.down += usize::from(vote == Vote::Down);
        }
        self.failed += usize::from(turn.generations.iter().any(|g| g.finish_reason == FinishReason::Error));
        for generation in turn.generations.iter().filter(|g| g.usage.completion_tokens >= 4) {
            self.token_ms.push(generation.timings.decode_ms / f64::from(generation.usage.completion_tokens));
        }
    }
}

/// Both revisions, side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Watched {
    pub champion: Seen,
    pub candidate: Seen,
    /// The champion is the shipped weights without an adapter.
    #[serde(skip)]
    pub first: bool,
}

impl Watched {
    /// Of nothing seen yet.
    pub fn beginning(champion: u64) -> Watched {
        Watched { first: revision(champion).is_none(), ..Watched::default() }
    }

    /// Takes a turn to the revision that answered it; one of another is passed over.
    pub fn add(&mut self, turn: &Turn, champion: u64, candidate: u64) {
        if turn.adapter_revision == candidate {
            self.candidate.add(turn);
        } else if turn.adapter_revision == champion {
            self.champion.add(turn);
        }
    }
}

/// What follows from what was seen.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Stay,
    /// To the stage of this number.
    Advance(usize),
    /// The candidate answers everything from now on.
    Finish,
    /// The champion answers everything again; the reason in words.
    RollBack(String),
}

/// Decides over a canary that is at `stage` and began `age_ms` ago.
pub fn decide(rules: &Rules, stage: usize, age_ms: i64, watched: &Watched) -> Decision {
    if let Some(alarm) = alarm(rules, watched) {
        return Decision::RollBack(alarm);
    }
    let Some(now) = rules.stages.get(stage) else { return Decision::Finish };
    if watched.candidate.scored >= now.scored_turns {
        return if stage + 1 < rules.stages.len() { Decision::Advance(stage + 1) } else { Decision::Finish };
    }
    if age_ms as f64 > rules.hours_max * 3_600_000.0 {
        let (scored, wanted) = (watched.candidate.scored, now.scored_turns);
        return Decision::RollBack(format!(
            "{scored} of {wanted} scored turns at {} % after {:.0} hours: not proved before the next night",
            now.percent, rules.hours_max,
        ));
    }
    Decision::Stay
}

/// The first thing that is significantly worse with the candidate.
fn alarm(rules: &Rules, watched: &Watched) -> Option<String> {
    let (new, old) = (&watched.candidate, &watched.champion);
    if new.turns < rules.alarm_turns_min {
        return None;
    }
    let rates = [
        ("low verdicts", new.low, new.scored, old.low, old.scored),
        ("thumbs down", new.down, new.voted, old.down, old.voted),
        ("failed replies", new.failed, new.turns, old.failed, old.turns),
    ];
    for (what, hits, n, old_hits, old_n) in rates {
        let p = higher_p(hits, n, old_hits, old_n);
        if hits > 0 && old_n > 0 && p < rules.alarm_p {
            return Some(format!("{what}: {hits} of {n}, the champion {old_hits} of {old_n} (p = {p:.4})"));
        }
    }
    let enough = new.token_ms.len().min(old.token_ms.len()) >= rules.alarm_turns_min;
    let (new_ms, old_ms) = (median(&new.token_ms)?, median(&old.token_ms)?);
    let (limit, why) = if watched.first {
        let limit = rules.latency_ratio_first_max.max(rules.latency_ratio_max);
        (limit, "the first adapter: what any adapter costs is paid once")
    } else {
        (rules.latency_ratio_max, "the champion has an adapter too")
    };
    (enough && new_ms > old_ms * limit).then(|| {
        format!("latency: {new_ms:.2} ms a token, the champion {old_ms:.2}, more than {limit} times as many ({why})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(turns: usize, low: usize, down: usize, ms: f64) -> Seen {
        let token_ms = vec![ms; turns];
        Seen { turns, scored: turns, low, voted: turns / 2, down, failed: 0, token_ms }
    }

    #[test]
    fn the_share_is_right_grows_and_differs_by_generation() {
        let names: Vec<String> = (0..10_000).map(|n| format!("conversation-{n}")).collect();
        let of = |generation, percent| names.iter().filter(|n| takes_part(n, generation, percent)).count();
        assert!((430..570).contains(&of(3, 5)), "{}", of(3, 5));
        assert!((4_800..5_200).contains(&of(3, 50)));
        assert_eq!((of(3, 0), of(3, 100)), (0, 10_000));
        assert!(names.iter().all(|n| !takes_part(n, 3, 5) || takes_part(n, 3, 50)), "nobody leaves");
        assert!(names.iter().any(|n| takes_part(n, 3, 5) && !takes_part(n, 4, 5)));
    }

    #[test]
    fn stages_end_by_scored_turns() {
        let rules = Rules::default();
        let watched =
            |scored| Watched { candidate: seen(scored, 0, 0, 1.0), champion: seen(900, 9, 9, 1.0), first: false };
        assert_eq!(decide(&rules, 0, 0, &watched(49)), Decision::Stay);
        assert_eq!(decide(&rules, 0, 0, &watched(50)), Decision::Advance(1));
        assert_eq!(decide(&rules, 1, 0, &watched(199)), Decision::Stay);
        assert_eq!(decide(&rules, 1, 0, &watched(200)), Decision::Finish);
        assert_eq!(decide(&rules, 2, 0, &watched(0)), Decision::Finish);
        let late = decide(&rules, 0, 24 * 3_600_000, &watched(49));
        assert!(matches!(&late, Decision::RollBack(why) if why.contains("49 of 50")), "{late:?}");
    }

    #[test]
    fn each_alarm_rolls_back_and_names_itself() {
        let rules = Rules::default();
        let champion = seen(400, 40, 20, 2.0);
        let against =
            |candidate| decide(&rules, 0, 0, &Watched { candidate, champion: champion.clone(), first: false });
        for (candidate, word) in [
            (seen(30, 15, 0, 2.0), "low verdicts: 15 of 30"),
            (seen(30, 3, 9, 2.0), "thumbs down: 9 of 15"),
            (Seen { failed: 3, ..seen(30, 3, 0, 2.0) }, "failed replies: 3 of 30"),
            (seen(30, 3, 0, 3.1), "latency: 3.10 ms a token"),
        ] {
            let decision = against(candidate);
            assert!(matches!(&decision, Decision::RollBack(why) if why.starts_with(word)), "{decision:?}");
        }
        assert_eq!(against(seen(30, 3, 1, 2.1)), Decision::Stay);
        assert_eq!(against(seen(9, 9, 4, 9.0)), Decision::Stay, "too few turns for an alarm");
    }

    #[test]
    fn the_first_adapter_may_take_longer_than_those_after_it() {
        let of = |rules: &Rules, first, ms| {
            let watched = Watched { candidate: seen(30, 3, 0, ms), champion: seen(400, 40, 20, 2.0), first };
            decide(rules, 0, 0, &watched)
        };
        let shipped = Rules::default();
        assert_eq!(of(&shipped, true, 2.0 / 0.6), Decision::Stay);
        assert_eq!(of(&shipped, false, 2.9), Decision::Stay);
        for (first, ms, words) in [
            (true, 5.1, "more than 2.5 times as many (the first adapter: what any adapter costs is paid once)"),
            (false, 2.0 / 0.6, "more than 1.5 times as many (the champion has an adapter too)"),
        ] {
            let decision = of(&shipped, first, ms);
            assert!(matches!(&decision, Decision::RollBack(why) if why.ends_with(words)), "{decision:?}");
        }
        // A file of before that allowed more allows the first adapter as much.
        let wide = Rules { latency_ratio_max: 4.0, ..Rules::default() };
        assert_eq!(of(&wide, true, 7.9), Decision::Stay);
        assert!(Watched::beginning(0).first && !Watched::beginning(1).first);
    }

    #[test]
    fn an_equal_candidate_seldom_raises_an_alarm() {
        // 400 canaries of 50 turns, each looked at after every turn, one low verdict in ten on both sides.
        let rules = Rules::default();
        let mut state = 7u64;
        let mut low = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::from((state >> 33) % 10 == 0)
        };
        let mut alarms = 0;
        for _ in 0..400 {
            let mut watched = Watched::default();
            for _ in 0..50 {
                watched.candidate.turns += 1;
                watched.candidate.scored += 1;
                watched.candidate.low += low();
                watched.champion.turns += 19;
                watched.champion.scored += 19;
                watched.champion.low += (0..19).map(|_| low()).sum::<usize>();
                if matches!(decide(&rules, 0, 0, &watched), Decision::RollBack(_)) {
                    alarms += 1;
                    break;
                }
            }
        }
        println!("false alarms: {alarms} of 400 canaries");
        assert!(alarms <= 20, "{alarms} of 400 equal candidates were rolled back");
    }
}
