//! Makes a client's schema ready to be enforced. References are found and numbered, and annotations go. Keywords take
//! the form that the grammar library enforces to the letter. What it cannot enforce is found, with its place.
//!
//! A `strict` schema with such a keyword is refused. In another one the keyword is left to the model, and said.

mod disjoint;
mod lists;
mod numbers;
mod objects;
mod older;
mod patterns;
mod steps;
mod strings;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use self::objects::compares;

pub(super) use self::numbers::{SAFE_MAX, decimal, integer, is_wide, parts};
use super::{GrammarError, shortened, wide};
use crate::schema::References;
pub(super) use crate::schema::below;

/// Schemas that are read, within one another and by reference.
const NODES_MAX: usize = 20_000;
/// Largest count that means anything.
const COUNT_MAX: u64 = u32::MAX as u64;
/// Places that are told of what is not enforced.
const NOT_ENFORCED_MAX: usize = 32;
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords that say what a value must be; all others are annotations.
const ASSERTING: [&str; 41] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maximum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minContains",
    "minimum",
    "minItems",
    "minLength",
    "minProperties",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// A keyword that the answer is not held to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotEnforced {
    /// JSON pointer to the keyword, from the root of the schema.
    pub path: String,
    pub reason: String,
}

/// A schema of keywords that can all be enforced.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    pub schema: Value,
    /// Empty where the schema is `strict`.
    pub not_enforced: Vec<NotEnforced>,
    /// Where the schemas under `$defs`, which are numbered, stood.
    pub(super) sources: Vec<String>,
}

/// Which patterns of names are compared with one another.
#[derive(Clone, Copy)]
enum Comparing {
    /// None: that was done before.
    Known,
    Whole,
    Until(Instant),
}

/// Prepares a schema that `check_schema` has passed. What comes out, prepared again, stays as it is.
pub fn prepare(schema: &Value, strict: bool) -> Result<Prepared, GrammarError> {
    prepare_comparing(schema, strict, Comparing::Whole)
}

/// The same, where patterns are compared until then at most.
pub fn prepare_until(schema: &Value, strict: bool, until: Instant) -> Result<Prepared, GrammarError> {
    prepare_comparing(schema, strict, Comparing::Until(until))
}

/// Prepares what was prepared before. What was left to the model then, or found sound, is not judged anew.
pub(super) fn prepare_again(schema: &Value, strict: bool) -> Result<Prepared, GrammarError> {
    prepare_comparing(schema, strict, Comparing::Known)
}

fn prepare_comparing(schema: &Value, strict: bool, comparing: Comparing) -> Result<Prepared, GrammarError> {
    let mut preparer = Preparer {
        references: References::of(schema),
        strict,
        targets: Targets::default(),
        nodes: 0,
        comparisons: 0,
        comparing,
        compared: 0,
        not_enforced: Vec::new(),
    };
    let mut prepared = preparer.whole()?;
    if !strict {
        prepared.schema = preparer.without_long_steps(prepared.schema, &prepared.sources)?;
        prepared.not_enforced = preparer.not_enforced.clone();
    }
    match wide::check(&prepared) {
        Err(GrammarError::At { path, reason }) if !strict => {
            preparer.leave(&path, "", reason)?;
            let schema = wide::dropped(&prepared.schema);
            Ok(Prepared { schema, not_enforced: preparer.not_enforced, ..prepared })
        }
        other => other.map(|()| prepared),
    }
}

/// A part of a schema that is no part of one. `keyword`: under `path`; empty: the schema there itself.
fn wrong(path: &str, keyword: &str, reason: impl AsRef<str>) -> GrammarError {
    match fault(path, keyword, reason) {
        GrammarError::At { path, reason } => GrammarError::Wrong { path, reason },
        other => other,
    }
}

/// A part of a schema that cannot be enforced. `keyword` as in [`wrong`].
pub(super) fn fault(path: &str, keyword: &str, reason: impl AsRef<str>) -> GrammarError {
    let path = if keyword.is_empty() { path.to_owned() } else { below(path, keyword) };
    GrammarError::At { path: shortened(&path), reason: shortened(reason.as_ref()) }
}

/// What references lead to, in the order in which they were met.
#[derive(Default)]
struct Targets {
    pointers: Vec<String>,
    known: HashMap<String, usize>,
}

struct Preparer<'a> {
    references: References<'a>,
    strict: bool,
    targets: Targets,
    nodes: usize,
    comparisons: usize,
    comparing: Comparing,
    /// Bytes of patterns.
    compared: usize,
    not_enforced: Vec<NotEnforced>,
}

/// One schema on its way.
struct Node<'a> {
    at: &'a str,
    map: &'a Map<String, Value>,
    /// Names of the types that a value may have; empty: any.
    types: Vec<&'a str>,
    out: Map<String, Value>,
    /// What must hold beside `out`.
    all: Vec<Value>,
}

