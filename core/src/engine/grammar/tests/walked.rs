//! Whatever the grammar of calls can produce, the reader reads back. Random functions, random walks through what is
//! allowed, every family, calls that are forced and calls of the model's own choice. What is read is compared with a plain
//! reading of the family's marks, and with a validator.

use std::sync::Arc;
use std::thread;

use serde_json::{Map, Value, json};

use super::author::{Author, Random};
use super::judged::{readable, validator};
use crate::engine::grammar::agreement::{Marked, model, read, takes};
use crate::engine::grammar::vet::STACK_BYTES;
use crate::engine::grammar::{Calls, Compiler, Constraint, Function, Grammar, holds_calls, prepare};
use crate::engine::protocol::Channel;
use crate::toolcall::{Format, Json, Named, Shape, Tags};
use crate::whole;

/// Bytes of an answer from which on a walk makes for its end, and where it gives up.
const HASTE_BYTES: usize = 240;
const WALK_BYTES_MAX: usize = 2_000;
const END: usize = 256;

const WITHIN_TAGS: Json = Json { open: "", close: "", pad: "", list: false, name: "name", arguments: "arguments" };

/// What may be said beside calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    Forced,
    Own,
    OrAnswer,
}

/// Names that a reader or a family could take for its own, and names that begin others.
const FUNCTION_NAMES: [&str; 20] = [
    "tool_0",
    "get-it",
    "get",
    "get_all",
    "name",
    "arguments",
    "parameters",
    "function",
    "functions",
    "tool_name",
    "tool_call",
    "json",
    "null",
    "0",
    "-",
    "_",
    "__proto__",
    "constructor",
    "f",
    "ff",
];
/// Schemas that are written for one walk, until one can be enforced.
const DRAFTS_MAX: usize = 8;

/// Functions, all of whose schemas can be enforced as far as `prepare` knows. What cannot is left out of them.
fn functions(random: &mut Random) -> Vec<Function> {
    let first = *random.of(&FUNCTION_NAMES);
    let second = *random.of(&FUNCTION_NAMES);
    let names = if second == first || random.one_in(2) { vec![first] } else { vec![first, second] };
    let one = |name: &str| {
        let schema = (0..DRAFTS_MAX).find_map(|_| {
            let (simple, dangerous) = (random.one_in(2), !random.one_in(3));
            let schema = Author { random: &mut *random, simple, dangerous }.of_a_function();
            Some(prepare(&schema, false).ok()?.schema)
        });
        Function { name: name.to_owned(), parameters: schema.expect("a sound schema"), strict: true }
    };
    names.into_iter().map(one).collect()
}

/// A whole answer, by chance; none where the walk gets too long.
fn walk(random: &mut Random, vocab: &Marked, constraint: &mut Constraint, ends: &[&str]) -> Option<String> {
    let mut text = Vec::new();
    let mut row = vec![0.0; END + 1 + vocab.specials.len()];
    while !constraint.complete() {
        row.fill(0.0);
        constraint.mask(Channel::Answer, &mut row).ok()?;
        let open: Vec<usize> = (0..END).filter(|id| row[*id] == 0.0).collect();
        let marks: Vec<usize> = (END + 1..row.len()).filter(|id| row[*id] == 0.0).collect();
        let hasty = text.len() > HASTE_BYTES;
        if row[END] == 0.0 && (open.len() + marks.len() == 0 || hasty || random.one_in(4)) {
            break;
        }
        assert!(open.len() + marks.len() > 0, "nothing can follow {}", String::from_utf8_lossy(&text));
        // The rest of an end that was begun, or its beginning.
        let begun = |end: &&str| {
            let end = end.as_bytes();
            (0..end.len()).rev().find(|at| text.ends_with(&end[..*at]) && row[usize::from(end[*at])] == 0.0)
        };
        let towards = ends.iter().filter_map(|end| begun(end).map(|at| (at, usize::from(end.as_bytes()[at])))).max();
        let closing: Vec<usize> = open.iter().copied().filter(|id| b"\"}],:".contains(&(*id as u8))).collect();
        let plain: Vec<usize> = open.iter().copied().filter(|id| (32..127).contains(id)).collect();
        let within = towards.is_some_and(|(at, _)| at > 0) && !random.one_in(4);
        let id = match (hasty || random.one_in(8), towards) {
            _ if !marks.is_empty() && (hasty || open.is_empty() || random.one_in(3)) => *random.of(&marks),
            (hasty, Some((_, id))) if hasty && closing.is_empty() || within => id,
            (true, _) if !closing.is_empty() => *random.of(&closing),
            _ if plain.is_empty() || random.one_in(16) => *random.of(&open),
            _ => *random.of(&plain),
        };
        constraint.took(Channel::Answer, id as u32, false).unwrap();
        match id.checked_sub(END + 1) {
            Some(at) => text.extend(vocab.specials[at].as_bytes()),
            None => text.push(id as u8),
        }
        if text.len() > WALK_BYTES_MAX {
            return None;
        }
    }
    String::from_utf8(text).ok()
}

