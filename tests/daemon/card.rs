//! The daemon on the CUDA backend, with the kernels compiled for the processor: chat, a learned generation, a
//! faulty, missing or small device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere_ffi::gpu::{build_emulated, driver_present};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere, model, sse};
use crate::night::{begin, folder, launch, until};

/// Small, so that little memory is cleared at each start; the emulated device takes its time.
const SMALL: [(&str, &str); 4] = [
    ("CHIMERE_ENGINE_BACKEND", "cuda"),
    ("CHIMERE_ENGINE_CONTEXT_TOKENS", "256"),
    ("CHIMERE_ENGINE_SEQUENCES", "2"),
    ("CHIMERE_REPLIES_START_TIMEOUT_MS", "200000"),
];

fn library() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    build_emulated(&root.join("kernels"), &root.join("target")).unwrap()
}

fn emulated(more: &[&str]) -> Vec<String> {
    let library = library().display().to_string();
    ["--emulated", &library].iter().chain(more).map(|argument| format!("--engine-arg={argument}")).collect()
}

fn question(max_tokens: u32, stream: bool) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "2 + 2?" }],
        "max_tokens": max_tokens, "temperature": 0, "stream": stream, "logit_bias": { "0": -100, "2": -100 },
    })
}

async fn reply(daemon: &Daemon) -> Value {
    let (status, reply) = daemon.post("/v1/chat/completions", &question(2, false)).await;
    assert_eq!(status, 200, "{reply}");
    reply["choices"][0]["message"].clone()
}

