//! What somebody meets who knows nothing of the installation: which model is served, which folder was meant, what a table is
//! for, and what a forgetting takes. Each message says what to do.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::engine::tokenizer::Bpe;
use chimere::engine::vocab::{Vocab, fingerprint};
use chimere::engram::shelf::{DIR, publish};
use chimere::engram::{Draft, Source};
use chimere::gguf::Gguf;
use chimere::night::manifest::{KEY_FILE, Seal};
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere, model};
use crate::people::{done, key, told, toward};

/// Exit code, standard output and standard error.
fn ran(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn findings(command: &mut Command) -> Vec<Value> {
    let said: Value = serde_json::from_str(&ran(command).1).unwrap();
    said["findings"].as_array().or(said.as_array()).unwrap().clone()
}

fn message<'a>(findings: &'a [Value], what: &str) -> &'a str {
    let found = findings.iter().find(|found| found["what"] == what);
    found.unwrap_or_else(|| panic!("no {what} in {findings:#?}"))["message"].as_str().unwrap()
}

/// A table that holds another tokenizer's tokens, signed by this installation.
fn foreign_table(state: &Path, name: &str) {
    let vocab = Bpe::from_gguf(&Gguf::open(&model()).unwrap()).unwrap();
    assert_ne!(fingerprint(&vocab), [9; 32]);
    let mut draft = Draft::new([9; 32], vocab.len() as u32).unwrap();
    let source = Source { principal: String::new(), origin: "x".into(), time_s: 0, verdict: 0, halved: false };
    let source = draft.source(source).unwrap();
    draft.add(&[1, 2, 3], 4, 5, source).unwrap();
    let bytes = draft.finish(name, "", "", None).unwrap();
    publish(&state.join(DIR), &bytes, &Seal::open(&state.join(KEY_FILE)).unwrap()).unwrap();
}

