//! Another model file in the place of the served one, over HTTP and by the command line. No request is lost, and a file
//! that cannot be hosted changes nothing. Whatever is killed on the way, the file before serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chimere::gguf::Gguf;
use serde_json::{Value, json};

use crate::cases;
use crate::harness::{Daemon, PATIENCE, chimere, kill, model, sse};
use crate::night;

const PATH: &str = "/v1/admin/model";
/// Long enough for the busiest machine.
const PATIENT: [(&str, &str); 2] =
    [("CHIMERE_REPLIES_START_TIMEOUT_MS", "300000"), ("CHIMERE_DAEMON_DRAIN_TIMEOUT_MS", "300000")];

/// nano with other bytes in the place of `from` behind `key`; the lengths are the same.
pub fn changed(to: &Path, key: &str, from: &str, with: &str) -> PathBuf {
    let mut bytes = fs::read(model()).unwrap();
    let find = |at: usize, word: &str| at + bytes[at..].windows(word.len()).position(|w| w == word.as_bytes()).unwrap();
    let at = find(find(0, key) + key.len(), from);
    bytes[at..at + with.len()].copy_from_slice(with.as_bytes());
    fs::write(to, bytes).unwrap();
    to.canonicalize().unwrap()
}

/// Where the value's type stands behind a key of nano.
fn behind(key: &str) -> usize {
    let bytes = fs::read(model()).unwrap();
    bytes.windows(key.len()).position(|w| w == key.as_bytes()).unwrap() + key.len()
}

/// nano with other bytes at one place.
fn patched(to: &Path, at: usize, with: &[u8]) -> PathBuf {
    let mut bytes = fs::read(model()).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    fs::write(to, bytes).unwrap();
    to.canonicalize().unwrap()
}

/// nano under the name `mini`.
fn mini(folder: &Path) -> PathBuf {
    changed(&folder.join("mini.gguf"), "general.name", "nano", "mini")
}

async fn launch(state: Arc<tempfile::TempDir>, extra: &[&str], variables: &[(&str, &str)]) -> Daemon {
    let daemon = Daemon::launch_with(state, extra, variables);
    daemon.ready().await;
    daemon
}

async fn patient() -> Daemon {
    launch(Arc::new(tempfile::tempdir().unwrap()), &[], &PATIENT).await
}

async fn change(daemon: &Daemon, body: &Value) -> (u16, Value) {
    daemon.post(PATH, body).await
}

