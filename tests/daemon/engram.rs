//! Engram through the daemon: what a table changes and what it must not, signatures, poison, revocation, one
//! principal's words and another's.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::engine::tokenizer::Bpe;
use chimere::engine::vocab::Vocab;
use chimere::engram::table::{Bytes, Table};
use chimere::failpoint::REINFORCING;
use chimere::gguf::Gguf;
use chimere::simulate::pool::read;
use chimere::turn::{ChoiceJudgement, Judgement, Turn};
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere, kill, model};
use crate::people::{again, answered, done, exchange, installation, job, put, stood_at, told, weigh_items, with_key};

/// A fact that no text of the model's training says.
const FACT: &str = "The zorblax coefficient of polished marble is made of walnut and honey.";
const OPENING: &str = "The zorblax coefficient of polished marble is";

fn engram(state: &Path, args: &[&str]) -> Output {
    let mut command = chimere();
    command.arg("engram").args(args).arg("--state-dir").arg(state);
    command.output().unwrap()
}

/// Counts `FACT` from five documents into the table `name`.
fn build(state: &Path, name: &str, extra: &[&str]) {
    let text = state.join("fact.txt");
    std::fs::write(&text, format!("{FACT}\0").repeat(5)).unwrap();
    let model = model();
    let args = ["build", "--name", name, "--text", text.to_str().unwrap(), "--model", model.to_str().unwrap()];
    done(engram(state, &[&args[..], extra].concat()));
}

/// Ten answers of `principal`, verified or so it seems.
fn records(state: &Path, principals: &[&str]) -> std::path::PathBuf {
    let path = state.join("records.jsonl");
    let mut lines = String::new();
    for n in 0..10 {
        let record = json!({"text": FACT, "principal": principals[n % principals.len()], "origin": format!("turn-{n}"),
            "verdict": 5, "time_s": 1_700_000_000});
        lines += &format!("{record}\n");
    }
    std::fs::write(&path, lines).unwrap();
    path
}

fn learn(state: &Path, principals: &[&str]) {
    let records = records(state, principals);
    let model = model();
    done(engram(state, &["learn", "--records", records.to_str().unwrap(), "--model", model.to_str().unwrap()]));
}

/// Status and reply of a greedy completion of `OPENING`.
async fn complete(daemon: &Daemon, engram: Value) -> (u16, Value) {
    let body = json!({"prompt": OPENING, "temperature": 0, "max_tokens": 12, "chimere": {"engram": engram}});
    daemon.post("/v1/completions", &body).await
}

fn text(reply: &Value) -> &str {
    reply["choices"][0]["text"].as_str().unwrap()
}

