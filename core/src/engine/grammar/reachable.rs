//! Parts of a prepared schema that no answer could ever fill. The grammar library asks of a text whether anything matches
//! it, but before it is put in quotes. It does not ask that of multiples within bounds, of the names that patterns leave
//! to others, and of definitions that need themselves. An answer that had begun such a part could not go on, so the part
//! is taken out before.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;

use llguidance::derivre::RegexAst;
use serde_json::{Map, Value, json};

use super::together::{NO_VALUE, Together, in_quotes, is_empty, search, types};
use super::{GrammarError, shortened, wide};

pub(super) const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Names of definitions.
type Names = BTreeSet<String>;

/// The schema without what cannot be reached.
pub(super) fn reachable(schema: &Value) -> Result<Value, GrammarError> {
    let none = Map::new();
    let defs = schema.get("$defs").and_then(Value::as_object).unwrap_or(&none);
    // From none on, until no more of them is found to have a value that ends. What a definition leads to comes behind it.
    let mut finite = Names::new();
    loop {
        let before = finite.len();
        for (name, own) in defs.iter().rev() {
            if !finite.contains(name) && ends(own, &finite) {
                finite.insert(name.clone());
            }
        }
        if finite.len() == before {
            break;
        }
    }
    let mut pruner = Pruner { finite, wide: wide::wide_defs(defs), defs, reasons: BTreeMap::new() };
    loop {
        let pruned = pruner.part(schema, &Together::default())?;
        if pruned == Value::Bool(false) {
            let because = pruner.why(schema).map_or(String::new(), |because| format!(": {because}"));
            return Err(GrammarError::Schema(shortened(&format!("nothing that can be written satisfies it{because}"))));
        }
        // What leads to a definition that nothing fills is taken out too.
        let before = pruner.finite.len();
        let own = pruned.get("$defs");
        pruner.finite.retain(|name| own.and_then(|own| own.get(name)) != Some(&Value::Bool(false)));
        if pruner.finite.len() == before {
            return Ok(pruned);
        }
    }
}

/// Whether some value of the schema ends, where those of the definitions `finite` do.
fn ends(schema: &Value, finite: &Names) -> bool {
    let Value::Object(map) = schema else { return *schema != Value::Bool(false) };
    let list = |key: &str| map.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let at = |schema: Option<&Value>| schema.is_none_or(|schema| ends(schema, finite));
    let of_type = |kind: &str| match kind {
        "array" => {
            let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
            let first = list("prefixItems");
            first.iter().take(least).all(|item| ends(item, finite)) && (least <= first.len() || at(map.get("items")))
        }
        "object" => list("required").iter().filter_map(Value::as_str).all(|name| {
            let own = map.get("properties").and_then(|properties| properties.get(name));
            at(own.or_else(|| map.get("additionalProperties").filter(|_| !map.contains_key("patternProperties"))))
        }),
        _ => true,
    };
    let listed = map.contains_key("enum") || map.contains_key("const");
    let alternatives = list("anyOf");
    map.get("$ref").and_then(Value::as_str).is_none_or(|to| leads(to, finite))
        && list("allOf").iter().all(|schema| ends(schema, finite))
        && (alternatives.is_empty() || alternatives.iter().any(|schema| ends(schema, finite)))
        && (listed || types(map).into_iter().any(of_type))
}

fn leads(reference: &str, finite: &Names) -> bool {
    reference.strip_prefix("#/$defs/").is_none_or(|name| finite.contains(name))
}

struct Pruner<'a> {
    finite: Names,
    /// Definitions with numbers beyond doubles, which have rules of their own.
    wide: Names,
    defs: &'a Map<String, Value>,
    /// Why parts that nothing fills were taken out.
    reasons: BTreeMap<*const Value, String>,
}

