//! `response_format` of a request, and the grammar that it makes together with the tools.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::comparing::compared;
use super::tools::{Choice, Tools};
use crate::engine::grammar::{
    Calls, FormTerms, Function, Grammar, GrammarError, NotEnforced, Prepared, check_schema, prepare_until,
};
use crate::http::error::ApiError;
use crate::http::table;
use crate::meters;

/// Longest name of a schema, bytes (OpenAI's limit).
const NAME_BYTES_MAX: usize = 64;
/// How long the patterns of a request's schemas are compared, all together.
const COMPARING_MAX: Duration = Duration::from_secs(2);

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
    pub(crate) terms: FormTerms,
    pub(crate) not_enforced: Vec<NotEnforced>,
}

impl Asked {
    /// Makes a schema ready, within the time that is there for all of a request. Places in it are told with the parameter
    /// where it stands.
    fn prepare(&mut self, schema: &Value, strict: bool, param: &str, until: Instant) -> Result<Value, ApiError> {
        let wrong = |e: GrammarError| {
            meters::form_refused();
            ApiError::param(param, e.to_string())
        };
        check_schema(schema).map_err(wrong)?;
        let Prepared { schema, not_enforced, .. } =
            compared(schema, until, |until| prepare_until(schema, strict, until)).map_err(wrong)?;
        let own = not_enforced.into_iter().map(|n| NotEnforced { path: format!("{param}{}", n.path), ..n });
        self.not_enforced.extend(own);
        Ok(schema)
    }

    /// Functions whose arguments can be held to their schemas. Each comes with its place among the tools.
    fn functions(&mut self, offered: &[(usize, &Value)], until: Instant) -> Result<Vec<Function>, ApiError> {
        let made = |(at, tool): &(usize, &Value)| {
            let function = &tool["function"];
            let name = function["name"].as_str().unwrap_or_default().to_owned();
            let strict = function["strict"].as_bool() == Some(true);
            let parameters = match &function["parameters"] {
                // A function without parameters takes none.
                Value::Null => json!({"type": "object", "properties": {}, "additionalProperties": false}),
                schema => self.prepare(schema, strict, &format!("tools[{at}].function.parameters"), until)?,
            };
            Ok(Function { name, parameters, strict })
        };
        offered.iter().map(made).collect()
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
        (other, _) => {
            let sent = table::found(&json!(other));
            let message =
                format!("the type of `response_format` must be `text`, `json_object` or `json_schema`, not {sent}");
            Err(ApiError::param("response_format.type", message))
        }
    }
}

