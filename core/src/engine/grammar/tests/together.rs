//! Schemas whose parts no value can meet together are refused with the keyword that says why. What is left of others is
//! walked through, and checked.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Bytes;
use super::author::Random;
use super::faithful::walked;
use super::judged::{readable, validator};
use crate::engine::grammar::{Compiler, Grammar};

#[test]
fn parts_that_no_value_meets_together_are_refused_with_the_keyword() {
    let base = |schema: Value| json!({"$ref": "#/$defs/base", "$defs": {"base": schema}});
    let of = |base: Value, more: Value| json!({"allOf": [{"$ref": "#/$defs/base"}, more], "$defs": {"base": base}});
    let named = |schema: Value| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    let cases = [
        (
            json!({"type": "integer", "allOf": [{"multipleOf": 6}, {"multipleOf": 4}, {"minimum": 1, "maximum": 11}]}),
            "`multipleOf` 6",
        ),
        (json!({"type": "integer", "allOf": [{"multipleOf": 0.7}, {"minimum": 1, "maximum": 6}]}), "`multipleOf` 0.7"),
        (json!({"type": "number", "allOf": [{"minimum": 5}, {"exclusiveMaximum": 5}]}), "`exclusiveMaximum` 5"),
        (json!({"type": "integer", "allOf": [{"exclusiveMinimum": 4}, {"exclusiveMaximum": 5}]}), "no integer"),
        (json!({"type": "integer", "allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}), "65537 and 65539"),
        (of(json!({"multipleOf": 0.7}), json!({"type": "integer", "minimum": 1, "maximum": 6})), "`multipleOf` 0.7"),
        (json!({"allOf": [{"type": "string", "minLength": 5}, {"maxLength": 3}]}), "`minLength`"),
        (json!({"allOf": [{"type": "string", "pattern": "^a+$"}, {"pattern": "^b+$"}]}), "`pattern`"),
        (json!({"allOf": [{"type": "string", "format": "date"}, {"maxLength": 4}]}), "`format`"),
        (json!({"allOf": [{"type": "string", "pattern": "^a+$"}, {"enum": ["b", "c"]}]}), "`enum`"),
        (json!({"allOf": [{"enum": ["b", 1]}, {"enum": ["a", 2]}]}), "`enum`"),
        (json!({"enum": [0.1, 0.2], "anyOf": [{"multipleOf": 0.3}, {"minimum": 1}]}), "`enum`"),
        (json!({"const": 7, "allOf": [{"multipleOf": 2}]}), "`const`"),
        (json!({"allOf": [{"type": "object", "required": ["a", "b"]}, {"maxProperties": 1}]}), "`maxProperties`"),
        (
            json!({"allOf": [named(json!({"type": "integer", "multipleOf": 0.7})), {"properties": {"a": {"minimum": 1, "maximum": 6}}}]}),
            "`multipleOf` 0.7",
        ),
        (
            of(named(json!({"type": "string", "pattern": "^a+$"})), json!({"properties": {"a": {"pattern": "^b"}}})),
            "`pattern`",
        ),
        (base(named(json!({"allOf": [{"type": "string", "maxLength": 2}, {"minLength": 3}]}))), "`minLength`"),
        (
            json!({"type": "number", "allOf": [{"multipleOf": 0.00100007}, {"multipleOf": 0.00060017}, {"multipleOf": 3.07337136}]}),
            "too many digits",
        ),
        (
            json!({"allOf": [named(json!({"type": "integer", "multipleOf": 65537})), {"properties": {"a": {"multipleOf": 65539}}}]}),
            "65537 and 65539",
        ),
        (
            json!({"type": "object", "required": ["b"], "properties": {
                "a": {"allOf": [{"type": "string", "minLength": 5}, {"maxLength": 3}]},
                "b": {"type": "integer", "minimum": 5, "maximum": 4}}}),
            "satisfies it: nothing can be the value of the required property `b`: no integer has `minimum` 5",
        ),
    ];
    for (schema, word) in cases {
        let mut compiler = Compiler::new(Arc::new(Bytes { template: None }), None);
        let made = compiler.constraint(&Grammar::Json(schema.clone())).map(drop);
        let words = made.unwrap_err().to_string();
        assert!(words.contains(word), "{words}: {schema}");
    }
}

#[test]
fn what_parts_leave_together_is_written_and_nothing_else() {
    let deep = json!({"type": "object", "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
        "a": {"properties": {"x": {"type": "integer", "multipleOf": 0.7}, "y": {"type": "null"}}},
        "b": {"properties": {"x": {"minimum": 1, "maximum": 6}, "y": {}}, "additionalProperties": false}}});
    for (schema, some) in [
        (deep, "{"),
        (json!({"type": "number", "enum": [0.1, 0.3, 0.35], "multipleOf": 0.1}), "0.3"),
        (json!({"allOf": [{"enum": [0.1, 0.3, "x"]}, {"multipleOf": 0.1}, {"type": "number"}]}), "0.3"),
        (json!({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}), "\"b\""),
        (json!({"enum": ["a", "b", 3], "anyOf": [{"maxLength": 0}, {"type": "number", "multipleOf": 0.1}]}), "3"),
        (json!({"type": "integer", "allOf": [{"multipleOf": 100000}, {"multipleOf": 100000}, {"maximum": 0}]}), "0"),
        (
            json!({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}, {"minimum": 1, "maximum": 20}]}),
            "12",
        ),
        (
            json!({"anyOf": [{"type": "integer", "multipleOf": 0.7}, {"type": "null"}], "minimum": 1, "maximum": 6}),
            "null",
        ),
        (
            json!({"type": "array", "allOf": [{"items": {"type": "integer", "multipleOf": 0.7}}, {"items": {"minimum": 1, "maximum": 6}}]}),
            "[]",
        ),
        (
            json!({"type": "object", "allOf": [
                {"properties": {"a": {"multipleOf": 65537}}, "additionalProperties": false},
                {"properties": {"a": {"type": "string", "maxLength": 1, "multipleOf": 65539}}, "required": ["a"]}]}),
            "{\"a\"",
        ),
        (
            json!({"allOf": [{"type": ["number", "string"], "maxLength": 3, "minimum": 7, "maximum": 7},
                {"type": ["integer", "string"], "minLength": 5}]}),
            "7",
        ),
        (json!({"type": "string", "enum": ["1", "\u{663}"], "pattern": "^\\d$"}), "\"1\""),
        (json!({"type": "string", "enum": ["é"], "pattern": "^\\W$"}), "\"é\""),
    ] {
        let mut compiler = Compiler::new(Arc::new(Bytes { template: None }), None);
        let mut found = Vec::new();
        for seed in 0..24 {
            let made = compiler.constraint(&Grammar::Json(schema.clone())).unwrap_or_else(|e| panic!("{e}: {schema}"));
            let Some(text) = walked(&mut Random(seed), &mut { made }) else { continue };
            let right = readable(&text).is_none_or(|value| validator(&schema).unwrap().is_valid(&value));
            assert!(right, "{text} of {schema}");
            found.push(text);
        }
        assert!(found.iter().any(|text| text.starts_with(some)), "{some} not in {found:?} of {schema}");
    }
}

#[test]
fn steps_that_are_not_too_long_one_by_one_are_taken() {
    for schema in [
        json!({"type": "object", "allOf": [{"properties": {"a": {"type": "integer", "multipleOf": 300}}}, {"properties": {"a": {"multipleOf": 1001}}}]}),
        json!({"type": "integer", "multipleOf": 1000, "anyOf": [{"multipleOf": 7001}, {"maximum": 0}]}),
        json!({"type": "integer", "allOf": [{"multipleOf": 100000}, {"multipleOf": 100000}], "anyOf": [{"maximum": 1}, {"minimum": 200000}]}),
        json!({"type": "integer", "multipleOf": 1001, "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"multipleOf": 30000}}}),
    ] {
        let mut compiler = Compiler::new(Arc::new(Bytes { template: None }), None);
        let made = compiler.constraint(&Grammar::Json(schema.clone())).map(drop);
        made.unwrap_or_else(|e| panic!("{e}: {schema}"));
    }
}
