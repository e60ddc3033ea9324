//! Further models over HTTP and by the command line. They start when somebody asks and end when nobody does. There are
//! never more of them than places, and nothing of that disturbs the served model.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::{Daemon, kill};
use crate::model::{changed, command, text, until};

/// nano under another name of four letters.
fn named(folder: &Path, name: &str) -> PathBuf {
    changed(&folder.join(format!("{name}.gguf")), "general.name", "nano", name)
}

async fn launch(files: &[(&str, &Path)], more: &[(&str, &str)]) -> Daemon {
    let files: Vec<String> = files.iter().map(|(name, path)| format!("{name} = \"{}\"", path.display())).collect();
    let files = format!("{{ {} }}", files.join(", "));
    let variables = [&[("CHIMERE_MODELS_FILES", files.as_str())], more].concat();
    let daemon = Daemon::launch_with(Arc::new(tempfile::tempdir().unwrap()), &[], &variables);
    daemon.ready().await;
    daemon
}

fn body(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "What is 17 + 25?" }], "temperature": 0 })
}

async fn ask(daemon: &Daemon, model: &str) -> (u16, Value) {
    daemon.post("/v1/chat/completions", &body(model)).await
}

async fn answered(daemon: &Daemon, model: &str) -> Value {
    let (status, reply) = ask(daemon, model).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["model"], model);
    reply
}

async fn metrics(daemon: &Daemon) -> String {
    reqwest::get(format!("{}/metrics", daemon.url)).await.unwrap().text().await.unwrap()
}

/// What the list of models says of one.
async fn state(daemon: &Daemon, model: &str) -> Value {
    let (status, entry) = daemon.get(&format!("/v1/models/{model}")).await;
    assert_eq!(status, 200, "{entry}");
    entry["x_chimere"]["state"].clone()
}

