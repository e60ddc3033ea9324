//! What becomes of schemas, keyword by keyword.

use std::sync::Arc;

use llguidance::derivre::RegexAst;
use serde_json::{Value, json};

use super::*;
use crate::engine::grammar::agreement::Marked;
use crate::engine::grammar::tests::takes;
use crate::engine::grammar::together::{matches_nothing, search};
use crate::engine::grammar::{Calls, Compiler, Function, Grammar};

fn ready(schema: &Value) -> Value {
    let prepared = prepare(schema, true).unwrap_or_else(|e| panic!("{schema}: {e}"));
    let again = prepare(&prepared.schema, true).unwrap();
    assert_eq!(again.schema, prepared.schema, "prepared twice");
    prepared.schema
}

#[test]
fn annotations_go_and_what_cannot_be_broken_is_not_said() {
    for (schema, expected) in [
        (json!({"title": "t", "$comment": "c", "x-order": 1, "discriminator": {"propertyName": "k"}}), json!({})),
        (json!({"type": "array", "uniqueItems": false, "description": "d"}), json!({"type": "array"})),
        (json!({"type": "array", "uniqueItems": true, "maxItems": 1.0}), json!({"type": "array", "maxItems": 1})),
        (json!({"type": "string", "uniqueItems": true, "minProperties": 3}), json!({"type": "string"})),
        (json!({"type": "string", "format": "binary"}), json!({"type": "string"})),
        (json!({"type": "integer", "format": "int64"}), json!({"type": "integer"})),
        (json!({"type": "integer", "format": "what ever"}), json!({"type": "integer"})),
        (
            json!({"type": "object", "required": ["a", "a"], "minProperties": 1, "propertyNames": {"type": "string"}}),
            json!({"type": "object", "required": ["a"]}),
        ),
        (
            json!({"type": "object", "unevaluatedProperties": false}),
            json!({"type": "object", "additionalProperties": false}),
        ),
        (json!({"not": false, "if": {"type": "null"}, "dependentRequired": {}}), json!({})),
        (
            json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}}),
            json!({"type": "object", "additionalProperties": false,
                "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}),
        ),
        (
            json!({"type": "object", "propertyNames": {"pattern": "^a"}}),
            json!({"type": "object", "additionalProperties": false, "patternProperties": {"^a": true}}),
        ),
        (
            json!({"items": [{"type": "null"}], "additionalItems": false, "type": "array"}),
            json!({"type": "array", "prefixItems": [{"type": "null"}], "items": false}),
        ),
        (
            json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true}),
            json!({"type": "integer", "exclusiveMinimum": 3}),
        ),
        (json!({"allOf": [{"type": "null", "title": "t"}], "default": null}), json!({"type": "null"})),
        (
            json!({"pattern": r"^\d.$", "type": "string"}),
            json!({"type": "string", "pattern": r"^\d[^\n\r\x{2028}\x{2029}]$"}),
        ),
        (
            json!({"oneOf": [{"type": "null"}, {"type": "string"}]}),
            json!({"anyOf": [{"type": "null"}, {"type": "string"}]}),
        ),
    ] {
        assert_eq!(ready(&schema), expected, "{schema}");
    }
}

#[test]
fn references_are_found_wherever_they_lead() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/A%20b", "description": "d"},
            "b": {"$ref": "#/components/schemas/x~1y"},
            "c": {"$ref": "#here"},
            "d": {"$ref": "#"}
        },
        "$defs": {"A b": {"type": "null"}, "unused": {"not": {}}, "named": {"$anchor": "here", "type": "boolean"}},
        "components": {"schemas": {"x/y": {"type": "integer"}}}
    });
    let ready = ready(&schema);
    assert_eq!(ready["properties"]["a"], json!({"$ref": "#/$defs/0"}));
    let defs = [json!({"type": "null"}), json!({"type": "integer"}), json!({"type": "boolean"})];
    for (n, def) in defs.iter().enumerate() {
        assert_eq!(&ready["$defs"][n.to_string()], def);
    }
    assert_eq!(ready["$defs"]["3"]["properties"]["d"], json!({"$ref": "#/$defs/3"}));
}

