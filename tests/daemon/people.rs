//! An installation with several people: keys, a turn log filled by hand, and the commands and requests of each.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::engine::tokenizer::Bpe;
use chimere::engine::vocab::Vocab;
use chimere::gguf::Gguf;
use chimere::store::new_turn_id;
use chimere::store::{SledTurns, TurnStore};
use chimere::turn::{Feedback, FinishReason, Message, Role, Turn, Vote};
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere, kill, model};
use crate::night::reached;

/// What a command printed; it must have gone well.
pub fn done(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A command of the program that talks to a daemon.
pub fn toward(daemon: &Daemon, key: &str) -> Command {
    let mut command = chimere();
    command.env("CHIMERE_URL", &daemon.url);
    if !key.is_empty() {
        command.env("CHIMERE_KEY", key);
    }
    command
}

/// Runs one.
pub fn told(daemon: &Daemon, args: &[&str], key: &str) -> String {
    done(toward(daemon, key).args(args).output().unwrap())
}

/// Runs a job of the night and returns its report.
pub fn job(daemon: &Daemon, key: &str, job: &str) -> String {
    night_run(daemon, key, &["--job", job])
}

/// `chimere night run --now` with these arguments; its report with all details.
pub fn night_run(daemon: &Daemon, key: &str, extra: &[&str]) -> String {
    let began = Instant::now();
    loop {
        let output = toward(daemon, key).args(["night", "run", "--now"]).args(extra).output().unwrap();
        // The engine is ready a moment before the night is.
        if output.status.success() || began.elapsed() > PATIENCE {
            done(output);
            return done(toward(daemon, key).args(["night", "report", "--details"]).output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Lets the writing of tables ask so many items of the slice exam; on these machines the shipped number takes minutes.
pub fn weigh_items(state: &Path, items: usize) {
    let shipped = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/night.yaml")).unwrap();
    let few = shipped.replace("\n  items_max: 100\n", &format!("\n  items_max: {items}\n"));
    assert!(items == 100 || few != shipped);
    std::fs::create_dir_all(state.join("pipelines")).unwrap();
    std::fs::write(state.join("pipelines/night.yaml"), few).unwrap();
}

/// A POST that must go well.
pub async fn with_key(daemon: &Daemon, key: &str, path: &str, body: &Value) -> Value {
    let request = reqwest::Client::new().post(format!("{}{path}", daemon.url)).bearer_auth(key).json(body);
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let reply: Value = answer.json().await.unwrap();
    assert!(status.is_success(), "{status} {reply}");
    reply
}

/// An installation with keys, and a turn of its log to make others from.
pub async fn installation(names: &[&str]) -> (Arc<tempfile::TempDir>, Vec<String>, Turn) {
    let daemon = Daemon::start(&[]).await;
    daemon.chat("Hello").await;
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    let state = daemon.state.clone();
    kill(daemon.pid());
    drop(daemon);
    weigh_items(state.path(), 2);
    let keys = names.iter().map(|name| key(state.path(), name, if *name == "root" { "admin" } else { "chat" }));
    let keys = keys.collect();
    (state, keys, serde_json::from_value(turns["data"][0].clone()).unwrap())
}

/// Makes a key.
pub fn key(state: &Path, name: &str, scope: &str) -> String {
    let mut command = chimere();
    command.args(["keys", "add", name, "--scope", scope, "--consent", "--state-dir"]).arg(state);
    let printed = done(command.output().unwrap());
    printed.split_whitespace().find(|word| word.starts_with("chimere-")).unwrap().to_owned()
}

/// A turn of `age_days` ago in which `principal` asked `question`, got `text`, and liked it; judged good.
pub fn exchange(like: &Turn, principal: &str, (question, text): (&str, &str), age_days: i64) -> Turn {
    let vocab = Bpe::from_gguf(&Gguf::open(&model()).unwrap()).unwrap();
    let time_ms = jiff::Timestamp::now().as_millisecond() - age_days * 86_400_000;
    let mut turn = Turn { id: new_turn_id(time_ms), time_ms, principal: principal.into(), ..like.clone() };
    (turn.consent, turn.taint, turn.verdict) = (true, false, Some(5));
    turn.messages = vec![Message::new(Role::User, question)];
    let reply = &mut turn.generations[0];
    reply.reply_ids.clear();
    vocab.encode(text, false, &mut reply.reply_ids).unwrap();
    (reply.content, reply.finish_reason) = (text.to_owned(), FinishReason::Stop);
    let vote =
        Feedback { time_ms, principal: principal.into(), vote: Some(Vote::Up), correction: None, judgement: None };
    turn.feedback = vec![vote];
    turn
}

/// Puts turns into the log of a daemon that does not run.
pub fn put(state: &Path, turns: &[Turn]) {
    let log = SledTurns::open(&state.join("turns"), 1 << 30).unwrap();
    for turn in turns {
        log.append(turn).unwrap();
    }
    futures_util::future::FutureExt::now_or_never(log.flush());
    drop(log);
    // sled writes on after its last handle is gone, and holds the lock of its file until then.
    File::open(state.join("turns/db")).unwrap().lock().unwrap();
}

/// Puts exchanges of `principal` there.
pub fn answered(state: &Path, like: &Turn, principal: &str, exchanges: &[(&str, &str)], age_days: i64) {
    let turns = exchanges.iter().map(|said| exchange(like, principal, *said, age_days));
    put(state, &turns.collect::<Vec<Turn>>());
}

/// A daemon whose run of `job` stands still at `point`. It answers replies all the while.
pub async fn stood_at(
    state: &Arc<tempfile::TempDir>,
    key: &str,
    (name, point): (&str, &str),
    extra: &[&str],
) -> Daemon {
    let daemon = again(state, &[extra, &["--failpoint", point]].concat()).await;
    let (url, key, body) = (daemon.url.clone(), key.to_owned(), json!({"command": "run_now", "job": name}));
    // Where the point is in the night's own thread nobody may wait for the answer.
    let asked = tokio::spawn(async move {
        loop {
            let post = reqwest::Client::new().post(format!("{url}/v1/night")).json(&body);
            let post = if key.is_empty() { post } else { post.bearer_auth(&key) };
            if post.send().await.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let began = Instant::now();
    while !reached(&daemon) {
        let log = || daemon.log.lock().unwrap().join("\n");
        assert!(began.elapsed() < PATIENCE, "{point} was not reached:\n{}", log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    asked.abort();
    daemon
}

pub async fn again(state: &Arc<tempfile::TempDir>, extra: &[&str]) -> Daemon {
    let daemon = Daemon::launch(state.clone(), extra);
    daemon.ready().await;
    daemon
}