/// A plain reading of what the grammar writes.
struct Plain<'a> {
    rest: &'a str,
}

type Read = (String, Value);

impl<'a> Plain<'a> {
    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn must(&mut self, text: &str) {
        assert!(self.take(text), "{text:?} must come next: {:?}", self.rest);
    }

    fn json(&mut self) -> Value {
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<serde::de::IgnoredAny>();
        values.next().expect("a value").unwrap_or_else(|e| panic!("{e}: {}", self.rest));
        let (own, rest) = self.rest.split_at(values.byte_offset());
        self.rest = rest;
        whole::read(own).unwrap()
    }

    fn calls(&mut self, format: &Format, functions: &[Function]) -> Vec<Read> {
        let mut calls = Vec::new();
        match format.first() {
            Shape::Json(form) if form.list => {
                self.must(&format!("{}{}", form.open, form.pad));
                let Value::Array(items) = self.json() else { panic!("no list") };
                calls.extend(items.into_iter().map(|item| call_of(form, item)));
                self.must(&format!("{}{}", form.pad, form.close));
            }
            Shape::Json(form) => {
                while calls.is_empty() || self.take("\n") {
                    self.must(&format!("{}{}", form.open, form.pad));
                    let value = self.json();
                    calls.push(call_of(form, value));
                    self.must(&format!("{}{}", form.pad, form.close));
                }
            }
            Shape::Named(form) => {
                self.must(form.open);
                while !self.rest.is_empty() && (calls.is_empty() || form.close.is_empty() || !self.take(form.close)) {
                    calls.push(self.named(form, calls.is_empty() && !format.begun.is_empty()));
                }
            }
            shape @ Shape::Tags(tags) => {
                let (open, close) = shape.pair();
                while calls.is_empty() || self.take("\n") {
                    self.must(open);
                    calls.push(self.tagged(tags, functions));
                    self.must(close);
                }
            }
            Shape::Code(_) => panic!("no family writes so"),
        }
        assert_eq!(self.rest, "");
        calls
    }

    fn named(&mut self, form: &Named, begun: bool) -> Read {
        if !begun {
            self.must(form.begin);
        }
        self.must(form.before);
        let (name, rest) = self.rest.split_once(form.after).unwrap();
        self.rest = rest;
        let arguments = self.json();
        self.must(form.end);
        (name.to_owned(), arguments)
    }

    fn tagged(&mut self, tags: &Tags, functions: &[Function]) -> Read {
        if self.rest.starts_with("\n{") {
            self.must("\n");
            let value = self.json();
            self.must("\n");
            return call_of(&WITHIN_TAGS, value);
        }
        let function =
            functions.iter().find(|function| self.take(&tags.function_head(&function.name))).expect("a function");
        let prepared = prepare(&function.parameters, true).unwrap().schema;
        let none = Map::new();
        let properties = prepared["properties"].as_object().unwrap_or(&none);
        let (mut arguments, line) = (Map::new(), if tags.lines { "\n" } else { "" });
        'more: loop {
            for (key, schema) in properties {
                let is_text = schema["type"] == "string" || schema["enum"].is_array();
                if !self.take(&tags.parameter_head(key, is_text)) {
                    continue;
                }
                let end = format!("{}\n", tags.parameter_end);
                // A text may do without the newline behind it.
                let value = |(at, _): (usize, &str)| {
                    let own = self.rest[..at].strip_suffix(line);
                    let value = match is_text {
                        true => Some(json!(own.unwrap_or(&self.rest[..at]))),
                        false => own.and_then(|own| whole::read(own).ok()),
                    };
                    value.map(|value| (value, at))
                };
                let (value, at) = self.rest.match_indices(&end).find_map(value).expect("a value");
                self.rest = &self.rest[at + end.len()..];
                arguments.insert(key.clone(), value);
                continue 'more;
            }
            break;
        }
        self.must(&tags.function_tail());
        (function.name.clone(), Value::Object(arguments))
    }
}