fn garden(state: &Path, engram: &str) -> String {
    let folder = state.join("pipelines");
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!("name: garden\nversion: 1\nfollow_model: true\n{engram}match:\n  words: [tomato, compost]\n");
    let path = folder.join("garden.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn check_and_doctor_speak_of_the_model_that_is_served() {
    let files = tempfile::tempdir().unwrap();
    let own = files.path().canonicalize().unwrap().join("own.gguf");
    std::fs::copy(model(), &own).unwrap();
    let daemon = Daemon::start(&[]).await;
    told(&daemon, &["model", "swap", own.to_str().unwrap()], "");
    let elsewhere = tempfile::tempdir().unwrap();
    for command in ["check", "doctor"] {
        let mut near = chimere();
        let listen = daemon.url.trim_start_matches("http://");
        near.args([command, "--json", "--listen", listen, "--state-dir"]).arg(elsewhere.path());
        let mut named = toward(&daemon, "");
        named.args([command, "--json", "--state-dir"]).arg(elsewhere.path());
        for command in [&mut near, &mut named] {
            let found = findings(command);
            let (model, start) = (message(&found, "model"), message(&found, "start"));
            assert!(model.starts_with(own.to_str().unwrap()) && model.contains("serves it"), "{model}");
            assert!(start.contains("a start without --model would serve another file") && start.contains("nano.gguf"));
            assert!(message(&found, "tables").contains("this model can use"), "{found:#?}");
            let fault = found.iter().find(|found| found["good"] == false && found["what"] == "daemon");
            assert_eq!(fault, None, "the daemon is where it was said to be");
        }
        // Another file is looked at where one is named.
        let mut other = toward(&daemon, "");
        other.args([command, "--json", "--model"]).arg(model()).arg("--state-dir").arg(elsewhere.path());
        let found = findings(&mut other);
        assert!(message(&found, "model").contains("nano.gguf") && found.iter().all(|found| found["what"] != "start"));
    }
    // What a key guards is not told, and that is said.
    let anna = key(daemon.state.path(), "anna", "chat");
    let mut closed = toward(&daemon, &anna);
    let found = findings(closed.args(["check", "--json", "--state-dir"]).arg(daemon.state.path()));
    assert!(message(&found, "served").contains("CHIMERE_KEY"), "{found:#?}");
}

#[tokio::test]
async fn a_table_of_another_tokenizer_is_told_everywhere_with_what_helps() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    foreign_table(state.path(), "herbs");
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    daemon.ready().await;
    let helps = "`chimere engram build --name herbs --text FILE --model MODEL`";
    let body =
        json!({ "messages": [{ "role": "user", "content": "hi" }], "chimere": { "engram": { "tables": ["herbs"] } } });
    let (status, refused) = daemon.post("/v1/chat/completions", &body).await;
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(status == 400 && why.contains("made for the tokenizer 090909090909") && why.contains(helps), "{why}");
    // The engine is given its tables a moment after it is ready.
    let began = Instant::now();
    loop {
        let (_, status) = daemon.get("/v1/status").await;
        if let Some(error) = status["engram"]["engine"]["herbs"]["error"].as_str() {
            assert!(error.contains(helps), "{error}");
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{status:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(daemon.log.lock().unwrap().iter().any(|line| line.contains(helps)));

    let place = ["--state-dir", state.path().to_str().unwrap()];
    let of = |args: &[&str]| ran(toward(&daemon, "").args(args).args(place));
    let (code, said, _) = of(&["check"]);
    assert!(code == 0 && said.contains("herbs hold another tokenizer's tokens") && said.contains(helps), "{said}");
    let file = garden(state.path(), "engram: {tables: [herbs], lambda: 0.1}\n");
    let (code, said, warned) = of(&["pipeline", "check", &file]);
    assert!(code == 0 && said.starts_with("garden: version 1, 1 step\n"), "{said}");
    assert!(
        warned.contains("warning: the route `garden` answers without a table") && warned.contains(helps),
        "{warned}"
    );
    let (code, said, _) = of(&["check"]);
    assert!(code == 78 && said.contains("BAD  tables") && said.contains(helps), "{said}");
    let file = garden(state.path(), "engram: {tables: [nowhere], lambda: 0.1}\n");
    let (_, _, warned) = of(&["pipeline", "check", &file]);
    assert!(
        warned.contains("there is no table `nowhere`") && warned.contains("engram build --name nowhere"),
        "{warned}"
    );
    let file = garden(state.path(), "engram: {tables: [kine, learned], lambda: 0.1}\n");
    assert_eq!(of(&["pipeline", "check", &file]).2, "");
}

/// A table of every model's tokens, one that would be empty, and for which model without a word.
#[tokio::test]
async fn a_table_is_built_for_the_served_model_and_never_empty() {
    let daemon = Daemon::start(&[]).await;
    let text = daemon.state.path().join("text.txt");
    std::fs::write(&text, "The zorblax is made of walnut and honey.").unwrap();
    let build = |more: &[&str]| {
        let mut command = toward(&daemon, "");
        command.args(["engram", "build", "--name", "mine", "--text"]).arg(&text).args(more);
        ran(command.arg("--state-dir").arg(daemon.state.path()))
    };
    let (code, _, said) = build(&[]);
    assert!(code == 65 && said.contains("of 1 document") && said.contains("occurs 3 times, in 2 documents"), "{said}");
    assert!(said.contains("--documents-min") && !daemon.state.path().join("engram/mine.engr").exists(), "{said}");
    std::fs::write(&text, "The zorblax is made of walnut and honey.\0".repeat(4)).unwrap();
    let (code, said, note) = build(&[]);
    assert!(code == 0 && said.contains("contexts") && note.contains("nano.gguf"), "{said}{note}");
    #[cfg(feature = "llama")]
    {
        let foreign = crate::library::make(daemon.state.path(), "qwen2");
        let (code, said, note) = build(&["--model", foreign.to_str().unwrap()]);
        assert!(code == 0 && said.contains("context"), "{said}{note}");
    }
}

#[test]
fn what_was_meant_is_said() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let of = |args: &[&str]| ran(chimere().args(args).args(["--state-dir", folder]));
    for command in
        [&["add", "ann"][..], &["renew", "ann"], &["renew", "ann", "--keep", "--consent", "yes"], &["revoke", "ann"]]
    {
        let (code, _, said) = of(&[&["keys"], command].concat());
        assert!(code == 0 && said.contains(&format!("state folder is {folder}")), "{command:?}: {said}");
    }
    let (code, _, said) = of(&["pipeline", "check", "default"]);
    assert!(
        code == 66 && said.contains("`chimere pipeline check ") && said.contains("pipelines/default.yaml`"),
        "{said}"
    );
    let (code, _, said) = of(&["pipeline", "check", "nothing.yaml"]);
    assert!(code == 66 && said.contains("name a file; those of the routes lie in"), "{said}");
    let (_, help, _) = of(&["--help"]);
    assert!(
        help.contains("language model") && help.contains("--model FILE.gguf") && !help.contains("mixture"),
        "{help}"
    );
}

/// A daemon that is named decides, with the pipelines that it has.
#[tokio::test]
async fn a_named_daemon_says_the_route() {
    let daemon = Daemon::start(&[]).await;
    garden(daemon.state.path(), "");
    let began = Instant::now();
    let elsewhere = tempfile::tempdir().unwrap();
    let route = |command: &mut Command| {
        ran(command.args(["route", "Is this tomato ripe?", "--state-dir"]).arg(elsewhere.path()))
    };
    loop {
        let (code, said, note) = route(&mut toward(&daemon, ""));
        if said.starts_with("garden: ") {
            assert!(code == 0 && note.contains(&daemon.url), "{note}");
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{said}{note}");
    }
    assert!(!route(&mut chimere()).1.starts_with("garden"), "the files of another folder");
    assert_eq!(route(chimere().env("CHIMERE_URL", "127.0.0.1:9")).0, 69);
}

#[tokio::test]
async fn a_forgetting_asks_counts_and_says_what_was_not_there() {
    let mut daemon = Daemon::start(&[]).await;
    let state = Arc::clone(&daemon.state);
    let typed = state.path().join("chat_history");
    let teach = async |daemon: &Daemon| {
        daemon.chat("What is 17 + 25?").await;
        told(daemon, &["lessons", "add", "--question", "Where is the key?", "--answer", "Under the pot."], "");
        std::fs::write(&typed, "#V2\nWhat is 17 + 25?\n").unwrap();
    };
    teach(&daemon).await;
    let place = ["--state-dir", state.path().to_str().unwrap()];
    let forget = |daemon: Option<&Daemon>, args: &[&str]| {
        let mut command = daemon.map_or_else(chimere, |daemon| toward(daemon, ""));
        ran(command.args(["memory", "forget"]).args(args).args(place))
    };
    for args in [["--principal", "nobody"], ["--conversation", "nobody"]] {
        let (code, _, said) = forget(Some(&daemon), &args);
        assert!(code == 65 && said.contains("nothing of `nobody`") && said.contains("memory list"), "{said}");
    }
    let (code, _, said) = forget(Some(&daemon), &["--all"]);
    assert!(code == 64 && said.contains("--yes"), "{said}");
    // At a terminal it asks.
    let answered = |words: &str| {
        let (program, folder) = (env!("CARGO_BIN_EXE_chimere"), state.path().display());
        let command = format!("{program} memory forget --all --url {} --state-dir {folder}", daemon.url);
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), words.as_bytes()).unwrap();
        String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
    };
    let said = answered("no\n");
    assert!(said.contains("every turn and lesson of everybody") && said.contains("nothing was forgotten"), "{said}");
    assert!(typed.exists());
    let said = answered("yes\n");
    assert!(said.contains("1 turn forgotten, with 1 lesson"), "{said}");
    assert!(!typed.exists(), "the daemon removes its own");

    // The same without a daemon.
    teach(&daemon).await;
    assert_eq!(daemon.get("/v1/memory/turns").await.1["data"].as_array().unwrap().len(), 1);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let (code, _, said) = forget(None, &["--principal", "nobody"]);
    assert!(code == 65 && said.contains("nothing of `nobody`"), "{said}");
    let (code, said, _) = forget(None, &["--all", "--yes", "--json"]);
    assert_eq!(
        (code, serde_json::from_str::<Value>(&said).unwrap()),
        (0, json!({ "turns": 1, "lessons": 1, "pairs": 0 }))
    );
    assert!(!typed.exists());
    done(chimere().args(["memory", "list"]).args(place).output().unwrap());
}
