//! What is held to less than its schema asks. The schema of a function that is not `strict` may be too much for the
//! compiler of grammars. Then its calls keep the names and types of the parameters, and the rest is left to the model.

use serde_json::{Map, Value, json};

use super::{Calls, Function, Grammar, GrammarError, NotEnforced, shortened};

/// The grammar with less asked of every function that is not `strict`, and what is told of it; `None`: there is nothing
/// to ask less of. `error`: what the whole came to.
pub(super) fn relaxed(grammar: &Grammar, error: &GrammarError) -> Option<(Grammar, NotEnforced)> {
    let Grammar::Calls(calls) = grammar else { return None };
    let mut names = Vec::new();
    let functions = calls.functions.iter().map(|function| {
        let parameters = skeleton(&function.parameters);
        if function.strict || parameters == function.parameters {
            return function.clone();
        }
        names.push(format!("`{}`", function.name));
        Function { parameters, ..function.clone() }
    });
    let less = Calls { functions: functions.collect(), ..calls.clone() };
    if names.is_empty() {
        return None;
    }
    let reason = format!(
        "beyond the names and types of their parameters, calls are left to the model ({error}): {}",
        names.join(", ")
    );
    Some((Grammar::Calls(less), NotEnforced { path: "tools".to_owned(), reason: shortened(&reason) }))
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
    let own = properties.iter().map(|(name, schema)| {
        let kind = schema.get("type").map(|kind| ("type".to_owned(), kind.clone()));
        (name.clone(), Value::Object(Map::from_iter(kind)))
    });
    let mut less = json!({"type": "object", "properties": Map::from_iter(own)});
    for key in ["required", "additionalProperties"] {
        if let Some(value @ (Value::Array(_) | Value::Bool(_))) = schema.get(key) {
            less[key] = value.clone();
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
        let less = json!({
            "type": "object", "properties": {"n": {"type": "integer"}, "x": {}}, "required": ["n"],
            "additionalProperties": false,
        });
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
        let (found, told) = relaxed(&of(&whole, &open), &GrammarError::Costly).unwrap();
        let Grammar::Calls(found) = found else { panic!("no calls") };
        let parameters: Vec<&Value> = found.functions.iter().map(|f| &f.parameters).collect();
        assert_eq!(parameters, [&less, &open, &any, &Value::Null]);
        assert!(told.path == "tools" && told.reason.ends_with("compile): `f`, `h`"), "{told:?}");
        assert_eq!(relaxed(&calls(vec![function("f", true, whole)]), &GrammarError::Costly), None);
        assert_eq!(relaxed(&calls(vec![function("f", false, less)]), &GrammarError::Costly), None);
        assert_eq!(relaxed(&Grammar::Json(json!({})), &GrammarError::Costly), None);
    }
}
