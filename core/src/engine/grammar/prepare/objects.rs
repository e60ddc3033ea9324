//! Keywords of objects.

use std::collections::HashSet;
use std::time::Instant;

use llguidance::derivre::RegexAst;
use serde_json::{Map, Value, json};

use super::{Comparing, Node, Preparer, below, older, patterns, wrong};
use crate::engine::grammar::GrammarError;
use crate::engine::grammar::together::{matches_nothing, search};

/// Bytes of the patterns of a schema that are compared, two at a time.
const COMPARED_BYTES_MAX: usize = 16 << 10;

/// What is known of a pattern beside those before it.
enum Beside {
    Apart,
    /// A name may match this one as well.
    Overlaps(String),
    /// There are too many to compare, one comparison is too large, or the time was up.
    Unknown,
}

/// Whether patterns of a schema are compared, which takes a while.
pub fn compares(schema: &Value) -> bool {
    match schema {
        Value::Array(list) => list.iter().any(compares),
        Value::Object(map) => map.iter().any(|(key, value)| {
            let several = value.as_object().is_some_and(|named| named.len() > 1);
            key == "patternProperties" && several || compares(value)
        }),
        _ => false,
    }
}

impl Preparer<'_> {
    pub(super) fn objects(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        self.named(node)?;
        let left = self.by_pattern(node)?;
        self.others(node, left)?;
        let required = required(node)?;
        if !required.is_empty() {
            node.out.insert("required".to_owned(), json!(required));
        }
        self.names(node)?;
        self.counted(node, required.len() as u64)?;
        self.dependent(node)
    }

    fn schemas(&mut self, node: &Node<'_>, keyword: &str) -> Result<Option<Map<String, Value>>, GrammarError> {
        let schemas = match node.map.get(keyword) {
            None => return Ok(None),
            Some(Value::Object(schemas)) => schemas,
            Some(_) => return Err(node.wrong(keyword, "this must be an object of schemas")),
        };
        let at = below(node.at, keyword);
        let prepared = schemas.iter().map(|(name, schema)| Ok((name.clone(), self.node(schema, &below(&at, name))?)));
        prepared.collect::<Result<_, _>>().map(Some)
    }

    fn named(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        if let Some(properties) = self.schemas(node, "properties")? {
            node.out.insert("properties".to_owned(), Value::Object(properties));
        }
        Ok(())
    }

    /// Whether a pattern is left to the model, and the names with it that it may match.
    fn by_pattern(&mut self, node: &mut Node<'_>) -> Result<bool, GrammarError> {
        let Some(schemas) = self.schemas(node, "patternProperties")? else { return Ok(false) };
        let all = schemas.len();
        let mut own: Vec<(String, String, Value)> = Vec::new();
        for (pattern, schema) in schemas {
            match patterns::read(&pattern) {
                Ok(read) => match self.beside(&read, &own) {
                    Beside::Overlaps(other) => {
                        let reason =
                            format!("a name may match `{other}` as well: write patterns that exclude each other");
                        self.leave(&below(node.at, "patternProperties"), &pattern, reason)?;
                    }
                    Beside::Unknown if !self.strict => {
                        let reason = "the patterns are too large to see whether a name may match another as well";
                        self.leave(&below(node.at, "patternProperties"), &pattern, reason)?;
                    }
                    // The compiler looks at them, and refuses the schema where they overlap.
                    Beside::Apart | Beside::Unknown => own.push((pattern, read, schema)),
                },
                Err(reason) if patterns::is_wrong(&pattern) => {
                    return Err(wrong(&below(node.at, "patternProperties"), &pattern, reason));
                }
                Err(reason) => self.leave(&below(node.at, "patternProperties"), &pattern, reason)?,
            }
        }
        let left = own.len() < all;
        let mut own: Map<String, Value> = own.into_iter().map(|(_, pattern, schema)| (pattern, schema)).collect();
        // Any name at all, so that a function is not taken for one without further parameters.
        if left && own.is_empty() {
            own.insert(String::new(), json!(true));
        }
        if !own.is_empty() {
            node.out.insert("patternProperties".to_owned(), Value::Object(own));
        }
        Ok(left)
    }

    /// Compares a pattern with those before it, as far as limits allow.
    fn beside(&mut self, one: &str, before: &[(String, String, Value)]) -> Beside {
        for (name, other, _) in before {
            let until = match self.comparing {
                Comparing::Known => return Beside::Apart,
                Comparing::Whole => None,
                Comparing::Until(until) => Some(until),
            };
            self.compared += one.len() + other.len();
            if self.compared > COMPARED_BYTES_MAX || until.is_some_and(|until| Instant::now() >= until) {
                return Beside::Unknown;
            }
            match matches_nothing(&RegexAst::And(vec![search(one), search(other)])) {
                Some(true) => {}
                Some(false) => return Beside::Overlaps(name.clone()),
                None => return Beside::Unknown,
            }
        }
        Beside::Apart
    }

    /// `additionalProperties`, and `unevaluatedProperties` where it says the same. `left`: so is a pattern of names.
    fn others(&mut self, node: &mut Node<'_>, left: bool) -> Result<(), GrammarError> {
        const OTHERS: &str = "additionalProperties";
        const UNEVALUATED: &str = "unevaluatedProperties";
        if let Some(schema) = node.map.get(OTHERS) {
            return self.other_names(node, OTHERS, schema, left);
        }
        let joined = ["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"];
        match node.map.get(UNEVALUATED) {
            None | Some(Value::Bool(true)) => {}
            Some(schema) if !joined.iter().any(|keyword| node.map.contains_key(*keyword)) => {
                self.other_names(node, UNEVALUATED, schema, left)?;
            }
            Some(_) => {
                let reason = "beside what joins schemas it is not known what is left: use `additionalProperties`";
                self.leave(node.at, UNEVALUATED, reason)?;
            }
        }
        Ok(())
    }

    /// What is said of the names that no list and no pattern has.
    fn other_names(
        &mut self,
        node: &mut Node<'_>,
        keyword: &str,
        schema: &Value,
        left: bool,
    ) -> Result<(), GrammarError> {
        let schema = self.node(schema, &below(node.at, keyword))?;
        if left && schema != json!(true) && schema != json!({}) {
            let reason = "which names it speaks of is not known: a pattern of names is left to the model";
            return self.leave(node.at, keyword, reason);
        }
        node.out.insert("additionalProperties".to_owned(), schema);
        Ok(())
    }

    /// `propertyNames`, as the patterns or the properties that say the same.
    fn names(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        const NAMES: &str = "propertyNames";
        let Some(schema) = node.map.get(NAMES) else { return Ok(()) };
        let map = match schema {
            Value::Object(map) => map.clone(),
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => Map::from_iter([("enum".to_owned(), json!([]))]),
            _ => return Err(node.wrong(NAMES, "a schema must be an object, `true` or `false`")),
        };
        let says: Vec<(&str, &Value)> = map
            .iter()
            .filter(|(key, _)| super::ASSERTING.contains(&key.as_str()))
            .filter(|(key, value)| (key.as_str(), value.as_str()) != ("type", Some("string")))
            .map(|(key, value)| (key.as_str(), value))
            .collect();
        let plain = !node.out.contains_key("patternProperties")
            && node.out.get("properties").is_none_or(|p| p.as_object().is_some_and(Map::is_empty));
        let texts = |value: &Value| value.as_str().map(str::to_owned);
        let others = node.out.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        match says.as_slice() {
            [] => return Ok(()),
            [("pattern", Value::String(pattern))] if plain => {
                if let Ok(pattern) = patterns::read(pattern) {
                    node.out.insert("patternProperties".to_owned(), json!({pattern: others}));
                    node.out.insert("additionalProperties".to_owned(), json!(false));
                    return Ok(());
                }
            }
            [("enum", Value::Array(list))] if plain => {
                if let Some(names) = list.iter().map(texts).collect::<Option<Vec<_>>>() {
                    let named: Map<String, Value> = names.into_iter().map(|name| (name, others.clone())).collect();
                    node.out.insert("properties".to_owned(), Value::Object(named));
                    node.out.insert("additionalProperties".to_owned(), json!(false));
                    return Ok(());
                }
            }
            _ => {}
        }
        self.leave(node.at, NAMES, "names are held to an `enum` or a `pattern` alone, and without other properties")
    }

    /// `minProperties` and `maxProperties`, where the properties that are named decide them.
    fn counted(&mut self, node: &mut Node<'_>, required: u64) -> Result<(), GrammarError> {
        let named = node.out.get("properties").and_then(Value::as_object).map_or(0, Map::len) as u64;
        let together = named_beside(node) || named > 0 && node.at.rsplit('/').nth(1) == Some("allOf");
        let closed =
            node.out.get("additionalProperties") == Some(&json!(false)) && !node.out.contains_key("patternProperties");
        let (least, most) = (node.count("minProperties")?, node.count("maxProperties")?);
        // What cannot be broken need not be said.
        let least = least.filter(|least| *least > required);
        let most = most.filter(|most| !(closed && *most >= named));
        // One of them, at least or at most: the library knows that.
        let one = closed && least.unwrap_or(1) == 1 && most.unwrap_or(1) == 1 && required == 0;
        if let Some(least) = least {
            match one {
                true => drop(node.out.insert("minProperties".to_owned(), json!(least))),
                false => self.leave(node.at, "minProperties", "properties are not counted: name what is `required`")?,
            }
        }
        if let Some(most) = most {
            // A name that comes twice counts once: the bound holds then all the more.
            match one || !together && named == required_of(node) {
                true => drop(node.out.insert("maxProperties".to_owned(), json!(most))),
                false => self.leave(node.at, "maxProperties", "optional properties are not counted")?,
            }
        }
        Ok(())
    }

    fn dependent(&mut self, node: &Node<'_>) -> Result<(), GrammarError> {
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let says = match node.map.get(keyword) {
                None => false,
                Some(Value::Object(map)) => !map.is_empty(),
                Some(_) => return Err(node.wrong(keyword, "this must be an object")),
            };
            if says {
                self.leave(node.at, keyword, "what hangs on another property is no form: use `anyOf`")?;
            }
        }
        Ok(())
    }
}

