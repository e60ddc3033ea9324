//! One choice of a reply while it is generated. What the engine says of it is kept for the Turn and turned
//! into what the client sees.

use serde_json::Value;

use super::logprobs::Unshown;
use super::unavailable;
use crate::actors::inference::FromEngine;
use crate::engine::protocol::{Channel, Event, FailureKind, TokenEvent};
use crate::service::{Logprob, ReplyEvent, ServiceError};
use crate::toolcall::{Format, Half, Piece, ToolCallParser};
use crate::turn::{FinishReason, Generation, Message, Role, ThoughtEnd, Timings, ToolCall, Usage};
use crate::whole;

/// A choice under way.
pub(super) struct Choice {
    pub(super) generation: Generation,
    pub(super) prompt_ids: Vec<u32>,
    pub(super) queued: bool,
    pub(super) started: bool,
    pub(super) finished: bool,
    /// The engine says no more of it.
    pub(super) silent: bool,
    channel: Channel,
    /// Tokens of the thought and of the answer whose text was not shown yet, where their logprobs were asked for.
    unshown: Option<[Unshown; 2]>,
    /// Logprobs are told as their tokens come.
    every_token: bool,
    /// The parameter that asks a form of the answer.
    pub(super) form: Option<&'static str>,
    /// Where the request offers tools.
    tools: Option<ToolCallParser>,
    /// The number of its first call within the conversation.
    number: u32,
    /// The first call counts alone: what the model says beside it is neither told nor kept.
    pub(super) one_call: bool,
    /// The call being written: id, name, arguments so far.
    call: Option<(String, String, String)>,
    /// Names of the tools whose calls the client is not told of.
    pub(super) built_in: Vec<String>,
    /// Their calls in this generation.
    called: Vec<ToolCall>,
    /// A call of theirs that was cut off, of which the client sees nothing.
    half: Option<Half>,
    /// Where this generation begins in thought and content, and whether that is still to be marked.
    begins: [usize; 2],
    parted: [bool; 2],
    /// Another generation follows one that ends with such calls.
    pub(super) goes_on: bool,
    /// Tokens of this generation's thought that were forced.
    forced: u32,
}

impl Choice {
    pub(super) fn new(index: u32, seed: u64, logprobs: bool, tools: &[Value], format: &'static Format) -> Self {
        Choice {
            generation: Generation {
                index,
                content: String::new(),
                thinking: String::new(),
                tool_calls: Vec::new(),
                thinking_ids: Vec::new(),
                reply_ids: Vec::new(),
                seed,
                // Until the engine says otherwise.
                finish_reason: FinishReason::Aborted,
                usage: Usage::default(),
                timings: Timings::default(),
                engram: None,
                thought: None,
                thought_cut: false,
                not_enforced: Vec::new(),
                error: None,
                quality: None,
            },
            prompt_ids: Vec::new(),
            queued: false,
            started: false,
            finished: false,
            silent: false,
            channel: Channel::Answer,
            unshown: logprobs.then(Default::default),
            every_token: false,
            form: None,
            tools: (!tools.is_empty()).then(|| ToolCallParser::new(tools, format)),
            number: 0,
            one_call: false,
            call: None,
            built_in: Vec::new(),
            called: Vec::new(),
            half: None,
            begins: [0, 0],
            parted: [false, false],
            goes_on: false,
            forced: 0,
        }
    }

    /// The same behind so many calls of the conversation.
    pub(super) fn from_number(mut self, number: u32) -> Self {
        self.tools = self.tools.map(|parser| parser.from_number(number));
        Choice { number, ..self }
    }

    /// The next generation of the same answer begins; what was said stands.
    pub(super) fn go_on(&mut self, tools: &[Value], format: &'static Format) {
        let Generation { thinking, content, .. } = &self.generation;
        self.begins = [thinking.len(), content.len()];
        self.parted = [!thinking.is_empty(), !content.is_empty()];
        self.number += self.tools.as_ref().map_or(0, ToolCallParser::calls);
        self.tools = Some(ToolCallParser::new(tools, format).from_number(self.number));
        self.unshown = self.unshown.take().map(|_| Default::default());
        (self.started, self.finished, self.silent, self.channel) = (false, false, false, Channel::Answer);
    }

