//! The daemon and its OpenAPI document agree on what may be sent. Bodies and queries stand at and beyond each limit of
//! the document. They are taken where it allows them, and refused with 400 where it does not. The judge of the document
//! here is written from JSON Schema's rules and shares nothing with the daemon.

use serde_json::{Map, Value, json};

use crate::{Answer, Server, server};

/// Limits above this are not tried: the values would be larger than a test should be.
const LONG: u64 = 70_000;
const MANY: u64 = 5_000;

/// What a schema cannot say: a relation of two values, and what the embedding model is.
const BEYOND: [(&str, &str); 5] = [
    ("/v1/completions", "best_of"),
    ("/v1/embeddings", "dimensions"),
    ("/v1/chat/completions", "continue_final_message"),
    ("/apply-template", "continue_final_message"),
    ("/v1/documents", "base64"),
];

/// Whether a value is allowed.
fn valid(schema: &Value, value: &Value, document: &Value) -> bool {
    let Some(rules) = schema.as_object() else { return schema != &json!(false) };
    rules.iter().all(|(rule, said)| holds(rule, said, rules, value, document))
}

fn holds(rule: &str, said: &Value, rules: &Map<String, Value>, value: &Value, document: &Value) -> bool {
    let of = |schema: &Value| valid(schema, value, document);
    let all = |schemas: &Value| schemas.as_array().unwrap().iter().filter(|schema| of(schema)).count();
    let whole = |value: &Value| {
        let exact = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
        exact.or_else(|| value.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i128))
    };
    let least = || match (whole(value), whole(said)) {
        (Some(value), Some(said)) => value.cmp(&said),
        _ => value.as_f64().unwrap().total_cmp(&said.as_f64().unwrap()),
    };
    let long = |length: usize| (length as u64).cmp(&said.as_u64().unwrap());
    match (rule, value) {
        ("$ref", _) => of(document.pointer(said.as_str().unwrap().trim_start_matches('#')).unwrap()),
        ("type", _) => {
            let is = |kind: &Value| match kind.as_str().unwrap() {
                "null" => value.is_null(),
                "boolean" => value.is_boolean(),
                "integer" => whole(value).is_some(),
                "number" => value.is_number(),
                "string" => value.is_string(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("the type {other}"),
            };
            said.as_array().map_or_else(|| is(said), |kinds| kinds.iter().any(is))
        }
        ("enum", _) => said
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one == value || whole(one).is_some() && whole(one) == whole(value)),
        ("const", _) => said == value,
        ("minimum", Value::Number(_)) => least().is_ge(),
        ("maximum", Value::Number(_)) => least().is_le(),
        ("minLength", Value::String(text)) => long(text.chars().count()).is_ge(),
        ("maxLength", Value::String(text)) => long(text.chars().count()).is_le(),
        ("pattern", Value::String(text)) => regex::Regex::new(said.as_str().unwrap()).unwrap().is_match(text),
        ("minItems", Value::Array(items)) => long(items.len()).is_ge(),
        ("maxItems", Value::Array(items)) => long(items.len()).is_le(),
        ("items", Value::Array(items)) => items.iter().all(|item| valid(said, item, document)),
        ("contains", Value::Array(items)) => items.iter().any(|item| valid(said, item, document)),
        ("maxProperties", Value::Object(map)) => long(map.len()).is_le(),
        ("propertyNames", Value::Object(map)) => map.keys().all(|key| valid(said, &json!(key), document)),
        ("required", Value::Object(map)) => {
            said.as_array().unwrap().iter().all(|name| map.contains_key(name.as_str().unwrap()))
        }
        ("properties", Value::Object(map)) => {
            map.iter().all(|(key, value)| said.get(key).is_none_or(|schema| valid(schema, value, document)))
        }
        ("additionalProperties", Value::Object(map)) => {
            let known = |key: &str| rules.get("properties").is_some_and(|properties| properties.get(key).is_some());
            map.iter().filter(|(key, _)| !known(key)).all(|(_, value)| valid(said, value, document))
        }
        ("anyOf", _) => all(said) > 0,
        ("oneOf", _) => all(said) == 1,
        ("allOf", _) => all(said) == said.as_array().unwrap().len(),
        ("not", _) => !of(said),
        ("if", _) => !of(said) || rules.get("then").is_none_or(of),
        (
            "then"
            | "description"
            | "default"
            | "minimum"
            | "maximum"
            | "minLength"
            | "maxLength"
            | "pattern"
            | "minItems"
            | "maxItems"
            | "items"
            | "contains"
            | "maxProperties"
            | "propertyNames"
            | "required"
            | "properties"
            | "additionalProperties",
            _,
        ) => true,
        (other, _) => panic!("the rule {other}"),
    }
}

