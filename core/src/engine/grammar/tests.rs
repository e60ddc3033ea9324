//! What forms allow and refuse, token by token, over a vocabulary of one token a byte.

mod author;
mod bounds;
mod channels;
mod digits;
mod faithful;
mod judged;
mod multiples;
mod together;
mod walked;
mod written;

use std::sync::Arc;

use serde_json::{Value, json};

use super::desk::Compiler;
use super::*;
use crate::engine::protocol::Channel;
use crate::engine::vocab::{TokenKind, Vocab, VocabError};

/// One token a byte, then special tokens.
struct Bytes {
    template: Option<String>,
}

const SPECIALS: [(&str, TokenKind); 5] = [
    ("<|end|>", TokenKind::Control),
    ("<think>", TokenKind::UserDefined),
    ("</think>", TokenKind::UserDefined),
    ("<tool_call>", TokenKind::UserDefined),
    ("</tool_call>", TokenKind::UserDefined),
];
const END: u32 = 256;
const THINK: u32 = 257;
const CLOSE: u32 = 258;
/// Logits of a row: more than there are tokens.
const WIDTH: usize = 280;

impl Vocab for Bytes {
    fn len(&self) -> usize {
        256 + SPECIALS.len()
    }

    fn encode(&self, text: &str, _: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        match u8::try_from(id) {
            Ok(byte) => vec![byte],
            Err(_) if id == END => Vec::new(),
            Err(_) => self.name(id).into_bytes(),
        }
    }

    fn name(&self, id: u32) -> String {
        match u8::try_from(id) {
            Ok(byte) => char::from(byte).to_string(),
            Err(_) => SPECIALS[id as usize - 256].0.to_owned(),
        }
    }

    fn kind(&self, id: u32) -> TokenKind {
        if id < 256 { TokenKind::Normal } else { SPECIALS[id as usize - 256].1 }
    }

    fn special(&self, text: &str) -> Option<u32> {
        SPECIALS.iter().position(|(name, _)| *name == text).map(|at| 256 + at as u32)
    }

    fn specials(&self) -> Vec<(u32, String)> {
        (256..).zip(SPECIALS.iter().map(|(name, _)| (*name).to_owned())).collect()
    }

    fn ends(&self) -> &[u32] {
        &[END]
    }

    fn bos(&self) -> Option<u32> {
        None
    }

    fn template(&self) -> Option<String> {
        self.template.clone()
    }
}

fn compiler(tags: bool) -> Compiler {
    let template = tags.then(|| "<function=\n<parameter=".to_owned());
    Compiler::new(Arc::new(Bytes { template }), None)
}

/// Follows `text`, special tokens by their names. How far it got, whether a reply may end there, and whether it must.
fn follow(constraint: &mut Constraint, text: &str) -> (String, bool, bool) {
    let vocab = Bytes { template: None };
    let mut rest = text;
    while !rest.is_empty() && !constraint.complete() {
        let special = SPECIALS.iter().position(|(name, _)| rest.starts_with(name));
        let (id, bytes) = match special {
            Some(at) => (256 + at as u32, SPECIALS[at].0.len()),
            None => (u32::from(rest.as_bytes()[0]), 1),
        };
        let row = allowed(constraint);
        assert!(row[vocab.len()..].iter().all(|l| *l == f32::NEG_INFINITY), "beyond the vocabulary");
        if row[id as usize] == f32::NEG_INFINITY {
            break;
        }
        constraint.took(Channel::Answer, id, false).unwrap();
        rest = &rest[bytes..];
    }
    let complete = constraint.complete();
    let may_end = complete || allowed(constraint)[END as usize] != f32::NEG_INFINITY;
    (rest.to_owned(), may_end, complete)
}

fn allowed(constraint: &mut Constraint) -> Vec<f32> {
    let mut row = vec![0.0; WIDTH];
    constraint.mask(Channel::Answer, &mut row).unwrap();
    row
}

/// Whether a whole answer is of the form.
pub(super) fn takes(grammar: &Grammar, tags: bool, text: &str) -> bool {
    let mut constraint = compiler(tags).constraint(grammar).unwrap();
    let (rest, may_end, _) = follow(&mut constraint, text);
    rest.is_empty() && may_end
}

