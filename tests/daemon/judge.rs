//! A judge of another kind: a small random model of a foreign architecture, through libllama, asked in the words of the
//! configuration. What its verdicts say means nothing; that they are what its logits say is what counts.

use std::path::Path;
use std::sync::Arc;

use chimere::engine::llama::{self, LlamaOptions};
use chimere::engine::vocab::Vocab;
use chimere::eval::logits::rows;
use chimere::scoring::Steps;
use serde_json::Value;

use crate::harness::{Daemon, chimere};
use crate::library;
use crate::model::{text, until};
use crate::scorer::{scorer, turns};

const QUESTION: &str = "What is 17 + 25?";
const BEFORE: &str = " so ";

type Variables<'a> = Vec<(&'a str, &'a str)>;

/// The judge's settings, with the labels `+` and `-` of its vocabulary.
fn settings<'a>(model: &'a Path, form: &'a str, think_tokens: &'a str) -> Variables<'a> {
    vec![
        ("CHIMERE_SCORER_ENABLED", "true"),
        ("CHIMERE_SCORER_MODEL", model.to_str().unwrap()),
        ("CHIMERE_JUDGE_FORM", form),
        ("CHIMERE_JUDGE_PROMPT", "Q: {question}\n{steps}\n"),
        ("CHIMERE_JUDGE_GOOD", "+"),
        ("CHIMERE_JUDGE_BAD", "-"),
        ("CHIMERE_JUDGE_BEFORE_LABEL", BEFORE),
        ("CHIMERE_JUDGE_THINK_TOKENS", think_tokens),
    ]
}

async fn asked(variables: &[(&str, &str)]) -> Daemon {
    let daemon = Daemon::launch_with(Arc::new(tempfile::tempdir().unwrap()), &[], variables);
    daemon.ready().await;
    daemon.chat(QUESTION).await;
    daemon
}

/// The one turn with its verdict, and the steps of its answer.
async fn judged(daemon: &Daemon) -> (Value, Steps) {
    until("a verdict", async || scorer(daemon).await["scored"] == 1).await;
    let turn = turns(daemon).await.remove(0);
    let said = &turn["generations"][0];
    let text = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
    let steps = Steps::split(&text("thinking"), &text("content"), &[]);
    (turn, steps)
}

/// P of the label `+` against `-` behind a text, from the model's row.
fn softmax(model: &Path, texts: &[String]) -> Vec<f32> {
    let _turn = library::alone();
    let options = LlamaOptions { threads: 1, context_tokens: 4_096, sequences_max: 1, exact: false };
    let (mut backend, vocab) = llama::load(model, &options, &mut |_| {}).unwrap();
    let encode = |text: &str| {
        let mut ids = Vec::new();
        vocab.encode(text, false, &mut ids).unwrap();
        ids
    };
    let (good, bad) = (encode("+")[0] as usize, encode("-")[0] as usize);
    let mut p = |text: &String| {
        let all = rows(&mut backend, &encode(text), 0, false, &[]).unwrap();
        let last = &all[all.len() - library::VOCAB..];
        1.0 / (1.0 + (last[bad] - last[good]).exp())
    };
    texts.iter().map(&mut p).collect()
}

#[tokio::test]
async fn a_model_of_another_kind_judges_by_what_its_logits_say() {
    let files = tempfile::tempdir().unwrap();
    let model = library::make(files.path(), "qwen2");
    for form in ["chat", "text"] {
        let daemon = asked(&settings(&model, form, "0")).await;
        let (turn, steps) = judged(&daemon).await;
        let choices = turn["judgement"]["choices"].as_array().unwrap();
        assert_eq!((choices.len(), &turn["judgement"]["judge"]), (1, &Value::from("qwen2.gguf")), "{turn}");
        let lines: Vec<String> = (1..).zip(steps.iter()).map(|(n, step)| format!("Step {n}: {step}")).collect();
        let prompt = |at: usize| format!("Q: {QUESTION}\n{}\n{BEFORE}", lines[..=at].join("\n"));
        let wanted = softmax(&model, &(0..lines.len()).map(prompt).collect::<Vec<_>>());
        let found: Vec<f32> =
            choices[0]["steps"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap() as f32).collect();
        println!("{form}: {found:?}, by the logits {wanted:?}");
        assert_eq!(found.len(), wanted.len());
        assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 2e-3), "{form}: {found:?} {wanted:?}");
        assert!(wanted.iter().any(|p| (p - 0.5).abs() > 0.05), "a judge that says nothing shows nothing: {wanted:?}");
        let weakest = found.iter().copied().fold(1.0, f32::min);
        assert!((choices[0]["p"].as_f64().unwrap() as f32 - weakest).abs() < 1e-5, "{turn}");
        assert_eq!(
            (scorer(&daemon).await["scored"].as_u64(), turns(&daemon).await.len()),
            (Some(1), 1),
            "no second one"
        );
    }
}

