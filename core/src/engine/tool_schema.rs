//! Tool definitions in the order of keys that models were trained on. Clients write the same definition in many
//! orders, and some sort their keys. A template prints it as it stands, so a small model may read an order that it
//! never saw. The model nano passed 20 % of the tool items of an exam with sorted keys. It passed 62 % in the usual
//! order.

use serde_json::{Map, Value};

const TOOL_KEYS: &[&str] = &["type", "function"];
const FUNCTION_KEYS: &[&str] = &["name", "description", "parameters"];
const SCHEMA_KEYS: &[&str] = &["type", "description", "enum", "items", "properties", "required"];
/// Schemas nested deeper than this stay as they are.
const DEPTH_MAX: usize = 32;

/// The definition with its keys in the usual order; unknown keys follow, and parameters keep their own order.
pub(super) fn in_usual_order(tool: &Value) -> Value {
    let Value::Object(tool) = tool else { return tool.clone() };
    let mut tool = sorted(tool, TOOL_KEYS);
    if let Some(Value::Object(function)) = tool.get("function") {
        let mut function = sorted(function, FUNCTION_KEYS);
        if let Some(parameters) = function.get_mut("parameters") {
            *parameters = schema(parameters, DEPTH_MAX);
        }
        tool.insert("function".to_owned(), Value::Object(function));
    }
    Value::Object(tool)
}

fn schema(value: &Value, depth: usize) -> Value {
    let (Value::Object(object), 1..) = (value, depth) else { return value.clone() };
    let mut object = sorted(object, SCHEMA_KEYS);
    if let Some(items) = object.get_mut("items") {
        *items = schema(items, depth - 1);
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(|property| *property = schema(property, depth - 1));
    }
    Value::Object(object)
}

fn sorted(object: &Map<String, Value>, first: &[&str]) -> Map<String, Value> {
    let known = first.iter().filter_map(|key| object.get_key_value(*key));
    let others = object.iter().filter(|(key, _)| !first.contains(&key.as_str()));
    known.chain(others).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_take_the_usual_order_and_parameters_keep_theirs() {
        let tool: Value = serde_json::from_str(
            r#"{"function":{"description":"d","name":"n","parameters":{"properties":{"type":{"description":"x","type":"string"},
            "a":{"items":{"enum":[1],"type":"integer"},"type":"array"}},"required":["type"],"type":"object"},"strict":true},"type":"function"}"#,
        )
        .unwrap();
        assert_eq!(
            in_usual_order(&tool).to_string(),
            r#"{"type":"function","function":{"name":"n","description":"d","parameters":{"type":"object","properties":{"type":{"type":"string","description":"x"},"a":{"type":"array","items":{"type":"integer","enum":[1]}}},"required":["type"]},"strict":true}}"#
        );
    }

    #[test]
    fn whatever_is_no_definition_stays_as_it_is() {
        for odd in ["7", "[]", "{}", r#"{"function":7}"#, r#"{"function":{"parameters":[{"b":1,"a":2}]}}"#] {
            let value: Value = serde_json::from_str(odd).unwrap();
            assert_eq!(in_usual_order(&value), value);
        }
    }
}
