//! Multiples that hold for one number together and that the grammar library cannot join.

use serde_json::{Map, Value};

use super::{Preparer, below};
use crate::engine::grammar::GrammarError;
use crate::engine::grammar::reachable::steps_apart;
use crate::engine::grammar::together::Together;

impl Preparer<'_> {
    /// Leaves such multiples of a prepared schema to the model. `sources`: where its definitions stood.
    pub(super) fn without_long_steps(&mut self, mut schema: Value, sources: &[String]) -> Result<Value, GrammarError> {
        let defs = schema.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
        let mut found = Vec::new();
        leave(&mut schema, &defs, ("#", sources), &mut found);
        for (at, reason) in found {
            self.leave(&at, "multipleOf", reason)?;
        }
        Ok(schema)
    }
}

type Found = Vec<(String, String)>;

fn leave(schema: &mut Value, defs: &Map<String, Value>, (at, sources): (&str, &[String]), found: &mut Found) {
    let reason = match too_long(schema, defs) {
        Some(GrammarError::Schema(reason)) => Some(reason),
        other => other.map(|error| error.to_string()),
    };
    // What stands behind a reference is taken out there.
    if let Some(reason) = reason
        && drop_steps(schema)
    {
        found.push((at.to_owned(), reason));
    }
    let Value::Object(map) = schema else { return };
    for (key, value) in map {
        let at = below(at, key);
        match (key.as_str(), value) {
            ("enum" | "const", _) => {}
            ("properties" | "patternProperties", Value::Object(named)) => {
                named.iter_mut().for_each(|(name, own)| leave(own, defs, (&below(&at, name), sources), found));
            }
            ("$defs", Value::Object(named)) => named.iter_mut().for_each(|(name, own)| {
                let source = name.parse().ok().and_then(|n: usize| sources.get(n)).map_or("#", String::as_str);
                leave(own, defs, (source, sources), found);
            }),
            (_, Value::Array(list)) => {
                let each = list.iter_mut().enumerate();
                each.for_each(|(n, own)| leave(own, defs, (&below(&at, &n.to_string()), sources), found));
            }
            (_, value) => leave(value, defs, (&at, sources), found),
        }
    }
}

fn too_long(schema: &Value, defs: &Map<String, Value>) -> Option<GrammarError> {
    let apart = schema.as_object().is_some_and(steps_apart);
    Together::default().and(schema, defs).step(apart).err()
}

/// Takes the multiples out of a schema and out of what it joins; whether there were any.
fn drop_steps(schema: &mut Value) -> bool {
    let Value::Object(map) = schema else { return false };
    let own = map.remove("multipleOf").is_some();
    let parts = map.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten();
    parts.fold(own, |any, part| drop_steps(part) || any)
}