/// Whether schemas that hold beside this one may name further properties.
fn named_beside(node: &Node<'_>) -> bool {
    let names = |schema: &Value| ["properties", "$ref"].iter().any(|key| schema.get(key).is_some());
    let parts = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| node.map.get(key)?.as_array());
    node.map.contains_key("$ref") || parts.flatten().any(names)
}

/// How many of the named properties must be there.
fn required_of(node: &Node<'_>) -> u64 {
    let required = node.out.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let named = node.out.get("properties").and_then(Value::as_object);
    required.iter().filter_map(Value::as_str).filter(|name| named.is_some_and(|n| n.contains_key(*name))).count() as u64
}

/// The names that must be there, each once.
fn required(node: &Node<'_>) -> Result<Vec<String>, GrammarError> {
    let (mut names, mut known) = (Vec::new(), HashSet::new());
    match node.map.get("required") {
        // In draft 3 a switch of the property that this is.
        None | Some(Value::Bool(_)) => {}
        Some(Value::Array(list)) => {
            for name in list {
                let Some(name) = name.as_str() else {
                    return Err(node.wrong("required", "each name must be a text"));
                };
                if known.insert(name) {
                    names.push(name.to_owned());
                }
            }
        }
        Some(_) => return Err(node.wrong("required", "this must be a list of names")),
    }
    let properties = node.map.get("properties").and_then(Value::as_object);
    for (name, _) in properties.into_iter().flatten().filter(|(_, property)| older::is_required(property)) {
        if known.insert(name) {
            names.push(name.clone());
        }
    }
    Ok(names)
}
