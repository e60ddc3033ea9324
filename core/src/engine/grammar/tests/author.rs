//! Random schemas, as strangers might write them: the numbers that make them, their names, patterns and formats.

use serde_json::{Map, Value, json};

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub(super) fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

const SIMPLE_NAMES: [&str; 5] = ["a", "b", "kind", "p_1", "p-2"];
const NAMES: [&str; 9] = ["a", "b", "kind", "x y", "é", "q\"t", "n/1~", "", "$ref"];
/// The first of them could be those of a program.
const DANGEROUS_SIMPLE: usize = 18;
const DANGEROUS_NAMES: [&str; 46] = [
    "__proto__",
    "constructor",
    "name",
    "names",
    "arguments",
    "parameters",
    "parameter",
    "function",
    "tool_name",
    "json",
    "null",
    "0",
    "-",
    "_",
    "a",
    "a.b",
    "ab",
    "type",
    "",
    " ",
    "é",
    "日本語",
    "🦀",
    "q\"t",
    "back\\slash",
    "[",
    "]",
    "{",
    "}",
    "}}",
    "\"}",
    "a>b",
    "a=b",
    "</parameter>",
    "<parameter=a>",
    "</function>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<arg_key>",
    "</arg_value>",
    "<|im_end|>",
    "</think>",
    "$ref",
    "n/1~",
    "two\nlines",
];
const PATTERNS: [&str; 16] = [
    "^a+$",
    "b",
    "^[^x]{2,4}$",
    r"^\d{3}-\w+$",
    r"^\S+\s\S+$",
    "^(yes|no)$",
    "^a|b$",
    r"^.{1,3}$",
    r"^\p{Lu}\p{Ll}*$",
    "^$",
    r"^[\s\d]*$",
    "^[^\\s]+$",
    r"(?=a)b",
    r"\bword\b",
    "[a&&b]",
    r"^a\/b$",
];
const FORMATS: [&str; 14] = [
    "date",
    "time",
    "date-time",
    "email",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "hostname",
    "duration",
    "binary",
    "int32",
    "telephone",
    "json-pointer",
];

/// Schemas as strangers might write them.
pub(super) struct Author<'a> {
    pub(super) random: &'a mut Random,
    /// Properties have names as in programs.
    pub(super) simple: bool,
    /// Names that mean something to a reader, a family or a language.
    pub(super) dangerous: bool,
}

