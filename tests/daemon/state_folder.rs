//! What lies in the state folder and is open, damaged or gone. Who asks is told what is lost and what to do, and nothing that
//! is there is listed as none.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere};
use crate::people::{key, told, toward};
use crate::tables::ran;

fn rights(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn open(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// Ends a daemon at once; its state folder stays.
fn end(mut daemon: Daemon) {
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
}

/// The line of a finding of `check` or `doctor` that is bad.
fn bad(command: &mut Command, state: &Path, what: &str) -> String {
    let (code, said, warned) = ran(command.arg("--state-dir").arg(state));
    assert_ne!(code, 0, "{said}{warned}");
    let begins = format!("BAD  {what:<10} ");
    let lines = said.lines().filter(|line| line.starts_with(&begins));
    let found: Vec<&str> = lines.collect();
    assert!(!found.is_empty(), "no bad {what} in\n{said}{warned}");
    found.join("\n")
}

/// `chimere check` where no daemon runs.
fn check() -> Command {
    let mut command = chimere();
    command.args(["check", "--listen", "127.0.0.1:9"]);
    command
}

async fn logged(daemon: &Daemon, wanted: &str) {
    let began = Instant::now();
    while !daemon.log.lock().unwrap().iter().any(|line| line.contains(wanted)) {
        assert!(began.elapsed() < PATIENCE, "no {wanted:?} in {:#?}", daemon.log.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_state_folder_that_is_open_to_others_is_closed_or_that_is_said() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    key(state.path(), "ann", "admin");
    open(state.path());
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    logged(&daemon, "was open to other accounts of this machine (755)").await;
    assert_eq!(rights(state.path()), 0o700);
    daemon.ready().await;
    // What a daemon makes by itself or by others' code is closed too, and nothing that it makes is strange to it.
    for entry in fs::read_dir(state.path()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(rights(&path) & 0o077, 0, "{}", path.display());
    }
    end(daemon);
    open(state.path());
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    logged(&daemon, "was open to other accounts").await;
    end(daemon);

    fs::write(state.path().join("holiday.jpg"), "x").unwrap();
    open(state.path());
    open(&state.path().join("turns"));
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    logged(&daemon, "`holiday.jpg` in it is no file of a daemon").await;
    logged(&daemon, "`chmod 700 ").await;
    assert_eq!((rights(state.path()), rights(&state.path().join("turns"))), (0o755, 0o700));
    let line = bad(toward(&daemon, "").arg("doctor"), state.path(), "state");
    assert!(line.contains("open to other users") && line.contains("chmod 700"), "{line}");
}

/// Some lessons and documents, and the files that hold them.
async fn taught(daemon: &Daemon) -> (PathBuf, PathBuf) {
    for (question, answer) in [("Where is the key?", "Under the pot."), ("Who feeds the cat?", "Noor.")] {
        told(daemon, &["lessons", "add", "--question", question, "--answer", answer], "");
    }
    let papers = tempfile::tempdir().unwrap();
    for (name, text) in [("boiler.md", "# Boiler\n\nIts code is 4711.\n"), ("tank.md", "# Tank\n\nIt is green.\n")] {
        fs::write(papers.path().join(name), text).unwrap();
    }
    told(daemon, &["documents", "add", papers.path().to_str().unwrap()], "");
    let state = daemon.state.path();
    (state.join("lessons.txt"), state.join("documents"))
}

#[tokio::test]
async fn damaged_lessons_and_documents_are_told_and_never_listed_as_none() {
    let daemon = Daemon::start(&[]).await;
    let (lessons, documents) = taught(&daemon).await;
    let state = Arc::clone(&daemon.state);
    end(daemon);
    let (_, said, _) = ran(check().arg("--state-dir").arg(state.path()));
    assert!(said.contains("ok   lessons    2 lessons can be read"), "{said}");
    assert!(said.contains("ok   documents  2 documents can be read") && said.contains("ok   room "), "{said}");

    // Nothing of them can be used.
    let (sound, collections) = (fs::read(&lessons).unwrap(), documents.join("collections.json"));
    let known = fs::read(&collections).unwrap();
    fs::write(&lessons, "chimere lessons 9 0\n").unwrap();
    fs::write(&collections, "{").unwrap();
    let line = bad(&mut check(), state.path(), "lessons");
    assert!(line.contains("no lesson is in use: ") && line.contains("lessons.txt has format 9"), "{line}");
    let line = bad(&mut check(), state.path(), "documents");
    assert!(line.contains("no document is in use: ") && line.contains("put a copy of it back"), "{line}");
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    daemon.ready().await;
    for (args, why) in [
        (&["lessons", "list"][..], "lessons.txt has format 9"),
        (&["documents", "list"], "collections.json is damaged"),
        (&["documents", "status"], "collections.json is damaged"),
        (&["documents", "search", "the code of the boiler"], "collections.json is damaged"),
    ] {
        let (code, said, warned) = ran(toward(&daemon, "").args(args));
        assert!(code != 0 && said.is_empty() && warned.contains(why), "{args:?}: {said}{warned}");
        assert!(!warned.contains("There are no"), "{warned}");
    }
    for path in ["/v1/lessons", "/v1/documents", "/v1/collections"] {
        let (status, answer) = daemon.get(path).await;
        assert_eq!((status, &answer["error"]["code"]), (500, &json!("internal_error")), "{path}: {answer}");
    }
    let lines = bad(toward(&daemon, "").arg("doctor"), state.path(), "documents");
    assert!(lines.contains(&format!("the daemon at {}: ", daemon.url)), "{lines}");
    // Moved away, lessons are there again at once.
    fs::write(&lessons, &sound).unwrap();
    assert_eq!(told(&daemon, &["lessons", "list"], "").lines().count(), 2);
    end(daemon);

    // A part of them is damaged.
    fs::write(&collections, known).unwrap();
    let mut damaged = sound;
    *damaged.last_mut().unwrap() = b'x';
    fs::write(&lessons, damaged).unwrap();
    let files = fs::read_dir(&documents).unwrap().map(|entry| entry.unwrap().path());
    let file = files.filter(|path| path.extension().is_some_and(|end| end == "document")).min().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let line = bad(&mut check(), state.path(), "lessons");
    assert!(line.contains("lessons.txt is damaged: 1 of 2 lessons are lost"), "{line}");
    let line = bad(&mut check(), state.path(), "documents");
    let id = file.file_stem().unwrap().to_str().unwrap().to_owned();
    assert!(line.contains("1 document is damaged and not in use: ") && line.contains(&id), "{line}");
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    daemon.ready().await;
    for (args, why) in [
        (["lessons", "list"], "1 of 2 lessons are lost"),
        (["documents", "list"], "1 document is damaged and not in use: "),
        (["documents", "status"], "1 document is damaged and not in use: "),
    ] {
        let (code, said, warned) = ran(toward(&daemon, "").args(args));
        assert!(code == 0 && said.lines().count() == 1 && warned.contains(why), "{args:?}: {said}{warned}");
    }
    let (_, list) = daemon.get("/v1/documents").await;
    assert!(list["message"].as_str().unwrap().contains("chimere documents remove ID"), "{list}");
    // What was set aside is told until somebody has looked at it.
    let line = bad(toward(&daemon, "").arg("check"), state.path(), "lessons");
    assert!(line.contains("lessons.damaged"), "{line}");
    told(&daemon, &["documents", "remove", &id], "");
    let (_, list) = daemon.get("/v1/documents").await;
    assert_eq!((list["data"].as_array().unwrap().len(), list.get("message")), (1, None), "{list}");
}

#[tokio::test]
async fn keys_stay_in_use_when_their_file_goes() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let ann = key(state.path(), "ann", "admin");
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    daemon.ready().await;
    let file = state.path().join("keys.toml");
    let kept = fs::read(&file).unwrap();
    let status = async |key: &str| {
        let request = reqwest::Client::new().get(format!("{}/v1/models", daemon.url)).bearer_auth(key);
        request.send().await.unwrap().status().as_u16()
    };
    for damage in [None, Some("format = 1\n"), Some("format = [")] {
        match damage {
            None => fs::remove_file(&file).unwrap(),
            Some(text) => fs::write(&file, text).unwrap(),
        }
        assert_eq!(daemon.get("/v1/models").await.0, 401, "{damage:?}");
        assert_eq!((status("").await, status(&ann).await), (401, 200), "{damage:?}");
        let line = bad(toward(&daemon, &ann).arg("doctor"), state.path(), "keys");
        assert!(line.contains(&format!("the daemon at {}: ", daemon.url)), "{line}");
        assert!(line.contains("read before stay in use"), "{line}");
        let (_, told) = with_status(&daemon, &ann).await;
        assert_eq!(told["keys"]["keys"], 1, "{told}");
    }
    logged(&daemon, "keys.toml has no keys any more: those read before stay in use until a restart").await;
    // Whoever looks without a key is not told that there are none.
    fs::remove_file(&file).unwrap();
    let listen = daemon.url.trim_start_matches("http://");
    let line = bad(chimere().args(["doctor", "--listen", listen]), state.path(), "keys");
    assert!(line.contains("keys.toml has none, and the running daemon asks for one"), "{line}");
    fs::write(&file, kept).unwrap();
    assert_eq!((status("").await, status(&ann).await), (401, 200));
    let (_, told) = with_status(&daemon, &ann).await;
    assert_eq!(told["keys"], json!({ "keys": 1, "message": null }), "{told}");
    end(daemon);

    fs::write(&file, "format = [").unwrap();
    let (code, _, said) = ran(chimere().args(["keys", "list", "--state-dir"]).arg(state.path()));
    assert!(code != 0 && said.contains("Put a copy of the file back") && said.contains("keys add NAME"), "{said}");
}

async fn with_status(daemon: &Daemon, key: &str) -> (u16, Value) {
    let answer = reqwest::Client::new().get(format!("{}/v1/status", daemon.url)).bearer_auth(key).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[test]
fn a_table_that_is_refused_is_a_fault() {
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("engram")).unwrap();
    fs::write(state.path().join("engram/herbs.engr"), "no table").unwrap();
    let line = bad(&mut check(), state.path(), "tables");
    assert!(
        line.contains("the table `herbs` is refused, ") && line.contains("remove the file, or make it anew"),
        "{line}"
    );
}

#[tokio::test]
async fn a_damaged_choice_or_pointer_is_told_with_its_file() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    for file in ["served.json", "model.json"] {
        fs::write(state.path().join(file), "{").unwrap();
    }
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    for file in ["served.json is damaged: ", "model.json cannot be read, so the configured model is served: "] {
        logged(&daemon, &format!("{}/{file}", state.path().display())).await;
    }
    logged(&daemon, &format!("night: {}", state.path().display())).await;
}
