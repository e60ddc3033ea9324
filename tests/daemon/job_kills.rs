//! The jobs beside the night's learning, killed. The daemon is killed at every point of the search for prompts and of
//! the index. At every point of a writing of the Engram tables the engine alone or the judge alone is killed, or the
//! disk is full. (`engram.rs` kills the daemon there.) What the job changes is as before or as after, what serves is
//! what served, and no Turn is lost (P3 of docs/security.md).

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::embed::Index;
use chimere::failpoint::{INDEXING, OPTIMISING, REINFORCING};
use chimere::pipeline::{PipelineSet, Sources};
use serde_json::{Value, json};

use crate::engram::{ANSWER, QUESTION, WRITE, corrected, daemon_status, until_key};
use crate::harness::{Daemon, PATIENCE, kill};
use crate::night::{begin, lenient, reached, until};
use crate::optimise;
use crate::people::{again, answered, exchange, installation, job, put, stood_at, with_key};
use crate::retrieval::{COMMON, INDEX, PRIVATE, shown, switch_on};

const SEARCH: &str = "optimise_prompts";
/// Into the moment that a run is held at a point.
const LATE: Duration = Duration::from_millis(1_200);

/// What a request of `key` is answered with; without a key where there is none.
async fn asked(daemon: &Daemon, key: &str, path: &str) -> Value {
    let request = reqwest::Client::new().get(format!("{}{path}", daemon.url));
    let request = if key.is_empty() { request } else { request.bearer_auth(key) };
    request.send().await.unwrap().json().await.unwrap()
}

