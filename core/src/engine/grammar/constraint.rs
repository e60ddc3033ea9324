//! One reply held to its form: which tokens may come next, token by token. The thought is free, but may neither end the
//! reply nor call a function. The form starts with the answer, and the answer ends where the form is complete.

use std::sync::Arc;

use llguidance::Matcher;

use super::digits::{Digits, Numerals};
use super::{GrammarError, NotEnforced, shortened};
use crate::engine::channels::Channels;
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
    /// Where replies come in channels.
    messages: Option<Messages>,
    numerals: Numerals,
}

/// What stands around the thought of a reply in channels.
#[derive(Debug)]
struct Messages {
    tokens: Channels,
    /// The header of a thought.
    thought: Vec<u32>,
    /// The header of an answer.
    answer: Vec<u32>,
    /// Between a thought's end and the header of what follows.
    turn: Vec<u32>,
}

impl Messages {
    fn of(vocab: &dyn Vocab) -> Option<Messages> {
        let tokens = Channels::of(vocab)?;
        let header = |name: &str| tokens.header(vocab, name).ok();
        let (thought, answer) = (header("analysis")?, header("final")?);
        Some(Messages { tokens, thought, answer, turn: tokens.turn(vocab).ok()? })
    }
}

impl Landmarks {
    /// `channels`: the model's family writes its replies in them.
    pub(super) fn of(vocab: &dyn Vocab, call: Option<u32>, channels: bool) -> Landmarks {
        let single = |text: &str| {
            let mut ids = Vec::new();
            let encoded = vocab.encode_further(text, &mut ids);
            (encoded.is_ok() && ids.len() == 1).then(|| ids[0])
        };
        let messages = Messages::of(vocab).filter(|_| channels);
        let marks = messages.iter().flat_map(|m| [m.tokens.start, m.tokens.channel, m.tokens.message]);
        let ends_thought = |id: &u32| messages.as_ref().is_some_and(|m| m.tokens.end == *id);
        let barred = vocab.ends().iter().copied().chain(call).chain(marks).filter(|id| !ends_thought(id)).collect();
        Landmarks {
            tokens: vocab.len(),
            think: ThoughtMarks::of(vocab).map(|marks| marks.open),
            newlines: ["\n", "\n\n"].into_iter().filter_map(single).collect(),
            barred,
            messages,
            numerals: Numerals::of(vocab),
        }
    }
}

/// Where a reply stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing was said yet: a thought may still open.
    Start,
    Thought,
    /// In the header of a thought, of which the first tokens came.
    Header(usize),
    /// Right behind a thought.
    After,
    /// Between a thought in channels and the next header, of which the first tokens came.
    Turn(usize),
    /// The form is being followed.
    Form,
}