#[test]
fn alternatives_exclude_each_other_where_that_can_be_seen() {
    let cat = json!({"type": "object", "properties": {"kind": {"const": "cat"}, "n": {"type": "integer"}}, "required": ["kind"]});
    let dog = json!({"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]});
    let closed = json!({"type": "object", "properties": {"x": {}}, "additionalProperties": false});
    let other = json!({"type": "object", "properties": {"y": {}}, "required": ["y"]});
    for (good, alternatives) in [
        (true, json!([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}])),
        (true, json!([{"allOf": [{"$ref": "#/$defs/cat"}]}, {"anyOf": [{"$ref": "#/$defs/dog"}, {"type": "null"}]}])),
        (true, json!([{"const": 1}, {"const": 2}, {"type": "string"}])),
        (true, json!([closed, other])),
        (true, json!([{"type": ["null", "boolean"]}, {"type": ["array", "object"]}])),
        (false, json!([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/cat"}])),
        (false, json!([{"type": "integer"}, {"type": "number"}])),
        (false, json!([{"const": 1}, {"const": 1.0}])),
        (false, json!([{"minimum": 1}, {"maximum": 9}])),
        (false, json!([{"type": "string"}, {"type": "string", "maxLength": 3}])),
    ] {
        let schema = json!({"oneOf": alternatives, "$defs": {"cat": cat, "dog": dog}});
        let strict = prepare(&schema, true);
        assert_eq!(strict.is_ok(), good, "{schema}");
        if let Err(error) = strict {
            assert!(error.to_string().contains("`#/oneOf`: alternatives 0 and 1"), "{error}");
        }
    }
}

#[test]
fn what_cannot_be_enforced_has_a_place_and_a_reason() {
    for (schema, path, reason) in [
        (json!({"properties": {"p": {"pattern": "(?=a)b"}}}), "#/properties/p/pattern", "look-ahead"),
        (json!({"items": {"pattern": r"a\b"}}), "#/items/pattern", "word boundaries"),
        (json!({"pattern": "a^b"}), "#/pattern", "at its ends alone"),
        (json!({"pattern": "[[a]"}), "#/pattern", "unclosed character class"),
        (json!({"pattern": "[a&&b]"}), "#/pattern", "&&"),
        (json!({"pattern": "[[:alpha:]]"}), "#/pattern", "brackets"),
        (json!({"pattern": "(?i)a"}), "#/pattern", "flags"),
        (json!({"type": "string", "format": "telephone"}), "#/format", "telephone"),
        (json!({"uniqueItems": true}), "#/uniqueItems", "earlier items"),
        (json!({"not": {"type": "null"}}), "#/not", "may be"),
        (json!({"minProperties": 2}), "#/minProperties", "required"),
        (json!({"properties": {"a": {}}, "maxProperties": 3}), "#/maxProperties", "optional"),
        (
            json!({"type": "object", "maxProperties": 3, "allOf": [{"properties": {"a": {}, "b": {}}}]}),
            "#/maxProperties",
            "optional",
        ),
        (
            json!({"allOf": [{"type": "object", "maxProperties": 2, "properties": {"a": {}}, "required": ["a"]},
                {"properties": {"c": {}}}]}),
            "#/allOf/0/maxProperties",
            "optional",
        ),
        (json!({"if": {}, "then": {}}), "#/if", "anyOf"),
        (json!({"contains": {}}), "#/contains", "one item"),
        (json!({"propertyNames": {"maxLength": 3}}), "#/propertyNames", "enum"),
        (json!({"multipleOf": 1e-9}), "#/multipleOf", "too many digits"),
        (json!({"multipleOf": 0.07}), "#/multipleOf", "too many digits"),
        (json!({"multipleOf": 2e18}), "#/multipleOf", "too many digits"),
        (json!({"multipleOf": 18446744073709551615u64}), "#/multipleOf", "too many digits"),
        (json!({"multipleOf": 1.5e300}), "#/multipleOf", "too many digits"),
        (
            json!({"properties": {"a": {"patternProperties": {"^a": {"type": "null"}, "b$": {}}}}}),
            "#/properties/a/patternProperties/b$",
            "may match `^a` as well",
        ),
        (json!({"const": 1e30}), "#/const", "64 bits"),
        (json!({"enum": [[{"a": "\u{1}"}]]}), "#/enum", "control"),
        (json!({"maximum": 18446744073709551616.0}), "#/maximum", "64 bits"),
        (json!({"$defs": {"a": {"not": {}}}, "anyOf": [{"$ref": "#/$defs/a"}]}), "#/$defs/a/not", "may be"),
        (
            json!({"allOf": [{"type": "integer", "minimum": 9007199254740993u64}, {"type": "integer", "maximum": 3}]}),
            "#/allOf",
            "2^53",
        ),
    ] {
        let error = prepare(&schema, true).unwrap_err();
        let GrammarError::At { path: at, reason: why } = &error else { panic!("{schema}: {error}") };
        assert_eq!(at, path, "{schema}");
        assert!(why.contains(reason), "{schema}: {why}");
        let left = prepare(&schema, false).unwrap();
        let [NotEnforced { path: at, reason: own }] = &left.not_enforced[..] else { panic!("{:?}", left.not_enforced) };
        assert_eq!((at.as_str(), why.split(';').next().unwrap()), (path, own.split(';').next().unwrap()), "{schema}");
        // The keyword is named once, by its place.
        let keyword = path.rsplit('/').next().unwrap();
        let twice = own.contains(&format!("`{keyword}`")) || own.contains("enforced");
        assert!(!twice || own.contains("2^53"), "{own}");
        ready(&left.schema);
    }
}

/// A name that is left to the model may be one of those that a closed object has besides.
#[test]
fn what_is_left_of_names_binds_no_other_ones() {
    let of = |patterns: Value, more: Value| {
        let mut schema = json!({"type": "object", "patternProperties": patterns});
        more.as_object().into_iter().flatten().for_each(|(key, value)| schema[key] = value.clone());
        schema
    };
    let overlap = json!({"^a": {"type": "integer"}, "b$": {"type": "string"}});
    let ahead = json!({"^(?!_)": {"type": "string"}});
    let closed = json!({"additionalProperties": false});
    let needed = json!({"additionalProperties": false, "required": ["a"], "minProperties": 1});
    let booleans = json!({"additionalProperties": {"type": "boolean"}});
    let unevaluated = json!({"unevaluatedProperties": false});
    let kept = json!({"additionalProperties": {"type": "boolean"}, "properties": {"c": {"type": "null"}}});
    let short = json!({"propertyNames": {"pattern": "^.{1,2}$"}, "additionalProperties": false});
    let listed = json!({"propertyNames": {"enum": ["a", "q"]}, "additionalProperties": {"type": "null"}});
    for (schema, told, written, refused) in [
        (of(ahead.clone(), closed.clone()), "additionalProperties", vec![r#"{"a":"x"}"#, "{}"], None),
        (of(ahead.clone(), needed), "additionalProperties", vec![r#"{"a":"x"}"#], Some("{}")),
        (of(ahead.clone(), unevaluated), "unevaluatedProperties", vec![r#"{"a":"x"}"#], None),
        (of(ahead.clone(), short), "propertyNames", vec![r#"{"a":"x"}"#], None),
        (of(ahead.clone(), listed), "propertyNames", vec![r#"{"q":"x"}"#], None),
        (of(ahead, kept), "additionalProperties", vec![r#"{"c":null,"b":"x"}"#], Some(r#"{"c":1}"#)),
        (of(overlap.clone(), closed), "additionalProperties", vec![r#"{"xb":"x"}"#], Some(r#"{"ac":"x"}"#)),
        (of(overlap, booleans), "additionalProperties", vec![r#"{"xb":"x"}"#], Some(r#"{"ac":true}"#)),
    ] {
        let left = prepare(&schema, false).unwrap();
        let paths: Vec<&str> = left.not_enforced.iter().map(|n| n.path.rsplit('/').next().unwrap()).collect();
        assert!(paths.contains(&told) && left.not_enforced[0].path.starts_with("#/patternProperties/"), "{paths:?}");
        ready(&left.schema);
        let grammar = Grammar::Json(left.schema.clone());
        assert!(written.iter().all(|text| takes(&grammar, false, text)), "{schema}: {}", left.schema);
        assert!(refused.is_none_or(|text| !takes(&grammar, false, text)), "{schema}: {}", left.schema);
        // Between tags as well, where a function has no such names.
        let function = Function { name: "f".to_owned(), parameters: left.schema, strict: false };
        let calls = Calls { functions: vec![function], required: true, single: true, several: false, answer: None };
        let text = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>", written[0]);
        assert!(takes(&Grammar::Calls(calls), true, &text), "{schema}: {text}");
        assert!(matches!(prepare(&schema, true), Err(GrammarError::At { .. })), "{schema}");
    }
}

#[test]
fn patterns_of_names_are_compared_within_limits() {
    let of = |patterns: Vec<String>| {
        let own: Map<String, Value> = patterns.into_iter().map(|own| (own, json!({"type": "null"}))).collect();
        json!({"type": "object", "patternProperties": own})
    };
    // Those that exclude each other are enforced, however many.
    ready(&of((0..40).map(|n| format!("^x{n}_")).collect()));
    // What is not found out is no overlap: the compiler decides.
    let heavy = ["^(?:a{302})*$", "^a(?:a{310})*$"];
    assert_eq!(matches_nothing(&RegexAst::And(Vec::from(heavy.map(search)))), None);
    ready(&of(heavy.map(str::to_owned).to_vec()));
    // The costliest that can be written: two thousand classes of letters.
    let wide = |n: usize| format!("^{n}{}$", r"\p{L}\p{Lu}".repeat(20));
    let schema = of((0..60).map(wide).collect());
    prepare(&schema, true).unwrap();
    assert!(compares(&schema) && compares(&json!({"anyOf": [{"not": schema}]})));
    assert!(!compares(&of(vec!["^a".to_owned()])) && !compares(&json!({"properties": {"a": {}, "b": {}}})));
    // Where not all are compared the rest is left to the model, or to the compiler if strict.
    let many = of((0..60).map(|n| format!("^{n}{}$", "a".repeat(20))).collect());
    let none = of((0..3).map(|n| format!("^{n}$")).collect());
    for (schema, until) in [(many, None), (none, Some(std::time::Instant::now()))] {
        let made = |strict: bool| match until {
            Some(until) => prepare_until(&schema, strict, until).unwrap(),
            None => prepare(&schema, strict).unwrap(),
        };
        assert_eq!(made(true).schema, schema);
        let left = made(false);
        let kept = left.schema["patternProperties"].as_object().unwrap();
        assert!(!kept.is_empty() && !left.not_enforced.is_empty(), "{left:?}");
        assert!(left.not_enforced.iter().all(|told| told.reason.contains("the patterns are too large")), "{left:?}");
        // Whoever prepares it again agrees, strict or not, and it can be compiled.
        for strict in [true, false] {
            assert_eq!(prepare_again(&left.schema, strict).unwrap().schema, left.schema);
        }
        let plain = Marked { specials: Vec::new(), template: String::new() };
        let made = Compiler::new(Arc::new(plain), None).constraint(&Grammar::Json(left.schema)).map(drop);
        assert_eq!(made, Ok(()));
    }
    // Overlapping ones that nobody compared are refused by the compiler.
    let plain = Marked { specials: Vec::new(), template: String::new() };
    let overlapping = Grammar::Json(of(vec!["^a".to_owned(), "b$".to_owned()]));
    assert!(Compiler::new(Arc::new(plain), None).constraint(&overlapping).is_err());
}

#[test]
fn bounds_beside_zero_are_drawn_in_to_what_can_be_written() {
    let number = |keywords: Value| {
        let mut schema = keywords;
        schema["type"] = json!("number");
        schema
    };
    for (bounds, expected) in [
        (json!({"minimum": 1e-300}), json!({"minimum": 1e-30})),
        (json!({"exclusiveMinimum": 1e-300}), json!({"minimum": 1e-30})),
        (json!({"minimum": 1e-300, "exclusiveMinimum": true}), json!({"minimum": 1e-30})),
        (json!({"minimum": 5, "exclusiveMinimum": 1e-300}), json!({"minimum": 5})),
        (json!({"minimum": -1e-300, "maximum": 1e-300}), json!({"minimum": 0, "maximum": 0})),
        (json!({"maximum": -1e-300}), json!({"maximum": -1e-30})),
        (json!({"maximum": 5e-324}), json!({"maximum": 0})),
    ] {
        assert_eq!(ready(&number(bounds)), number(expected));
    }
    // What is enforced can be compiled, whatever the bound.
    let plain = Marked { specials: Vec::new(), template: String::new() };
    let mut compiler = Compiler::new(Arc::new(plain), None);
    for digits in ["1", "1.2345678901234567", "9.999999999999999"] {
        for power in [-300, -60, -31, -30, -29, -20, -17, -10] {
            for sign in ["", "-"] {
                let at: f64 = format!("{sign}{digits}e{power}").parse().unwrap();
                for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
                    for kind in ["number", "integer"] {
                        let schema = json!({"type": kind, key: at});
                        let prepared = prepare(&schema, true).unwrap().schema;
                        let made = compiler.constraint(&Grammar::Json(prepared)).map(drop);
                        assert_eq!(made, Ok(()), "{schema}");
                    }
                }
            }
        }
    }
    let between = number(json!({"minimum": 1e-300, "maximum": 1e-200}));
    let error = prepare(&between, true).unwrap_err();
    assert!(matches!(&error, GrammarError::At { path, .. } if path == "#/minimum"), "{error}");
    let left = prepare(&between, false).unwrap();
    assert_eq!((left.schema, left.not_enforced.len()), (number(json!({})), 2));
}

#[test]
fn a_wrong_schema_is_refused_strict_or_not() {
    for (schema, path) in [
        (json!({"type": "objet"}), "#/type"),
        (json!({"type": []}), "#/type"),
        (json!({"items": 3}), "#/items"),
        (json!({"properties": []}), "#/properties"),
        (json!({"properties": {"a/b": {"minLength": -1}}}), "#/properties/a~1b/minLength"),
        (json!({"minimum": "3"}), "#/minimum"),
        (json!({"multipleOf": 0}), "#/multipleOf"),
        (json!({"enum": []}), "#/enum"),
        (json!({"anyOf": []}), "#/anyOf"),
        (json!({"required": [1]}), "#/required"),
        (json!({"pattern": 1}), "#/pattern"),
        (json!({"$ref": "#/$defs/none"}), "#/$ref"),
        (json!({"type": "any"}), "#/type"),
        (json!({"pattern": "(a"}), "#/pattern"),
        (json!({"pattern": "["}), "#/pattern"),
        (json!({"pattern": "*a"}), "#/pattern"),
        (json!({"patternProperties": {"a)": {}}}), "#/patternProperties/a)"),
        (json!({"required": "a"}), "#/required"),
        (json!({"enum": "abc"}), "#/enum"),
        (json!({"uniqueItems": 1}), "#/uniqueItems"),
        // Older drafts, where no later one knows what they mean.
        (json!({"type": "object", "required": true}), "#/required"),
        (json!({"items": {"type": "string", "required": true}}), "#/items/required"),
        (json!({"minimum": 1, "exclusiveMaximum": true}), "#/exclusiveMaximum"),
        (json!({"properties": {"a": {"divisibleBy": 5}}}), "#/properties/a/divisibleBy"),
        (json!({"extends": {"type": "object"}}), "#/extends"),
        (json!({"anyOf": [{"disallow": "string"}]}), "#/anyOf/0/disallow"),
    ] {
        for strict in [true, false] {
            let error = prepare(&schema, strict).unwrap_err();
            assert!(matches!(&error, GrammarError::Wrong { path: at, .. } if at == path), "{schema}: {error}");
            assert!(error.to_string().starts_with("the schema is wrong at `#/"), "{error}");
        }
    }
}

#[test]
fn a_property_that_says_itself_that_it_must_be_there_is_required() {
    let of = |properties: Value, required: Value| {
        let mut schema = json!({"type": "object", "properties": properties, "required": required});
        schema.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        schema
    };
    let (yes, no) = (json!({"type": "boolean", "required": true}), json!({"type": "integer", "required": false}));
    let plain = json!({"a": {"type": "boolean"}, "b": {"type": "integer"}});
    for (required, expected) in
        [(json!(null), json!(["a"])), (json!(["b", "a"]), json!(["b", "a"])), (json!(["b"]), json!(["b", "a"]))]
    {
        let schema = of(json!({"a": yes, "b": no}), required);
        assert_eq!(ready(&schema), of(plain.clone(), expected), "{schema}");
    }
    // Of an object within, and of one that is referred to.
    let inner = json!({"type": "object", "required": true, "properties": {"c": {"$ref": "#/properties/b"}}});
    let ready = ready(&of(json!({"a": inner, "b": yes}), json!(null)));
    assert_eq!((&ready["required"], &ready["properties"]["a"]["required"]), (&json!(["a", "b"]), &json!(null)));
    assert_eq!(ready["$defs"]["0"], json!({"type": "boolean"}));
    // Where a property is only called so.
    let named = json!({"properties": {"extends": {"type": "string"}, "required": {"type": "boolean"}}});
    assert!(prepare(&named, true).is_ok());
}

#[test]
fn work_is_bounded() {
    // Each of many references leads to the whole.
    let properties: Map<String, Value> =
        (0..400).map(|n| (format!("p{n}"), json!({"$ref": format!("#/properties/p{}", (n + 1) % 400)}))).collect();
    prepare(&json!({"properties": properties}), true).unwrap();
    let nested: Map<String, Value> = (0..400)
        .map(|n| {
            (format!("p{n}"), json!({"anyOf": [{"$ref": "#"}, {"$ref": format!("#/properties/p{n}/anyOf/0")}, {}]}))
        })
        .collect();
    let told = |schema: Value| prepare(&schema, true).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(told(json!({"properties": nested})), Ok(()));
    // As many names as a schema has room for, and a type said again and again.
    let names: Vec<String> = (0..30_000).map(|n| format!("n{n}")).collect();
    assert_eq!(told(json!({"required": names})), Ok(()));
    let said = |kind: &str| json!({"type": vec![kind; 10_000]});
    assert_eq!(told(json!({"oneOf": [said("string"), said("null")]})), Ok(()));
    let many: Vec<Value> = (0..300)
        .map(|_| json!({"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}]}}, "required": ["a"]}))
        .collect();
    assert!(told(json!({"oneOf": many})).unwrap_err().contains("alternatives 0 and 1 may hold together"));
}

#[test]
fn multiples_that_cannot_be_joined_are_left_to_the_model_unless_strict() {
    let long = json!({"allOf": [{"type": "integer", "multipleOf": 65537}, {"multipleOf": 65539}]});
    let schema = json!({
        "type": "object", "properties": {"a": long, "b": {"multipleOf": 2}, "c": {"$ref": "#/$defs/long"}},
        "$defs": {"long": long},
    });
    let left = prepare(&schema, false).unwrap();
    let written = left.schema.to_string();
    assert!(written.contains(r#""multipleOf":2"#) && !written.contains("65537"), "{written}");
    let mut told: Vec<(&str, bool)> =
        left.not_enforced.iter().map(|n| (n.path.as_str(), n.reason.contains("65537 and 65539"))).collect();
    told.sort_unstable();
    assert_eq!(told, [("#/$defs/long/multipleOf", true), ("#/properties/a/multipleOf", true)]);
    let strict = prepare(&schema, true).unwrap();
    assert!(strict.not_enforced.is_empty() && strict.schema.to_string().contains("65539"));
}

/// What two references of one value lead to, straight or by way of a third.
#[test]
fn multiples_behind_references_are_left_to_the_model_unless_strict() {
    for joined in [
        json!([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]),
        json!([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/by"}]),
        json!([{"$ref": "#/$defs/a"}, {"multipleOf": 65_539}]),
    ] {
        let schema = json!({
            "type": "object", "properties": {"n": {"allOf": joined}, "m": {"$ref": "#/$defs/c"}}, "required": ["n"],
            "$defs": {
                "a": {"type": "integer", "multipleOf": 65_537}, "b": {"type": "integer", "multipleOf": 65_539},
                "c": {"type": "integer", "multipleOf": 7}, "by": {"allOf": [{"$ref": "#/$defs/b"}]},
            },
        });
        let left = prepare(&schema, false).unwrap();
        let written = left.schema.to_string();
        assert!(written.contains(r#""multipleOf":7"#) && !written.contains("6553"), "{written}");
        let paths: Vec<&str> = left.not_enforced.iter().map(|n| n.path.as_str()).collect();
        assert!(paths.contains(&"#/$defs/a/multipleOf") && paths.len() == 2, "{paths:?}");
        assert!(left.not_enforced.iter().all(|n| n.reason.contains("65537 and 65539")), "{left:?}");
        // What is left is enforced by the engine, which takes no schema with such multiples.
        let held = |schema: Value| {
            let plain = Marked { specials: Vec::new(), template: String::new() };
            let mut compiler = Compiler::new(Arc::new(plain), None);
            compiler.constraint(&Grammar::Json(schema)).map(drop)
        };
        assert!(held(left.schema).is_ok());
        let strict = held(prepare(&schema, true).unwrap().schema).unwrap_err();
        assert!(strict.to_string().contains("65537 and 65539"), "{strict}");
    }
}