#[test]
fn only_what_satisfies_the_schema_can_be_said() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 3},
            "kind": {"enum": ["a", "b"]},
            "n": {"type": "integer", "minimum": 1, "maximum": 12},
            "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
        },
        "required": ["name", "n"], "additionalProperties": false
    });
    let grammar = Grammar::Json(schema);
    for good in [r#"{"name":"abc","n":12}"#, r#"{"name": "", "kind": "b", "n": 1, "list": [true, false]}"#] {
        assert!(takes(&grammar, false, good), "{good}");
    }
    for bad in [
        r#"{"name":"abcd","n":1}"#,
        r#"{"name":"abc","n":13}"#,
        r#"{"name":"abc"}"#,
        r#"{"name":"a","kind":"c","n":1}"#,
        r#"{"name":"a","n":1,"list":[]}"#,
        r#"{"name":"a","n":1,"x":1}"#,
        r#"{"name":"a<|end|>","n":1}"#,
        r#"{  "name":"a","n":1}"#,
        " {}",
        "hello",
    ] {
        assert!(!takes(&grammar, false, bad), "{bad}");
    }
    let mut constraint = compiler(false).constraint(&grammar).unwrap();
    let (rest, _, complete) = follow(&mut constraint, r#"{"name":"a","n":1} and more"#);
    assert!(complete, "nothing can follow the last brace");
    assert_eq!(rest, " and more");
}

#[test]
fn a_number_ends_where_the_reply_does() {
    let mut constraint = compiler(false).constraint(&Grammar::Json(json!({"type": "integer"}))).unwrap();
    assert_eq!(follow(&mut constraint, "12"), (String::new(), true, false));
    constraint.took(Channel::Answer, END, false).unwrap();
    assert!(constraint.complete());
}

