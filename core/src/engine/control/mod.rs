//! Control of one reply while it is decoded: which text is shown, on which channel, which tokens are forced, and when
//! the reply ends. One `ReplyControl` a request, fed by the step loop; it owns no numbers of the model and never
//! waits.
//!
//! The thought is what lies between the model's marks for it, `<think>` and `</think>` for instance. The marks themselves are not shown, nor the newlines
//! next to them. Stop strings are looked for in the answer only.

mod certainty;
pub mod engram;
mod harmony;
mod limits;
mod spelled;
pub(crate) mod stop;
#[cfg(test)]
mod tests;
mod thinking;
mod utf8;

use super::protocol::Channel;
use super::thought::ThoughtMarks;
use super::vocab::Vocab;
use crate::toolcall::{Format, Piece, ToolCallParser};
use crate::turn::{FinishReason, ThoughtEnd, ThoughtPolicy, ThoughtUse};
use certainty::Watch;
use harmony::{Harmony, Step};
use limits::check_stops;
pub use limits::{ControlError, ReplyLimits};
use serde_json::Value;
use spelled::Spelled;
use stop::{Found, StopMatcher, parted};
use thinking::ThinkingBudget;
use utf8::Utf8Assembler;

/// What one token led to.
#[derive(Clone, Debug, PartialEq)]
pub struct Advance {
    /// Where the token belongs.
    pub channel: Channel,
    /// Text that became safe to show on that channel; may be empty, may come from earlier tokens.
    pub text: String,
    /// The token was forced, not sampled.
    pub forced: bool,
    /// The reply ended with this token.
    pub finish: Option<Finish>,
}

/// How a reply ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub reason: FinishReason,
    /// Rest of the answer that had been held back.
    pub text: String,
    /// The stop string that ended it.
    pub stop: Option<String>,
}

#[derive(Debug)]
pub struct ReplyControl {
    channel: Channel,
    marks: Option<ThoughtMarks>,
    budget: ThinkingBudget,
    /// Where the model's certainty decides something.
    watch: Option<Box<Watch>>,
    utf8: Utf8Assembler,
    stops: StopMatcher,
    /// Tells calls from text where stop strings apply to text alone, or a repeated call ends the reply.
    calls: Option<Box<ToolCallParser>>,
    /// A call that is word for word one before it ends the reply.
    ends_at_repeat: bool,
    /// It came.
    repeated: bool,
    /// Special tokens that are marks of calls, and their texts: shown where the reply may call.
    shown: Vec<(u32, String)>,
    /// Where replies come in channels.
    harmony: Option<Harmony>,
    /// Where the marks of a thought are no tokens.
    spelled: Option<Spelled>,
    /// At the start of a thought, or of an answer after one: newlines are not shown.
    skip_newlines: bool,
    /// Newlines at the end of the thought so far, shown only if more of it follows.
    newlines: String,
    /// What a thought may begin with that is no part of it, as far as it did not come yet.
    heading: &'static str,
    /// The open thought has text.
    thought: bool,
    tokens: u32,
    max_tokens: u32,
    ignore_end: bool,
}

/// Whether a thought has an end that can be forced.
pub fn bounds_thought(vocab: &dyn Vocab) -> bool {
    ThoughtMarks::of(vocab).is_some() || Harmony::of(vocab).is_some() || Spelled::of(vocab).is_some()
}

impl ReplyControl {
    /// `thinking_open`: the prompt ends inside a thought.
    pub fn new(vocab: &dyn Vocab, limits: ReplyLimits<'_>, thinking_open: bool) -> Result<Self, ControlError> {
        check_stops(limits.stop)?;
        if limits.max_tokens == 0 {
            return Err(ControlError::NoTokens);
        }
        let marks = ThoughtMarks::of(vocab);
        let mut control = ReplyControl {
            channel: Channel::Answer,
            marks,
            budget: ThinkingBudget::new(vocab, marks, limits.thinking, limits.max_tokens)?,
            watch: None,
            utf8: Utf8Assembler::default(),
            stops: StopMatcher::new(limits.stop),
            calls: None,
            ends_at_repeat: false,
            repeated: false,
            shown: Vec::new(),
            harmony: Harmony::of(vocab),
            spelled: Spelled::of(vocab),
            skip_newlines: false,
            newlines: String::new(),
            heading: "",
            thought: false,
            tokens: 0,
            max_tokens: limits.max_tokens,
            ignore_end: limits.ignore_end,
        };
        if thinking_open && marks.is_some() {
            control.open_thought();
        }
        Ok(control)
    }

