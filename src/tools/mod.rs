//! Built-in tools: what a model may have done inside a reply where pipeline or request allows it by name. A tool is one
//! file: its name, what it takes, what it may touch, and its `run`.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::turn::CallOutcome;

pub mod calculate;
mod date_time;

/// Bytes of a call's arguments as JSON.
pub const ARGUMENTS_BYTES_MAX: usize = 16 << 10;
/// Bytes of a result that a model is shown.
pub const OUTPUT_BYTES_MAX: usize = 8 << 10;
/// What one call may take, where nobody says less.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Processes of tools that run at once; further calls wait within their deadline.
const PROCESSES_MAX: usize = 4;

/// Every tool that there is.
pub static TOOLS: &[Tool] = &[calculate::TOOL, date_time::TOOL];

/// Names that stand for tools to come, each with the part that it needs. The index of documents is there; a request or a
/// pipeline asks it, and no model does yet.
pub static RESERVED: &[(&str, &str)] = &[
    ("search_documents", "a search by the model itself (a request's `chimere.documents` shows it passages today)"),
    ("search_web", "the user's word before a model searches the web"),
    ("fetch_page", "the user's word before a model reads a page"),
    ("remember", "a memory of facts"),
    ("recall", "a memory of facts"),
];

/// What a tool does with the arguments of one call.
pub type Run = for<'a> fn(&'a Toolbox, Value) -> BoxFuture<'a, Result<String, ToolError>>;

/// One tool.
pub struct Tool {
    pub name: &'static str,
    /// For the model.
    pub description: &'static str,
    /// JSON Schema of the arguments.
    pub parameters: fn() -> Value,
    /// It changes something outside the reply.
    pub effects: bool,
    /// Its results are the words of others: what a model makes of them is not learned from.
    pub taints: bool,
    pub run: Run,
}

impl Tool {
    /// As a chat's request defines it.
    pub fn definition(&self) -> Value {
        let function = json!({"name": self.name, "description": self.description, "parameters": (self.parameters)()});
        json!({"type": "function", "function": function})
    }
}

/// The tools and the names kept for others, as a list of OpenAI's API.
pub fn list() -> Value {
    let there = TOOLS.iter().map(|tool| {
        json!({"id": tool.name, "object": "tool", "state": "ready", "description": tool.description,
            "parameters": (tool.parameters)(), "effects": tool.effects, "taints": tool.taints})
    });
    let kept = RESERVED.iter();
    let kept = kept.map(|(name, part)| json!({"id": name, "object": "tool", "state": "not_built", "needs": part}));
    json!({"object": "list", "data": there.chain(kept).collect::<Vec<_>>()})
}

/// Why a call has no result, in words that the model may read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    #[error("there is no tool {}; there are {}", shown(.0), names())]
    Unknown(String),
    #[error("`{name}` needs {part}: that is not built yet")]
    NotBuilt { name: &'static str, part: &'static str },
    /// The arguments cannot be meant.
    #[error("the arguments cannot be used: {0}")]
    Arguments(String),
    /// What was asked for cannot be had.
    #[error("{0}")]
    Refused(String),
    #[error("the tool took over {} ms and was ended", .0.as_millis())]
    Late(Duration),
    #[error("`{0}` changes something, and asking the user first is not built yet")]
    Effects(String),
    /// A fault of ours.
    #[error("the tool failed: {0}")]
    Failed(String),
}

impl ToolError {
    /// Its kind, for the record of the call.
    pub fn outcome(&self) -> CallOutcome {
        match self {
            ToolError::Arguments(_) => CallOutcome::Arguments,
            ToolError::Late(_) => CallOutcome::Late,
            ToolError::Failed(_) => CallOutcome::Failed,
            ToolError::Unknown(_) | ToolError::NotBuilt { .. } | ToolError::Refused(_) | ToolError::Effects(_) => {
                CallOutcome::Refused
            }
        }
    }
}

/// At most 64 characters of a model's or client's word.
fn shown(word: &str) -> String {
    format!("{:?}", word.chars().take(64).collect::<String>())
}

fn names() -> String {
    names_of(TOOLS)
}

fn names_of(tools: &[Tool]) -> String {
    tools.iter().map(|tool| format!("`{}`", tool.name)).collect::<Vec<_>>().join(", ")
}

/// The built-in tool of that name, or why there is none.
pub fn named(name: &str) -> Result<&'static Tool, ToolError> {
    among(TOOLS, name)
}

