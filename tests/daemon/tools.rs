//! The built-in tools on the command line, without a daemon: right results, and an end for every wrong or hostile call.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, sse};

/// Exit code, standard output, standard error.
fn tools(args: &[&str]) -> (i32, String, String) {
    let output = chimere().arg("tools").args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn calculate(expression: &str) -> (i32, String, String) {
    tools(&["run", "calculate", &json!({ "expression": expression }).to_string()])
}

#[test]
fn the_list_says_what_there_is_and_what_is_kept() {
    let (code, said, _) = tools(&["list", "--json"]);
    let listed: Value = serde_json::from_str(&said).unwrap();
    let states = |state: &str| -> Vec<String> {
        let data = listed["data"].as_array().unwrap().iter().filter(|tool| tool["state"] == state);
        data.map(|tool| tool["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((code, states("ready")), (0, vec!["calculate".to_owned(), "date_time".to_owned()]));
    assert_eq!(states("not_built"), ["search_documents", "search_web", "fetch_page", "remember", "recall"]);
    let (_, said, _) = tools(&["list"]);
    assert!(
        said.contains("calculate ") && said.contains("not there yet: needs a search by the model itself"),
        "{said}"
    );
    assert!(said.contains("`chimere.documents`") && !said.contains("an index of documents"), "{said}");
}

#[test]
fn a_call_runs_without_a_daemon_and_a_wrong_one_says_why() {
    assert_eq!(calculate("17% of 230"), (0, "39.1\n".to_owned(), String::new()));
    let (code, said, _) = tools(&["run", "date_time", r#"{"operation": "weekday", "date": "2024-02-29"}"#]);
    assert_eq!((code, said.as_str()), (0, "2024-02-29 is a Thursday.\n"));
    let (code, said, _) = tools(&["run", "date_time", r#"{"operation": "now", "zone": "UTC"}"#]);
    assert!(code == 0 && said.contains(", UTC+00:00"), "{said}");
    for (args, code, words) in [
        (&["run", "calculate", "{}"][..], 65, "missing field `expression`"),
        (&["run", "calculate", "1 + 1"], 65, "they are no JSON"),
        (&["run", "calculate", r#"{"expression": "1 / 0"}"#], 65, "division by zero"),
        (&["run", "multiply", "{}"], 65, "there is no tool \"multiply\""),
        (
            &["run", "search_web", "{}"],
            69,
            "needs the user's word before a model searches the web: that is not built yet",
        ),
        (&["run", "date_time"], 65, "missing field `operation`"),
    ] {
        let (ended, said, error) = tools(args);
        assert!(ended == code && said.is_empty() && error.contains(words), "{args:?}: {ended} {said}{error}");
    }
}

/// Whatever the library does with it, the caller gets an error soon, and the machine keeps its memory.
#[test]
fn a_hostile_calculation_ends_in_bounded_time() {
    let began = Instant::now();
    let towers = ["9^9^9^9", "(((9^9)^9)^9)^9", "3!!!!!!", "2^2^2^2^2^2", "(10^18)!"];
    let wide = ["1 << (10^11)", "fibonacci (10^9)", "(10^6) nCr (5 * 10^5)", "2^-99999", "sin(9^9^9)"];
    let deep = ["(".repeat(1_000), "-".repeat(1_000), "2^".repeat(500), "1 ".repeat(500), "m^2 ".repeat(250)];
    let broken =
        ["(-8)^(1/0)", "0^0", "log 0", "ln(-1)", "1e99999", "5 % %", "!", "\u{0}", "𝟙 + 𝟙", "'", "\"", "1 m + \"a\""];
    let hostile = towers.iter().chain(&wide).chain(&broken).map(|e| (*e).to_owned()).chain(deep);
    for expression in hostile {
        let started = Instant::now();
        let (code, said, error) = calculate(&expression);
        assert!(code == 0 || code == 65, "{expression}: {code} {said}{error}");
        assert!(said.len() < 1_100 && error.len() < 700, "{expression}: {said}{error}");
        // Two seconds of computing; the rest is a busy machine.
        assert!(started.elapsed() < Duration::from_secs(60), "{expression}");
    }
    let (code, _, error) = calculate("9^9^9^9");
    assert!(code == 65 && error.contains("more time or memory"), "{code} {error}");
    let (code, _, error) = tools(&["run", "calculate", r#"{"expression": "1 << (10^11)"}"#, "--timeout-ms", "1"]);
    assert!(code == 75 && error.contains("over 1 ms"), "{code} {error}");
    assert!(began.elapsed() < Duration::from_secs(300));
}

/// Inside a reply: nano is made to call, whole and streamed, and no client sees anything of it.
#[tokio::test]
async fn a_built_in_call_inside_a_reply_is_run_and_not_told() {
    let daemon = Daemon::start(&[]).await;
    let body = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "What is 17% of 230?"}], "temperature": 0,
            "tool_choice": "required", "chimere": {"tools": ["calculate"], "steps": "events"}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (status, whole) = daemon.post("/v1/chat/completions", &body(json!({}))).await;
    assert_eq!(status, 200, "{whole}");
    let choice = &whole["choices"][0];
    assert!(choice["finish_reason"] != "tool_calls" && choice["message"].get("tool_calls").is_none(), "{whole}");
    let step = &whole["x_chimere"]["trace"][0];
    let call = &step["calls"][0];
    assert!(step["kind"] == "tools" && call["name"] == "calculate" && call["result"].is_string(), "{step}");

    let url = format!("{}/v1/chat/completions", daemon.url);
    let post = reqwest::Client::new().post(url).json(&body(json!({"stream": true})));
    let chunks = sse(&post.send().await.unwrap().text().await.unwrap());
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert!(deltas.iter().all(|delta| delta.get("tool_calls").is_none()), "{chunks:?}");
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, choice["message"]["content"].as_str().unwrap(), "streamed as whole");
    let states = chunks.iter().filter_map(|chunk| chunk["x_chimere"]["step"]["state"].as_str());
    let states: Vec<&str> = states.take(3).collect();
    assert_eq!(states, ["began", "calling", "called"]);

    let (_, turns) = daemon.get("/v1/memory/turns?limit=5").await;
    let turn = &turns["data"][0];
    assert!(turn["taint"] == false && turn["steps"][0]["calls"][0]["name"] == "calculate", "{turn}");
    let own = json!([{"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}}]);
    for (more, param) in [
        (json!({"n": 2}), "n"),
        (json!({"tools": own}), "tools[0].function.name"),
        (json!({"chimere": {"tools": ["abacus"]}, "tool_choice": "auto"}), "chimere.tools[0]"),
        (json!({"response_format": {"type": "json_object"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "date_time"}}}), "tool_choice"),
    ] {
        let (status, error) = daemon.post("/v1/chat/completions", &body(more)).await;
        assert!(status == 400 && error["error"]["param"] == param, "{param}: {status} {error}");
    }
}
