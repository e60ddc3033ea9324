//! `make soak`: a long mixed load on one installation, with kills. Every request is answered or refused with an
//! envelope, and no acknowledged turn is lost. The daemon dies only when it is killed, and neither its memory nor
//! its descriptors grow.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, kill, sse};

const SECONDS_DEFAULT: u64 = 300;
const CLIENTS: usize = 8;
/// Between two kills of the engine.
const ENGINE_LIFE: Duration = Duration::from_secs(15);
/// Lives of the daemon: each as long as can be, so that a leak has time to show.
const DAEMONS: u32 = 4;
/// A request that took longer hangs.
const PATIENCE: Duration = Duration::from_secs(90);
/// After a start, until memory is compared: caches fill.
const WARM: Duration = Duration::from_secs(15);
/// From the first to the last third of a life: the turn log's cache fills (32 MB), a leak would go on.
const GROWTH_BYTES_MAX: f64 = 40e6;
/// Descriptors of a daemon beside the clients' connections.
const DESCRIPTORS_MAX: usize = 150;

/// What the clients saw.
#[derive(Default)]
struct Seen {
    /// Answers by kind and status; `cut`: broken off by a kill.
    counts: BTreeMap<String, usize>,
    acknowledged: HashSet<String>,
    /// Answers that break a promise.
    wrong: Vec<String>,
    first_ms: Vec<u64>,
}

struct Load {
    url: Mutex<String>,
    seen: Mutex<Seen>,
    /// A kill is under way, or was a moment ago: connections may break.
    killing: AtomicBool,
    over: AtomicBool,
}

/// Numbers in a fixed sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak"]
async fn a_long_mixed_load_with_kills() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(SECONDS_DEFAULT, |s| s.parse().unwrap());
    let life_max = Duration::from_secs(seconds) / DAEMONS;
    let state = Arc::new(tempfile::tempdir().unwrap());
    let (end, mut random) = (Instant::now() + Duration::from_secs(seconds), Random(0x2545_F491_4F6C_DD1D));
    let load = Arc::new(Load {
        url: Mutex::default(),
        seen: Mutex::default(),
        killing: AtomicBool::new(true),
        over: AtomicBool::new(false),
    });
    let clients: Vec<_> = (0..CLIENTS).map(|n| tokio::spawn(client(load.clone(), n as u64))).collect();
    let (mut engines, mut daemons, mut lives) = (0, 0, Vec::new());
    while Instant::now() < end {
        let mut daemon = Daemon::launch(Arc::clone(&state), &[]);
        daemon.ready().await;
        *load.url.lock().unwrap() = daemon.url.clone();
        load.killing.store(false, Ordering::SeqCst);
        let (life, mut watched, mut killed) = (Instant::now(), Vec::new(), Instant::now());
        while life.elapsed() < life_max && Instant::now() < end {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(daemon.child.try_wait().unwrap().is_none(), "it ended by itself:\n{}", last(&daemon));
            watched.push((life.elapsed(), resident(daemon.pid()), descriptors(daemon.pid())));
            if killed.elapsed() > ENGINE_LIFE {
                daemon.engines().into_iter().for_each(kill);
                (engines, killed) = (engines + 1, Instant::now());
            }
        }
        lives.push(watched);
        load.killing.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(random.below(300))).await;
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        daemons += 1;
    }
    load.over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let daemon = Daemon::launch(state, &[]);
    daemon.ready().await;
    let kept: HashSet<String> =
        daemon.export().await.iter().map(|turn| turn["id"].as_str().unwrap().to_owned()).collect();
    let mut seen = load.seen.lock().unwrap();
    let lost = seen.acknowledged.difference(&kept).count();
    println!("{seconds} s, {CLIENTS} clients; killed: engine {engines}, daemon {daemons}; answers: {:?}", seen.counts);
    println!("{} turns acknowledged, {} kept, {lost} lost", seen.acknowledged.len(), kept.len());
    seen.first_ms.sort_unstable();
    let part = |p: usize| seen.first_ms.get(seen.first_ms.len() * p / 100).copied().unwrap_or(0);
    println!("first byte: median {} ms, p99 {} ms of {}", part(50), part(99), seen.first_ms.len());
    for (n, life) in lives.iter().enumerate() {
        let (grown, fds) = (growth(life), life.iter().map(|w| w.2).max().unwrap_or(0));
        println!(
            "life {n}: {} s, memory {:+.1} MB from its first to its last third, at most {fds} descriptors",
            life.len(),
            grown / 1e6
        );
        assert!(grown < GROWTH_BYTES_MAX, "the daemon grows");
        assert!(fds < DESCRIPTORS_MAX, "descriptors leak");
    }
    assert!(seen.wrong.is_empty(), "{} answers break a promise, the first:\n{}", seen.wrong.len(), seen.wrong[0]);
    assert_eq!(lost, 0, "acknowledged turns are lost");
    assert!(seen.counts.get("chat 200").is_some_and(|n| *n as u64 > seconds / 10), "hardly anything was answered");
}

fn last(daemon: &Daemon) -> String {
    let log = daemon.log.lock().unwrap();
    log[log.len().saturating_sub(40)..].join("\n")
}

