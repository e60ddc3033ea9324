//! From a [`Grammar`] to a matcher of the grammar library.

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

use super::bounds::closed;
use super::calls::{self, Marks};
use super::digits::Layout;
use super::prepare::{Prepared, prepare_again};
use super::reachable::reachable;
use super::tried::{follow, is_deep, tried};
use super::{Calls, FUNCTIONS_MAX, Function, Grammar, GrammarError, check_schema, shortened, wide};

/// What may follow a backslash in a text.
pub(super) const ESCAPES: &str = "nrbtf\\\"";

/// Functions of a grammar that are followed alone.
const ALONE_MAX: usize = 16;

/// Compiles; also what the step loop needs first, so that a grammar that cannot be followed at all is known here.
pub(super) fn compile(
    factory: &ParserFactory,
    grammar: &Grammar,
    marks: &Marks,
) -> Result<(Matcher, Layout), GrammarError> {
    let (matcher, layout) = made(factory, grammar, marks)?;
    tried(&matcher, &grammar.schemas())?;
    Ok((matcher, layout))
}

/// Follows functions and the answer alone, the `strict` first: a walk through all of them takes one branch and may pass
/// by what is too large to be followed.
pub(super) fn each_alone(factory: &ParserFactory, grammar: &Grammar, marks: &Marks) -> Result<(), GrammarError> {
    let Grammar::Calls(calls) = grammar else { return Ok(()) };
    if calls.required && calls.functions.len() == 1 {
        return Ok(());
    }
    if let Some(schema) = calls.answer.as_ref().filter(|schema| !calls.required && is_deep(schema)) {
        follow(&made(factory, &Grammar::Json(schema.clone()), marks)?.0)?;
    }
    let mut deep: Vec<&Function> = calls.functions.iter().filter(|own| is_deep(&own.parameters)).collect();
    deep.sort_by_key(|own| !own.strict);
    for own in deep.into_iter().take(ALONE_MAX) {
        let functions = vec![own.clone()];
        let alone = Calls { functions, required: true, single: true, several: false, answer: None };
        follow(&made(factory, &Grammar::Calls(alone), marks)?.0).map_err(|error| match error {
            GrammarError::Heavy(reason) => {
                GrammarError::Heavy(shortened(&format!("of the function `{}`: {reason}", own.name)))
            }
            other => other,
        })?;
    }
    Ok(())
}

fn made(factory: &ParserFactory, grammar: &Grammar, marks: &Marks) -> Result<(Matcher, Layout), GrammarError> {
    grammar.schemas().into_iter().try_for_each(check_schema)?;
    let (top, layout) = match grammar {
        Grammar::Json(schema) => (json(&pruned(prepare_again(schema, true)?)?, &marks.answer())?, Layout::default()),
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