impl Author<'_> {
    fn name(&mut self) -> String {
        let names = match (self.simple, self.dangerous) {
            (true, false) => &SIMPLE_NAMES[..],
            (true, true) => &DANGEROUS_NAMES[..DANGEROUS_SIMPLE],
            (false, false) => &NAMES[..],
            (false, true) => &DANGEROUS_NAMES[..],
        };
        (*self.random.of(names)).to_owned()
    }

    /// Of a function's arguments.
    pub(super) fn of_a_function(&mut self) -> Value {
        let mut schema = Map::new();
        self.object(&mut schema, if self.simple { 1 } else { 2 });
        let defs: Map<String, Value> = (0..3).map(|n| (format!("d{n}"), self.schema(1))).collect();
        schema.insert("$defs".to_owned(), Value::Object(defs));
        if self.simple {
            // What tags cannot write stays away.
            schema.retain(|key, _| ["type", "properties", "required", "$defs"].contains(&key.as_str()));
            let own = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
            if let Some(Value::Array(required)) = schema.get_mut("required") {
                required.retain(|name| name.as_str().is_some_and(|name| own.contains_key(name)));
            }
        }
        Value::Object(schema)
    }

    pub(super) fn whole(&mut self) -> Value {
        let mut schema = match self.schema(3) {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let defs: Map<String, Value> = (0..3).map(|n| (format!("d{n}"), self.schema(2))).collect();
        schema.insert("$defs".to_owned(), Value::Object(defs));
        Value::Object(schema)
    }

    fn schema(&mut self, depth: usize) -> Value {
        let kinds = if depth == 0 { 7 } else { 14 };
        let mut map = Map::new();
        match self.random.below(kinds) {
            0 => drop(map.insert("type".to_owned(), json!(*self.random.of(&["null", "boolean"])))),
            1 => self.integer(&mut map),
            2 => self.number(&mut map),
            3 | 4 => self.string(&mut map),
            5 => self.listed(&mut map),
            6 => return json!({"$ref": format!("#/$defs/d{}", self.random.below(3))}),
            7 | 8 => self.array(&mut map, depth),
            9..12 => self.object(&mut map, depth),
            12 => self.joined(&mut map, depth),
            _ => self.mixed(&mut map, depth),
        }
        if self.random.one_in(10) && !map.contains_key("allOf") && !map.contains_key("$ref") {
            map.insert("allOf".to_owned(), json!([self.narrowing()]));
        }
        if self.random.one_in(6) {
            map.insert(self.random.of(&["title", "description", "x-note"]).to_string(), json!("text"));
        }
        Value::Object(map)
    }

    fn maybe(&mut self, map: &mut Map<String, Value>, chances: usize, key: &str, value: Value) {
        if self.random.one_in(chances) {
            map.insert(key.to_owned(), value);
        }
    }

    fn integer(&mut self, map: &mut Map<String, Value>) {
        let edges: Vec<Value> = vec![
            json!(0),
            json!(-1),
            json!(7),
            json!(-120),
            json!(1000),
            json!(2.5),
            json!((1i64 << 53) - 1),
            json!(1i64 << 53),
            json!((1i64 << 53) + 1),
            json!(-(1i64 << 53) - 3),
            json!(i64::MAX),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(1e18),
        ];
        map.insert("type".to_owned(), json!("integer"));
        for (chances, key) in [(3, "minimum"), (3, "maximum"), (8, "exclusiveMinimum"), (8, "exclusiveMaximum")] {
            let edge = self.random.of(&edges).clone();
            self.maybe(map, chances, key, edge);
        }
        let step = self.random.of(&[json!(2), json!(3), json!(10), json!(0.5), json!(1e-9), json!(1.5)]).clone();
        self.maybe(map, 6, "multipleOf", step);
    }

    fn number(&mut self, map: &mut Map<String, Value>) {
        let edges = [
            json!(0),
            json!(0.5),
            json!(-0.25),
            json!(3.5),
            json!(-3),
            json!(1e-7),
            json!(3),
            json!(-17.125),
            json!(99.99),
            json!(1e15),
            json!(1u64 << 60),
            json!(9.5e17),
            json!(-1e18),
        ];
        map.insert("type".to_owned(), json!("number"));
        for (chances, key) in [(2, "minimum"), (2, "maximum"), (6, "exclusiveMinimum"), (6, "exclusiveMaximum")] {
            let edge = self.random.of(&edges).clone();
            self.maybe(map, chances, key, edge);
        }
        let step = self.random.of(&[json!(0.1), json!(0.25), json!(5), json!(0.01), json!(0.07)]).clone();
        self.maybe(map, 6, "multipleOf", step);
    }

    fn string(&mut self, map: &mut Map<String, Value>) {
        map.insert("type".to_owned(), json!("string"));
        let (least, more) = (self.random.below(4), self.random.below(4));
        self.maybe(map, 4, "minLength", json!(least));
        self.maybe(map, 3, "maxLength", json!(least + more));
        let (pattern, format) = (*self.random.of(&PATTERNS), *self.random.of(&FORMATS));
        self.maybe(map, 3, "pattern", json!(pattern));
        self.maybe(map, 4, "format", json!(format));
    }

    /// More about a number or a text.
    fn narrowing(&mut self) -> Value {
        let mut map = Map::new();
        match self.random.below(3) {
            0 => self.integer(&mut map),
            1 => self.number(&mut map),
            _ => self.string(&mut map),
        }
        if self.random.one_in(2) {
            map.remove("type");
        }
        Value::Object(map)
    }

    pub(super) fn value(&mut self, depth: usize) -> Value {
        match self.random.below(if depth == 0 { 6 } else { 8 }) {
            0 => json!(null),
            1 => json!(self.random.one_in(2)),
            2 => json!(self.random.next()),
            3 => json!(self.random.next() as i64 >> self.random.below(60)),
            4 => self.random.of(&[json!(0.1), json!(-2.5e-8), json!(1.0), json!(12345.678), json!(1e20)]).clone(),
            5 => json!(*self.random.of(&["", "text", "é\n", "\"q\\", "\u{1}", "2024-02-29"])),
            6 => (0..self.random.below(3)).map(|_| self.value(depth - 1)).collect(),
            _ => Value::Object(
                (0..self.random.below(3))
                    .map(|_| (self.random.of(&NAMES).to_string(), self.value(depth - 1)))
                    .collect(),
            ),
        }
    }

    fn listed(&mut self, map: &mut Map<String, Value>) {
        match self.random.one_in(2) {
            true => drop(map.insert("const".to_owned(), self.value(2))),
            false => {
                let values: Vec<Value> = (0..=self.random.below(3)).map(|_| self.value(1)).collect();
                map.insert("enum".to_owned(), json!(values));
            }
        }
        let kind = *self.random.of(&["string", "number", "integer", "object"]);
        self.maybe(map, 5, "type", json!(kind));
    }

    fn array(&mut self, map: &mut Map<String, Value>, depth: usize) {
        map.insert("type".to_owned(), json!("array"));
        let items = self.schema(depth - 1);
        self.maybe(map, 1, "items", items);
        let first: Vec<Value> = (0..=self.random.below(2)).map(|_| self.schema(depth - 1)).collect();
        self.maybe(map, 5, "prefixItems", json!(first));
        let least = self.random.below(3);
        self.maybe(map, 3, "minItems", json!(least));
        self.maybe(map, 2, "maxItems", json!(least + self.random.0 as usize % 3));
        let unique = self.random.one_in(2);
        self.maybe(map, 8, "uniqueItems", json!(unique));
        self.maybe(map, 20, "contains", json!({"type": "null"}));
    }

    fn object(&mut self, map: &mut Map<String, Value>, depth: usize) {
        map.insert("type".to_owned(), json!("object"));
        let mut properties = Map::new();
        for _ in 0..self.random.below(4) {
            properties.insert(self.name(), self.schema(depth - 1));
        }
        let mut required: Vec<String> = properties.keys().filter(|_| self.random.one_in(2)).cloned().collect();
        if self.random.one_in(6) {
            required.push(self.name());
        }
        map.insert("properties".to_owned(), Value::Object(properties));
        required.sort();
        required.dedup();
        self.maybe(map, 2, "required", json!(required));
        let others = if self.random.one_in(2) { json!(false) } else { self.schema(depth - 1) };
        self.maybe(map, 2, "additionalProperties", others);
        let (pattern, schema) = (*self.random.of(&PATTERNS), self.schema(depth - 1));
        self.maybe(map, 8, "patternProperties", json!({pattern: schema}));
        let (least, most) = (self.random.below(3), self.random.below(4));
        self.maybe(map, 8, "minProperties", json!(least));
        self.maybe(map, 8, "maxProperties", json!(most));
        let names = self
            .random
            .of(&[json!({"pattern": "^[a-c]$"}), json!({"enum": ["a", "z"]}), json!({"type": "string"})])
            .clone();
        self.maybe(map, 10, "propertyNames", names);
        self.maybe(map, 12, "unevaluatedProperties", json!(false));
    }

    fn joined(&mut self, map: &mut Map<String, Value>, depth: usize) {
        let keyword = *self.random.of(&["anyOf", "oneOf", "allOf"]);
        let parts: Vec<Value> = (0..=self.random.below(2)).map(|_| self.schema(depth - 1)).collect();
        map.insert(keyword.to_owned(), json!(parts));
        if self.random.one_in(3) {
            self.object(map, depth);
        }
        let other = self.schema(0);
        self.maybe(map, 12, "not", other);
    }

    fn mixed(&mut self, map: &mut Map<String, Value>, depth: usize) {
        self.object(map, depth);
        self.array(map, depth);
        self.string(map);
        self.integer(map);
        match self.random.one_in(3) {
            true => drop(map.remove("type")),
            false => drop(map.insert("type".to_owned(), json!(["string", "object", "integer", "array", "null"]))),
        }
    }
}
