//! Engram in one reply. It follows the reply's tokens and asks the tables for the next one while an answer is
//! written, never in a thought. It bounds how often they may steer and counts what they did.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engram::familiar::SPAN;
use crate::engram::key::CONTEXT_TOKENS;
use crate::engram::{Dynamic, Familiar, Lookups, Proposal, Table, View, propose};
use crate::turn::{EngramChoice, EngramUse};

use super::super::protocol::Channel;
use super::super::sampler::mix::Mixed;

/// Times that one context may steer in an answer: n-grams that follow each other in a circle would never end.
pub const CONTEXT_USES_MAX: u8 = 4;
/// Tokens of a prompt that tables are tried on.
const PROMPT_TOKENS: usize = 2 * SPAN;
/// Tokens of an answer that tables may take part in.
pub const ANSWER_USES_MAX: u32 = 1024;

/// The tables of one request. It owns the request's own table, which goes when the request does.
#[derive(Debug)]
pub struct Engram {
    tables: Vec<Arc<Table>>,
    dynamic: Option<Dynamic>,
    lambda_max: f32,
    in_thought: bool,
    /// The last tokens of prompt and reply, and how far the tables have foretold them.
    history: Vec<u32>,
    familiar: Familiar,
    /// What they expect next, where it was asked for.
    expected: Option<Proposal>,
    uses: HashMap<u64, u8>,
    lookups: Lookups,
    report: EngramUse,
    lambda_sum: f64,
}

impl Engram {
    /// `prompt`: what the reply follows. Its end says how familiar the text is to the tables.
    pub fn new(tables: Vec<Arc<Table>>, dynamic: Option<Dynamic>, choice: &EngramChoice, prompt: &[u32]) -> Engram {
        let names = tables.iter().map(|t| t.meta().name.clone()).collect();
        let mut engram = Engram {
            tables,
            dynamic,
            lambda_max: choice.lambda_max,
            in_thought: choice.in_thought,
            history: Vec::with_capacity(CONTEXT_TOKENS),
            familiar: Familiar::default(),
            expected: None,
            uses: HashMap::new(),
            lookups: Lookups::default(),
            report: EngramUse { tables: names, ..EngramUse::default() },
            lambda_sum: 0.0,
        };
        prompt[prompt.len().saturating_sub(PROMPT_TOKENS)..].iter().for_each(|id| engram.took(*id));
        engram
    }

    /// What follows the text so far.
    fn expect(&self, lookups: &mut Lookups) -> Option<Proposal> {
        let views: Vec<View<'_>> = self.tables.iter().map(|t| t.view()).collect();
        propose(&self.history, &views, self.dynamic.as_ref(), lookups)
    }

    /// What the tables expect as the next token on `channel`, and the most they may weigh: nothing in a thought.
    pub fn propose(&mut self, channel: Channel) -> Option<(Proposal, f32)> {
        let silent = channel == Channel::Thinking && !self.in_thought;
        if silent || self.report.mixed >= ANSWER_USES_MAX {
            return None;
        }
        let mut lookups = self.lookups;
        self.expected = self.expect(&mut lookups);
        self.lookups = lookups;
        let mut proposal = self.expected.clone()?;
        self.report.hits += 1;
        // The passages of a request are of its own kind.
        if self.dynamic.is_none() {
            self.familiar.weigh(&mut proposal);
        }
        let uses = self.uses.entry(proposal.context).or_default();
        if *uses >= CONTEXT_USES_MAX || proposal.confidence <= 0.0 {
            return None;
        }
        *uses += 1;
        Some((proposal, self.lambda_max))
    }

    /// What came of a proposal.
    pub fn mixed(&mut self, mixed: Mixed, changed: bool) {
        self.report.mixed += 1;
        self.report.changed += u32::from(changed);
        self.lambda_sum += f64::from(mixed.lambda);
    }

    /// The next token of the reply, wherever it comes from.
    pub fn took(&mut self, id: u32) {
        let expected = self.expected.take().or_else(|| self.expect(&mut Lookups::default()));
        self.familiar.saw(id, expected.as_ref());
        if self.history.len() == CONTEXT_TOKENS {
            self.history.remove(0);
        }
        self.history.push(id);
    }

    pub fn report(&self) -> EngramUse {
        let mut report = self.report.clone();
        (report.lookups, report.skipped) = (self.lookups.made, self.lookups.skipped);
        report.lambda_mean = (self.lambda_sum / f64::from(report.mixed.max(1))) as f32;
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engram::{Bytes, Draft, Source};

    fn engram(choice: &EngramChoice, prompt: &[u32]) -> Engram {
        let mut draft = Draft::new([0; 32], 100).unwrap();
        let source = Source { principal: String::new(), origin: "t".into(), time_s: 0, verdict: 0, halved: false };
        let source = draft.source(source).unwrap();
        draft.add(&[1, 2, 3], 4, 9, source).unwrap();
        let bytes = draft.finish("t", "", "", None).unwrap();
        let table = Table::open(Bytes::Owned(bytes), None).unwrap();
        Engram::new(vec![Arc::new(table)], None, choice, prompt)
    }

    fn choice() -> EngramChoice {
        EngramChoice { lambda_max: 0.5, ..EngramChoice::default() }
    }

    #[test]
    fn tables_speak_in_answers_and_never_in_thoughts() {
        let mut engram = engram(&choice(), &[9, 9, 9, 9, 1, 2]);
        assert_eq!(engram.propose(Channel::Answer), None, "the context is not complete");
        engram.took(3);
        assert_eq!(engram.propose(Channel::Thinking), None);
        let (proposal, lambda) = engram.propose(Channel::Answer).unwrap();
        assert_eq!((proposal.candidates, lambda), (vec![(4, 1.0)], 0.5));
        assert_eq!((engram.report().hits, engram.report().mixed), (1, 0), "a proposal alone changes nothing");
        engram.took(4);
        assert_eq!(engram.propose(Channel::Answer), None);
    }

    #[test]
    fn one_context_steers_a_few_times_in_an_answer_and_no_more() {
        let mut engram = engram(&choice(), &[1, 2, 3]);
        let mixed = Mixed { lambda: 0.25, entropy: 1.0 };
        let mut steered = 0;
        for _ in 0..20 {
            if engram.propose(Channel::Answer).is_some() {
                engram.mixed(mixed, true);
                steered += 1;
            }
            [1, 2, 3].into_iter().for_each(|id| engram.took(id));
        }
        assert_eq!(steered, u32::from(CONTEXT_USES_MAX));
        let report = engram.report();
        assert_eq!((report.hits, report.mixed, report.changed), (20, steered, steered));
        assert!((report.lambda_mean - 0.25).abs() < 1e-6);
        assert!(report.skipped > 0 && report.skipped < report.lookups);
    }

    #[test]
    fn an_answer_as_a_whole_is_bounded() {
        let mut engram = engram(&choice(), &[1, 2, 3]);
        for _ in 0..ANSWER_USES_MAX {
            engram.mixed(Mixed { lambda: 0.1, entropy: 1.0 }, false);
        }
        assert_eq!(engram.propose(Channel::Answer), None);
    }
}
