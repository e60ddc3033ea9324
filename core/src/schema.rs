//! What a JSON Schema says of its values, with references resolved inside the schema that holds it. Only what is asked of
//! text that a model wrote: kinds, fixed values, and where a property is described.

mod references;

use std::collections::HashMap;
use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use self::references::Names;
pub(crate) use self::references::{References, below};

/// Schemas looked at for one question, and within one another: references may go in circles.
const STEPS_MAX: usize = 2000;
const LEVELS_MAX: usize = 64;
/// Bytes of all patterns of names that are read, and of one of them once it is compiled.
const PATTERNS_BYTES_MAX: usize = 2 << 10;
const COMPILED_BYTES_MAX: usize = 128 << 10;

/// What may still be looked at.
#[derive(Debug)]
struct Steps {
    left: usize,
    levels: usize,
}

impl Steps {
    fn new() -> Steps {
        Steps { left: STEPS_MAX, levels: LEVELS_MAX }
    }

    /// One step, and a level down for as long as `within` takes.
    fn down<T>(&mut self, within: impl FnOnce(&mut Steps) -> Option<T>) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        self.levels = self.levels.checked_sub(1)?;
        let found = within(self);
        self.levels += 1;
        found
    }
}

/// Kinds of JSON values, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const NONE: Kinds = Kinds(0);
    pub const NULL: Kinds = Kinds(1);
    pub const BOOLEAN: Kinds = Kinds(2);
    pub const INTEGER: Kinds = Kinds(4);
    /// Numbers that need not be whole.
    pub const FRACTION: Kinds = Kinds(8);
    pub const STRING: Kinds = Kinds(16);
    pub const ARRAY: Kinds = Kinds(32);
    pub const OBJECT: Kinds = Kinds(64);

    fn named(name: &str) -> Kinds {
        match name {
            "null" => Kinds::NULL,
            "boolean" => Kinds::BOOLEAN,
            "integer" => Kinds::INTEGER,
            "number" => Kinds::INTEGER.or(Kinds::FRACTION),
            "string" => Kinds::STRING,
            "array" => Kinds::ARRAY,
            "object" => Kinds::OBJECT,
            _ => Kinds::NONE,
        }
    }

    fn of(value: &Value) -> Kinds {
        match value {
            Value::Null => Kinds::NULL,
            Value::Bool(_) => Kinds::BOOLEAN,
            Value::Number(n) if n.is_f64() => Kinds::FRACTION,
            Value::Number(_) => Kinds::INTEGER,
            Value::String(_) => Kinds::STRING,
            Value::Array(_) => Kinds::ARRAY,
            Value::Object(_) => Kinds::OBJECT,
        }
    }

    fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub fn has(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

/// A whole schema, with what is found in it once.
#[derive(Clone, Debug)]
pub struct Root {
    schema: Value,
    names: Names,
    /// Patterns of properties' names. They are compiled when a name first asks for them.
    patterns: OnceLock<HashMap<String, Regex>>,
}

impl Root {
    pub fn of(schema: Value) -> Root {
        Root { names: Names::of(&schema), schema, patterns: OnceLock::new() }
    }

    pub fn schema(&self) -> Schema<'_> {
        Schema { root: self, own: &self.schema }
    }

    /// Whether a name matches a pattern. One that cannot be read matches none.
    fn matches(&self, pattern: &str, name: &str) -> bool {
        let compiled = self.patterns.get_or_init(|| {
            let mut found = HashMap::new();
            compile(&self.schema, LEVELS_MAX, &mut PATTERNS_BYTES_MAX.clone(), &mut found);
            found
        });
        compiled.get(pattern).is_some_and(|regex| regex.is_match(name))
    }
}

/// Compiles the patterns of names in a schema, as far as their bytes are few.
fn compile(schema: &Value, levels: usize, bytes: &mut usize, found: &mut HashMap<String, Regex>) {
    let Some(levels) = levels.checked_sub(1) else { return };
    let own = schema.get("patternProperties").and_then(Value::as_object);
    for pattern in own.into_iter().flat_map(|own| own.keys()) {
        let Some(left) = bytes.checked_sub(pattern.len()) else { return };
        *bytes = left;
        if let Ok(regex) = RegexBuilder::new(pattern).size_limit(COMPILED_BYTES_MAX).build() {
            found.insert(pattern.clone(), regex);
        }
    }
    match schema {
        Value::Object(map) => map.values().for_each(|value| compile(value, levels, bytes, found)),
        Value::Array(list) => list.iter().for_each(|value| compile(value, levels, bytes, found)),
        _ => {}
    }
}

/// A schema and the whole that its references point into.
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a> {
    root: &'a Root,
    own: &'a Value,
}

impl<'a> Schema<'a> {
    fn part(self, own: &'a Value) -> Schema<'a> {
        Schema { own, ..self }
    }

    /// What `$ref` points to.
    fn target(self) -> Option<Schema<'a>> {
        let to = self.own.get("$ref")?.as_str()?;
        self.root.names.target(&self.root.schema, to).map(|own| self.part(own))
    }

