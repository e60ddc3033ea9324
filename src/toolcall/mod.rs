//! Tool calls out of a model's text, in the two forms of the Qwen family:
//!
//! ```text
//! <tool_call>                          <tool_call>
//! <function=NAME>                      {"name": "NAME", "arguments": {…}}
//! <parameter=KEY>                      </tool_call>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Text comes in pieces of any size, on two channels (a call may stand inside the thought), and what comes out
//! does not depend on how it was cut. A call is given only when it is whole and well formed: a client must
//! never act on half of one. Everything else stays text, every byte of it.

mod form;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde_json::Value;

use crate::engine::protocol::Channel;
use crate::turn::ToolCall;
use form::{Call, Reading};

/// Bytes between the tags of one call.
pub const CALL_BYTES_MAX: usize = 256 << 10;
/// Calls of one reply; later ones stay text.
pub const CALLS_MAX: u32 = 64;
/// Closing tags at which one opening tag is tried: a tag may stand inside an argument.
const CLOSES_MAX: usize = 16;
/// Bytes of a reply that are read as calls, those read again included; afterwards all is text.
const READ_BYTES_MAX: usize = 64 << 20;
/// Decided text is dropped from memory in steps of this.
const COMPACT_BYTES: usize = 64 << 10;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What became of the text, in its order.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text that is not part of a call.
    Content(Channel, String),
    /// A call starts. `index` counts the calls of the reply from 0.
    Begin {
        index: u32,
        id: String,
        name: String,
    },
    /// More of its arguments: together, a JSON object.
    Arguments {
        index: u32,
        delta: String,
    },
    End {
        index: u32,
    },
}

/// Reads one reply.
#[derive(Debug)]
pub struct ToolCallParser {
    tools: Vec<Value>,
    thinking: Stream,
    answer: Stream,
    calls: u32,
    read_bytes: usize,
    /// Makes the ids of this reply unlike those of others.
    prefix: u64,
}

/// The text of one channel. Positions are bytes of `text`.
#[derive(Debug, Default)]
struct Stream {
    text: String,
    /// Where the text that is not yet decided starts: at an opening tag if `inside`.
    at: usize,
    inside: bool,
    /// Closing tags found from `at` on, looked for up to `searched`.
    closes: VecDeque<usize>,
    searched: usize,
    /// How many of `closes` were tried for this opening tag.
    tried: usize,
}

impl Stream {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        while let Some(at) = self.text[self.searched..].find(CLOSE).map(|at| self.searched + at) {
            self.closes.push_back(at);
            self.searched = at + CLOSE.len();
        }
        // A tag that is cut off at the end is looked for again.
        let whole = self.text.len().saturating_sub(CLOSE.len() - 1);
        self.searched = self.searched.max(self.text.floor_char_boundary(whole));
    }

    fn body_at(&self) -> usize {
        self.at + OPEN.len()
    }

    /// The next untried closing tag.
    fn close(&self) -> Option<usize> {
        self.closes.get(self.tried).copied()
    }

    /// Moves on by `bytes`, which become decided; returns them.
    fn decide(&mut self, bytes: usize) -> String {
        let text = self.text[self.at..self.at + bytes].to_owned();
        self.at += bytes;
        self.inside = false;
        self.tried = 0;
        while self.closes.front().is_some_and(|close| *close < self.at) {
            self.closes.pop_front();
        }
        if self.at >= COMPACT_BYTES && self.at >= self.text.len() / 2 {
            self.text.drain(..self.at);
            self.searched = self.searched.saturating_sub(self.at);
            self.closes.iter_mut().for_each(|close| *close -= self.at);
            self.at = 0;
        }
        text
    }
}

impl ToolCallParser {
    /// `tools` as the request has them: their schemas give the arguments their types.
    pub fn new(tools: &[Value]) -> ToolCallParser {
        ToolCallParser {
            tools: tools.to_vec(),
            thinking: Stream::default(),
            answer: Stream::default(),
            calls: 0,
            read_bytes: 0,
            // Without random numbers, ids are still unique within the reply.
            prefix: getrandom::u64().unwrap_or_default(),
        }
    }

    /// Adds text of a channel.
    pub fn push(&mut self, channel: Channel, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut stream = std::mem::take(self.stream(channel));
        stream.push(text);
        while self.advance(channel, &mut stream, &mut pieces) {}
        *self.stream(channel) = stream;
        pieces
    }