impl<'a> Pruner<'a> {
    /// A schema for a value of which `beside` says more.
    fn part(&mut self, schema: &'a Value, beside: &Together<'a>) -> Result<Value, GrammarError> {
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        if self.leads_nowhere(map) {
            let target = map.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
            let because = target.and_then(|name| self.defs.get(name)).and_then(|schema| self.why(schema));
            return Ok(because.map_or(Value::Bool(false), |because| self.nothing(schema, because)));
        }
        let all = beside.clone().and(schema, self.defs);
        let own = self.inner(map, &all)?;
        // What a reference alone leads to is looked at there.
        let within = Together::default().and(schema, self.defs);
        let refers_alone = within.len() == all.len() && map.len() == 1 && map.contains_key("$ref");
        if refers_alone || wide::reaches(schema, &self.wide) {
            return Ok(Value::Object(own));
        }
        let no_way =
            |list: &Value| list.as_array().is_some_and(|list| list.iter().all(|one| *one == Value::Bool(false)));
        if own.get("anyOf").is_some_and(no_way) {
            let mut alternatives = map.get("anyOf").and_then(Value::as_array).into_iter().flatten();
            let because = alternatives.find_map(|schema| self.why(schema));
            let because = because.map_or(String::new(), |because| format!(": {because}"));
            return Ok(self.nothing(schema, format!("none of its alternatives can be met{because}")));
        }
        match all.values() {
            Some((values, _)) if values.is_empty() => {
                return Ok(self.nothing(schema, NO_VALUE.to_owned()));
            }
            Some((values, true)) if speaks(map) => return Ok(listing(values, own)),
            Some(_) => return Ok(Value::Object(own)),
            None => {}
        }
        self.without_empty(schema, own, [&within, &all])
    }

    fn leads_nowhere(&self, map: &Map<String, Value>) -> bool {
        map.get("$ref").and_then(Value::as_str).is_some_and(|to| !leads(to, &self.finite))
    }

    fn nothing(&mut self, schema: &Value, because: String) -> Value {
        self.reasons.insert(ptr::from_ref(schema), because);
        Value::Bool(false)
    }

    fn why(&self, schema: &Value) -> Option<String> {
        self.reasons.get(&ptr::from_ref(schema)).cloned()
    }

    /// The keywords of a schema with what stands within it; `all`: what holds for its value.
    fn inner(&mut self, map: &'a Map<String, Value>, all: &Together<'a>) -> Result<Map<String, Value>, GrammarError> {
        let (defs, none) = (self.defs, Together::default());
        let mut own = Map::new();
        for (key, value) in map {
            let inner = match (key.as_str(), value) {
                ("properties", Value::Object(schemas)) => self.named(schemas, |name| all.property(name, defs))?,
                ("patternProperties" | "$defs", Value::Object(schemas)) => self.named(schemas, |_| none.clone())?,
                ("items", schema) => self.part(schema, &all.item(None, defs))?,
                ("additionalProperties", schema) => self.part(schema, &none)?,
                ("prefixItems", Value::Array(schemas)) => {
                    let each =
                        schemas.iter().enumerate().map(|(at, schema)| self.part(schema, &all.item(Some(at), defs)));
                    Value::Array(each.collect::<Result<_, _>>()?)
                }
                ("anyOf", Value::Array(schemas)) => {
                    let each = schemas.iter().map(|schema| self.part(schema, all));
                    Value::Array(each.collect::<Result<_, _>>()?)
                }
                ("allOf", Value::Array(schemas)) => {
                    let each = schemas.iter().map(|schema| self.joined(schema, all));
                    Value::Array(each.collect::<Result<_, _>>()?)
                }
                (_, other) => other.clone(),
            };
            own.insert(key.clone(), inner);
        }
        Ok(own)
    }

    fn named(
        &mut self,
        schemas: &'a Map<String, Value>,
        beside: impl Fn(&str) -> Together<'a>,
    ) -> Result<Value, GrammarError> {
        let each = schemas.iter().map(|(name, schema)| Ok((name.clone(), self.part(schema, &beside(name))?)));
        each.collect::<Result<Map<_, _>, _>>().map(Value::Object)
    }