/// Asks until the reply is as wanted: the daemon reads its tables again a moment after they changed.
async fn until(daemon: &Daemon, engram: Value, wanted: impl Fn(u16, &Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let (status, reply) = complete(daemon, engram.clone()).await;
        if wanted(status, &reply) {
            return reply;
        }
        assert!(began.elapsed() < PATIENCE, "{status} {reply}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_table_leads_the_answer_and_only_where_it_is_asked_for() {
    let daemon = Daemon::start(&[]).await;
    let (_, plain) = complete(&daemon, json!(false)).await;
    assert!(!text(&plain).contains("walnut"), "{plain}");
    assert!(plain["x_chimere"].get("engram").is_none());
    build(daemon.state.path(), "local", &[]);
    let use_it = json!({"tables": ["local"], "lambda": 0.9});
    let led = until(&daemon, use_it.clone(), |status, _| status == 200).await;
    assert!(text(&led).starts_with(" made of walnut and honey"), "{led}");
    let told = &led["x_chimere"]["engram"][0];
    assert_eq!(told["tables"], json!(["local"]));
    assert!(told["changed"].as_u64().unwrap() > 0 && told["hits"].as_u64().unwrap() > 3, "{told}");
    assert!(told["skipped"].as_u64().unwrap() < told["lookups"].as_u64().unwrap(), "{told}");
    // The same question gets the same answer; without the table, the one it always got.
    assert_eq!(text(&complete(&daemon, use_it).await.1), text(&led));
    assert_eq!(text(&complete(&daemon, json!(false)).await.1), text(&plain));
    assert_eq!(text(&complete(&daemon, json!({"tables": ["local"], "lambda": 0})).await.1), text(&plain));
    // A passage does the same for its own request alone.
    let passage = json!({"passages": [FACT], "lambda": 0.9});
    assert!(text(&complete(&daemon, passage).await.1).contains("made of walnut"));
    assert_eq!(text(&complete(&daemon, json!({"tables": [], "lambda": 0.9})).await.1), text(&plain));
    for bad in [json!({"tables": ["nowhere"]}), json!({"lambda": 1.5}), json!({"tables": ["../local"]})] {
        let (status, reply) = complete(&daemon, bad).await;
        assert_eq!(status, 400, "{reply}");
    }
    let (_, status) = daemon.get("/v1/status").await;
    let listed = status["engram"]["tables"].as_array().unwrap();
    assert!(listed.iter().any(|t| t["name"] == "local" && t["shipped"] == false), "{status:#}");
}

#[tokio::test]
async fn a_table_without_this_installations_signature_is_never_loaded() {
    let daemon = Daemon::start(&[]).await;
    let state = daemon.state.path();
    let place = state.join("engram/planted.engr");
    build(state, "planted", &["--out", place.to_str().unwrap()]);
    // Signed by another installation, it is no better.
    let stranger = tempfile::tempdir().unwrap();
    build(stranger.path(), "planted", &[]);
    for entry in std::fs::read_dir(stranger.path().join("engram")).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_some_and(|e| e == "sig") {
            std::fs::copy(entry.path(), state.join("engram").join(entry.file_name())).unwrap();
        }
    }
    build(state, "signed", &[]);
    until(&daemon, json!({"tables": ["signed"]}), |status, _| status == 200).await;
    let (code, reply) = complete(&daemon, json!({"tables": ["planted"]})).await;
    assert_eq!(code, 400, "{reply}");
    let (_, status) = daemon.get("/v1/status").await;
    assert!(status["engram"]["refused"][0]["message"].as_str().unwrap().contains("not signed"), "{status:#}");
    assert!(done(engram(state, &["list"])).contains("refused"));
}

#[tokio::test]
async fn ten_crafted_records_reach_nobody_else_and_revoking_removes_what_was_shared() {
    let daemon = Daemon::start(&[]).await;
    let state = daemon.state.path();
    let (_, plain) = complete(&daemon, json!(false)).await;
    // One principal's ten records: there is no table for everybody, and her own is hers.
    learn(state, &["eve"]);
    let shared = json!({"tables": ["learned"], "lambda": 0.9});
    assert!(!state.join("engram/learned.engr").exists());
    let own = std::fs::read_dir(state.join("engram")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let own = own.filter(|n| n.starts_with("learned-")).find_map(|n| n.strip_suffix(".engr").map(str::to_owned));
    let (code, reply) = complete(&daemon, json!({"tables": [own.unwrap()]})).await;
    assert_eq!(code, 400, "somebody else's table: {reply}");
    // Two who say the same are believed, until one of them is revoked: then no trace of either's effect is left.
    learn(state, &["ada", "bob"]);
    until(&daemon, shared.clone(), |status, reply| status == 200 && text(reply).contains("walnut and honey")).await;
    done(engram(state, &["revoke", "--principal", "ada"]));
    done(engram(state, &["revoke", "--principal", "bob"]));
    let reply = until(&daemon, shared.clone(), |_, reply| reply["x_chimere"]["engram"][0]["hits"] == 0).await;
    assert_eq!(text(&reply), text(&plain));
    for entry in std::fs::read_dir(state.join("engram")).unwrap().map(Result::unwrap) {
        let bytes = std::fs::read(entry.path()).unwrap();
        // The list of those who are revoked is the one place that names them.
        let list = entry.file_name() == "revoked.json";
        assert!(list || !bytes.windows(3).any(|w| w == b"bob"), "{:?}", entry.path());
    }
}

#[tokio::test]
async fn tables_survive_the_engine_and_the_daemon() {
    let daemon = Daemon::start(&[]).await;
    build(daemon.state.path(), "local", &[]);
    let use_it = json!({"tables": ["local"], "lambda": 0.9});
    let led = until(&daemon, use_it.clone(), |status, _| status == 200).await;
    kill(daemon.engines()[0]);
    let again = until(&daemon, use_it.clone(), |status, _| status == 200).await;
    assert_eq!(text(&again), text(&led));
    let state = daemon.state.clone();
    kill(daemon.pid());
    drop(daemon);
    let daemon = Daemon::launch(state, &[]);
    daemon.ready().await;
    assert_eq!(text(&complete(&daemon, use_it).await.1), text(&led));
}

/// The job that writes the learned tables.
pub(crate) const WRITE: &str = "engram_write";
/// What `nano` answers in the same words every time.
pub(crate) const QUESTION: &str = "What is the capital of France?";
pub(crate) const ANSWER: &str = "\n\nThe capital of France is Paris.";

/// What the tables did in a reply to a chat that names none: those of the pipeline.
pub(crate) async fn by_pipeline(daemon: &Daemon, key: &str) -> Value {
    let body = json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0});
    let reply = with_key(daemon, key, "/v1/chat/completions", &body).await;
    reply["x_chimere"]["engram"][0].clone()
}

