//! What is held to less than its schema asks. A schema that is not `strict` may be too much for the compiler of grammars.
//! Then calls keep the names and types of the parameters, an answer those of its properties, and the rest is left to the
//! model.

use serde_json::{Map, Value, json};

use super::{Calls, Function, Grammar, GrammarError, NotEnforced, shortened};

/// References that are followed to what an answer is.
const REFERENCES_MAX: usize = 16;

/// A grammar that asks less, and what is told of it.
pub(super) struct Less {
    pub(super) grammar: Grammar,
    pub(super) left: Vec<NotEnforced>,
}

/// The grammar with less asked of what is not `strict`: first of the functions, then of the answer, then of both. None:
/// there is nothing to ask less of. `loose`: the answer's schema is not strict. `error`: what the whole came to.
pub(super) fn relaxed(grammar: &Grammar, loose: bool, error: &GrammarError) -> Vec<Less> {
    match grammar {
        Grammar::Json(schema) => {
            let less = loose.then(|| of_answer(schema, error)).flatten();
            less.map(|(less, told)| Less { grammar: Grammar::Json(less), left: vec![told] }).into_iter().collect()
        }
        Grammar::Calls(calls) => {
            let answer = calls.answer.as_ref().filter(|_| loose).and_then(|schema| of_answer(schema, error));
            let functions = of_functions(calls, error);
            let mut found = Vec::new();
            for (own, other) in [(functions.clone(), None), (None, answer.clone()), (functions.clone(), answer.clone())]
            {
                let (mut less, mut left) = (calls.clone(), Vec::new());
                if let Some((functions, told)) = own {
                    less.functions = functions;
                    left.push(told);
                }
                if let Some((answer, told)) = other {
                    less.answer = Some(answer);
                    left.push(told);
                }
                if !left.is_empty() && found.iter().all(|Less { left: before, .. }| *before != left) {
                    found.push(Less { grammar: Grammar::Calls(less), left });
                }
            }
            found
        }
    }
}

/// The functions with less asked of those that are not `strict`.
fn of_functions(calls: &Calls, error: &GrammarError) -> Option<(Vec<Function>, NotEnforced)> {
    let mut names = Vec::new();
    let functions = calls.functions.iter().map(|function| {
        let parameters = skeleton(&function.parameters);
        if function.strict || parameters == function.parameters {
            return function.clone();
        }
        names.push(format!("`{}`", function.name));
        Function { parameters, ..function.clone() }
    });
    let functions = functions.collect();
    if names.is_empty() {
        return None;
    }
    let reason = format!(
        "beyond the names and types of their parameters, calls are left to the model ({error}): {}",
        names.join(", ")
    );
    Some((functions, NotEnforced { path: "tools".to_owned(), reason: shortened(&reason) }))
}

/// The schema of an answer with less asked.
fn of_answer(schema: &Value, error: &GrammarError) -> Option<(Value, NotEnforced)> {
    let mut root = schema;
    for _ in 0..REFERENCES_MAX {
        let to = root.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
        let Some(target) = to.and_then(|name| schema.get("$defs")?.get(name)) else { break };
        root = target;
    }
    let less = match root.get("properties") {
        Some(Value::Object(_)) => skeleton(root),
        _ => Value::Object(Map::from_iter(kind(root))),
    };
    let reason = format!("beyond its type and those of its properties, the answer is left to the model ({error})");
    let told = NotEnforced { path: "response_format".to_owned(), reason: shortened(&reason) };
    (less != *schema).then_some((less, told))
}

/// The type of a schema.
fn kind(schema: &Value) -> Option<(String, Value)> {
    schema.get("type").map(|kind| ("type".to_owned(), kind.clone()))
}

