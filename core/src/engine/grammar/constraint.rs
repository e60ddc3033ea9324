//! One reply held to its form: which tokens may come next, token by token. The thought is free, but may neither end the
//! reply nor call a function. The form starts with the answer, and the answer ends where the form is complete.

use std::sync::Arc;

use llguidance::Matcher;

use super::{GrammarError, shortened};
use crate::engine::protocol::Channel;
use crate::engine::thought::ThoughtMarks;
use crate::engine::vocab::Vocab;

/// Ids that mean something beside the form.
#[derive(Debug, Default)]
pub(super) struct Landmarks {
    /// Tokens of the vocabulary; a row may be longer.
    tokens: usize,
    /// Opens a thought.
    think: Option<u32>,
    /// Newlines alone: one may stand between a thought and the answer, as models are trained to write.
    newlines: Vec<u32>,
    /// What a thought must not hold: the ends of a reply, and the mark of a call.
    barred: Vec<u32>,
}

impl Landmarks {
    pub(super) fn of(vocab: &dyn Vocab, call: Option<u32>) -> Landmarks {
        let single = |text: &str| {
            let mut ids = Vec::new();
            let encoded = vocab.encode_further(text, &mut ids);
            (encoded.is_ok() && ids.len() == 1).then(|| ids[0])
        };
        Landmarks {
            tokens: vocab.len(),
            think: ThoughtMarks::of(vocab).map(|marks| marks.open),
            newlines: ["\n", "\n\n"].into_iter().filter_map(single).collect(),
            barred: vocab.ends().iter().copied().chain(call).collect(),
        }
    }
}

/// Where a reply stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing was said yet: a thought may still open.
    Start,
    Thought,
    /// Right behind a thought.
    After,
    /// The form is being followed.
    Form,
}

pub struct Constraint {
    matcher: Matcher,
    landmarks: Arc<Landmarks>,
    place: Place,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Constraint {
    /// `matcher` at the beginning of the form, and nobody else's.
    pub(super) fn new(matcher: Matcher, landmarks: Arc<Landmarks>) -> Constraint {
        Constraint { matcher, landmarks, place: Place::Start }
    }

    /// Puts −∞ on every token of `row` that must not come next. `channel`: where the next token belongs.
    pub fn mask(&mut self, channel: Channel, row: &mut [f32]) -> Result<(), GrammarError> {
        let marks = &self.landmarks;
        if channel == Channel::Thinking {
            for id in &marks.barred {
                if let Some(logit) = row.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            return Ok(());
        }
        let allowed = self.matcher.compute_mask().map_err(lost)?;
        let beside: &[u32] = match (self.place, &marks.think) {
            (Place::Start, Some(think)) => std::slice::from_ref(think),
            (Place::Thought, _) => &marks.newlines,
            _ => &[],
        };
        let kept: Vec<(u32, f32)> = beside.iter().filter_map(|id| Some((*id, *row.get(*id as usize)?))).collect();
        forbid(row, allowed.as_slice(), marks.tokens);
        for (id, logit) in kept {
            row[id as usize] = logit;
        }
        Ok(())
    }

    /// Takes the token that came. `forced`: by a policy, which knows where the form starts.
    pub fn took(&mut self, channel: Channel, id: u32, forced: bool) -> Result<(), GrammarError> {
        let beside = self.place != Place::Form;
        self.place = match self.place {
            _ if channel == Channel::Thinking => Place::Thought,
            Place::Start if self.landmarks.think == Some(id) => Place::Thought,
            Place::Thought if self.landmarks.newlines.contains(&id) => Place::After,
            place if beside && forced => place,
            _ => {
                self.matcher.consume_token(id).map_err(lost)?;
                Place::Form
            }
        };
        Ok(())
    }

    /// Nothing can follow.
    pub fn complete(&self) -> bool {
        self.place == Place::Form && self.matcher.is_stopped()
    }
}

fn lost(error: impl std::fmt::Display) -> GrammarError {
    GrammarError::Lost(shortened(&error.to_string()))
}

/// −∞ wherever `allowed` (a bit a token) has no bit, and from `tokens` on.
fn forbid(row: &mut [f32], allowed: &[u32], tokens: usize) {
    let (own, beyond) = row.split_at_mut(tokens.min(row.len()));
    beyond.fill(f32::NEG_INFINITY);
    for (at, logits) in own.chunks_mut(32).enumerate() {
        match allowed.get(at).copied().unwrap_or(0) {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            bits => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if bits >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
