//! The planner: which tokens go into the next step. It takes decoding sequences first, one token each, then prompt
//! chunks until the token budget is spent. The key whose prompts were read longest ago comes first, then order of arrival
//! counts. It cuts a prompt only where its sequence stands at a multiple of the backend's cut. So the numbers of a reply
//! depend neither on the budget nor on the neighbours.
//!
//! Background work follows live work in both classes, and while there is live work it adds at most 64 tokens to a
//! step.

use super::backend::{Budget, Rows};

/// Prompts are cut at multiples of this many positions where a backend says nothing else: the chunk length of the gated
/// delta rule.
pub const CUT_TOKENS: usize = 64;

/// Which rows of logits a demand needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    None,
    /// The last, once everything pending is fed.
    Last,
    /// Every row of a chunk that reaches this position.
    From(usize),
}

/// What one request wants to feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Tokens already held by the sequence.
    pub held: usize,
    /// Tokens that may be fed in this step.
    pub pending: usize,
    /// The sequence is generating: it goes first and is never cut.
    pub decoding: bool,
    /// Nobody waits for it.
    pub background: bool,
    /// Sequences fed with the same tokens in the same step.
    pub lanes: usize,
    /// When a prompt of its key was read last: the earliest comes first.
    pub served: u64,
    pub wants: Wants,
}

/// The share of one request in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Index into the demands.
    pub slot: usize,
    pub tokens: usize,
    pub rows: Rows,
}

impl Demand {
    /// A prompt of which at most `tokens` are left.
    pub fn short(&self, tokens: usize) -> bool {
        !self.decoding && (1..=tokens).contains(&self.pending)
    }

    fn share(&self, slot: usize, tokens: usize) -> Share {
        let rows = match self.wants {
            Wants::Last if tokens == self.pending => Rows::Last,
            Wants::From(position) if self.held + tokens > position => Rows::All,
            _ => Rows::None,
        };
        Share { slot, tokens, rows }
    }
}

/// Plans one step; decoding sequences always fit. A prompt gets nothing if less than one cut is left for it, but the first
/// prompt always advances (a background one only when nothing is live).
pub fn plan(demands: &[Demand], budget: &Budget) -> Vec<Share> {
    let mut shares = Vec::with_capacity(demands.len());
    let Budget { tokens: mut left, long: mut left_long, short, cut: cut_tokens } = *budget;
    let wanting = || demands.iter().enumerate().filter(|(_, d)| d.pending > 0);
    for background in [false, true] {
        for (slot, demand) in wanting().filter(|(_, d)| d.decoding && d.background == background) {
            shares.push(demand.share(slot, demand.pending));
            left = left.saturating_sub(demand.pending * demand.lanes);
            left_long = left_long.saturating_sub(demand.pending * demand.lanes);
        }
    }
    let live = wanting().any(|(_, d)| !d.background);
    let mut first_prompt = true;
    for background in [false, true] {
        if background && live {
            (left, left_long) = (left.min(CUT_TOKENS), left_long.min(CUT_TOKENS));
            first_prompt = false;
        }
        let mut prompts: Vec<_> = wanting().filter(|(_, d)| !d.decoding && d.background == background).collect();
        prompts.sort_by_key(|(_, demand)| demand.served);
        for (slot, demand) in prompts {
            let short = demand.short(short);
            let reach = if short { left } else { left.min(left_long) } / demand.lanes;
            let allowed = if first_prompt { reach.max(cut_tokens) } else { reach };
            first_prompt = false;
            let tokens = cut(demand.held, demand.pending, allowed, cut_tokens);
            if tokens > 0 {
                shares.push(demand.share(slot, tokens));
                left = left.saturating_sub(tokens * demand.lanes);
                if !short {
                    left_long = left_long.saturating_sub(tokens * demand.lanes);
                }
            }
        }
    }
    shares
}

/// How many of `pending` tokens to feed with `allowed` at hand: all, or up to the last cut within reach.
fn cut(held: usize, pending: usize, allowed: usize, cut_tokens: usize) -> usize {
    if pending <= allowed {
        return pending;
    }
    ((held + allowed) / cut_tokens * cut_tokens).saturating_sub(held)
}