/// One good value of a schema; the `n`th, where the same one twice would not do.
fn example(schema: &Value, n: usize, document: &Value) -> Value {
    match schema["$ref"].as_str().and_then(|place| place.rsplit('/').next()) {
        Some("Message") => json!({"role": "user", "content": "x"}),
        Some("SentToolCall") => json!({"type": "function", "function": {"name": "f", "arguments": "{}"}}),
        Some("Tool") => json!({"type": "function", "function": {"name": format!("f{n}")}}),
        _ => {
            let good = |value: &Value| !value.is_null() && valid(schema, value, document);
            values(schema, document).into_iter().find(good).unwrap_or_else(|| panic!("nothing is good for {schema}"))
        }
    }
}

/// Values of every kind, and those at and beyond each limit of a schema.
fn values(schema: &Value, document: &Value) -> Vec<Value> {
    // Of what other components refer to, whose readers have tests of their own, values of every kind are enough.
    if let Some(place) = schema["$ref"].as_str().filter(|place| place.ends_with("/TemplateArguments")) {
        return values(document.pointer(place.trim_start_matches('#')).unwrap(), document);
    }
    let mut found: Vec<Value> = [
        "null", "true", "false", "0", "1", "-1", "2.0", "1.5", "1e300", "-1e300", "\"\"", "\"x\"", "[]", "{}",
        "[null]", "[\"x\"]", "[7]",
    ]
    .iter()
    .map(|text| serde_json::from_str(text).unwrap())
    .collect();
    for rule in ["anyOf", "enum"] {
        for one in schema[rule].as_array().into_iter().flatten() {
            found.extend(if rule == "enum" { vec![one.clone()] } else { values(one, document) });
        }
    }
    found.extend(schema.get("const").cloned());
    if let Some(schema) = schema.get("contains") {
        found.extend(values(schema, document).into_iter().map(|value| json!(["x", value])));
    }
    for (rule, beyond) in [("minimum", -1.0), ("maximum", 1.0)] {
        let limit = &schema[rule];
        match (limit.as_i64(), limit.as_f64()) {
            (Some(limit), _) if limit.unsigned_abs() < 1 << 53 => {
                found.extend([json!(limit), json!(limit + beyond as i64)])
            }
            (_, Some(float)) => {
                found.extend([limit.clone(), json!(float * 2.0 + beyond), json!(float + beyond / 1000.0)])
            }
            _ => {}
        }
    }
    for rule in ["minLength", "maxLength"] {
        if let Some(limit) = schema[rule].as_u64().filter(|limit| *limit <= LONG) {
            found.extend([limit.saturating_sub(1), limit, limit + 1].map(|n| json!("\u{e4}".repeat(n as usize))));
            found.extend([limit, limit + 1].map(|n| json!("a".repeat(n as usize))));
        }
    }
    if schema.get("pattern").is_some() {
        found.extend(["a", "a b", "a.b", "..", "a\u{7}", "\u{e4}"].map(|text| json!(text)));
    }
    for rule in ["minItems", "maxItems"] {
        for n in schema[rule]
            .as_u64()
            .filter(|limit| *limit <= MANY)
            .into_iter()
            .flat_map(|n| [n.saturating_sub(1), n, n + 1])
        {
            found.push((0..n as usize).map(|at| example(&schema["items"], at, document)).collect());
        }
    }
    if schema["items"].get("$ref").is_none() && schema.get("items").is_some() {
        found.extend(values(&schema["items"], document).into_iter().map(|value| json!([value])));
    }
    if schema.get("propertyNames").is_some() {
        found.extend(["0", "01", "999999999", "1000000000", "-1", "x"].map(|key| json!({key: 1})));
        found.extend(values(&schema["additionalProperties"], document).into_iter().map(|value| json!({"7": value})));
        for n in schema["maxProperties"].as_u64().into_iter().flat_map(|n| [n, n + 1]) {
            found.push((0..n).map(|key| (key.to_string(), json!(1))).collect::<Map<_, _>>().into());
        }
    }
    if let Some(properties) = schema["properties"].as_object() {
        found.push(json!({"unheard_of": 1}));
        for (name, schema) in properties {
            found.extend(values(schema, document).into_iter().map(|value| json!({name: value})));
        }
    }
    found
}

