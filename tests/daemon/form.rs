//! Answers of a form: JSON by a schema and forced calls, whole and streamed, and schemas that are made to hurt.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, sse};

const CHAT: &str = "/v1/chat/completions";

/// Whether `value` satisfies `schema`, by the keywords that the schemas below use; another implementation than the one
/// under test.
fn satisfies(root: &Value, schema: &Value, value: &Value) -> bool {
    let number = |key: &str| schema[key].as_f64();
    let count = |key: &str| schema[key].as_u64().map(|n| n as usize);
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    let typed = match &schema["type"] {
        Value::Null => true,
        Value::String(kind) => is(kind),
        kinds => kinds.as_array().unwrap().iter().any(|kind| is(kind.as_str().unwrap())),
    };
    let options = |key: &str| schema[key].as_array();
    let alone = typed
        && options("enum").is_none_or(|all| all.contains(value))
        && options("anyOf").is_none_or(|all| all.iter().any(|s| satisfies(root, s, value)))
        && schema["$ref"].as_str().is_none_or(|to| satisfies(root, root.pointer(&to[1..]).unwrap(), value));
    alone
        && match value {
            Value::Number(n) => {
                let n = n.as_f64().unwrap();
                number("minimum").is_none_or(|low| n >= low) && number("maximum").is_none_or(|high| n <= high)
            }
            Value::String(text) => {
                let length = text.chars().count();
                count("minLength").is_none_or(|n| length >= n) && count("maxLength").is_none_or(|n| length <= n)
            }
            Value::Array(items) => {
                count("minItems").is_none_or(|n| items.len() >= n)
                    && count("maxItems").is_none_or(|n| items.len() <= n)
                    && (schema["items"].is_null() || items.iter().all(|v| satisfies(root, &schema["items"], v)))
            }
            Value::Object(map) => {
                let required = schema["required"].as_array().into_iter().flatten();
                required.map(|k| k.as_str().unwrap()).all(|k| map.contains_key(k))
                    && map.iter().all(|(key, v)| match schema["properties"].get(key) {
                        Some(own) => satisfies(root, own, v),
                        None => schema["additionalProperties"] != json!(false),
                    })
            }
            Value::Null | Value::Bool(_) => true,
        }
}

/// Schemas whose instances are short, by name.
fn schemas() -> Vec<(&'static str, Value)> {
    let text = json!({"type": "string", "maxLength": 12});
    vec![
        (
            "nested",
            json!({"type": "object", "additionalProperties": false, "required": ["user", "ok"], "properties": {
                "user": {"type": "object", "additionalProperties": false, "required": ["name", "age"], "properties": {
                    "name": text, "age": {"type": "integer", "minimum": 0, "maximum": 120}}},
                "ok": {"type": "boolean"}}}),
        ),
        (
            "optional",
            json!({"type": "object", "additionalProperties": false, "required": ["kind"], "properties": {
                "kind": {"enum": ["cat", "dog", 7, null]}, "size": {"type": "number", "minimum": -1, "maximum": 1},
                "note": text}}),
        ),
        (
            "list",
            json!({"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "integer", "minimum": 1,
                "maximum": 99}}),
        ),
        (
            "either",
            json!({"anyOf": [
                {"type": "object", "additionalProperties": false, "required": ["error"], "properties": {
                    "error": text}},
                {"type": "array", "maxItems": 3, "items": {"type": ["boolean", "null"]}}]}),
        ),
        (
            "tree",
            json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "additionalProperties": false,
                "required": ["v", "sub"], "properties": {"v": {"enum": ["x", "y"]}, "sub": {"type": "array",
                    "maxItems": 1, "items": {"$ref": "#/$defs/node"}}}}}}),
        ),
    ]
}

fn ask(question: &str, format: Value) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "response_format": format, "max_tokens": 200})
}

