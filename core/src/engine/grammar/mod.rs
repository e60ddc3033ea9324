//! The form of an answer: JSON by a schema, or calls of the request's functions. A request brings a [`Grammar`]. The
//! `desk` has it compiled, away from the engine loop, into a [`Constraint`]. That forbids in each row of logits the
//! tokens that cannot come next. The thought before an answer is free.
//!
//! A schema is a stranger's text. Its size is checked first (`check_schema`, also in the HTTP server). Then a
//! throw-away process with little time and memory compiles it (`vet`), and only then the engine.

#[cfg(test)]
mod agreement;
mod bounds;
mod calls;
mod compile;
mod constraint;
mod counts;
mod desk;
mod digits;
mod prepare;
mod reachable;
mod relaxed;
#[cfg(test)]
mod tests;
mod together;
mod tried;
mod vet;
mod wide;
mod words;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use calls::holds_calls;
pub use constraint::Constraint;
pub use counts::{FormCounts, FormStats};
pub use desk::{Compiler, Desk, Form};
pub use prepare::{NotEnforced, Prepared, compares, prepare, prepare_until};
pub use vet::{VET_ADDRESS_SPACE_BYTES_MAX, VET_CPU_S_MAX, VET_EXIT_HEAVY, VET_SOURCE_BYTES_MAX, vet};

/// Bytes of a schema, written as JSON.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// Arrays and objects of a schema within one another.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Properties that a schema names, at all levels together.
pub const SCHEMA_PROPERTIES_MAX: usize = 500;
/// Functions that a grammar may call.
pub const FUNCTIONS_MAX: usize = 128;
/// Bytes of a message about a schema, which may repeat parts of it.
const MESSAGE_BYTES_MAX: usize = 400;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// One JSON value that satisfies the schema.
    Json(Value),
    /// Calls of functions, in the form of the model's family.
    Calls(Calls),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Those that may be called, at most `FUNCTIONS_MAX`.
    pub functions: Vec<Function>,
    /// Nothing but calls; otherwise text may stand before them or in their place.
    pub required: bool,
    /// One call at most.
    pub single: bool,
    /// The request itself asks for several. A model that was never taught calls makes one of a form otherwise.
    #[serde(default)]
    pub several: bool,
    /// What an answer without a call must be; absent: any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    /// Schema of the arguments; null: any object.
    #[serde(default)]
    pub parameters: Value,
    /// Keywords of the schema that cannot be enforced are an error, and are passed over otherwise.
    pub strict: bool,
}

/// What goes with a grammar and is no part of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FormTerms {
    /// The schema of the answer is not `strict`: where it is too much for the compiler, less of it is held.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loose: bool,
    /// What the reply is held to further on. It is examined with the grammar, before anything is generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<Box<Grammar>>,
}

impl FormTerms {
    pub fn is_plain(&self) -> bool {
        *self == FormTerms::default()
    }
}

impl Grammar {
    /// Something beside calls may be said.
    fn may_answer(&self) -> bool {
        match self {
            Grammar::Json(_) => true,
            Grammar::Calls(calls) => !calls.required,
        }
    }

    /// An answer that is no call is JSON of a form.
    pub fn answers_in_form(&self) -> bool {
        match self {
            Grammar::Json(_) => true,
            Grammar::Calls(calls) => calls.answer.is_some(),
        }
    }