/// What becomes of a good value: at every depth other values in the place of each property and item, and none.
fn changed(schema: &Value, good: &Value, document: &Value) -> Vec<Value> {
    if let Some(place) = schema["$ref"].as_str() {
        return changed(document.pointer(place.trim_start_matches('#')).unwrap(), good, document);
    }
    let others = |schema: &Value, own: Option<&Value>| {
        let deeper = own.into_iter().flat_map(|own| changed(schema, own, document));
        values(schema, document).into_iter().chain(deeper).collect::<Vec<_>>()
    };
    let alternatives = schema["anyOf"].as_array().into_iter().flatten().filter(|one| valid(one, good, document));
    let mut found: Vec<Value> = alternatives.flat_map(|one| changed(one, good, document)).collect();
    match good {
        Value::Object(map) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                found.extend(others(schema, map.get(name)).into_iter().map(|value| {
                    let mut map = map.clone();
                    map.insert(name.clone(), value);
                    map.into()
                }));
            }
            found.extend(map.keys().map(|name| {
                let mut map = map.clone();
                map.shift_remove(name);
                map.into()
            }));
        }
        Value::Array(items) if schema.get("items").is_some() => {
            for at in 0..items.len() {
                found.extend(others(&schema["items"], Some(&items[at])).into_iter().map(|value| {
                    let mut items = items.clone();
                    items[at] = value;
                    items.into()
                }));
            }
        }
        _ => {}
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_tools_are_taken_as_the_document_says_and_no_others() {
    let server = server().await;
    let document = server.get("/openapi.json").await.json();
    let message = |role: &str| json!({"role": role, "content": "x"});
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let tool = json!({"type": "function", "function": {"name": "f", "description": "x", "strict": false,
        "parameters": {"type": "object"}}});
    let messages = [
        message("system"),
        message("developer"),
        message("assistant"),
        json!({"role": "user", "content": [{"type": "text", "text": "x"}]}),
        json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}], "reasoning_content": "x"}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "content": "x", "tool_call_id": "c"}),
    ];
    let of_message = |message: Value| json!({"messages": [{"role": "user", "content": "x"}, message]});
    let of_tool = |tool: Value| json!({"messages": [{"role": "user", "content": "x"}], "tools": [tool]});
    let [message, offered] =
        ["Message", "Tool"].map(|name| document.pointer(&format!("/components/schemas/{name}")).unwrap());
    let (mut tried, mut taken) = (std::collections::BTreeSet::new(), 0);
    let messages = messages.iter().map(|good| (message, good, &of_message as &dyn Fn(Value) -> Value));
    for (schema, good, body) in messages.chain([(offered, &tool, &of_tool as _)]) {
        for value in std::iter::once(good.clone()).chain(changed(schema, good, &document)).chain([json!(["user", "x"])])
        {
            if !tried.insert(value.to_string()) {
                continue;
            }
            let allowed = valid(schema, &value, &document);
            let answer = server.post("/apply-template", &body(value.clone())).await;
            assert_eq!(answer.status, if allowed { 200 } else { 400 }, "{value}: {}", answer.text);
            taken += usize::from(allowed);
        }
    }
    assert!(taken > 100 && tried.len() - taken > 300, "{taken} of {}", tried.len());
}