#[tokio::test]
async fn a_judge_that_writes_first_is_asked_for_its_label_at_the_end() {
    let files = tempfile::tempdir().unwrap();
    let model = library::make(files.path(), "mamba2");
    let mut variables = settings(&model, "text", "12");
    variables.push(("CHIMERE_JUDGE_LABEL_EACH", "true"));
    let daemon = asked(&variables).await;
    let (turn, steps) = judged(&daemon).await;
    let found = turn["judgement"]["choices"][0]["steps"].as_array().unwrap();
    assert_eq!(found.len(), steps.len(), "{turn}");
    assert!(found.iter().all(|p| (0.0..=1.0).contains(&p.as_f64().unwrap())), "{turn}");
}

#[tokio::test]
async fn a_label_of_several_tokens_is_refused_with_what_to_set() {
    let files = tempfile::tempdir().unwrap();
    let model = library::make(files.path(), "qwen2");
    let check = |variables: &[(&str, &str)]| {
        let told = chimere().arg("check").envs(variables.iter().copied()).output().unwrap();
        text(&told.stdout).lines().find(|line| line.contains(" judge ")).unwrap().to_owned()
    };
    let good = check(&settings(&model, "chat", "0"));
    assert!(good.starts_with("ok") && good.contains("qwen2, by libllama") && good.contains("`+` and `-`"), "{good}");
    let mut variables = settings(&model, "chat", "0");
    variables.push(("CHIMERE_JUDGE_GOOD", "fine"));
    let why = "judge.good = `fine` is 4 tokens of the judge's vocabulary (`f`, `i`, `n`, `e`), but a label must be one";
    let bad = check(&variables);
    assert!(bad.starts_with("BAD") && bad.contains(why), "{bad}");
    // The daemon serves all the same, and says it too.
    let daemon = asked(&variables).await;
    until("it is said", async || scorer(&daemon).await["message"].is_string()).await;
    let status = scorer(&daemon).await;
    assert!(status["message"].as_str().unwrap().contains(why) && status["scored"] == 0, "{status}");
    assert!(turns(&daemon).await[0]["verdict"].is_null());
    daemon.chat("What is 1 + 1?").await;
    // mamba2 has no chat template.
    let bare = library::make(files.path(), "mamba2");
    let bad = check(&settings(&bare, "chat", "0"));
    assert!(bad.starts_with("BAD") && bad.contains("no chat template: set judge.form to `text`"), "{bad}");
}

#[test]
fn such_a_judge_is_measured_by_eval_scorer() {
    let files = tempfile::tempdir().unwrap();
    let model = library::make(files.path(), "qwen2");
    let (set, out) = (files.path().join("set.jsonl"), files.path().join("judged.jsonl"));
    let item = r#"{"id": "ID", "domain": "chat", "family": "f", "max_tokens": 24,
        "messages": [{"role": "user", "content": "What is 17 + 25?"}], "check": {"kind": "contains", "any": ["42"]}}"#;
    let item = item.replace('\n', " ");
    std::fs::write(&set, format!("{}\n{}\n", item.replace("ID", "a"), item.replace("ID", "b"))).unwrap();
    let mut command = chimere();
    command.args(["eval", "scorer", "--json", "--thinking", "16", "--parallel", "4", "--threads", "1", "--model"]);
    command.arg(crate::harness::model()).arg("--set").arg(&set).arg("--out").arg(&out);
    let told = command.envs(settings(&model, "chat", "8")).output().unwrap();
    assert!(told.status.success(), "{}", text(&told.stderr));
    let report: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&report["agreement"]["n"], &report["unjudged"]), (&2.into(), &0.into()), "{report}");
    let lines = std::fs::read_to_string(&out).unwrap();
    let judged: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(judged.len(), 2);
    assert!(judged.iter().all(|j| j["steps"].as_array().is_some_and(|s| !s.is_empty())), "{lines}");
}