impl<'a> Node<'a> {
    fn may_be(&self, kind: &str) -> bool {
        self.types.is_empty() || self.types.contains(&kind)
    }

    fn wrong(&self, keyword: &str, reason: impl AsRef<str>) -> GrammarError {
        wrong(self.at, keyword, reason)
    }

    /// A count that a schema gives: a whole number, also as `2.0`.
    fn count(&self, keyword: &str) -> Result<Option<u64>, GrammarError> {
        let Some(value) = self.map.get(keyword) else { return Ok(None) };
        let whole = |f: &f64| f.fract() == 0.0 && (0.0..9e15).contains(f);
        match value.as_u64().or_else(|| value.as_f64().filter(whole).map(|f| f as u64)) {
            // Nothing grows as long as that.
            Some(count) if count > COUNT_MAX && keyword.starts_with("max") => Ok(None),
            Some(count) if count > COUNT_MAX => Err(fault(self.at, keyword, format!("this is more than {COUNT_MAX}"))),
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(keyword, "this must be a whole number, not below 0")),
        }
    }

    /// The schemas of a keyword that takes a list of them.
    fn list(&self, keyword: &str) -> Result<Option<&'a [Value]>, GrammarError> {
        match self.map.get(keyword) {
            None => Ok(None),
            Some(Value::Array(list)) if !list.is_empty() => Ok(Some(list)),
            Some(_) => Err(self.wrong(keyword, "this must be a list of at least one schema")),
        }
    }

    fn finished(mut self) -> Value {
        if self.out.is_empty() && self.all.len() == 1 {
            return self.all.remove(0);
        }
        if !self.all.is_empty() {
            self.out.insert("allOf".to_owned(), Value::Array(self.all));
        }
        Value::Object(self.out)
    }
}

impl<'a> Preparer<'a> {
    fn whole(&mut self) -> Result<Prepared, GrammarError> {
        let root = self.node(self.references.root, "#")?;
        let mut defs = Map::new();
        // More may be met in what is met.
        let mut at = 0;
        while let Some(pointer) = self.targets.pointers.get(at).cloned() {
            let target = self.references.at(&pointer).unwrap_or(&Value::Null);
            defs.insert(at.to_string(), self.node(target, &pointer)?);
            at += 1;
        }
        let mut schema = match root {
            Value::Object(map) => map,
            other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
        };
        if !defs.is_empty() {
            schema.insert("$defs".to_owned(), Value::Object(defs));
        }
        let (schema, not_enforced) = (Value::Object(schema), self.not_enforced.clone());
        Ok(Prepared { schema, not_enforced, sources: self.targets.pointers.clone() })
    }

    /// Leaves a keyword to the model, or refuses it.
    fn leave(&mut self, at: &str, keyword: &str, reason: impl AsRef<str>) -> Result<(), GrammarError> {
        let error = fault(at, keyword, reason);
        match error {
            GrammarError::At { path, reason } if !self.strict => {
                let told = self.not_enforced.iter().any(|n| n.path == path);
                if !told && self.not_enforced.len() < NOT_ENFORCED_MAX {
                    self.not_enforced.push(NotEnforced { path, reason });
                }
                Ok(())
            }
            GrammarError::At { path, reason } => {
                Err(GrammarError::At { path, reason: format!("{reason}; without `strict` it is left to the model") })
            }
            error => Err(error),
        }
    }

