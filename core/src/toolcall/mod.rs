//! Tool calls out of a model's text, in the ways of many families (`formats`). Qwen's, for instance:
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
//! Text comes in pieces of any size, on two channels, and what comes out does not depend on how it was cut. A call is given
//! only when it is whole and names a function of the request: a client must never act on half of one. What is certain is
//! read although marks are missing or doubled. Everything else stays text, every byte of it; blanks that only part calls
//! from one another are none. A call inside a thought is part of the thought, unless the reply ends with it.

mod code;
#[cfg(test)]
mod cutting;
#[cfg(test)]
mod families;
mod formats;
#[cfg(test)]
mod histories;
mod json;
mod literal;
mod marks;
mod named;
mod shape;
mod stream;
mod tags;
#[cfg(test)]
mod tests;
mod typed;
mod write;

use serde_json::{Map, Value};

pub use code::Code;
pub use formats::{Format, HERMES_JSON, Ids, QWEN_TAGS, Shape};
pub use json::Json;
pub use named::{Named, Place};
pub use tags::Tags;
pub use write::CallRef;

use crate::engine::protocol::Channel;
use crate::turn::ToolCall;
use crate::whole;
use shape::{Call, Functions, Reading, SPACE_BYTES_MAX};
use stream::{Marks, Next, Stream};

/// Bytes of one call, its marks included.
pub const CALL_BYTES_MAX: usize = 256 << 10;
/// Calls of one reply; later ones stay text.
pub const CALLS_MAX: u32 = 64;
/// Bytes of a reply that are read as calls, those read again included; afterwards all is text.
const READ_BYTES_MAX: usize = 64 << 20;
/// Arrays and objects within one another in the arguments: what a client may send back, and what a Turn can be read
/// with again.
const DEPTH_MAX: usize = 64;

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

/// A call that was cut off before it was whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// Absent: it was cut before its name was whole.
    pub name: Option<String>,
}

/// Reads one reply.
#[derive(Debug)]
pub struct ToolCallParser {
    format: &'static Format,
    marks: Marks,
    functions: Functions,
    thinking: Stream,
    answer: Stream,
    /// Calls at the end of the thought so far, and their text.
    in_thought: Vec<(String, Vec<Call>)>,
    calls: u32,
    /// Their texts, where somebody wants them.
    texts: Option<Vec<String>>,
    read_bytes: usize,
    /// Behind text of the answer there are no calls.
    calls_first: bool,
    /// A call of one of these that was begun and cut is no text. What was cut of them.
    withheld: Vec<String>,
    half: Option<Half>,
    /// The reply was cut: what the thought ends with is no end.
    cut: bool,
    /// Makes the ids of this reply unlike those of others.
    prefix: u64,
    /// The number of its first call, where ids count the calls of a conversation.
    number: u32,
}

impl ToolCallParser {
    /// `tools` as the request has them: what may be called, and with which arguments.
    pub fn new(tools: &[Value], format: &'static Format) -> ToolCallParser {
        ToolCallParser {
            format,
            marks: Marks::of(format),
            functions: Functions::of(tools),
            thinking: Stream::default(),
            answer: Stream::beginning(format.begun),
            in_thought: Vec::new(),
            calls: 0,
            texts: None,
            read_bytes: 0,
            calls_first: false,
            withheld: Vec::new(),
            half: None,
            cut: false,
            // Without random numbers, ids are still unique within the reply.
            prefix: getrandom::u64().unwrap_or_default(),
            number: 0,
        }
    }

    /// For a reply behind so many calls of its conversation.
    pub fn from_number(self, number: u32) -> ToolCallParser {
        ToolCallParser { number, ..self }
    }

    /// One that keeps what it read as calls.
    pub fn keeping_texts(tools: &[Value], format: &'static Format) -> ToolCallParser {
        ToolCallParser { texts: Some(Vec::new()), ..ToolCallParser::new(tools, format) }
    }

    /// For an answer that is calls or JSON of a form: a mark in a string of that JSON opens nothing.
    pub fn calls_first(self) -> ToolCallParser {
        ToolCallParser { calls_first: true, ..self }
    }

    /// What was read as this call, and those behind it in the same marks.
    pub fn text_of(&self, index: u32) -> &str {
        self.texts.as_ref().and_then(|texts| texts.get(index as usize)).map_or("", String::as_str)
    }