    /// A part of an `allOf`. What holds for its value is looked at where the `allOf` stands.
    fn joined(&mut self, schema: &'a Value, all: &Together<'a>) -> Result<Value, GrammarError> {
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        if self.leads_nowhere(map) { Ok(Value::Bool(false)) } else { self.inner(map, all).map(Value::Object) }
    }

    /// The schema without the types that no value of it has. `own`: what is left of it; `within`: what it joins itself.
    fn without_empty(
        &mut self,
        schema: &Value,
        mut own: Map<String, Value>,
        [within, all]: [&Together<'a>; 2],
    ) -> Result<Value, GrammarError> {
        let mut forbidden = BTreeMap::new();
        if may_be(&own, &["object"]) {
            names(&mut own);
            forbidden = self.forbid_impossible(&mut own, all);
        }
        let why = |name: &str| {
            let own = all.properties(name).find_map(|schema| self.why(schema));
            own.or_else(|| forbidden.get(name).cloned())
        };
        let left = all.kinds();
        let mut empty = Vec::new();
        let mut because = None;
        for (kinds, none) in [
            (&["string"][..], all.no_text()),
            (&["integer", "number"], all.no_number()),
            (&["object"], all.no_object(&own, why)),
        ] {
            if none.is_some() && may_be(&own, kinds) {
                empty.extend(kinds);
                let asked = left.is_empty() || kinds.iter().any(|kind| left.contains(kind));
                because = because.or(none.filter(|_| asked));
            }
        }
        if left.iter().all(|kind| empty.contains(kind))
            && let Some(because) = because
        {
            return Ok(self.nothing(schema, because));
        }
        if !empty.contains(&"number") && may_be(&own, &["integer", "number"]) {
            one_step(&mut own, within, all)?;
        }
        Ok(if empty.is_empty() { Value::Object(own) } else { without(own, &empty) })
    }
}

impl Pruner<'_> {
    /// Properties that schemas behind references describe in ways that nothing fills, and why.
    fn forbid_impossible(&self, own: &mut Map<String, Value>, all: &Together<'_>) -> BTreeMap<String, String> {
        let impossible: BTreeMap<String, String> = all
            .shared_properties()
            .into_iter()
            .filter(|name| own.get("properties").is_none_or(|properties| properties.get(*name).is_none()))
            .filter_map(|name| Some((name.to_owned(), all.property(name, self.defs).impossible()?)))
            .collect();
        for name in impossible.keys() {
            let properties = own.entry("properties").or_insert_with(|| json!({}));
            if let Value::Object(properties) = properties {
                properties.insert(name.clone(), Value::Bool(false));
            }
        }
        impossible
    }
}

/// Whether more is said of a value than which it is.
fn speaks(map: &Map<String, Value>) -> bool {
    map.keys().any(|key| !["type", "enum", "const", "$defs"].contains(&key.as_str()))
}

/// A schema of values that satisfy everything; alternatives, which hold as well, stay.
fn listing(values: Vec<Value>, own: Map<String, Value>) -> Value {
    let mut kept: Map<String, Value> = own.into_iter().filter(|(key, _)| key == "$defs").collect();
    kept.insert("enum".to_owned(), Value::Array(values));
    Value::Object(kept)
}

/// Has one step in place of several of its own, and beside it the narrowest bounds of all its parts: the library counts
/// multiples within bounds that stand together. The steps of others and of alternatives the library joins: each of them
/// with the step of all would be more than it can multiply.
fn one_step(own: &mut Map<String, Value>, within: &Together<'_>, all: &Together<'_>) -> Result<(), GrammarError> {
    let apart = steps_apart(own);
    let step = if apart { None } else { within.step(false)? };
    all.step(step.is_none() && within.has_step())?;
    if !within.has_step() {
        return Ok(());
    }
    let mut found = Map::new();
    if let Some(parts) = own.get_mut("allOf") {
        take_numbers(parts, !apart, &mut found);
    }
    found.into_iter().for_each(|(key, value)| narrow(own, &key, value));
    if let Some(step) = step {
        own.insert("multipleOf".to_owned(), Value::Number(step));
    }
    Ok(())
}