fn call_of(form: &Json, value: Value) -> Read {
    match form.name {
        "" => {
            let (name, arguments) = value.as_object().and_then(|map| map.iter().next()).expect("a call");
            (name.clone(), arguments.clone())
        }
        key => (value[key].as_str().expect("a name").to_owned(), value[form.arguments].clone()),
    }
}

/// What was met in one run.
#[derive(Debug, Default)]
struct Tally {
    drafts: usize,
    refused: usize,
    answers: usize,
    calls: usize,
    tagged: usize,
    faults: Vec<String>,
}

fn examine(random: &mut Random, tally: &mut Tally) {
    let formats: Vec<&'static Format> = Format::all().collect();
    let format = match random.one_in(3) {
        true => Format::named(["qwen-tags", "hermes", "glm", "llama"][random.below(4)]).unwrap(),
        false => *random.of(&formats),
    };
    let choice = match *random.of(&[Choice::Forced, Choice::Forced, Choice::Own, Choice::OrAnswer]) {
        // Such a request is refused.
        Choice::OrAnswer if format.first().mark().is_empty() => Choice::Forced,
        choice => choice,
    };
    let vocab = Arc::new(model(format, choice == Choice::Own || random.one_in(2)));
    // Where the mark of a call is no token, calls of the model's own choice are held to nothing.
    let choice = if choice == Choice::Own && !holds_calls(vocab.as_ref()) { Choice::Forced } else { choice };
    let answer = (choice == Choice::OrAnswer)
        .then(|| json!({"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"], "additionalProperties": false}));
    let (required, single, several) = (choice == Choice::Forced, random.one_in(3), random.one_in(2));
    let mut compiler = Compiler::new(Arc::clone(&vocab) as _, None);
    let mut drafts = (0..DRAFTS_MAX).map(|_| {
        let functions = functions(random);
        let calls = Calls { functions, required, single, several, answer: answer.clone() };
        let grammar = Grammar::Calls(calls.clone());
        let made = compiler.constraint(&grammar).map(drop);
        tally.drafts += 1;
        tally.refused += usize::from(made.is_err());
        made.ok().map(|()| (calls.functions, grammar))
    });
    let Some((functions, grammar)) = drafts.find_map(|found| found) else { return };
    let tools: Vec<Value> = functions
        .iter()
        .map(|f| json!({"type": "function", "function": {"name": f.name, "parameters": f.parameters}}))
        .collect();
    let ends: Vec<&str> = match format.first() {
        Shape::Tags(tags) => vec![tags.parameter_end, tags.function_end, tags.close],
        shape => vec![shape.pair().1],
    };
    if choice == Choice::OrAnswer {
        // Without its tokens a model of channels has no headers.
        let mut written = [format.answer, ""].into_iter().map(|head| {
            let mut constraint = compiler.constraint(&grammar).unwrap();
            takes(&vocab, &mut constraint, &format!("{head}{{\"s\":\"x\"}}"))
        });
        assert!(written.any(|taken| taken), "{}: no answer can be written", format.name);
    }
    for _ in 0..4 {
        let mut constraint = compiler.constraint(&grammar).unwrap();
        let Some(text) = walk(random, &vocab, &mut constraint, &ends) else { continue };
        tally.answers += 1;
        let mark = format.first().mark();
        let begins = match choice {
            Choice::Forced => Some(0),
            Choice::Own => text.find(mark),
            // Its prompt began the first call.
            Choice::OrAnswer if !format.begun.is_empty() => (!text.starts_with('{')).then_some(0),
            Choice::OrAnswer => text.starts_with(mark).then_some(0),
        };
        let (said, calls) = text.split_at(begins.unwrap_or(text.len()));
        let said = said.strip_prefix(format.answer).unwrap_or(said);
        let expected = if calls.is_empty() { Vec::new() } else { Plain { rest: calls }.calls(format, &functions) };
        let lengths: Vec<usize> = (0..5).map(|_| 1 + random.below(9)).collect();
        let shown = text.strip_prefix(format.answer).unwrap_or(&text);
        let (content, found) = read(format, &tools, shown, &lengths, choice == Choice::OrAnswer);
        tally.calls += expected.len();
        tally.tagged += usize::from(calls.contains("<parameter=") || calls.contains("<arg_key>"));
        if found != expected || content.trim() != said.trim() {
            tally.faults.push(format!("{} {choice:?}: {content:?} {found:?} of {text:?}, by {tools:?}", format.name));
        }
        for (name, arguments) in expected {
            let schema = &functions.iter().find(|f| f.name == name).expect("a declared function").parameters;
            let Some(value) = readable(&whole::written(&arguments)) else { continue };
            let violated = validator(schema).and_then(|own| own.iter_errors(&value).next().map(|e| e.to_string()));
            tally.faults.extend(violated.map(|why| format!("{}: {why}: {text:?} of {schema}", format.name)));
        }
    }
}

