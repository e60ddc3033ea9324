//! Chat templates: Jinja out of a model file, which may come from anyone. They are rendered as Hugging Face
//! renders them, byte for byte. Source, nesting, work, time, memory and output have limits. The rendering
//! thread has a large stack of its own. There is no loader: a template can reach nothing but the conversation
//! it is given.

mod json;
mod lists;
mod python;
mod scan;
#[cfg(test)]
mod tests;
mod text;
mod vet;

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::protocol::ChatInput;
use crate::whole;
pub use scan::SOURCE_BYTES_MAX;
pub use vet::{VET_ADDRESS_SPACE_BYTES_MAX, VET_TIMEOUT, takes_none, vet, vet_apart};

/// Stack of the thread that compiles or renders.
const STACK_BYTES: usize = 64 << 20;
/// Instructions of any rendering, and of each message or tool more.
const FUEL: u64 = 200_000;
const FUEL_PER_ITEM: u64 = 5_000;
/// Macro calls open at once.
const RECURSION_MAX: usize = 64;
/// Output that is always allowed; beyond, four times the input.
const OUTPUT_BYTES_MIN: u64 = 64 << 10;
/// What a list of the messages may count beside their texts, for each message.
const VALUE_BYTES_PER_ITEM: u64 = 1 << 10;
const NAME: &str = "chat";

/// Put into texts of clients, so that nothing in them is taken for a control token: never valid text in interchange
/// (U+FDD0 and its neighbours are reserved for internal use), so nothing is lost when it is removed from what comes in.
pub const MARK: char = '\u{fdd0}';
/// Put where a reply goes on with a text.
pub const CUT_MARK: char = '\u{fdd1}';

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("the template's {what} of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge { what: &'static str, bytes: usize, limit: usize },
    /// The source itself.
    #[error("the chat template cannot be used: {0}")]
    Refused(String),
    /// This conversation, in the template's own words.
    #[error("the chat template does not take this conversation: {0}")]
    Raised(String),
    /// It would take more than a rendering may.
    #[error("the chat template breaks a limit: {0}")]
    Limit(String),
    #[error("the chat template failed: {0}")]
    Failed(String),
}

/// A compiled template.
pub struct ChatTemplate {
    env: Arc<Environment<'static>>,
    source: String,
    /// Variables that it expects.
    asks: HashSet<String>,
    /// The file's other template, for conversations with tools.
    tool_use: Option<Box<ChatTemplate>>,
}

impl ChatTemplate {
    /// Checks and compiles `source`; renders nothing (see [`vet`]).
    pub fn load(source: &str) -> Result<ChatTemplate, TemplateError> {
        let scanned = scan::scan(source)?;
        let (env, asks) = on_large_stack(move || {
            let mut env = Environment::new();
            let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
            env.set_syntax(syntax.map_err(|e| TemplateError::Failed(e.to_string()))?);
            env.set_recursion_limit(RECURSION_MAX);
            python::furnish(&mut env);
            env.add_template_owned(NAME, scanned).map_err(|e| TemplateError::Refused(explain(&e)))?;
            let asks = env.get_template(NAME).map(|template| template.undeclared_variables(false));
            let asks = asks.map_err(|e| TemplateError::Refused(explain(&e)))?;
            Ok((env, asks))
        })?;
        Ok(ChatTemplate { env: Arc::new(env), source: source.to_owned(), asks, tool_use: None })
    }

    /// With another template for conversations with tools.
    pub fn with_tool_use(self, tool_use: Option<ChatTemplate>) -> ChatTemplate {
        ChatTemplate { tool_use: tool_use.map(Box::new), ..self }
    }

    /// The template for a conversation.
    pub fn of(&self, chat: &ChatInput) -> &ChatTemplate {
        if chat.tools.is_empty() { self } else { self.for_tools() }
    }

    /// The template for conversations with tools.
    pub fn for_tools(&self) -> &ChatTemplate {
        self.tool_use.as_deref().unwrap_or(self)
    }

    /// Whether it expects a variable of this name.
    pub fn asks_for(&self, name: &str) -> bool {
        self.asks.contains(name)
    }

