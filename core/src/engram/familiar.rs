//! How much of a text its tables have foretold so far. Of a text of their own kind it is a good part, of any other
//! next to nothing. One or two words occur everywhere. So a match of them weighs only where the longer run of the
//! text is the tables' own. That keeps tables from costing anything outside their domain.

use super::blend::Proposal;

/// Tokens over which the share fades, by a factor of e.
pub const SPAN: usize = 32;
/// Share of the probability from which a text is all theirs; with the square below, chosen by what the shipped tables keep in
/// their own domain and cost outside it (`nano/engram/README.md`).
const SHARE_FULL: f32 = 0.2;
/// What is trusted less is not asked: a whole row of logits would have to be looked through for it.
const TRUST_MIN: f32 = 0.02;
/// Longest n-grams that have to be vouched for: longer ones are told by themselves.
const ORDER_COMMON: u8 = 3;

/// The probability that tables gave to the tokens that came, on average over the last ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Familiar {
    share: f32,
}

impl Familiar {
    /// The next token, and what was expected in its place.
    pub fn saw(&mut self, token: u32, expected: Option<&Proposal>) {
        let candidate = expected.and_then(|p| p.candidates.iter().find(|(id, _)| *id == token));
        self.share += (candidate.map_or(0.0, |(_, p)| *p) - self.share) / SPAN as f32;
    }

    /// Takes from a proposal that rests on common n-grams what the text so far does not vouch for.
    pub fn weigh(&self, proposal: &mut Proposal) {
        if proposal.order <= ORDER_COMMON {
            let trust = (self.share / SHARE_FULL).min(1.0).powi(2);
            proposal.confidence *= if trust < TRUST_MIN { 0.0 } else { trust };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(order: u8) -> Proposal {
        Proposal { candidates: vec![(7, 0.75), (9, 0.25)], confidence: 0.5, order, context: 1 }
    }

    fn confidence(familiar: &Familiar, order: u8) -> f32 {
        let mut weighed = proposal(order);
        familiar.weigh(&mut weighed);
        weighed.confidence
    }

    #[test]
    fn common_n_grams_speak_where_the_text_is_known_and_long_ones_always() {
        let mut familiar = Familiar::default();
        assert_eq!((confidence(&familiar, 2), confidence(&familiar, 3), confidence(&familiar, 4)), (0.0, 0.0, 0.5));
        (0..SPAN).for_each(|_| familiar.saw(7, Some(&proposal(2))));
        assert_eq!((confidence(&familiar, 2), confidence(&familiar, 4)), (0.5, 0.5), "foretold by three quarters");
        (0..2 * SPAN).for_each(|_| familiar.saw(8, Some(&proposal(6))));
        let after = confidence(&familiar, 3);
        assert!(after > 0.0 && after < 0.1, "{after}: nothing of it was foretold");
        familiar.saw(7, None);
        assert!(confidence(&familiar, 3) < after, "what no table knows tells against them");
        (0..2 * SPAN).for_each(|_| familiar.saw(7, None));
        assert_eq!(confidence(&familiar, 3), 0.0);
    }
}