fn run(seeds: std::ops::Range<u64>) {
    let work = move || {
        let (mut tally, count) = (Tally::default(), (seeds.end - seeds.start) as usize);
        seeds.for_each(|seed| examine(&mut Random(seed), &mut tally));
        let faults = &tally.faults;
        assert!(faults.is_empty(), "{} faults: {:#?}", faults.len(), &faults[..faults.len().min(6)]);
        // The walks come to something.
        let Tally { drafts, refused, answers, calls, tagged, .. } = tally;
        assert!(drafts - refused >= count * 99 / 100 && refused < drafts / 5, "{tally:?}");
        assert!(answers > 2 * count && calls > count && tagged > count / 20, "{tally:?}");
    };
    thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap().join().unwrap();
}

#[test]
fn what_a_walk_through_the_grammar_of_calls_writes_is_read_back() {
    run(0..1_200);
}

/// So near to an open bound that a reader has the bound itself: not in calls, forced or not, nor in an answer beside them.
#[test]
fn digits_beside_tools_end_before_they_read_as_an_open_bound() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["n"],
        "properties": {"n": {"type": "number", "exclusiveMaximum": 1}}});
    let value = Map::from_iter([("n".to_owned(), json!(7))]);
    for name in ["qwen-tags", "hermes", "glm", "mistral", "llama"] {
        let format = Format::named(name).unwrap();
        for choice in [Choice::Forced, Choice::Own, Choice::OrAnswer] {
            if choice != Choice::Forced && format.first().mark().is_empty() {
                continue;
            }
            let vocab = Arc::new(model(format, true));
            let functions = vec![Function { name: "f".to_owned(), parameters: schema.clone(), strict: true }];
            let answer = (choice == Choice::OrAnswer).then(|| schema.clone());
            let (required, single) = (choice == Choice::Forced, true);
            let grammar = Grammar::Calls(Calls { functions, required, single, several: false, answer });
            let mut compiler = Compiler::new(Arc::clone(&vocab) as _, None);
            let mut texts = vec![format.write(&[("f", &value)])];
            if choice == Choice::OrAnswer {
                texts.push("{\"n\":7}".to_owned());
            }
            for text in texts {
                for (digits, good) in [("0.999999999999999", true), ("0.99999999999999999999999", false)] {
                    let text = text.replace('7', digits);
                    let taken = takes(&vocab, &mut compiler.constraint(&grammar).unwrap(), &text);
                    assert_eq!(taken, good, "{name} {choice:?}: {text}");
                }
            }
        }
    }
}

/// `cargo test -p chimere-core --lib -- --ignored many_walks`
#[test]
#[ignore = "minutes"]
fn what_many_walks_through_the_grammar_of_calls_write_is_read_back() {
    run(1_000..21_000);
}
