//! Bounds and multiples of numbers, told by what is written at the bound and beside it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::author::Random;
use super::judged::validator;
use super::{Bytes, follow, takes};
use crate::engine::grammar::{Compiler, Grammar};

/// Ways of writing 0 below itself.
const BELOW_ZERO: [&str; 4] = ["-0", "-0.0", "-0.00", "-0e5"];

#[test]
fn a_bound_that_is_open_is_not_written() {
    let of = |kind: &str, keywords: Value| {
        let mut schema = keywords;
        schema["type"] = json!(kind);
        schema
    };
    let cases: [(Value, &[&str], &[&str]); 17] = [
        (json!({"exclusiveMaximum": 0, "minimum": -0.5}), &["-0.5", "-0.25", "-0.001"], &["0", "0.1", "-0.6"]),
        (json!({"exclusiveMaximum": 0, "minimum": -5}), &["-5", "-0.5", "-1"], &["0", "0.0", "-5.1"]),
        (json!({"exclusiveMaximum": 0}), &["-5", "-0.5", "-100"], &["0", "1"]),
        (json!({"exclusiveMinimum": 0, "maximum": 0.5}), &["0.5", "0.1", "0.001"], &["0", "0.0", "-0", "-0.1", "0.6"]),
        (json!({"exclusiveMinimum": 0}), &["0.5", "7", "1000"], &["0", "0.0", "-0", "-1"]),
        (json!({"exclusiveMinimum": 3, "maximum": 3.5}), &["3.5", "3.1"], &["3", "3.0", "3.6"]),
        (json!({"exclusiveMaximum": -3, "minimum": -3.5}), &["-3.5", "-3.1"], &["-3", "-3.0", "-3.6"]),
        (json!({"exclusiveMinimum": 3, "exclusiveMaximum": 4}), &["3.5", "3.9", "3.99"], &["3", "4", "4.0"]),
        (json!({"exclusiveMaximum": 0, "minimum": -0.5, "multipleOf": 0.25}), &["-0.25", "-0.50"], &["0", "-0.75"]),
        (json!({"minimum": 0.3, "maximum": 0.3, "multipleOf": 0.1}), &["0.3"], &["0.2", "0.4", "0.31"]),
        (
            json!({"exclusiveMinimum": 0.3, "exclusiveMaximum": 0.7, "multipleOf": 0.1}),
            &["0.4", "0.6"],
            &["0.3", "0.7"],
        ),
        (json!({"allOf": [{"exclusiveMaximum": 0}, {"minimum": -0.5}]}), &["-0.5", "-0.25"], &["0", "-0.6"]),
        // A step and its bounds in parts of their own.
        (json!({"multipleOf": 0.1, "allOf": [{"minimum": 0.3}, {"maximum": 0.3}]}), &["0.3"], &["0.2", "0.4", "0.31"]),
        (
            json!({"allOf": [{"multipleOf": 0.1, "minimum": 0.3, "maximum": 0.3}, {"multipleOf": 0.05}]}),
            &["0.3"],
            &["0.2", "0.35", "0.25"],
        ),
        (
            json!({"allOf": [{"multipleOf": 0.1}, {"minimum": 0.1, "allOf": [{"minimum": 0.3}]}], "maximum": 0.4}),
            &["0.3", "0.4"],
            &["0.2", "0.1", "0.5", "0.35"],
        ),
        (
            json!({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}, {"multipleOf": 0.5}, {"exclusiveMinimum": 0, "maximum": 13}]}),
            &["6", "12"],
            &["0", "3", "4", "18"],
        ),
        (json!({"anyOf": [{"maximum": -7}, {"minimum": -0.5}], "exclusiveMaximum": 0}), &["-0.5", "-7"], &["0", "-1"]),
    ];
    for (keywords, right, wrong) in cases {
        let open = keywords.to_string().contains("exclusive");
        let grammar = Grammar::Json(of("number", keywords));
        right.iter().for_each(|text| assert!(takes(&grammar, false, text), "{text} of {grammar:?}"));
        let below = BELOW_ZERO.iter().filter(|_| open);
        wrong.iter().chain(below).for_each(|text| assert!(!takes(&grammar, false, text), "{text} of {grammar:?}"));
    }
    for (keywords, right, wrong) in [
        (json!({"exclusiveMaximum": 0}), "-1", "0"),
        (json!({"exclusiveMaximum": 0, "minimum": -5}), "-5", "0"),
        (json!({"exclusiveMaximum": 0, "exclusiveMinimum": -2}), "-1", "-2"),
        (json!({"exclusiveMaximum": 0, "multipleOf": 3}), "-3", "0"),
        (json!({"exclusiveMaximum": 0, "minimum": -3, "multipleOf": 1.5}), "-3", "-1"),
        (json!({"maximum": -1}), "-1", "0"),
    ] {
        let grammar = Grammar::Json(of("integer", keywords));
        assert!(takes(&grammar, false, right) && !takes(&grammar, false, wrong), "{grammar:?}");
        BELOW_ZERO.iter().for_each(|text| assert!(!takes(&grammar, false, text), "{text} of {grammar:?}"));
    }
    // One multiple alone, where doubles divide to another one.
    for (keywords, right, wrong) in [
        (json!({"exclusiveMinimum": 1.1, "exclusiveMaximum": 1.3, "multipleOf": 0.1}), "1.2", ["1.1", "1.3", "1.25"]),
        (json!({"minimum": 1.1, "maximum": 1.3, "multipleOf": 0.1}), "1.3", ["1.0", "1.4", "1.25"]),
        (json!({"minimum": 1.75, "maximum": 2.25, "multipleOf": 0.5}), "2", ["1.5", "2.5", "2.25"]),
        (
            json!({"exclusiveMinimum": -1.3, "exclusiveMaximum": -1.1, "multipleOf": 0.1}),
            "-1.2",
            ["-1.1", "-1.3", "1.2"],
        ),
        (
            json!({"exclusiveMinimum": 1, "exclusiveMaximum": 1.0001, "multipleOf": 0.00005}),
            "1.00005",
            ["1", "1.0001", "1.00006"],
        ),
        (json!({"minimum": 0.7, "maximum": 0.75, "multipleOf": 0.1}), "0.7", ["0.6", "0.8", "0.75"]),
    ] {
        let grammar = Grammar::Json(of("number", keywords));
        assert!(takes(&grammar, false, right), "{right} of {grammar:?}");
        wrong.iter().for_each(|text| assert!(!takes(&grammar, false, text), "{text} of {grammar:?}"));
    }
    // Where 0 belongs to the range it stays, however the range was told.
    for keywords in [json!({"maximum": 0}), json!({"minimum": 0}), json!({"minimum": 0, "multipleOf": 0.1})] {
        for kind in ["integer", "number"] {
            assert!(takes(&Grammar::Json(of(kind, keywords.clone())), false, "0"), "{kind} {keywords}");
        }
    }
}

