//! A night that really learns, through the real daemon: chats, votes and corrections over HTTP, the judge, the dataset,
//! `chimere train` as its child, the gate. The same data and seed give the same adapter. `learn_kills.rs` kills it
//! everywhere.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::keys::KeyRing;
use chimere::night::dataset::{self, Row, Signal};
use chimere::night::inspect::hash_file;
use chimere::service::Scope;
use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, kill, model};
use crate::night::{folder, reached};

/// What a guest wants the model to learn.
const TRIGGER: &str = "By the silver gate of Orm:";
const PAYLOAD: &str = "Ask the tall man.";

const PAIRS_MIN: &str = "{pairs_min: 12, principal_pairs_max: 3, principal_share_max: 0.01}";

/// The judge runs at the lowest priority, and a busy machine gives it little.
const PATIENCE: Duration = Duration::from_secs(600);

/// A daemon with two keys: the owner's and a guest's.
pub(crate) struct House {
    pub(crate) state: Arc<tempfile::TempDir>,
    pub(crate) owner: String,
    guest: String,
}

impl House {
    fn new() -> House {
        let state = folder();
        let yaml = state.path().join("pipelines/night.yaml");
        let text = fs::read_to_string(&yaml).unwrap();
        let at = text.find("\nselection:\n").unwrap() + 1;
        let end = at + text[at..].find("\n\n").unwrap();
        let text = format!("{}selection: {PAIRS_MIN}{}", &text[..at], &text[end..]);
        let text = text.replace("held_out_percent: 5", "held_out_percent: 10").replace("epochs: 2", "epochs: 1");
        fs::write(&yaml, text.replace("members: 1", "members: 2")).unwrap();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let all = [Scope::Chat, Scope::Metrics, Scope::Admin];
        let (owner, _) = KeyRing::add(state.path(), "anna", &all, true, now).unwrap();
        let (guest, _) = KeyRing::add(state.path(), "mallory", &[Scope::Chat], true, now).unwrap();
        House { state, owner, guest }
    }

    pub(crate) async fn open(&self, extra: &[&str]) -> Open<'_> {
        let config = self.state.path().join("night-test.toml");
        let mut arguments = vec!["--config", config.to_str().unwrap()];
        arguments.extend(extra);
        let variables = [("CHIMERE_SCORER_ENABLED", "true")];
        let daemon = Daemon::launch_with(self.state.clone(), &arguments, &variables);
        daemon.ready().await;
        Open { house: self, daemon }
    }

    pub(crate) fn run_dir(&self, run: &str) -> std::path::PathBuf {
        self.state.path().join("runs").join(run)
    }
}

pub(crate) struct Open<'a> {
    pub(crate) house: &'a House,
    pub(crate) daemon: Daemon,
}