pub struct Constraint {
    matcher: Matcher,
    landmarks: Arc<Landmarks>,
    place: Place,
    /// A thought in channels may come before the form.
    thinks: bool,
    /// Tokens at the beginning of the form that may as well begin a thought.
    shared: usize,
    /// With the bytes of what the answer is made of.
    digits: (Digits, Arc<dyn Vocab>),
    /// What of its schemas is left to the model.
    left: Vec<NotEnforced>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Constraint {
    /// `matcher` at the beginning of the form, and nobody else's.
    pub(super) fn new(matcher: Matcher, landmarks: Arc<Landmarks>, digits: (Digits, Arc<dyn Vocab>)) -> Constraint {
        Constraint { matcher, landmarks, place: Place::Start, thinks: false, shared: 0, digits, left: Vec::new() }
    }

    pub(super) fn leaving(self, left: Vec<NotEnforced>) -> Constraint {
        Constraint { left, ..self }
    }

    /// What of the request's schemas it leaves to the model, found when it was compiled.
    pub fn not_enforced(&self) -> &[NotEnforced] {
        &self.left
    }

    /// Takes the prompt, which may have begun the answer's message. `thinks`: a thought may come before the form.
    pub(super) fn behind(&mut self, prompt: &[u32], thinks: bool) -> Result<(), GrammarError> {
        let landmarks = Arc::clone(&self.landmarks);
        let Some(messages) = &landmarks.messages else { return Ok(()) };
        let open = messages.tokens.open(prompt).filter(|open| open[0] == messages.tokens.start);
        // What is written of the header already; all of it within a message, and where there are none.
        let written = match open.map(|open| open.iter().position(|id| *id == messages.tokens.channel)) {
            Some(None) => 0,
            Some(Some(at)) => open.map_or(0, |open| open.len() - at).min(messages.answer.len()),
            None => messages.answer.len(),
        };
        self.thinks = thinks && written == 0;
        self.matcher.try_consume_tokens(&messages.answer[..written]).map(drop).map_err(lost)
    }

    /// Puts −∞ on every token of `row` that must not come next. `channel`: where the next token belongs.
    pub fn mask(&mut self, channel: Channel, row: &mut [f32]) -> Result<(), GrammarError> {
        let marks = Arc::clone(&self.landmarks);
        if channel == Channel::Thinking {
            for id in &marks.barred {
                if let Some(logit) = row.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            return Ok(());
        }
        if let Some(only) = self.demanded() {
            let kept = row.get(only as usize).copied();
            row.fill(f32::NEG_INFINITY);
            if let (Some(logit), Some(kept)) = (row.get_mut(only as usize), kept) {
                *logit = kept;
            }
            return Ok(());
        }
        let allowed = self.matcher.compute_mask().map_err(lost)?;
        let thought = self.thought_goes_on();
        let beside: &[u32] = match (self.place, &marks.think) {
            (Place::Start, _) if thought.is_some() => thought.as_slice(),
            (Place::Start, Some(think)) => std::slice::from_ref(think),
            (Place::Thought, _) => &marks.newlines,
            _ => &[],
        };
        let kept: Vec<(u32, f32)> = beside.iter().filter_map(|id| Some((*id, *row.get(*id as usize)?))).collect();
        forbid(row, allowed.as_slice(), marks.tokens);
        marks.numerals.limit(&self.digits.0, row);
        for (id, logit) in kept {
            row[id as usize] = logit;
        }
        Ok(())
    }

    /// The only token that may come: of a header that is under way.
    fn demanded(&self) -> Option<u32> {
        let messages = self.landmarks.messages.as_ref()?;
        match self.place {
            Place::Header(said) => messages.thought.get(said).copied(),
            Place::Turn(said) => messages.turn.get(said).copied(),
            _ => None,
        }
    }

    /// The token that goes on with the header of a thought, where nothing has told it from the form yet.
    fn thought_goes_on(&self) -> Option<u32> {
        let messages = self.landmarks.messages.as_ref().filter(|_| self.thinks && self.place == Place::Start)?;
        messages.thought.get(self.shared).copied()
    }

    /// Where a reply in channels stands behind the token; `None`: in its form.
    fn around_thought(&mut self, channel: Channel, id: u32) -> Result<Option<Place>, GrammarError> {
        let landmarks = Arc::clone(&self.landmarks);
        let Some(messages) = &landmarks.messages else { return Ok(None) };
        let header = |said: usize| if said == messages.thought.len() { Place::Thought } else { Place::Header(said) };
        Ok(match self.place {
            _ if channel == Channel::Thinking && id == messages.tokens.end => Some(Place::Turn(0)),
            Place::Turn(said) if messages.turn.get(said) == Some(&id) => {
                let all = said + 1 == messages.turn.len();
                Some(if all { Place::Form } else { Place::Turn(said + 1) })
            }
            Place::Header(said) if messages.thought.get(said) == Some(&id) => Some(header(said + 1)),
            Place::Start if self.thought_goes_on() == Some(id) => {
                if self.matcher.validate_tokens(&[id]).map_err(lost)? == 1 {
                    self.matcher.consume_token(id).map_err(lost)?;
                    self.shared += 1;
                    return Ok(Some(Place::Start));
                }
                self.matcher.rollback(self.shared).map_err(lost)?;
                Some(header(self.shared + 1))
            }
            _ => None,
        })
    }

    /// Takes the token that came. `forced`: by a policy, which knows where the form starts.
    pub fn took(&mut self, channel: Channel, id: u32, forced: bool) -> Result<(), GrammarError> {
        if let Some(place) = self.around_thought(channel, id)? {
            self.place = place;
            return Ok(());
        }
        let beside = self.place != Place::Form;
        self.place = match self.place {
            _ if channel == Channel::Thinking => Place::Thought,
            Place::Start if self.landmarks.think == Some(id) => Place::Thought,
            Place::Thought if self.landmarks.newlines.contains(&id) => Place::After,
            place if beside && forced => place,
            _ => {
                self.matcher.consume_token(id).map_err(lost)?;
                self.sound()?;
                let (digits, vocab) = &mut self.digits;
                digits.took(id, vocab.as_ref());
                Place::Form
            }
        };
        Ok(())
    }

    /// A matcher that gave up is stopped as well, and its answer is not whole.
    fn sound(&self) -> Result<(), GrammarError> {
        let reason = self.matcher.stop_reason();
        if reason.is_ok() {
            return Ok(());
        }
        Err(lost(self.matcher.get_error().unwrap_or_else(|| reason.to_string())))
    }

    /// Nothing can follow.
    pub fn complete(&self) -> bool {
        self.place == Place::Form && self.matcher.is_stopped() && self.sound().is_ok()
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