/// Whether steps may stand behind a reference or in an alternative.
fn steps_apart(own: &Map<String, Value>) -> bool {
    let alternatives = own.get("anyOf").map_or(String::new(), Value::to_string);
    let mut parts = own.get("allOf").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
    own.contains_key("$ref")
        || ["\"multipleOf\"", "\"$ref\""].iter().any(|key| alternatives.contains(key))
        || parts.any(steps_apart)
}

/// Takes the bounds out of parts, and their steps where `steps` says so. Of several steps the last is told.
fn take_numbers(parts: &mut Value, steps: bool, found: &mut Map<String, Value>) {
    for part in parts.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for key in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"] {
            if key != "multipleOf" || steps {
                part.remove(key).into_iter().for_each(|value| narrow(found, key, value));
            }
        }
        if let Some(parts) = part.get_mut("allOf") {
            take_numbers(parts, steps, found);
        }
    }
}

/// Adds a keyword of numbers to a schema that may have it already: of two bounds the narrower holds.
fn narrow(map: &mut Map<String, Value>, key: &str, value: Value) {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let wider = map.get(key).is_none_or(|own| match key {
        "minimum" | "exclusiveMinimum" => number(own) < number(&value),
        "maximum" | "exclusiveMaximum" => number(own) > number(&value),
        _ => true,
    });
    if wider {
        map.insert(key.to_owned(), value);
    }
}

fn may_be(map: &Map<String, Value>, kinds: &[&str]) -> bool {
    types(map).iter().any(|own| kinds.contains(own))
}

/// The schema for values of its other types.
fn without(mut map: Map<String, Value>, kinds: &[&str]) -> Value {
    let left: Vec<String> = types(&map).into_iter().filter(|own| !kinds.contains(own)).map(str::to_owned).collect();
    if left.is_empty() {
        return Value::Bool(false);
    }
    map.insert("type".to_owned(), json!(left));
    Value::Object(map)
}

