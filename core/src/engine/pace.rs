//! How many tokens of prompts a step takes, from what steps took before. The owner bounds the time of a step: nobody who
//! waits, for a next token or for a first one, waits longer for what somebody else has to read.
//!
//! While replies are written, prompts get half of the time. Where many tokens at once cost less than many times a few,
//! as on a card, they are read in rare large steps, else in small ones beside every token. Steps without a prompt lie
//! between until the replies have had as much time as the prompts. Nothing here changes a number: where a prompt may be cut
//! is the planner's matter.

use super::backend::{Budget, StepTokens};

/// Sizes are told apart by powers of two, up to 65,536 tokens.
const SIZES: usize = 17;
/// Share of a new time in what is remembered.
const NEWS: f64 = 0.5;
/// Tokens of the first step of all, of which nothing is known.
const FIRST_TOKENS: usize = 16;
/// Share of the best rate of prompts beside replies that a smaller step must have to be preferred.
const RATE_MIN: f64 = 0.8;

/// A measured step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// Replies that got their token in it, and how many of them somebody waits for.
    pub(super) rows: usize,
    pub(super) replies: usize,
    /// Tokens of prompts.
    pub(super) prompts: usize,
    pub(super) seconds: f64,
}

/// Measured times, and what is planned by them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Longest time of a step, in seconds; 0: none.
    bound: f64,
    /// What steps take that only write so many replies.
    quiet: Costs,
    /// What so many tokens of prompts add.
    added: Costs,
    /// Seconds by which prompts are ahead of the replies beside them.
    owed: f64,
}

impl Pace {
    /// `bound_ms`: longest time of a step; 0: none.
    pub(super) fn new(bound_ms: u64) -> Pace {
        Pace { bound: bound_ms as f64 / 1e3, ..Pace::default() }
    }

    /// What the next step may take of prompts beside `rows` of replies, of which somebody waits for `replies`. `most`: the
    /// owner's limit of tokens beside these; 0: none.
    pub(super) fn budget(&self, suits: &StepTokens, rows: usize, replies: usize, most: usize) -> Budget {
        let StepTokens { short, cut, .. } = *suits;
        let limit = if replies > 0 && most > 0 { most } else { suits.most.max(most) };
        let limit = limit.saturating_sub(rows).max(cut);
        if self.bound == 0.0 {
            return Budget { tokens: limit, long: limit, short, owed: false, cut };
        }
        let quiet = self.quiet.of(rows).unwrap_or_default();
        // Replies that alone take most of it are held up by half of their own time.
        let room = (self.bound - quiet).max(quiet / 2.0);
        let within = self.added.most(room).unwrap_or(FIRST_TOKENS);
        let tokens = within.clamp(cut, limit);
        let long = if replies > 0 { self.worthwhile(tokens, quiet, cut) } else { tokens };
        Budget { tokens, long, short: short.min(tokens), owed: replies > 0 && self.owed > 0.0, cut }
    }

    /// The fewest tokens, up to `most`, that read a long prompt about as fast as any, where replies get as much time.
    fn worthwhile(&self, most: usize, quiet: f64, cut: usize) -> usize {
        let sizes = || std::iter::successors(Some(cut), |n| Some(2 * n)).take_while(|n| *n < most).chain([most]);
        // What was never tried may be better than all that was.
        if let Some(unknown) = sizes().find(|n| !self.added.knows(*n)) {
            return unknown;
        }
        let rate = |n: usize| {
            let added = self.added.of(n).unwrap_or_default();
            let steps = (added / quiet.max(1e-6)).ceil().max(1.0);
            n as f64 / (added + steps * quiet).max(1e-9)
        };
        let best = sizes().map(rate).fold(0.0, f64::max);
        sizes().find(|n| rate(*n) >= RATE_MIN * best).unwrap_or(most)
    }

