//! No answer violates its schema: random schemas, random walks through what is allowed, and a validator that knows
//! nothing of how the answer was made.

use std::thread;

use serde_json::{Value, json};

use super::author::{Author, Random};
use super::judged::{readable, validator};
use super::{Bytes, END, WIDTH, follow};
use crate::engine::grammar::vet::STACK_BYTES;
use crate::engine::grammar::wide::holds_wide;
use crate::engine::grammar::{Compiler, Grammar, GrammarError, NotEnforced, prepare};
use crate::engine::protocol::Channel;

/// Bytes of an answer from which on a walk makes for its end, and where it gives up.
const HASTE_BYTES: usize = 80;
const WALK_BYTES_MAX: usize = 600;

/// A whole answer, by chance; none where the walk gets too long.
pub(super) fn walked(random: &mut Random, constraint: &mut crate::engine::grammar::Constraint) -> Option<String> {
    let mut text = Vec::new();
    while !constraint.complete() {
        let mut row = vec![0.0; WIDTH];
        if let Err(error) = constraint.mask(Channel::Answer, &mut row) {
            // A form may be too complex for the library, but never end nowhere.
            let so_far = String::from_utf8_lossy(&text);
            assert!(!error.to_string().contains("NoExtension"), "nothing can follow {so_far}: {error}");
            return None;
        }
        let open: Vec<u32> = (0..END).filter(|id| row[*id as usize] == 0.0).collect();
        let may_end = row[END as usize] == 0.0;
        let hasty = text.len() > HASTE_BYTES;
        if may_end && (open.is_empty() || hasty || random.one_in(4)) {
            break;
        }
        assert!(!open.is_empty(), "nothing can follow {}", String::from_utf8_lossy(&text));
        let closing: Vec<u32> = open.iter().copied().filter(|id| b"\"}],:".contains(&(*id as u8))).collect();
        let plain: Vec<u32> = open.iter().copied().filter(|id| (32..127).contains(id)).collect();
        let from = match (hasty || random.one_in(8), plain.is_empty() || random.one_in(16)) {
            (true, _) if !closing.is_empty() => &closing,
            (_, true) => &open,
            _ => &plain,
        };
        let id = *random.of(from);
        constraint.took(Channel::Answer, id, false).unwrap();
        text.push(id as u8);
        if text.len() > WALK_BYTES_MAX {
            return None;
        }
    }
    Some(String::from_utf8(text).unwrap())
}

/// What was made of the schemas of one run.
#[derive(Debug, Default)]
struct Tally {
    schemas: usize,
    refused: usize,
    answers: usize,
    violations: Vec<String>,
}

fn examine(schema: &Value, random: &mut Random, compiler: &mut Compiler, tally: &mut Tally) {
    tally.schemas += 1;
    let grammar = Grammar::Json(schema.clone());
    if let Err(error) = compiler.constraint(&grammar) {
        tally.refused += 1;
        let words = error.to_string();
        assert!(!words.contains("panic") && !words.ends_with(':') && words.len() > 20, "{words}: {schema}");
        return left_to_the_model(schema, &error, compiler);
    }
    let Some(validator) = validator(schema) else { panic!("taken, and no schema: {schema}") };
    for _ in 0..4 {
        let walked = walked(random, &mut compiler.constraint(&grammar).unwrap());
        let Some((text, value)) = walked.and_then(|text| Some((text.clone(), readable(&text)?))) else { continue };
        tally.answers += 1;
        let violated = validator.iter_errors(&value).next().map(|e| e.to_string());
        tally.violations.extend(violated.map(|violated| format!("{violated}: {text} of {schema}")));
    }
}

/// Without `strict` what is left out is said, and what is left can be compiled, or the error is another one.
fn left_to_the_model(schema: &Value, strict: &GrammarError, compiler: &mut Compiler) {
    let Ok(left) = prepare(schema, false) else { return };
    // Multiples that cannot be joined are left to the model as well.
    let of_a_keyword = match strict {
        GrammarError::Heavy(_) => !left.not_enforced.is_empty(),
        strict => matches!(strict, GrammarError::At { .. }),
    };
    assert_eq!(of_a_keyword, !left.not_enforced.is_empty(), "{strict}: {schema}");
    let mut paths: Vec<&String> = left.not_enforced.iter().map(|NotEnforced { path, .. }| path).collect();
    paths.dedup();
    assert_eq!(paths.len(), left.not_enforced.len());
    let grammar = Grammar::Json(left.schema);
    match compiler.constraint(&grammar) {
        Ok(_) => {}
        Err(GrammarError::At { .. }) => panic!("{grammar:?}: {schema}"),
        Err(_) => return,
    }
    // Beside numbers beyond doubles the names of a schema alone are offered.
    if holds_wide(schema) {
        return;
    }
    // What satisfies the whole satisfies what is left of it.
    let Some(validator) = validator(schema) else { panic!("taken, and no schema: {schema}") };
    for value in instances().into_iter().filter(|value| validator.is_valid(value)) {
        let mut constraint = compiler.constraint(&grammar).unwrap();
        let (rest, may_end, _) = follow(&mut constraint, &value.to_string());
        assert!(rest.is_empty() && may_end, "{value} of {schema}: {grammar:?}");
    }
}