    /// Whether a word stands in quotes somewhere in it.
    pub fn quotes(&self, word: &str) -> bool {
        self.source.match_indices(word).any(|(at, _)| {
            let (before, behind) =
                (self.source[..at].chars().next_back(), self.source[at + word.len()..].chars().next());
            matches!((before, behind), (Some('\''), Some('\'')) | (Some('"'), Some('"')))
        })
    }

    /// Renders the variables of `context`, an object; `date` (`YYYY-MM-DD`) is today's for `strftime_now`,
    /// which does not exist without it.
    pub fn render(&self, context: Json, date: &str) -> Result<String, TemplateError> {
        let input_bytes = text_bytes(&context);
        let output_bytes_max = (4 * input_bytes).max(OUTPUT_BYTES_MIN);
        let items = ["messages", "tools"].iter().filter_map(|k| context.get(k)?.as_array()).map(Vec::len);
        let items = items.sum::<usize>() as u64;
        let fuel = FUEL + FUEL_PER_ITEM * items;
        // Every turn of a loop is charged with the plain text of all its branches.
        let written_bytes_max = 4 * output_bytes_max + items * self.source.len() as u64;
        let mut env = Environment::clone(&self.env);
        let strftime = python::strftime(date);
        on_large_stack(move || {
            env.set_fuel(Some(fuel));
            if let Some(function) = strftime {
                env.add_global("strftime_now", function);
            }
            python::start(output_bytes_max + VALUE_BYTES_PER_ITEM * items, written_bytes_max);
            let template = env.get_template(NAME).map_err(|e| TemplateError::Failed(explain(&e)))?;
            let mut out = Limited { bytes: Vec::new(), limit: output_bytes_max as usize, full: false };
            let done = template.render_captured_to(Value::from(Serde(Shown(&context))), &mut out).map(drop);
            if out.full {
                let (bytes, limit) = (out.bytes.len() + 1, out.limit);
                return Err(TemplateError::TooLarge { what: "output", bytes, limit });
            }
            done.map_err(|e| failure(&e))?;
            String::from_utf8(out.bytes).map_err(|e| TemplateError::Failed(e.to_string()))
        })
    }
}

/// Runs `work` on a thread that a deep template cannot overflow within the limits of `scan`.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, TemplateError> + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".into()).stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| TemplateError::Failed(format!("no thread to render on: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(TemplateError::Failed("the template engine panicked".into())))
    })
}

/// What an error of the template engine means.
fn failure(error: &minijinja::Error) -> TemplateError {
    // A recursion too deep has no kind of its own.
    let limits = [python::OVER, "recursion limit"];
    let detail = error.detail().unwrap_or_default();
    if let Some(message) = detail.strip_prefix(python::RAISED) {
        return TemplateError::Raised(message.to_owned());
    }
    match error.kind() == ErrorKind::OutOfFuel || limits.iter().any(|l| detail.contains(l)) {
        true => TemplateError::Limit(explain(error)),
        false => TemplateError::Failed(explain(error)),
    }
}

/// The engine's message with the line, without the source.
fn explain(error: &minijinja::Error) -> String {
    let what = match error.kind() {
        ErrorKind::OutOfFuel => "it runs too long".to_owned(),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

/// JSON as a template sees it: a whole number that is kept as text is a number where the engine has such.
struct Shown<'a>(&'a Json);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Json::String(text) => match whole::digits(text).and_then(|digits| digits.parse().ok()) {
                Some(number) => to.serialize_i128(number),
                None => to.serialize_str(text),
            },
            Json::Array(items) => to.collect_seq(items.iter().map(Shown)),
            Json::Object(map) => to.collect_map(map.iter().map(|(key, value)| (key, Shown(value)))),
            plain => plain.serialize(to),
        }
    }
}

/// Bytes of all texts and keys.
fn text_bytes(json: &Json) -> u64 {
    match json {
        Json::String(text) => text.len() as u64,
        Json::Array(items) => items.iter().map(|v| 8 + text_bytes(v)).sum(),
        Json::Object(map) => map.iter().map(|(k, v)| 8 + k.len() as u64 + text_bytes(v)).sum(),
        _ => 8,
    }
}

/// Takes at most `limit` bytes.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl Write for &mut Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