#[test]
fn the_thought_is_free_and_the_form_starts_behind_it() {
    let grammar = Grammar::Json(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}));
    let mut constraint = compiler(false).constraint(&grammar).unwrap();
    assert_eq!(allowed(&mut constraint)[THINK as usize], 0.0, "a model may open its thought itself");
    constraint.took(Channel::Answer, THINK, false).unwrap();
    let mut row = vec![0.0; WIDTH];
    constraint.mask(Channel::Thinking, &mut row).unwrap();
    let barred: Vec<usize> = (0..WIDTH).filter(|id| row[*id] == f32::NEG_INFINITY).collect();
    assert_eq!(barred, [END as usize, 259], "a thought neither ends the reply nor calls");
    for id in [u32::from(b'h'), u32::from(b'm'), CLOSE] {
        constraint.took(Channel::Thinking, id, false).unwrap();
    }
    let row = allowed(&mut constraint);
    let open: Vec<usize> = (0..WIDTH).filter(|id| row[*id] == 0.0).collect();
    assert_eq!(open, [usize::from(b'\n'), usize::from(b'{')]);
    constraint.took(Channel::Answer, u32::from(b'\n'), true).unwrap();
    assert_eq!(allowed(&mut constraint)[usize::from(b'\n')], f32::NEG_INFINITY, "once");
    assert_eq!(follow(&mut constraint, r#"{"a": 7}"#), (String::new(), true, true));
}

fn calls(required: bool, single: bool, answer: Option<Value>) -> Grammar {
    let add = json!({"type": "object", "additionalProperties": false, "required": ["a", "b"],
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    let say = json!({"type": "object", "required": ["text"], "properties": {
        "text": {"type": "string"}, "tone": {"type": "string", "enum": ["low", "high"]}}});
    let function = |name: &str, parameters| Function { name: name.to_owned(), parameters, strict: true };
    let functions = vec![function("add", add), function("say", say)];
    Grammar::Calls(Calls { functions, required, single, several: !single, answer })
}

const ADD: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</tool_call>";
const ADD_TAGS: &str = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n\
    </function>\n</tool_call>";
const SAY_TAGS: &str = "<tool_call>\n<function=say>\n<parameter=text>\na <b>\nc\n</parameter>\n<parameter=tone>\nlow\n\
    </parameter>\n</function>\n</tool_call>";

#[test]
fn a_forced_call_is_a_call() {
    let forced = calls(true, false, None);
    assert!(takes(&forced, false, ADD));
    assert!(takes(&forced, false, &format!("{ADD}\n{ADD}")));
    for bad in ["hello", "", "{}", &ADD.replace("add", "sub"), &ADD.replace("\"b\": 2", "\"b\": \"2\"")] {
        assert!(!takes(&forced, false, bad), "{bad}");
    }
    let mut constraint = compiler(false).constraint(&calls(true, true, None)).unwrap();
    assert_eq!(follow(&mut constraint, ADD), (String::new(), true, true), "one call and no more");
}

#[test]
fn a_model_that_was_never_taught_calls_makes_one_unless_several_are_wished() {
    let Grammar::Calls(own) = calls(true, false, None) else { unreachable!() };
    let unsaid = Grammar::Calls(Calls { several: false, ..own.clone() });
    let two = format!("{ADD}\n{ADD}");
    assert!(takes(&unsaid, false, ADD) && !takes(&unsaid, false, &two));
    assert!(takes(&Grammar::Calls(own), false, &two));
    // A family's model ends by itself.
    assert!(takes(&unsaid, true, &format!("{ADD_TAGS}\n{ADD_TAGS}")));
}

#[test]
fn a_model_of_tags_calls_by_tags() {
    let forced = calls(true, false, None);
    assert!(takes(&forced, true, ADD_TAGS));
    assert!(takes(&forced, true, SAY_TAGS));
    assert!(takes(&forced, true, &SAY_TAGS.replace("<parameter=tone>\nlow\n</parameter>\n", "")));
    for bad in [
        ADD.to_owned(),
        ADD_TAGS.replace("\n2\n", "\ntwo\n"),
        ADD_TAGS.replace("<parameter=b>\n2\n</parameter>\n", ""),
        SAY_TAGS.replace("low", "middle"),
    ] {
        assert!(!takes(&forced, true, &bad), "{bad}");
    }
    // A value that could be read in two ways is written as JSON.
    let parameters = json!({"type": "object", "properties": {"x": {"type": ["string", "integer"]}}, "required": ["x"]});
    let functions = vec![Function { name: "f".to_owned(), parameters, strict: true }];
    let either = Grammar::Calls(Calls { functions, required: true, single: true, several: false, answer: None });
    assert!(takes(&either, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"7\"}}\n</tool_call>"));
}

#[test]
fn a_free_choice_is_text_calls_or_the_answer_that_was_asked_for() {
    let free = calls(false, false, None);
    for good in ["hello", "Let me see.\n<think>", ADD, &format!("So: {ADD}\n{ADD}")] {
        assert_eq!(takes(&free, false, good), !good.contains("<think>"), "{good}");
    }
    assert!(!takes(&free, false, &ADD.replace("\"a\": 1", "\"a\": 1.5")));
    // What the reader takes for a call although no mark of one is around it.
    let unheld = "So: <function=add>\n<parameter=a>\nmany\n</parameter>\n</function>";
    assert!(!takes(&free, false, unheld) && !takes(&free, true, unheld));
    assert!(takes(&free, true, "So: <function> and <parameter=a>"));
    let answer = calls(false, false, Some(json!({"type": "object", "properties": {"x": {"type": "null"}}})));
    assert!(takes(&answer, false, r#"{"x": null}"#));
    assert!(takes(&answer, false, ADD));
    assert!(!takes(&answer, false, "hello"));
}

#[test]
fn what_cannot_be_enforced_is_said() {
    let said = |schema: Value| compiler(false).constraint(&Grammar::Json(schema)).unwrap_err().to_string();
    let message = "the schema cannot be enforced at `#/properties/p/pattern`: look-around, \
        including look-ahead and look-behind, is not supported; without `strict` it is left to the model";
    assert_eq!(said(json!({"properties": {"p": {"type": "string", "pattern": "(?=a)b"}}})), message);
    assert!(said(json!({"type": "array", "uniqueItems": true})).contains("uniqueItems"));
    let steps = json!({"allOf": [{"type": "integer", "multipleOf": 99991}, {"type": "integer", "multipleOf": 99989}]});
    assert!(said(steps).contains("`multipleOf` 99991 and 99989"));
    // Of more than two that stand apart the library multiplies some two first.
    let apart = |step: u32| {
        json!({"type": "integer", "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"multipleOf": step}],
        "$defs": {"a": {"multipleOf": step}, "b": {"multipleOf": step}}})
    };
    assert!(said(apart(70_000)).contains("`multipleOf` 70000 and 70000 and 70000"));
    assert!(compiler(false).constraint(&Grammar::Json(apart(60_000))).is_ok());
    assert!(said(json!({"enum": []})).len() > 20);
    assert!(said(json!({"$ref": "http://example.org/a"})).contains("example.org"));
    assert!(said(json!({"$ref": "#/$defs/none"})).len() > 20);
    assert!(said(json!(7)).contains("object"));
}

/// Whether a value can be written that the schema does, or does not, describe.
fn writes(schema: &Value, text: &str) -> bool {
    takes(&Grammar::Json(schema.clone()), false, text)
}

#[test]
fn integers_beyond_doubles_are_exact() {
    let odd = 9_007_199_254_740_993_u64;
    for (schema, good, bad) in [
        (json!({"const": odd}), vec!["9007199254740993"], vec!["9007199254740992", "9007199254740994"]),
        (
            json!({"const": i64::MIN}),
            vec!["-9223372036854775808"],
            vec!["-9223372036854775807", "-9223372036854776000"],
        ),
        (
            json!({"const": u64::MAX}),
            vec!["18446744073709551615"],
            vec!["18446744073709552000", "18446744073709551616"],
        ),
        (
            json!({"enum": ["a", 1234567890123456789_u64]}),
            vec!["\"a\"", "1234567890123456789"],
            vec!["1234567890123456768"],
        ),
        (
            json!({"type": "integer", "minimum": odd}),
            vec!["9007199254740993", "9007199254740994", "90071992547409930"],
            vec!["9007199254740992", "3", "-9007199254740993"],
        ),
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            vec!["-9223372036854775808", "0", "9223372036854775807"],
            vec!["-9223372036854775809", "9223372036854775808", "1.5"],
        ),
        (
            json!({"type": "number", "exclusiveMaximum": odd, "minimum": 0.5}),
            vec!["0.5", "9007199254740992", "12.25"],
            vec!["9007199254740993", "0.25"],
        ),
        (
            json!({"type": "object", "properties": {
                "ids": {"type": "array", "items": {"anyOf": [{"const": odd}, {"type": "null"}]}, "minItems": 1, "maxItems": 2},
                "note": {"type": "string"}, "next": {"$ref": "#"}
            }, "required": ["ids"], "additionalProperties": false}),
            vec![
                r#"{"ids": [9007199254740993, null]}"#,
                r#"{"ids":[null],"note":"x","next":{"ids":[9007199254740993]}}"#,
                r#"{"ids":[null],"next":{"ids":[null], "note": ""}}"#,
            ],
            vec![
                r#"{"ids": []}"#,
                r#"{"ids": [9007199254740992]}"#,
                r#"{"note": "x"}"#,
                r#"{"ids":[null],"next":{"ids":[9007199254740994]}}"#,
                r#"{"ids":[null,null,null]}"#,
            ],
        ),
        (
            json!({"type": ["object", "null"], "properties": {"a": {"type": "null"}, "b": {"const": odd}, "c": {}}}),
            vec!["null", "{}", r#"{"a":null}"#, r#"{"b": 9007199254740993, "c": [1]}"#, r#"{"c":{}}"#],
            vec![r#"{"b": 9007199254740992}"#, r#"{,"c":{}}"#, "[]"],
        ),
    ] {
        for text in good {
            assert!(writes(&schema, text), "{text} of {schema}");
        }
        for text in bad {
            assert!(!writes(&schema, text), "{text} of {schema}");
        }
    }
    let parameters = json!({"type": "object", "properties": {"id": {"const": odd}}, "required": ["id"]});
    let functions = vec![Function { name: "f".to_owned(), parameters, strict: true }];
    let call = Grammar::Calls(Calls {
        functions,
        required: true,
        single: true,
        several: false,
        answer: Some(json!({"const": odd})),
    });
    let said = |id: &str| format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"id\": {id}}}}}\n</tool_call>");
    for tags in [true, false] {
        assert!(takes(&call, tags, &said("9007199254740993")));
        assert!(!takes(&call, tags, &said("9007199254740992")));
    }
}

#[test]
fn dates_and_times_are_those_of_a_calendar() {
    let takes = |format: &str, text: &str| writes(&json!({"type": "string", "format": format}), &format!("\"{text}\""));
    for (format, good, bad) in [
        (
            "date",
            vec!["2024-02-29", "2000-02-29", "0001-12-31"],
            vec!["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31"],
        ),
        ("time", vec!["23:59:59Z", "00:00:00.123456789+01:30"], vec!["23:59:60Z", "00:00:00.1234567890Z", "24:00:00Z"]),
        ("date-time", vec!["2024-02-29T01:02:03.5Z"], vec!["2024-02-29T01:02:03.0000000001Z", "2024-02-30T01:02:03Z"]),
        ("base64", vec!["", "QQ==", "QUI=", "QUJD"], vec!["QQ=", "Q"]),
        ("uuid4", vec!["01234567-89ab-4def-8123-456789abcdef"], vec!["01234567-89ab-1def-8123-456789abcdef"]),
        ("ipv4", vec!["127.0.0.1"], vec!["256.0.0.1"]),
    ] {
        for text in good {
            assert!(takes(format, text), "{format}: {text}");
        }
        for text in bad {
            assert!(!takes(format, text), "{format}: {text}");
        }
    }
    let both = json!({"type": "string", "format": "date", "pattern": "^2024", "maxLength": 10});
    assert!(writes(&both, "\"2024-05-01\"") && !writes(&both, "\"2023-05-01\""));
}

#[test]
fn a_name_is_written_in_one_way() {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}});
    assert!(writes(&schema, r#"{"a": null, "b": 1}"#));
    for text in [r#"{"a": 1}"#, r#"{"a": null, "a": 1}"#, r#"{"\u0061": 1}"#] {
        assert!(!writes(&schema, text), "{text}");
    }
}

#[test]
fn schemas_beyond_their_limits_are_refused_unread() {
    let mut deep = json!({});
    (0..SCHEMA_DEPTH_MAX).for_each(|_| deep = json!({"items": deep}));
    assert_eq!(check_schema(&deep), Err(GrammarError::Deep));
    let many: serde_json::Map<String, Value> = (0..501).map(|i| (format!("p{i}"), json!({}))).collect();
    assert_eq!(check_schema(&json!({"properties": many})), Err(GrammarError::Properties { found: 501 }));
    let long = json!({"description": "x".repeat(SCHEMA_BYTES_MAX)});
    assert!(matches!(check_schema(&long), Err(GrammarError::Large { .. })));
    // A name or a value is no keyword.
    for good in [
        json!({"properties": {"$ref": {"type": "string"}}}),
        json!({"$defs": {"$ref": {"type": "string"}}}),
        json!({"enum": [{"$ref": "elsewhere"}, {"properties": {"$ref": "x"}}]}),
        json!({"properties": {"a": {"const": {"$ref": "elsewhere"}, "default": {"$ref": ""}}}}),
    ] {
        assert_eq!(check_schema(&good), Ok(()), "{good}");
    }
    for bad in [
        json!({"properties": {"enum": {"$ref": "elsewhere"}}}),
        json!({"anyOf": [{"items": {"$ref": "elsewhere"}}]}),
        json!({"$defs": {"const": {"properties": {"properties": {"$ref": "elsewhere"}}}}}),
    ] {
        assert_eq!(check_schema(&bad), Err(GrammarError::Remote("elsewhere".to_owned())), "{bad}");
    }
}

#[test]
fn a_definition_that_nothing_fills_refuses_only_what_needs_it() {
    let text = json!({"type": "string", "allOf": [{"type": "null"}]});
    let way = json!({"type": "object", "anyOf": [{"type": "string"}, {"enum": [1]}]});
    for never in [text, way] {
        let of = |required: &[&str]| json!({"type": "object", "properties": {"c": {"$ref": "#/$defs/p"}}, "required": required, "$defs": {"p": never}});
        let free = Grammar::Json(of(&[]));
        assert!(takes(&free, false, "{}") && takes(&free, false, r#"{"a": 1}"#) && !takes(&free, false, r#"{"c": 1}"#));
        let either = json!({"anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}], "$defs": {"p": never}});
        assert!(takes(&Grammar::Json(either), false, "null"), "{never}");
        let needed = compiler(false).constraint(&Grammar::Json(of(&["c"]))).unwrap_err().to_string();
        assert!(needed.contains("required property `c`") && !needed.contains("$defs/0"), "{needed}");
    }
}

#[test]
fn a_grammar_is_compiled_once_and_no_reply_moves_another() {
    let mut compiler = compiler(false);
    let grammar = Grammar::Json(json!({"type": "object"}));
    let mut first = compiler.constraint(&grammar).unwrap();
    assert_eq!(follow(&mut first, r#"{"a""#).0, "");
    let mut second = compiler.constraint(&grammar).unwrap();
    assert_eq!(follow(&mut second, r#"{"b": [1, {"c": "d"}]}"#), (String::new(), true, true));
    assert_eq!(follow(&mut first, r#": 1}"#), (String::new(), true, true));
}