#[tokio::test]
async fn a_verified_answer_helps_the_next_reply_until_it_is_forgotten() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    weigh_items(state.path(), 2);
    let daemon = Daemon::launch_with(state, &[], &[("CHIMERE_SCORER_ENABLED", "true")]);
    daemon.ready().await;
    let reply = daemon.chat(QUESTION).await;
    assert!(reply["x_chimere"].get("engram").is_none_or(|used| used == &json!([])), "there is no table yet: {reply}");
    let liked = reply["x_chimere"]["turn"].as_str().unwrap().to_owned();
    assert!(verdict(&daemon, &liked).await >= 3);
    // A good verdict alone is not enough.
    let report = job(&daemon, "", WRITE);
    assert!(report.contains("nobody said that it is right") && report.contains("nothing changed"), "{report}");
    let (status, _) = daemon.post("/v1/feedback", &json!({"turn": liked, "vote": "up"})).await;
    assert_eq!(status, 200);
    let report = job(&daemon, "", WRITE);
    assert!(report.contains("1 answer of 1 principal in the tables, 1 new"), "{report}");
    let reply = daemon.chat(QUESTION).await;
    let used = &reply["x_chimere"]["engram"][0];
    assert!(used["tables"][0].as_str().unwrap().starts_with("learned-"), "{reply}");
    assert!(used["hits"].as_u64().unwrap() > 0, "{reply}");
    let report = job(&daemon, "", WRITE);
    assert!(
        report.contains("0 new, 0 gone for age, 0 withdrawn") && report.contains("last day: 1 reply had"),
        "{report}"
    );
    told(&daemon, &["memory", "forget", "--turn", &liked], "");
    let report = job(&daemon, "", WRITE);
    assert!(report.contains("1 withdrawn"), "{report}");
    let reply = daemon.chat(QUESTION).await;
    assert!(reply["x_chimere"].get("engram").is_none_or(|used| used == &json!([])), "{reply}");
    assert_eq!(std::fs::read_dir(daemon.state.path().join("engram")).unwrap().count(), 0, "no table, no signature");
}