    /// The reply ends: a whole call whose closing tag is missing is taken, the rest is text.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for channel in [Channel::Thinking, Channel::Answer] {
            let mut stream = std::mem::take(self.stream(channel));
            while stream.inside {
                let untried = stream.tried == 0;
                match self.read(&stream.text[stream.body_at()..]) {
                    Reading::Call(call) if untried => {
                        self.give(call, &mut pieces);
                        stream.decide(stream.text.len() - stream.at);
                    }
                    _ => {
                        content(&mut pieces, channel, stream.decide(OPEN.len()));
                        while self.advance(channel, &mut stream, &mut pieces) {}
                    }
                }
            }
            content(&mut pieces, channel, stream.decide(stream.text.len() - stream.at));
        }
        pieces
    }

    /// Calls given so far.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    fn stream(&mut self, channel: Channel) -> &mut Stream {
        match channel {
            Channel::Thinking => &mut self.thinking,
            Channel::Answer => &mut self.answer,
        }
    }

    /// Decides one more stretch of text; false when more text is needed.
    fn advance(&mut self, channel: Channel, stream: &mut Stream, pieces: &mut Vec<Piece>) -> bool {
        if !stream.inside {
            let rest = &stream.text[stream.at..];
            let found = rest.find(OPEN);
            let plain = found.unwrap_or_else(|| rest.len() - held(rest));
            content(pieces, channel, stream.decide(plain));
            stream.inside = found.is_some();
            return stream.inside;
        }
        let close = stream.close();
        let body = &stream.text[stream.body_at()..close.unwrap_or(stream.text.len())];
        let reading = match close {
            _ if body.len() > CALL_BYTES_MAX => Reading::Malformed,
            Some(_) => self.read(body),
            None => form::begins(body),
        };
        match (reading, close) {
            (Reading::Call(call), Some(close)) => {
                self.give(call, pieces);
                stream.decide(close + CLOSE.len() - stream.at);
            }
            (Reading::Incomplete, Some(_)) if stream.tried + 1 < CLOSES_MAX => stream.tried += 1,
            (Reading::Incomplete, None) => return false,
            // Only the opening tag is certainly text: a call may start within what followed it.
            _ => content(pieces, channel, stream.decide(OPEN.len())),
        }
        true
    }

    /// Reads a body as far as this reply may still have calls.
    fn read(&mut self, body: &str) -> Reading {
        if self.calls >= CALLS_MAX {
            return Reading::Malformed;
        }
        if self.read_bytes + body.len() > READ_BYTES_MAX {
            self.read_bytes = READ_BYTES_MAX;
            return Reading::Malformed;
        }
        self.read_bytes += body.len();
        form::read(body, &self.tools)
    }

    fn give(&mut self, call: Call, pieces: &mut Vec<Piece>) {
        let index = self.calls;
        self.calls += 1;
        let id = format!("call_{:016x}{index:02}", self.prefix);
        let delta = Value::Object(call.arguments).to_string();
        pieces.push(Piece::Begin { index, id, name: call.name });
        pieces.push(Piece::Arguments { index, delta });
        pieces.push(Piece::End { index });
    }
}

/// Adds text, to the piece before if that is text of the same channel.
fn content(pieces: &mut Vec<Piece>, channel: Channel, text: String) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(Piece::Content(last, before)) if *last == channel => before.push_str(&text),
        _ => pieces.push(Piece::Content(channel, text)),
    }
}

/// Bytes at the end of `text` that may be the beginning of an opening tag.
fn held(text: &str) -> usize {
    (1..OPEN.len()).rev().find(|&n| text.ends_with(&OPEN[..n])).unwrap_or(0)
}

/// The whole of an answer at once: its text without the calls, and the calls. Blank lines that only separated
/// the two are dropped.
pub fn parse(text: &str, tools: &[Value]) -> (String, Vec<ToolCall>) {
    let mut parser = ToolCallParser::new(tools);
    let mut pieces = parser.push(Channel::Answer, text);
    pieces.extend(parser.finish());
    collect(&pieces)
}

/// Text and calls out of pieces.
pub fn collect(pieces: &[Piece]) -> (String, Vec<ToolCall>) {
    let (mut text, mut calls) = (String::new(), Vec::<ToolCall>::new());
    for piece in pieces {
        match piece {
            Piece::Content(_, content) => text.push_str(content),
            Piece::Begin { id, name, .. } => {
                calls.push(ToolCall { id: id.clone(), name: name.clone(), arguments: Value::Null });
            }
            Piece::Arguments { delta, .. } => {
                if let Some(call) = calls.last_mut() {
                    call.arguments = serde_json::from_str(delta).unwrap_or_default();
                }
            }
            Piece::End { .. } => {}
        }
    }
    match calls.is_empty() {
        true => (text, calls),
        false => (text.trim().to_owned(), calls),
    }
}