/// The engine of a further model.
async fn engine(daemon: &Daemon, name: &str) -> Option<u32> {
    let shown = daemon.get("/v1/admin/model").await.1;
    let of = |model: &Value| model["names"].as_array().unwrap().contains(&json!(name));
    let model = shown["further"].as_array().unwrap().iter().find(|model| of(model)).unwrap().clone();
    model["engine"]["pid"].as_u64().map(|pid| pid as u32)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_model_is_loaded_when_somebody_asks_and_unloaded_when_nobody_does() {
    let folder = tempfile::tempdir().unwrap();
    let mini = named(folder.path(), "mini");
    let daemon = launch(&[("small", &mini), ("tiny", &mini)], &[("CHIMERE_MODELS_IDLE_UNLOAD_MS", "4000")]).await;
    assert_eq!((state(&daemon, "small").await, daemon.engines().len()), (json!("unloaded"), 1));
    let own = daemon.chat("What is 17 + 25?").await;

    // Both of its names, at once: one engine.
    let (one, two) = tokio::join!(answered(&daemon, "small"), answered(&daemon, "tiny"));
    assert_eq!(daemon.engines().len(), 2);
    for reply in [&one, &two] {
        assert_eq!(reply["choices"][0]["message"], own["choices"][0]["message"], "the same weights");
        assert_ne!(reply["system_fingerprint"], own["system_fingerprint"], "another file");
    }
    let (_, turns) = daemon.get("/v1/memory/turns?limit=10").await;
    let models: Vec<&str> = turns["data"].as_array().unwrap().iter().map(|t| t["model"].as_str().unwrap()).collect();
    assert_eq!(models.iter().filter(|model| **model == "mini").count(), 2, "{models:?}");

    // Tables are the served model's, and forgetting reaches every engine.
    let mut insists = body("small");
    insists["chimere"] = json!({ "engram": { "tables": ["kine"] } });
    let (status, refused) = daemon.post("/v1/chat/completions", &insists).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("chimere.engram.tables")), "{refused}");
    let forgotten = reqwest::Client::new().delete(format!("{}/v1/memory/turns?all=true", daemon.url)).send().await;
    assert_eq!(forgotten.unwrap().status().as_u16(), 200);

    until("unloaded", async || state(&daemon, "small").await == "unloaded" && daemon.engines().len() == 1).await;
    answered(&daemon, "tiny").await;
    // One that dies is started again, and the served one never was.
    let served = daemon.get("/v1/status").await.1["engine"]["starts"].clone();
    kill(engine(&daemon, "tiny").await.unwrap());
    until("back", async || ask(&daemon, "small").await.0 == 200).await;
    assert_eq!(daemon.get("/v1/status").await.1["engine"]["starts"], served);

    let (status, unknown) = ask(&daemon, "smal").await;
    assert_eq!((status, &unknown["error"]["code"]), (404, &json!("model_not_found")), "{unknown}");
    let message = unknown["error"]["message"].as_str().unwrap();
    assert!(message.contains("`small`") && message.contains("`nano`"), "{message}");
    let told = metrics(&daemon).await;
    // More than once where the machine was busy.
    assert!(told.contains(r#"chimere_model_unloads_total{why="idle"} "#), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_take_turns_on_one_place_and_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let (mini, moni) = (named(folder.path(), "mini"), named(folder.path(), "moni"));
    let daemon = launch(&[("a", &mini), ("b", &moni)], &[("CHIMERE_MODELS_IDLE_UNLOAD_MS", "0")]).await;
    // A stream of the served model goes on meanwhile.
    let mut long = body("nano");
    (long["stream"], long["max_tokens"]) = (json!(true), json!(200));
    let stream = reqwest::Client::new().post(format!("{}/v1/chat/completions", daemon.url)).json(&long).send();
    let stream = tokio::spawn(async move { stream.await.unwrap().text().await.unwrap() });
    let replies = (0..3).flat_map(|_| ["a", "b"]).map(|model| answered(&daemon, model));
    let replies = futures_util::future::join_all(replies);
    let watched = async {
        let mut most = 0;
        loop {
            most = most.max(daemon.engines().len());
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            if most > 2 {
                return most;
            }
        }
    };
    tokio::select! {
        replies = replies => assert_eq!(replies.len(), 6),
        most = watched => panic!("{most} engines for two places, the served model's and one more"),
    }
    assert!(stream.await.unwrap().contains("[DONE]"));
    let told = metrics(&daemon).await;
    assert!(told.contains(r#"chimere_model_unloads_total{why="room"}"#), "{told}");
    assert!(told.contains("chimere_models_loaded 1"), "{told}");

    for (args, said) in [(["load", "a"], "a: ready"), (["unload", "a"], "a: unloaded"), (["load", "b"], "b: ready")] {
        let done = command(&daemon, &args).await;
        assert!(done.status.success() && text(&done.stdout).trim() == said, "{done:?}");
    }
    let shown = text(&command(&daemon, &["show"]).await.stdout);
    assert!(shown.contains("further    a (unloaded") && shown.contains("further    b (ready"), "{shown}");
    let unknown = command(&daemon, &["load", "c"]).await;
    assert!(
        !unknown.status.success()
            && text(&unknown.stderr).contains("no further model `c`: the further models are `a`, `b`"),
        "{unknown:?}"
    );
    let (status, both) = daemon.post("/v1/admin/model", &json!({ "load": "a", "unload": "b" })).await;
    assert_eq!((status, &both["error"]["param"]), (400, &json!("unload")), "{both}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_loaded_costs_its_own_requests_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (mini, broken) = (named(folder.path(), "mini"), folder.path().join("broken.gguf"));
    fs::write(&broken, "no model").unwrap();
    let gone = folder.path().join("gone.gguf");
    let daemon = launch(&[("a", &mini), ("broken", &broken), ("gone", &gone)], &[]).await;
    for name in ["broken", "gone", "broken"] {
        let answer = reqwest::Client::new()
            .post(format!("{}/v1/chat/completions", daemon.url))
            .json(&body(name))
            .send()
            .await
            .unwrap();
        let (status, later) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
        let said = answer.json::<Value>().await.unwrap();
        let message = said["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!((status, later), (503, true), "{message}");
        assert!(message.starts_with(&format!("the model `{name}` cannot be loaded: ")), "{message}");
        assert_eq!(state(&daemon, name).await, "unloaded");
    }
    let told = metrics(&daemon).await;
    assert!(told.contains(r#"chimere_model_loads_total{outcome="failed"} 2"#), "not tried again at once: {told}");
    daemon.chat("What is 17 + 25?").await;
    answered(&daemon, "a").await;
    // The log says at the start which of them cannot be loaded.
    let log = daemon.log.lock().unwrap().join("\n");
    for (file, why) in [(&broken, "is no GGUF file"), (&gone, "does not exist")] {
        assert!(log.contains(&format!("cannot be loaded as it is: {} {why}", file.display())), "{log}");
    }
    let with_table = json!({ "tables": ["kine"] });
    let asked = json!({ "model": "a", "prompt": "One", "max_tokens": 1, "chimere": { "engram": with_table } });
    let (status, answer) = daemon.post("/v1/completions", &asked).await;
    let message = "there is no engram table `kine`: this model has none";
    assert_eq!((status, &answer["error"]["message"]), (400, &json!(message)), "{answer}");
    let done = command(&daemon, &["load", "foo"]).await;
    let told = "there is no further model `foo`: the further models are `a`, `broken`, `gone`";
    assert!(done.status.code() == Some(65) && text(&done.stderr).contains(told), "{}", text(&done.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_in_time_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let (mini, moni) = (named(folder.path(), "mini"), named(folder.path(), "moni"));
    let daemon = launch(&[("a", &mini), ("b", &moni)], &[("CHIMERE_MODELS_LOAD_WAIT_MS", "100")]).await;
    // However slowly it loads, it goes on when nobody waits for it.
    until("a is loaded", async || ask(&daemon, "a").await.0 == 200).await;
    // It has a request for as long as it is stopped.
    let pid = engine(&daemon, "a").await.unwrap();
    let signal = |signal: &str| {
        assert!(std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    };
    signal("-STOP");
    let asked = reqwest::Client::new().post(format!("{}/v1/chat/completions", daemon.url)).json(&body("a")).send();
    let asked = tokio::spawn(asked);
    // Listed alone, it may still be without a place.
    let steps = async || daemon.get("/v1/runs").await.1["data"][0]["step"].as_u64().unwrap_or(0);
    until("it is at its first step", async || steps().await == 1).await;
    let (status, refused) = ask(&daemon, "b").await;
    signal("-CONT");
    assert_eq!(asked.await.unwrap().unwrap().status().as_u16(), 200);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(status == 503 && message.contains("every place for a further model (1) is taken"), "{status}: {message}");
    until("b takes its place", async || ask(&daemon, "b").await.0 == 200).await;
    assert_eq!(daemon.engines().len(), 2);
}