fn by_schema(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

/// The answer of a request, streamed or not, and how it ended.
async fn answer(daemon: &Daemon, mut body: Value, streamed: bool) -> (String, String) {
    if !streamed {
        let (status, reply) = daemon.post(CHAT, &body).await;
        assert_eq!(status, 200, "{reply}");
        let choice = &reply["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap_or_default();
        return (content.to_owned(), choice["finish_reason"].as_str().unwrap().to_owned());
    }
    body["stream"] = json!(true);
    let sent = reqwest::Client::new().post(format!("{}{CHAT}", daemon.url)).json(&body).send().await.unwrap();
    let text = sent.text().await.unwrap();
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    let events = sse(&text);
    let content = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    let reason = events.iter().find_map(|e| e["choices"][0]["finish_reason"].as_str()).unwrap();
    (content, reason.to_owned())
}

#[tokio::test]
async fn the_turn_says_whether_a_form_was_enforced() {
    let daemon = Daemon::start(&[]).await;
    for (format, formed) in [("text", false), ("json_object", true)] {
        let (status, reply) = daemon.post(CHAT, &ask("What is 17 + 25?", json!({"type": format}))).await;
        assert_eq!(status, 200, "{reply}");
        let turn = reply["x_chimere"]["turn"].as_str().unwrap();
        let (_, turns) = daemon.get(&format!("/v1/memory/turns?turn={turn}")).await;
        assert_eq!(turns["data"][0]["formed"], json!(formed), "{format}: {turns}");
    }
}

#[tokio::test]
async fn every_answer_of_a_schema_satisfies_it() {
    let daemon = Daemon::start(&[]).await;
    let mut whole = 0;
    for (name, schema) in schemas() {
        let mut ended = 0;
        for (at, temperature) in [0.0, 0.7, 1.0, 1.5, 2.0].into_iter().enumerate() {
            for seed in 0..3 {
                let mut body = ask("Tell me about the neighbour's cat as JSON.", by_schema(&schema));
                body["temperature"] = json!(temperature);
                body["seed"] = json!(seed);
                body["enable_thinking"] = json!(seed == 1);
                let streamed = (at + seed) % 2 == 1;
                let (text, reason) = answer(&daemon, body.clone(), streamed).await;
                assert!(reason == "stop" || reason == "length", "{name}: {reason}");
                if reason == "stop" {
                    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
                    assert!(satisfies(&schema, &schema, &value), "{name}, {temperature}, {seed}: {text}");
                    ended += 1;
                }
                // The same dice, in one piece or many.
                if seed == 2 {
                    assert_eq!(answer(&daemon, body, !streamed).await, (text, reason), "{name}, {temperature}");
                }
            }
        }
        // Nothing but the model itself ends a tree.
        let least = if name == "tree" { 1 } else { 8 };
        assert!(ended >= least, "{name}: {ended} of 15 answers came to their end");
        whole += ended;
    }
    assert!(whole >= 45, "{whole} of 75");
}

#[tokio::test]
async fn json_mode_gives_an_object_and_text_stays_text() {
    let daemon = Daemon::start(&[]).await;
    let plain = daemon.chat("What is 17 + 25?").await;
    let mut ended = 0;
    for seed in 0..6 {
        let mut body = ask("Give me the numbers from one to three.", json!({"type": "json_object"}));
        body["seed"] = json!(seed);
        let (text, reason) = answer(&daemon, body, seed % 2 == 0).await;
        if reason == "stop" {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(value.is_object(), "{text}");
            ended += 1;
        }
        assert!(text.starts_with('{'), "{text}");
    }
    assert!(ended > 0, "no answer came to its end");
    let mut cut = ask("Tell me a long story.", json!({"type": "json_object"}));
    cut["max_tokens"] = json!(2);
    assert_eq!(answer(&daemon, cut, false).await.1, "length");
    let again = daemon.chat("What is 17 + 25?").await;
    assert_eq!(
        plain["choices"][0]["message"], again["choices"][0]["message"],
        "who asks for no form has the same bits"
    );
}

fn tools(strict: bool) -> Value {
    let weather = json!({"type": "object", "additionalProperties": false, "required": ["city"], "properties": {
        "city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}});
    let add = json!({"type": "object", "additionalProperties": false, "required": ["a", "b"], "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"type": "integer", "minimum": 0, "maximum": 999},
        "unit": {"type": "string", "enum": ["m", "km"]}}});
    let function = |name: &str, parameters: Value| {
        json!({"type": "function", "function": {"name": name, "description": name, "strict": strict,
            "parameters": parameters}})
    };
    json!([function("get_weather", weather), function("add", add)])
}

/// Sound schemas that are too much for the compiler of grammars, as throw-away processes find.
#[tokio::test]
async fn a_tool_too_heavy_to_be_enforced_is_called_all_the_same_unless_it_is_strict() {
    let daemon = Daemon::start(&[]).await;
    let steps = json!([{"multipleOf": 50_000}, {"multipleOf": 30_000}]);
    let tool = |name: &str, schema: &Value, strict: bool| {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}})
    };
    let schemas = [
        ("f", json!({"type": "number", "exclusiveMaximum": 1_000_000, "anyOf": steps})),
        ("g", json!({"type": "number", "anyOf": steps})),
    ];
    let ask = |strict: bool, streamed: bool| {
        let tools: Vec<Value> = schemas.iter().map(|(name, schema)| tool(name, schema, strict)).collect();
        let messages = json!([{"role": "user", "content": "Call one of them with 7."}]);
        json!({"messages": messages, "tools": tools, "tool_choice": "required", "max_tokens": 100, "temperature": 0,
            "parallel_tool_calls": false, "stream": streamed})
    };
    let (status, refused) = daemon.post(CHAT, &ask(true, false)).await;
    assert!(status == 400 && refused["error"]["param"] == "tools", "{refused}");
    let (status, reply) = daemon.post(CHAT, &ask(false, false)).await;
    assert_eq!(status, 200, "{reply}");
    let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["a"].is_number(), "{reply}");
    let told = &reply["x_chimere"]["not_enforced"][0];
    assert!(told["path"] == "tools" && told["reason"].as_str().unwrap().contains("`f`"), "{told}");
    let sent = reqwest::Client::new().post(format!("{}{CHAT}", daemon.url)).json(&ask(false, true)).send().await;
    let events = sse(&sent.unwrap().text().await.unwrap());
    let told = events.iter().find_map(|event| event["x_chimere"]["not_enforced"][0]["path"].as_str());
    assert_eq!(told, Some("tools"), "the end of a stream tells it");
}

