//! `tools` and `tool_choice` of a request.

use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::http::table;
use crate::tools::Tool;

/// Longest name of a function, bytes (OpenAI's limit).
const NAME_BYTES_MAX: usize = 64;

/// Whether the answer calls a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// As the model likes.
    Auto,
    /// It does not: the tools are not shown.
    None,
    /// It does.
    Required,
    /// This one.
    Function(String),
}

/// The tools that the model is shown, and the choice among them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tools {
    /// The caller's.
    pub(crate) list: Vec<Value>,
    /// As the request would define them.
    pub(crate) built_in: Vec<Value>,
    pub(crate) choice: Choice,
}

/// Built-in tools that a request may name.
pub(crate) const BUILT_IN: &[&str] = &["calculate", "date_time"];

/// A name that is said twice counts once.
pub(crate) fn distinct(mut names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// The definitions of the built-in tools that a request names.
pub(crate) fn built_in(names: Option<&[String]>, choices: u32) -> Result<Vec<Value>, ApiError> {
    let names = names.unwrap_or_default();
    if choices > 1 && !names.is_empty() {
        return Err(ApiError::param("n", "built-in tools are called for one answer: `n` must be 1"));
    }
    let definition = |(at, name): (usize, &String)| {
        let wrong = |message: String| Err(ApiError::param(format!("chimere.tools[{at}]"), message));
        crate::tools::named(name).map(Tool::definition).or_else(|error| wrong(error.to_string()))
    };
    names.iter().enumerate().map(definition).collect()
}

/// Checks the tools and `tool_choice`, which may name a built-in tool of this request.
pub(crate) fn tools(
    tools: Option<Vec<Value>>,
    choice: Option<Value>,
    built_in: &[Value],
    limits: &HttpLimits,
) -> Result<Tools, ApiError> {
    let tools = tools.unwrap_or_default();
    if tools.len() > limits.tools_max {
        return Err(ApiError::param("tools", format!("`tools` has more than {} tools", limits.tools_max)));
    }
    let mut names = std::collections::BTreeSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let name = name(tool, at)?;
        if !names.insert(name) {
            let message = format!("two tools have the name `{name}`");
            return Err(ApiError::param(format!("tools[{at}].function.name"), message));
        }
    }
    names.extend(built_in.iter().filter_map(|tool| tool["function"]["name"].as_str()));
    let choice = choice.map_or(Ok(Choice::Auto), |choice| chosen(&choice))?;
    let wrong = |message: String| Err(ApiError::param("tool_choice", message));
    match &choice {
        Choice::None => return Ok(Tools { list: Vec::new(), built_in: Vec::new(), choice }),
        Choice::Required if names.is_empty() => {
            return wrong("`tool_choice` forces a call, but there are no tools".into());
        }
        Choice::Function(name) if !names.contains(name.as_str()) => {
            let built_in = BUILT_IN.contains(&name.as_str());
            let how = format!("; to force a built-in tool, name it in `chimere.tools` too: [\"{name}\"]");
            let how = if built_in { how } else { String::new() };
            return wrong(format!("`tool_choice` names `{name}`, which is not among the tools{how}"));
        }
        _ => {}
    }
    Ok(Tools { list: tools, built_in: built_in.to_vec(), choice })
}

/// How a choice names a function.
const ONE_FUNCTION: &str = r#"`{"type": "function", "function": {"name": "NAME"}}`"#;

fn chosen(choice: &Value) -> Result<Choice, ApiError> {
    let named = |name: &Value| name.as_str().map(|name| Choice::Function(name.chars().take(NAME_BYTES_MAX).collect()));
    let kind = choice.get("type").and_then(Value::as_str);
    let found = match (choice, kind) {
        (Value::String(word), _) => match word.as_str() {
            "auto" => Some(Choice::Auto),
            "none" => Some(Choice::None),
            "required" => Some(Choice::Required),
            _ => None,
        },
        (_, Some("allowed_tools")) => {
            let message = "`tool_choice` of the type `allowed_tools` is not supported: send in `tools` only those that may be \
                           called, and the `mode` (\"auto\" or \"required\") as `tool_choice`";
            return Err(ApiError::unsupported("tool_choice", message));
        }
        (_, Some("custom")) => {
            let message = format!(
                "`tool_choice` of the type `custom` is not supported: only functions can be forced, one by {ONE_FUNCTION} or \
                 all of them by \"required\""
            );
            return Err(ApiError::unsupported("tool_choice", message));
        }
        (_, Some("function")) => named(&choice["function"]["name"]),
        _ => None,
    };
    let sent = || match kind {
        Some("function") => "an object of the type `function` without the text `function.name`".to_owned(),
        Some(kind) => format!("an object of the type {:?}", kind.chars().take(NAME_BYTES_MAX).collect::<String>()),
        None => table::found(choice),
    };
    found.ok_or_else(|| {
        let message =
            format!("`tool_choice` must be \"auto\", \"none\", \"required\" or {ONE_FUNCTION}, not {}", sent());
        ApiError::param("tool_choice", message)
    })
}

