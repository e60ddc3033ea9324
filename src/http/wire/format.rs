//! `response_format` of a request, and the grammar that it makes together with the tools.

use serde::Deserialize;
use serde_json::{Value, json};

use super::tools::{Choice, Tools};
use crate::engine::grammar::{Calls, Function, Grammar, check_schema};
use crate::http::error::ApiError;

/// Longest name of a schema, bytes (OpenAI's limit).
const NAME_BYTES_MAX: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
    json_schema: Option<JsonSchema>,
    /// llama-server's way to give `json_object` a schema.
    schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSchema {
    name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Value,
    /// What a schema asks is enforced or refused, whether it is called strict or not.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// The schema that the answer must satisfy; absent: any text.
pub(crate) fn schema(format: Option<ResponseFormat>) -> Result<Option<Value>, ApiError> {
    let Some(ResponseFormat { kind, json_schema, schema }) = format else { return Ok(None) };
    let at = "response_format.json_schema";
    if let Some(schema) = schema {
        let at = "response_format.schema";
        if kind != "json_object" || json_schema.is_some() {
            return Err(ApiError::param(at, "`schema` belongs to a `response_format` of type `json_object`"));
        }
        check_schema(&schema).map_err(|e| ApiError::param(at, e.to_string()))?;
        return Ok(Some(schema));
    }
    match (kind.as_str(), json_schema) {
        ("text" | "json_object", Some(_)) => {
            Err(ApiError::param(at, "`json_schema` belongs to a `response_format` of type `json_schema`"))
        }
        ("text", None) => Ok(None),
        ("json_object", None) => Ok(Some(json!({"type": "object"}))),
        ("json_schema", None) => Err(ApiError::param(at, format!("`{at}` is missing")).code("missing_parameter")),
        ("json_schema", Some(JsonSchema { name, schema, .. })) => {
            let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
                let message = "a schema's name has 1 to 64 letters, digits, `_` or `-`";
                return Err(ApiError::param(format!("{at}.name"), message));
            }
            check_schema(&schema).map_err(|e| ApiError::param(format!("{at}.schema"), e.to_string()))?;
            Ok(Some(schema))
        }
        _ => {
            let message = "`response_format` must be of type `text`, `json_object` or `json_schema`";
            Err(ApiError::param("response_format.type", message))
        }
    }
}

