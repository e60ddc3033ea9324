//! The grammar that enforces calls, against the reader of calls. Whatever the grammar takes is read back as it was
//! meant, for every family. Schemas, values and the cuts of the text are random.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::desk::Compiler;
use super::*;
use crate::engine::protocol::Channel;
use crate::engine::vocab::{TokenKind, Vocab, VocabError};
use crate::toolcall::{Format, Piece, ToolCallParser, collect};
use crate::whole;

/// One token a byte, an end, then special tokens.
pub(super) struct Marked {
    pub(super) specials: Vec<String>,
    pub(super) template: String,
}

impl Vocab for Marked {
    fn len(&self) -> usize {
        257 + self.specials.len()
    }

    fn encode(&self, text: &str, _: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        u8::try_from(id).map_or_else(|_| Vec::new(), |byte| vec![byte])
    }

    fn name(&self, id: u32) -> String {
        match id {
            0..256 => char::from(id as u8).to_string(),
            256 => "<|the end|>".to_owned(),
            _ => self.specials[id as usize - 257].clone(),
        }
    }

    fn kind(&self, id: u32) -> TokenKind {
        if id < 256 { TokenKind::Normal } else { TokenKind::Control }
    }

    fn special(&self, text: &str) -> Option<u32> {
        self.specials.iter().position(|own| own == text).map(|at| 257 + at as u32)
    }

    fn specials(&self) -> Vec<(u32, String)> {
        (257..).zip(self.specials.iter().cloned()).collect()
    }

    fn ends(&self) -> &[u32] {
        &[256]
    }

    fn bos(&self) -> Option<u32> {
        None
    }

    fn template(&self) -> Option<String> {
        Some(self.template.clone())
    }
}

/// A model of a family, its marks in pointed or square brackets as tokens, or none.
pub(super) fn model(format: &Format, tokens: bool) -> Marked {
    let is_token = |mark: &str| {
        (mark.starts_with('<') && mark.ends_with('>') || mark.starts_with('[') && mark.ends_with(']'))
            && !mark.contains('\n')
            && mark.matches(['<', '[']).count() == 1
    };
    let mut specials: Vec<String> =
        format.literals().filter(|mark| tokens && is_token(mark)).map(str::to_owned).collect();
    specials.sort();
    specials.dedup();
    Marked { specials, template: Format::sign_of(format.name).to_owned() }
}

/// Whether the grammar takes the whole text and can end there.
pub(super) fn takes(vocab: &Marked, constraint: &mut Constraint, text: &str) -> bool {
    let mut row = vec![0.0; vocab.len()];
    let mut rest = text.as_bytes();
    while let Some(first) = rest.first() {
        if constraint.complete() {
            return false;
        }
        let marks = vocab.specials.iter().filter(|mark| rest.starts_with(mark.as_bytes()));
        let (id, bytes) = match marks.max_by_key(|mark| mark.len()) {
            Some(mark) => (vocab.special(mark).unwrap(), mark.len()),
            None => (u32::from(*first), 1),
        };
        row.fill(0.0);
        constraint.mask(Channel::Answer, &mut row).unwrap();
        if row[id as usize] == f32::NEG_INFINITY {
            return false;
        }
        constraint.took(Channel::Answer, id, false).unwrap();
        rest = &rest[bytes..];
    }
    row.fill(0.0);
    constraint.complete() || constraint.mask(Channel::Answer, &mut row).is_ok() && row[256] != f32::NEG_INFINITY
}

/// What is read of a text in pieces of these lengths, again and again.
/// `formed`: the answer is calls or JSON of a form.
pub(super) fn read(
    format: &'static Format,
    tools: &[Value],
    text: &str,
    lengths: &[usize],
    formed: bool,
) -> (String, Vec<(String, Value)>) {
    let mut rest = text;
    let mut parser = ToolCallParser::new(tools, format);
    if formed {
        parser = parser.calls_first();
    }
    let mut pieces: Vec<Piece> = Vec::new();
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, tail) = rest.split_at(rest.ceil_char_boundary((*length).min(rest.len())));
        pieces.extend(parser.push(Channel::Answer, piece));
        rest = tail;
    }
    pieces.extend(parser.finish());
    let (text, calls) = collect(&pieces);
    (text, calls.into_iter().map(|call| (call.name, call.arguments)).collect())
}