pub fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Mean memory of the last third less that of the first, after the caches are full.
fn growth(life: &[(Duration, f64, usize)]) -> f64 {
    let warm: Vec<f64> = life.iter().filter(|w| w.0 > WARM).map(|w| w.1).collect();
    let third = warm.len() / 3;
    if third == 0 {
        return 0.0;
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    mean(&warm[warm.len() - third..]) - mean(&warm[..third])
}

/// One user who does something of everything until the end.
async fn client(load: Arc<Load>, n: u64) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (n + 1).wrapping_mul(0x1234_5678_9ABC_DEF1));
    let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
    let mut last_turn = None;
    while !load.over.load(Ordering::SeqCst) {
        let url = load.url.lock().unwrap().clone();
        if url.is_empty() || load.killing.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        let question = format!("What is {} + {}?", random.below(50), random.below(50));
        let mut body = json!({ "messages": [{ "role": "user", "content": question }], "max_tokens": 40 });
        let deed = random.below(20);
        let (kind, request) = match deed {
            0..=9 => {
                body["stream"] = json!(deed < 7);
                ("chat", http.post(format!("{url}/v1/chat/completions")).json(&body))
            }
            10 => {
                let body = json!({ "prompt": "The river", "max_tokens": 30 });
                ("completion", http.post(format!("{url}/v1/completions")).json(&body))
            }
            11 => {
                body["max_tokens"] = json!("many");
                ("wrong", http.post(format!("{url}/v1/chat/completions")).json(&body))
            }
            12 => ("broken", http.post(format!("{url}/v1/chat/completions")).body("{\"messages\": [")),
            13 => ("tokenize", http.post(format!("{url}/tokenize")).json(&json!({ "content": "a".repeat(5_000) }))),
            14 => ("status", http.get(format!("{url}/v1/status"))),
            15 => ("metrics", http.get(format!("{url}/metrics"))),
            16 => ("list", http.get(format!("{url}/v1/memory/turns?limit=20"))),
            17 => {
                let vote = json!({ "turn": last_turn.clone().unwrap_or_default(), "vote": "up" });
                ("feedback", http.post(format!("{url}/v1/feedback")).json(&vote))
            }
            18 => ("nowhere", http.get(format!("{url}/nowhere"))),
            _ => {
                // Asks for much and leaves at once.
                body["stream"] = json!(true);
                body["max_tokens"] = json!(2_000);
                let sent = http.post(format!("{url}/v1/chat/completions")).json(&body).send();
                let left = tokio::time::timeout(Duration::from_millis(random.below(200)), async {
                    sent.await.ok()?.chunk().await.ok()
                });
                let _ = left.await;
                continue;
            }
        };
        let began = Instant::now();
        let answer = request.send().await;
        let first_ms = began.elapsed().as_millis() as u64;
        let told = match answer {
            Ok(answer) => {
                let status = answer.status().as_u16();
                answer.text().await.map(|text| (status, text)).map_err(|error| format!("{error:?}"))
            }
            Err(error) => Err(format!("{error:?}")),
        };
        let mut seen = load.seen.lock().unwrap();
        match told {
            Ok((status, text)) => {
                *seen.counts.entry(format!("{kind} {status}")).or_insert(0) += 1;
                seen.first_ms.push(first_ms);
                match judge(kind, status, &text) {
                    Ok(turn) => {
                        last_turn = turn.clone().or(last_turn);
                        seen.acknowledged.extend(turn);
                    }
                    Err(why) => seen.wrong.push(format!("{kind} {status}: {why}: {text}")),
                }
            }
            // A killed daemon breaks its connections; nothing else does.
            Err(_) if load.killing.load(Ordering::SeqCst) || *load.url.lock().unwrap() != url => {
                *seen.counts.entry("cut".to_owned()).or_insert(0) += 1;
            }
            Err(error) => seen.wrong.push(format!("{kind}: no answer after {:?}: {error}", began.elapsed())),
        }
    }
}

/// The turn that was acknowledged, or which promise is broken.
fn judge(kind: &str, status: u16, text: &str) -> Result<Option<String>, String> {
    let allowed: &[u16] = match kind {
        "chat" | "completion" => &[200, 429, 500, 503],
        "wrong" => &[400],
        "broken" => &[400, 415],
        "tokenize" => &[200, 429, 500, 503],
        "feedback" => &[200, 400, 404, 503],
        "nowhere" => &[404],
        _ => &[200, 503],
    };
    if !allowed.contains(&status) {
        return Err("an unexpected status".to_owned());
    }
    if status != 200 {
        let error: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let said = error["error"]["message"].as_str().is_some_and(|m| !m.is_empty());
        return if said { Ok(None) } else { Err("no envelope".to_owned()) };
    }
    if kind != "chat" {
        return Ok(None);
    }
    if !text.starts_with("data:") && !text.starts_with(':') {
        let reply: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        return Ok(reply["x_chimere"]["turn"].as_str().map(str::to_owned));
    }
    let events = sse(text);
    let ends = events.iter().filter(|e| e["choices"][0]["finish_reason"].is_string());
    let (ends, errors) = (ends.collect::<Vec<_>>(), events.iter().filter(|e| e["error"].is_object()).count());
    match (&ends[..], errors) {
        ([end], 0) => Ok(end["x_chimere"]["turn"].as_str().map(str::to_owned)),
        ([], 1) => Ok(None),
        _ => Err(format!("{} ends and {errors} errors in one stream", ends.len())),
    }
}
