//! Numbers of many digits: where they end, and what is too large to be followed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{END, allowed, compiler, follow, takes};
use crate::engine::grammar::{Compiler, Grammar};
use crate::engine::protocol::Channel;
use crate::engine::vocab::{TokenKind, Vocab, VocabError};

/// Whatever compiles can be followed, digit by digit, to wherever it goes.
#[test]
fn what_is_too_large_to_be_followed_is_refused_before_a_reply() {
    let steps = json!([{"multipleOf": 50_000}, {"multipleOf": 30_000}]);
    let mut refused = 0;
    for schema in [
        json!({"type": "number", "exclusiveMaximum": 1_000_000, "anyOf": steps}),
        json!({"type": "number", "anyOf": steps}),
        json!({"type": "integer", "maximum": 1_000_000, "anyOf": steps}),
        json!({"type": "integer", "minimum": 0, "maximum": 9_000_000, "multipleOf": 70_001}),
        json!({"type": "number", "minimum": 0.5, "multipleOf": 65_537}),
        json!({"type": "integer", "minimum": 0, "maximum": 60_000, "multipleOf": 1_250}),
    ] {
        let of =
            |schema: &Value| Grammar::Json(json!({"type": "object", "properties": {"a": schema}, "required": ["a"]}));
        let mut compiler = compiler(false);
        if let Err(error) = compiler.constraint(&of(&schema)) {
            let error = error.to_string();
            assert!(error.contains("`multipleOf`") && !error.contains("fuel"), "{error}: {schema}");
            refused += 1;
            continue;
        }
        for seed in 0..20u64 {
            let mut constraint = compiler.constraint(&of(&schema)).unwrap();
            assert_eq!(follow(&mut constraint, r#"{"a": "#).0, "");
            for step in 0..30 {
                let row = allowed(&mut constraint);
                let digits: Vec<u32> = (48..58).filter(|id| row[*id as usize] != f32::NEG_INFINITY).collect();
                let Some(id) = digits.get((seed * 7 + step * (seed + 3)) as usize % digits.len().max(1)) else { break };
                constraint.took(Channel::Answer, *id, false).unwrap();
            }
        }
    }
    assert!((1..6).contains(&refused), "{refused}");
}

#[test]
fn a_number_ends_where_its_digits_no_longer_count() {
    let mut longest = [0; 3];
    for schema in [
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"type": ["number", "null"], "minimum": 0.001, "maximum": 0.002}),
        json!({"type": "integer", "minimum": 5}),
        json!({}),
    ] {
        for favoured in [b'1', b'.', b'0', b'e'] {
            let text = longest_of(&schema, favoured);
            let (value, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, ""));
            let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).count();
            let significant = digits(value.trim_start_matches(['0', '.']));
            let parts = match value.contains('.') {
                true => [0, significant, digits(exponent)],
                false => [significant, 0, digits(exponent)],
            };
            let within = parts.iter().zip([40, 17, 3]).all(|(own, most)| *own <= most);
            assert!(within, "{parts:?}: {text} of {schema}");
            (0..3).for_each(|at| longest[at] = parts[at].max(longest[at]));
        }
    }
    assert_eq!(longest, [40, 17, 3], "each limit is met");
    let duration = longest_of(&json!({"format": "duration", "type": "string"}), b'1');
    let digits = duration.bytes().filter(u8::is_ascii_digit).count();
    assert!((1..=12).contains(&digits), "{duration}");
    // What a schema asks for is written all the same, and texts may hold any digits.
    let long = "7".repeat(60);
    for (schema, text) in [
        (json!({"const": 0.123_456_789_012_345_68}), "0.12345678901234568".to_owned()),
        (json!({"type": "string"}), format!("\"{long}\"")),
        (json!({"type": "integer"}), u128::MAX.to_string()),
        (json!({"type": "integer"}), i64::MIN.to_string()),
        (json!({"type": "number"}), format!("{:e}", f64::MAX)),
        (json!({"type": "number"}), format!("{:e}", f64::MIN_POSITIVE)),
    ] {
        assert!(takes(&Grammar::Json(schema.clone()), false, &text), "{text} of {schema}");
    }
    // So near to an open bound that a reader has the bound itself.
    for schema in [
        json!({"type": ["number", "null"], "exclusiveMaximum": 1}),
        json!({"exclusiveMaximum": 1}),
        json!({"type": "number", "allOf": [{"exclusiveMaximum": 1}]}),
        json!({"type": "number", "anyOf": [{"exclusiveMaximum": 1}, {"minimum": 5}]}),
    ] {
        let grammar = Grammar::Json(schema);
        assert!(takes(&grammar, false, "0.999999999999999"), "{grammar:?}");
        assert!(!takes(&grammar, false, "0.99999999999999999"), "{grammar:?}");
    }
}