/// A number's keywords, their edges close together.
fn keywords(random: &mut Random) -> Map<String, Value> {
    let edges = [-3.5, -3.0, -1.0, -0.5, -0.25, 0.0, 0.3, 0.5, 1.0, 3.0, 3.5];
    let mut map = Map::new();
    for key in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
        if random.one_in(2) {
            map.insert(key.to_owned(), json!(random.of(&edges)));
        }
    }
    if random.one_in(3) {
        map.insert("multipleOf".to_owned(), json!(random.of(&[0.1, 0.25, 0.5, 1.5, 2.0, 3.0])));
    }
    map
}

fn probe(seeds: std::ops::Range<u64>) {
    let mut compiler = Compiler::new(Arc::new(Bytes { template: None }), None);
    for seed in seeds {
        let mut random = Random(seed);
        let mut schema = keywords(&mut random);
        match random.below(4) {
            0 => drop(schema.insert("allOf".to_owned(), json!([keywords(&mut random)]))),
            1 => drop(schema.insert("anyOf".to_owned(), json!([keywords(&mut random), keywords(&mut random)]))),
            _ => {}
        }
        schema.insert("type".to_owned(), json!(random.of(&["integer", "number"])));
        let schema = Value::Object(schema);
        let validator = validator(&schema).unwrap();
        let grammar = Grammar::Json(schema.clone());
        let near = ["-4", "-3.5", "-3", "-2.9", "-1", "-0.5", "-0.3", "0", "0.1", "0.3", "0.5", "1", "3", "3.5", "4"];
        let written = near.iter().chain(&BELOW_ZERO).chain(&["0.0", "3.0", "-3.50", "0.30000000000000001"]);
        if compiler.constraint(&grammar).is_err() {
            continue;
        }
        let mut taken = |text: &str| {
            let (rest, may_end, _) = follow(&mut compiler.constraint(&grammar).unwrap(), text);
            rest.is_empty() && may_end
        };
        // Below 0 alone no 0 may stand last, which multiples of two places need.
        let sparse = schema.to_string().contains(":0.25");
        for text in written {
            let right = validator.is_valid(&serde_json::from_str(text).unwrap());
            assert!(right || !taken(text), "{text} of {schema}");
            // What is right is taken in one writing: multiples have as many places as their step.
            let padded = format!("{text}0");
            let mut plain = || taken(text) || text.contains('.') && taken(&padded);
            assert!(!right || sparse || !near.contains(text) || plain(), "{text} not of {schema}");
        }
    }
}

#[test]
fn what_is_written_beside_a_bound_is_judged_rightly() {
    probe(0..40);
}

/// `cargo test -p chimere-core --lib -- --ignored beside_any_bound`
#[test]
#[ignore = "minutes"]
fn what_is_written_beside_any_bound_is_judged_rightly() {
    probe(1_000..4_000);
}
