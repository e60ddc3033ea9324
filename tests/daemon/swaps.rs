//! T10, P5: the served generation switched back and forth by `rollback` while streams run. None breaks, every reply has one
//! label and is wholly of the generation that it names, and a switch is felt in the next reply.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::harness::{Daemon, PATIENCE, chimere, sse};
use crate::night::{begin_seeded, folder, launch, until};

/// The shipped weights and two adapters.
const GENERATIONS: u64 = 3;
/// Fewer than the engine decodes together, so that who asks meanwhile finds a place.
const STREAMS: usize = 6;
const SWITCHES: usize = 20;
/// Of T10: six times as many as the engine decodes together.
const STREAMS_LONG: usize = 50;
const SWITCHES_LONG: usize = 100;
const PROMPTS: usize = 8;

/// From the command to the first text of the generation that it named, on a daemon that does nothing else: half of the
/// switches within the promise. A machine that is busy elsewhere may hold up a few, but none for much longer.
const FELT_MEDIAN_MAX: Duration = Duration::from_secs(1);
const FELT_MAX: Duration = Duration::from_secs(5);

/// A stream, read to its end.
#[derive(Clone, Debug, PartialEq)]
struct Reply {
    generation: u64,
    /// Its text with the likelihood of each token, to the last bit: no other generation says the same.
    said: String,
}

fn prompt(n: usize) -> Value {
    let content = format!("Tell me a story about the number {}.", n % PROMPTS);
    json!({
        "messages": [{ "role": "user", "content": content }],
        "stream": true, "max_tokens": 24, "temperature": 0, "logprobs": true,
    })
}

/// Asks, and returns the reply with the moment of its first text.
async fn ask(client: &reqwest::Client, url: &str, n: usize) -> (Reply, Instant) {
    let request = client.post(format!("{url}/v1/chat/completions")).json(&prompt(n));
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let (mut bytes, mut first) = (Vec::new(), None);
    while let Some(chunk) = answer.chunk().await.expect("the stream is whole") {
        bytes.extend_from_slice(&chunk);
        if first.is_none() && bytes.windows(10).any(|window| window == b"\"logprob\":") {
            first = Some(Instant::now());
        }
    }
    let text = String::from_utf8(bytes).unwrap();
    (reply(&text), first.unwrap_or_else(|| panic!("no token in {text}")))
}

/// Reads a stream that must be whole and have one label.
fn reply(text: &str) -> Reply {
    assert!(text.trim_end().ends_with("data: [DONE]"), "a stream broke: {text}");
    let events = sse(text);
    let labels: Vec<u64> = events.iter().filter_map(|event| event["x_chimere"]["adapter_revision"].as_u64()).collect();
    assert_eq!(labels.len(), 1, "not one label in {text}");
    assert_eq!(text.matches("adapter_revision").count(), 1, "{text}");
    let (mut said, mut tokens, mut ends) = (String::new(), Vec::new(), 0);
    for choice in events.iter().map(|event| &event["choices"][0]) {
        for part in ["reasoning_content", "content"] {
            said.push_str(choice["delta"][part].as_str().unwrap_or_default());
        }
        let likely = choice["logprobs"]["content"].as_array().into_iter().flatten();
        tokens.extend(likely.map(|token| token["logprob"].to_string()));
        ends += usize::from(choice["finish_reason"].is_string());
    }
    assert!(ends == 1 && tokens.len() > 3, "{text}");
    Reply { generation: labels[0], said: format!("{said}\n{}", tokens.join(" ")) }
}

/// A daemon whose nights promoted two adapters, and what each generation says to each prompt where nobody else asks.
struct House {
    daemon: Daemon,
    client: reqwest::Client,
    /// Serves now.
    serving: u64,
    alone: BTreeMap<(u64, usize), Reply>,
}

impl House {
    async fn new() -> House {
        let state = folder();
        let daemon = launch(&state, &[]);
        daemon.ready().await;
        for seed in 1..GENERATIONS {
            begin_seeded(&daemon, &state.path().join("candidate.gguf"), seed).await;
            until(&daemon, |status| status["run"].is_null() && status["served"]["champion"] == seed).await;
        }
        let mut house = House { daemon, client: reqwest::Client::new(), serving: 0, alone: BTreeMap::new() };
        for generation in 0..GENERATIONS {
            house.switch(generation).await;
            for n in 0..PROMPTS {
                let (reply, _) = ask(&house.client, &house.daemon.url, n).await;
                assert_eq!(reply.generation, generation);
                let same = house.alone.values().find(|other| other.said == reply.said);
                assert!(same.is_none(), "generations cannot be told apart by prompt {n}: {same:?}");
                house.alone.insert((generation, n), reply);
            }
            house.serving = generation;
        }
        house
    }

    /// The generation after the one that serves.
    fn next(&mut self) -> u64 {
        self.serving = (self.serving + 1) % GENERATIONS;
        self.serving
    }

