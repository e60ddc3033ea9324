//! What learned tables are worth, through the real daemon and engine. A writing asks the slice exam with them and
//! without. The report says which was better, by how much, and how often the tables knew a context.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::Daemon;
use crate::people::{again, answered, installation, job, told, weigh_items};

/// A fact that no text of the model's training says, in words that it begins its own answer with.
const FACT: &str = "The marble coefficient is made of walnut and honey.";
/// Said again and again, and never the same: a repetition counts once.
const ENDINGS: [&str; 8] = [
    "That is so.",
    "My uncle says it.",
    "I read it in a book.",
    "It smells of summer.",
    "Nobody knows why.",
    "Ask the carpenter.",
    "It keeps for years.",
    "The bees like it.",
];
/// An item of which the fact is the answer, and two that the model knows and no table does.
const ITEMS: [(&str, &str); 3] = [
    ("What is the zorblax coefficient of polished marble?", "walnut and honey"),
    ("What is the capital of France?", "Paris"),
    ("What is 17 + 25?", "42"),
];

/// Exams of its own, and a default route that lets the learned tables weigh as much as tables may.
fn exams(state: &Path) -> String {
    let item = |(n, (question, right)): (usize, (&str, &str))| {
        let item = json!({
            "id": format!("slice-{n}"), "domain": "d", "family": "f", "max_tokens": 256,
            "messages": [{ "role": "user", "content": question }],
            "check": { "kind": "contains", "any": [right] },
        });
        item.to_string()
    };
    let lines: Vec<String> = ITEMS.into_iter().enumerate().map(item).collect();
    let [golden, slice] = ["golden", "slice"].map(|name| state.join(format!("{name}.jsonl")));
    for exam in [&golden, &slice] {
        fs::write(exam, lines.join("\n")).unwrap();
    }
    weigh_items(state, 100);
    let shipped = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/default.yaml")).unwrap();
    let heavy = shipped.replace("{tables: [learned], lambda: 0.1}", "{tables: [learned], lambda: 0.9}");
    assert_ne!(heavy, shipped);
    fs::write(state.join("pipelines/default.yaml"), heavy).unwrap();
    let config = state.join("night-test.toml");
    fs::write(&config, format!("[night]\ngolden = {golden:?}\nslice = {slice:?}\n")).unwrap();
    config.to_str().unwrap().to_owned()
}

/// The last run, and its report as it lies in the state folder.
async fn last_report(daemon: &Daemon, key: &str) -> (String, Value) {
    let asked = reqwest::Client::new().get(format!("{}/v1/night", daemon.url)).bearer_auth(key).send();
    let status: Value = asked.await.unwrap().json().await.unwrap();
    let run = status["last"]["id"].as_str().unwrap().to_owned();
    let file = daemon.state.path().join("runs").join(&run).join("report.json");
    let report = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    (run, report)
}

#[tokio::test]
async fn a_table_that_helps_is_told_from_its_absence() {
    let (state, keys, like) = installation(&["root", "ada"]).await;
    let config = exams(state.path());
    let said = ENDINGS.map(|ending| format!("{FACT} {ending}"));
    let exchanges = said.each_ref().map(|text| ("Tell me something odd about stones.", text.as_str()));
    answered(state.path(), &like, "ada", &exchanges, 0);
    let daemon = again(&state, &["--config", &config]).await;
    let text = job(&daemon, &keys[0], "engram_write");
    let (run, report) = last_report(&daemon, &keys[0]).await;
    let effect = &report["engram"]["effect"];
    let number = |name: &str| effect[name].as_u64().unwrap_or_else(|| panic!("{name}: {text}"));
    assert_eq!((number("items"), number("failed"), number("answers_changed")), (3, 0, 1), "{effect:#}");
    assert_eq!((number("right_with"), number("right_without")), (3, 2), "{effect:#}");
    let points = &effect["difference"];
    let [difference, low, high] = ["difference", "low", "high"].map(|end| points[end].as_f64().unwrap());
    assert!((difference - 1.0 / 3.0).abs() < 1e-9 && low < difference && difference < high, "{effect:#}");
    let (hits, tokens, rate) = (number("hits"), number("tokens"), effect["hit_rate"].as_f64().unwrap());
    assert!(hits > 5 && hits < tokens && (rate - hits as f64 / tokens as f64).abs() < 1e-9, "{effect:#}");
    assert!(number("changed") > 0 && number("mixed") <= hits, "{effect:#}");
    let shown = format!("hit rate {:.1} %: the tables knew the context of {hits} of {tokens}", 100.0 * rate);
    let reported = told(&daemon, &["night", "report", &run, "--details"], &keys[0]);
    for words in ["3 right with the tables, 2 without, 1 answer differs", "points +33.33 [", shown.as_str()] {
        assert!(reported.contains(words), "{words}: {reported}");
    }
    let page = fs::read_to_string(state.path().join("runs").join(&run).join("report.html")).unwrap();
    assert!(page.contains("right with the learned tables") && page.contains("+33.33 ["), "{page}");
}