/// A reader follows so many levels. What a schema asks for is written all the same.
#[test]
fn what_nests_deeper_than_a_reader_follows_is_not_begun() {
    for (schema, text) in [
        (json!({"$ref": "#/$defs/s", "$defs": {"s": {"type": "array", "items": {"$ref": "#/$defs/s"}}}}), "["),
        (json!({}), r#"{"a": "#),
    ] {
        let mut constraint = compiler(false).constraint(&Grammar::Json(schema.clone())).unwrap();
        let mut opened = 0;
        while opened < 100 && follow(&mut constraint, text).0.is_empty() {
            opened += 1;
        }
        assert_eq!(opened, 56, "{schema}");
    }
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    assert!(takes(&Grammar::Json(json!({"const": deep})), false, &deep.to_string()));
}

/// A vocabulary of code: tokens of many brackets.
struct Brackets;

const OF_BRACKETS: [&str; 6] = ["[[[[[[[[", "[[[[", "\":{\"", "\":[[", "\":[\"[[[[[[", "{\"\":{\""];

impl Vocab for Brackets {
    fn len(&self) -> usize {
        257 + OF_BRACKETS.len()
    }
    fn encode(&self, text: &str, _: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }
    fn bytes(&self, id: u32) -> Vec<u8> {
        match id {
            0..256 => vec![id as u8],
            256 => Vec::new(),
            _ => OF_BRACKETS[id as usize - 257].as_bytes().to_vec(),
        }
    }
    fn name(&self, id: u32) -> String {
        if id == END { "<|end|>".to_owned() } else { String::from_utf8_lossy(&self.bytes(id)).into_owned() }
    }
    fn kind(&self, id: u32) -> TokenKind {
        if id == END { TokenKind::Control } else { TokenKind::Normal }
    }
    fn special(&self, _: &str) -> Option<u32> {
        None
    }
    fn specials(&self) -> Vec<(u32, String)> {
        Vec::new()
    }
    fn ends(&self) -> &[u32] {
        &[END]
    }
    fn bos(&self) -> Option<u32> {
        None
    }
    fn template(&self) -> Option<String> {
        None
    }
}

#[test]
fn no_token_of_many_brackets_leads_deeper_than_a_reader_follows() {
    let schema = json!({"$ref": "#/$defs/s", "$defs": {"s": {"type": "array", "items": {"$ref": "#/$defs/s"}}}});
    for begun in 0..8 {
        let mut constraint =
            Compiler::new(Arc::new(Brackets), None).constraint(&Grammar::Json(schema.clone())).unwrap();
        let mut take = |id: u32| {
            let row = allowed(&mut constraint);
            let good = row[id as usize] != f32::NEG_INFINITY;
            if good {
                constraint.took(Channel::Answer, id, false).unwrap();
            }
            good
        };
        let mut depth = 0;
        while depth < begun && take(u32::from(b'[')) {
            depth += 1;
        }
        while take(257) {
            depth += 8;
        }
        assert!(depth > 48 && depth <= 56, "{depth}");
        if take(258) {
            depth += 4;
        }
        while take(u32::from(b'[')) {
            depth += 1;
        }
        assert_eq!(depth, 56);
    }
}

/// A token may close a name and open what stands under it.
#[test]
fn no_token_that_ends_a_text_leads_deeper_than_a_reader_follows() {
    let token = |text: &str| 257 + OF_BRACKETS.iter().position(|own| *own == text).unwrap() as u32;
    let byte = |byte: u8| u32::from(byte);
    let named = [byte(b'{'), byte(b'"')];
    let escaped = [byte(b'{'), byte(b'"'), byte(b'\\'), byte(b'"')];
    for (begin, again, levels, most) in [
        (&named[..], vec![token("\":{\"")], 1, 56),
        (&escaped[..], vec![token("\":{\""), byte(b'\\'), byte(b'n')], 1, 56),
        (&named[..], vec![token("\":[["), byte(b'{'), byte(b'"')], 3, 56),
        // Brackets in the text that it begins open nothing.
        (&named[..], vec![token("\":[\"[[[[[["), byte(b'"'), byte(b','), byte(b'{'), byte(b'"')], 2, 56),
        (&[], vec![token("{\"\":{\""), byte(b'"'), byte(b':')], 2, 56),
    ] {
        let mut constraint = Compiler::new(Arc::new(Brackets), None).constraint(&Grammar::Json(json!({}))).unwrap();
        let (mut text, mut written) = (Vec::new(), 0);
        for id in begin.iter().chain(again.iter().cycle()).take(2000) {
            let row = allowed(&mut constraint);
            if row[*id as usize] == f32::NEG_INFINITY {
                break;
            }
            constraint.took(Channel::Answer, *id, false).unwrap();
            text.extend(Brackets.bytes(*id));
            written += 1;
        }
        let text = String::from_utf8(text).unwrap();
        let depth = depth(&text);
        assert!(written < 1000 && depth <= most && depth + levels > most, "{depth}: {text}");
    }
}

/// Levels that are opened outside of texts, at most.
fn depth(text: &str) -> usize {
    let (mut depth, mut most, mut within, mut escaped) = (0usize, 0, false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if within => escaped = true,
            '"' => within = !within,
            '{' | '[' if !within => depth += 1,
            '}' | ']' if !within => depth -= 1,
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

/// What is written where digits are always preferred to an end, and one character to all others.
fn longest_of(schema: &Value, favoured: u8) -> String {
    let mut constraint = compiler(false).constraint(&Grammar::Json(schema.clone())).unwrap();
    let mut text = String::new();
    while !constraint.complete() && text.len() <= 60 {
        let row = allowed(&mut constraint);
        let is_allowed = |id: &u8| row[usize::from(*id)] != f32::NEG_INFINITY;
        let Some(id) = [favoured, b'1', b'0', b'2', b'"', b'P'].into_iter().find(is_allowed) else { break };
        constraint.took(Channel::Answer, u32::from(id), false).unwrap();
        text.push(char::from(id));
    }
    assert!(text.len() <= 60, "{text} of {schema} does not end");
    text
}
