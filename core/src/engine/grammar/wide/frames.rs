//! Lists and objects around a wide number.

use serde_json::{Map, Value, json};

use super::{Rules, reaches};
use crate::engine::grammar::GrammarError;
use crate::engine::grammar::calls::quoted;
use crate::engine::grammar::prepare::{below, fault};

/// Items of a list that must be there: each is a term of its own.
const ITEMS_MIN_MAX: u64 = 1_000;

impl Rules<'_> {
    pub(super) fn list(&mut self, map: &Map<String, Value>, at: &str) -> Result<String, GrammarError> {
        let schema =
            Value::Object(Map::from_iter([("type".to_owned(), json!("array"))].into_iter().chain(map.clone())));
        if !reaches(&schema, &self.wide) {
            return self.rule(&schema, at);
        }
        if map.contains_key("prefixItems") {
            let reason = "integers beyond 2^53 cannot be enforced within `prefixItems`";
            return Err(fault(at, "prefixItems", reason));
        }
        let count = |keyword: &str| map.get(keyword).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        if least > ITEMS_MIN_MAX || most.is_some_and(|most| most < least) {
            return Err(fault(at, "minItems", "so many items beside integers beyond 2^53 cannot be enforced"));
        }
        let item = self.rule(map.get("items").unwrap_or(&Value::Bool(true)), &below(at, "items"))?;
        let more = match most {
            Some(most) => format!("{{{},{}}}", least.saturating_sub(1), most.saturating_sub(1)),
            None => format!("{{{},}}", least.saturating_sub(1)),
        };
        let filled = format!("{item} (COMMA {item}){more}");
        Ok(match (least, most) {
            (_, Some(0)) => "\"[\" \"]\"".to_owned(),
            (0, _) => format!("\"[\" ({filled})? \"]\""),
            _ => format!("\"[\" {filled} \"]\""),
        })
    }

    /// Only the properties that are named are offered: another one is no violation, but nobody asked for it.
    pub(super) fn object(&mut self, map: &Map<String, Value>, at: &str) -> Result<String, GrammarError> {
        let schema =
            Value::Object(Map::from_iter([("type".to_owned(), json!("object"))].into_iter().chain(map.clone())));
        if !reaches(&schema, &self.wide) {
            return self.rule(&schema, at);
        }
        if let Some(keyword) = ["minProperties", "maxProperties"].into_iter().find(|keyword| map.contains_key(*keyword))
        {
            let reason = format!("integers beyond 2^53 cannot be enforced beside `{keyword}`");
            return Err(fault(at, keyword, reason));
        }
        let none = Map::new();
        let properties = map.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required: Vec<&str> =
            map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            let reason = format!("`{name}` must be among the properties where integers beyond 2^53 are");
            return Err(fault(at, "required", reason));
        }
        let mut members = Vec::new();
        for (name, schema) in properties {
            let value = self.rule(schema, &below(&below(at, "properties"), name))?;
            let key = quoted(&Value::String(name.clone()).to_string());
            members.push((format!("{key} COLON {value}"), required.contains(&name.as_str())));
        }
        Ok(format!("\"{{\" {} \"}}\"", self.in_order(&members)))
    }

    /// Members in their order, with commas between those that are there.
    fn in_order(&mut self, members: &[(String, bool)]) -> String {
        // What may follow a member, from the last one to the first.
        let mut after = String::new();
        let mut starts = Vec::new();
        for (member, required) in members.iter().rev() {
            let member_rule = self.named(member);
            starts.insert(0, format!("{member_rule} {after}"));
            if *required {
                starts.truncate(1);
            }
            let step = format!("(COMMA {member_rule}){} {after}", if *required { "" } else { "?" });
            after = self.named(&step);
        }
        let any_required = members.iter().any(|(_, required)| *required);
        match starts.is_empty() {
            true => String::new(),
            false => format!("({}){}", starts.join(" | "), if any_required { "" } else { "?" }),
        }
    }

    fn named(&mut self, term: &str) -> String {
        let name = self.fresh();
        self.text += &format!("{name}: {term}\n");
        name
    }
}
