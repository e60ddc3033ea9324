//! Schemas as two widespread libraries write them: Pydantic 2.13 (`model_json_schema`) and Zod 4 (`toJSONSchema`), each
//! with an answer that its own library has read.

use std::sync::Arc;

use serde_json::{Value, json};

use super::author::Random;
use super::faithful::walked;
use super::judged::{readable, validator};
use super::{Bytes, follow};
use crate::engine::grammar::{Compiler, Grammar, GrammarError, prepare};

#[test]
fn schemas_of_pydantic_and_zod_are_taken() {
    let written: Value = serde_json::from_str(include_str!("written.json")).unwrap();
    let mut compiler = Compiler::new(Arc::new(Bytes { template: None }), None);
    for (name, case) in written.as_object().unwrap() {
        let (schema, answer) = (&case["schema"], case["answer"].to_string());
        let left = prepare(schema, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        let paths: Vec<&str> = left.not_enforced.iter().map(|n| n.path.as_str()).collect();
        assert_eq!(json!(paths), case["not_enforced"], "{name}");
        match prepare(schema, true) {
            Ok(_) => assert!(paths.is_empty(), "{name}"),
            Err(GrammarError::At { path, .. }) => assert_eq!(path, paths[0], "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
        let grammar = Grammar::Json(left.schema);
        let mut constraint = compiler.constraint(&grammar).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (rest, may_end, _) = follow(&mut constraint, &answer);
        assert!(rest.is_empty() && may_end, "{name}: {answer} stops before {rest}");
        let validator = validator(schema).unwrap();
        for seed in 0..4 {
            let mut constraint = compiler.constraint(&grammar).unwrap();
            let walked = walked(&mut Random(seed), &mut constraint);
            let Some(value) = walked.as_deref().and_then(readable) else { continue };
            let violated = validator.iter_errors(&value).next().map(|e| e.to_string());
            assert!(!paths.is_empty() || violated.is_none(), "{name}: {violated:?} in {value}");
        }
    }
}