/// Takes out patterns of names that are all named, and others where patterns leave none.
fn names(map: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = map.get("patternProperties").cloned() else { return };
    let mut named = map.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let required: Vec<String> = map
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    let mut known: Vec<String> = named.keys().cloned().collect();
    known.extend(required.iter().filter(|name| !named.contains_key(*name)).cloned());
    let literal = |name: &String| RegexAst::Literal(Value::from(name.as_str()).to_string());
    let mut kept = Map::new();
    let mut matched: Vec<String> = Vec::new();
    for (pattern, schema) in patterns {
        let Ok(regex) = regex::Regex::new(&pattern) else {
            kept.insert(pattern, schema);
            continue;
        };
        let own: Vec<&String> = known.iter().filter(|name| regex.is_match(name)).collect();
        matched.extend(own.iter().map(|name| (*name).clone()));
        let taken = RegexAst::Or(own.iter().map(|name| literal(name)).collect());
        if own.is_empty() || !is_empty(&in_quotes(search(&pattern)).contained_in(&taken)) {
            kept.insert(pattern, schema);
            continue;
        }
        for name in own {
            let both = match named.get(name) {
                Some(before) => json!({"allOf": [before, schema]}),
                None => schema.clone(),
            };
            named.insert(name.clone(), both);
        }
    }
    let all = in_quotes(RegexAst::Regex("(?s:.*)".to_owned()));
    let taken = known.iter().map(literal).chain(kept.keys().map(|pattern| in_quotes(search(pattern)))).collect();
    let others = map.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    if others != Value::Bool(false) && is_empty(&all.contained_in(&RegexAst::Or(taken))) {
        let unmatched = required.iter().filter(|name| !named.contains_key(*name) && !matched.contains(name));
        let unmatched: Vec<String> = unmatched.cloned().collect();
        unmatched.into_iter().for_each(|name| drop(named.insert(name, others.clone())));
        map.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    match kept.is_empty() {
        true => drop(map.remove("patternProperties")),
        false => drop(map.insert("patternProperties".to_owned(), Value::Object(kept))),
    }
    if !named.is_empty() {
        map.insert("properties".to_owned(), Value::Object(named));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_that_need_themselves_are_taken_out() {
        let to = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
        let tree = json!({"type": "object", "properties": {"next": to("tree")}});
        let defs = json!({
            "self": to("self"),
            "round": {"allOf": [to("trip")]}, "trip": to("round"),
            "list": {"type": "array", "items": to("list"), "minItems": 1},
            "chain": {"type": "object", "properties": {"next": to("chain")}, "required": ["next"]},
            "tree": tree, "leaf": {"anyOf": [to("chain"), {"type": "null"}]},
            "nest": {"type": "array", "items": to("nest")},
        });
        for (name, reached) in [
            ("self", false),
            ("round", false),
            ("trip", false),
            ("list", false),
            ("chain", false),
            ("tree", true),
            ("leaf", true),
            ("nest", true),
        ] {
            let schema = json!({"type": "array", "items": to(name), "$defs": defs});
            let expected = if reached { to(name) } else { Value::Bool(false) };
            assert_eq!(reachable(&schema).unwrap()["items"], expected, "{name}");
        }
        let leaf = reachable(&json!({"$defs": defs})).unwrap()["$defs"]["leaf"].clone();
        assert_eq!(leaf, json!({"anyOf": [false, {"type": "null"}]}));
    }

    #[test]
    fn what_no_answer_fills_is_taken_out() {
        let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
        for (schema, expected) in [
            // Control characters cannot be written.
            (text("^[\u{1}-\u{7}]+$"), json!(false)),
            (text("^[\u{1}-\u{7}]*$"), text("^[\u{1}-\u{7}]*$")),
            (json!({"type": ["string", "null"], "pattern": "^\u{1}"}), json!({"type": ["null"], "pattern": "^\u{1}"})),
            (json!({"type": "string", "pattern": "^a+$", "maxLength": 0}), json!(false)),
            (json!({"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7}), json!(false)),
            (
                json!({"type": "integer", "minimum": 1, "maximum": 7, "multipleOf": 7}),
                json!({"type": "integer", "minimum": 1, "maximum": 7, "multipleOf": 7}),
            ),
            (json!({"type": "integer", "exclusiveMinimum": -7, "exclusiveMaximum": 0, "multipleOf": 7}), json!(false)),
            (json!({"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 1.5}), json!(false)),
            (json!({"type": "number", "minimum": 0.01, "maximum": 0.06, "multipleOf": 0.07}), json!(false)),
            (
                json!({"multipleOf": 0.5, "minimum": 0.1, "maximum": 0.2}),
                json!({"multipleOf": 0.5, "minimum": 0.1, "maximum": 0.2,
                    "type": ["null", "boolean", "string", "array", "object"]}),
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false,
                    "patternProperties": {"^a$": {"maxLength": 3}}}),
                json!({"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"maxLength": 3}]}},
                    "additionalProperties": false}),
            ),
            (
                json!({"type": "object", "required": ["b"], "patternProperties": {"": {"type": "null"}}}),
                json!({"type": "object", "required": ["b"], "patternProperties": {"": {"type": "null"}},
                    "additionalProperties": false}),
            ),
            (
                json!({"type": "object", "required": ["a"], "patternProperties": {"^([^a][\\s\\S]*|a[\\s\\S]+)?$": {"type": "null"}},
                    "additionalProperties": {"type": "boolean"}}),
                json!({"type": "object", "required": ["a"], "patternProperties": {"^([^a][\\s\\S]*|a[\\s\\S]+)?$": {"type": "null"}},
                    "additionalProperties": false, "properties": {"a": {"type": "boolean"}}}),
            ),
        ] {
            assert_eq!(reachable(&schema).unwrap_or(json!(false)), expected, "{schema}");
            let nested = json!({"$defs": {"0": {"anyOf": [schema, {"type": "null"}]}}});
            assert_eq!(reachable(&nested).unwrap(), json!({"$defs": {"0": {"anyOf": [expected, {"type": "null"}]}}}));
        }
    }
}