/// What the answer must be: calls where the choice forces one, the schema's JSON where one was given, and calls with
/// the arguments that a `strict` function asks for. `parallel`: whether several calls are wished, where that was said.
pub(crate) fn grammar(tools: &Tools, schema: Option<AnswerSchema>, parallel: Option<bool>) -> Result<Asked, ApiError> {
    let (mut asked, until) = (Asked::default(), Instant::now() + COMPARING_MAX);
    let answer = match schema {
        Some(AnswerSchema { schema, strict, param }) => {
            asked.terms.loose = !strict;
            Some(asked.prepare(&schema, strict, param, until)?)
        }
        None => None,
    };
    let forced = match &tools.choice {
        Choice::None => return Ok(Asked { grammar: answer.map(Grammar::Json), ..asked }),
        Choice::Auto => None,
        Choice::Required => Some(None),
        Choice::Function(name) => Some(Some(name.as_str())),
    };
    let is_named = |name: &str| forced.flatten().is_none_or(|only| name == only);
    let name = |tool: &Value| tool["function"]["name"].as_str().is_some_and(is_named);
    let all: Vec<(usize, &Value)> = tools.list.iter().chain(&tools.built_in).enumerate().collect();
    let offered: Vec<(usize, &Value)> = all.iter().copied().filter(|(_, tool)| name(tool)).collect();
    if forced.is_some() && answer.is_some() && !tools.built_in.is_empty() {
        let message =
            "a built-in tool cannot be forced where the answer is held to a form: leave the choice to the model";
        return Err(ApiError::param("tool_choice", message));
    }
    let any_strict = |tools: &[(usize, &Value)]| tools.iter().any(|(_, tool)| tool["function"]["strict"] == true);
    if forced.is_none() && !any_strict(&offered) && (answer.is_none() || offered.is_empty()) {
        return Ok(Asked { grammar: answer.map(Grammar::Json), ..asked });
    }
    // Behind a call of a built-in tool the answer goes on, and may call all of them.
    let goes_on = forced.is_some() && offered.iter().any(|(at, _)| *at >= tools.list.len());
    let goes_on_strictly = goes_on && any_strict(&all);
    let mut functions = asked.functions(if goes_on_strictly { &all } else { &offered }, until)?;
    let (required, named) = (forced.is_some(), forced.flatten().is_some());
    let (single, several) = (parallel == Some(false), parallel == Some(true));
    if goes_on_strictly {
        let later = Calls { functions: functions.clone(), required: false, single, several, answer: None };
        asked.terms.later = Some(Box::new(Grammar::Calls(later)));
        functions.retain(|function| is_named(&function.name));
    }
    let single = single || named;
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
            assert_eq!((asked.grammar, asked.terms.loose), (Some(Grammar::Json(left)), true));
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

    /// What the time did not reach is left to the model, and the engine, which looks at it again, agrees.
    #[test]
    fn patterns_of_names_that_were_not_compared_are_left_to_the_model_unless_strict() {
        let named: serde_json::Map<String, Value> =
            (0..3).map(|n| (format!("^x{n}_"), json!({"type": "null"}))).collect();
        let schema = json!({"type": "object", "patternProperties": named});
        let over = Instant::now();
        let mut asked = Asked::default();
        let ready = asked.prepare(&schema, false, "p", over).unwrap();
        let paths: Vec<&str> = asked.not_enforced.iter().map(|told| told.path.as_str()).collect();
        assert_eq!(paths, ["p#/patternProperties/^x1_", "p#/patternProperties/^x2_"]);
        assert_eq!(ready, json!({"type": "object", "patternProperties": {"^x0_": {"type": "null"}}}));
        assert!(asked.not_enforced.iter().all(|told| told.reason.contains("the patterns are too large")));
        assert_eq!(Asked::default().prepare(&schema, true, "p", over).unwrap(), schema);
    }

    /// A call of a built-in tool is forced, and behind it the answer goes on.
    #[test]
    fn every_function_is_examined_where_a_built_in_one_is_forced() {
        let own = |strict: bool, keyword: &str| {
            let parameters = json!({"type": "object", "properties": {"n": {"type": "array", keyword: true}}});
            json!({"type": "function", "function": {"name": "f", "strict": strict, "parameters": parameters}})
        };
        let plain = json!({"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}});
        let asked = |list: &[Value], choice: Value| {
            let built_in = super::super::tools::built_in(Some(&["calculate".to_owned()]), 1)?;
            let tools = tools(Some(list.to_vec()), Some(choice), &built_in, &HttpLimits::default())?;
            grammar(&tools, None, Some(false))
        };
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        let names = |form: &Grammar| match form {
            Grammar::Calls(calls) => {
                let names: Vec<&str> = calls.functions.iter().map(|f| f.name.as_str()).collect();
                (names.join(" "), calls.required, calls.single)
            }
            json => panic!("{json:?}"),
        };
        for choice in [named("calculate"), json!("required")] {
            let error = asked(&[own(true, "uniqueItems")], choice.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters"), "{choice}");
            assert!(error.message.contains("#/properties/n/uniqueItems"), "{}", error.message);
            let list = [own(true, "description"), plain.clone()];
            let Asked { grammar, terms, not_enforced } = asked(&list, choice.clone()).unwrap();
            let first = if choice.is_string() { "f g calculate" } else { "calculate" };
            assert_eq!(names(&grammar.unwrap()), (first.to_owned(), true, true));
            assert_eq!(names(&terms.later.unwrap()), ("f g calculate".to_owned(), false, true));
            assert!(not_enforced.is_empty());
            // Nothing is asked of the calls that follow.
            let list = [own(false, "uniqueItems"), plain.clone()];
            let Asked { terms, not_enforced, .. } = asked(&list, choice.clone()).unwrap();
            assert_eq!((terms.later, not_enforced.len()), (None, usize::from(choice.is_string())));
        }
        // What is left of another function, where one is strict.
        let mut other = own(false, "uniqueItems");
        other["function"]["name"] = json!("h");
        let told = asked(&[own(true, "description"), other], named("calculate")).unwrap().not_enforced;
        assert_eq!(told[0].path, "tools[1].function.parameters#/properties/n/uniqueItems");
        // The client's own call ends the reply.
        let own_forced = asked(&[own(true, "description"), plain], named("g")).unwrap();
        assert_eq!(own_forced.terms.later, None);
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