/// Refused, or served with less and told; never found in the midst of a reply.
#[tokio::test]
async fn what_a_schema_cannot_be_held_to_is_known_before_the_first_token() {
    let daemon = Daemon::start(&[]).await;
    let number = json!({"type": "number", "exclusiveMaximum": 1_000_000,
        "anyOf": [{"multipleOf": 50_000}, {"multipleOf": 30_000}]});
    let heavy = json!({"type": "object", "properties": {"a": number}, "required": ["a"]});
    let tiny = json!({"type": "object", "properties": {"a": {"type": "number", "minimum": 1e-300}}, "required": ["a"]});
    let overlap = json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "null"}}});
    let format = |schema: &Value, strict: bool| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}});
    // An answer.
    let (status, refused) = daemon.post(CHAT, &ask("Seven.", format(&heavy, true))).await;
    assert!(status == 400 && refused["error"]["param"] == "response_format", "{refused}");
    let mut loose = ask("Seven.", format(&heavy, false));
    loose["max_tokens"] = json!(60);
    let (status, reply) = daemon.post(CHAT, &loose).await;
    assert_eq!(status, 200, "{reply}");
    let told = &reply["x_chimere"]["not_enforced"][0];
    assert!(
        told["path"] == "response_format" && told["reason"].as_str().unwrap().contains("left to the model"),
        "{told}"
    );
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("{\"a\":"), "{text}");
    let (status, reply) = daemon.post(CHAT, &ask("A small one.", format(&tiny, true))).await;
    assert_eq!(status, 200, "{reply}");
    let (status, refused) = daemon.post(CHAT, &ask("Some.", format(&overlap, true))).await;
    let (param, words) = (&refused["error"]["param"], refused["error"]["message"].as_str().unwrap());
    assert!(status == 400 && param == "response_format.json_schema.schema", "{refused}");
    assert!(words.contains("#/patternProperties/b$") && words.contains("`^a`"), "{words}");
    let (status, reply) = daemon.post(CHAT, &ask("Some.", format(&overlap, false))).await;
    let path = "response_format.json_schema.schema#/patternProperties/b$";
    assert!(status == 200 && reply["x_chimere"]["not_enforced"][0]["path"] == path, "{reply}");
    // What is left of the names of a closed object does not close it.
    let mut closed = overlap.clone();
    (closed["additionalProperties"], closed["required"]) = (json!(false), json!(["xb"]));
    let (status, reply) = daemon.post(CHAT, &ask("Some.", format(&closed, false))).await;
    let told: Vec<&Value> = reply["x_chimere"]["not_enforced"].as_array().unwrap().iter().map(|n| &n["path"]).collect();
    let others = "response_format.json_schema.schema#/additionalProperties";
    assert!(status == 200 && told == [path, others], "{reply}");
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("\"xb\""), "{text}");

    // A function that could be called behind the forced call of a built-in tool.
    let forced = |parameters: &Value, strict: bool| {
        let function = json!({"name": "f", "strict": strict, "parameters": parameters});
        json!({"messages": [{"role": "user", "content": "What is 17% of 230?"}], "temperature": 0, "max_tokens": 200,
            "tools": [{"type": "function", "function": function}], "chimere": {"tools": ["calculate"]},
            "tool_choice": {"type": "function", "function": {"name": "calculate"}}})
    };
    let (status, refused) = daemon.post(CHAT, &forced(&overlap, true)).await;
    assert!(status == 400 && refused["error"]["param"] == "tools[0].function.parameters", "{refused}");
    // Too much for the compiler, where it is the only one.
    let mut own = forced(&heavy, true);
    own["tool_choice"]["function"]["name"] = json!("f");
    own["chimere"] = json!({});
    let (status, refused) = daemon.post(CHAT, &own).await;
    assert!(status == 400 && refused["error"]["param"] == "tools", "{refused}");
    let (_, turns) = daemon.get("/v1/memory/turns?limit=20").await;
    let called = |turn: &&Value| turn["steps"][0]["calls"].as_array().is_some_and(|calls| !calls.is_empty());
    assert_eq!(turns["data"].as_array().unwrap().iter().filter(called).count(), 0, "nothing ran");
    let (status, reply) = daemon.post(CHAT, &forced(&heavy, false)).await;
    assert!(status == 200 && reply["x_chimere"]["trace"][0]["calls"][0]["name"] == "calculate", "{reply}");
}