    /// The calls of built-in tools that this generation made, and what it thought and said beside them.
    pub(super) fn take_built_in(&mut self) -> Message {
        let Generation { thinking, content, .. } = &self.generation;
        let [thought, said] = self.begins;
        let thought = thinking[thought..].trim();
        Message {
            reasoning_content: Some(thought.to_owned()).filter(|thought| !thought.is_empty()),
            tool_calls: std::mem::take(&mut self.called),
            ..Message::new(Role::Assistant, content[said..].trim())
        }
    }

    /// A call of a built-in tool that was cut off in this generation.
    pub(super) fn take_half(&mut self) -> Option<Half> {
        self.half.take()
    }

    /// It ended with calls of built-in tools alone, whose results it waits for.
    fn pauses(&self, reason: FinishReason) -> bool {
        let alone = self.generation.tool_calls.is_empty() && !self.called.is_empty();
        self.goes_on && alone && reason == FinishReason::Stop
    }

    /// Nothing follows: the client has been told of the end.
    pub(super) fn complete(&self) -> bool {
        self.finished && !self.pauses(self.generation.finish_reason)
    }

    /// Logprobs of all tokens, as they come: those whose text is not shown as well.
    pub(super) fn tell_every_token(&mut self) {
        (self.unshown, self.every_token) = (None, true);
    }

    /// The answer is calls, or JSON of a form.
    pub(super) fn has_form(&mut self) {
        self.tools = self.tools.take().map(ToolCallParser::calls_first);
    }

    /// One event of the engine; what the client sees of it goes to `out`.
    pub(super) fn take(&mut self, event: FromEngine, out: &mut Vec<ReplyEvent>) -> Result<(), ServiceError> {
        match event {
            FromEngine::Event(Event::Queued { .. }) => self.queued = true,
            FromEngine::Event(Event::Started { prompt_ids, cached_tokens, seed, not_enforced, .. }) => {
                self.start(prompt_ids, cached_tokens, seed);
                if !not_enforced.is_empty() {
                    self.generation.not_enforced = not_enforced;
                }
            }
            FromEngine::Event(Event::PromptRead { tokens, .. }) => {
                out.push(ReplyEvent::PromptRead { choice: self.generation.index, tokens });
            }
            FromEngine::Event(Event::Token(token)) => self.token(token, out),
            FromEngine::Event(Event::Finished { reason: FinishReason::Error, text, usage, timings, .. }) => {
                self.finish(FinishReason::Error, text, usage, timings, &mut Vec::new());
                return Err(ServiceError::Internal("the engine failed while it generated".to_owned()));
            }
            FromEngine::Event(Event::Finished { reason, text, usage, timings, engram, thought, .. }) => {
                self.generation.engram = engram.map(|told| *told);
                self.generation.thought = thought;
                // A policy ends a thought by the same tokens as its budget.
                self.generation.thought_cut &= thought.is_none_or(|own| own.ended != Some(ThoughtEnd::Certain));
                self.finish(reason, text, usage, timings, out);
            }
            FromEngine::Event(Event::Failed { kind, message, .. }) => {
                self.silent = true;
                return Err(self.failure(kind, message));
            }
            FromEngine::Lost(message) => {
                self.silent = true;
                return Err(unavailable(&format!("the engine stopped in the middle of the reply: {message}"), 2));
            }
            FromEngine::Event(_) => {}
        }
        Ok(())
    }

    fn start(&mut self, prompt_ids: Vec<u32>, cached_tokens: u32, seed: u64) {
        (self.started, self.forced) = (true, 0);
        self.generation.thinking_ids.clear();
        self.generation.reply_ids.clear();
        self.generation.thought_cut = false;
        self.generation.usage = Usage { prompt_tokens: prompt_ids.len() as u32, cached_tokens, ..Usage::default() };
        self.generation.seed = seed;
        self.prompt_ids = prompt_ids;
    }