    /// A step was measured.
    pub(super) fn ran(&mut self, ran: Ran) {
        let Ran { rows, replies, prompts, seconds } = ran;
        if prompts == 0 {
            self.quiet.took(rows, seconds);
        }
        let known = self.quiet.of(rows).map(|quiet| quiet.min(seconds));
        let quiet = if rows == 0 { 0.0 } else { known.unwrap_or_default() };
        let added = seconds - quiet;
        if rows == 0 || known.is_some() {
            self.added.took(prompts, added);
        }
        self.owed = match replies {
            0 => 0.0,
            // A flood of short prompts puts the long ones off no longer than one large step does.
            _ => (self.owed + added - quiet).clamp(0.0, self.bound.max(added)),
        };
    }
}

/// What so many tokens take together, as seconds a token: of `2^i` tokens and more at `i`.
#[derive(Clone, Debug, Default)]
struct Costs([Option<f64>; SIZES]);

fn size(tokens: usize) -> usize {
    (tokens.max(1).ilog2() as usize).min(SIZES - 1)
}

impl Costs {
    fn knows(&self, tokens: usize) -> bool {
        self.0[size(tokens)].is_some()
    }

    /// So many tokens took so long. What changed since the last time changed for other sizes too: a longer context, a
    /// busier machine. And a token costs no more among more of them.
    fn took(&mut self, tokens: usize, seconds: f64) {
        if tokens == 0 {
            return;
        }
        let (at, now) = (size(tokens), seconds.max(1e-9) / tokens as f64);
        let before = *self.0[at].get_or_insert(now);
        let change = (before + NEWS * (now - before)) / before;
        self.0.iter_mut().flatten().for_each(|cost| *cost *= change);
        let own = before * change;
        for (other, cost) in self.0.iter_mut().enumerate().filter_map(|(other, cost)| Some((other, cost.as_mut()?))) {
            *cost = if other < at { cost.max(own) } else { cost.min(own) };
        }
    }

    /// Seconds of so many tokens at most: more of them cost no less in all.
    fn of(&self, tokens: usize) -> Option<f64> {
        let cost = |(at, cost): (usize, &Option<f64>)| cost.map(|cost| cost * tokens.max(1 << at) as f64);
        self.0.iter().enumerate().filter_map(cost).reduce(f64::min)
    }