#[tokio::test]
async fn a_chat_is_served_and_a_fault_costs_its_own_requests_alone() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let fault = state.path().join("fault");
    let arguments = emulated(&["--fault", &fault.display().to_string()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let daemon = Daemon::launch_with(state.clone(), &arguments, &SMALL);
    daemon.ready().await;
    let (_, status) = daemon.get("/v1/status").await;
    assert_eq!(status["engine"]["hosted"]["model"]["backend"], "cuda", "{status}");
    let first = reply(&daemon).await;
    let on_processor = Daemon::launch_with(Arc::new(tempfile::tempdir().unwrap()), &[], &SMALL[1..]);
    on_processor.ready().await;
    assert_eq!(first, reply(&on_processor).await, "the first tokens of a greedy answer");

    let url = format!("{}/v1/chat/completions", daemon.url);
    let answer = reqwest::Client::new().post(url).json(&question(200, true)).send().await.unwrap();
    let (mut body, mut text) = (answer.bytes_stream(), String::new());
    while let Some(piece) = body.next().await {
        text += std::str::from_utf8(&piece.unwrap()).unwrap();
        if !fault.exists() && sse(&text).len() > 2 {
            fs::write(&fault, "").unwrap();
        }
    }
    let told: Vec<_> = sse(&text).iter().filter_map(|e| e["error"]["message"].as_str().map(str::to_owned)).collect();
    assert_eq!(told.len(), 1, "not one error event in:\n{text}");
    assert!(told[0].contains("device was lost") && told[0].contains("an injected fault"), "{told:?}");
    fs::remove_file(&fault).unwrap();
    // What came before the daemon saw the engine end was lost with it, and says so.
    let began = Instant::now();
    let again = loop {
        match daemon.post("/v1/chat/completions", &question(2, false)).await {
            (200, reply) => break reply["choices"][0]["message"].clone(),
            (503, _) if began.elapsed() < PATIENCE => tokio::time::sleep(Duration::from_millis(100)).await,
            (status, reply) => panic!("{status} {reply}"),
        }
    };
    assert_eq!(again, first);
    let log = daemon.log.lock().unwrap().join("\n");
    assert!(log.contains("exit status: 74"), "{log}");
}

#[tokio::test]
async fn auto_takes_the_processor_and_says_why() {
    let daemon = |variables: Vec<(&'static str, &'static str)>| async move {
        let arguments = emulated(&[]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let daemon = Daemon::launch_with(Arc::new(tempfile::tempdir().unwrap()), &arguments, &variables);
        daemon.ready().await;
        let (_, status) = daemon.get("/v1/status").await;
        assert_eq!(status["engine"]["hosted"]["model"]["backend"], "cpu", "{status}");
        let began = Instant::now();
        loop {
            let log = daemon.log.lock().unwrap().join("\n");
            if let Some(line) = log.lines().find(|line| line.contains("computing on the processor")) {
                return line.to_owned();
            }
            assert!(began.elapsed() < PATIENCE, "{log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let line = daemon(vec![("CHIMERE_ENGINE_VRAM_BYTES_MAX", "1048576")]).await;
    assert!(line.contains("GiB of device memory: weights") && line.contains("0.00 free"), "{line}");
    let small = vec![("CHIMERE_NIGHT_ENABLED", "true"), ("CHIMERE_ENGINE_VRAM_BYTES_MAX", "1048576")];
    let kept = vec![("CHIMERE_ENGINE_KV", "q8_0/q4_0"), ("CHIMERE_ENGINE_STATE", "bf16")];
    let line = daemon([small, kept].concat()).await;
    assert!(line.contains("adapters 0.") && line.contains("0.00 free"), "{line}");
    assert!(line.contains("(q8_0/q4_0)") && line.contains("(bf16)"), "{line}");
}

/// What a night let in on the processor answers on the card. `auto`: an enabled night does not keep it from the card.
#[tokio::test]
async fn a_generation_is_served_on_the_card() {
    let state = folder();
    let daemon = launch(&state, &[]);
    daemon.ready().await;
    begin(&daemon, &state.path().join("candidate.gguf")).await;
    until(&daemon, |status| status["last"]["outcome"]["promoted"].is_object()).await;
    drop(daemon);

    let config = state.path().join("night-test.toml");
    let text = fs::read_to_string(&config).unwrap().replace("[night]\n", "[night]\nenabled = true\n");
    // The emulated device takes its time.
    let engine = "[engine]\nsequences = 2\ncontext_tokens = 256\n[replies]\nstart_timeout_ms = 200000\n";
    fs::write(&config, format!("{text}{engine}")).unwrap();
    let arguments = emulated(&[]);
    let daemon = launch(&state, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    daemon.ready().await;
    until(&daemon, |status| status["served"]["ready"] == true).await;
    let (_, status) = daemon.get("/v1/status").await;
    assert_eq!(status["engine"]["hosted"]["model"]["backend"], "cuda", "{status}");
    let (code, reply) = daemon.post("/v1/chat/completions", &question(2, false)).await;
    assert_eq!((code, &reply["x_chimere"]["adapter_revision"]), (200, &json!(1)), "{reply}");
}

/// Runs until it ends.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    chimere().args(arguments).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_card_that_was_asked_for_and_cannot_serve_ends_the_start() {
    let (state, model) = (tempfile::tempdir().unwrap(), model().display().to_string());
    let folder = state.path().display().to_string();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--state-dir", &folder, "--model", &model];
    let arguments = emulated(&[]);
    let all: Vec<&str> = serve.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let small = [("CHIMERE_ENGINE_BACKEND", "cuda"), ("CHIMERE_ENGINE_VRAM_BYTES_MAX", "1048576")];
    let ended = run(&all, &small);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(65), "{said}");
    assert!(said.contains("GiB of device memory: weights") && said.contains("0.00 free"), "{said}");
    let library = library().display().to_string();
    let engine = ["engine", "--device", "cuda", "--model", &model, "--emulated", &library, "--vram-max", "1MiB"];
    assert_eq!(run(&engine, &[]).status.code(), Some(69));
    if !driver_present() {
        let ended = run(&serve, &[("CHIMERE_ENGINE_BACKEND", "cuda")]);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(65), "{said}");
        assert!(said.contains("no NVIDIA driver was found"), "{said}");
    }
}

/// Plans of the model for a card on which it fits as a whole, and for one that lacks half of its experts, whose limit is
/// the third.
fn plans(more: &[&str]) -> (Value, Value, String) {
    let model = model().display().to_string();
    let plan = |limit: &str| {
        let planned = ["bench", "--plan", "--json", "--model", &model, "--vram-max", limit];
        let ended = run(&[&planned[..], more].concat(), &[]);
        serde_json::from_slice::<Value>(&ended.stdout).unwrap()
    };
    let whole = plan("1024GiB");
    let total: u64 = ["weights", "kv", "states", "scratch"].iter().map(|key| bytes(&whole, key)).sum();
    let limit = (total - bytes(&whole, "experts") / 2).to_string();
    (whole, plan(&limit), limit)
}

fn bytes(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap()
}

#[tokio::test]
async fn a_model_beyond_the_card_is_planned_without_one_and_served_with_experts_on_the_host() {
    let model = model().display().to_string();
    let (whole, tight, limit) = plans(&["--batch", "2", "--context", "256"]);
    assert_eq!((bytes(&whole, "host"), bytes(&whole, "slots_a_layer")), (0, 0), "{whole}");
    let (less, ..) = plans(&["--batch", "2", "--context", "256", "--kv", "q8_0/q4_0", "--state", "bf16"]);
    assert_eq!((bytes(&less, "kv"), &less["kv_type"]), (bytes(&whole, "kv") * 52 / 128, &"q8_0/q4_0".into()), "{less}");
    assert!(bytes(&less, "states") < bytes(&whole, "states") * 6 / 10, "{less}");
    let (slots, all) = (bytes(&tight, "slots_a_layer"), bytes(&tight, "experts_a_layer"));
    assert!(bytes(&tight, "host") > 0 && 0 < slots && slots < all, "{tight}");
    let refused = |more: &[&str]| {
        let ended = run(&[&["bench", "--plan", "--model", &model], more].concat(), &[]);
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    };
    let small = refused(&["--vram-max", "1MiB"]);
    assert!(small.contains("GiB of device memory") && small.contains("choose fewer sequences"), "{small}");
    assert!(refused(&[]).contains("--vram-max 16GiB"));

    let arguments = emulated(&[]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let variables = [&SMALL[..], &[("CHIMERE_ENGINE_VRAM_BYTES_MAX", &limit)]].concat();
    let daemon = Daemon::launch_with(Arc::new(tempfile::tempdir().unwrap()), &arguments, &variables);
    daemon.ready().await;
    reply(&daemon).await;
    let began = Instant::now();
    let told = loop {
        let (_, status) = daemon.get("/v1/status").await;
        let told = status["engine"]["stats"]["offloaded"].clone();
        if told["misses"].as_u64().is_some_and(|misses| misses > 0) {
            break told;
        }
        assert!(began.elapsed() < PATIENCE, "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(bytes(&told, "hits") > 0 && bytes(&told, "moved_bytes") > 0, "{told}");
    let metrics = reqwest::get(format!("{}/metrics", daemon.url)).await.unwrap().text().await.unwrap();
    assert!(metrics.contains(r#"chimere_experts_used_total{place="brought"}"#), "{metrics}");
}

#[test]
fn rates_on_the_card_are_measured() {
    let (library, model) = (library().display().to_string(), model().display().to_string());
    let (_, _, limit) = plans(&["--batch", "1", "--context", "64"]);
    let card = ["bench", "--device", "cuda", "--emulated", &library, "--model", &model, "--json", "--vram-max", &limit];
    let plan = ["--context", "64", "--batch", "1", "--prompt", "2", "--depth", "1", "--tokens", "1", "--rounds", "1"];
    let ended = run(&[&card[..], &plan].concat(), &[]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let positive = |value: &Value| value.as_f64().is_some_and(|n| n > 0.0);
    assert_eq!((report["prefill"].as_array().unwrap().len(), report["decode"].as_array().unwrap().len()), (1, 1));
    assert!(positive(&report["read_bandwidth"]) && positive(&report["placement"]["weights"]), "{report}");
    let decode = &report["decode"][0];
    assert!(positive(&decode["tokens_per_s"]["median"]) && positive(&decode["bandwidth_share"]), "{report}");
    assert!(bytes(&report["placement"], "host") > 0 && bytes(&report["offloaded"], "misses") > 0, "{report}");
}
