//! The commands of Engram tables: whose tokens a table holds, which model it is made for, and what is refused.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use chimere::engine::tokenizer::Bpe;
use chimere::engine::vocab::{Vocab, fingerprint};
use chimere::engram::learned::own_name;
use chimere::engram::shelf::{DIR, publish, read};
use chimere::engram::{Draft, Source};
use chimere::gguf::Gguf;
use chimere::night::manifest::{KEY_FILE, Seal};
use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, model};
use crate::people::{key, told, toward};

/// The fingerprint of no tokenizer that there is.
const FOREIGN: [u8; 32] = [9; 32];
const FACT: &str = "The zorblax is made of walnut and honey.";

/// Exit code, standard output and standard error.
pub fn ran(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A table that holds another tokenizer's tokens, signed by this installation.
pub fn foreign_table(state: &Path, name: &str, owner: Option<&str>) {
    let vocab = Bpe::from_gguf(&Gguf::open(&model()).unwrap()).unwrap();
    assert_ne!(fingerprint(&vocab), FOREIGN);
    let mut draft = Draft::new(FOREIGN, vocab.len() as u32).unwrap();
    let source = Source {
        principal: owner.unwrap_or_default().into(),
        origin: "x".into(),
        time_s: owner.map_or(0, |_| 1),
        verdict: owner.map_or(0, |_| 5),
        halved: false,
    };
    let source = draft.source(source).unwrap();
    draft.add(&[1, 2, 3], 4, 5, source).unwrap();
    let bytes = draft.finish(name, "", "", owner).unwrap();
    publish(&state.join(DIR), &bytes, &Seal::open(&state.join(KEY_FILE)).unwrap()).unwrap();
}

fn engram(state: &Path, args: &[&str]) -> (i32, String, String) {
    ran(chimere().arg("engram").args(args).arg("--state-dir").arg(state))
}

/// `chimere engram learn` of records, each with who says it, and its verdict.
fn learn(state: &Path, records: &[(&str, u8)]) -> (i32, String, String) {
    let lines: Vec<String> = (0..)
        .zip(records)
        .map(|(n, (principal, verdict))| {
            json!({"text": FACT, "principal": principal, "origin": format!("x-{n}"), "verdict": verdict, "time_s": 1})
                .to_string()
        })
        .collect();
    let file = state.join("records.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let model = model();
    engram(state, &["learn", "--records", file.to_str().unwrap(), "--model", model.to_str().unwrap()])
}

fn table(state: &Path, name: &str) -> std::path::PathBuf {
    state.join(DIR).join(format!("{name}.engr"))
}

/// A table of every model's tokens, one that would be empty, and for which model without a word.
#[tokio::test]
async fn a_table_is_built_for_the_served_model_and_never_empty() {
    let daemon = Daemon::start(&[]).await;
    let text = daemon.state.path().join("text.txt");
    std::fs::write(&text, FACT).unwrap();
    let build = |more: &[&str]| {
        let mut command = toward(&daemon, "");
        command.args(["engram", "build", "--name", "mine", "--text"]).arg(&text).args(more);
        ran(command.arg("--state-dir").arg(daemon.state.path()))
    };
    let (code, _, said) = build(&[]);
    assert!(code == 65 && said.contains("of 1 document") && said.contains("occurs 3 times, in 2 documents"), "{said}");
    assert!(said.contains("--documents-min") && !daemon.state.path().join("engram/mine.engr").exists(), "{said}");
    std::fs::write(&text, format!("{FACT}\0").repeat(4)).unwrap();
    let (code, said, note) = build(&[]);
    assert!(code == 0 && said.contains("contexts") && note.contains("nano.gguf"), "{said}{note}");
    #[cfg(feature = "llama")]
    {
        let foreign = crate::library::make(daemon.state.path(), "qwen2");
        let (code, said, note) = build(&["--model", foreign.to_str().unwrap()]);
        assert!(code == 0 && said.contains("context"), "{said}{note}");
    }
}

/// A daemon with keys says to an admin's what it serves. To another it does not, and then no table is made by guess.
#[tokio::test]
async fn a_table_toward_a_daemon_with_keys_needs_an_admin_s() {
    let files = tempfile::tempdir().unwrap();
    let own = files.path().canonicalize().unwrap().join("own.gguf");
    std::fs::copy(model(), &own).unwrap();
    let daemon = Daemon::start(&[]).await;
    told(&daemon, &["model", "swap", own.to_str().unwrap()], "");
    let (ann, boss) = (key(daemon.state.path(), "ann", "chat"), key(daemon.state.path(), "boss", "admin"));
    let text = files.path().join("text.txt");
    std::fs::write(&text, format!("{FACT}\0").repeat(4)).unwrap();
    let state = tempfile::tempdir().unwrap();
    let build = |key: &str, more: &[&str]| {
        let mut command = toward(&daemon, key);
        command.args(["engram", "build", "--name", "mine", "--text"]).arg(&text).args(more);
        ran(command.arg("--state-dir").arg(state.path()))
    };
    let (code, _, said) = build("", &[]);
    assert!(code == 69 && said.contains("which model the daemon serves is not known"), "{said}");
    assert!(said.contains("by CHIMERE_KEY or --key") && said.contains("name its file with --model"), "{said}");
    let (code, _, said) = build(&ann, &[]);
    assert!(code == 69 && said.contains("lacks the scope `admin`") && said.contains("another key"), "{said}");
    assert!(!table(state.path(), "mine").exists());
    let (code, _, note) = build(&boss, &[]);
    assert!(code == 0 && note.contains(own.to_str().unwrap()), "{note}");
    assert_eq!(build(&ann, &["--model", own.to_str().unwrap()]).0, 0, "where the file is named, nobody is asked");
}

/// What does not fit is marked, of the model that is served; the other commands take no address.
#[tokio::test]
async fn the_list_marks_what_the_served_model_cannot_use() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    foreign_table(state.path(), "herbs", None);
    let daemon = Daemon::launch(Arc::clone(&state), &[]);
    daemon.ready().await;
    let list = |command: &mut Command, more: &[&str]| {
        ran(command.args(["engram", "list", "--state-dir"]).arg(state.path()).args(more))
    };
    // A daemon that serves, and without one the model of the configuration.
    for command in [&mut toward(&daemon, ""), &mut chimere()] {
        let (code, said, note) = list(command, &[]);
        let of = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(code == 0 && of("herbs").ends_with("; another tokenizer's, not used"), "{said}");
        assert!(!of("kine").contains("not used"), "{said}");
        let told = "herbs holds another tokenizer's tokens: `chimere engram build --name herbs --text FILE --model MODEL` \
                    makes one for the served model\n";
        assert!(note.starts_with("Own tables lie in ") && note.ends_with(&format!("\n{told}")), "{note}");
    }
    let (_, said, _) = list(&mut toward(&daemon, ""), &["--json"]);
    let told: Value = serde_json::from_str(&said).unwrap();
    let fits = |name: &str| {
        told["tables"].as_array().unwrap().iter().find(|table| table["name"] == name).unwrap()["fits"].clone()
    };
    assert_eq!((fits("herbs"), fits("kine")), (json!(false), json!(true)));
    // A daemon that was named and is not there: no guess.
    let (code, said, note) = list(&mut chimere(), &["--url", "127.0.0.1:9", "--json"]);
    assert!(code == 0 && note.contains("is not known: ") && note.contains("no daemon answers at"), "{note}");
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["tables"][0]["fits"], Value::Null);
    for args in [
        &["revoke", "--principal", "bob"][..],
        &["show", "kine"],
        &["decay", "herbs"],
        &["merge", "herbs", "--name", "m"],
    ] {
        let (code, _, said) = engram(state.path(), &[args, &["--url", &daemon.url]].concat());
        assert!(code == 64 && said.contains("unexpected argument '--url'"), "{args:?}: {said}");
    }
}