    fn token(&mut self, token: TokenEvent, out: &mut Vec<ReplyEvent>) {
        self.channel = token.channel;
        let usage = &mut self.generation.usage;
        usage.completion_tokens += 1;
        match token.channel {
            Channel::Thinking => {
                usage.thinking_tokens += 1;
                // One that was not to begin has no other token before those that end it.
                self.generation.thought_cut |= token.forced && usage.thinking_tokens > self.forced + 1;
                self.forced += u32::from(token.forced);
                self.generation.thinking_ids.push(token.token);
            }
            Channel::Answer => self.generation.reply_ids.push(token.token),
        }
        let logprob = token.logprob.map(|chosen| Logprob { chosen, top: token.top });
        match (&mut self.unshown, logprob) {
            (Some(unshown), Some(logprob)) => unshown[token.channel as usize].push(logprob),
            (None, Some(logprob)) if self.every_token => {
                let (choice, channel, text) = (self.generation.index, token.channel, String::new());
                out.push(ReplyEvent::Delta { choice, channel, text, logprobs: vec![logprob] });
            }
            _ => {}
        }
        self.text(token.channel, token.text, out);
    }

    /// Text of the model: shown as it is, or read for tool calls where there are tools.
    fn text(&mut self, channel: Channel, text: String, out: &mut Vec<ReplyEvent>) {
        let Some(parser) = &mut self.tools else { return self.show(channel, text, out) };
        let pieces = parser.push(channel, &text);
        self.pieces(pieces, out);
    }

    fn show(&mut self, channel: Channel, mut text: String, out: &mut Vec<ReplyEvent>) {
        let logprobs = self.unshown.as_mut().map(|u| u[channel as usize].shown(&text)).unwrap_or_default();
        let (said, at) = match channel {
            Channel::Thinking => (&mut self.generation.thinking, 0),
            Channel::Answer => (&mut self.generation.content, 1),
        };
        if !text.is_empty() && std::mem::take(&mut self.parted[at]) {
            text.insert_str(0, if said.ends_with('\n') { "\n" } else { "\n\n" });
        }
        said.push_str(&text);
        if !text.is_empty() {
            out.push(ReplyEvent::Delta { choice: self.generation.index, channel, text, logprobs });
        }
    }

    fn pieces(&mut self, pieces: Vec<Piece>, out: &mut Vec<ReplyEvent>) {
        let choice = self.generation.index;
        for piece in pieces {
            match piece {
                Piece::Content(channel, text) => self.show(channel, text, out),
                Piece::Begin { index: 1.., .. } | Piece::Arguments { index: 1.., .. } if self.one_call => {}
                Piece::Begin { id, name, .. } => {
                    self.call = Some((id.clone(), name.clone(), String::new()));
                    if !self.built_in.contains(&name) {
                        let call = self.generation.tool_calls.len() as u32;
                        out.push(ReplyEvent::ToolBegin { choice, call, id, name });
                    }
                }
                Piece::Arguments { delta, .. } => {
                    let Some((_, name, arguments)) = &mut self.call else { continue };
                    arguments.push_str(&delta);
                    if !self.built_in.contains(name) {
                        let call = self.generation.tool_calls.len() as u32;
                        out.push(ReplyEvent::ToolArguments { choice, call, delta });
                    }
                }
                Piece::End { .. } => {
                    if let Some((id, name, arguments)) = self.call.take() {
                        // The parser gives whole objects only; anything else would be kept as the text it is.
                        let arguments = whole::read(&arguments).unwrap_or(Value::String(arguments));
                        let built_in = self.built_in.contains(&name);
                        let calls = if built_in { &mut self.called } else { &mut self.generation.tool_calls };
                        calls.push(ToolCall { id, name, arguments });
                    }
                }
            }
        }
    }

    /// Text that the tool parser still holds back. `cut`: the reply reached a limit, or was ended.
    fn flush(&mut self, cut: bool, out: &mut Vec<ReplyEvent>) {
        if let Some(parser) = &mut self.tools {
            let pieces = match cut {
                true => {
                    let (pieces, half) = parser.cut_without(&self.built_in);
                    self.half = half;
                    pieces
                }
                false => parser.finish(),
            };
            self.pieces(pieces, out);
        }
    }