fn among(tools: &'static [Tool], name: &str) -> Result<&'static Tool, ToolError> {
    if let Some(tool) = tools.iter().find(|tool| tool.name == name) {
        return Ok(tool);
    }
    match RESERVED.iter().find(|(reserved, _)| *reserved == name) {
        Some((name, part)) => Err(ToolError::NotBuilt { name, part }),
        None => Err(ToolError::Unknown(name.to_owned())),
    }
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// At most `OUTPUT_BYTES_MAX`, and a word where more was cut off.
    pub text: String,
    /// Bytes of the whole.
    pub bytes: usize,
}

/// What the tools work with.
pub struct Toolbox {
    /// This very program, for calls that want a process of their own.
    program: PathBuf,
    clock: Clock,
    processes: Semaphore,
    tools: &'static [Tool],
}

impl Toolbox {
    pub fn new(program: PathBuf, clock: Clock) -> Self {
        Toolbox::of(TOOLS, program, clock)
    }

    /// With these tools in the place of the built-in ones.
    pub fn of(tools: &'static [Tool], program: PathBuf, clock: Clock) -> Self {
        Toolbox { program, clock, processes: Semaphore::new(PROCESSES_MAX), tools }
    }

    /// The tool of that name, or why a reply cannot have it.
    pub fn named(&self, name: &str) -> Result<&'static Tool, ToolError> {
        match among(self.tools, name)? {
            tool if tool.effects => Err(ToolError::Effects(name.to_owned())),
            tool => Ok(tool),
        }
    }

    /// Runs the tool of that name with arguments as a model writes them. A call that is dropped is ended.
    pub async fn run(&self, name: &str, arguments: &str, deadline: Duration) -> Result<Output, ToolError> {
        let tool = self.named(name)?;
        if arguments.len() > ARGUMENTS_BYTES_MAX {
            return Err(ToolError::Arguments(format!("they are more than {ARGUMENTS_BYTES_MAX} bytes")));
        }
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let value =
            serde_json::from_str(arguments).map_err(|e| ToolError::Arguments(format!("they are no JSON: {e}")))?;
        let output = timeout(deadline, (tool.run)(self, value)).await.map_err(|_| ToolError::Late(deadline))??;
        Ok(Output { bytes: output.len(), text: cut(output) })
    }
}

/// A result that fits, and says so where it was cut.
fn cut(mut output: String) -> String {
    if output.len() > OUTPUT_BYTES_MAX {
        output.truncate(output.floor_char_boundary(OUTPUT_BYTES_MAX));
        output.push_str("\n[cut: the result was longer]");
    }
    output
}

/// Arguments in a tool's own form.
fn read<T: DeserializeOwned>(mut arguments: Value) -> Result<T, ToolError> {
    let Some(fields) = arguments.as_object_mut() else {
        return Err(ToolError::Arguments("they must be one JSON object".to_owned()));
    };
    fields.values_mut().for_each(to_whole);
    serde_path_to_error::deserialize(arguments).map_err(|e| {
        let words: String = e.to_string().chars().take(300).collect();
        ToolError::Arguments(words)
    })
}

/// A whole number written with a fraction of zero becomes one without; up to 2^53 every whole number is exact.
fn to_whole(value: &mut Value) {
    if let Some(float) = value.as_f64().filter(|float| value.is_f64() && float.fract() == 0.0)
        && float.abs() <= 9_007_199_254_740_992.0
    {
        *value = Value::from(float as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolbox() -> Toolbox {
        Toolbox::new("/nonexistent".into(), Clock::from_fn(|| 0))
    }

    #[tokio::test]
    async fn a_wrong_call_is_told_what_was_wrong() {
        for (name, arguments, words) in [
            ("calculater", "{}", "there is no tool \"calculater\"; there are `calculate`, `date_time`"),
            (
                "search_web",
                "{}",
                "`search_web` needs the user's word before a model searches the web: that is not built yet",
            ),
            ("recall", "nonsense", "`recall` needs a memory of facts"),
            ("date_time", "{\"operation\": ", "no JSON"),
            ("date_time", "[1]", "one JSON object"),
            ("date_time", "", "missing field `operation`"),
            ("date_time", r#"{"operation": "then"}"#, "unknown variant `then`"),
            ("date_time", r#"{"operation": "now", "zon": "UTC"}"#, "unknown field `zon`"),
            ("calculate", r#"{"expression": 3}"#, "expression: invalid type: integer"),
            ("calculate", r#"{"expression": "1+1"}"#, "the tool failed"),
        ] {
            let error = toolbox().run(name, arguments, CALL_TIMEOUT).await.unwrap_err().to_string();
            assert!(error.contains(words), "{name} {arguments}: {error}");
        }
        let long = format!("{{\"expression\": \"{}\"}}", "1".repeat(ARGUMENTS_BYTES_MAX));
        let error = toolbox().run("calculate", &long, CALL_TIMEOUT).await.unwrap_err().to_string();
        assert!(error.contains("more than 16384 bytes"), "{error}");
        let error = toolbox().run(&"é".repeat(10_000), "{}", CALL_TIMEOUT).await.unwrap_err().to_string();
        assert!(error.len() < 300, "{error}");
    }

    #[test]
    fn a_long_result_is_cut_at_a_character() {
        assert_eq!(cut("short".to_owned()), "short");
        let long = cut("é".repeat(OUTPUT_BYTES_MAX));
        assert!(long.ends_with("[cut: the result was longer]") && long.len() < OUTPUT_BYTES_MAX + 40);
    }

    /// A form can be made of every schema, and what a tool needs is among what it takes.
    #[test]
    fn the_definitions_are_well_formed() {
        for tool in TOOLS {
            let definition = tool.definition();
            let parameters = &definition["function"]["parameters"];
            assert_eq!(parameters["type"], "object", "{}", tool.name);
            assert_eq!(parameters["additionalProperties"], false, "{}", tool.name);
            for name in parameters["required"].as_array().unwrap() {
                assert!(parameters["properties"].get(name.as_str().unwrap()).is_some(), "{}: {name}", tool.name);
            }
            assert!(RESERVED.iter().all(|(name, _)| *name != tool.name));
        }
    }
}