#[tokio::test]
async fn a_forced_call_is_made_and_its_arguments_satisfy_their_schema() {
    let daemon = Daemon::start(&[]).await;
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let mut called = std::collections::BTreeMap::new();
    for (at, choice) in [json!("required"), named("add"), named("get_weather")].into_iter().enumerate() {
        for seed in 0..4 {
            let tools = tools(seed % 2 == 0);
            let body = json!({
                "messages": [{"role": "user", "content": "Who are you?"}], "tools": tools, "tool_choice": choice,
                "max_tokens": 300, "seed": seed, "temperature": 0.5 * f64::from(seed), "enable_thinking": seed == 3,
                "parallel_tool_calls": false,
            });
            let (status, reply) = daemon.post(CHAT, &body).await;
            assert_eq!(status, 200, "{reply}");
            let chosen = &reply["choices"][0];
            if chosen["finish_reason"] == "length" {
                continue;
            }
            assert_eq!(chosen["finish_reason"], "tool_calls", "{reply}");
            let function = &chosen["message"]["tool_calls"][0]["function"];
            let name = function["name"].as_str().unwrap();
            assert!(at == 0 || choice["function"]["name"] == name, "{reply}");
            let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            let all = tools.as_array().unwrap();
            let schema = &all.iter().find(|t| t["function"]["name"] == name).unwrap()["function"]["parameters"];
            assert!(satisfies(schema, schema, &arguments), "{reply}");
            *called.entry(at).or_insert(0) += 1;
        }
    }
    assert_eq!(called.len(), 3, "each choice made a call: {called:?}");
    assert!(called.values().sum::<i32>() >= 8, "{called:?}");
}