    /// The reply may call these tools: the marks of calls are shown, and no stop string cuts a call. `trained`: the
    /// model knows when to stop calling; another one often writes a call again and again, which ends its reply.
    pub fn calling(
        mut self,
        vocab: &dyn Vocab,
        tools: &[Value],
        format: &'static Format,
        trained: bool,
    ) -> ReplyControl {
        if !tools.is_empty() {
            let silent = |id: &u32| vocab.bytes(*id).is_empty();
            let marks = vocab.specials().into_iter().filter(|(id, _)| silent(id) && !vocab.ends().contains(id));
            self.shown = marks.filter(|(_, text)| format.literals().any(|mark| mark.contains(text.as_str()))).collect();
        }
        self.ends_at_repeat = !trained;
        if !tools.is_empty() && (!self.stops.is_empty() || !trained) {
            self.calls = Some(Box::new(ToolCallParser::keeping_texts(tools, format)));
        }
        self
    }

    /// The answer is calls, or JSON of a form: what a string of that JSON quotes is no call.
    pub fn calls_first(&mut self) {
        self.calls = self.calls.take().map(|calls| Box::new(calls.calls_first()));
    }

    /// The tokens of the prompt, which may have begun the first message of channels, or a thought that is spelled.
    pub fn behind(mut self, vocab: &dyn Vocab, prompt: &[u32]) -> ReplyControl {
        if let Some(harmony) = &mut self.harmony {
            harmony.behind(vocab, prompt);
        }
        if self.spelled.as_mut().is_some_and(|spelled| spelled.behind(vocab, prompt)) {
            self.open_thought();
        }
        self
    }

    /// The model's certainty decides how far its thought goes.
    pub fn watching(mut self, vocab: &dyn Vocab, policy: Option<ThoughtPolicy>) -> Result<ReplyControl, ControlError> {
        let watch = policy.filter(|_| self.marks.is_some()).map(|policy| Watch::new(vocab, policy)).transpose()?;
        self.watch = watch.map(Box::new);
        Ok(self)
    }

    /// The next token needs its whole row, for [`ReplyControl::saw`].
    pub fn watches(&self) -> bool {
        self.watch.is_some() && self.channel == Channel::Thinking && self.forced().is_none()
    }

    /// Takes the model's own row for the next token where the reply is watched, and forbids what its policy does.
    pub fn saw(&mut self, logits: &mut [f32]) {
        if self.watches()
            && let Some(watch) = &mut self.watch
        {
            watch.saw(logits);
        }
    }

    /// What the policy for the thought did, where there is one.
    pub fn thought(&self) -> Option<ThoughtUse> {
        self.watch.as_ref().map(|watch| watch.report())
    }

    /// Whether a thought may have any text.
    pub fn may_think(&self) -> bool {
        self.budget.may_think()
    }

    /// Where the next token belongs.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The token that must be fed next; `None`: sample one.
    pub fn forced(&self) -> Option<u32> {
        self.budget.forced()
    }

    /// Tokens of the reply so far, thought included.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tokens of the thought, `</think>` included.
    pub fn thinking_tokens(&self) -> u32 {
        self.budget.spent()
    }

    /// Takes the next token of the reply, sampled or forced.
    pub fn push(&mut self, vocab: &dyn Vocab, id: u32) -> Advance {
        let forced = self.budget.took(id);
        self.tokens = self.tokens.saturating_add(1);
        let channel = self.channel;
        if channel == Channel::Thinking {
            self.budget.spend();
        }
        if !self.ignore_end && vocab.ends().contains(&id) {
            let text = self.last_of_thought();
            let finish = Some(self.finish(FinishReason::Stop));
            return Advance { channel, text, forced, finish };
        }
        let (mut text, stop) = self.read(vocab, id);
        self.watch_token(vocab, id, channel, forced);
        if self.channel == Channel::Thinking && !self.utf8.unfinished() {
            self.budget.enforce(self.thought && !self.newlines.is_empty());
        }
        let finish = if stop.is_some() {
            Some(Finish { reason: FinishReason::Stop, text: String::new(), stop })
        } else if self.repeated {
            Some(Finish { reason: FinishReason::Stop, text: String::new(), stop: None })
        } else if self.tokens >= self.max_tokens {
            text += &self.last_of_thought();
            Some(self.finish(FinishReason::Length))
        } else {
            None
        };
        Advance { channel, text, forced, finish }
    }

