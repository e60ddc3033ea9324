//! `response_format` of a request, and the grammar that it makes together with the tools.

use serde::Deserialize;
use serde_json::{Value, json};

use super::tools::{Choice, Tools};
use crate::engine::grammar::{Calls, Function, Grammar, GrammarError, NotEnforced, Prepared, check_schema, prepare};
use crate::http::error::ApiError;
use crate::meters;

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
    /// What OpenAI's other API writes here belongs one level deeper: refused with that.
    name: Option<Value>,
    strict: Option<Value>,
    description: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSchema {
    name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Value,
    /// What cannot be enforced is refused; otherwise it is left to the model.
    strict: Option<bool>,
}

/// What the answer must be, and what the client's schemas ask beyond it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Asked {
    pub(crate) grammar: Option<Grammar>,
    pub(crate) not_enforced: Vec<NotEnforced>,
}

impl Asked {
    /// Makes a schema ready. Places in it are told with the parameter where it stands.
    fn prepare(&mut self, schema: &Value, strict: bool, param: &str) -> Result<Value, ApiError> {
        let wrong = |e: GrammarError| {
            meters::form_refused();
            ApiError::param(param, e.to_string())
        };
        check_schema(schema).map_err(wrong)?;
        let Prepared { schema, not_enforced, .. } = prepare(schema, strict).map_err(wrong)?;
        let own = not_enforced.into_iter().map(|n| NotEnforced { path: format!("{param}{}", n.path), ..n });
        self.not_enforced.extend(own);
        Ok(schema)
    }
}

/// The schema that the answer must satisfy.
#[derive(Debug, PartialEq)]
pub(crate) struct AnswerSchema {
    schema: Value,
    strict: bool,
    /// Where it stood in the request.
    param: &'static str,
}

/// The schema that the answer must satisfy; absent: any text.
pub(crate) fn schema(format: Option<ResponseFormat>) -> Result<Option<AnswerSchema>, ApiError> {
    let Some(ResponseFormat { kind, json_schema, schema, name, strict, description }) = format else { return Ok(None) };
    let at = "response_format.json_schema";
    for (key, value) in [("name", name), ("strict", strict), ("description", description)] {
        if value.is_some() {
            let message = format!("unknown parameter `response_format.{key}`: `{key}` and `schema` belong in `{at}`");
            return Err(ApiError::param(format!("response_format.{key}"), message).code("unknown_parameter"));
        }
    }
    if let Some(schema) = schema {
        let at = "response_format.schema";
        if kind != "json_object" || json_schema.is_some() {
            return Err(ApiError::param(at, "`schema` belongs to a `response_format` of type `json_object`"));
        }
        return Ok(Some(AnswerSchema { schema, strict: false, param: at }));
    }
    match (kind.as_str(), json_schema) {
        ("text" | "json_object", Some(_)) => {
            Err(ApiError::param(at, "`json_schema` belongs to a `response_format` of type `json_schema`"))
        }
        ("text", None) => Ok(None),
        ("json_object", None) => {
            Ok(Some(AnswerSchema { schema: json!({"type": "object"}), strict: false, param: "response_format" }))
        }
        ("json_schema", None) => Err(ApiError::param(at, format!("`{at}` is missing")).code("missing_parameter")),
        ("json_schema", Some(JsonSchema { name, schema, strict, .. })) => {
            let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
                let message = "a schema's name has 1 to 64 letters, digits, `_` or `-`";
                return Err(ApiError::param(format!("{at}.name"), message));
            }
            let strict = strict == Some(true);
            Ok(Some(AnswerSchema { schema, strict, param: "response_format.json_schema.schema" }))
        }
        _ => {
            let message = "`response_format` must be of type `text`, `json_object` or `json_schema`";
            Err(ApiError::param("response_format.type", message))
        }
    }
}