#[tokio::test]
async fn a_strict_function_leaves_the_choice_to_the_model() {
    let daemon = Daemon::start(&[]).await;
    let ask = |question: &str| {
        json!({"messages": [{"role": "user", "content": question}], "tools": [tools(true)[0]], "temperature": 0,
            "max_tokens": 300})
    };
    let (status, reply) = daemon.post(CHAT, &ask("What is the weather in Paris?")).await;
    assert_eq!(status, 200, "{reply}");
    let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "get_weather", "{reply}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["city"], "Paris", "{reply}");
    let (_, reply) = daemon.post(CHAT, &ask("Hello!")).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "stop", "{reply}");
    assert!(!reply["choices"][0]["message"]["content"].as_str().unwrap().is_empty(), "{reply}");
}

/// Schemas that are made to cost time, memory or stack.
fn bombs() -> Vec<(&'static str, Value)> {
    let (mut deep, mut list) = (json!({}), json!({}));
    for _ in 0..60 {
        deep = json!({"anyOf": [deep, {"type": "null"}]});
        list = json!({"type": "array", "items": list});
    }
    let optional: serde_json::Map<String, Value> = (0..3_000).map(|i| (format!("p{i}"), json!({}))).collect();
    let chain: serde_json::Map<String, Value> = (0..6_000)
        .map(|i| (format!("d{i}"), json!({"items": {"$ref": format!("#/$defs/d{}", i + 1)}})))
        .chain([("d6000".to_owned(), json!({"type": "null"}))])
        .collect();
    let twice = |i: usize| json!({"anyOf": [{"pattern": format!("a{i}")}, {"pattern": format!("b{i}")}]});
    let heavy = |i: usize| json!({"anyOf": [{"required": ["r".repeat(8_000) + &i.to_string()]}, {"minimum": i}]});
    vec![
        ("nested beyond JSON's own limit", json!({"items": deep, "additionalItems": list})),
        ("three thousand optional properties", json!({"type": "object", "properties": optional})),
        ("a chain of references", json!({"$ref": "#/$defs/d0", "$defs": chain})),
        ("two to the twentieth", json!({"allOf": (0..20).map(twice).collect::<Vec<_>>()})),
        ("two to the fifteenth, and heavy", json!({"allOf": (0..15).map(heavy).collect::<Vec<_>>()})),
        ("parentheses", json!({"type": "string", "pattern": "(".repeat(60_000) + &")".repeat(60_000)})),
        ("itself", json!({"$ref": "#", "type": "object"})),
        ("a stranger's host", json!({"$ref": "http://127.0.0.1:1/schema"})),
        ("more than a quarter of a megabyte", json!({"enum": (0..60_000).collect::<Vec<_>>()})),
    ]
}

