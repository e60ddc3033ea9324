//! Pipelines. The cascade picks a route, and an overlay in the state directory wins while the daemon runs. A bad file
//! keeps the last good set and says why.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere};

async fn plan_of(daemon: &Daemon, question: &str) -> Value {
    daemon.chat(question).await["x_chimere"].clone()
}

/// Asks until the reply's plan satisfies `wanted`: a reload takes a moment.
async fn until(daemon: &Daemon, question: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let plan = plan_of(daemon, question).await;
        if wanted(&plan) {
            return plan;
        }
        assert!(began.elapsed() < PATIENCE, "still {plan}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Why the newest files were not taken, once they were looked at.
async fn refused(daemon: &Daemon) -> String {
    let began = Instant::now();
    loop {
        let (_, status) = daemon.get("/v1/status").await;
        if let Some(message) = status["actors"]["orchestrator"]["refused"].as_str() {
            return message.to_owned();
        }
        assert!(began.elapsed() < PATIENCE, "not refused: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn rules_and_the_guess_pick_the_route_and_a_request_may_name_one() {
    let daemon = Daemon::start(&[]).await;
    for (question, route) in [
        ("Hello!", "default"),
        ("Write a Python function that adds two numbers.", "code"),
        ("Which exercise strengthens the hamstrings?", "kine"),
        ("Which vulnerability does CVE-2021-44228 name?", "cyber"),
        ("Me duele la espalda cuando corro", "kine"),
        ("Jemand hat mein Passwort gestohlen", "cyber"),
    ] {
        assert_eq!(plan_of(&daemon, question).await["route"], route, "{question}");
    }
    let body = json!({ "messages": [{ "role": "user", "content": "Hello!" }], "x_chimere": { "route": "research" } });
    let (status, reply) = daemon.post("/v1/chat/completions", &body).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["x_chimere"]["route"], "research");
}

#[tokio::test]
async fn an_overlay_wins_at_once_and_a_bad_one_changes_nothing() {
    let daemon = Daemon::start(&[]).await;
    let overlay = daemon.state.path().join("pipelines");
    fs::create_dir_all(&overlay).unwrap();
    let before = plan_of(&daemon, "Hello!").await;
    let shipped = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/default.yaml")).unwrap();
    let changed = shipped.replace("version: 1", "version: 77");
    assert_ne!(shipped, changed);

    fs::write(overlay.join("default.yaml"), &changed).unwrap();
    let after =
        until(&daemon, "Hello!", |plan| plan != &before && plan["pipeline_version"] != before["pipeline_version"])
            .await;
    assert!(after["pipeline_version"].as_str().unwrap().contains("77"), "{after}");

    fs::write(overlay.join("default.yaml"), "name: default\nversion: [\n").unwrap();
    let refused = refused(&daemon).await;
    assert!(refused.contains("pipelines/default.yaml:"), "the error names file and line: {refused}");
    assert_eq!(plan_of(&daemon, "Hello!").await["pipeline_version"], after["pipeline_version"]);

    fs::remove_file(overlay.join("default.yaml")).unwrap();
    until(&daemon, "Hello!", |plan| plan["pipeline_version"] == before["pipeline_version"]).await;
}

/// A program of steps, answered by the model: its record adds up, and none of its hidden text is told.
#[tokio::test]
async fn a_program_of_steps_is_run_recorded_and_left_out_on_request() {
    let state = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let folder = state.path().join("pipelines");
    fs::create_dir_all(&folder).unwrap();
    let program = "name: relay\nversion: 1\nfollow_model: true\nsteps:\n  \
        - generate: {name: plan, system: You plan., instruction: 'Say in a few words how to answer.', max_tokens: 24}\n  \
        - branch: {name: fork, when: {asks: ['what'], words_min: 5}, steps: [], otherwise: [{generate: {name: more}}]}\n  \
        - generate: {instruction: 'Answer by this. {{plan}}', max_tokens: 40}\n";
    fs::write(folder.join("relay.yaml"), program).unwrap();
    let daemon = Daemon::launch_with(state, &[], &[]);
    daemon.ready().await;
    let ask = |chimere: Value| {
        json!({
            "messages": [{ "role": "user", "content": "What is 17 + 25?" }], "temperature": 0, "chimere": chimere
        })
    };
    let (status, reply) = daemon.post("/v1/chat/completions", &ask(json!({ "route": "relay" }))).await;
    assert_eq!(status, 200, "{reply}");
    let own = &reply["x_chimere"];
    let steps = own["trace"].as_array().unwrap();
    let names: Vec<(&Value, &Value)> = steps.iter().map(|step| (&step["name"], &step["visible"])).collect();
    let hidden = |name: &str| (name.into(), json!(false));
    let expected: [(Value, Value); 3] = [hidden("plan"), hidden("fork"), ("answer".into(), json!(true))];
    assert_eq!(names, expected.each_ref().map(|(name, visible)| (name, visible)), "{own}");
    assert_eq!((&steps[1]["decided"], &steps[1]["completion_tokens"]), (&json!("nothing more"), &json!(0)), "{own}");
    // The answer's tokens are the usage, the others are beside it.
    for field in ["prompt_tokens", "completion_tokens"] {
        assert_eq!((&steps[2][field], &steps[0][field]), (&reply["usage"][field], &own["usage"][field]), "{reply}");
        assert!(steps[0][field].as_u64().unwrap() > 0);
    }
    let (_, page) = daemon.get("/v1/memory/turns?limit=5").await;
    let turn = &page["data"][0];
    // The same record, but for the hidden text: a model may have left that empty.
    assert_eq!((&turn["steps"][0]["name"], turn["steps"].as_array().unwrap().len()), (&json!("plan"), 3), "{turn}");
    assert!(!reply.to_string().contains("\"text\""), "{reply}");
    assert_eq!(turn["messages"].as_array().unwrap().last().unwrap()["content"], "What is 17 + 25?");
    let (_, alone) = daemon.post("/v1/chat/completions", &ask(json!({ "route": "relay", "steps": "none" }))).await;
    assert_eq!(alone["x_chimere"]["trace"].as_array().unwrap().len(), 1, "{alone}");
    assert!(alone["x_chimere"].get("usage").is_none());
    let (_, runs) = daemon.get("/v1/runs").await;
    assert_eq!(runs["data"], json!([]));
}

/// What is shown of a chat is what it is answered from, the instruction of its route with it.
#[tokio::test]
async fn the_prompt_of_a_chat_has_the_instruction_of_its_route() {
    let state = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let folder = state.path().join("pipelines");
    fs::create_dir_all(&folder).unwrap();
    for (name, kind) in [("plain", "generate: TERMS"), ("reckoned", "tools: {allow: [calculate], answer: TERMS}")] {
        let terms = "{instruction: Answer in one word., max_tokens: 8}";
        let step = format!("steps:\n  - {}\n", kind.replace("TERMS", terms));
        let pipeline = format!("name: {name}\nversion: 1\nfollow_model: true\n{step}");
        fs::write(folder.join(format!("{name}.yaml")), pipeline).unwrap();
    }
    let daemon = Daemon::launch_with(state, &[], &[]);
    daemon.ready().await;
    for route in ["plain", "reckoned"] {
        let body = json!({ "messages": [{ "role": "user", "content": "What is 17 + 25?" }], "temperature": 0,
            "chimere": { "route": route } });
        let (status, shown) = daemon.post("/apply-template", &body).await;
        assert_eq!(status, 200, "{shown}");
        assert!(shown["prompt"].as_str().unwrap().contains("What is 17 + 25?\n\nAnswer in one word."), "{shown}");
        let (status, reply) = daemon.post("/v1/chat/completions", &body).await;
        assert_eq!(status, 200, "{reply}");
        // Where a tool was called, more than once.
        let (read, tokens) = (&reply["x_chimere"]["trace"][0]["prompt_tokens"], shown["tokens"].as_array().unwrap());
        assert!(read.as_u64().unwrap() as usize >= tokens.len(), "{reply}");
        assert!(route != "plain" || *read == tokens.len(), "{reply}");
    }
}

/// Without a daemon, from the same files: an overlay's route counts there too.
#[test]
fn the_command_tells_a_texts_route_with_the_evidence_for_all() {
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("pipelines")).unwrap();
    let garden = "name: garden\nversion: 1\nfollow_model: true\nmax_tokens: 9\nmatch: {words: [tomato*, tomate]}\n";
    let file = state.path().join("pipelines/garden.yaml");
    fs::write(&file, garden).unwrap();
    let run = |args: &[&str]| {
        let output = chimere().args(args).arg("--state-dir").arg(state.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, said, _) = run(&["route", "Une TOMATÉ et un script Python", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, said["route"].as_str(), said["would_vote"].as_bool()), (Some(0), Some("code"), Some(true)));
    assert_eq!(said["unsure"], json!(["code", "garden"]));
    let scores = said["scores"].as_array().unwrap();
    assert_eq!((scores.len(), &scores[1]["because"]), (5, &json!("`tomate`")), "{said}");
    assert_eq!(said["guess"].as_array().unwrap().len(), 5, "{said}");
    let (_, plain, _) = run(&["route", "Hello!"]);
    assert!(plain.starts_with("default: no rule") && plain.contains("  guess  default"), "{plain}");

    // A file that asks for more than the configuration allows is no good one.
    let check = |tokens_max: &str| {
        let mut command = chimere();
        command.args(["pipeline", "check"]).arg(&file).arg("--state-dir").arg(state.path());
        let output = command.env("CHIMERE_REPLIES_TOKENS_MAX", tokens_max).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(check("9").0, Some(0));
    let (code, error) = check("8");
    let why = "steps may come to 9 tokens, but the configuration allows 8 (replies.tokens_max)";
    assert!(code == Some(65) && error.contains(why), "{error}");

    let prompts = state.path().join("prompts.jsonl");
    let line = |language: &str, route: &str, text: &str| {
        json!({ "id": text, "language": language, "route": route, "text": text }).to_string()
    };
    let lines = [line("en", "garden", "my tomatoes"), line("fr", "default", "Bonjour"), line("fr", "code", "main.rs")];
    fs::write(&prompts, lines.join("\n")).unwrap();
    let eval = ["eval", "routing", "--prompts", prompts.to_str().unwrap()];
    let (code, report, error) = run(&[&eval[..], &["--json"]].concat());
    assert_eq!(code, Some(0), "{error}");
    let report: Value = serde_json::from_str(&report).unwrap();
    let figure = |arm: &str, language: &str| report["arms"][arm]["figures"][language].clone();
    assert_eq!(figure("with the guess", "all")["macro_f1"], 1.0);
    assert_eq!((&figure("words alone", "fr")["right"], &figure("words alone", "en")["right"]), (&json!(1), &json!(1)));
    assert_eq!(report["arms"]["words alone"]["confusion"]["code"], json!({ "default": 1 }));
    fs::write(&prompts, line("en", "nowhere", "x")).unwrap();
    let (code, _, error) = run(&eval);
    assert!(code != Some(0) && error.contains("there is no route `nowhere`"), "{error}");
}
