//! Which tokens go into the next step: decoding sequences first, one token each, then prompt chunks in order of
//! arrival until the token budget is spent. A prompt is cut only where its own sequence stands at a multiple of
//! `CUT_TOKENS`, so the numbers of a reply never depend on the budget or on the neighbours.

use super::backend::Rows;

/// Prompts are cut at multiples of this many positions: the chunk length of the gated delta rule.
pub const CUT_TOKENS: usize = 64;

/// What one sequence wants to feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Tokens already held by the sequence.
    pub held: usize,
    /// Tokens still to feed before the next row of logits.
    pub pending: usize,
    /// The sequence is generating: it goes first and is never cut.
    pub decoding: bool,
}

/// The share of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index into the demands.
    pub slot: usize,
    pub tokens: usize,
    pub rows: Rows,
}

/// Plans one step of at most `budget` tokens; decoding sequences always fit. A prompt gets nothing if less than
/// one cut is left for it, but the first prompt always advances.
pub fn plan(demands: &[Demand], budget: usize) -> Vec<Share> {
    let mut shares = Vec::with_capacity(demands.len());
    let mut left = budget;
    for (slot, demand) in demands.iter().enumerate().filter(|(_, d)| d.decoding && d.pending > 0) {
        shares.push(Share { slot, tokens: demand.pending, rows: Rows::Last });
        left = left.saturating_sub(demand.pending);
    }
    let mut first_prompt = true;
    for (slot, demand) in demands.iter().enumerate().filter(|(_, d)| !d.decoding && d.pending > 0) {
        let allowed = if first_prompt { left.max(CUT_TOKENS) } else { left };
        first_prompt = false;
        let tokens = cut(demand.held, demand.pending, allowed);
        if tokens == 0 {
            continue;
        }
        let rows = if tokens == demand.pending { Rows::Last } else { Rows::None };
        shares.push(Share { slot, tokens, rows });
        left = left.saturating_sub(tokens);
    }
    shares
}

/// How many of `pending` tokens to feed with `allowed` at hand: all, or up to the last cut within reach.
fn cut(held: usize, pending: usize, allowed: usize) -> usize {
    if pending <= allowed {
        return pending;
    }
    ((held + allowed) / CUT_TOKENS * CUT_TOKENS).saturating_sub(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(held: usize, pending: usize) -> Demand {
        Demand { held, pending, decoding: false }
    }

    #[test]
    fn decoding_goes_first_and_whole() {
        let demands = [prompt(0, 100), Demand { held: 50, pending: 1, decoding: true }];
        let shares = plan(&demands, 80);
        assert_eq!(shares[0], Share { slot: 1, tokens: 1, rows: Rows::Last });
        assert_eq!(shares[1], Share { slot: 0, tokens: 64, rows: Rows::None });
    }

    #[test]
    fn every_cut_lies_on_the_grid_and_everything_is_fed_once() {
        for length in [1, 63, 64, 65, 500, 1000] {
            for budget in [1, 64, 100, 512] {
                let mut held = 0;
                while held < length {
                    let share = plan(&[prompt(held, length - held)], budget)[0];
                    held += share.tokens;
                    assert!(held % CUT_TOKENS == 0 || held == length);
                    assert_eq!(share.rows == Rows::Last, held == length);
                }
                assert_eq!(held, length);
            }
        }
    }

    #[test]
    fn a_second_prompt_waits_when_no_cut_is_left_for_it() {
        let shares = plan(&[prompt(0, 100), prompt(0, 100)], 128);
        assert_eq!(shares.len(), 1);
        assert_eq!(plan(&[prompt(0, 10), prompt(0, 10)], 128).len(), 2);
    }

    #[test]
    fn prompts_advance_even_when_decoding_fills_the_budget() {
        let decoding = [Demand { held: 9, pending: 1, decoding: true }; 8];
        let demands: Vec<_> = decoding.into_iter().chain([prompt(64, 300)]).collect();
        assert_eq!(plan(&demands, 4).last().unwrap().tokens, 64);
    }
}