    fn list(self, key: &str) -> impl Iterator<Item = Schema<'a>> {
        let all = self.own.get(key).and_then(Value::as_array).into_iter().flatten();
        all.map(move |own| self.part(own))
    }

    /// Kinds of the values; `None`: it says nothing of them.
    pub fn kinds(self) -> Option<Kinds> {
        self.kinds_within(&mut Steps::new())
    }

    fn kinds_below(self, steps: &mut Steps) -> Option<Kinds> {
        steps.down(|steps| self.kinds_within(steps))
    }

    fn kinds_within(self, steps: &mut Steps) -> Option<Kinds> {
        let map = self.own.as_object()?;
        let union = |all: &Vec<Value>, of: fn(&Value) -> Kinds| all.iter().fold(Kinds::NONE, |k, v| k.or(of(v)));
        let by_type = match map.get("type") {
            Some(Value::String(name)) => Some(Kinds::named(name)),
            Some(Value::Array(names)) => Some(union(names, |n| n.as_str().map_or(Kinds::NONE, Kinds::named))),
            _ => None,
        };
        let fixed = map.get("const").map(Kinds::of);
        let listed = map.get("enum").and_then(Value::as_array).map(|all| union(all, Kinds::of));
        let referred = self.target().and_then(|schema| schema.kinds_below(steps));
        let mut said = [by_type, fixed, listed, referred].into_iter().flatten().reduce(both);
        for part in self.list("allOf") {
            said = [said, part.kinds_below(steps)].into_iter().flatten().reduce(both);
        }
        for key in ["anyOf", "oneOf"] {
            let each: Option<Vec<Kinds>> = self.list(key).map(|part| part.kinds_below(steps)).collect();
            let either = each.filter(|all| !all.is_empty()).map(|all| all.into_iter().fold(Kinds::NONE, Kinds::or));
            said = [said, either].into_iter().flatten().reduce(both);
        }
        let said = said.or_else(|| implied(map));
        let nullable = map.get("nullable") == Some(&Value::Bool(true));
        said.map(|kinds| if nullable { kinds.or(Kinds::NULL) } else { kinds })
    }

    /// The values that `enum` and `const` name; empty: there are none, or others are allowed as well.
    pub fn options(self) -> Vec<&'a Value> {
        self.options_within(&mut Steps::new()).unwrap_or_default()
    }

    fn options_below(self, steps: &mut Steps) -> Option<Vec<&'a Value>> {
        steps.down(|steps| self.options_within(steps))
    }

    fn options_within(self, steps: &mut Steps) -> Option<Vec<&'a Value>> {
        if let Some(fixed) = self.own.get("const") {
            return Some(vec![fixed]);
        }
        if let Some(all) = self.own.get("enum").and_then(Value::as_array) {
            return Some(all.iter().collect());
        }
        if let Some(found) = self.target().and_then(|schema| schema.options_below(steps)) {
            return Some(found);
        }
        if let Some(found) = self.list("allOf").find_map(|part| part.options_below(steps)) {
            return Some(found);
        }
        // Fixed values among alternatives; others may be allowed beside them.
        let mut found = Vec::new();
        for part in self.list("anyOf").chain(self.list("oneOf")) {
            found.extend(part.options_below(steps).unwrap_or_default());
        }
        (!found.is_empty()).then_some(found)
    }

    /// The schema of a property that a list names.
    pub fn property(self, key: &str) -> Option<Schema<'a>> {
        self.first(&|own| own.get("properties")?.get(key), &mut Steps::new())
    }

    /// The schema of a property that no list names: of a pattern that its name matches, or of all others.
    pub fn unlisted(self, key: &str) -> Option<Schema<'a>> {
        let root = self.root;
        let by_pattern = |own: &'a Value| {
            let mut patterns = own.get("patternProperties")?.as_object()?.iter();
            patterns.find(|(pattern, schema)| schema.is_object() && root.matches(pattern, key)).map(|(_, own)| own)
        };
        let others = |own: &'a Value| {
            let mut said = ["additionalProperties", "unevaluatedProperties"].into_iter().filter_map(|key| own.get(key));
            said.find(|own| own.is_object())
        };
        self.first(&by_pattern, &mut Steps::new()).or_else(|| self.first(&others, &mut Steps::new()))
    }

    /// What is first found in a schema, or in those that it joins.
    fn first(self, of: &dyn Fn(&'a Value) -> Option<&'a Value>, steps: &mut Steps) -> Option<Schema<'a>> {
        if let Some(own) = of(self.own) {
            return Some(self.part(own));
        }
        let joined = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| self.list(key));
        self.target().into_iter().chain(joined).find_map(|part| steps.down(|steps| part.first(of, steps)))
    }
}

/// What two schemas that must both hold allow together. A whole number is a number.
fn both(one: Kinds, other: Kinds) -> Kinds {
    Kinds(one.0 & other.0)
}