    /// Every schema in it.
    pub fn schemas(&self) -> Vec<&Value> {
        match self {
            Grammar::Json(schema) => vec![schema],
            Grammar::Calls(calls) => {
                calls.functions.iter().map(|f| &f.parameters).filter(|p| !p.is_null()).chain(&calls.answer).collect()
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    #[error("the schema has {bytes} bytes, over the limit of {SCHEMA_BYTES_MAX}")]
    Large { bytes: usize },
    #[error("the schema nests deeper than {SCHEMA_DEPTH_MAX} levels")]
    Deep,
    #[error("the schema names {found} properties, over the limit of {SCHEMA_PROPERTIES_MAX}")]
    Properties { found: usize },
    #[error("the schema refers to `{0}`: only what stands in the schema itself (`#/…`) can be referred to")]
    Remote(String),
    #[error("the schema must be an object")]
    NoObject,
    #[error("the schema cannot be enforced: {0}")]
    Schema(String),
    /// It means something, but its grammar cannot be made or followed.
    #[error("the schema cannot be enforced: {0}")]
    Heavy(String),
    /// `path`: JSON pointer to the keyword that means something which no grammar can hold.
    #[error("the schema cannot be enforced at `{path}`: {reason}")]
    At { path: String, reason: String },
    /// `path`: JSON pointer to the keyword that means nothing as it stands.
    #[error("the schema is wrong at `{path}`: {reason}")]
    Wrong { path: String, reason: String },
    #[error(
        "the schema is too complex to be enforced: it takes more than {VET_CPU_S_MAX} s or too much memory to compile"
    )]
    Costly,
    #[error("this model cannot be held to a form: {0}")]
    Vocabulary(String),
    #[error("the answer can no longer be held to its form, which is too complex: {0}")]
    Lost(String),
    #[error("this machine is too busy to examine the schema: try again later")]
    Late,
    #[error("nobody waits for the schema to be examined any more")]
    Left,
    #[error("a schema could not be examined: {0}")]
    Vet(String),
    /// In the words of the process that examined it.
    #[error("{0}")]
    Refused(String),
}

impl GrammarError {
    /// Says nothing of the grammar: another time it may be taken.
    fn is_of_the_machine(&self) -> bool {
        matches!(self, GrammarError::Vet(_) | GrammarError::Late | GrammarError::Left)
    }

    /// A sound schema is too much for the compiler of grammars.
    pub fn is_of_weight(&self) -> bool {
        matches!(self, GrammarError::Heavy(_) | GrammarError::Costly)
    }
}

/// Checks a schema's size and references, without compiling it.
pub fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    if !schema.is_object() {
        return Err(GrammarError::NoObject);
    }
    let mut properties = 0;
    walk(schema, Reads::Schema, SCHEMA_DEPTH_MAX, &mut properties)?;
    let bytes = schema.to_string().len();
    match (bytes, properties) {
        (bytes, _) if bytes > SCHEMA_BYTES_MAX => Err(GrammarError::Large { bytes }),
        (_, found) if found > SCHEMA_PROPERTIES_MAX => Err(GrammarError::Properties { found }),
        _ => Ok(()),
    }
}

/// What a part of a schema is.
#[derive(Clone, Copy, PartialEq)]
enum Reads {
    Schema,
    /// Schemas under names of the client's.
    Named,
    /// A value, in which no key means anything.
    Data,
}

impl Reads {
    /// What stands under a key.
    fn under(self, key: &str) -> Reads {
        match (self, key) {
            (Reads::Data, _) | (Reads::Schema, "const" | "enum" | "default" | "example" | "examples") => Reads::Data,
            (Reads::Schema, "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas") => {
                Reads::Named
            }
            _ => Reads::Schema,
        }
    }
}

/// Counts the properties of a schema `levels` deep at most, and looks at its references.
fn walk(value: &Value, reads: Reads, levels: usize, properties: &mut usize) -> Result<(), GrammarError> {
    let inner = || levels.checked_sub(1).ok_or(GrammarError::Deep);
    match value {
        Value::Array(items) => {
            let inner = inner()?;
            items.iter().try_for_each(|item| walk(item, reads, inner, properties))
        }
        Value::Object(map) => {
            let inner = inner()?;
            for (key, value) in map {
                match (reads, key.as_str(), value) {
                    (Reads::Schema, "$ref", Value::String(to)) if !to.starts_with('#') => {
                        return Err(GrammarError::Remote(shortened(to)));
                    }
                    (Reads::Schema, "properties" | "patternProperties", Value::Object(own)) => *properties += own.len(),
                    _ => {}
                }
                walk(value, reads.under(key), inner, properties)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A message about a schema, in one line of bounded length.
fn shortened(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() <= MESSAGE_BYTES_MAX {
        return line;
    }
    format!("{}…", &line[..line.floor_char_boundary(MESSAGE_BYTES_MAX - "…".len())])
}
