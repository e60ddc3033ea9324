//! Integers beyond those that a double holds exactly: the grammar library reads numbers as doubles. A schema with such a
//! number has its frame (objects, lists, alternatives, references) written as rules here, down to the number itself.

mod frames;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::GrammarError;
use super::calls::quoted;
use super::compile::guided;
use super::prepare::{Prepared, below, fault, integer, is_wide, kind_of};

/// As separators of the library: at most one blank.
pub(super) const SEPARATORS: &str = "COMMA: /, ?/\nCOLON: /: ?/\n";
/// Bytes of the rules of one schema.
const RULES_BYTES_MAX: usize = 4 << 20;
const BOUNDS: [&str; 4] = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];

/// Whether a number beyond doubles stands anywhere in it.
pub(super) fn holds_wide(value: &Value) -> bool {
    match value {
        Value::Number(number) => is_wide(number),
        Value::Array(list) => list.iter().any(holds_wide),
        Value::Object(map) => map.values().any(holds_wide),
        _ => false,
    }
}

/// Whether its wide numbers, if it has any, can be enforced.
pub(super) fn check(prepared: &Prepared) -> Result<(), GrammarError> {
    if holds_wide(&prepared.schema) { rules("check", prepared).map(drop) } else { Ok(()) }
}

/// The schema without what names a wide number.
pub(super) fn dropped(schema: &Value) -> Value {
    match schema {
        Value::Array(list) => list.iter().map(dropped).collect(),
        Value::Object(map) => {
            let names_wide = |key: &str, value: &Value| match key {
                "enum" | "const" => holds_wide(value),
                key => BOUNDS.contains(&key) && value.is_number() && holds_wide(value),
            };
            let kept = map.iter().filter(|(key, value)| !names_wide(key, value));
            Value::Object(kept.map(|(key, value)| (key.clone(), dropped(value))).collect())
        }
        other => other.clone(),
    }
}

/// The rules of a schema in Lark's notation, `name` the first of them.
pub(super) fn rules(name: &str, prepared: &Prepared) -> Result<String, GrammarError> {
    let none = Map::new();
    let defs = prepared.schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
    let mut root = prepared.schema.clone();
    if let Value::Object(map) = &mut root {
        map.remove("$defs");
    }
    let mut rules = Rules { name, defs, wide: wide_defs(defs), asked: Vec::new(), text: String::new(), count: 0 };
    rules.write(name, &root, "#")?;
    // What a definition needs comes behind it: a chain of references is no recursion here.
    let mut at = 0;
    while let Some(def) = rules.asked.get(at).cloned() {
        let source = def.parse().ok().and_then(|n: usize| prepared.sources.get(n)).map_or("#", String::as_str);
        let schema = defs.get(&def).unwrap_or(&Value::Bool(true));
        rules.write(&format!("{name}_d{def}"), schema, source)?;
        at += 1;
    }
    Ok(rules.text)
}

/// The definitions that hold a wide number or lead to one.
pub(super) fn wide_defs(defs: &Map<String, Value>) -> BTreeSet<String> {
    let mut leads: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, schema) in defs {
        let mut targets = BTreeSet::new();
        references(schema, &mut targets);
        targets.into_iter().for_each(|target| leads.entry(target).or_default().push(name));
    }
    let mut wide: BTreeSet<String> = BTreeSet::new();
    let mut found: Vec<&str> =
        defs.iter().filter(|(_, schema)| holds_wide(schema)).map(|(name, _)| name.as_str()).collect();
    while let Some(name) = found.pop() {
        if wide.insert(name.to_owned()) {
            found.extend(leads.get(name).into_iter().flatten());
        }
    }
    wide
}

/// Whether a wide number stands in the schema, or where it leads; `wide`: the definitions that hold one or lead to one.
pub(super) fn reaches(schema: &Value, wide: &BTreeSet<String>) -> bool {
    let mut targets = BTreeSet::new();
    references(schema, &mut targets);
    holds_wide(schema) || targets.into_iter().any(|name| wide.contains(name))
}

/// The definitions that a schema names.
fn references<'a>(schema: &'a Value, found: &mut BTreeSet<&'a str>) {
    match schema {
        Value::Array(list) => list.iter().for_each(|part| references(part, found)),
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(target));
            map.values().for_each(|part| references(part, found));
        }
        _ => {}
    }
}

fn target(reference: &Value) -> Option<&str> {
    reference.as_str()?.strip_prefix("#/$defs/")
}

struct Rules<'a> {
    name: &'a str,
    defs: &'a Map<String, Value>,
    wide: BTreeSet<String>,
    /// Definitions that rules name, in the order in which they did.
    asked: Vec<String>,
    text: String,
    count: usize,
}