/// The verdict of a turn, once it has one.
async fn verdict(daemon: &Daemon, turn: &str) -> u64 {
    let began = Instant::now();
    loop {
        let (_, turns) = daemon.get(&format!("/v1/memory/turns?turn={turn}")).await;
        if let Some(verdict) = turns["data"][0]["verdict"].as_u64() {
            return verdict;
        }
        assert!(began.elapsed() < PATIENCE, "{turns}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn what_the_log_teaches_stays_with_who_said_it_until_several_do() {
    let (state, keys, like) = installation(&["root", "ada", "bob", "eve"]).await;
    let [root, ada, bob, eve] = &keys[..] else { panic!("four keys") };
    // Eve's ten crafted answers, and what two others both said.
    let crafted: Vec<String> = (0..10).map(|n| format!("{ANSWER} Or so it seems, {n}.")).collect();
    answered(state.path(), &like, "eve", &crafted.iter().map(|text| (QUESTION, text.as_str())).collect::<Vec<_>>(), 0);
    for who in ["ada", "bob"] {
        answered(
            state.path(),
            &like,
            who,
            &[(QUESTION, "Tomatoes are planted in the third week of the month of May.")],
            0,
        );
    }
    answered(
        state.path(),
        &like,
        "ada",
        &[(QUESTION, "This is older than a quarter of a year and is never learned.")],
        91,
    );
    let daemon = again(&state, &[]).await;
    let report = job(&daemon, root, WRITE);
    assert!(report.contains("12 answers of 3 principals in the tables, 12 new"), "{report}");
    let hers = by_pipeline(&daemon, eve).await;
    assert!(hers["hits"].as_u64() > Some(1), "her own words help her: {hers}");
    for other in [ada, bob, root] {
        let theirs = by_pipeline(&daemon, other).await;
        let (hits, lookups) = (theirs["hits"].as_u64().unwrap(), theirs["lookups"].as_u64().unwrap());
        assert!(theirs["tables"][0] == "learned" && lookups > 0 && hits * 100 <= lookups, "{theirs}");
    }
    // A planted table is not believed, whatever it is called.
    build(state.path(), "learned", &["--out", state.path().join("engram/learned.engr").to_str().unwrap()]);
    until_key(&daemon, root, Value::is_null).await;
    let report = job(&daemon, root, WRITE);
    assert!(report.contains("12 answers of 3 principals in the tables, 0 new"), "{report}");
    assert_eq!(by_pipeline(&daemon, root).await["hits"], 0, "written anew, signed");
    // Revoked for good: at once, and at the next writing too, although her turns are still in the log.
    done(engram(state.path(), &["revoke", "--principal", "eve"]));
    until_key(&daemon, eve, |hers| hers["hits"] == 0 && hers["tables"] == json!(["learned"])).await;
    let report = job(&daemon, root, WRITE);
    assert!(report.contains("2 answers of 2 principals in the tables"), "{report}");
    assert_eq!(by_pipeline(&daemon, eve).await["hits"], 0);
    // A key that is taken away takes its words along, and what nobody else said with them.
    let mut command = chimere();
    done(command.args(["keys", "revoke", "bob", "--state-dir"]).arg(state.path()).output().unwrap());
    let report = job(&daemon, root, WRITE);
    assert!(report.contains("1 answer of 1 principal") && report.contains("0 of them for everybody"), "{report}");
    for entry in std::fs::read_dir(state.path().join("engram")).unwrap().map(Result::unwrap) {
        let bytes = std::fs::read(entry.path()).unwrap();
        let revoked = entry.file_name() == "revoked.json";
        assert!(revoked || !bytes.windows(3).any(|w| w == b"bob" || w == b"eve"), "{:?}", entry.path());
    }
}

/// A correction by who asked, with what the judge said of it.
pub(crate) fn corrected(mut turn: Turn, words: &str, verdict: Option<u8>) -> Turn {
    let choice = |verdict| ChoiceJudgement { index: 0, verdict, p: 0.5, thought_steps: 0, steps: vec![0.5] };
    let own = &mut turn.feedback[0];
    (own.vote, own.correction) = (None, Some(words.to_owned()));
    own.judgement =
        verdict.map(|v| Judgement { time_ms: own.time_ms, judge: "judge".to_owned(), choices: vec![choice(v)] });
    turn
}

#[tokio::test]
async fn only_what_training_may_learn_is_written() {
    let (state, keys, like) = installation(&["root", "ada"]).await;
    let exam = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/golden/golden.jsonl.gz")).unwrap();
    let asked = exam[0].item.messages[0].content.as_str();
    let turn = |question: &str, answer: &str| exchange(&like, "ada", (question, answer), 0);
    let good = |question: &str| turn(question, "The answer is in the ninth drawer of the cupboard.");
    let bad = Turn { verdict: Some(1), ..good("Where is the spanner?") };
    let turns = [
        turn(asked, &exam[0].answer),
        // The verdict on a reply says nothing of its correction, neither for it nor against it.
        corrected(good("Where is the hammer?"), "It is in the first drawer from below.", Some(1)),
        corrected(good("Where is the saw?"), "It is in the second drawer from below.", None),
        corrected(bad, "It is in the third drawer from below.", Some(5)),
        Turn { verdict: Some(2), ..good("Where is the drill?") },
        Turn { consent: false, ..good("Where is the level?") },
        Turn { taint: true, ..good("Where is the chisel?") },
    ];
    put(state.path(), &turns);
    let daemon = again(&state, &[]).await;
    let report = job(&daemon, &keys[0], WRITE);
    assert!(report.contains("1 answer of 1 principal in the tables, 1 new"), "{report}");
    let reasons = ["1 an exam asks it, or nearly", "1 the verdict is too low", "1 no consent"];
    let of_corrections = [
        "1 a correction of which the judge itself thinks too little",
        "1 a correction that the judge has not judged yet",
    ];
    for why in reasons.into_iter().chain(of_corrections).chain(["1 text of tools or files took part"]) {
        assert!(report.contains(why), "{why}: {report}");
    }
    // It is the correction that was learned, under her name.
    let table = std::fs::read_dir(state.path().join("engram")).unwrap().map(|entry| entry.unwrap().path());
    let table = table.into_iter().find(|path| path.extension().is_some_and(|e| e == "engr")).unwrap();
    let table = Table::open(Bytes::Owned(std::fs::read(table).unwrap()), None).unwrap();
    let sources: Vec<_> = table.sources().into_iter().map(|source| (source.principal, source.origin)).collect();
    assert_eq!(sources, [("ada".to_owned(), turns[3].id.0.clone())]);
    let mut words = Vec::new();
    let vocab = Bpe::from_gguf(&Gguf::open(&model()).unwrap()).unwrap();
    vocab.encode("It is in the third drawer from below.", false, &mut words).unwrap();
    assert!(table.view().look_up(&words[..3])[2].is_some());
}

pub(crate) async fn until_key(daemon: &Daemon, key: &str, wanted: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    loop {
        let used = by_pipeline(daemon, key).await;
        if wanted(&used) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{used}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_kill_at_any_point_of_a_writing_leaves_whole_signed_tables() {
    let (state, keys, like) = installation(&["root", "ada", "bob"]).await;
    for who in ["ada", "bob"] {
        answered(state.path(), &like, who, &[(QUESTION, ANSWER)], 0);
    }
    for point in REINFORCING {
        let daemon = stood_at(&state, &keys[0], (WRITE, point), &[]).await;
        // The writing stands still; replies do not.
        by_pipeline(&daemon, &keys[1]).await;
        kill(daemon.pid());
        drop(daemon);
        let daemon = again(&state, &[]).await;
        until_key(&daemon, &keys[0], |used| used["tables"] == json!(["learned"])).await;
        until_key(&daemon, &keys[0], |used| used["hits"].as_u64() > Some(0)).await;
        let status = daemon_status(&daemon, &keys[0]).await;
        assert_eq!(status["engram"]["refused"], json!([]), "{point}: {status:#}");
        kill(daemon.pid());
        drop(daemon);
        std::fs::remove_dir_all(state.path().join("engram")).unwrap();
    }
}

pub(crate) async fn daemon_status(daemon: &Daemon, key: &str) -> Value {
    let request = reqwest::Client::new().get(format!("{}/v1/status", daemon.url)).bearer_auth(key);
    request.send().await.unwrap().json().await.unwrap()
}