    /// Tells the watch of a token that came on `channel`.
    fn watch_token(&mut self, vocab: &dyn Vocab, id: u32, channel: Channel, forced: bool) {
        let Some(watch) = &mut self.watch else { return };
        match (channel, self.channel) {
            (Channel::Thinking, Channel::Thinking) => {
                watch.took(&vocab.bytes(id));
                if watch.ends() {
                    self.budget.end_early();
                }
            }
            (Channel::Thinking, Channel::Answer) => {
                let by = match (forced, self.budget.ended_early()) {
                    (true, true) => ThoughtEnd::Certain,
                    (true, false) => ThoughtEnd::Budget,
                    (false, _) => ThoughtEnd::Model,
                };
                watch.ended(by);
            }
            (Channel::Answer, Channel::Thinking) => watch.begin(),
            (Channel::Answer, Channel::Answer) => {}
        }
    }

    /// Ends the reply where it is (cancelled, context full): what had been held back comes out.
    pub fn finish(&mut self, reason: FinishReason) -> Finish {
        let mut text = String::new();
        if self.channel == Channel::Answer {
            let held = self.harmony.as_mut().map(Harmony::rest).unwrap_or_default();
            let rest = held + &self.spelled_rest();
            let rest = skip_newlines(&mut self.skip_newlines, &rest).to_owned();
            let mut found = self.answer(&rest);
            let mut half = String::new();
            if let (None, Some(calls)) = (&found.stop, &mut self.calls) {
                // What was held back may be half a call, which no stop string ends.
                let (pieces, cut) = match reason {
                    FinishReason::Length => parted(calls.cut()),
                    _ => (calls.finish(), String::new()),
                };
                half = cut;
                let last = self.pieces(pieces);
                found = Found { text: found.text + &last.text, stop: last.stop };
            }
            if found.stop.is_some() {
                return Finish { reason: FinishReason::Stop, text: found.text, stop: found.stop };
            }
            text = found.text + &self.stops.flush() + &half;
        }
        Finish { reason, text, stop: None }
    }

    /// The text a token adds, and the stop string it completed. Changes the channel at a mark.
    fn read(&mut self, vocab: &dyn Vocab, id: u32) -> (String, Option<String>) {
        if let Some(harmony) = &mut self.harmony {
            match harmony.step(vocab, id) {
                Step::Text(held) if held.is_empty() => {}
                Step::Text(held) => {
                    let (before, stop) = self.say(&held);
                    let (text, stop) = match stop {
                        Some(stop) => (String::new(), Some(stop)),
                        None => {
                            let text = self.utf8.push(&self.bytes(vocab, id));
                            self.say(&text)
                        }
                    };
                    return (before + &text, stop);
                }
                Step::Silent => return self.ends_message(id),
                Step::Thought => {
                    self.open_thought();
                    return (String::new(), None);
                }
                Step::Answer => return (self.close_thought(), None),
                Step::Call(head) => {
                    let rest = self.close_thought();
                    let (text, stop) = self.say(&head);
                    return (rest + &text, stop);
                }
            }
        }
        match (self.channel, self.marks) {
            (Channel::Answer, Some(marks)) if id == marks.open => {
                let Finish { text, stop, .. } = self.finish(FinishReason::Stop);
                if stop.is_none() {
                    self.open_thought();
                }
                (text, stop)
            }
            (Channel::Thinking, Some(marks)) if id == marks.close => {
                let rest = self.utf8.flush();
                (self.end_thought(&rest), None)
            }
            (channel, _) => {
                let text = self.utf8.push(&self.bytes(vocab, id));
                let text = self.spelled.as_mut().map_or(text.clone(), |spelled| spelled.push(&text));
                let thinks = self.spelled.as_ref().map_or(channel == Channel::Thinking, Spelled::thinks);
                match (channel, thinks) {
                    (Channel::Thinking, true) => (self.show_thought(&text), None),
                    (Channel::Thinking, false) => (self.end_thought(&text), None),
                    (Channel::Answer, false) => self.say(&text),
                    (Channel::Answer, true) => {
                        self.open_thought();
                        (String::new(), None)
                    }
                }
            }
        }
    }

    /// What a token adds: a mark of a call its name.
    fn bytes(&self, vocab: &dyn Vocab, id: u32) -> Vec<u8> {
        let mark = self.shown.iter().find(|(own, _)| *own == id);
        mark.map_or_else(|| vocab.bytes(id), |(_, text)| text.clone().into_bytes())
    }