impl Rules<'_> {
    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("{}_{}", self.name, self.count)
    }

    /// Writes a rule for the schema under a name of its own.
    fn rule(&mut self, schema: &Value, at: &str) -> Result<String, GrammarError> {
        let name = self.fresh();
        self.write(&name, schema, at)?;
        Ok(name)
    }

    fn write(&mut self, name: &str, schema: &Value, at: &str) -> Result<(), GrammarError> {
        if self.text.len() > RULES_BYTES_MAX {
            return Err(fault(at, "", "the schema is too large for integers beyond 2^53"));
        }
        let map = match schema {
            Value::Object(map) if reaches(schema, &self.wide) => map,
            schema => {
                self.whole(name, schema);
                return Ok(());
            }
        };
        let choices = self.choices(map, at)?;
        let _ = writeln!(self.text, "{name}: {}", choices.join(" | "));
        Ok(())
    }

    /// A schema that the library takes as it is.
    fn whole(&mut self, name: &str, schema: &Value) {
        let mut own = match schema {
            Value::Object(map) => map.clone(),
            other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
        };
        let mut targets = BTreeSet::new();
        references(schema, &mut targets);
        if !targets.is_empty() {
            own.insert("$defs".to_owned(), Value::Object(self.defs.clone()));
        }
        let _ = writeln!(self.text, "{name}: %json {}", guided(&Value::Object(own)));
    }

    /// What a value may be, each as a term.
    fn choices(&mut self, map: &Map<String, Value>, at: &str) -> Result<Vec<String>, GrammarError> {
        let beside = |keyword: &str, also: &[&str]| {
            let other = map.keys().find(|key| *key != keyword && !also.contains(&key.as_str()));
            other.map_or(Ok(()), |other| {
                let reason =
                    format!("integers beyond 2^53 cannot be enforced where `{other}` stands beside `{keyword}`");
                Err(fault(at, keyword, reason))
            })
        };
        if let Some(name) = map.get("$ref").and_then(target) {
            beside("$ref", &[])?;
            return Ok(vec![self.definition(name)]);
        }
        if let Some(Value::Array(list)) = map.get("anyOf") {
            beside("anyOf", &[])?;
            let at = below(at, "anyOf");
            let each = list.iter().enumerate();
            return each.map(|(n, schema)| self.rule(schema, &below(&at, &n.to_string()))).collect();
        }
        for keyword in ["enum", "const"] {
            let Some(value) = map.get(keyword) else { continue };
            beside(keyword, &["type"])?;
            let values = if keyword == "enum" {
                value.as_array().map_or(&[][..], Vec::as_slice)
            } else {
                std::slice::from_ref(value)
            };
            let fits = values.iter().filter(|value| of_type(map, value)).map(|value| quoted(&exact(value)));
            let fits: Vec<String> = fits.collect();
            return if fits.is_empty() { Err(fault(at, keyword, "no value here has the `type`")) } else { Ok(fits) };
        }
        if let Some(keyword) = ["allOf", "patternProperties"].into_iter().find(|key| map.contains_key(*key)) {
            return Err(fault(
                at,
                keyword,
                format!("integers beyond 2^53 cannot be enforced beside or within `{keyword}`"),
            ));
        }
        self.by_type(map, at)
    }

    fn definition(&mut self, name: &str) -> String {
        if !self.asked.iter().any(|asked| asked == name) {
            self.asked.push(name.to_owned());
        }
        format!("{}_d{name}", self.name)
    }

    fn by_type(&mut self, map: &Map<String, Value>, at: &str) -> Result<Vec<String>, GrammarError> {
        let all = json!(["null", "boolean", "number", "string", "array", "object"]);
        let kinds = match map.get("type").unwrap_or(&all) {
            Value::Array(list) => list.clone(),
            one => vec![one.clone()],
        };
        let mut choices = Vec::new();
        for kind in &kinds {
            let with = |keywords: &[&str]| {
                let own = map.iter().filter(|(key, _)| keywords.contains(&key.as_str()));
                own.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>()
            };
            match kind.as_str().unwrap_or_default() {
                "integer" => choices.extend(self.integers(map, at)?),
                "number" => choices.extend(self.numbers(map, at)?),
                "array" => choices.push(self.list(&with(&["items", "prefixItems", "minItems", "maxItems"]), at)?),
                "object" => {
                    let own =
                        with(&["properties", "required", "additionalProperties", "minProperties", "maxProperties"]);
                    choices.push(self.object(&own, at)?);
                }
                kind => {
                    let mut own = with(&["minLength", "maxLength", "pattern", "format"]);
                    own.insert("type".to_owned(), json!(kind));
                    choices.push(self.rule(&Value::Object(own), at)?);
                }
            }
        }
        Ok(choices)
    }
}

fn of_type(map: &Map<String, Value>, value: &Value) -> bool {
    let is = |kind: &Value| kind_of(value, kind.as_str().unwrap_or_default());
    match map.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(is),
        Some(kind) => is(kind),
    }
}

/// A value as JSON, its integers digit for digit.
fn exact(value: &Value) -> String {
    match value {
        Value::Number(number) => integer(number).map_or_else(|| number.to_string(), |integer| integer.to_string()),
        Value::Array(list) => format!("[{}]", list.iter().map(exact).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            let each = map.iter().map(|(key, value)| format!("{}:{}", quoted(key), exact(value)));
            format!("{{{}}}", each.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}