async fn swap(daemon: &Daemon, file: &Path) -> Value {
    let (status, answer) = change(daemon, &json!({ "path": file })).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn served(daemon: &Daemon) -> String {
    daemon.get("/v1/models").await.1["data"][0]["id"].as_str().unwrap().to_owned()
}

pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The command line against this daemon.
pub async fn command(daemon: &Daemon, args: &[&str]) -> Output {
    let mut command = chimere();
    command.arg("model").args(args).args(["--url", &daemon.url]);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Streams one reply after another until it is told to stop; every one must come to its end.
async fn client(url: String, n: usize, stop: Arc<AtomicBool>) -> Vec<String> {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("What is {n} + 5?") }], "stream": true, "max_tokens": 24,
    });
    let (client, mut models) = (reqwest::Client::new(), Vec::new());
    while !stop.load(Ordering::SeqCst) {
        let answer = client.post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert_eq!(status, 200, "{text}");
        assert!(text.contains("[DONE]"), "{text}");
        models.push(sse(&text)[0]["model"].as_str().unwrap().to_owned());
    }
    models
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_changed_and_changed_back_under_streams_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let requantised = folder.path().join("q8.gguf");
    let made = chimere().arg("quantize").arg(model()).arg(&requantised).args(["--type", "Q8_0"]).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let (mini, daemon) = (mini(folder.path()), patient().await);
    let hash = async || daemon.get("/v1/models").await.1["data"][0]["x_chimere"]["model_hash"].clone();
    let first = hash().await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4).map(|n| tokio::spawn(client(daemon.url.clone(), n, stop.clone()))).collect();
    until("a reply", async || daemon.get("/v1/memory/turns?limit=1").await.1["data"][0].is_object()).await;

    // Other types, other numbers, the same tokenizer.
    let answer = swap(&daemon, &requantised).await;
    assert_eq!(
        (&answer["model"], &answer["change"], &answer["last"]["accepted"]),
        (&json!("nano"), &json!(null), &json!(true))
    );
    assert_ne!(hash().await, first);
    // What nano is asked with went along, under the new hash.
    let defaults = fs::read_to_string(requantised.with_extension("defaults.json")).unwrap();
    assert!(defaults.contains(hash().await.as_str().unwrap()), "{defaults}");
    // What came in line behind the change is answered as soon as it is over, tokens of a text too.
    let tokens = json!({ "content": "Hello" });
    let (swapped, tokens) = tokio::join!(swap(&daemon, &mini), daemon.post("/tokenize", &tokens));
    assert_eq!((&swapped["model"], tokens.0), (&json!("mini"), 200), "{tokens:?}");
    assert_eq!(swapped["before"], json!(requantised.canonicalize().unwrap()));
    let shown = command(&daemon, &["show"]).await;
    assert!(text(&shown.stdout).contains(&format!("file       {}", mini.display())), "{}", text(&shown.stdout));
    // By the command line: back, and there again.
    for (args, file) in [(vec!["back"], &requantised), (vec!["swap", mini.to_str().unwrap()], &mini)] {
        let done = command(&daemon, &args).await;
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert!(text(&done.stdout).contains(&format!("is served from {}", file.canonicalize().unwrap().display())));
    }
    assert_eq!(served(&daemon).await, "mini");
    assert_eq!(daemon.chat("What is 17 + 25?").await["model"], "mini");
    let done = swap(&daemon, &model()).await;
    assert_eq!((done["before"].clone(), hash().await), (json!(mini), first));

    stop.store(true, Ordering::SeqCst);
    let mut models = Vec::new();
    for client in clients {
        models.extend(client.await.unwrap());
    }
    println!("{} replies under five changes, {} by mini", models.len(), models.iter().filter(|m| *m == "mini").count());
    assert!(models.iter().any(|model| model == "nano"));
    let (_, turns) = daemon.get("/v1/memory/turns?limit=1000").await;
    // Theirs, and the one question about mini.
    let replies = models.len() + 1;
    assert!(turns["has_more"] == true || turns["data"].as_array().unwrap().len() == replies, "one turn a reply");
    let page = reqwest::get(format!("{}/metrics", daemon.url)).await.unwrap().text().await.unwrap();
    assert!(page.contains(r#"chimere_reloads_total{what="model",accepted="yes"} 5"#), "{page}");
}

#[tokio::test]
async fn what_cannot_be_hosted_leaves_the_model_that_serves() {
    let daemon = patient().await;
    let engines = daemon.engines();
    let path = |name: &str| daemon.state.path().join(name);
    fs::create_dir(path("folder.gguf")).unwrap();
    fs::write(path("text.gguf"), "a secret in a text file").unwrap();
    fs::write(path("short.gguf"), &fs::read(model()).unwrap()[..100_000]).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(path("pipe.gguf")).status().unwrap();
    assert!(pipe.success());
    fs::create_dir(path("two")).unwrap();
    for name in ["two/a.gguf", "two/b.gguf"] {
        fs::write(path(name), "").unwrap();
    }
    std::os::unix::fs::symlink("nowhere", path("link.gguf")).unwrap();
    // What stands in the way is told, and nothing of what such a file holds.
    for (name, why) in [
        ("none.gguf", "does not exist"),
        ("folder.gguf", "is a folder without a model file (.gguf)"),
        ("two", "is a folder of 2 models (a.gguf, b.gguf): name one of them"),
        ("text.gguf", "is no GGUF file"),
        ("two/a.gguf", "is no GGUF file"),
        ("pipe.gguf", "is not a file"),
        ("link.gguf", "is a link to what does not exist"),
        ("text.gguf/none", "cannot be looked at: Not a directory (os error 20)"),
    ] {
        let (status, answer) = change(&daemon, &json!({ "path": path(name) })).await;
        let message = format!("`{}` is no model file (GGUF) that the daemon can read: it {why}", path(name).display());
        assert_eq!((status, &answer["error"]["message"]), (400, &json!(message)), "{answer}");
        assert_eq!(answer["error"]["param"], "path");
    }
    // And by the names of further models, of which there is none.
    for (name, why) in
        [("nano", "(models.files); it is the served model, which stays loaded"), ("foo", "(models.files)")]
    {
        let (status, answer) = change(&daemon, &json!({ "load": name })).await;
        let message = format!("there is no further model `{name}`: the configuration names none {why}");
        assert_eq!((status, &answer["error"]["message"]), (404, &json!(message)), "{answer}");
    }
    for (file, why) in
        [(Path::new("nano/nano.gguf"), "must begin with"), (&model().with_file_name("nano-prm.gguf"), "is no model")]
    {
        let (status, answer) = change(&daemon, &json!({ "path": file })).await;
        assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains(why), "{answer}");
    }
    let (status, answer) = change(&daemon, &json!({ "before": true })).await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("conflict")), "{answer}");
    assert_eq!(daemon.engines(), engines, "nothing was given up for these");

    // What begins as a model is judged as `check` and a start judge it, and nothing is given up for that either.
    let strange = changed(&path("strange.gguf"), "general.architecture", "qwen35moe", "qwen99moe");
    let embeds = model().with_file_name("nano-embed.gguf");
    let norm = Gguf::open(&model()).unwrap().tensor("output_norm.weight").unwrap().range.start as usize;
    let layers = behind("qwen35moe.block_count") + 4;
    for (file, why) in [
        (path("short.gguf"), "is cut short"),
        (strange, "qwen99moe"),
        (embeds, "it is an embedding model and writes no text: name it as `embed.model`"),
        (
            patched(&path("nan.gguf"), norm + 8, &f32::NAN.to_le_bytes()),
            "value 2 of tensor \"output_norm.weight\" is NaN",
        ),
        (patched(&path("layers.gguf"), layers, &(1_u32 << 31).to_le_bytes()), "block_count is 2147483648"),
    ] {
        let (status, answer) = change(&daemon, &json!({ "path": file })).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(why), "{message}");
        let reason =
            message.split_once("cannot be hosted: ").and_then(|(_, rest)| rest.split_once("; the model before"));
        let (reason, rest) = reason.unwrap();
        assert_eq!(rest, " serves on", "{message}");
        let said = chimere().args(["check", "--model"]).arg(&file).env("HOME", daemon.state.path()).output().unwrap();
        assert!(!said.status.success() && text(&said.stdout).contains(reason), "{reason}: {}", text(&said.stdout));
        println!("{message}");
    }
    for name in ["nan.gguf", "layers.gguf"] {
        let mut serve = chimere();
        serve.args(["serve", "--listen", "127.0.0.1:0", "--model"]).arg(path(name));
        let ended = serve.env("HOME", path("home")).output().unwrap();
        let reason = if name == "nan.gguf" { "\"output_norm.weight\" is NaN" } else { "block_count is 2147483648" };
        assert!(ended.status.code() == Some(65) && text(&ended.stderr).contains(reason), "{}", text(&ended.stderr));
    }
    assert_eq!(daemon.engines(), engines, "nothing was given up for these either");
    let failed = command(&daemon, &["swap", path("strange.gguf").to_str().unwrap()]).await;
    assert_eq!(failed.status.code(), Some(65), "{}", text(&failed.stderr));
    assert!(text(&failed.stderr).contains("cannot be hosted"), "{}", text(&failed.stderr));
    let shown = daemon.get(PATH).await.1;
    assert_eq!((&shown["model"], &shown["last"]), (&json!("nano"), &json!(null)), "{shown}");
    assert!(!path("model.json").exists());
}