    async fn switch(&self, generation: u64) {
        let body = json!({ "command": "rollback", "generation": generation });
        let (status, answer) = self.daemon.post("/v1/night", &body).await;
        assert_eq!((status, &answer["champion"]), (200, &json!(generation)), "{answer}");
    }

    /// The same by the command line.
    fn command(&self, generation: u64) {
        let run = chimere().args(["rollback", &generation.to_string()]).env("CHIMERE_URL", &self.daemon.url).output();
        let run = run.unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(said.starts_with(&format!("generation {generation} serves")), "{run:?}");
    }

    /// Whether a reply is wholly of its generation.
    fn check(&self, n: usize, reply: &Reply) {
        assert_eq!(Some(reply), self.alone.get(&(reply.generation, n % PROMPTS)), "prompt {n}");
    }

    /// Streams that run one after another until `over`, in so many lines; each returns its replies.
    fn streams(&self, lines: usize, over: &Arc<AtomicBool>, ended: &Arc<AtomicUsize>) -> Vec<JoinHandle<Vec<Reply>>> {
        let line = |n: usize| {
            let (client, url) = (self.client.clone(), self.daemon.url.clone());
            let (over, ended) = (over.clone(), ended.clone());
            tokio::spawn(async move {
                let mut replies = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    replies.push(ask(&client, &url, n).await.0);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                replies
            })
        };
        (0..lines).map(line).collect()
    }

    /// So many switches under so many lines of streams; returns how long each was answered after, and felt after.
    async fn under_load(&mut self, lines: usize, switches: usize) -> [Vec<Duration>; 2] {
        let (over, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let streams = self.streams(lines, &over, &ended);
        let (mut answered, mut felt) = (Vec::new(), Vec::new());
        for switch in 0..switches {
            // Some replies end, and the next ones of their lines are of the generation that now serves.
            let (before, waits) = (ended.load(Ordering::Relaxed), Instant::now());
            while ended.load(Ordering::Relaxed) < before + STREAMS {
                assert!(waits.elapsed() < PATIENCE, "no reply ends any more");
                assert!(!streams.iter().any(JoinHandle::is_finished), "a stream broke");
                sleep(Duration::from_millis(2)).await;
            }
            let (generation, began) = (self.next(), Instant::now());
            self.switch(generation).await;
            answered.push(began.elapsed());
            let (reply, first) = ask(&self.client, &self.daemon.url, switch).await;
            assert_eq!(reply.generation, generation, "the reply after a switch is of the generation that it named");
            self.check(switch, &reply);
            felt.push(first - began);
        }
        over.store(true, Ordering::Relaxed);
        let mut seen = BTreeMap::new();
        for (n, stream) in streams.into_iter().enumerate() {
            for reply in stream.await.unwrap() {
                self.check(n, &reply);
                *seen.entry(reply.generation).or_insert(0) += 1;
            }
        }
        println!("{switches} switches under {lines} streams, replies by generation: {seen:?}");
        assert_eq!(seen.len() as u64, GENERATIONS, "{seen:?}");
        [answered, felt]
    }

    /// So many switches by the command while nobody else asks; how long each was felt after.
    async fn in_peace(&mut self, switches: usize) -> Vec<Duration> {
        let mut felt = Vec::new();
        for switch in 0..switches {
            let (generation, began) = (self.next(), Instant::now());
            self.command(generation);
            let (reply, first) = ask(&self.client, &self.daemon.url, switch).await;
            assert_eq!(reply.generation, generation);
            self.check(switch, &reply);
            felt.push(first - began);
        }
        felt
    }
}

/// Median and largest, printed.
fn shown(what: &str, mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    let (median, largest) = (times[times.len() / 2], *times.last().unwrap());
    println!("{what}: median {median:?}, largest {largest:?}, n = {}", times.len());
    (median, largest)
}

async fn switched(lines: usize, switches: usize) {
    let mut house = House::new().await;
    let (pid, engines) = (house.daemon.pid(), house.daemon.engines());
    let [answered, felt] = house.under_load(lines, switches).await;
    let (median, _) = shown("answered under load", answered);
    assert!(median < FELT_MEDIAN_MAX, "a rollback waits for streams: {median:?}");
    shown("first text of a request made then, behind those that wait", felt);
    let (median, largest) =
        shown("`chimere rollback` to the first text of the other generation", house.in_peace(switches).await);
    assert!(median < FELT_MEDIAN_MAX && largest < FELT_MAX, "median {median:?}, largest {largest:?}");
    assert_eq!((house.daemon.pid(), house.daemon.engines()), (pid, engines), "nothing was started anew");
}

#[tokio::test]
async fn switches_under_streams_break_none_and_are_felt_within_a_second() {
    switched(STREAMS, SWITCHES).await;
}

#[tokio::test]
#[ignore = "long: fifty streams and a hundred switches, some minutes on two cores"]
async fn a_hundred_switches_under_fifty_streams_break_none() {
    switched(STREAMS_LONG, SWITCHES_LONG).await;
}
