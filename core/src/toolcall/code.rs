//! Calls as a programming language writes them: `f(s="x", i=7)`, alone or in a list, and `call:f{s:…,i:7}`.

use serde_json::Map;

use super::DEPTH_MAX;
use super::literal::{self, Literal};
use super::shape::{Balance, Call, End, Functions, Reading};

/// How a family writes such calls.
#[derive(Debug, PartialEq)]
pub struct Code {
    /// The marks around them; empty: an answer that begins with them.
    pub open: &'static str,
    pub close: &'static str,
    /// Before a name, where arguments stand in braces; empty: in round brackets.
    pub call: &'static str,
}

/// Reads what stands from the opening mark on.
pub(super) fn read(form: &Code, text: &str, ended: bool, functions: &Functions, balance: &mut Balance) -> Reading {
    let more = if ended { Reading::Text } else { Reading::More };
    let body = text[form.open.len()..].trim_start();
    let from = text.len() - body.len();
    if !could_begin(form, body, functions) {
        return Reading::Text;
    }
    let to = match form.call {
        "" => match body.find(['[', '(']).map(|at| balance.end(text, from + at, "")) {
            Some(End::At(to)) => to,
            Some(End::Never) => return Reading::Text,
            _ => return more,
        },
        _ => match closed(&text[from..], form.close) {
            Some(at) => from + at,
            None => return more,
        },
    };
    let calls = match form.call {
        "" => in_brackets(&text[from..to], functions),
        call => in_braces(&text[from..to], call, functions).map(|call| vec![call]),
    };
    calls.map_or(Reading::Text, |calls| Reading::Calls(calls, to))
}

/// Where the closing mark stands; one inside a string is none.
fn closed(text: &str, close: &str) -> Option<usize> {
    let (mut from, mut quotes) = (0, 0);
    for (at, _) in text.match_indices(close) {
        quotes += text[from..at].matches(literal::QUOTE).count();
        if quotes % 2 == 0 {
            return Some(at);
        }
        from = at;
    }
    None
}

/// Whether `body` names a function, or may come to.
fn could_begin(form: &Code, body: &str, functions: &Functions) -> bool {
    let body = match form.call {
        "" => body.strip_prefix('[').unwrap_or(body).trim_start(),
        call => match body.strip_prefix(call) {
            Some(rest) => rest,
            None => return call.starts_with(body),
        },
    };
    let end = body.find(['(', '{']);
    match end {
        Some(end) => functions.named(&body[..end]).is_some(),
        None => functions.begins(body.trim_end()),
    }
}

fn in_brackets(text: &str, functions: &Functions) -> Option<Vec<Call>> {
    let mut literal = Literal::new(text);
    let listed = literal.take("[");
    let mut calls = Vec::new();
    loop {
        let name = functions.named(literal.name()?)?.to_owned();
        literal.take("(").then_some(())?;
        let mut arguments = Map::new();
        while !literal.take(")") {
            let key = literal.name()?.to_owned();
            literal.take("=").then_some(())?;
            arguments.insert(key, literal.value()?);
            if !literal.take(",") {
                literal.take(")").then_some(())?;
                break;
            }
        }
        calls.push(Call { name, arguments });
        if !(listed && literal.take(",")) {
            break;
        }
    }
    let closed = !listed || literal.take("]");
    (closed && literal.rest().trim().is_empty()).then_some(calls)
}

fn in_braces(text: &str, call: &str, functions: &Functions) -> Option<Call> {
    let mut literal = Literal::new(text);
    literal.take(call).then_some(())?;
    let name = functions.named(literal.name()?)?.to_owned();
    let arguments = literal.object(DEPTH_MAX - 1)?;
    literal.rest().trim().is_empty().then_some(Call { name, arguments })
}