/// What the answer must be: calls where the choice forces one, the schema's JSON where one was given, and calls with
/// the arguments that a `strict` function asks for. `single`: no second call.
pub(crate) fn grammar(tools: &Tools, schema: Option<Value>, single: bool) -> Result<Option<Grammar>, ApiError> {
    let forced = match &tools.choice {
        Choice::None => return Ok(schema.map(Grammar::Json)),
        Choice::Auto => None,
        Choice::Required => Some(None),
        Choice::Function(name) => Some(Some(name.as_str())),
    };
    let mut functions = Vec::new();
    for (at, tool) in tools.list.iter().enumerate() {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default();
        if forced.flatten().is_some_and(|only| only != name) {
            continue;
        }
        let parameters = function["parameters"].clone();
        let strict = function["strict"].as_bool() == Some(true);
        functions.push((at, Function { name: name.to_owned(), parameters, strict }));
    }
    let strict = functions.iter().any(|(_, f)| f.strict);
    if forced.is_none() && !strict && (schema.is_none() || functions.is_empty()) {
        return Ok(schema.map(Grammar::Json));
    }
    for (at, function) in functions.iter().filter(|(_, f)| !f.parameters.is_null()) {
        check_schema(&function.parameters)
            .map_err(|e| ApiError::param(format!("tools[{at}].function.parameters"), e.to_string()))?;
    }
    let required = forced.is_some();
    Ok(Some(Grammar::Calls(Calls {
        functions: functions.into_iter().map(|(_, f)| f).collect(),
        required,
        single: single || forced.flatten().is_some(),
        answer: schema.filter(|_| !required),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::limits::HttpLimits;
    use crate::http::wire::tools::tools;

    fn format(value: Value) -> Result<Option<Value>, ApiError> {
        schema(Some(crate::http::body::typed(value)?))
    }

    #[test]
    fn formats_are_read_and_what_is_wrong_is_named() {
        assert_eq!(format(json!({"type": "text"})).unwrap(), None);
        assert_eq!(format(json!({"type": "json_object"})).unwrap(), Some(json!({"type": "object"})));
        let own = json!({"type": "array"});
        let full = json!({"type": "json_schema", "json_schema": {"name": "a-b_1", "schema": own, "strict": true}});
        assert_eq!(format(full).unwrap(), Some(own));
        let llama = json!({"type": "json_object", "schema": {"type": "array"}});
        assert_eq!(format(llama).unwrap(), Some(json!({"type": "array"})));
        let of = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        let mut deep = json!({});
        (0..70).for_each(|_| deep = json!({"items": deep}));
        for (param, value) in [
            ("response_format.type", json!({"type": "xml"})),
            ("response_format.json_schema", json!({"type": "json_schema"})),
            ("response_format.schema", json!({"type": "text", "schema": {}})),
            ("response_format.schema", json!({"type": "json_object", "schema": 3})),
            ("response_format.json_schema", json!({"type": "json_object", "json_schema": {"name": "n", "schema": {}}})),
            (
                "response_format.json_schema.name",
                json!({"type": "json_schema", "json_schema": {"name": "", "schema": {}}}),
            ),
            ("json_schema.schema", json!({"type": "json_schema", "json_schema": {"name": "n"}})),
            ("json_schema.name", json!({"type": "json_schema", "json_schema": {"schema": {}}})),
            ("response_format.json_schema.schema", of(json!("string"))),
            ("response_format.json_schema.schema", of(deep)),
            ("response_format.json_schema.schema", of(json!({"$ref": "http://a/b"}))),
        ] {
            let error = format(value.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{value}");
        }
        assert!(format(json!({"type": "text", "strict": true})).is_err());
    }

    #[test]
    fn tools_and_format_make_one_grammar() {
        let tool = |name: &str, strict: bool| json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": {"type": "object"}}});
        let made = |strict: bool, choice: Option<Value>, schema: Option<Value>, single: bool| {
            let list = Some(vec![tool("f", strict), tool("g", false)]);
            let tools = tools(list, choice, &HttpLimits::default()).unwrap();
            grammar(&tools, schema, single).unwrap()
        };
        let calls = |made: Option<Grammar>| match made {
            Some(Grammar::Calls(calls)) => {
                let names: Vec<String> = calls.functions.iter().map(|f| f.name.clone()).collect();
                (names.join(" "), calls.required, calls.single, calls.answer)
            }
            other => panic!("{other:?}"),
        };
        let schema = json!({"type": "null"});
        assert_eq!(made(false, None, None, false), None);
        assert_eq!(made(true, Some(json!("none")), Some(schema.clone()), false), Some(Grammar::Json(schema.clone())));
        assert_eq!(calls(made(true, None, None, true)), ("f g".to_owned(), false, true, None));
        assert_eq!(calls(made(false, None, Some(schema.clone()), false)).3, Some(schema.clone()));
        let required = made(false, Some(json!("required")), Some(schema), false);
        assert_eq!(calls(required), ("f g".to_owned(), true, false, None));
        let named = json!({"type": "function", "function": {"name": "g"}});
        assert_eq!(calls(made(true, Some(named), None, false)), ("g".to_owned(), true, true, None));
        let far = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": {"$ref": "x"}}});
        let tools = tools(Some(vec![far]), None, &HttpLimits::default()).unwrap();
        assert_eq!(grammar(&tools, None, false).unwrap_err().param.as_deref(), Some("tools[0].function.parameters"));
    }
}