    /// Adds text of a channel.
    pub fn push(&mut self, channel: Channel, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut stream = std::mem::take(self.stream(channel));
        stream.push(text);
        while self.advance(channel, &mut stream, false, &mut pieces) {}
        *self.stream(channel) = stream;
        pieces
    }

    /// The reply ends: a whole call whose closing mark is missing is taken, the rest is text.
    pub fn finish(&mut self) -> Vec<Piece> {
        let (mut thought, mut pieces) = (Vec::new(), Vec::new());
        let mut answer = std::mem::take(&mut self.answer);
        while self.advance(Channel::Answer, &mut answer, true, &mut pieces) {}
        let mut thinking = std::mem::take(&mut self.thinking);
        if answer.is_silent() {
            while self.advance(Channel::Thinking, &mut thinking, true, &mut thought) {}
        }
        // Calls that end the thought, where nothing came behind it.
        for (text, calls) in std::mem::take(&mut self.in_thought) {
            match answer.is_silent() && !self.cut && self.calls as usize + calls.len() <= CALLS_MAX as usize {
                true => calls.into_iter().for_each(|call| self.give(call, &mut thought)),
                false => content(&mut thought, Channel::Thinking, text),
            }
        }
        if self.calls == 0 || !answer.is_silent() {
            content(&mut thought, Channel::Thinking, thinking.rest());
        }
        thought.append(&mut pieces);
        if self.calls == 0 {
            content(&mut thought, Channel::Answer, answer.rest());
        }
        thought
    }

    /// The reply was cut at a limit: the same, but the mark of a call with nothing behind it, whole or half, is no text. The
    /// thought might have gone on, so no call within it counts.
    pub fn cut(&mut self) -> Vec<Piece> {
        self.cut = true;
        self.answer.cut(&self.marks);
        self.thinking.cut(&self.marks);
        self.finish()
    }

    /// The same, where half a call of one of `names` is no text either. → what was left out so.
    pub fn cut_without(&mut self, names: &[String]) -> (Vec<Piece>, Option<Half>) {
        self.withheld = names.to_vec();
        let pieces = self.cut();
        (pieces, self.half.take())
    }