    /// The engine's last word on this choice; `rest` is text it had held back.
    fn finish(
        &mut self,
        reason: FinishReason,
        rest: String,
        usage: Usage,
        timings: Timings,
        out: &mut Vec<ReplyEvent>,
    ) {
        self.text(self.channel, rest, out);
        self.flush(reason != FinishReason::Stop, out);
        self.finished = true;
        let called = reason == FinishReason::Stop && !self.generation.tool_calls.is_empty();
        let reason = if called { FinishReason::ToolCalls } else { reason };
        self.generation.usage = usage;
        self.generation.timings = timings;
        self.generation.finish_reason = reason;
        if !self.pauses(reason) {
            let (choice, tool_calls) = (self.generation.index, self.generation.tool_calls.clone());
            out.push(ReplyEvent::ChoiceFinished { choice, reason, tool_calls });
        }
    }

    fn failure(&self, kind: FailureKind, message: String) -> ServiceError {
        match kind {
            FailureKind::Invalid => ServiceError::Invalid { message, param: None },
            FailureKind::Messages => ServiceError::Invalid { message, param: Some("messages".to_owned()) },
            FailureKind::Form => ServiceError::Invalid { message, param: self.form.map(str::to_owned) },
            FailureKind::Context => ServiceError::Context(message),
            FailureKind::Busy => ServiceError::Busy { message, retry_after_s: 1 },
            FailureKind::Internal => ServiceError::Internal(message),
        }
    }