#[cfg(test)]
mod tests {
    use super::super::backend::StepTokens;
    use super::*;

    fn prompt(held: usize, pending: usize) -> Demand {
        Demand { held, pending, decoding: false, background: false, lanes: 1, served: 0, wants: Wants::Last }
    }

    /// Without short prompts.
    fn within(tokens: usize, cut: usize) -> Budget {
        Budget { tokens, long: tokens, short: 0, cut }
    }

    fn decoding(held: usize) -> Demand {
        Demand { decoding: true, ..prompt(held, 1) }
    }

    fn background(demand: Demand) -> Demand {
        Demand { background: true, ..demand }
    }

    #[test]
    fn decoding_goes_first_and_whole() {
        let demands = [prompt(0, 100), decoding(50)];
        let shares = plan(&demands, &within(80, CUT_TOKENS));
        assert_eq!(shares[0], Share { slot: 1, tokens: 1, rows: Rows::Last });
        assert_eq!(shares[1], Share { slot: 0, tokens: 64, rows: Rows::None });
    }

    #[test]
    fn short_prompts_are_read_whole_beside_replies_and_long_ones_in_pieces() {
        let suits = StepTokens { beside: 160, a_reply: Some(8), short: 64, alone: 2_048, cut: 8 };
        let demands = [decoding(9), prompt(0, 1_000), prompt(0, 64), prompt(0, 30)];
        let fed = |budget: &Budget| plan(&demands, budget).iter().map(|s| (s.slot, s.tokens)).collect::<Vec<_>>();
        assert_eq!(fed(&suits.budget(1, 2)), [(0, 1), (1, 8), (2, 64), (3, 30)]);
        // Nobody waits for a next token: the first in line first, and what is left for the others.
        assert_eq!(fed(&suits.budget(0, 2)), [(0, 1), (1, 1_000), (2, 64), (3, 30)]);
        // No more than suits a step, unless more wait for a first token than for a next.
        assert_eq!(suits.budget(2, 2), Budget { tokens: 160, long: 10, short: 64, cut: 8 });
        assert_eq!(suits.budget(2, 7).tokens, 480);
        assert_eq!(suits.budget(1, 31).tokens, 2_048);
        assert_eq!(suits.budget(40, 0).long, 160);
    }

    #[test]
    fn every_cut_lies_on_the_grid_and_everything_is_fed_once() {
        for length in [1, 31, 63, 64, 65, 500, 1000] {
            for (budget, lanes, cut_tokens) in
                [(1, 1, 64), (64, 2, 64), (100, 1, 64), (512, 2, 64), (1, 2, 32), (40, 1, 32), (100, 2, 32), (7, 1, 1)]
            {
                // A sequence that begins with what is kept of a prompt may stand anywhere.
                for begins in [0, 1, 77] {
                    let mut held = begins.min(length - 1);
                    while held < length {
                        let demand = Demand { lanes, ..prompt(held, length - held) };
                        let share = plan(&[demand], &within(budget, cut_tokens))[0];
                        held += share.tokens;
                        assert!(held % cut_tokens == 0 || held == length);
                        assert_eq!(share.rows == Rows::Last, held == length);
                    }
                    assert_eq!(held, length);
                }
            }
        }
    }

    #[test]
    fn the_key_whose_prompts_were_read_longest_ago_comes_first() {
        let demands = [(7, 1_000), (9, 30), (6, 100), (9, 10)].map(|(served, n)| Demand { served, ..prompt(0, n) });
        let fed =
            |tokens| plan(&demands, &within(tokens, CUT_TOKENS)).iter().map(|s| (s.slot, s.tokens)).collect::<Vec<_>>();
        assert_eq!(fed(64), [(2, 64)]);
        assert_eq!(fed(170), [(2, 100), (0, 64)]);
        assert_eq!(fed(1_200), [(2, 100), (0, 1_000), (1, 30), (3, 10)]);
    }