#[tokio::test]
async fn schemas_that_explode_are_refused_in_time_and_hurt_nobody() {
    let daemon = Daemon::start(&[]).await;
    let (pid, engines) = (daemon.pid(), daemon.engines());
    let before = daemon.chat("What is 17 + 25?").await;
    let mut followed = 0;
    for (name, schema) in bombs() {
        let began = Instant::now();
        let body = ask("Hi", by_schema(&schema));
        let ((status, value), neighbour) =
            futures_util::join!(daemon.post(CHAT, &body), daemon.chat("What is 17 + 25?"));
        assert_eq!(status, 400, "{name}: {value}");
        let message = value["error"]["message"].as_str().unwrap();
        assert_eq!(value["error"]["type"], "invalid_request_error", "{name}: {value}");
        assert!(message.len() > 20 && message.len() < 600, "{name}: {message}");
        assert!(began.elapsed() < Duration::from_secs(60), "{name}: {:?}", began.elapsed());
        assert_eq!(neighbour["choices"][0]["message"], before["choices"][0]["message"], "{name}");
    }
    // What can be followed after all is, or is given up with an error.
    for schema in [
        json!({"type": "string", "pattern": "((((a{1000}){1000}){1000}){1000})b"}),
        json!({"type": "string", "pattern": "^(.*a.{40}b.*){9}$", "format": "email"}),
        json!({"type": "string", "minLength": 1_000_000, "maxLength": 1_000_000_000}),
        json!({"type": "array", "minItems": 1_000_000, "maxItems": 1_000_000_000, "items": {"type": "null"}}),
    ] {
        let mut body = ask("Hi", by_schema(&schema));
        body["max_tokens"] = json!(20);
        let (status, value) = daemon.post(CHAT, &body).await;
        assert!(status == 200 || status == 400, "{schema}: {value}");
        followed += usize::from(status == 200);
    }
    assert_eq!((daemon.pid(), daemon.engines()), (pid, engines), "nothing was restarted");
    for (keyword, schema) in [
        ("uniqueItems", json!({"type": "array", "uniqueItems": true})),
        ("dependentRequired", json!({"type": "object", "dependentRequired": {"a": ["b"]}})),
    ] {
        let (status, value) = daemon.post(CHAT, &ask("Hi", by_schema(&schema))).await;
        assert_eq!((status, &value["error"]["param"]), (400, &json!("response_format.json_schema.schema")), "{value}");
        assert!(value["error"]["message"].as_str().unwrap().contains(keyword), "{value}");
    }
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    let kept = turns["data"].as_array().unwrap().len();
    assert_eq!(kept, 1 + bombs().len() + followed, "a refused request leaves no Turn");
}

#[tokio::test]
async fn the_metrics_tell_what_became_of_forms_and_which_were_known() {
    let daemon = Daemon::start(&[]).await;
    let good = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]});
    let bad = json!({"type": "integer", "minimum": 5, "maximum": 2});
    // No engine sees this one.
    let unseen = json!({"type": "string", "not": {"const": "a"}});
    for (schema, status, times) in [(&good, 200, 3), (&bad, 400, 2), (&unseen, 400, 1)] {
        for _ in 0..times {
            let (found, reply) = daemon.post(CHAT, &ask("Which number?", by_schema(schema))).await;
            assert_eq!(found, status, "{reply}");
        }
    }
    let expected = [("taken", "miss", 1), ("taken", "hit", 2), ("refused", "miss", 2), ("refused", "hit", 1)];
    let told = async || {
        let answer = reqwest::get(format!("{}/metrics", daemon.url)).await.unwrap();
        let text = answer.text().await.unwrap();
        let told = |(outcome, cache, count): &(&str, &str, u64)| {
            let series = format!("chimere_forms_total{{outcome=\"{outcome}\",cache=\"{cache}\"}} {count}\n");
            text.contains(&series)
        };
        (expected.iter().all(told), text)
    };
    let began = Instant::now();
    loop {
        let (all, text) = told().await;
        if all {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (_, status) = daemon.get("/v1/status").await;
    assert_eq!(status["engine"]["stats"]["forms"]["compiled_kept"], 2, "{status}");
}