/// What the answer must be: calls where the choice forces one, the schema's JSON where one was given, and calls with
/// the arguments that a `strict` function asks for. `parallel`: whether several calls are wished, where that was said.
pub(crate) fn grammar(tools: &Tools, schema: Option<AnswerSchema>, parallel: Option<bool>) -> Result<Asked, ApiError> {
    let mut asked = Asked::default();
    let answer = match schema {
        Some(AnswerSchema { schema, strict, param }) => Some(asked.prepare(&schema, strict, param)?),
        None => None,
    };
    let forced = match &tools.choice {
        Choice::None => return Ok(Asked { grammar: answer.map(Grammar::Json), ..asked }),
        Choice::Auto => None,
        Choice::Required => Some(None),
        Choice::Function(name) => Some(Some(name.as_str())),
    };
    let named = |tool: &Value| forced.flatten().is_none_or(|only| tool["function"]["name"].as_str() == Some(only));
    let all = tools.list.iter().chain(&tools.built_in);
    let offered: Vec<(usize, &Value)> = all.enumerate().filter(|(_, tool)| named(tool)).collect();
    if forced.is_some() && answer.is_some() && !tools.built_in.is_empty() {
        let message =
            "a built-in tool cannot be forced where the answer is held to a form: leave the choice to the model";
        return Err(ApiError::param("tool_choice", message));
    }
    let strict = offered.iter().any(|(_, tool)| tool["function"]["strict"] == true);
    if forced.is_none() && !strict && (answer.is_none() || offered.is_empty()) {
        return Ok(Asked { grammar: answer.map(Grammar::Json), ..asked });
    }
    let mut functions = Vec::new();
    for (at, tool) in offered {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        let strict = function["strict"].as_bool() == Some(true);
        let parameters = match &function["parameters"] {
            // A function without parameters takes none.
            Value::Null => json!({"type": "object", "properties": {}, "additionalProperties": false}),
            schema => asked.prepare(schema, strict, &format!("tools[{at}].function.parameters"))?,
        };
        functions.push(Function { name, parameters, strict });
    }
    let (required, named) = (forced.is_some(), forced.flatten().is_some());
    let (single, several) = (parallel == Some(false) || named, parallel == Some(true));
    let calls = Calls { functions, required, single, several, answer: answer.filter(|_| !required) };
    Ok(Asked { grammar: Some(Grammar::Calls(calls)), ..asked })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::limits::HttpLimits;
    use crate::http::wire::tools::tools;

    fn asked(value: Value) -> Result<Asked, ApiError> {
        let tools = tools(None, None, &[], &HttpLimits::default())?;
        grammar(&tools, schema(Some(crate::http::body::typed(value)?))?, None)
    }

    fn format(value: Value) -> Result<Option<Value>, ApiError> {
        match asked(value)?.grammar {
            Some(Grammar::Json(schema)) => Ok(Some(schema)),
            _ => Ok(None),
        }
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
    fn what_cannot_be_enforced_is_refused_if_strict_and_said_otherwise() {
        let unique = json!({"type": "object", "properties": {"a/b": {"type": "array", "uniqueItems": true}}});
        let of = |strict: Option<bool>| {
            let own = json!({"name": "n", "schema": unique, "strict": strict});
            asked(json!({"type": "json_schema", "json_schema": own}))
        };
        let error = of(Some(true)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("response_format.json_schema.schema"));
        assert!(error.message.contains("#/properties/a~1b/uniqueItems"), "{}", error.message);
        for strict in [Some(false), None] {
            let asked = of(strict).unwrap();
            assert_eq!(asked.not_enforced.len(), 1);
            let path = "response_format.json_schema.schema#/properties/a~1b/uniqueItems";
            assert_eq!(asked.not_enforced[0].path, path);
            let left = json!({"type": "object", "properties": {"a/b": {"type": "array"}}});
            assert_eq!(asked.grammar, Some(Grammar::Json(left)));
        }
        let forced = |strict: bool| {
            let function = json!({"name": "f", "strict": strict, "parameters": unique});
            let list = vec![json!({"type": "function", "function": function})];
            let tools = tools(Some(list), Some(json!("required")), &[], &HttpLimits::default()).unwrap();
            grammar(&tools, None, None)
        };
        assert_eq!(forced(true).unwrap_err().param.as_deref(), Some("tools[0].function.parameters"));
        let path = "tools[0].function.parameters#/properties/a~1b/uniqueItems";
        assert_eq!(forced(false).unwrap().not_enforced[0].path, path);
    }

    #[test]
    fn tools_and_format_make_one_grammar() {
        let tool = |name: &str, strict: bool| json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": {"type": "object"}}});
        let made = |strict: bool, choice: Option<Value>, schema: Option<Value>, single: bool| {
            let list = Some(vec![tool("f", strict), tool("g", false)]);
            let tools = tools(list, choice, &[], &HttpLimits::default()).unwrap();
            let schema = schema.map(|schema| AnswerSchema { schema, strict: true, param: "" });
            grammar(&tools, schema, single.then_some(false)).unwrap().grammar
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
        let bare = vec![json!({"type": "function", "function": {"name": "f"}})];
        let tools_bare = tools(Some(bare), Some(json!("required")), &[], &HttpLimits::default()).unwrap();
        let Some(Grammar::Calls(none)) = grammar(&tools_bare, None, None).unwrap().grammar else { panic!("no calls") };
        assert_eq!(none.functions[0].parameters["additionalProperties"], json!(false), "it takes no arguments");
        let far = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": {"$ref": "x"}}});
        let tools = tools(Some(vec![far]), None, &[], &HttpLimits::default()).unwrap();
        assert_eq!(grammar(&tools, None, None).unwrap_err().param.as_deref(), Some("tools[0].function.parameters"));
    }
}
