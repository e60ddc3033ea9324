//! SIGHUP: what of the configuration holds at once, what needs a restart, and what is wrong with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere};

async fn hang_up(daemon: &Daemon) -> Value {
    let config = async || daemon.get("/v1/status").await.1["config"].clone();
    let before = config().await;
    assert!(Command::new("kill").args(["-HUP", &daemon.pid().to_string()]).status().unwrap().success());
    let began = Instant::now();
    loop {
        let now = config().await;
        if now["reloaded_ms"] != before["reloaded_ms"] {
            return now;
        }
        assert!(began.elapsed() < PATIENCE, "not read again:\n{}", daemon.log.lock().unwrap().join("\n"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A daemon that has read this configuration, and its file.
async fn configured(text: &str) -> (Daemon, PathBuf) {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let file = state.path().join("daemon.conf");
    fs::write(&file, text).unwrap();
    let daemon = Daemon::launch(state, &["--config", file.to_str().unwrap()]);
    daemon.ready().await;
    (daemon, file)
}

/// The log, once it holds `wanted`.
async fn log_with(daemon: &Daemon, wanted: &str) -> String {
    let began = Instant::now();
    loop {
        let log = daemon.log.lock().unwrap().join("\n");
        if log.contains(wanted) {
            return log;
        }
        assert!(began.elapsed() < PATIENCE, "no {wanted} in\n{log}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn status_of_a_long_chat(daemon: &Daemon) -> u16 {
    let body = json!({ "messages": [{ "role": "user", "content": "word ".repeat(1000) }], "max_tokens": 1 });
    daemon.post("/v1/chat/completions", &body).await.0
}

#[tokio::test]
async fn limits_hold_at_once_and_the_rest_is_named() {
    let (daemon, file) = configured("[engine]\nsequences = 4\n").await;
    assert_eq!(status_of_a_long_chat(&daemon).await, 200);
    assert_eq!(hang_up(&daemon).await["applied"], json!([]));

    fs::write(&file, "[engine]\nsequences = 5\n[http]\nbody_bytes_max = 2000\n[log]\nfilter = 'debug'\n").unwrap();
    let now = hang_up(&daemon).await;
    assert_eq!(now["applied"], json!(["http.body_bytes_max", "log.filter"]), "{now}");
    assert_eq!((&now["restart_to_apply"], &now["refused"]), (&json!(["engine.sequences"]), &Value::Null));
    assert_eq!(status_of_a_long_chat(&daemon).await, 413);
    // Answers to probes are logged at this level alone.
    assert_eq!(daemon.get("/health").await.0, 200);
    let log = log_with(&daemon, "DEBUG").await;
    assert!(log.contains("restart to apply: engine.sequences"), "{log}");

    // What is wrong replaces nothing, and says where it is.
    fs::write(&file, "[http]\nbody_bytes_max = 9000000\n[engine]\nsequences = 0\n").unwrap();
    let now = hang_up(&daemon).await;
    let place = format!("{}:4:13: engine.sequences is 0", file.display());
    assert!(now["refused"].as_str().unwrap().starts_with(&place), "{now}");
    assert_eq!(status_of_a_long_chat(&daemon).await, 413);
    assert_eq!(daemon.engines().len(), 1);
}

async fn ask_by_name(daemon: &Daemon, model: &str) -> (u16, Value) {
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 1 });
    daemon.post("/v1/chat/completions", &body).await
}

#[tokio::test]
async fn the_model_answers_to_its_other_names() {
    let (daemon, file) = configured("[model]\naliases = ['gpt-4o-mini', 'nano-embed']\n").await;
    let (status, reply) = ask_by_name(&daemon, "gpt-4o-mini").await;
    assert_eq!((status, &reply["model"]), (200, &json!("nano")), "{reply}");
    let plain = json!({ "model": "gpt-4o-mini", "prompt": "Hello", "max_tokens": 1 });
    assert_eq!(daemon.post("/v1/completions", &plain).await.0, 200);
    // That name is the embedding model's.
    assert_eq!(ask_by_name(&daemon, "nano-embed").await.0, 404);
    let (status, refused) = ask_by_name(&daemon, "mine").await;
    assert_eq!(
        (status, &refused["error"]["code"], &refused["error"]["param"]),
        (404, &json!("model_not_found"), &json!("model"))
    );
    let words = refused["error"]["message"].as_str().unwrap();
    assert!(words.contains("`nano` or `gpt-4o-mini`"), "{words}");

    fs::write(&file, "[model]\naliases = ['mine']\n").unwrap();
    assert_eq!(hang_up(&daemon).await["applied"], json!(["model.aliases"]));
    assert_eq!(ask_by_name(&daemon, "mine").await.0, 200);
    assert_eq!(ask_by_name(&daemon, "gpt-4o-mini").await.0, 404);
    let (_, models) = daemon.get("/v1/models").await;
    let alias = models["data"].as_array().unwrap().iter().find(|m| m["id"] == "mine").unwrap();
    assert_eq!(alias["x_chimere"]["alias_of"], "nano");

    for (wrong, why) in [("['a b']", "`a b`"), ("['x', 'x']", "`x` twice"), ("['']", "``")] {
        fs::write(&file, format!("[model]\naliases = {wrong}\n")).unwrap();
        let now = hang_up(&daemon).await;
        assert!(now["refused"].as_str().unwrap().contains(&format!(":2:11: model.aliases is {why}")), "{now}");
    }
    assert_eq!(ask_by_name(&daemon, "mine").await.0, 200);
}

fn settings(file: &Path) -> Value {
    let output = chimere().args(["check", "--json", "--listen", "127.0.0.1:9", "--config"]).arg(file).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn check_prints_every_setting_with_its_origin_and_every_mistake_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    fs::write(&file, format!("[replies]\nmax_tokens = 77\n[daemon]\nstate_dir = '{}'\n", dir.path().display()))
        .unwrap();
    let report = settings(&file);
    let find = |key: &str| report["settings"].as_array().unwrap().iter().find(|s| s["key"] == key).unwrap().clone();
    let typed = find("replies.max_tokens");
    assert_eq!((&typed["value"], &typed["live"]), (&json!("77"), &json!(true)));
    assert_eq!(typed["origin"], format!("{}:2:14", file.display()));
    assert_eq!(find("http.listen")["origin"], "flag --listen");
    assert_eq!(
        find("night.enabled"),
        json!({"key": "night.enabled", "value": "false", "origin": "default", "live": false})
    );
    let text = chimere().args(["check", "--config"]).arg(&file).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("replies.max_tokens")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.starts_with('*') && line.ends_with("c.toml:2:14"), "{line}");

    fs::write(&file, "[replies]\nmax_token = 77\n").unwrap();
    let report = settings(&file);
    let said = report["findings"][0]["message"].as_str().unwrap();
    assert_eq!(said, format!("{}:2:1: unknown key `max_token`: did you mean `max_tokens`?", file.display()));
}

#[tokio::test]
async fn a_key_file_that_cannot_be_read_is_told_of_once() {
    let daemon = Daemon::start(&[]).await;
    let file = daemon.state.path().join("keys.toml");
    assert!(!file.exists());
    // A folder of that name cannot be read by anybody.
    fs::create_dir(&file).unwrap();
    for _ in 0..20 {
        assert_eq!(daemon.get("/v1/models").await.0, 200, "what was read before stays");
    }
    let told = log_with(&daemon, "keys not reloaded").await;
    assert_eq!(told.matches("keys not reloaded").count(), 1, "{told}");
}
