//! Multiples that hold for one number together and that the grammar library cannot join.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Preparer, below};
use crate::engine::grammar::GrammarError;
use crate::engine::grammar::reachable::steps_apart;
use crate::engine::grammar::together::Together;

impl Preparer<'_> {
    /// Leaves such multiples of a prepared schema to the model. `sources`: where its definitions stood.
    pub(super) fn without_long_steps(&mut self, mut schema: Value, sources: &[String]) -> Result<Value, GrammarError> {
        let mut found = Vec::new();
        // What is taken out of a definition may leave others that can be joined.
        loop {
            let defs = schema.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
            let mut behind = BTreeMap::new();
            leave(&mut schema, &defs, ("#", sources), &mut found, &mut behind);
            let own = schema.get_mut("$defs").and_then(Value::as_object_mut);
            let dropped = own.is_some_and(|own| drop_behind(own, sources, behind, &mut found));
            if !dropped {
                break;
            }
        }
        for (at, reason) in found {
            self.leave(&at, "multipleOf", reason)?;
        }
        Ok(schema)
    }
}

type Found = Vec<(String, String)>;
/// Names of definitions that are joined, and why their multiples cannot be.
type Behind = BTreeMap<String, String>;

fn leave(
    schema: &mut Value,
    defs: &Map<String, Value>,
    (at, sources): (&str, &[String]),
    found: &mut Found,
    behind: &mut Behind,
) {
    let reason = match too_long(schema, defs) {
        Some(GrammarError::Heavy(reason)) => Some(reason),
        other => other.map(|error| error.to_string()),
    };
    if let Some(reason) = reason {
        let mut names = BTreeSet::new();
        if drop_steps(schema, &mut names) {
            found.push((at.to_owned(), reason.clone()));
        }
        behind.extend(names.into_iter().map(|name| (name, reason.clone())));
    }
    let Value::Object(map) = schema else { return };
    for (key, value) in map {
        let at = below(at, key);
        match (key.as_str(), value) {
            ("enum" | "const", _) => {}
            ("properties" | "patternProperties", Value::Object(named)) => {
                named.iter_mut().for_each(|(name, own)| leave(own, defs, (&below(&at, name), sources), found, behind));
            }
            ("$defs", Value::Object(named)) => named.iter_mut().for_each(|(name, own)| {
                leave(own, defs, (source(name, sources), sources), found, behind);
            }),
            (_, Value::Array(list)) => {
                let each = list.iter_mut().enumerate();
                each.for_each(|(n, own)| leave(own, defs, (&below(&at, &n.to_string()), sources), found, behind));
            }
            (_, value) => leave(value, defs, (&at, sources), found, behind),
        }
    }
}

/// Where a definition stood.
fn source<'a>(name: &str, sources: &'a [String]) -> &'a str {
    name.parse().ok().and_then(|n: usize| sources.get(n)).map_or("#", String::as_str)
}

fn too_long(schema: &Value, defs: &Map<String, Value>) -> Option<GrammarError> {
    let apart = schema.as_object().is_some_and(steps_apart);
    Together::default().and(schema, defs).step(apart).err()
}

/// Takes the multiples out of a schema and out of what it joins; whether there were any. `names`: of the definitions
/// that it joins.
fn drop_steps(schema: &mut Value, names: &mut BTreeSet<String>) -> bool {
    let Value::Object(map) = schema else { return false };
    let name = map.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
    names.extend(name.map(str::to_owned));
    let own = map.remove("multipleOf").is_some();
    let parts = map.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten();
    parts.fold(own, |any, part| drop_steps(part, names) || any)
}

/// The same in definitions, and in those that they join in turn.
fn drop_behind(defs: &mut Map<String, Value>, sources: &[String], behind: Behind, found: &mut Found) -> bool {
    let mut seen: BTreeSet<String> = behind.keys().cloned().collect();
    let mut next: Vec<(String, String)> = behind.into_iter().collect();
    let mut any = false;
    while let Some((name, reason)) = next.pop() {
        let Some(schema) = defs.get_mut(&name) else { continue };
        let mut names = BTreeSet::new();
        if drop_steps(schema, &mut names) {
            any = true;
            found.push((source(&name, sources).to_owned(), reason.clone()));
        }
        next.extend(names.into_iter().filter(|name| seen.insert(name.clone())).map(|name| (name, reason.clone())));
    }
    any
}