fn name(tool: &Value, at: usize) -> Result<&str, ApiError> {
    let wrong = |part: &str, message: &str, sent: Option<&Value>| {
        let sent = sent.map_or_else(|| "and is missing".to_owned(), |sent| format!("not {}", table::found(sent)));
        Err(ApiError::param(format!("tools[{at}]{part}"), format!("{message}, {sent}")))
    };
    if !tool.is_object() {
        return wrong("", "a tool must be an object with `type` and `function`", Some(tool));
    }
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return wrong(".type", "the type of a tool must be `function`", tool.get("type"));
    }
    let Some(function) = tool.get("function").and_then(Value::as_object) else {
        let message = "`function` of a tool must be an object with `name` and `parameters`";
        return wrong(".function", message, tool.get("function"));
    };
    if let Some(strict) = function.get("strict").filter(|strict| !strict.is_boolean() && !strict.is_null()) {
        return wrong(".function.strict", "`strict` must be true or false", Some(strict));
    }
    if let Some(text) = function.get("description").filter(|text| !text.is_string() && !text.is_null()) {
        return wrong(".function.description", "the description must be a text", Some(text));
    }
    let parameters = function.get("parameters").unwrap_or(&Value::Null);
    if !parameters.is_object() && !parameters.is_null() {
        return wrong(".function.parameters", "the parameters must be a JSON Schema object", Some(parameters));
    }
    let allows_object = match &parameters["type"] {
        Value::String(kind) => kind == "object",
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
        kind => kind.is_null(),
    };
    if !allows_object {
        return wrong(
            ".function.parameters.type",
            "the arguments of a call are an object: the `type` must be `object`",
            Some(&parameters["type"]),
        );
    }
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
        let message = "a function's name must have 1 to 64 letters, digits, `_` or `-`";
        return wrong(".function.name", message, function.get("name"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_names_that_a_request_may_say_are_those_of_the_tools() {
        assert_eq!(crate::tools::TOOLS.iter().map(|tool| tool.name).collect::<Vec<_>>(), BUILT_IN);
        let names = ["b", "a", "b"].map(str::to_owned).to_vec();
        assert_eq!(distinct(names), ["b", "a"]);
    }

    #[test]
    fn tools_are_checked_and_choice_applied() {
        let limits = HttpLimits::default();
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
        let of = |list: &[Value], choice: Option<Value>| tools(Some(list.to_vec()), choice, &[], &limits);
        assert_eq!(of(&[tool("f"), tool("g-1")], None).unwrap().list.len(), 2);
        assert_eq!(of(&[tool("f")], Some(json!("auto"))).unwrap().list.len(), 1);
        assert_eq!(of(&[tool("f")], Some(json!("none"))).unwrap().list.len(), 0);
        assert_eq!(of(&[tool("f")], Some(json!("required"))).unwrap().choice, Choice::Required);
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        assert_eq!(of(&[tool("f")], Some(named("f"))).unwrap().choice, Choice::Function("f".to_owned()));
        for choice in
            [named("g"), json!("maybe"), json!({"type": "allowed_tools"}), json!({"type": "function"}), json!(3)]
        {
            assert_eq!(of(&[tool("f")], Some(choice)).unwrap_err().param.as_deref(), Some("tool_choice"));
        }
        assert_eq!(of(&[], Some(json!("required"))).unwrap_err().param.as_deref(), Some("tool_choice"));
        assert!(of(&[tool("a b")], None).is_err());
        assert!(of(&[json!({"type": "retrieval"})], None).is_err());
        assert_eq!(of(&[json!("f")], None).unwrap_err().param.as_deref(), Some("tools[0]"));
        assert_eq!(of(&[tool("f"), tool("f")], None).unwrap_err().message, "two tools have the name `f`");
        let strict = json!({"type": "function", "function": {"name": "f", "strict": "very"}});
        assert_eq!(of(&[strict], None).unwrap_err().param.as_deref(), Some("tools[0].function.strict"));
        let typed = |kind: Value| json!({"type": "function", "function": {"name": "f", "parameters": {"type": kind}}});
        for kind in [json!("string"), json!("array"), json!(["string", "null"]), json!([])] {
            let error = of(&[typed(kind)], None).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters.type"));
        }
        assert!(of(&[typed(json!("object"))], None).is_ok() && of(&[typed(json!(["null", "object"]))], None).is_ok());
    }
}