/// Names and types of the parameters, where the schema lists them; else any object.
fn skeleton(schema: &Value) -> Value {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return match schema {
            Value::Null => Value::Null,
            // Not by its type alone: between tags it would have no parameters.
            _ => json!({"anyOf": [{"type": "object"}]}),
        };
    };
    let own = properties.iter().map(|(name, schema)| (name.clone(), Value::Object(Map::from_iter(kind(schema)))));
    let mut less = json!({"type": "object", "properties": Map::from_iter(own)});
    // Patterns go, and the names that they allow may then be any.
    let patterns = schema.get("patternProperties").and_then(Value::as_object).is_some_and(|own| !own.is_empty());
    for key in if patterns { &["required"][..] } else { &["required", "additionalProperties"][..] } {
        if let Some(value @ (Value::Array(_) | Value::Bool(_))) = schema.get(*key) {
            less[*key] = value.clone();
        }
    }
    less
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::grammar::Compiler;
    use crate::engine::grammar::agreement::{model, takes};
    use crate::toolcall::Format;

    #[test]
    fn a_function_too_heavy_to_be_followed_is_refused_if_strict_and_called_otherwise() {
        let steps = json!([{"multipleOf": 50_000}, {"multipleOf": 30_000}]);
        let mut heavy = 0;
        for schema in [
            json!({"type": "number", "exclusiveMaximum": 1_000_000, "anyOf": steps}),
            json!({"type": "number", "anyOf": steps}),
            json!({"type": "integer", "maximum": 1_000_000, "anyOf": steps}),
        ] {
            let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
            for format in ["qwen-tags", "hermes", "mistral"].map(|name| Format::named(name).unwrap()) {
                let vocab = Arc::new(model(format, true));
                let mut compiler = Compiler::new(Arc::clone(&vocab) as _, None);
                let mut made = |strict: bool| {
                    let function = Function { name: "f".to_owned(), parameters: parameters.clone(), strict };
                    let functions = vec![function];
                    let calls = Calls { functions, required: true, single: true, several: false, answer: None };
                    compiler.constraint(&Grammar::Calls(calls))
                };
                let Err(error) = made(true) else { continue };
                assert!(error.is_of_weight(), "{error}: {parameters}");
                heavy += 1;
                let mut constraint = made(false).unwrap();
                let left = constraint.not_enforced();
                assert!(left.len() == 1 && left[0].path == "tools" && left[0].reason.contains("`f`"), "{left:?}");
                let arguments = Map::from_iter([("a".to_owned(), json!(7))]);
                let call = format.write(&[("f", &arguments)]);
                assert!(takes(&vocab, &mut constraint, &call), "{call}: {parameters}");
            }
        }
        assert!(heavy >= 3, "{heavy}");
    }

    /// A walk through all functions may take one of the others.
    #[test]
    fn a_function_too_heavy_to_be_followed_is_found_beside_others() {
        let heavy = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "number",
            "exclusiveMaximum": 1_000_000, "anyOf": [{"multipleOf": 50_000}, {"multipleOf": 30_000}]}}});
        let light = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        let vocab = Arc::new(model(Format::named("hermes").unwrap(), true));
        let mut compiler = Compiler::new(Arc::clone(&vocab) as _, None);
        for at in 0..6 {
            for required in [true, false] {
                let mut made = |strict: bool| {
                    let function = |n: usize| match n == at {
                        true => Function { name: format!("f{n}"), parameters: heavy.clone(), strict },
                        false => Function { name: format!("f{n}"), parameters: light.clone(), strict: true },
                    };
                    let functions = (0..6).map(function).collect();
                    let calls = Calls { functions, required, single: true, several: false, answer: None };
                    compiler.constraint(&Grammar::Calls(calls))
                };
                let Err(error) = made(true) else { panic!("{at} of six, {required}") };
                assert!(error.is_of_weight(), "{error}");
                let constraint = made(false).unwrap();
                let [told] = constraint.not_enforced() else { panic!("{:?}", constraint.not_enforced()) };
                assert!(told.path == "tools" && told.reason.contains(&format!("`f{at}`")), "{told:?}");
            }
        }
    }

    #[test]
    fn an_answer_too_heavy_to_be_followed_is_refused_if_strict_and_written_otherwise() {
        let number = json!({"type": "number", "exclusiveMaximum": 1_000_000,
            "anyOf": [{"multipleOf": 50_000}, {"multipleOf": 30_000}]});
        let schema = json!({"type": "object", "properties": {"a": number}, "required": ["a"]});
        let function = Function { name: "f".to_owned(), parameters: json!({"type": "object"}), strict: true };
        let calls = |answer: Value| {
            let functions = vec![function.clone()];
            Grammar::Calls(Calls { functions, required: false, single: true, several: false, answer: Some(answer) })
        };
        let vocab = Arc::new(model(Format::named("hermes").unwrap(), true));
        let mut compiler = Compiler::new(Arc::clone(&vocab) as _, None);
        for grammar in [Grammar::Json(schema.clone()), calls(schema)] {
            let error = compiler.constraint_with(&grammar, false).unwrap_err();
            assert!(error.is_of_weight(), "{error}");
            let mut constraint = compiler.constraint_with(&grammar, true).unwrap();
            let [told] = constraint.not_enforced() else { panic!("{:?}", constraint.not_enforced()) };
            assert!(told.path == "response_format" && told.reason.contains("the answer is left"), "{told:?}");
            assert!(takes(&vocab, &mut constraint, "{\"a\":7}"), "{grammar:?}");
            let mut other = compiler.constraint_with(&grammar, true).unwrap();
            assert!(!takes(&vocab, &mut other, "{\"a\":\"7\"}"), "{grammar:?}");
        }
    }

    #[test]
    fn names_types_and_what_is_required_stay() {
        let function =
            |name: &str, strict: bool, parameters: Value| Function { name: name.to_owned(), parameters, strict };
        let calls = |functions: Vec<Function>| {
            Grammar::Calls(Calls { functions, required: true, single: false, several: false, answer: None })
        };
        let whole = json!({
            "type": "object",
            "properties": {"n": {"type": "integer", "multipleOf": 70_001}, "x": {"$ref": "#/$defs/d"}},
            "required": ["n"],
            "additionalProperties": false,
            "$defs": {"d": {"type": "string", "pattern": "^(ab){2,900}$"}},
        });
        let bare = json!({
            "type": "object", "properties": {"n": {"type": "integer"}, "x": {}}, "required": ["n"],
            "additionalProperties": false,
        });
        // A closed object may have the names of patterns, which go.
        let mut patterns = whole.clone();
        patterns["patternProperties"] = json!({"^x": {"multipleOf": 70_001}});
        let found = skeleton(&patterns);
        assert!(found.get("additionalProperties").is_none() && found["properties"] == bare["properties"], "{found}");
        patterns["patternProperties"] = json!({});
        assert_eq!(skeleton(&patterns), bare);
        let (open, any) = (json!({"allOf": [{"type": "object"}]}), json!({"anyOf": [{"type": "object"}]}));
        let of = |whole: &Value, open: &Value| {
            let last = function("none", false, Value::Null);
            calls(vec![
                function("f", false, whole.clone()),
                function("g", true, open.clone()),
                function("h", false, open.clone()),
                last,
            ])
        };
        let mut less = relaxed(&of(&whole, &open), false, &GrammarError::Costly);
        let Less { grammar, left } = less.remove(0);
        let (Grammar::Calls(found), [told]) = (grammar, &left[..]) else { panic!("no calls") };
        assert!(less.is_empty());
        let parameters: Vec<&Value> = found.functions.iter().map(|f| &f.parameters).collect();
        assert_eq!(parameters, [&bare, &open, &any, &Value::Null]);
        assert!(told.path == "tools" && told.reason.ends_with("compile): `f`, `h`"), "{told:?}");
        let none = |grammar: &Grammar, loose: bool| relaxed(grammar, loose, &GrammarError::Costly).is_empty();
        assert!(none(&calls(vec![function("f", true, whole.clone())]), true));
        assert!(none(&calls(vec![function("f", false, bare.clone())]), true));
        assert!(none(&Grammar::Json(json!({})), true) && none(&Grammar::Json(whole.clone()), false));
        // An answer, whatever it is, alone or beside functions.
        let referred = json!({"$ref": "#/$defs/0", "$defs": {"0": {"$ref": "#/$defs/1"}, "1": whole}});
        let list = json!({"type": "array", "items": whole});
        for (schema, expected) in [(&whole, bare.clone()), (&referred, bare.clone()), (&list, json!({"type": "array"}))]
        {
            let found = relaxed(&Grammar::Json(schema.clone()), true, &GrammarError::Costly);
            let [Less { grammar: Grammar::Json(less), left }] = &found[..] else { panic!("{}", found.len()) };
            assert!(*less == expected && left.len() == 1 && left[0].path == "response_format", "{less}: {left:?}");
        }
        let Grammar::Calls(beside) = of(&whole, &open) else { panic!("no calls") };
        let beside = Grammar::Calls(Calls { required: false, answer: Some(list), ..beside });
        let paths = relaxed(&beside, true, &GrammarError::Costly);
        let paths = paths.iter().map(|less| less.left.iter().map(|told| told.path.as_str()).collect());
        let paths: Vec<Vec<&str>> = paths.collect();
        assert_eq!(paths, [vec!["tools"], vec!["response_format"], vec!["tools", "response_format"]]);
    }
}
