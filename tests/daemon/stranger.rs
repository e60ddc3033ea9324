//! What somebody meets who knows nothing of the installation: which model is served, which folder was meant, what a table is
//! for, and what a forgetting takes. Each message says what to do.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::engram::shelf::DIR;
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere, model};
use crate::people::{done, key, told, toward};
use crate::tables::{foreign_table, ran};

fn findings(command: &mut Command) -> Vec<Value> {
    let said: Value = serde_json::from_str(&ran(command).1).unwrap();
    said["findings"].as_array().or(said.as_array()).unwrap().clone()
}

fn message<'a>(findings: &'a [Value], what: &str) -> &'a str {
    let found = findings.iter().find(|found| found["what"] == what);
    found.unwrap_or_else(|| panic!("no {what} in {findings:#?}"))["message"].as_str().unwrap()
}

fn good(findings: &[Value], what: &str) -> bool {
    findings.iter().all(|found| found["what"] != what || found["good"] == true)
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
        }
        // Another file is looked at where one is named.
        let mut other = toward(&daemon, "");
        other.args([command, "--json", "--model"]).arg(model()).arg("--state-dir").arg(elsewhere.path());
        let found = findings(&mut other);
        assert!(message(&found, "model").contains("nano.gguf") && found.iter().all(|found| found["what"] != "start"));
    }
    // It listens where --url says and not where the configuration does, and holds the folder.
    let mut moved = toward(&daemon, "");
    moved.args(["doctor", "--json", "--listen", "127.0.0.1:1", "--state-dir"]).arg(daemon.state.path());
    let found = findings(&mut moved);
    assert_eq!(
        message(&found, "daemon"),
        format!("process {} runs in {}", daemon.pid(), daemon.state.path().display())
    );
    let mut lost = chimere();
    lost.args(["doctor", "--json", "--listen", "127.0.0.1:9", "--state-dir"]).arg(daemon.state.path());
    let found = findings(&mut lost);
    assert!(message(&found, "daemon").contains("holds") && !good(&found, "daemon"), "{found:#?}");
    // The file that is served is another by now, and no model.
    let torn = files.path().join("torn");
    std::fs::write(&torn, "GGUF and no more").unwrap();
    std::fs::rename(&torn, &own).unwrap();
    let mut damaged = toward(&daemon, "");
    let (code, said, _) = ran(damaged.args(["check", "--state-dir"]).arg(daemon.state.path()));
    let line = said.lines().find(|line| line.starts_with("BAD  model")).unwrap_or_else(|| panic!("{said}"));
    assert!(code == 78 && line.contains("serves it, and could not again: "), "{said}");
}

#[tokio::test]
async fn a_daemon_that_does_not_say_what_it_serves_is_a_fault_where_it_was_named() {
    let daemon = Daemon::start(&[]).await;
    let listen = daemon.url.trim_start_matches("http://");
    let elsewhere = tempfile::tempdir().unwrap();
    let check = |command: &mut Command, more: &[&str]| {
        command.arg("check").args(more).arg("--state-dir").arg(elsewhere.path());
        ran(command)
    };
    let served = |said: &str| {
        said.lines().find(|line| line.get(5..).is_some_and(|line| line.starts_with("served"))).map(str::to_owned)
    };
    let (code, said, _) = check(&mut chimere(), &["--url", "127.0.0.1:9"]);
    let line = served(&said).unwrap();
    assert!(
        code == 78 && line.starts_with("BAD  served     no daemon answers at http://127.0.0.1:9: start one"),
        "{said}"
    );
    assert!(said.contains("a start would serve: ") && !said.contains("ok   model"), "{said}");
    assert!(served(&check(&mut chimere(), &["--url", "https://example.org"]).1).unwrap().starts_with("BAD"), "{said}");
    // Nobody was named, and nobody is there.
    let (code, said, _) = check(&mut chimere(), &["--listen", "127.0.0.1:9"]);
    assert!(code == 0 && served(&said).is_none() && said.contains("ok   model"), "{said}");
    // What a key guards is not told, and that is said; what a start would serve is not told as what is served.
    let anna = key(daemon.state.path(), "anna", "chat");
    for (command, more) in
        [(&mut toward(&daemon, &anna), &[][..]), (&mut chimere(), &["--listen", listen, "--key", &anna])]
    {
        let (code, said, _) = check(command, more);
        let line = served(&said).unwrap();
        assert!(code == 78 && line.starts_with("BAD") && line.contains("lacks the scope `admin`"), "{said}");
        assert!(line.contains("CHIMERE_KEY or --key shows another key") && said.contains("ok   start"), "{said}");
        for what in ["model", "learning", "tables"] {
            assert!(!said.contains(&format!("ok   {what}")), "{what}: {said}");
        }
    }
    let (code, said, _) = check(&mut chimere(), &["--listen", listen]);
    let line = served(&said).unwrap();
    assert!(code == 0 && line.starts_with("ok   served") && !said.contains("ok   model"), "{said}");
    assert!(line.contains("has keys and was shown none: give one of scope `admin` by CHIMERE_KEY or --key"), "{line}");
    assert!(line.ends_with("so what it serves, and the memory that it holds, are not looked at"), "{line}");
    assert!(said.contains(", beside the running daemon\n"), "{said}");
}