/// One file of the corpus for each way to be wrong.
#[tokio::test]
async fn no_malformed_file_takes_the_place_of_the_model() {
    let daemon = patient().await;
    let engines = daemon.engines();
    let path = daemon.state.path().join("odd.gguf");
    let mut reasons = std::collections::HashSet::new();
    for case in cases::all().into_iter().filter(|case| reasons.insert(case.reason)) {
        fs::write(&path, &case.bytes).unwrap();
        let (status, answer) = change(&daemon, &json!({ "path": path })).await;
        let message = answer["error"]["message"].as_str().unwrap();
        // Of what does not begin as a model nothing is told, and of a part its name is looked at first.
        let other = ["is no model file (GGUF)", "its name does not end in"];
        let known = message.contains(case.reason) || other.iter().any(|words| message.contains(words));
        assert!(status == 400 && known, "{}: {answer}, not \"{}\"", case.name, case.reason);
    }
    assert_eq!((served(&daemon).await.as_str(), daemon.engines()), ("nano", engines));
}

/// The engine of the new file is killed as soon as it is there, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_on_the_way_brings_the_model_before_back() {
    let folder = tempfile::tempdir().unwrap();
    let (mini, daemon) = (mini(folder.path()), patient().await);
    let mut refused = 0;
    let began = Instant::now();
    while refused < 3 {
        assert!(began.elapsed() < PATIENCE, "{refused} engines were killed in time");
        let asked = async { change(&daemon, &json!({ "path": mini })).await };
        let killed = async {
            let hosts =
                |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| text(&c).contains("mini.gguf"));
            until("an engine of the new file", async || match daemon.engines().into_iter().find(hosts) {
                Some(pid) => {
                    kill(pid);
                    true
                }
                None => daemon.get(PATH).await.1["model"] == "mini",
            })
            .await;
        };
        let ((status, answer), ()) = tokio::join!(asked, killed);
        if status == 200 {
            // It was ready before the kill: back to the start of the game.
            swap(&daemon, &model()).await;
            continue;
        }
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("the engine process ended"), "{status} {message}");
        assert_eq!(served(&daemon).await, "nano");
        assert!(daemon.chat("What is 17 + 25?").await["choices"][0]["message"]["content"].is_string());
        refused += 1;
    }
}