#[test]
fn after_a_change_of_the_model_one_learns_anew() {
    let state = tempfile::tempdir().unwrap();
    let state = state.path();
    let (anna, bob) = (own_name("learned", "anna"), own_name("learned", "bob"));
    foreign_table(state, &anna, Some("anna"));
    foreign_table(state, &bob, Some("bob"));
    let vocab = Bpe::from_gguf(&Gguf::open(&model()).unwrap()).unwrap();
    let print = |name: &str| *read(&table(state, name)).unwrap().fingerprint();
    let (code, said, note) = learn(state, &[("anna", 5), ("carl", 5)]);
    assert!(code == 0 && note.contains("was made for another tokenizer"), "{said}{note}");
    assert_eq!((print(&anna), print(&bob)), (fingerprint(&vocab), FOREIGN), "bob said nothing new");
    assert_eq!(print("learned"), fingerprint(&vocab), "two have said it");
    // Twice: the tables of the first writing are joined.
    let (code, said, note) = learn(state, &[("anna", 5)]);
    assert!(code == 0 && said.lines().count() == 2, "{said}{note}");
    // What one alone says now serves nobody else.
    let carl = table(state, &own_name("learned", "carl"));
    let (code, said, note) = engram(state, &["revoke", "--principal", "carl", "--table", carl.to_str().unwrap()]);
    assert!(code == 0 && !carl.exists(), "{said}{note}");
    let (code, said, note) = learn(state, &[("anna", 5)]);
    assert!(code == 0 && said.contains("removed, for no two say any of it now"), "{said}{note}");
    assert!(!table(state, "learned").exists() && table(state, &anna).exists());
}

#[test]
fn a_learned_table_that_would_be_empty_is_not_written() {
    let state = tempfile::tempdir().unwrap();
    let state = state.path();
    let (code, _, said) = learn(state, &[("anna", 1)]);
    assert!(code == 65 && said.contains("it would be empty: 1 record, 1 of them left out"), "{said}");
    assert!(said.contains("a verdict from 3 to 5"), "{said}");
    let (code, said, note) = learn(state, &[("anna", 5)]);
    assert!(
        code == 0 && said.lines().count() == 1 && note.contains("no table for everybody was written"),
        "{said}{note}"
    );
    assert!(!table(state, "learned").exists() && table(state, &own_name("learned", "anna")).exists());
    // What is refused is not written over, and nothing else is written either.
    std::fs::write(table(state, &own_name("learned", "carl")), "no table").unwrap();
    let (code, said, why) = learn(state, &[("bob", 5), ("carl", 5)]);
    assert!(code == 65 && said.is_empty() && why.contains(&own_name("learned", "carl")), "{said}{why}");
    assert!(!table(state, &own_name("learned", "bob")).exists());
}

#[test]
fn a_text_that_is_too_long_is_named() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("long.txt");
    std::fs::write(&file, format!("short\0{}", "a b ".repeat(9 << 20))).unwrap();
    let model = model();
    let args = ["build", "--name", "mine", "--text", file.to_str().unwrap(), "--model", model.to_str().unwrap()];
    let (code, _, said) = engram(state.path(), &args);
    assert!(
        code == 65 && said.contains("long.txt, document 2: text of 37748736 bytes is over the limit"),
        "{code} {said}"
    );
}