#[tokio::test]
async fn a_table_of_another_tokenizer_is_told_everywhere_with_what_helps() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    foreign_table(state.path(), "herbs", None);
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
    assert!(code == 0 && said.contains("herbs holds another tokenizer's tokens") && said.contains(helps), "{said}");
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
    // One that lies there and is refused, as after a copy of the folder, is not told as absent.
    let folder = state.path().join(DIR);
    std::fs::write(folder.join("mine.engr"), std::fs::read(folder.join("herbs.engr")).unwrap()).unwrap();
    let file = garden(state.path(), "engram: {tables: [mine], lambda: 0.1}\n");
    let refused = format!("the table `mine` is refused, {}: ", folder.join("mine.engr").display());
    let (code, said, _) = of(&["check"]);
    assert!(code == 78 && said.contains(&refused) && !said.contains("engram build --name mine"), "{said}");
    assert!(of(&["pipeline", "check", &file]).2.contains(&refused));
    let wanted = json!({ "engram": { "tables": ["mine"] } });
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "chimere": wanted });
    let began = Instant::now();
    loop {
        let (status, answer) = daemon.post("/v1/chat/completions", &body).await;
        let why = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 400, "{answer}");
        if why.contains("the engram table `mine` is refused: ") {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "the folder is read again: {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let file = garden(state.path(), "engram: {tables: [kine, learned], lambda: 0.1}\n");
    assert_eq!(of(&["pipeline", "check", &file]).2, "");
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
    // One's own file is no optimised one, and the message says what takes it back.
    let (code, _, said) = ran(toward(&daemon, "").args(["pipeline", "reset", "garden"]));
    assert!(code == 65 && said.contains("garden.yaml is your own: remove it by hand"), "{said}");
    // A list of turns names their ends as the API does.
    let tool = json!({ "type": "function", "function": { "name": "water", "parameters": { "type": "object", "properties": {} } } });
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "tools": [tool], "tool_choice": "required" });
    let (status, reply) = daemon.post("/v1/chat/completions", &body).await;
    assert_eq!((status, &reply["choices"][0]["finish_reason"]), (200, &json!("tool_calls")), "{reply}");
    let listed = told(&daemon, &["memory", "list"], "");
    assert!(listed.lines().last().unwrap().contains(" tool_calls "), "{listed}");
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
    assert!(
        said.contains("with the scope `admin` those of everybody, else those of")
            && said.contains("nothing was forgotten"),
        "{said}"
    );
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

/// A key that is no admin's forgets its own alone, and that is what it is asked.
#[tokio::test]
async fn a_key_forgets_its_own_and_is_asked_so() {
    let mut daemon = Daemon::start(&[]).await;
    let state = Arc::clone(&daemon.state);
    daemon.chat("What is 17 + 25?").await;
    let anna = key(state.path(), "anna", "chat");
    told(&daemon, &["chat", "What is 17 + 25?"], &anna);
    let typed = state.path().join("chat_history");
    std::fs::write(&typed, "#V2\nWhat is 17 + 25?\n").unwrap();
    let forget = |args: &[&str]| {
        ran(toward(&daemon, &anna).args(["memory", "forget", "--all", "--state-dir"]).arg(state.path()).args(args))
    };
    let (code, _, said) = forget(&[]);
    assert!(code == 64 && said.contains("else those of this key alone") && !said.contains("everybody in"), "{said}");
    let (code, said, note) = forget(&["--yes"]);
    assert!(
        code == 0 && said.starts_with("1 turn forgotten") && note.contains("still holds what was typed"),
        "{said}{note}"
    );
    assert!(typed.exists());
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();

    // Without a daemon it is everybody's; a file of lessons that cannot be changed keeps none of the rest.
    std::fs::write(state.path().join("lessons.txt"), "chimere lessons 9 0\n").unwrap();
    let offline =
        |args: &[&str]| ran(chimere().args(["memory", "forget", "--all", "--state-dir"]).arg(state.path()).args(args));
    let (code, _, said) = offline(&[]);
    assert!(code == 64 && said.contains("of everybody in"), "{said}");
    let (code, _, said) = offline(&["--yes"]);
    assert!(code != 0 && said.contains("1 turn forgotten, but no lesson"), "{said}");
    assert!(!typed.exists(), "what was typed goes all the same");
}

/// The engine holds the words too, and may be reading somebody's long prompt. That is said, and who asks for nothing does
/// not wait for it.
#[tokio::test]
async fn a_forgetting_says_what_it_waits_for() {
    let daemon = Daemon::start(&[]).await;
    let reply = daemon.chat("What is 17 + 25?").await;
    let id = reply["id"].as_str().unwrap().to_owned();
    let engine = daemon.engines()[0].to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &engine]).status().unwrap().success());
    let forget = |id: &str| {
        let mut command = toward(&daemon, "");
        command.args(["memory", "forget", "--turn", id, "--state-dir"]).arg(daemon.state.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    signal("-STOP");
    let began = Instant::now();
    let none = forget("turn-nope").wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.code() == Some(65) && said.contains("there is no turn `turn-nope`"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(10), "it waited for the engine");
    let waiting = forget(&id);
    tokio::time::sleep(Duration::from_secs(4)).await;
    signal("-CONT");
    let done = waiting.wait_with_output().unwrap();
    let (said, note) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && said.starts_with("1 turn forgotten"), "{said}{note}");
    assert!(note.contains("The daemon's engine may be reading"), "{note}");
}
