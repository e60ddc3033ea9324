//! Whether two schemas can hold for one value.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::schema::References;

/// Comparisons of all alternatives of a schema together.
const COMPARISONS_MAX: usize = 100_000;
/// References and joins followed within one another.
const DEPTH_MAX: usize = 24;

/// Two of the schemas that may hold for one value, by their numbers.
pub(super) fn overlap<'a>(
    references: &References<'a>,
    schemas: &'a [Value],
    comparisons: &mut usize,
) -> Option<(usize, usize)> {
    let mut search = Search { references, comparisons };
    let pairs = (0..schemas.len()).flat_map(|one| (one + 1..schemas.len()).map(move |other| (one, other)));
    pairs.into_iter().find(|(one, other)| !search.disjoint(&schemas[*one], &schemas[*other], DEPTH_MAX))
}

struct Search<'s, 'a> {
    references: &'s References<'a>,
    comparisons: &'s mut usize,
}

impl<'a> Search<'_, 'a> {
    /// No value satisfies both, for certain.
    fn disjoint(&mut self, one: &'a Value, other: &'a Value, depth: usize) -> bool {
        *self.comparisons += 1;
        let Some(depth) = depth.checked_sub(1) else { return false };
        if *self.comparisons > COMPARISONS_MAX {
            return false;
        }
        match (one, other) {
            (Value::Bool(false), _) | (_, Value::Bool(false)) => true,
            (Value::Object(a), Value::Object(b)) => {
                self.apart_by_values(a, b)
                    || self.apart_by_values(b, a)
                    || self.apart_by_type(a, b, depth)
                    || self.apart_by_parts(a, other, depth)
                    || self.apart_by_parts(b, one, depth)
            }
            _ => false,
        }
    }

    /// A part of `one` that must hold is apart from `other`, or every choice of it is.
    fn apart_by_parts(&mut self, one: &'a Map<String, Value>, other: &'a Value, depth: usize) -> bool {
        let target = one.get("$ref").and_then(Value::as_str).and_then(|to| self.references.pointer(to));
        if let Some(target) = target.and_then(|pointer| self.references.at(&pointer))
            && self.disjoint(target, other, depth)
        {
            return true;
        }
        let list = |keyword: &str| one.get(keyword).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if list("allOf").iter().any(|part| self.disjoint(part, other, depth)) {
            return true;
        }
        ["anyOf", "oneOf"].into_iter().any(|keyword| {
            let choices = list(keyword);
            !choices.is_empty() && choices.iter().all(|choice| self.disjoint(choice, other, depth))
        })
    }

    /// None of the values that `one` lists is one for `other`.
    fn apart_by_values(&mut self, one: &'a Map<String, Value>, other: &'a Map<String, Value>) -> bool {
        let (Some(values), kinds) = (listed(one), types(other)) else { return false };
        let others = listed(other);
        *self.comparisons += values.len() * others.map_or(1, <[Value]>::len);
        *self.comparisons <= COMPARISONS_MAX
            && values.iter().all(|value| {
                !kinds_of(value).iter().any(|kind| kinds.contains(kind))
                    || others.is_some_and(|others| !others.iter().any(|other| may_equal(value, other)))
            })
    }

    fn apart_by_type(&mut self, one: &'a Map<String, Value>, other: &'a Map<String, Value>, depth: usize) -> bool {
        let others = types(other);
        let shared: Vec<&str> = types(one).into_iter().filter(|kind| others.contains(kind)).collect();
        match shared.as_slice() {
            [] => true,
            ["object"] => self.apart_by_property(one, other, depth),
            _ => false,
        }
    }

    /// A property that one of them must have cannot be right for both.
    fn apart_by_property(&mut self, one: &'a Map<String, Value>, other: &'a Map<String, Value>, depth: usize) -> bool {
        let mut names = required(one).chain(required(other));
        names.any(|name| match (property(one, name), property(other, name)) {
            (Some(one), Some(other)) => self.disjoint(one, other, depth),
            (Some(closed), None) | (None, Some(closed)) => *closed == Value::Bool(false),
            (None, None) => false,
        })
    }
}

fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str)
}

/// The schema of a property, as far as it is known.
fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let own = schema.get("properties").and_then(|properties| properties.get(name));
    own.or_else(|| match schema.contains_key("patternProperties") {
        true => None,
        false => schema.get("additionalProperties"),
    })
}

/// The values that a schema lists.
fn listed(schema: &Map<String, Value>) -> Option<&[Value]> {
    let list = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    schema.get("const").map(std::slice::from_ref).or(list)
}

fn may_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        // Numbers within may be written in two ways.
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => one == other,
    }
}

/// The types that a value may have; `number` stands for those that are no integers.
fn types(schema: &Map<String, Value>) -> Vec<&str> {
    let named: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => match listed(schema) {
            Some(values) => values.iter().flat_map(kinds_of).copied().collect(),
            None => super::TYPES.to_vec(),
        },
    };
    let both = named.contains(&"number").then_some("integer");
    // A schema may say the same type any number of times.
    let named: BTreeSet<&str> = named.into_iter().chain(both).collect();
    named.into_iter().collect()
}

fn kinds_of(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(_) => &["integer", "number"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    }
}
