//! Calls whose parameters stand between tags. What is certain is read although tags are missing or doubled; markup inside
//! a value belongs to the value.

use serde_json::Map;

use super::shape::{Call, Functions, Reading, SPACE_BYTES_MAX, is_name, may_become};
use super::typed::typed;
use crate::schema::{Kinds, Schema};

/// Parameters of one call.
const PARAMETERS_MAX: usize = 256;
/// Bytes of the tag that names a function or a parameter.
const HEAD_BYTES_MAX: usize = 512;

/// How a family writes tags.
#[derive(Debug, PartialEq)]
pub struct Tags {
    /// Around one call or several; empty: nothing.
    pub open: &'static str,
    pub close: &'static str,
    /// Before a function's name.
    pub function: &'static str,
    /// Behind it; empty: the name ends with its line or the next tag.
    pub function_head_end: &'static str,
    pub function_end: &'static str,
    /// Before a parameter's name.
    pub parameter: &'static str,
    /// Between its name and its value: one tag, or two.
    pub parameter_head_end: &'static str,
    pub value: &'static str,
    pub parameter_end: &'static str,
    /// A newline stands on either side of a value and does not belong to it.
    pub lines: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mark {
    Open,
    Close,
    Function,
    FunctionEnd,
    Parameter,
    ParameterEnd,
}

/// Why there is no call.
#[derive(Debug)]
enum Stop {
    More,
    Text,
}

/// What follows a tag.
#[derive(Debug, PartialEq)]
enum Follows {
    Structure,
    Text,
    Unknown,
}

impl Tags {
    fn marks(&self) -> [(Mark, &'static str); 6] {
        // Those that begin like another one come first.
        [
            (Mark::Open, self.open),
            (Mark::Close, self.close),
            (Mark::FunctionEnd, self.function_end),
            (Mark::ParameterEnd, self.parameter_end),
            (Mark::Function, self.function),
            (Mark::Parameter, self.parameter),
        ]
    }

    /// The tag that `text` begins with, and its bytes.
    fn mark(&self, text: &str) -> Option<(Mark, usize)> {
        let found = self.marks().into_iter().find(|(_, tag)| !tag.is_empty() && text.starts_with(tag));
        found.map(|(mark, tag)| (mark, tag.len()))
    }

    /// Whether a call of parameters of these names is read.
    pub(crate) fn reads<'a>(mut names: impl ExactSizeIterator<Item = &'a String>) -> bool {
        names.len() <= PARAMETERS_MAX && names.all(|name| is_name(name))
    }

    fn may_become_a_mark(&self, text: &str) -> bool {
        self.marks().iter().any(|(_, tag)| may_become(text, tag))
    }
}

/// Reads what stands from an opening tag on. `ended`: no more text comes.
pub(super) fn read(tags: &Tags, text: &str, ended: bool, functions: &Functions) -> Reading {
    let wrapped = !tags.open.is_empty() && text.starts_with(tags.open);
    let mut reader = Reader { tags, rest: text, wrapped, ended, functions };
    let mut calls = Vec::new();
    if wrapped {
        reader.rest = &text[tags.open.len()..];
    }
    loop {
        let before = text.len() - reader.rest.len();
        let done = |calls: Vec<Call>| if calls.is_empty() { Reading::Text } else { Reading::Calls(calls, before) };
        if !wrapped && !calls.is_empty() {
            return done(calls);
        }
        let blanks = reader.blank();
        if wrapped && reader.take(tags.close) {
            let bytes = text.len() - reader.rest.len();
            return if calls.is_empty() { Reading::Text } else { Reading::Calls(calls, bytes) };
        }
        if reader.rest.starts_with(tags.function) {
            match reader.function() {
                Ok(call) => calls.push(call),
                Err(Stop::More) => return Reading::More,
                Err(Stop::Text) => return done(calls),
            }
            continue;
        }
        if !calls.is_empty() && reader.stray_close() {
            continue;
        }
        let open = reader.rest.is_empty() || tags.may_become_a_mark(reader.rest) || reader.may_be_stray();
        return match ended || !open || blanks > SPACE_BYTES_MAX {
            true => done(calls),
            false => Reading::More,
        };
    }
}

struct Reader<'a> {
    tags: &'a Tags,
    rest: &'a str,
    wrapped: bool,
    ended: bool,
    functions: &'a Functions,
}

impl<'a> Reader<'a> {
    fn blank(&mut self) -> usize {
        let rest = self.rest.trim_start();
        let bytes = self.rest.len() - rest.len();
        self.rest = rest;
        bytes
    }