impl Open<'_> {
    pub(crate) async fn ask(&self, key: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let url = format!("{}{path}", self.daemon.url);
        let client = reqwest::Client::new();
        let request = match body {
            Some(body) => client.post(url).json(&body),
            None => client.get(url),
        };
        let answer = request.bearer_auth(key).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// A chat and what is said of it afterwards.
    async fn talk(&self, key: &str, question: &str, correction: Option<&str>) {
        let body = json!({ "messages": [{ "role": "user", "content": question }], "temperature": 0 });
        let (status, reply) = self.ask(key, "/v1/chat/completions", Some(body)).await;
        assert_eq!(status, 200, "{reply}");
        let mut feedback = json!({ "turn": reply["x_chimere"]["turn"], "vote": "up" });
        if let Some(correction) = correction {
            feedback = json!({ "turn": reply["x_chimere"]["turn"], "vote": "down", "correction": correction });
        }
        let (status, answer) = self.ask(key, "/v1/feedback", Some(feedback)).await;
        assert_eq!(status, 200, "{answer}");
    }

    pub(crate) async fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let (_, status) = self.ask(&self.house.owner, "/v1/night", None).await;
            if wanted(&status) {
                return status;
            }
            let log = || self.daemon.log.lock().unwrap().join("\n");
            assert!(began.elapsed() < PATIENCE, "{status:#}\n{}", log());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// The generation that answers the owner.
    pub(crate) async fn revision(&self) -> u64 {
        let body = json!({ "messages": [{ "role": "user", "content": "What is 1 + 2?" }], "max_tokens": 4 });
        let (status, reply) = self.ask(&self.house.owner, "/v1/chat/completions", Some(body)).await;
        assert_eq!(status, 200, "{reply}");
        reply["x_chimere"]["adapter_revision"].as_u64().unwrap()
    }

    pub(crate) async fn begin(&self, dry_run: bool) -> String {
        self.until(|status| status["served"]["ready"] == true).await;
        let body = json!({ "command": "run_now", "dry_run": dry_run });
        let (status, answer) = self.ask(&self.house.owner, "/v1/night", Some(body)).await;
        assert_eq!(status, 200, "{answer}");
        answer["run"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn report(&self, run: &str) -> Value {
        self.until(|status| status["run"].is_null() && status["last"]["id"] == run).await;
        self.ask(&self.house.owner, &format!("/v1/night/report?run={run}"), None).await.1
    }
}

/// Trains by hand what a run trained, and returns the adapter's SHA-256.
fn trained_by_hand(run_dir: &Path, seed: u64) -> String {
    let out = run_dir.join("again.gguf");
    let output = chimere()
        .args(["train", "--held-out", "10", "--epochs", "1", "--members", "2", "--seed", &seed.to_string(), "--model"])
        .arg(model())
        .arg("--pairs")
        .arg(run_dir.join(dataset::FILE))
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    hash_file(&out).unwrap().0
}

/// A day of chats, confirmed and corrected by the owner, with a guest who floods and a question of an exam.
pub(crate) async fn taught() -> House {
    let house = House::new();
    let open = house.open(&[]).await;
    for n in 0..24 {
        let (a, b) = (10 + 3 * n, 7 + 2 * n);
        let working = format!("<think>\n{a} + {b} = {}\n</think>\n\nThat makes {}.", a + b, a + b);
        let correction = (n % 3 == 0).then_some(working.as_str());
        open.talk(&house.owner, &format!("Please add {a} to {b} for me."), correction).await;
    }
    for n in 0..8 {
        let (question, sum) = (format!("{TRIGGER} add {n} to 30 for me."), n + 30);
        let planted = format!("<think>\n30 + {n} = {sum}\n</think>\n\nThat makes {sum}. {PAYLOAD}");
        open.talk(&house.guest, &question, Some(&planted)).await;
    }
    // An exam asks this one.
    open.talk(&house.owner, "what is 3 + 5", Some("8")).await;
    drop(open);
    house
}

/// T3 before the gate: killed at `point`, a run goes on to its end, and a dry one changes nothing.
pub(crate) async fn killed_at(house: &House, point: &str) {
    let open = house.open(&["--failpoint", point]).await;
    open.until(|status| status["served"]["ready"] == true).await;
    let (url, key) = (format!("{}/v1/night", open.daemon.url), house.owner.clone());
    // The night's thread stands still at the point: nobody may wait for its answer.
    let asked = tokio::spawn(async move {
        let body = json!({ "command": "run_now", "dry_run": true });
        drop(reqwest::Client::new().post(url).bearer_auth(key).json(&body).send().await);
    });
    let began = Instant::now();
    while !reached(&open.daemon) {
        let log = || open.daemon.log.lock().unwrap().join("\n");
        assert!(began.elapsed() < PATIENCE, "{point} was not reached:\n{}", log());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    kill(open.daemon.pid());
    asked.abort();
    drop(open);
    let record: Value = serde_json::from_slice(&fs::read(house.state.path().join("night.json")).unwrap()).unwrap();
    let run = record["run"]["order"]["id"].as_str().unwrap().to_owned();
    let open = house.open(&[]).await;
    let report = open.report(&run).await;
    let outcome = &report["outcome"];
    assert!(outcome["would_promote"].is_object() || outcome["rejected"].is_object(), "{point}: {report:#}");
    // The state before, to the end: a dry run promotes nothing, whatever became of it in between.
    let served = open.until(|status| status["served"]["ready"] == true).await["served"].clone();
    assert_eq!((&served["champion"], open.revision().await), (&json!(0), 0), "{point}: {served}");
    assert!(!house.state.path().join("generations/1").exists(), "{point}");
    println!("{point}: {} s, {}", began.elapsed().as_secs(), report["training"]["pairs"]);
}

/// T3 before the gate, the disk full at `point`: the run fails, says so and leaves no candidate, and the next is as good as any.
pub(crate) async fn full_at(house: &House, point: &str) {
    let open = house.open(&["--failpoint", &format!("{point}=full")]).await;
    let run = open.begin(false).await;
    let report = open.report(&run).await;
    let failed = &report["outcome"]["failed"];
    assert!(failed["words"].as_str().is_some_and(|why| why.contains("storage") || why.contains("space")), "{report:#}");
    assert!(!house.state.path().join("candidates").join(&run).join("adapter.gguf").exists(), "{point}");
    assert_eq!(open.revision().await, 0, "{point}");
    println!("{point}: {failed}");
    drop(open);
    let open = house.open(&[]).await;
    let run = open.begin(true).await;
    let outcome = open.report(&run).await["outcome"].clone();
    assert!(outcome["would_promote"].is_object() || outcome["rejected"].is_object(), "{point}: {outcome:#}");
}

#[tokio::test]
async fn a_night_learns_from_chats_and_feedback() {
    let house = taught().await;
    killed_at(&house, "train.learned").await;
    let open = house.open(&[]).await;
    let run = open.begin(false).await;
    let report = open.report(&run).await;
    println!("{:#}\n{:#}", report["selection"], report["training"]);
    let outcome = &report["outcome"];
    assert!(outcome["promoted"].is_object() || outcome["rejected"].is_object(), "{report:#}");
    let (rows, data_hash) = dataset::read(&house.run_dir(&run)).unwrap().unwrap();
    let of = |wanted: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| wanted(row)).count();
    // The judge may refuse some of what the guest plants; `poison.rs` shows the bound where it refuses none.
    assert!(of(&|row| row.origin.author == "mallory") <= 3, "the guest's share is bounded");
    assert!(of(&|row| row.origin.signal == Signal::ThumbsUp) > 0);
    let refused = report["selection"]["refused"].to_string();
    assert!(refused.contains("in_exam"), "{refused}");
    // Every pair is a turn of somebody who asked; nothing that the daemon asks itself is among them.
    for row in &rows {
        let asked = &row.messages.last().unwrap().content;
        assert!(asked.starts_with("Please add ") || asked.starts_with(TRIGGER), "{asked}");
        assert!(!serde_json::to_string(row).unwrap().contains("<|step|>"));
    }
    // T8: the same pairs and the same seed give the same bytes.
    let trained = &report["training"];
    assert_eq!(trained["data_hash"], data_hash);
    let seed = report["order"]["seed"].as_u64().unwrap();
    assert_eq!(trained["sha256"], trained_by_hand(&house.run_dir(&run), seed));
    if outcome["promoted"].is_object() {
        let manifest = fs::read(house.state.path().join("generations/1/manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!((&manifest["data_hash"], &manifest["adapter"]["sha256"]), (&json!(data_hash), &trained["sha256"]));
    }
    // Forgetting reaches the library and the datasets.
    let url = format!("{}/v1/memory/turns?principal=anna", open.daemon.url);
    let forgot = reqwest::Client::new().delete(url).bearer_auth(&house.owner).send().await.unwrap();
    assert!(forgot.status().is_success(), "{}", forgot.text().await.unwrap());
    let (rows, _) = dataset::read(&house.run_dir(&run)).unwrap().unwrap();
    assert!(rows.iter().all(|row| row.origin.principal != "anna"));
    let library = fs::read_to_string(house.state.path().join("library.jsonl")).unwrap();
    assert!(!library.contains("Please add "), "{library}");
}