    /// The most tokens that take no longer; none: nothing was measured.
    fn most(&self, seconds: f64) -> Option<usize> {
        let within = |(at, cost): (usize, &Option<f64>)| {
            cost.map(|cost| (seconds.max(0.0) / cost) as usize).map(|most| if most >= 1 << at { most } else { 0 })
        };
        self.0.iter().enumerate().filter_map(within).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device: seconds of a step of so many replies and tokens of prompts.
    type Device = fn(usize, usize) -> f64;

    /// As a card was measured: few tokens cost nearly as much as many.
    const CARD: Device = |rows, prompts| {
        let fixed = if prompts == 0 { 0.0 } else { 2e-3 };
        1.5e-3 + 0.2e-3 * rows as f64 + fixed + 2.6e-3 * (prompts as f64 / 8.0).min(4.0) + 0.042e-3 * prompts as f64
    };
    /// Every token costs the same.
    const PROCESSOR: Device = |rows, prompts| 4e-3 * rows as f64 + 1e-3 * prompts as f64;
    /// One piece takes longer than anybody should wait.
    const SLOW: Device = |rows, prompts| 60e-3 * rows as f64 + 5e-3 * prompts as f64;

    const ON_CARD: StepTokens = StepTokens { most: 2_048, short: 128, cut: 7 };
    const ON_PROCESSOR: StepTokens = StepTokens { most: 256, short: 64, cut: 16 };

    /// A reply beside an endless prompt: tokens of the prompt in each step, and the step's time.
    fn beside(pace: &mut Pace, device: Device, suits: &StepTokens, replies: usize, steps: usize) -> Vec<(usize, f64)> {
        (0..steps)
            .map(|_| {
                let budget = pace.budget(suits, replies, replies, 0);
                let prompts = if budget.owed { 0 } else { budget.long };
                let seconds = device(replies, prompts);
                pace.ran(Ran { rows: replies, replies, prompts, seconds });
                (prompts, seconds)
            })
            .collect()
    }

    #[test]
    fn no_step_takes_longer_than_the_bound_and_a_lone_prompt_is_read_in_steps_near_it() {
        for (bound, device, suits, most) in
            [(100, CARD, ON_CARD, 2_048), (25, CARD, ON_CARD, 200), (100, PROCESSOR, ON_PROCESSOR, 100)]
        {
            let mut pace = Pace::new(bound);
            let mut last = 0;
            for _ in 0..12 {
                last = pace.budget(&suits, 0, 0, 0).tokens;
                let seconds = device(0, last);
                assert!(seconds <= bound as f64 / 1e3 + 1e-9, "{last} tokens take {seconds}");
                pace.ran(Ran { rows: 0, replies: 0, prompts: last, seconds });
            }
            assert!((most * 9 / 10..=most * 2).contains(&last), "{last} of {most}");
            let steps = beside(&mut pace, device, &suits, 3, 400);
            assert!(steps[1..].iter().all(|(_, seconds)| *seconds <= 1.02 * bound as f64 / 1e3), "{steps:?}");
        }
    }

    #[test]
    fn replies_and_prompts_get_half_of_the_time_each() {
        for (device, suits) in [(CARD, ON_CARD), (PROCESSOR, ON_PROCESSOR), (SLOW, ON_PROCESSOR)] {
            for replies in [1, 7, 30] {
                let mut pace = Pace::new(100);
                beside(&mut pace, device, &suits, replies, 100);
                let steps = beside(&mut pace, device, &suits, replies, 2_000);
                let all: f64 = steps.iter().map(|(_, seconds)| seconds).sum();
                let quiet = device(replies, 0) * steps.len() as f64;
                assert!((0.48..0.75).contains(&(quiet / all)), "{replies}: {} of the time", quiet / all);
            }
        }
    }

    #[test]
    fn a_card_reads_in_rare_large_steps_and_a_processor_in_small_ones() {
        let (mut card, mut processor) = (Pace::new(100), Pace::new(100));
        beside(&mut card, CARD, &ON_CARD, 1, 200);
        let steps = beside(&mut card, CARD, &ON_CARD, 1, 200);
        let reading: Vec<usize> = steps.iter().map(|(prompts, _)| *prompts).filter(|n| *n > 0).collect();
        assert!(reading.iter().all(|n| *n >= 256) && reading.len() < 20, "{reading:?}");
        beside(&mut processor, PROCESSOR, &ON_PROCESSOR, 1, 200);
        let steps = beside(&mut processor, PROCESSOR, &ON_PROCESSOR, 1, 200);
        assert!(steps.iter().all(|(prompts, _)| *prompts <= 16), "{steps:?}");
    }

    #[test]
    fn a_machine_that_slows_down_gets_smaller_steps_and_larger_ones_when_it_is_fast_again() {
        let (mut pace, suits) = (Pace::new(100), StepTokens { most: 4_096, ..ON_PROCESSOR });
        let mut last = 0;
        for (factor, wanted) in [(1.0, 100), (8.0, 16), (0.1, 1_000), (1.0, 100)] {
            for _ in 0..20 {
                last = pace.budget(&suits, 0, 0, 0).tokens;
                pace.ran(Ran { rows: 0, replies: 0, prompts: last, seconds: factor * PROCESSOR(0, last) });
            }
            assert!((wanted * 8 / 10..=wanted * 12 / 10).contains(&last), "{last} at {factor}");
        }
    }

    #[test]
    fn the_owners_tokens_hold_too_and_without_a_bound_nothing_else_does() {
        let free = Pace::new(0);
        let of = |budget: Budget| (budget.tokens, budget.long, budget.owed);
        assert_eq!(of(free.budget(&ON_CARD, 0, 0, 160)), (2_048, 2_048, false), "nobody waits");
        assert_eq!(of(free.budget(&ON_CARD, 4, 4, 160)), (156, 156, false));
        assert_eq!(of(free.budget(&ON_CARD, 200, 200, 160)), (7, 7, false), "one cut at least");
        let mut pace = Pace::new(1_000);
        beside(&mut pace, PROCESSOR, &ON_PROCESSOR, 2, 50);
        assert_eq!(pace.budget(&ON_PROCESSOR, 2, 2, 66).tokens, 64);
    }
}