    fn take(&mut self, tag: &str) -> bool {
        let rest = self.rest.strip_prefix(tag).filter(|_| !tag.is_empty());
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes a closing tag of any name.
    fn stray_close(&mut self) -> bool {
        let tag = self.rest.strip_prefix("</").and_then(|rest| rest.split_once('>'));
        let found = tag.filter(|(name, _)| is_tag_name(name));
        self.rest = found.map_or(self.rest, |(_, rest)| rest);
        found.is_some()
    }

    fn may_be_stray(&self) -> bool {
        may_become(self.rest, "</")
            || self.rest.strip_prefix("</").is_some_and(|name| name.is_empty() || is_tag_name(name))
    }

    /// The text up to `end`, which is passed over.
    fn head(&mut self, end: &str) -> Result<&'a str, Stop> {
        match self.rest.find(end) {
            Some(at) if at <= HEAD_BYTES_MAX => {
                let head = &self.rest[..at];
                self.rest = &self.rest[at + end.len()..];
                Ok(head)
            }
            None if self.rest.len() <= HEAD_BYTES_MAX && !self.ended => Err(Stop::More),
            _ => Err(Stop::Text),
        }
    }

    fn function(&mut self) -> Result<Call, Stop> {
        self.take(self.tags.function);
        let name = match self.tags.function_head_end {
            "" => self.bare_name()?,
            end => self.head(end)?,
        };
        let name = self.functions.named(name).ok_or(Stop::Text)?;
        let schema = self.functions.get(name).ok_or(Stop::Text)?;
        let mut arguments = Map::new();
        loop {
            self.blank();
            if self.take(self.tags.function_end) {
                break;
            }
            let parameter = self.rest.starts_with(self.tags.parameter);
            let over =
                self.wrapped && (self.rest.starts_with(self.tags.close) || self.rest.starts_with(self.tags.function));
            match (parameter, over) {
                (true, _) => self.parameter(schema, &mut arguments)?,
                (_, true) => break,
                // Closed twice.
                _ if !arguments.is_empty() && self.take(self.tags.parameter_end) => {}
                _ if !self.ended && (self.rest.is_empty() || self.tags.may_become_a_mark(self.rest)) => {
                    return Err(Stop::More);
                }
                _ => return Err(Stop::Text),
            }
        }
        Ok(Call { name: name.to_owned(), arguments })
    }

