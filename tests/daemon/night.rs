//! A night through the real daemon: `kill -9` at every point of it, with a model that answers all the while.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::engine::adapter::{BaseModel, Recipe};
use chimere::failpoint::JUDGING;
use chimere::gguf::Gguf;
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere, kill, model};

/// An adapter for nano that changes next to nothing, of random numbers that depend on `seed`.
fn write_adapter(path: &Path, base_hash: &str, seed: u64) {
    let base = BaseModel::new(&Gguf::open(&model()).unwrap(), base_hash);
    let recipe = Recipe { rank: 2, scale: 1e-3, seed, last_layers: 0, targets: vec!["attn_q".to_owned()] };
    recipe.make(&base).unwrap().write(path).unwrap();
}

/// `night.yaml` with a gate that lets an equal one through, at once.
pub(crate) fn lenient(mut text: String) -> String {
    for (from, to) in [
        ("items_min: 200", "items_min: 4"),
        ("gain_alpha: 0.02", "gain_alpha: 1"),
        ("margin: 0.01", "margin: 0.2"),
        ("speed_min: 0.9", "speed_min: 0.1"),
        ("    - {percent: 5, scored_turns: 50}\n    - {percent: 50, scored_turns: 200}\n", "    []\n"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

/// A state folder whose nights take a second: a few short questions, and a gate that lets an equal one through.
pub(crate) fn folder() -> Arc<tempfile::TempDir> {
    folder_asking(12)
}

/// As `folder`, with exams of so many questions.
pub(crate) fn folder_asking(items: usize) -> Arc<tempfile::TempDir> {
    let state = tempfile::tempdir().unwrap();
    let item = |exam: &str, n: usize| {
        json!({
            "id": format!("{exam}-{n}"), "domain": "arithmetic", "family": "sum", "max_tokens": 4,
            "messages": [{ "role": "user", "content": format!("What is {n} + 5?") }],
            "check": { "kind": "contains", "any": ["1"] },
        })
        .to_string()
    };
    for exam in ["golden", "slice"] {
        let lines: Vec<String> = (0..items).map(|n| item(exam, n)).collect();
        fs::write(state.path().join(format!("{exam}.jsonl")), lines.join("\n")).unwrap();
    }
    let shipped = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/night.yaml")).unwrap();
    let text = lenient(shipped);
    fs::create_dir_all(state.path().join("pipelines")).unwrap();
    fs::write(state.path().join("pipelines/night.yaml"), text).unwrap();
    let exams = format!(
        "[night]\ngolden = {:?}\nslice = {:?}\n",
        state.path().join("golden.jsonl"),
        state.path().join("slice.jsonl"),
    );
    fs::write(state.path().join("night-test.toml"), exams).unwrap();
    Arc::new(state)
}

pub(crate) fn launch(state: &Arc<tempfile::TempDir>, extra: &[&str]) -> Daemon {
    let config = state.path().join("night-test.toml");
    let mut arguments = vec!["--config", config.to_str().unwrap()];
    arguments.extend(extra);
    Daemon::launch(state.clone(), &arguments)
}

/// In UTC, by a clock that the file moves.
pub(crate) fn launch_with_clock(state: &Arc<tempfile::TempDir>, clock: &Path) -> Daemon {
    let config = state.path().join("night-test.toml");
    let arguments = ["--config", config.to_str().unwrap(), "--clock-offset", clock.to_str().unwrap()];
    Daemon::launch_with(state.clone(), &arguments, &[("TZ", "UTC"), ("CHIMERE_NIGHT_ENABLED", "true")])
}

pub(crate) async fn begin(daemon: &Daemon, candidate: &Path) -> String {
    begin_seeded(daemon, candidate, 1).await
}

/// Begins a night that judges the adapter of that seed.
pub(crate) async fn begin_seeded(daemon: &Daemon, candidate: &Path, seed: u64) -> String {
    let (_, models) = daemon.get("/v1/models").await;
    write_adapter(candidate, models["data"][0]["x_chimere"]["model_hash"].as_str().unwrap(), seed);
    let began = Instant::now();
    loop {
        let body = json!({ "command": "run_now", "candidate": candidate });
        let (status, answer) = daemon.post("/v1/night", &body).await;
        if status == 200 {
            return answer["run"].as_str().unwrap().to_owned();
        }
        // The engine is ready a moment before the night is.
        assert!(status == 429 && began.elapsed() < PATIENCE, "{status} {answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) async fn until(daemon: &Daemon, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let (_, status) = daemon.get("/v1/night").await;
        if wanted(&status) {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "{status:#}\n{}", daemon.log.lock().unwrap().join("\n"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn revision(daemon: &Daemon) -> u64 {
    daemon.chat("What is 1 + 2?").await["x_chimere"]["adapter_revision"].as_u64().unwrap()
}

pub(crate) fn reached(daemon: &Daemon) -> bool {
    daemon.log.lock().unwrap().iter().any(|line| line.contains("failpoint reached"))
}

#[tokio::test]
async fn a_kill_at_any_point_of_a_night_leaves_before_or_after() {
    for point in JUDGING {
        let state = folder();
        let daemon = launch(&state, &["--failpoint", point]);
        daemon.ready().await;
        assert_eq!(revision(&daemon).await, 0);
        let candidate = state.path().join("candidate.gguf");
        // At the first save the command itself stands still: nobody waits for its answer.
        let (url, path) = (daemon.url.clone(), candidate.clone());
        let (_, models) = daemon.get("/v1/models").await;
        write_adapter(&path, models["data"][0]["x_chimere"]["model_hash"].as_str().unwrap(), 1);
        until(&daemon, |status| status["served"]["ready"] == true).await;
        let asked = tokio::spawn(async move {
            let body = json!({ "command": "run_now", "candidate": path });
            let _ = reqwest::Client::new().post(format!("{url}/v1/night")).json(&body).send().await;
        });
        let began = Instant::now();
        while !reached(&daemon) {
            let log = || daemon.log.lock().unwrap().join("\n");
            assert!(began.elapsed() < PATIENCE, "{point} was not reached:\n{}", log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The night stands still; serving does not.
        let before = revision(&daemon).await;
        kill(daemon.pid());
        asked.abort();
        drop(daemon);
        let daemon = launch(&state, &[]);
        daemon.ready().await;
        let after = revision(&daemon).await;
        assert!(after == before || (before, after) == (0, 1), "{point}: {before} before, {after} after");
        // The run that was cut off goes on to its end; one that never was written is not there.
        let status = until(&daemon, |status| status["run"].is_null() && status["served"]["ready"] == true).await;
        let promoted = status["served"]["champion"] == 1;
        assert_eq!(promoted, *point != "record.save", "{point}: {status:#}");
        assert_eq!(revision(&daemon).await, u64::from(promoted), "{point}");
        println!("{point}: {before} at the kill, {after} after it, {} at the end", u64::from(promoted));
    }
}

#[tokio::test]
async fn a_promoted_generation_is_rolled_back_at_once_and_shown() {
    let state = folder();
    let daemon = launch(&state, &[]);
    daemon.ready().await;
    begin(&daemon, &state.path().join("candidate.gguf")).await;
    until(&daemon, |status| status["last"]["outcome"]["promoted"].is_object()).await;
    assert_eq!(revision(&daemon).await, 1);
    let run = |arguments: &[&str]| {
        let output = chimere().args(arguments).env("CHIMERE_URL", &daemon.url).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let status = run(&["night", "status"]);
    assert!(
        status.contains("generation 1") && status.contains("makes the index of verified exchanges anew"),
        "{status}"
    );
    let brief = run(&["night", "report"]);
    assert!(brief.contains("PROMOTED: generation 1") && !brief.contains("Golden exam"), "{brief}");
    for sentence in ["It passed every rule and became generation 1.", "`chimere rollback` takes it back at once."] {
        assert!(brief.contains(sentence), "{brief}");
    }
    let report = run(&["night", "report", "--details"]);
    assert!(report.starts_with(&brief[..brief.find("Details:").unwrap()]), "{report}");
    assert!(report.contains("Golden exam, n = 12"), "{report}");
    let page = reqwest::get(format!("{}/v1/night/report?format=html", daemon.url)).await.unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains("While you slept") && page.contains("paid once, limit 0.1"), "{page}");
    let began = Instant::now();
    let said = run(&["rollback"]);
    assert!(said.starts_with("generation 0 serves"), "{said}");
    println!("rollback by the command line: {:?}", began.elapsed());
    assert_eq!(revision(&daemon).await, 0);
    run(&["rollback", "1"]);
    assert_eq!(revision(&daemon).await, 1);
    // A generation that was changed on the disk is never served again.
    let adapter = state.path().join("generations/1/adapter.gguf");
    let mut bytes = fs::read(&adapter).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&adapter, bytes).unwrap();
    drop(daemon);
    let daemon = launch(&state, &[]);
    daemon.ready().await;
    assert_eq!(revision(&daemon).await, 0);
    let status = until(&daemon, |status| status["served"]["ready"] == true).await;
    assert!(status["notices"].to_string().contains("not the one that was signed"), "{status:#}");
}