/// Good bodies of a route to start from.
fn bases(path: &str) -> Vec<Value> {
    let messages = json!([{"role": "user", "content": "x"}]);
    match path {
        "/v1/chat/completions" => {
            let streamed = json!({"messages": messages, "stream": true, "logprobs": true, "top_logprobs": 0});
            vec![json!({"messages": messages}), streamed]
        }
        "/v1/completions" => vec![json!({"prompt": "x"}), json!({"prompt": "x", "stream": true})],
        "/v1/embeddings" => vec![json!({"input": "a"})],
        "/v1/rerank" => vec![json!({"query": "a", "documents": ["a"]})],
        "/tokenize" => vec![json!({"content": "a"})],
        "/detokenize" => vec![json!({"tokens": [1]})],
        "/apply-template" => vec![json!({"messages": messages})],
        "/v1/feedback" => vec![json!({"turn": "turn-1", "vote": "up"})],
        "/v1/lessons" => vec![json!({"question": "q", "answer": "a"})],
        "/v1/documents" => vec![json!({"name": "n", "text": "a"})],
        "/v1/documents/search" => vec![json!({"query": "q"})],
        "/v1/collections" => vec![json!({"name": "n"})],
        "/v1/sessions" => vec![json!({"name": "n", "turn": "t"}), json!({"name": "n", "from": "m"})],
        "/v1/admin/model" => vec![json!({"path": "/x.gguf"}), json!({"before": true})],
        "/v1/night" => vec![
            json!({"command": "run_now"}),
            json!({"command": "rollback", "generation": 1}),
            json!({"command": "report"}),
            json!({"command": "reset_pipeline", "route": "default"}),
        ],
        other => panic!("no body of {other} is known: write one here"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_taken_as_the_document_says_and_no_others() {
    let server = server().await;
    let document = server.get("/openapi.json").await.json();
    let (mut taken, mut refused) = (0, 0);
    for (path, operations) in document["paths"].as_object().unwrap() {
        let place = &operations["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let Some(place) = place.as_str() else { continue };
        let schema = document.pointer(place.trim_start_matches('#')).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        let mut bodies = Vec::new();
        for base in bases(path) {
            assert!(valid(schema, &base, &document), "{path}: {base}");
            let with = |name: &str, value: Value| {
                let mut body = base.clone();
                body[name] = value;
                body
            };
            bodies.extend([base.clone(), with("unheard_of", json!(1))]);
            for name in base.as_object().unwrap().keys() {
                let mut without = base.clone();
                without.as_object_mut().unwrap().shift_remove(name);
                bodies.push(without);
            }
            for (name, schema) in properties.iter().filter(|(name, _)| !BEYOND.contains(&(path, name))) {
                bodies.extend(values(schema, &document).into_iter().map(|value| with(name, value)));
            }
        }
        for body in bodies {
            let allowed = valid(schema, &body, &document);
            let answer = server.post(path, &body).await;
            let shown: String = body.to_string().chars().take(300).collect();
            assert_eq!(answer.status != 400, allowed, "{path} {shown}: {} {}", answer.status, answer.text);
            assert!(answer.status < 500 || path == "/v1/night", "{path} {shown}: {}", answer.text);
            *(if allowed { &mut taken } else { &mut refused }) += 1;
        }
    }
    println!("{taken} bodies taken, {refused} refused");
    assert!(taken > 300 && refused > 1_000, "{taken} {refused}");
}

async fn asked(server: &Server, method: &str, path: &str, query: &[(&str, &str)]) -> Answer {
    let url = reqwest::Url::parse_with_params(&server.url(path), query).unwrap();
    server.send(server.client.request(method.to_uppercase().parse().unwrap(), url)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_are_taken_as_the_document_says_and_no_others() {
    let server = server().await;
    let document = server.get("/openapi.json").await.json();
    let mut tried = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let all = operation["parameters"].as_array().into_iter().flatten();
            for parameter in all.filter(|parameter| parameter["in"] == "query") {
                let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
                let texts =
                    ["5.0", "1e2", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "\u{e4}"];
                let scalars =
                    values(schema, &document).into_iter().filter(|v| v.is_number() || v.is_boolean() || v.is_string());
                let scalars = scalars.map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
                for text in scalars.chain(texts.map(str::to_owned)) {
                    let read = match schema["type"].as_str() {
                        Some("integer" | "boolean") => serde_json::from_str(&text).unwrap_or_else(|_| json!(text)),
                        _ => json!(text),
                    };
                    let mut query = vec![(name, text.as_str())];
                    query.extend((method == "delete" && name != "all").then_some(("all", "true")));
                    if name == "all" {
                        query.push(("conversation", "c"));
                    }
                    let answer = asked(&server, method, path, &query).await;
                    let allowed = valid(schema, &read, &document);
                    assert_eq!(answer.status != 400, allowed, "{method} {path} {query:?}: {}", answer.text);
                    tried += 1;
                }
                let unknown = asked(&server, method, path, &[("unheard_of", "1"), ("all", "true")]).await;
                assert_eq!(unknown.status, 400, "{method} {path}");
            }
        }
    }
    assert!(tried > 200, "{tried}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_parameter_is_explained_to_people() {
    let server = server().await;
    let document = server.get("/openapi.json").await.json();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/api.md")).unwrap();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        if name.ends_with("Request") || name == "ModelChange" || name == "NightCommand" {
            for parameter in schema["properties"].as_object().unwrap().keys() {
                assert!(page.contains(&format!("`{parameter}")), "{name}: `{parameter}` is missing from docs/api.md");
            }
        }
    }
}