/// Small values. Objects have one name at most: in an answer names come in the order of the schema.
fn instances() -> Vec<Value> {
    let plain = [json!(null), json!(true), json!(7), json!("ab"), json!("word"), json!([]), json!({})];
    let names = ["a", "b", "kind", "word", "_"];
    let named = names.into_iter().flat_map(|name| plain.clone().map(|value| json!({name: value})));
    let listed = plain.clone().map(|value| json!([value]));
    plain.iter().cloned().chain(named).chain(listed).collect()
}

fn run(seeds: std::ops::Range<u64>) {
    let work = move || {
        let mut compiler = Compiler::new(std::sync::Arc::new(Bytes { template: None }), None);
        let mut tally = Tally::default();
        for seed in seeds {
            let mut random = Random(seed);
            let schema = Author { random: &mut random, simple: false, dangerous: false }.whole();
            examine(&schema, &mut random, &mut compiler, &mut tally);
        }
        assert!(
            tally.violations.is_empty(),
            "{} violate: {:#?}",
            tally.violations.len(),
            &tally.violations[..tally.violations.len().min(9)]
        );
        assert!(tally.refused * 10 < tally.schemas * 8, "most are refused: {tally:?}");
        assert!(tally.answers > tally.schemas / 2, "few answers: {tally:?}");
    };
    thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap().join().unwrap();
}

#[test]
fn an_answer_that_was_begun_can_be_ended() {
    let unwritable = json!({"type": "string", "pattern": "^[\\x01-\\x07]+$"});
    let of = |schema: &Value, required: &[&str]| json!({"type": "object", "properties": {"a": schema, "b": {"type": "null"}}, "required": required});
    let never = json!({"type": "integer", "minimum": 1, "maximum": 5, "multipleOf": 7});
    let chain = json!({"$ref": "#/$defs/c"});
    let with_chain = |mut schema: Value| {
        schema["$defs"] = json!({"c": {"type": "object", "properties": {"next": chain}, "required": ["next"]}});
        schema
    };
    for (schema, refused) in [
        (unwritable.clone(), true),
        (of(&unwritable, &["a"]), true),
        (of(&unwritable, &["b"]), false),
        (json!({"anyOf": [unwritable, {"type": "null"}]}), false),
        (json!({"type": "array", "items": unwritable}), false),
        (json!({"type": "array", "items": unwritable, "minItems": 1}), true),
        (never.clone(), true),
        (of(&never, &["a"]), true),
        (of(&never, &[]), false),
        (json!({"type": ["integer", "null"], "minimum": 1, "maximum": 5, "multipleOf": 7}), false),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}}, "patternProperties": {"^a$": {}}, "additionalProperties": false}),
            false,
        ),
        (json!({"type": "object", "patternProperties": {"": {"type": "null"}}, "required": ["a"]}), false),
        (with_chain(chain.clone()), true),
        (with_chain(of(&chain, &["a"])), true),
        (with_chain(of(&chain, &["b"])), false),
        (with_chain(json!({"type": "object", "additionalProperties": chain})), false),
        (json!({"type": "array", "items": {"$ref": "#/items"}}), false),
        (json!({"type": "array", "items": {"$ref": "#/$defs/s"}, "$defs": {"s": {"$ref": "#/$defs/s"}}}), false),
    ] {
        let mut compiler = Compiler::new(std::sync::Arc::new(Bytes { template: None }), None);
        let made = compiler.constraint(&Grammar::Json(schema.clone())).map(drop).map_err(|error| error.to_string());
        assert_eq!(made.is_err(), refused, "{made:?}: {schema}");
        assert!(made.is_ok() || made.is_err_and(|words| words.len() > 20));
        // A walk fails where it cannot go on.
        for seed in 0..if refused { 0 } else { 24 } {
            walked(&mut Random(seed), &mut compiler.constraint(&Grammar::Json(schema.clone())).unwrap());
        }
    }
}

#[test]
fn no_answer_violates_its_schema() {
    run(0..400);
}

/// `cargo test -p chimere-core --lib -- --ignored no_answer_of_many`
#[test]
#[ignore = "minutes"]
fn no_answer_of_many_violates_its_schema() {
    run(1_000..31_000);
}
