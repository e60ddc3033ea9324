//! Keywords of arrays.

use serde_json::{Value, json};

use super::{Node, Preparer, below};
use crate::engine::grammar::GrammarError;

impl Preparer<'_> {
    pub(super) fn arrays(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        // In older drafts a list of `items` stands for the first ones, and `additionalItems` for the others.
        let listed = matches!(node.map.get("items"), Some(Value::Array(_)));
        let (first, others) = if listed { ("items", "additionalItems") } else { ("prefixItems", "items") };
        if let Some(list) = node.list(first)? {
            let at = below(node.at, first);
            let prepared = list.iter().enumerate().map(|(n, schema)| self.node(schema, &below(&at, &n.to_string())));
            let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
            node.out.insert("prefixItems".to_owned(), Value::Array(prepared));
        }
        let unevaluated = self.unevaluated(node, others)?;
        if let Some((keyword, schema)) = node.map.get(others).map(|schema| (others, schema)).or(unevaluated) {
            let schema = self.node(schema, &below(node.at, keyword))?;
            node.out.insert("items".to_owned(), schema);
        }
        for keyword in ["minItems", "maxItems"] {
            if let Some(count) = node.count(keyword)? {
                node.out.insert(keyword.to_owned(), json!(count));
            }
        }
        self.unique(node)?;
        self.contained(node)
    }

    /// `unevaluatedItems` where it says the same as `items`.
    fn unevaluated<'n>(
        &mut self,
        node: &Node<'n>,
        others: &str,
    ) -> Result<Option<(&'static str, &'n Value)>, GrammarError> {
        const UNEVALUATED: &str = "unevaluatedItems";
        let joined = ["$ref", "allOf", "anyOf", "oneOf", "if", "contains"];
        match node.map.get(UNEVALUATED) {
            None | Some(Value::Bool(true)) => Ok(None),
            Some(_) if node.map.contains_key(others) => Ok(None),
            Some(schema) if !joined.iter().any(|keyword| node.map.contains_key(*keyword)) => {
                Ok(Some((UNEVALUATED, schema)))
            }
            Some(_) => {
                self.leave(node.at, UNEVALUATED, "beside what joins schemas it is not known what is left")?;
                Ok(None)
            }
        }
    }

    fn unique(&mut self, node: &Node<'_>) -> Result<(), GrammarError> {
        match node.map.get("uniqueItems") {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::Bool(true)) if node.count("maxItems")?.is_some_and(|most| most <= 1) => Ok(()),
            Some(Value::Bool(true)) => self.leave(node.at, "uniqueItems", "a grammar does not remember earlier items"),
            Some(_) => Err(node.wrong("uniqueItems", "this must be `true` or `false`")),
        }
    }

    fn contained(&mut self, node: &Node<'_>) -> Result<(), GrammarError> {
        let says = node.map.contains_key("contains")
            && !(node.count("minContains")? == Some(0) && node.count("maxContains")?.is_none());
        match says {
            true => self.leave(node.at, "contains", "a grammar does not look for one item among others"),
            false => Ok(()),
        }
    }
}
