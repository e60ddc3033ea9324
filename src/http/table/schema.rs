//! The table as JSON Schema, for the OpenAPI document.

use serde_json::{Map, Value, json};

use super::check::number;
use super::{Param, Rule, Shape, TOKEN_KEYS, Table};

impl Table {
    /// The component of a body.
    pub(crate) fn schema(&self) -> Value {
        let mut schema = object(&self.params().collect::<Vec<_>>(), false);
        if !self.doc.is_empty() {
            schema["description"] = json!(self.doc);
        }
        for name in self.ignored {
            schema["properties"][name] = json!({"description": "Accepted without effect."});
        }
        if !self.rules.is_empty() {
            let rules: Vec<Value> = self.rules.iter().map(Rule::schema).collect();
            let mut all = schema["allOf"].as_array().cloned().unwrap_or_default();
            all.extend(rules);
            schema["allOf"] = all.into();
        }
        schema
    }

    /// The parameters of a query.
    pub(crate) fn query(&self) -> Vec<Value> {
        let one = |param: &Param| {
            let mut schema = param.shape.schema();
            if let Some(default) = param.default_value() {
                schema["default"] = default;
            }
            let mut told = json!({"name": param.name, "in": "query", "schema": schema});
            if !param.doc.is_empty() {
                told["description"] = json!(param.doc);
            }
            told
        };
        self.params().map(one).collect()
    }
}

impl Rule {
    fn schema(&self) -> Value {
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap_or_default();
        let is = |name: &str, json: &str| json!({"properties": {name: {"const": value(json)}}, "required": [name], "additionalProperties": true});
        match *self {
            Rule::Needs(name, other, json) => json!({"if": given(name), "then": is(other, json)}),
            Rule::Asks(name, json, other) => json!({"if": is(name, json), "then": given(other)}),
            Rule::ExactlyOne(names) => json!({"oneOf": names.iter().map(|name| given(name)).collect::<Vec<_>>()}),
            Rule::AtLeastOne(names) => json!({"anyOf": names.iter().map(|name| given(name)).collect::<Vec<_>>()}),
        }
    }
}

/// The object has this key, and no null there.
fn given(name: &str) -> Value {
    json!({"properties": {name: {"not": {"type": "null"}}}, "required": [name], "additionalProperties": true})
}

fn object(params: &[&Param], open: bool) -> Value {
    let mut properties = Map::new();
    let mut twins = Vec::new();
    for param in params {
        let schema = param.schema();
        if let Some(also) = param.also {
            let mut twin = schema.clone();
            twin["description"] = json!(format!("Another name of `{}`.", param.name));
            properties.insert(also.to_owned(), twin);
            twins.push(json!({"not": {"allOf": [given(param.name), given(also)]}}));
        }
        properties.insert(param.name.to_owned(), schema);
    }
    let required: Vec<&str> = params.iter().filter(|param| param.required).map(|param| param.name).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if !twins.is_empty() {
        schema["allOf"] = twins.into();
    }
    schema["additionalProperties"] = json!(open);
    schema
}

impl Param {
    fn default_value(&self) -> Option<Value> {
        self.default.and_then(|json| serde_json::from_str(json).ok())
    }

    fn schema(&self) -> Value {
        let mut schema = self.shape.schema();
        if !self.required {
            schema = or_null(schema);
        }
        if !self.doc.is_empty() {
            schema["description"] = json!(self.doc);
        }
        if let Some(default) = self.default_value() {
            schema["default"] = default;
        }
        schema
    }
}

/// Null is as good as nothing.
fn or_null(mut schema: Value) -> Value {
    if let Some(kind) = schema.get("type").filter(|_| schema.get("enum").is_none()) {
        schema["type"] = json!([kind, "null"]);
    } else if let Some(any) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        any.push(json!({"type": "null"}));
    } else if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    } else if schema.as_object().is_some_and(|schema| !schema.is_empty()) {
        schema = json!({"anyOf": [schema, {"type": "null"}]});
    }
    schema
}

impl Shape {
    fn schema(&self) -> Value {
        match self {
            Shape::Bool => json!({"type": "boolean"}),
            Shape::Exactly(json) => json!({"enum": [serde_json::from_str::<Value>(json).unwrap_or_default()]}),
            Shape::Whole { min, max } => json!({"type": "integer", "minimum": number(*min), "maximum": number(*max)}),
            Shape::Number { min, max } => json!({"type": "number", "minimum": min, "maximum": max}),
            Shape::Text { min, max } => bounded(json!({"type": "string"}), ["minLength", "maxLength"], *min, *max),
            Shape::Name(name) => json!({"type": "string", "pattern": name.pattern, "maxLength": name.max}),
            Shape::Word(words) => json!({"enum": words}),
            Shape::List { of, min, max } => {
                bounded(json!({"type": "array", "items": of.schema()}), ["minItems", "maxItems"], *min, *max)
            }
            Shape::ByToken { of, max } => json!({
                "type": "object",
                "propertyNames": {"pattern": TOKEN_KEYS},
                "maxProperties": max,
                "additionalProperties": of.schema(),
            }),
            Shape::Object(params) => object(&params.iter().collect::<Vec<_>>(), false),
            Shape::Open(params) => object(&params.iter().collect::<Vec<_>>(), true),
            Shape::Either(shapes) => json!({"anyOf": shapes.iter().map(Shape::schema).collect::<Vec<_>>()}),
            Shape::Elsewhere(name) => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

fn bounded(mut schema: Value, [least, most]: [&str; 2], min: usize, max: usize) -> Value {
    if min > 0 {
        schema[least] = json!(min);
    }
    if max < usize::MAX {
        schema[most] = json!(max);
    }
    schema
}
