//! `tools` and `tool_choice` of a request.

use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;

/// Longest name of a function, bytes (OpenAI's limit).
const NAME_BYTES_MAX: usize = 64;

/// Checks the tools and applies `tool_choice`: `none` hides them, `auto` leaves the choice to the model.
/// Forcing a call needs a grammar, and is refused until there is one.
pub(crate) fn tools(
    tools: Option<Vec<Value>>,
    choice: Option<Value>,
    limits: &HttpLimits,
) -> Result<Vec<Value>, ApiError> {
    let tools = tools.unwrap_or_default();
    if tools.len() > limits.tools_max {
        return Err(ApiError::param("tools", format!("`tools` has more than {} tools", limits.tools_max)));
    }
    let mut names = std::collections::BTreeSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let name = name(tool, at)?;
        if !names.insert(name) {
            return Err(ApiError::param(format!("tools[{at}].function.name"), "two tools have this name"));
        }
    }
    match choice.as_ref().and_then(Value::as_str) {
        None if choice.is_none() => Ok(tools),
        Some("auto") => Ok(tools),
        Some("none") => Ok(Vec::new()),
        Some("required") | None => Err(ApiError::unsupported(
            "tool_choice",
            "forcing a tool call is not built yet: use `tool_choice` \"auto\" or \"none\"",
        )),
        Some(_) => Err(ApiError::param("tool_choice", "`tool_choice` must be \"auto\" or \"none\"")),
    }
}

fn name(tool: &Value, at: usize) -> Result<&str, ApiError> {
    let wrong = |part: &str, message: &str| Err(ApiError::param(format!("tools[{at}]{part}"), message));
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return wrong(".type", "a tool must be of type `function`");
    }
    let Some(function) = tool.get("function").and_then(Value::as_object) else {
        return wrong(".function", "a tool needs an object `function`");
    };
    if function.get("strict").and_then(Value::as_bool) == Some(true) {
        let message = "strict arguments are not built yet: leave `strict` out";
        return Err(ApiError::unsupported(format!("tools[{at}].function.strict"), message));
    }
    if function.get("parameters").is_some_and(|p| !p.is_object() && !p.is_null()) {
        return wrong(".function.parameters", "the parameters must be a JSON Schema object");
    }
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
        return wrong(".function.name", "a function's name has 1 to 64 letters, digits, `_` or `-`");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_are_checked_and_choice_applied() {
        let limits = HttpLimits::default();
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
        let of = |list: &[Value], choice: Option<Value>| tools(Some(list.to_vec()), choice, &limits);
        assert_eq!(of(&[tool("f"), tool("g-1")], None).unwrap().len(), 2);
        assert_eq!(of(&[tool("f")], Some(json!("auto"))).unwrap().len(), 1);
        assert_eq!(of(&[tool("f")], Some(json!("none"))).unwrap().len(), 0);
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}}), json!("maybe")] {
            assert_eq!(of(&[tool("f")], Some(choice)).unwrap_err().param.as_deref(), Some("tool_choice"));
        }
        assert!(of(&[tool("f"), tool("f")], None).is_err());
        assert!(of(&[tool("a b")], None).is_err());
        assert!(of(&[json!({"type": "retrieval"})], None).is_err());
        let strict = json!({"type": "function", "function": {"name": "f", "strict": true}});
        assert_eq!(of(&[strict], None).unwrap_err().code, Some("unsupported_parameter"));
    }
}
