//! Two short nights of a made-up week, whole: the command, its daemon, its users, its exams.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use chimere::eval::golden::read;
use serde_json::Value;

use crate::harness::{chimere, model};

/// Most pairs of one guest that a night may learn from.
const GUEST_PAIRS_MAX: u64 = 20;

/// What the week exam asks.
fn exam() -> BTreeSet<String> {
    let items = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/golden/week.jsonl.gz")).unwrap();
    items.into_iter().map(|item| item.messages.last().unwrap().content.clone()).collect()
}

fn last_message(item: &Value) -> String {
    item["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned()
}

/// The pairs of every night: (principal who vouches, question).
fn pairs(state: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for run in fs::read_dir(state.join("runs")).unwrap() {
        let Ok(text) = fs::read_to_string(run.unwrap().path().join("pairs.jsonl")) else { continue };
        for line in text.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            found.push((row["origin"]["author"].as_str().unwrap().to_owned(), last_message(&row)));
        }
    }
    found
}

#[test]
#[ignore = "minutes: every part of two nights, on cores of its own"]
fn two_nights_run_to_a_judgement_while_somebody_is_always_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (home, json) = (folder.path().join("house"), folder.path().join("week.json"));
    let output = chimere()
        .args(["simulate", "--nights", "2", "--requests", "56", "--seed", "3", "--first-day", "2026-02-03"])
        .args(["--week-items", "42", "--gate-items", "42", "--gate-margin", "0.2"])
        .args(["--flood-night", "1", "--flood", "30", "--poisoned-night", "2", "--arm", "full"])
        .arg("--model")
        .arg(model())
        .arg("--state-dir")
        .arg(&home)
        .arg("--json")
        .arg(&json)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = || fs::read_to_string(home.join("daemon.log")).unwrap_or_default();
    assert!(output.status.success(), "{said}{}\n{}", String::from_utf8_lossy(&output.stderr), log());
    println!("{said}");
    let week: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let nights = week["nights"].as_array().unwrap();
    assert_eq!(nights.len(), 2);
    for night in nights {
        let requests = &night["requests"];
        assert_eq!((&requests["failed"], &requests["turns"]), (&0.into(), &requests["sent"]), "{requests}");
        assert_eq!(requests["judged"], requests["sent"], "every reply has its verdict: {requests}");
        let train = night["jobs"].as_array().unwrap().iter().find(|job| job["job"] == "train").unwrap();
        let outcome = &train["report"]["outcome"];
        assert!(outcome["promoted"].is_object() || outcome["rejected"].is_object(), "{outcome}");
    }
    assert_eq!((&nights[0]["requests"]["flood"], &nights[1]["requests"]["flood"]), (&30.into(), &0.into()));
    assert!(nights[1]["requests"]["lies"].as_u64() > Some(0) && said.contains("Poisoned night 2"), "{said}");
    // Nobody waited in vain, and the guest's flood was held to its share.
    assert_eq!(week["probes"]["failed"], 0, "{}", week["probes"]);
    assert!(week["probes"]["sent"].as_u64() > Some(20));
    let pairs = pairs(&home.join("state"));
    assert!(!pairs.is_empty());
    let guests = pairs.iter().filter(|(author, _)| author == "guest").count() as u64;
    assert!(guests <= 2 * GUEST_PAIRS_MAX, "{guests} pairs of the guest in two nights");
    // The exam was asked before and after, and no night has seen it.
    let exam = exam();
    assert!(pairs.iter().all(|(author, asked)| author != "examiner" && author != "prober" && !exam.contains(asked)));
    for opened in ["before", "after"] {
        assert_eq!((week[opened]["right"].as_array().unwrap().len(), &week[opened]["failed"]), (42, &0.into()));
    }
    assert_eq!(week["compared"]["before"]["n"], 42);
}