    /// Nothing more will come of it.
    pub(super) fn break_off(&mut self, reason: FinishReason, error: Option<&str>) {
        if !self.finished {
            self.flush(true, &mut Vec::new());
            self.finished = true;
            self.generation.finish_reason = reason;
            self.generation.error = error.map(str::to_owned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::TokenLogprob;
    use crate::turn::ThoughtUse;
    use serde_json::json;

    fn tools() -> Vec<Value> {
        vec![json!({"type": "function", "function": {"name": "add", "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}})]
    }

    fn token(text: &str) -> TokenEvent {
        let chosen = TokenLogprob { id: 1, text: text.into(), bytes: text.as_bytes().to_vec(), logprob: -0.5 };
        TokenEvent {
            id: 1,
            token: 5,
            channel: Channel::Answer,
            text: text.into(),
            forced: false,
            logprob: Some(chosen),
            top: Vec::new(),
        }
    }

    fn feed(choice: &mut Choice, text: &str) -> Vec<ReplyEvent> {
        let mut out = Vec::new();
        // In pieces of three characters, as no tokenizer would.
        let letters: Vec<char> = text.chars().collect();
        for piece in letters.chunks(3) {
            choice.token(token(&piece.iter().collect::<String>()), &mut out);
        }
        choice.finish(FinishReason::Stop, String::new(), Usage::default(), Timings::default(), &mut out);
        out
    }

    const CALL: &str = "Sure.\n<tool_call>\n<function=add>\n<parameter=a>\n17\n</parameter>\n<parameter=b>\n25\n\
        </parameter>\n</function>\n</tool_call>";

    #[test]
    fn a_call_is_streamed_kept_and_ends_the_reply() {
        let mut choice = Choice::new(0, 0, false, &tools(), Format::generic());
        let events = feed(&mut choice, CALL);
        let call = &choice.generation.tool_calls[0];
        assert_eq!((call.name.as_str(), &call.arguments), ("add", &json!({"a": 17, "b": 25})));
        assert_eq!(choice.generation.content.trim(), "Sure.");
        assert_eq!(choice.generation.finish_reason, FinishReason::ToolCalls);
        let deltas = events.iter().filter_map(|e| match e {
            ReplyEvent::ToolArguments { delta, .. } => Some(delta.as_str()),
            _ => None,
        });
        assert_eq!(deltas.collect::<String>().parse::<Value>().unwrap(), call.arguments);
        assert!(matches!(events.last(), Some(ReplyEvent::ChoiceFinished { tool_calls, .. }) if tool_calls.len() == 1));
    }

    #[test]
    fn where_one_call_counts_the_others_are_neither_told_nor_kept() {
        let mut choice = Choice::new(0, 0, false, &tools(), Format::generic());
        choice.one_call = true;
        let events = feed(&mut choice, &[CALL, &CALL.replace("17", "18")].concat());
        assert_eq!(choice.generation.tool_calls.len(), 1);
        assert_eq!(choice.generation.tool_calls[0].arguments, json!({"a": 17, "b": 25}));
        assert_eq!(choice.generation.finish_reason, FinishReason::ToolCalls);
        let told = |e: &&ReplyEvent| {
            matches!(e, ReplyEvent::ToolBegin { call: 1.., .. } | ReplyEvent::ToolArguments { call: 1.., .. })
        };
        assert_eq!(events.iter().filter(told).count(), 0);
    }

    #[test]
    fn a_thought_that_its_budget_ended_is_marked() {
        let thought = |forced: bool| TokenEvent { channel: Channel::Thinking, forced, ..token("hm ") };
        let certain = ThoughtUse { ended: Some(ThoughtEnd::Certain), ..ThoughtUse::default() };
        let budget = ThoughtUse { ended: Some(ThoughtEnd::Budget), ..ThoughtUse::default() };
        for (forced, told, cut) in [
            (&[false, false, true, true][..], None, true),
            (&[false, true], Some(budget), true),
            // The model itself, a policy, and one that was not to think.
            (&[false, false], None, false),
            (&[false, true], Some(certain), false),
            (&[true, true, true], None, false),
        ] {
            let mut choice = Choice::new(0, 0, false, &[], Format::generic());
            let mut out = Vec::new();
            forced.iter().for_each(|forced| choice.token(thought(*forced), &mut out));
            choice.token(token("so"), &mut out);
            let (reason, text, stop) = (FinishReason::Stop, String::new(), None);
            let (usage, timings, engram) = (Usage::default(), Timings::default(), None);
            let end = Event::Finished { id: 1, reason, text, stop, usage, timings, engram, thought: told };
            choice.take(FromEngine::Event(end), &mut out).unwrap();
            assert_eq!(choice.generation.thought_cut, cut, "{forced:?} {told:?}");
        }
    }

    #[test]
    fn without_tools_the_same_text_is_text() {
        let mut choice = Choice::new(0, 0, false, &[], Format::generic());
        feed(&mut choice, CALL);
        assert_eq!(choice.generation.content, CALL);
        assert_eq!(choice.generation.finish_reason, FinishReason::Stop);
    }

    #[test]
    fn every_token_of_shown_text_has_its_logprob_once_and_a_call_has_none() {
        let broken = "a < b and <tool";
        for (text, content, tokens) in [(CALL, "Sure.", 2), (broken, broken, broken.len() / 3)] {
            let mut choice = Choice::new(0, 0, true, &tools(), Format::generic());
            let events = feed(&mut choice, text);
            let told = |e: &ReplyEvent| match e {
                ReplyEvent::Delta { logprobs, .. } => logprobs.clone(),
                _ => Vec::new(),
            };
            let told: Vec<String> = events.iter().flat_map(told).map(|l| l.chosen.text).collect();
            assert_eq!(told.len(), tokens, "{told:?}");
            assert!(told.concat().starts_with(content), "{told:?}");
            assert_eq!(choice.generation.content.trim(), content);
        }
    }

    #[test]
    fn a_broken_call_stays_text_also_when_the_reply_is_cut() {
        let mut choice = Choice::new(0, 0, false, &tools(), Format::generic());
        let mut out = Vec::new();
        choice.token(token("<tool_call>\n<function=add>"), &mut out);
        choice.break_off(FinishReason::Aborted, None);
        assert_eq!(choice.generation.content, "<tool_call>\n<function=add>");
        assert!(choice.generation.tool_calls.is_empty());
    }

    /// As OpenAI's: the limit is the reason, and what was whole by then is a call.
    #[test]
    fn at_a_limit_a_whole_call_is_a_call_and_the_reason_is_the_limit() {
        let open = CALL.trim_end().strip_suffix("</tool_call>").unwrap();
        let (mark, begun) = ("Sure.\n<tool_call>\n", CALL.split_once("7\n").unwrap().0);
        for (text, calls, content) in [(CALL, 1, "Sure."), (open, 1, "Sure."), (begun, 0, begun), (mark, 0, "Sure.")] {
            let mut choice = Choice::new(0, 0, false, &tools(), Format::generic());
            let mut out = Vec::new();
            choice.token(token(text), &mut out);
            choice.finish(FinishReason::Length, String::new(), Usage::default(), Timings::default(), &mut out);
            let Generation { content: said, tool_calls, finish_reason, .. } = &choice.generation;
            assert_eq!(
                (said.trim(), tool_calls.len(), *finish_reason),
                (content, calls, FinishReason::Length),
                "{text}"
            );
        }
    }
}