    fn node(&mut self, schema: &Value, at: &str) -> Result<Value, GrammarError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(fault(at, "", format!("the schema has more than {NODES_MAX} parts")));
        }
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            _ => return Err(wrong(at, "", "a schema must be an object, `true` or `false`")),
        };
        older::check(map, at)?;
        let mut node = Node { at, map, types: types(map, at)?, out: Map::new(), all: Vec::new() };
        if let Some(kind) = map.get("type") {
            node.out.insert("type".to_owned(), kind.clone());
        }
        if node.may_be("number") || node.may_be("integer") {
            self.numbers(&mut node)?;
        }
        if node.may_be("string") {
            self.strings(&mut node)?;
        }
        if node.may_be("array") {
            self.arrays(&mut node)?;
        }
        if node.may_be("object") {
            self.objects(&mut node)?;
        }
        self.values(&mut node)?;
        self.combined(&mut node)?;
        self.unknowable(&node)?;
        Ok(node.finished())
    }

    /// `enum` and `const`.
    fn values(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        for keyword in ["enum", "const"] {
            let Some(value) = node.map.get(keyword) else { continue };
            let values = match (keyword, value) {
                ("enum", Value::Array(list)) if !list.is_empty() => list.as_slice(),
                ("enum", _) => return Err(node.wrong(keyword, "this must be a list of at least one value")),
                _ => std::slice::from_ref(value),
            };
            match values.iter().find_map(unwritable) {
                Some(reason) => self.leave(node.at, keyword, reason)?,
                None => drop(node.out.insert(keyword.to_owned(), value.clone())),
            }
        }
        Ok(())
    }

    /// What joins schemas.
    fn combined(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        if let Some(list) = node.list("allOf")? {
            let at = below(node.at, "allOf");
            for (n, schema) in list.iter().enumerate() {
                node.all.push(self.node(schema, &below(&at, &n.to_string()))?);
            }
        }
        for keyword in ["anyOf", "oneOf"] {
            let Some(list) = node.list(keyword)? else { continue };
            let at = below(node.at, keyword);
            if keyword == "oneOf"
                && let Some((one, other)) = disjoint::overlap(&self.references, list, &mut self.comparisons)
            {
                let reason = format!(
                    "alternatives {one} and {other} may hold together: use `anyOf`, or give each a required property \
                     with a `const` of its own"
                );
                self.leave(node.at, keyword, reason)?;
            }
            let prepared = list.iter().enumerate().map(|(n, schema)| self.node(schema, &below(&at, &n.to_string())));
            let mut prepared = prepared.collect::<Result<Vec<_>, _>>()?;
            match (prepared.len(), node.out.contains_key("anyOf")) {
                (1, _) => node.all.push(prepared.remove(0)),
                (_, true) => node.all.push(json!({"anyOf": prepared})),
                (_, false) => drop(node.out.insert("anyOf".to_owned(), Value::Array(prepared))),
            }
        }
        self.reference(node)
    }

    fn reference(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        let Some(to) = node.map.get("$ref") else { return Ok(()) };
        let Some(to) = to.as_str() else { return Err(node.wrong("$ref", "a reference must be a text")) };
        if !to.starts_with('#') {
            return Err(GrammarError::Remote(shortened(to)));
        }
        let Some(pointer) = self.references.pointer(to) else {
            return Err(node.wrong("$ref", format!("nothing stands at `{to}`")));
        };
        let next = self.targets.pointers.len();
        let number = *self.targets.known.entry(pointer.clone()).or_insert(next);
        if number == next {
            self.targets.pointers.push(pointer);
        }
        let target = json!({"$ref": format!("#/$defs/{number}")});
        if node.out.is_empty() {
            node.all.push(target);
        } else {
            // What stands beside a reference holds as well.
            node.all.insert(0, target);
        }
        Ok(())
    }

    /// Keywords of any type that no grammar can follow.
    fn unknowable(&mut self, node: &Node<'_>) -> Result<(), GrammarError> {
        let has = |keyword: &str| node.map.contains_key(keyword);
        if node.map.get("not").is_some_and(|not| *not != json!(false)) {
            self.leave(node.at, "not", "what a value must not be is no form: say what it may be")?;
        }
        if has("if") && (has("then") || has("else")) {
            self.leave(node.at, "if", "a grammar knows no conditions: use `anyOf`")?;
        }
        for keyword in ["$dynamicRef", "$recursiveRef"] {
            if has(keyword) {
                self.leave(node.at, keyword, "where it leads is not known beforehand: use `$ref`")?;
            }
        }
        if node.at != "#" && has("$id") {
            self.leave(
                node.at,
                "$id",
                "references within a schema of its own name lead elsewhere: leave the `$id` out",
            )?;
        }
        Ok(())
    }
}

/// The types of a schema, each known.
fn types<'a>(map: &'a Map<String, Value>, at: &str) -> Result<Vec<&'a str>, GrammarError> {
    let Some(kind) = map.get("type") else { return Ok(Vec::new()) };
    let list = match kind {
        Value::Array(list) if !list.is_empty() => list.as_slice(),
        other => std::slice::from_ref(other),
    };
    let known = |kind: &'a Value| match kind.as_str() {
        Some(name) if TYPES.contains(&name) => Ok(name),
        Some("any") => Err(wrong(at, "type", "`any` is no type: leave `type` out")),
        _ => {
            let told = shortened(&kind.to_string());
            Err(wrong(at, "type", format!("`{told}` is no type; there are {}", TYPES.join(", "))))
        }
    };
    list.iter().map(known).collect()
}

/// Why a value cannot be written exactly as it stands.
fn unwritable(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => numbers::inexact(number),
        Value::String(text) => text
            .chars()
            .any(|c| c.is_control() && !"\n\r\t\u{8}\u{c}".contains(c))
            .then(|| "a value with such control characters cannot be written".to_owned()),
        Value::Array(list) => list.iter().find_map(unwritable),
        Value::Object(map) => map.values().find_map(unwritable),
        Value::Null | Value::Bool(_) => None,
    }
}

/// Whether a value has the type.
pub(super) fn kind_of(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(number) => {
            kind == "number" || (kind == "integer" && number.as_f64().is_some_and(|f| f.fract() == 0.0))
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}