/// Waits until the run that was cut off is over; its report.
async fn run_over(daemon: &Daemon, key: &str) -> Value {
    let began = Instant::now();
    loop {
        let status = asked(daemon, key, "/v1/night").await;
        if status["run"].is_null() && status["served"]["ready"] == true && status["last"].is_object() {
            let run = status["last"]["id"].as_str().unwrap();
            return asked(daemon, key, &format!("/v1/night/report?run={run}")).await;
        }
        let log = || daemon.log.lock().unwrap().join("\n");
        assert!(began.elapsed() < PATIENCE, "{status:#}\n{}", log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A reply's Turn is in the log.
async fn kept(daemon: &Daemon, key: &str, turn: &str) {
    let turns = asked(daemon, key, &format!("/v1/memory/turns?turn={turn}")).await;
    assert_eq!(turns["data"][0]["id"], turn, "an acknowledged turn is lost: {turns}");
}

/// The generation that answers, its signed manifest and its adapter, byte for byte.
fn served(state: &Path) -> Vec<Vec<u8>> {
    let files =
        ["served.json", "generations/1/manifest.json", "generations/1/manifest.sig", "generations/1/adapter.gguf"];
    files.iter().map(|file| fs::read(state.join(file)).unwrap_or_default()).collect()
}

/// The version of the default route by the files of the state folder, which must all be whole.
fn version_on_disk(state: &Path) -> String {
    let folder = state.join("pipelines");
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert!(names == ["night.yaml"] || names == ["default.yaml", "night.yaml"], "{names:?}");
    let set = PipelineSet::load(&Sources { shipped: None, overlay: Some(folder) }).unwrap();
    set.get("default").unwrap().version.clone()
}

/// An installation on which generation 1 serves, with the exams of a search for prompts that finds one.
async fn searching() -> (Arc<tempfile::TempDir>, String) {
    let state = optimise::folder(12);
    let yaml = state.path().join("pipelines/night.yaml");
    let mut text = lenient(fs::read_to_string(&yaml).unwrap());
    for (from, to) in [("trials: 30", "trials: 24"), ("finalists: 3", "finalists: 2")] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    fs::write(&yaml, text).unwrap();
    let config = state.path().join("night-test.toml").display().to_string();
    let daemon = again(&state, &["--config", &config]).await;
    begin(&daemon, &state.path().join("candidate.gguf")).await;
    until(&daemon, |status| status["run"].is_null() && status["served"]["champion"] == 1).await;
    kill(daemon.pid());
    (state, config)
}

async fn searches_killed_at(points: &[&str]) {
    let (state, config) = searching().await;
    let config = ["--config", config.as_str()];
    let (before, generation) = (version_on_disk(state.path()), served(state.path()));
    assert!(generation.iter().all(|bytes| !bytes.is_empty()));
    for point in points {
        let began = Instant::now();
        let daemon = stood_at(&state, "", (SEARCH, point), &config).await;
        // The search stands still; replies do not.
        let reply = daemon.chat("What is 17 + 25?").await["x_chimere"].clone();
        let (_, status) = daemon.get("/v1/night").await;
        kill(daemon.pid());
        drop(daemon);
        let record: Value = serde_json::from_slice(&fs::read(state.path().join("night.json")).unwrap()).unwrap();
        let run = record["run"]["order"]["id"].as_str().unwrap_or_else(|| panic!("{status:#}")).to_owned();
        let after = format!("{before}+overlay.{run}");
        let on_disk = version_on_disk(state.path());
        let written = matches!(*point, "optimise.written" | "optimise.done");
        assert_eq!(&on_disk, if written { &after } else { &before }, "{point}");
        assert_eq!((&reply["pipeline_version"], &reply["adapter_revision"]), (&json!(on_disk), &json!(1)), "{point}");
        // The next life goes on with it, and says what both of them did.
        let daemon = again(&state, &config).await;
        kept(&daemon, "", reply["turn"].as_str().unwrap()).await;
        let report = run_over(&daemon, "").await;
        assert_eq!(report["order"]["id"], run.as_str());
        let route = &report["optimised"]["routes"][0];
        assert_eq!((&route["route"], &route["outcome"]), (&json!("default"), &json!("changed")), "{point}: {report:#}");
        assert!(route["gate"]["difference"].as_f64() > Some(0.0), "{point}: {route:#}");
        assert!(report["undo"].as_str().unwrap().contains("pipeline reset default"), "{point}: {}", report["undo"]);
        let reply = daemon.chat("What is 17 + 25?").await;
        assert_eq!((optimise::content(&reply), version_on_disk(state.path())), ("42", after), "{point}: {reply}");
        assert_eq!(reply["x_chimere"]["adapter_revision"], 1);
        assert!(served(state.path()) == generation, "{point}: what serves was changed");
        optimise::run(&daemon, &["pipeline", "reset", "default"]);
        assert_eq!(version_on_disk(state.path()), before);
        kill(daemon.pid());
        println!("{point}: {:?}", began.elapsed());
    }
}

/// The point at which the new prompt is in force and nothing has said so.
#[tokio::test]
async fn a_kill_behind_a_change_of_a_prompt_leaves_it_whole_and_named() {
    searches_killed_at(&["optimise.written"]).await;
}

#[tokio::test]
#[ignore = "long: five searches"]
async fn a_kill_while_prompts_are_searched_leaves_the_old_prompt_or_the_new_one() {
    searches_killed_at(OPTIMISING).await;
}

#[tokio::test]
async fn a_kill_while_the_index_is_made_leaves_the_old_one_or_the_new_one() {
    let (state, keys, like) = installation(&["root", "ada"]).await;
    let [root, ada] = &keys[..] else { panic!("two keys") };
    switch_on(state.path());
    answered(state.path(), &like, "ada", &[PRIVATE], 1);
    let daemon = again(&state, &[]).await;
    job(&daemon, root, INDEX);
    kill(daemon.pid());
    drop(daemon);
    let file = state.path().join("examples.idx");
    let old = fs::read(&file).unwrap();
    answered(state.path(), &like, "ada", &[COMMON], 1);
    let count = || Index::parse(&fs::read(&file).unwrap()).unwrap().examples().len();
    for point in INDEXING {
        let daemon = stood_at(&state, root, (INDEX, point), &[]).await;
        let body = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "max_tokens": 8});
        let reply = with_key(&daemon, ada, "/v1/chat/completions", &body).await;
        let in_use = shown(&daemon, ada, COMMON.0).await.len();
        kill(daemon.pid());
        drop(daemon);
        let on_disk = count();
        assert_eq!((on_disk, in_use), if *point == "reindex.done" { (2, 1) } else { (1, 0) }, "{point}");
        assert!(on_disk == 2 || fs::read(&file).unwrap() == old, "{point}");
        let daemon = again(&state, &[]).await;
        // What was there before is found at once, whatever the run still has to do.
        assert_eq!(shown(&daemon, ada, PRIVATE.0).await.len(), 1, "{point}");
        let report = run_over(&daemon, root).await;
        let outcome = &report["outcome"];
        assert!(outcome["done"].is_object() || *point == "reindex.done", "{point}: {report:#}");
        assert!(report["steps"].to_string().contains("2 verified exchanges in the index"), "{point}: {report:#}");
        assert_eq!((count(), shown(&daemon, ada, COMMON.0).await.len()), (2, 1), "{point}");
        kept(&daemon, ada, reply["x_chimere"]["turn"].as_str().unwrap()).await;
        kill(daemon.pid());
        drop(daemon);
        fs::write(&file, &old).unwrap();
    }
}

/// Writings of the tables, with the judge at work, each of which loses what `of` names at a point of it.
async fn writing_loses(points: &[&str], of: fn(&Daemon) -> Vec<u32>) {
    let (state, keys, like) = installation(&["root", "ada", "bob"]).await;
    for who in ["ada", "bob"] {
        answered(state.path(), &like, who, &[(QUESTION, ANSWER)], 0);
    }
    // A correction has no tokens yet: the engine is asked for them.
    let turn = exchange(&like, "ada", ("Where is the spanner?", "It is lost."), 0);
    put(state.path(), &[corrected(turn, "It is in the third drawer from below.", Some(5))]);
    for point in points {
        let began = Instant::now();
        let hold = format!("{point}=hold");
        let variables = [("CHIMERE_SCORER_ENABLED", "true")];
        let daemon = Daemon::launch_with(state.clone(), &["--failpoint", &hold], &variables);
        daemon.ready().await;
        let pid = daemon.pid();
        // The judge starts with the first turn.
        until_key(&daemon, &keys[1], |_| !of(&daemon).is_empty()).await;
        let lost = of(&daemon);
        let report = killed_while_held(&daemon, &keys[0], point, &lost).await;
        assert!(report["outcome"]["done"].is_object(), "{point}: {report:#}");
        until_key(&daemon, &keys[0], |used| used["tables"] == json!(["learned"]) && used["hits"].as_u64() > Some(0))
            .await;
        let status = daemon_status(&daemon, &keys[0]).await;
        assert_eq!(status["engram"]["refused"], json!([]), "{point}: {status:#}");
        // Another in its place, and the same daemon; whoever judges, judges again.
        judged(&daemon, &keys[1]).await;
        assert!(daemon.pid() == pid && fs::exists(format!("/proc/{pid}")).unwrap(), "{point}");
        assert!(!of(&daemon).is_empty() && of(&daemon) != lost, "{point}: {lost:?}");
        kill(pid);
        drop(daemon);
        fs::remove_dir_all(state.path().join("engram")).unwrap();
        println!("{point}: {:?}", began.elapsed());
    }
}

/// Begins a run of `name` once the night is ready, which is a moment after the engine. The night's thread may stand still
/// before it answers.
async fn begun(daemon: &Daemon, key: &str, name: &str) -> tokio::task::JoinHandle<()> {
    let began = Instant::now();
    while asked(daemon, key, "/v1/night").await["served"]["ready"] != true {
        assert!(began.elapsed() < PATIENCE, "the night is not ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (url, body) = (format!("{}/v1/night", daemon.url), json!({"command": "run_now", "job": name}));
    let post = reqwest::Client::new().post(url).bearer_auth(key).json(&body).send();
    tokio::spawn(async move { assert_eq!(post.await.unwrap().status().as_u16(), 200, "the run does not begin") })
}

/// Begins a writing that stands still at `point` for a moment, kills these processes there, and returns its report.
async fn killed_while_held(daemon: &Daemon, key: &str, point: &str, lost: &[u32]) -> Value {
    let begun = begun(daemon, key, WRITE).await;
    let began = Instant::now();
    while !reached(daemon) {
        let log = || daemon.log.lock().unwrap().join("\n");
        assert!(began.elapsed() < PATIENCE, "{point} was not reached:\n{}", log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Late, so that nobody has taken its place when it is asked next.
    tokio::time::sleep(LATE).await;
    lost.iter().for_each(|pid| kill(*pid));
    begun.await.unwrap();
    run_over(daemon, key).await
}

/// Waits for the verdict on a new reply.
async fn judged(daemon: &Daemon, key: &str) {
    let chat = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0});
    let reply = with_key(daemon, key, "/v1/chat/completions", &chat).await;
    let (turn, began) = (reply["x_chimere"]["turn"].as_str().unwrap(), Instant::now());
    loop {
        let turns = asked(daemon, key, &format!("/v1/memory/turns?turn={turn}")).await;
        if turns["data"][0]["verdict"].is_u64() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "nobody judges any more: {turns}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
#[ignore = "long: five writings"]
async fn a_writing_that_loses_its_engine_at_any_point_is_done_all_the_same() {
    writing_loses(REINFORCING, Daemon::engines).await;
}

#[tokio::test]
#[ignore = "long: five writings"]
async fn a_writing_that_loses_the_judge_at_any_point_is_done_all_the_same() {
    writing_loses(REINFORCING, Daemon::judges).await;
}

/// The point behind which the engine is asked for tokens.
#[tokio::test]
async fn a_writing_that_loses_its_engine_asks_the_next_one() {
    writing_loses(&["reinforce.read"], Daemon::engines).await;
}

#[tokio::test]
#[ignore = "long: five writings on a full disk"]
async fn a_full_disk_at_any_point_of_a_writing_leaves_whole_signed_tables() {
    let (state, keys, like) = installation(&["root", "ada", "bob"]).await;
    for who in ["ada", "bob"] {
        answered(state.path(), &like, who, &[(QUESTION, ANSWER)], 0);
    }
    let daemon = again(&state, &[]).await;
    job(&daemon, &keys[0], WRITE);
    kill(daemon.pid());
    drop(daemon);
    for (n, point) in REINFORCING.iter().enumerate() {
        let news = format!("It is in drawer {n} from below, as the two of them say.");
        for who in ["ada", "bob"] {
            answered(state.path(), &like, who, &[("Where is the spanner?", &news)], 0);
        }
        let daemon = again(&state, &["--failpoint", &format!("{point}=full")]).await;
        begun(&daemon, &keys[0], WRITE).await.await.unwrap();
        let report = run_over(&daemon, &keys[0]).await;
        assert_eq!(report["outcome"]["failed"]["phase"], "reinforce", "{point}: {report:#}");
        // Old or new, each table is whole: everybody's still helps, in this life and in the next, which writes the rest.
        until_key(&daemon, &keys[0], |used| used["tables"] == json!(["learned"]) && used["hits"].as_u64() > Some(0))
            .await;
        kill(daemon.pid());
        drop(daemon);
        let daemon = again(&state, &[]).await;
        until_key(&daemon, &keys[0], |used| used["tables"] == json!(["learned"]) && used["hits"].as_u64() > Some(0))
            .await;
        let status = daemon_status(&daemon, &keys[0]).await;
        assert_eq!(status["engram"]["refused"], json!([]), "{point}: {status:#}");
        let said = job(&daemon, &keys[0], WRITE);
        assert!(said.contains(&format!("{} answers of 2 principals in the tables", 2 * (n + 2))), "{point}: {said}");
        kill(daemon.pid());
        drop(daemon);
    }
}