/// Between the proof and the writing of the choice everybody else waits, with limits; a daemon that is killed there
/// comes up with the file before.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_have_limits_and_a_killed_daemon_serves_the_file_before() {
    let folder = tempfile::tempdir().unwrap();
    let (mini, state) = (mini(folder.path()), Arc::new(tempfile::tempdir().unwrap()));
    let limits = [("CHIMERE_MODELS_LOAD_WAIT_MS", "10000"), ("CHIMERE_REPLIES_REQUESTS_MAX", "2")];
    let mut daemon = launch(state.clone(), &["--failpoint", "model.proven"], &limits).await;
    let (status, _) = change(&daemon, &json!({ "path": mini, "wait": false })).await;
    assert_eq!(status, 200);
    let log = daemon.log.clone();
    until("the failpoint", async || log.lock().unwrap().iter().any(|line| line.contains("failpoint reached"))).await;
    let shown = daemon.get(PATH).await.1;
    assert_eq!((&shown["change"]["phase"], &shown["last"]), (&json!("loading"), &json!(null)), "{shown}");

    let chat = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 1 });
    let ask = |path: &str, body: &Value| reqwest::Client::new().post(format!("{}{path}", daemon.url)).json(body).send();
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(ask("/v1/chat/completions", &chat))).collect();
    until("two in line", async || daemon.get("/v1/status").await.1["replies"]["running"] == 2).await;
    let full = ask("/v1/chat/completions", &chat).await.unwrap();
    assert_eq!((full.status().as_u16(), full.headers().contains_key("retry-after")), (429, true));
    for waiting in waiting {
        let late = waiting.await.unwrap().unwrap();
        assert_eq!((late.status().as_u16(), late.headers().contains_key("retry-after")), (503, true));
        let told: Value = late.json().await.unwrap();
        assert_eq!(told["error"]["message"], "the served model is being changed");
    }
    // One change at a time, and no night meanwhile.
    let (status, answer) = change(&daemon, &json!({ "path": model() })).await;
    assert!(status == 409 && answer["error"]["message"].as_str().unwrap().contains("being changed"), "{answer}");
    let (status, answer) = daemon.post("/v1/night", &json!({ "command": "run_now", "job": "reindex" })).await;
    assert!(status == 429 && answer["error"]["message"].as_str().unwrap().contains("being changed"), "{answer}");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();

    let mut daemon = launch(state.clone(), &[], &[]).await;
    assert_eq!(served(&daemon).await, "nano");
    swap(&daemon, &mini).await;
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    // What was chosen holds; where it is gone the configured file serves.
    let mut daemon = launch(state.clone(), &[], &[]).await;
    assert_eq!(served(&daemon).await, "mini");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    fs::remove_file(&mini).unwrap();
    let daemon = launch(state.clone(), &[], &[]).await;
    assert_eq!(served(&daemon).await, "nano");
    let full = launch(Arc::new(tempfile::tempdir().unwrap()), &["--failpoint", "model.proven=full"], &PATIENT).await;
    let strange = self::mini(folder.path());
    let (status, answer) = change(&full, &json!({ "path": strange })).await;
    assert!(status == 500 && answer["error"]["message"].as_str().unwrap().contains("cannot be written"), "{answer}");
    assert_eq!(served(&full).await, "nano", "what would not outlive the daemon does not serve");
}