    #[test]
    fn a_second_prompt_waits_when_no_cut_is_left_for_it() {
        let shares = plan(&[prompt(0, 100), prompt(0, 100)], &within(128, CUT_TOKENS));
        assert_eq!(shares.len(), 1);
        assert_eq!(plan(&[prompt(0, 10), prompt(0, 10)], &within(128, CUT_TOKENS)).len(), 2);
    }

    #[test]
    fn prompts_advance_even_when_decoding_fills_the_budget() {
        let demands: Vec<_> = [decoding(9); 8].into_iter().chain([prompt(64, 300)]).collect();
        for cut_tokens in [32, 64] {
            assert_eq!(plan(&demands, &within(4, cut_tokens)).last().unwrap().tokens, cut_tokens);
        }
    }

    /// A prompt of 8,192 beside replies: what a budget is for.
    #[test]
    fn replies_get_their_token_in_every_step_and_a_long_prompt_no_more_than_the_budget_beside_them() {
        const PROMPT: usize = 8_192;
        for budget in [64, 100, 160, 256, 512, 2_048] {
            for replies in [1, 8, 31, 32, 150] {
                let (mut held, mut steps) = (0, 0);
                while held < PROMPT {
                    let rows = (0..replies).map(|n| decoding(100 + n + steps));
                    // A second prompt and background work that wait as well.
                    let more = [prompt(held, PROMPT - held), prompt(0, 700), background(prompt(0, 5_000))];
                    let demands: Vec<_> = rows.chain(more).collect();
                    let shares = plan(&demands, &within(budget, CUT_TOKENS));
                    let (own, prompts) = shares.split_at(replies);
                    assert!(own.iter().enumerate().all(|(n, s)| (s.slot, s.tokens, s.rows) == (n, 1, Rows::Last)));
                    let beside: usize = prompts.iter().map(|s| s.tokens).sum();
                    assert!(beside <= budget, "{beside} of {budget} beside {replies}");
                    // More than the budget only where the replies alone leave less than one cut.
                    assert!(replies + beside <= budget.max(replies + CUT_TOKENS), "{beside} of {budget}");
                    assert_eq!(prompts[0].slot, replies, "in order of arrival");
                    held += prompts[0].tokens;
                    steps += 1;
                }
                let a_step = (budget.saturating_sub(replies) / CUT_TOKENS).max(1) * CUT_TOKENS;
                assert_eq!(steps, PROMPT.div_ceil(a_step), "{budget} beside {replies}");
            }
        }
    }

    #[test]
    fn background_work_follows_and_adds_one_cut_at_most_beside_live_work() {
        let idle: Vec<_> = [background(prompt(0, 1000)); 4].to_vec();
        assert_eq!(plan(&idle, &within(256, CUT_TOKENS)).iter().map(|s| s.tokens).sum::<usize>(), 256);
        let mut busy = idle.clone();
        busy.push(decoding(9));
        busy.push(prompt(0, 100));
        let shares = plan(&busy, &within(256, CUT_TOKENS));
        assert_eq!(shares.iter().map(|s| s.slot).collect::<Vec<_>>(), [4, 5, 0]);
        assert_eq!(shares.iter().map(|s| s.tokens).collect::<Vec<_>>(), [1, 100, 64]);
        // A live prompt that fills the step leaves nothing to the others.
        busy.push(prompt(0, 1000));
        assert!(plan(&busy, &within(256, CUT_TOKENS)).iter().all(|s| s.slot >= 4));
    }

    #[test]
    fn rows_are_asked_for_where_scores_begin() {
        let demand = Demand { wants: Wants::From(70), ..background(prompt(0, 200)) };
        assert_eq!(plan(&[demand], &within(64, CUT_TOKENS))[0].rows, Rows::None);
        assert_eq!(plan(&[Demand { held: 64, pending: 136, ..demand }], &within(64, CUT_TOKENS))[0].rows, Rows::All);
        assert_eq!(plan(&[Demand { wants: Wants::None, ..demand }], &within(256, CUT_TOKENS))[0].rows, Rows::None);
    }
}