/// A property's schema and a value of it.
fn property() -> impl Strategy<Value = (Value, Value)> {
    let text = "[ -~é\n<>/\"\\\\{}]{0,12}|</?(parameter|function|tool_call|arg_value)[=>]|a\n\n";
    prop_oneof![
        text.prop_map(|s| (json!({"type": "string"}), json!(s))),
        any::<i32>().prop_map(|n| (json!({"type": "integer"}), json!(n))),
        // Numbers that a double does not hold.
        any::<i64>().prop_map(|n| (json!({"type": "integer"}), json!(n))),
        prop::sample::select(vec!["18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"])
            .prop_map(|n| (json!({"type": "integer"}), whole::read(n).unwrap())),
        Just((json!({"const": 9007199254740993i64}), json!(9007199254740993i64))),
        (-1e6f64..1e6).prop_map(|n| (json!({"type": "number"}), json!(n))),
        any::<bool>().prop_map(|b| (json!({"type": "boolean"}), json!(b))),
        prop::collection::vec(any::<i16>(), 0..3).prop_map(|a| (json!({"type": "array", "items": {"type": "integer"}}), json!(a))),
        text.prop_map(|s| (json!({"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"], "additionalProperties": false}), json!({"k": s}))),
        text.prop_map(|s| (json!({"type": ["string", "null"]}), json!(s))),
        prop::sample::select(vec!["low", "high up", "7"]).prop_map(|s| (json!({"enum": ["low", "high up", "7"]}), json!(s))),
        any::<bool>().prop_map(|b| (json!({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}), if b { json!(true) } else { json!(3) })),
        text.prop_map(|s| (json!({"$ref": "#/$defs/named"}), json!({"name": s}))),
    ]
}

/// Functions and a call of each.
fn called() -> impl Strategy<Value = Vec<(Value, Map<String, Value>)>> {
    let one = prop::collection::vec((property(), any::<bool>()), 0..4).prop_map(|properties| {
        let (mut schemas, mut arguments, mut required) = (Map::new(), Map::new(), Vec::new());
        for (at, ((schema, value), needed)) in properties.into_iter().enumerate() {
            let key = format!("p{at}");
            if needed {
                required.push(json!(key));
                arguments.insert(key.clone(), value);
            }
            schemas.insert(key, schema);
        }
        let refers = schemas.values().any(|schema| schema.get("$ref").is_some());
        let mut schema = json!({"type": "object", "properties": schemas, "required": required, "additionalProperties": false});
        if refers {
            let named = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": false});
            schema["$defs"] = json!({"named": named});
        }
        (schema, arguments)
    });
    prop::collection::vec(one, 1..3)
}

/// Checks one family: it takes the calls as the family writes them or as JSON in its marks, and they are read as they were.
fn agrees(
    format: &'static Format,
    tokens: bool,
    called: &[(Value, Map<String, Value>)],
    lengths: &[usize],
) -> Result<(), TestCaseError> {
    let names: Vec<String> = (0..called.len()).map(|at| format!("tool_{at}")).collect();
    let function = |(name, (schema, _)): (&String, &(Value, Map<String, Value>))| Function {
        name: name.clone(),
        parameters: schema.clone(),
        strict: true,
    };
    let functions: Vec<Function> = names.iter().zip(called).map(function).collect();
    let tools: Vec<Value> = functions
        .iter()
        .map(|f| json!({"type": "function", "function": {"name": f.name, "parameters": f.parameters}}))
        .collect();
    let many = if format.first().mark().is_empty() { 1 } else { called.len() };
    let grammar = Grammar::Calls(Calls { functions, required: true, single: false, several: false, answer: None });
    let vocab = Arc::new(model(format, tokens));
    let mut compiler = Compiler::new(Arc::clone(&vocab) as Arc<dyn Vocab>, None);
    let written: Vec<(&str, &Map<String, Value>)> =
        names.iter().map(String::as_str).zip(called.iter().map(|(_, arguments)| arguments)).take(many).collect();
    let expected: Vec<(String, Value)> =
        written.iter().map(|(name, arguments)| ((*name).to_owned(), Value::Object((*arguments).clone()))).collect();
    // Each call in either way: a family of tags writes JSON where tags could be read otherwise.
    let mut taken = 0;
    for ways in 0..1u32 << many {
        let text = format.write_mixed(&written, |at| ways >> at & 1 == 1);
        // What the prompt began the model does not write.
        let text = text.strip_prefix(format.begun).unwrap_or(&text);
        let mut constraint =
            compiler.constraint(&grammar).map_err(|e| TestCaseError::fail(format!("{}: {e}", format.name)))?;
        if takes(&vocab, &mut constraint, text) {
            taken += 1;
            let found = read(format, &tools, text, lengths, false);
            prop_assert_eq!(found, (String::new(), expected.clone()), "{}: {:?}", format.name, text);
        }
    }
    let tagged = called.iter().flat_map(|(_, a)| a.values()).any(|v| v.to_string().contains('<'));
    prop_assert!(taken > 0 || tagged, "{}: nothing of {:?} is taken", format.name, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    #[test]
    fn what_the_grammar_takes_is_read_back(called in called(), lengths in prop::collection::vec(1usize..9, 1..20)) {
        for format in Format::all() {
            for tokens in [false, true] {
                agrees(format, tokens, &called, &lengths)?;
            }
        }
    }

    /// The two that most models use, more often.
    #[test]
    fn what_tags_and_json_take_is_read_back(called in called(), lengths in prop::collection::vec(1usize..9, 1..20)) {
        for name in ["qwen-tags", "hermes", "glm"] {
            agrees(Format::named(name).unwrap(), true, &called, &lengths)?;
        }
    }
}