    /// A message of channels ends, or its header is being read.
    fn ends_message(&mut self, id: u32) -> (String, Option<String>) {
        match self.harmony.as_ref().is_some_and(|harmony| harmony.end() == id) {
            true => (self.close_thought(), None),
            false => (String::new(), None),
        }
    }

    /// The last text of a thought behind which the answer begins.
    fn end_thought(&mut self, rest: &str) -> String {
        let rest = self.show_thought(rest);
        self.newlines.clear();
        self.channel = Channel::Answer;
        self.skip_newlines = true;
        rest
    }

    /// The rest of a thought that ends here, where one is open.
    fn close_thought(&mut self) -> String {
        if self.channel != Channel::Thinking {
            return String::new();
        }
        let rest = self.utf8.flush();
        let rest = self.show_thought(&rest);
        self.newlines.clear();
        self.channel = Channel::Answer;
        rest
    }

    fn say(&mut self, text: &str) -> (String, Option<String>) {
        let text = skip_newlines(&mut self.skip_newlines, text).to_owned();
        let found = self.answer(&text);
        (found.text, found.stop)
    }

    /// Text of the answer, as far as it is safe to show.
    fn answer(&mut self, text: &str) -> Found {
        let Some(calls) = &mut self.calls else { return self.stops.push(text) };
        let pieces = calls.push(Channel::Answer, text);
        self.pieces(pieces)
    }

    /// Calls go through as they were written up to a repeated one, text up to the first stop string.
    fn pieces(&mut self, pieces: Vec<Piece>) -> Found {
        let mut shown = String::new();
        for piece in pieces {
            match piece {
                Piece::Content(_, text) => {
                    let found = self.stops.push(&text);
                    shown += &found.text;
                    if found.stop.is_some() {
                        return Found { text: shown, stop: found.stop };
                    }
                }
                Piece::Begin { index, .. } => {
                    shown += &self.stops.flush();
                    let text = |index| self.calls.as_ref().map_or("", |calls| calls.text_of(index));
                    let own = text(index);
                    if self.ends_at_repeat && !own.is_empty() && (0..index).any(|before| text(before) == own) {
                        self.repeated = true;
                        return Found { text: shown, stop: None };
                    }
                    shown += own;
                }
                Piece::Arguments { .. } | Piece::End { .. } => {}
            }
        }
        Found { text: shown, stop: None }
    }

    fn open_thought(&mut self) {
        self.channel = Channel::Thinking;
        self.skip_newlines = true;
        self.thought = false;
        self.heading = self.marks.map_or("", ThoughtMarks::heading);
        self.newlines.clear();
        self.budget.enforce(false);
    }

    /// Holds back the newlines at the end, for they are dropped if the thought ends there.
    fn show_thought(&mut self, text: &str) -> String {
        let text = self.behind_heading(text);
        let text = skip_newlines(&mut self.skip_newlines, text);
        let shown = text.trim_end_matches('\n');
        if shown.is_empty() {
            self.newlines += text;
            return String::new();
        }
        self.thought = true;
        let mut out = std::mem::take(&mut self.newlines);
        out += shown;
        self.newlines += &text[shown.len()..];
        out
    }

    /// `text` without what of the thought's heading it begins with.
    fn behind_heading<'a>(&mut self, text: &'a str) -> &'a str {
        let rest = self.heading;
        self.heading = rest.strip_prefix(text).filter(|_| !text.is_empty()).unwrap_or("");
        if text.is_empty() {
            self.heading = rest;
        }
        if !self.heading.is_empty() { "" } else { text.strip_prefix(rest).unwrap_or(text) }
    }

    /// What is left of a thought that ends with the reply.
    fn last_of_thought(&mut self) -> String {
        match self.channel {
            Channel::Thinking => {
                let rest = self.spelled_rest();
                self.show_thought(&rest)
            }
            Channel::Answer => String::new(),
        }
    }

    /// What is held back of a reply that ends.
    fn spelled_rest(&mut self) -> String {
        let rest = self.utf8.flush();
        match &mut self.spelled {
            Some(spelled) => spelled.push(&rest) + &spelled.rest(),
            None => rest,
        }
    }
}

/// `text` without its leading newlines while `skip` is set; other text clears it.
fn skip_newlines<'a>(skip: &mut bool, text: &'a str) -> &'a str {
    if !*skip {
        return text;
    }
    let rest = text.trim_start_matches('\n');
    *skip = rest.is_empty();
    rest
}