    /// Whether the undecided text is the beginning of a call that is withheld, or of one without a whole name.
    fn withholds(&mut self, stream: &mut Stream) -> bool {
        if self.withheld.is_empty() || !matches!(self.read(stream, false), Reading::More) {
            return false;
        }
        let (body, ..) = stream.body();
        let name = match self.functions.first_in(body) {
            Some(name) if self.withheld.iter().any(|own| own == name) => Some(name.to_owned()),
            Some(_) => return false,
            // It may have become one of them.
            None => None,
        };
        self.half = Some(Half { name });
        true
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

    /// Decides one more stretch of text; false when more text is needed. `ended`: none comes.
    fn advance(&mut self, channel: Channel, stream: &mut Stream, ended: bool, pieces: &mut Vec<Piece>) -> bool {
        match stream.next(self.format, &self.marks, ended) {
            Next::Nothing => false,
            Next::Plain(bytes) => {
                self.say(channel, stream, bytes, pieces);
                true
            }
            Next::Dropped(bytes) => {
                stream.drop(bytes);
                true
            }
            Next::Opening(mark) => match self.read(stream, ended) {
                Reading::Calls(calls, bytes) if self.calls as usize + calls.len() <= CALLS_MAX as usize => {
                    let text = stream.take_call(bytes, channel);
                    if channel == Channel::Thinking {
                        self.in_thought.push((text, calls));
                        return true;
                    }
                    self.release(pieces);
                    if let Some(texts) = &mut self.texts {
                        texts.push(text);
                        texts.resize(self.calls as usize + calls.len(), String::new());
                    }
                    calls.into_iter().for_each(|call| self.give(call, pieces));
                    true
                }
                Reading::More if !ended => false,
                _ if ended && channel == Channel::Answer && self.withholds(stream) => {
                    stream.drop(stream.undecided());
                    true
                }
                // Only the mark is certainly text: a call may start within what followed it.
                _ => {
                    self.say(channel, stream, mark, pieces);
                    true
                }
            },
        }
    }

    /// Gives text as content, blanks at its end aside.
    fn say(&mut self, channel: Channel, stream: &mut Stream, bytes: usize, pieces: &mut Vec<Piece>) {
        let text = stream.say(bytes);
        if !text.is_empty() {
            self.release(pieces);
            content(pieces, channel, text);
        }
    }

    /// Something follows the calls at the end of the thought: they are text, and so is what an answer cuts off.
    fn release(&mut self, pieces: &mut Vec<Piece>) {
        self.in_thought.drain(..).for_each(|(text, _)| content(pieces, Channel::Thinking, text));
        content(pieces, Channel::Thinking, self.thinking.rest());
    }

    /// Reads a call as far as this reply may still have some.
    fn read(&mut self, stream: &mut Stream, ended: bool) -> Reading {
        let spoken = self.calls_first && stream.has_spoken();
        if spoken || self.calls >= CALLS_MAX || self.read_bytes >= READ_BYTES_MAX {
            return Reading::Text;
        }
        let (body, new, balance) = stream.body();
        let clipped = body.len() > CALL_BYTES_MAX;
        let (body, ended) = (&body[..body.floor_char_boundary(CALL_BYTES_MAX)], ended && !clipped);
        let short = body.len() <= SPACE_BYTES_MAX;
        let (mut more, looked) = (false, balance.total());
        for shape in self.format.shapes {
            if !shape.opens(body) {
                continue;
            }
            if !(short || ended || clipped || shape.may_end(new)) {
                more = true;
                continue;
            }
            let reading = match shape {
                Shape::Tags(tags) => {
                    self.read_bytes += body.len();
                    tags::read(tags, body, ended, &self.functions)
                }
                Shape::Json(form) => json::read(form, body, ended, &self.functions, balance),
                Shape::Named(form) => named::read(form, body, ended, &self.functions, balance),
                Shape::Code(form) => {
                    self.read_bytes += body.len();
                    code::read(form, body, ended, &self.functions, balance)
                }
            };
            match reading {
                Reading::Calls(calls, bytes) if calls.iter().all(is_shallow) => {
                    self.read_bytes += balance.total() - looked;
                    return Reading::Calls(calls, bytes);
                }
                Reading::More => more = true,
                _ => {}
            }
        }
        self.read_bytes += balance.total() - looked;
        if more && !clipped { Reading::More } else { Reading::Text }
    }

    fn give(&mut self, call: Call, pieces: &mut Vec<Piece>) {
        let index = self.calls;
        self.calls += 1;
        let id = match self.format.ids {
            Ids::Usual => format!("call_{:016x}{index:02}", self.prefix),
            Ids::Nine => format!("{:07x}{index:02}", self.prefix & 0xfff_ffff),
            Ids::Numbered => format!("functions.{}:{}", call.name, self.number.saturating_add(index)),
        };
        let delta = whole::written_object(&call.arguments);
        pieces.push(Piece::Begin { index, id, name: call.name });
        pieces.push(Piece::Arguments { index, delta });
        pieces.push(Piece::End { index });
    }
}

/// The number in an id that counts the calls of a conversation: others may have the same.
pub fn number_of(id: &str) -> Option<u32> {
    id.strip_prefix("functions.")?.rsplit_once(':')?.1.parse().ok()
}

/// No conversation has so many calls. A larger number in an id counts nothing.
const NUMBER_MAX: u32 = 1 << 24;

/// The number of the next call behind these, where ids count the calls of a conversation. A client may have left calls out.
pub fn next_number<'a>(calls: impl Iterator<Item = &'a ToolCall>) -> u32 {
    let next = |(many, next): (u32, u32), call: &ToolCall| {
        let own = number_of(&call.id).filter(|own| *own < NUMBER_MAX);
        (many.saturating_add(1), next.max(own.map_or(0, |own| own + 1)))
    };
    let (many, next) = calls.fold((0, 0), next);
    many.max(next)
}

/// Whether a client may send the arguments back.
fn is_shallow(call: &Call) -> bool {
    !call.arguments.values().any(|value| nests(value, DEPTH_MAX - 1))
}

/// Whether `value` nests deeper than `levels`.
fn nests(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|v| nests(v, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|v| nests(v, levels - 1)),
        _ => false,
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

/// The whole of an answer at once: its text without the calls, and the calls. Blank lines that only separated
/// the two are dropped.
pub fn parse(text: &str, tools: &[Value]) -> (String, Vec<ToolCall>) {
    let mut parser = ToolCallParser::new(tools, &QWEN_TAGS);
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
                    call.arguments = whole::read(delta).unwrap_or(Value::Object(Map::new()));
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