#[tokio::test]
async fn a_reply_that_goes_on_for_too_long_is_cut_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [PATIENT[0], ("CHIMERE_DAEMON_DRAIN_TIMEOUT_MS", "1")];
    let daemon = launch(Arc::new(tempfile::tempdir().unwrap()), &[], &variables).await;
    let body = json!({
        "messages": [{ "role": "user", "content": "Tell me a long story." }], "stream": true, "max_tokens": 3000,
        "temperature": 1.0, "seed": 1, "logit_bias": { "0": -100, "2": -100 },
    });
    let url = format!("{}/v1/chat/completions", daemon.url);
    let mut stream = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    let mut told = text(&stream.chunk().await.unwrap().unwrap());
    swap(&daemon, &mini(folder.path())).await;
    while let Some(bytes) = stream.chunk().await.unwrap() {
        told += &text(&bytes);
    }
    let errors: Vec<_> = sse(&told).iter().filter_map(|e| e["error"]["message"].as_str().map(str::to_owned)).collect();
    assert_eq!(errors, ["the served model is being changed"], "{told}");
    assert!(!told.contains("[DONE]"));
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    // As the engine tells it, or as the daemon does where the engine is too late.
    let reason = turns["data"][0]["generations"][0]["finish_reason"].as_str().unwrap();
    assert!(["aborted", "error"].contains(&reason), "{turns}");
    // Paused, the replies under way would never finish.
    assert_eq!(daemon.post("/v1/admin/pause", &json!({})).await.0, 200);
    let (status, answer) = change(&daemon, &json!({ "before": true })).await;
    assert!(status == 409 && answer["error"]["message"].as_str().unwrap().contains("resume"), "{answer}");
    assert_eq!(daemon.post("/v1/admin/resume", &json!({})).await.0, 200);
    assert_eq!(change(&daemon, &json!({ "before": true })).await.1["model"], "nano");
}

/// What a night learned belongs to the model that it learned on: it waits there until that one is back. And while a run
/// is under way the model stays.
#[tokio::test]
async fn a_generation_waits_for_its_own_base_model() {
    let folder = tempfile::tempdir().unwrap();
    let (mini, state) = (mini(folder.path()), night::folder());
    let daemon = night::launch(&state, &["--failpoint", "gate.begun=hold"]);
    daemon.ready().await;
    night::begin(&daemon, &state.path().join("candidate.gguf")).await;
    let (status, answer) = change(&daemon, &json!({ "path": mini })).await;
    assert!(status == 409 && answer["error"]["message"].as_str().unwrap().contains("is under way"), "{answer}");
    let night = async || daemon.get("/v1/night").await.1;
    until("the night", async || night().await["run"].is_null()).await;
    assert_eq!(night().await["served"]["champion"], 1, "{}", night().await);
    let revision = async || daemon.chat("What is 3 + 5?").await["x_chimere"]["adapter_revision"].clone();
    assert_eq!(revision().await, 1);

    swap(&daemon, &mini).await;
    assert_eq!(revision().await, 0);
    // The pointer of this model is one of its own.
    let (status, answer) = daemon.post("/v1/night", &json!({ "command": "rollback", "generation": 1 })).await;
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("made for the model"), "{answer}");
    let (status, answer) = daemon.post("/v1/night", &json!({ "command": "rollback", "generation": 0 })).await;
    assert_eq!((status, &answer["champion"]), (200, &json!(0)), "{answer}");
    let back = change(&daemon, &json!({ "before": true })).await;
    assert_eq!((back.0, revision().await), (200, json!(1)), "{}", back.1);
}
