//! Parts of a prepared schema that no answer could ever fill. The grammar library asks of a text whether anything matches
//! it, but before it is put in quotes. It does not ask that of multiples within bounds, of the names that patterns leave
//! to others, and of definitions that need themselves. An answer that had begun such a part could not go on, so the part
//! is taken out before.

use std::collections::BTreeSet;

use llguidance::derivre::{JsonQuoteOptions, RegexAst, RegexBuilder};
use serde_json::{Map, Number, Value, json};

use super::prepare::{decimal, parts, patterned};
use super::wide;

/// Work of one question; beyond, the part is left as it is.
const FUEL: u64 = 20_000;
/// Digits behind the point that are counted.
const PLACES_MAX: u32 = 18;
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Names of definitions.
type Names = BTreeSet<String>;

/// The schema without what cannot be reached.
pub(super) fn reachable(schema: &Value) -> Value {
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
            return part(schema, &finite);
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

fn part(schema: &Value, finite: &Names) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    if map.get("$ref").and_then(Value::as_str).is_some_and(|to| !leads(to, finite)) {
        return Value::Bool(false);
    }
    let part = |schema: &Value| part(schema, finite);
    let mut own = Map::new();
    for (key, value) in map {
        let inner = match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs", Value::Object(schemas)) => {
                schemas.iter().map(|(name, schema)| (name.clone(), part(schema))).collect()
            }
            ("items" | "additionalProperties", schema) => part(schema),
            ("prefixItems" | "allOf" | "anyOf", Value::Array(schemas)) => schemas.iter().map(part).collect(),
            (_, other) => other.clone(),
        };
        own.insert(key.clone(), inner);
    }
    // Numbers beyond doubles have rules of their own.
    if wide::holds_wide(schema) {
        return Value::Object(own);
    }
    let mut empty = Vec::new();
    if may_be(&own, &["string"]) && no_text(&own) {
        empty.push("string");
    }
    if may_be(&own, &["integer", "number"]) && no_multiple(&own) {
        empty.extend(["integer", "number"]);
    }
    if may_be(&own, &["object"]) {
        names(&mut own);
    }
    if empty.is_empty() { Value::Object(own) } else { without(own, &empty) }
}

fn types(map: &Map<String, Value>) -> Vec<&str> {
    match map.get("type") {
        None => TYPES.to_vec(),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        Some(one) => one.as_str().into_iter().collect(),
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

/// Whether nothing matches; false where that is not found out.
fn is_empty(ast: &RegexAst) -> bool {
    let mut builder = RegexBuilder::new();
    let made = builder.mk(ast).and_then(|made| builder.to_regex_limited(made, FUEL));
    made.is_ok_and(|mut regex| regex.always_empty())
}

fn in_quotes(ast: RegexAst) -> RegexAst {
    let options = JsonQuoteOptions { allowed_escapes: super::compile::ESCAPES.to_owned(), raw_mode: false };
    RegexAst::JsonQuote(Box::new(ast), options)
}

fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(llguidance::regex_to_lark(pattern, "dw"))
}

/// Whether no text matches its patterns with its length, as it is written in an answer.
fn no_text(map: &Map<String, Value>) -> bool {
    let beside = map.get("allOf").and_then(Value::as_array).into_iter().flatten().filter_map(patterned);
    let own = map.get("pattern").and_then(Value::as_str);
    let mut all: Vec<RegexAst> = own.into_iter().chain(beside).map(search).collect();
    let count = |key: &str| map.get(key).and_then(Value::as_u64);
    let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
    if all.is_empty() {
        return false;
    }
    if least > 0 || most.is_some() {
        let most = most.map_or(String::new(), |most| most.to_string());
        all.push(RegexAst::Regex(format!("(?s:.{{{least},{most}}})")));
    }
    is_empty(&in_quotes(RegexAst::And(all)))
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

/// Whether no multiple lies within the bounds.
fn no_multiple(map: &Map<String, Value>) -> bool {
    let number = |key: &str| map.get(key).and_then(Value::as_number);
    let Some((coefficient, places)) = number("multipleOf").and_then(decimal) else { return false };
    let bounds = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"].map(number);
    let deepest = bounds.iter().flatten().filter_map(|bound| Some(parts(bound)?.1)).chain([places]).max();
    let Some(deepest) = deepest.filter(|places| *places <= PLACES_MAX) else { return false };
    let scaled = |bound: Option<&Number>| match bound.map(parts) {
        None => Ok(None),
        Some(Some((value, places))) => value.checked_mul(10i128.pow(deepest - places)).map(Some).ok_or(()),
        Some(None) => Err(()),
    };
    let [least, above, most, below] = bounds.map(scaled);
    let (Ok(least), Ok(above), Ok(most), Ok(below)) = (least, above, most, below) else { return false };
    let Some(step) = i128::from(coefficient).checked_mul(10i128.pow(deepest - places)) else { return false };
    // Of whole numbers the multiples of both.
    let one = 10i128.pow(deepest);
    let step = match may_be(map, &["number"]) {
        true => Some(step),
        false => (step / common(step, one)).checked_mul(one),
    };
    let Some(step) = step else { return false };
    let first = [least.map(|b| up(b, step)), above.map(|b| b.div_euclid(step) + 1)].into_iter().flatten().max();
    let last = [most.map(|b| b.div_euclid(step)), below.map(|b| up(b, step) - 1)].into_iter().flatten().min();
    first.zip(last).is_some_and(|(first, last)| first > last)
}

/// The number of steps up to `bound`, or just beyond.
fn up(bound: i128, step: i128) -> i128 {
    bound.div_euclid(step) + i128::from(bound.rem_euclid(step) != 0)
}

/// The largest common divisor of two numbers above 0.
fn common(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { common(b, a % b) }
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
            assert_eq!(reachable(&schema)["items"], expected, "{name}");
        }
        let leaf = reachable(&json!({"$defs": defs}))["$defs"]["leaf"].clone();
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
            assert_eq!(reachable(&schema), expected, "{schema}");
            let nested = json!({"$defs": {"0": {"anyOf": [schema, {"type": "null"}]}}});
            assert_eq!(reachable(&nested), json!({"$defs": {"0": {"anyOf": [expected, {"type": "null"}]}}}));
        }
    }
}
