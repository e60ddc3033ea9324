//! From a [`Grammar`] to a matcher of the grammar library.

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

use super::bounds::closed;
use super::calls::{self, Marks};
use super::digits::Layout;
use super::prepare::{Prepared, prepare};
use super::reachable::reachable;
use super::tried::tried;
use super::{FUNCTIONS_MAX, Grammar, GrammarError, check_schema, shortened, wide};

/// What may follow a backslash in a text.
pub(super) const ESCAPES: &str = "nrbtf\\\"";

/// Compiles; also what the step loop needs first, so that a grammar that cannot be followed at all is known here.
pub(super) fn compile(
    factory: &ParserFactory,
    grammar: &Grammar,
    marks: &Marks,
) -> Result<(Matcher, Layout), GrammarError> {
    grammar.schemas().into_iter().try_for_each(check_schema)?;
    let (top, layout) = match grammar {
        Grammar::Json(schema) => (json(&pruned(prepare(schema, true)?)?, &marks.answer())?, Layout::default()),
        Grammar::Calls(calls) if calls.functions.len() > FUNCTIONS_MAX => {
            return Err(GrammarError::Schema(format!("more than {FUNCTIONS_MAX} functions")));
        }
        Grammar::Calls(calls) => {
            let (lark, layout) = calls::lark(calls, marks)?;
            (TopLevelGrammar::from_lark(lark), layout)
        }
    };
    let mut matcher = Matcher::new(factory.create_parser(top));
    if let Some(error) = matcher.get_error() {
        return Err(failed(&error));
    }
    matcher.compute_mask().map_err(|e| failed(&e.to_string()))?;
    tried(&matcher, &grammar.schemas())?;
    Ok((matcher, layout))
}

/// Without what an answer could begin and never end.
pub(super) fn pruned(prepared: Prepared) -> Result<Prepared, GrammarError> {
    Ok(Prepared { schema: reachable(&prepared.schema)?, ..prepared })
}

/// `head`: what stands before the value, as terms.
fn json(prepared: &Prepared, head: &str) -> Result<TopLevelGrammar, GrammarError> {
    if head.is_empty() && !wide::holds_wide(&prepared.schema) {
        return Ok(TopLevelGrammar::from_json_schema(guided(&prepared.schema)));
    }
    let rules = wide::rules("value", prepared)?;
    Ok(TopLevelGrammar::from_lark(format!("start: {head} value\n{}{rules}", wide::SEPARATORS)))
}

/// A schema with our terms: at most one blank after a colon or a comma and none elsewhere, or a weak model would write
/// blanks without end. Characters stand for themselves, so that no name is written in two ways.
pub(super) fn guided(schema: &Value) -> Value {
    let mut own = match closed(schema) {
        Value::Object(map) => map,
        _ => Map::from_iter([("type".to_owned(), json!("object"))]),
    };
    let terms = json!({
        "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?",
        "json_allowed_escapes": ESCAPES,
    });
    own.insert("x-guidance".to_owned(), terms);
    Value::Object(own)
}

fn failed(error: &str) -> GrammarError {
    match too_much(error) {
        Some(words) => GrammarError::Heavy(words.to_owned()),
        // Nothing satisfies it, which less of it would hide.
        None if error.contains("nsatisfiable") => GrammarError::Schema(in_words(error)),
        None => GrammarError::Heavy(in_words(error)),
    }
}

/// The library's message without its advice on options that no client can reach, nor the words of a defect.
pub(super) fn in_words(error: &str) -> String {
    let cause = error.split("caused by:").next().unwrap_or(error);
    too_much(error).map_or_else(|| shortened(cause), str::to_owned)
}

/// What of a sound schema was too much for the library, where that is its message.
fn too_much(error: &str) -> Option<&'static str> {
    if error.contains("panic: ") {
        return Some("its numbers or counts are too large for the compiler of grammars");
    }
    ["too many expressions", "too many states", "fuel exhausted"]
        .into_iter()
        .any(|words| error.contains(words))
        .then_some("its multiples (`multipleOf`) or patterns have too many states: ask for smaller ones")
}