    /// A name that ends with its line or before the next tag.
    fn bare_name(&mut self) -> Result<&'a str, Stop> {
        self.blank();
        let Some(at) = self.rest.find(['\n', '<']) else {
            let may = self.rest.is_empty() || self.functions.begins(self.rest.trim_end());
            return Err(if may && !self.ended { Stop::More } else { Stop::Text });
        };
        let name = &self.rest[..at];
        self.rest = &self.rest[at..];
        Ok(name)
    }

    fn parameter(&mut self, schema: Schema<'_>, arguments: &mut Map<String, serde_json::Value>) -> Result<(), Stop> {
        self.take(self.tags.parameter);
        let head = self.head(self.tags.parameter_head_end)?.trim();
        // A quoted name may be followed by attributes.
        let quoted = head.strip_prefix('"').and_then(|rest| rest.split_once('"'));
        let (key, attributes) = quoted.unwrap_or((head, ""));
        if !self.tags.value.is_empty() {
            self.blank();
            if !self.take(self.tags.value) {
                let may = self.rest.is_empty() || may_become(self.rest, self.tags.value);
                return Err(if may && !self.ended { Stop::More } else { Stop::Text });
            }
        }
        let own = schema.property(key).or_else(|| schema.unlisted(key));
        let new = |name: &str| name != key && !arguments.contains_key(name) && schema.property(name).is_some();
        let structured =
            own.and_then(Schema::kinds).is_some_and(|kinds| kinds.has(Kinds::ARRAY) || kinds.has(Kinds::OBJECT));
        let text = match structured.then(|| self.json_end()) {
            Some(Some(end)) => end?,
            _ => self.value(&new)?,
        };
        let value = match attributes {
            a if a.contains("string=\"true\"") => serde_json::Value::String(text.to_owned()),
            a if a.contains("string=\"false\"") => {
                super::shape::value(text.trim(), false).unwrap_or_else(|| typed(text, own))
            }
            _ => typed(text, own),
        };
        let differs = arguments.get(key).is_some_and(|before| *before != value);
        arguments.insert(key.to_owned(), value);
        if differs || !is_name(key) || arguments.len() > PARAMETERS_MAX { Err(Stop::Text) } else { Ok(()) }
    }

    /// A JSON array or object up to its closing tag: what stands in its strings is no markup. `None`: it is none.
    fn json_end(&mut self) -> Option<Result<&'a str, Stop>> {
        if !self.rest.trim_start().starts_with(['{', '[']) {
            return None;
        }
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<serde::de::IgnoredAny>();
        match values.next()? {
            Ok(_) => {
                let rest = &self.rest[values.byte_offset()..];
                let blanks = rest.len() - rest.trim_start().len();
                let at = self.rest.len() - rest.len() + blanks;
                match rest.trim_start() {
                    rest if rest.starts_with(self.tags.parameter_end) => {
                        Some(Ok(self.end(at, at + self.tags.parameter_end.len())))
                    }
                    rest if !self.ended && (rest.is_empty() || may_become(rest, self.tags.parameter_end)) => {
                        Some(Err(Stop::More))
                    }
                    _ => None,
                }
            }
            Err(error) if error.is_eof() && !self.ended => Some(Err(Stop::More)),
            Err(_) => None,
        }
    }

    /// A value; what follows its end comes next. It ends at its closing tag, markup that is balanced aside; where that is
    /// missing, before a line that begins another parameter (`new`), or at the end of the function. At the end of the
    /// call alone it ends only if nothing else can come.
    fn value(&mut self, new: &dyn Fn(&str) -> bool) -> Result<&'a str, Stop> {
        let text = self.rest;
        let (mut parameters, mut functions, mut calls) = (0usize, 0usize, 0usize);
        // Where it ends if its own closing tag is missing: before another parameter, and at a tag that looked like nested.
        let (mut implied, mut nested) = (None, None);
        let mut last = None;
        let mut at = 0;
        while let Some(next) = text[at..].find('<') {
            at += next;
            let Some((mark, bytes)) = self.tags.mark(&text[at..]) else {
                at += 1;
                continue;
            };
            let behind = at + bytes;
            match mark {
                Mark::Parameter => {
                    let line = text[..at].trim_end_matches([' ', '\t']).ends_with('\n') || !self.tags.lines;
                    let head = &text[behind..text.floor_char_boundary(behind + HEAD_BYTES_MAX)];
                    let name = head.split_once(self.tags.parameter_head_end).map_or("", |(name, _)| name.trim());
                    if implied.is_none() && line && parameters + functions + calls == 0 && new(name.trim_matches('"')) {
                        implied = Some(at);
                    }
                    parameters += 1;
                }
                Mark::ParameterEnd => {
                    let follows = self.follows(&text[behind..]);
                    match parameters {
                        0 if follows == Follows::Structure => return Ok(self.end(at, behind)),
                        0 if follows == Follows::Unknown => return Err(Stop::More),
                        0 => {}
                        _ => {
                            parameters -= 1;
                            if follows == Follows::Structure {
                                nested = nested.or(Some((at, behind)));
                            }
                        }
                    }
                }
                Mark::Function => functions += 1,
                Mark::FunctionEnd if functions > 0 => functions -= 1,
                Mark::FunctionEnd => match self.ends_function(&text[behind..]) {
                    Follows::Structure => return Ok(self.fall_back(implied, nested, at)),
                    Follows::Unknown => return Err(Stop::More),
                    Follows::Text => {}
                },
                Mark::Open => calls += 1,
                Mark::Close if calls > 0 => calls -= 1,
                Mark::Close => last = last.or(Some(at)),
            }
            at = behind;
        }
        match last {
            _ if !self.ended => Err(Stop::More),
            Some(last) => Ok(self.fall_back(implied, nested, last)),
            None => Err(Stop::Text),
        }
    }

    /// The value of which its own closing tag is missing.
    fn fall_back(&mut self, implied: Option<usize>, nested: Option<(usize, usize)>, last: usize) -> &'a str {
        let text = self.rest;
        let blank = |from: usize, to: usize| text.get(from..to).is_some_and(|between| between.trim().is_empty());
        match (implied, nested) {
            // It was closed right before the other parameter: what looked like a tag in it was text.
            (Some(next), Some((at, behind))) if blank(behind, next) => self.end(at, behind),
            (Some(at), _) => self.end(at, at),
            (None, Some((at, behind))) => self.end(at, behind),
            (None, None) => self.end(last, last),
        }
    }

    fn end(&mut self, at: usize, behind: usize) -> &'a str {
        let value = &self.rest[..at];
        self.rest = &self.rest[behind..];
        if !self.tags.lines {
            return value;
        }
        let value = value.strip_prefix('\n').unwrap_or(value);
        value.strip_suffix('\n').unwrap_or(value)
    }

    /// What follows the end of a parameter.
    fn follows(&self, rest: &str) -> Follows {
        let rest = rest.trim_start();
        match self.tags.mark(rest) {
            Some((Mark::Open, _)) => Follows::Text,
            Some(_) => Follows::Structure,
            None if self.ended => Follows::Text,
            None if rest.is_empty() || self.tags.may_become_a_mark(rest) => Follows::Unknown,
            None => Follows::Text,
        }
    }

    /// Whether the function ends at its closing tag, which `rest` follows, although a value in it has no end.
    fn ends_function(&self, rest: &str) -> Follows {
        let rest = rest.trim_start();
        let known = self
            .tags
            .mark(rest)
            .is_some_and(|(mark, _)| matches!(mark, Mark::Close | Mark::Function | Mark::FunctionEnd));
        match () {
            () if known || !self.wrapped || (self.ended && rest.is_empty()) => Follows::Structure,
            () if !self.ended && (rest.is_empty() || self.tags.may_become_a_mark(rest)) => Follows::Unknown,
            () => Follows::Text,
        }
    }
}

fn is_tag_name(name: &str) -> bool {
    name.len() <= 32 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_:-".contains(&b))
}