/// A schema without `type` speaks of the kind that its keywords are about.
fn implied(map: &serde_json::Map<String, Value>) -> Option<Kinds> {
    const OF: [(&[&str], Kinds); 4] = [
        (&["properties", "required", "additionalProperties", "patternProperties", "propertyNames"], Kinds::OBJECT),
        (&["items", "prefixItems", "contains", "minItems", "maxItems"], Kinds::ARRAY),
        (&["pattern", "format", "minLength", "maxLength"], Kinds::STRING),
        (&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"], Kinds(4 | 8)),
    ];
    OF.iter().find(|(words, _)| words.iter().any(|word| map.contains_key(*word))).map(|(_, kinds)| *kinds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_found_behind_references_and_alternatives() {
        let root = json!({"$defs": {
            "day": {"type": "object"}, "loop": {"$ref": "#/$defs/loop"}, "n": {"type": ["integer", "null"]},
            "both": {"anyOf": [{"$ref": "#/$defs/both"}, {"$ref": "#/$defs/both"}]}, "a/b": {"type": "array"},
            "List<Item>": {"$anchor": "item", "type": "string"}}});
        let root = Root::of(root);
        let kinds = |own: &Value| Schema { root: &root, own }.kinds();
        let object = Some(Kinds::OBJECT);
        for (schema, expected) in [
            (json!({"$ref": "#/$defs/day"}), object),
            (json!({"allOf": [{"$ref": "#/$defs/day"}, {"description": "x"}]}), object),
            (json!({"anyOf": [{"anyOf": [{"type": "null"}, {"$ref": "#/$defs/day"}]}]}), Some(Kinds(1 | 64))),
            (json!({"const": {"a": 1}}), object),
            (json!({"properties": {"a": {}}}), object),
            (json!({"items": {}}), Some(Kinds::ARRAY)),
            (json!({"enum": [1, "x"]}), Some(Kinds(4 | 16))),
            (json!({"type": "number", "allOf": [{"type": "integer"}]}), Some(Kinds::INTEGER)),
            (json!({"$ref": "#/$defs/a~1b"}), Some(Kinds::ARRAY)),
            (json!({"$ref": "#/$defs/List%3CItem%3E"}), Some(Kinds::STRING)),
            (json!({"$ref": "#item"}), Some(Kinds::STRING)),
            (json!({"$ref": "#Item"}), None),
            (json!({"type": "string", "nullable": true}), Some(Kinds(1 | 16))),
            (json!({"$ref": "#/$defs/loop"}), None),
            (json!({"$ref": "#/$defs/both"}), None),
            (json!({"$ref": "#/$defs/nobody"}), None),
            (json!({"anyOf": [{}, {"type": "null"}]}), None),
            (json!({}), None),
            (json!(true), None),
        ] {
            assert_eq!(kinds(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn properties_and_fixed_values_are_found() {
        let root = json!({"$ref": "#/$defs/p", "$defs": {"p": {"allOf": [
            {"properties": {"a": {"anyOf": [{"const": 1}, {"enum": ["x"]}]}}}, {"properties": {"b": {"type": "null"}}}]}}});
        let root = Root::of(root);
        let schema = root.schema();
        let a = schema.property("a").unwrap();
        assert_eq!(a.options(), [&json!(1), &json!("x")]);
        assert_eq!(schema.property("b").unwrap().kinds(), Some(Kinds::NULL));
        assert!(schema.property("c").is_none() && schema.options().is_empty());
    }

    #[test]
    fn a_name_that_no_list_has_is_found_by_its_pattern_or_among_all_others() {
        let many: Vec<String> = (0..200).map(|n| format!("^{n}-[^xyz]*$")).collect();
        let many: serde_json::Map<String, Value> = many.into_iter().map(|own| (own, json!({"type": "null"}))).collect();
        for (schema, key, expected) in [
            (json!({"patternProperties": {"^x-": {"type": "null"}}}), "x-1", Some(Kinds::NULL)),
            (json!({"patternProperties": {"^x-": {"type": "null"}}}), "y-1", None),
            (json!({"patternProperties": {"(?!x": {}, "x$": {"type": "null"}}}), "1x", Some(Kinds::NULL)),
            (
                json!({"patternProperties": {"x": true}, "additionalProperties": {"type": "null"}}),
                "y",
                Some(Kinds::NULL),
            ),
            (json!({"allOf": [{"additionalProperties": {"type": "null"}}]}), "y", Some(Kinds::NULL)),
            (json!({"allOf": [{"$ref": "#"}, {"additionalProperties": false}]}), "y", None),
            (json!({"patternProperties": many}), "7-é", Some(Kinds::NULL)),
            // Beyond what is compiled.
            (json!({"patternProperties": many}), "199-é", None),
        ] {
            let root = Root::of(schema.clone());
            let found = root.schema().unlisted(key);
            assert_eq!(found.and_then(Schema::kinds), expected, "{key} of {schema}");
        }
    }
}
