//! Crowds at one daemon: readers that leave in the middle of a reply, ten times as many askers as it takes, silent
//! connections. An answer is the one that the same request gets alone. A refusal has an envelope that says when to come
//! again. Places, memory and descriptors come back. CI runs it small, `make soak` in full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::harness::{Daemon, PATIENCE, sse};
use crate::soak::{descriptors, resident};

/// Replies under way that the daemon takes, and how many ask at once in the crowd.
const REQUESTS_MAX: usize = 16;
const CROWD: usize = 10 * REQUESTS_MAX;
/// Who reads and leaves, side by side: fewer than there are places, so that the one who stays is answered.
const LEAVERS: usize = 8;
/// From the first quiet moment to the last: the turn log's cache (32 MB) and what is known of each turn, and what the allocator keeps
/// of the busiest moment.
const DAEMON_GROWTH_MAX: f64 = 96e6;
const ENGINE_GROWTH_MAX: f64 = 400e6;

/// How much of each.
struct Size {
    left: usize,
    crowd: Duration,
    silent: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowds_are_answered_as_if_alone_or_told_when_to_come_again() {
    storm(Size { left: 200, crowd: Duration::from_secs(10), silent: 300 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak"]
async fn ten_thousand_leave_and_two_thousand_say_nothing() {
    storm(Size { left: 10_000, crowd: Duration::from_secs(300), silent: 2_000 }).await;
}

async fn storm(size: Size) {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let places = REQUESTS_MAX.to_string();
    let daemon = Daemon::launch_with(state, &[], &[("CHIMERE_REPLIES_REQUESTS_MAX", &places)]);
    daemon.ready().await;
    let exam = Arc::new(Exam::taken_alone(&daemon.url).await);
    let (pid, engine) = (daemon.pid(), daemon.engines()[0]);
    let at_rest = (resident(pid), resident(engine), descriptors(pid));

    let began = Instant::now();
    let stayed = leave(&daemon.url, size.left, &exam).await;
    settled(&daemon).await;
    println!("{} left in the middle in {:.0?}; who stayed had {stayed} answers", size.left, began.elapsed());

    let crowd = crowd(&daemon.url, size.crowd, &exam).await;
    settled(&daemon).await;
    println!("{CROWD} askers at {REQUESTS_MAX} places for {:?}: {crowd}", size.crowd);

    let slowest = among_silent(&daemon.url, size.silent, &exam).await;
    settled(&daemon).await;
    println!("{} silent connections: each question answered, the slowest in {slowest:.0?}", size.silent);

    assert_eq!(daemon.engines(), vec![engine], "the engine was started anew");
    let grown = (resident(pid) - at_rest.0, resident(engine) - at_rest.1);
    println!("memory: daemon {:+.1} MB, engine {:+.1} MB", grown.0 / 1e6, grown.1 / 1e6);
    assert!(grown.0 < DAEMON_GROWTH_MAX && grown.1 < ENGINE_GROWTH_MAX, "memory does not come back: {grown:?}");
    let waiting = Instant::now();
    while descriptors(pid) > at_rest.2 + 16 {
        assert!(waiting.elapsed() < PATIENCE, "{} descriptors where {} were", descriptors(pid), at_rest.2);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Requests of every length, greedy and by seed, and what each is answered when nobody else asks.
struct Exam(Vec<(Value, String)>);

impl Exam {
    async fn taken_alone(url: &str) -> Exam {
        let client = client();
        let mut taken = Vec::new();
        for n in 0..16_u64 {
            let asked = match n % 4 {
                0 => format!("What is {} + {}?", 10 + n, 3 * n),
                1 => format!("Name {} rivers.", 2 + n / 4),
                2 => format!(
                    "{} How does this go on?",
                    "The mill stood by the water and the wheel went round. ".repeat(n as usize)
                ),
                _ => "Tell me a story.".to_owned(),
            };
            let mut body = json!({ "messages": [{ "role": "user", "content": asked }], "max_tokens": 6 + 2 * n, "temperature": 0 });
            if n % 3 == 1 {
                (body["temperature"], body["seed"]) = (json!(0.9), json!(n));
            }
            match ask(&client, url, &body, n % 2 == 0).await {
                Told::Answer(text) => taken.push((body, text)),
                other => panic!("alone: {other:?}"),
            }
        }
        Exam(taken)
    }

    /// Asks question `n`, and says whether it was answered; a wrong answer ends the test.
    async fn ask(&self, client: &reqwest::Client, url: &str, n: usize) -> bool {
        let (body, expected) = &self.0[n % self.0.len()];
        match ask(client, url, body, n % 3 == 0).await {
            Told::Answer(text) => {
                assert_eq!(&text, expected, "alone it was another answer: {body}");
                true
            }
            Told::Refused => false,
            Told::Broken(why) => panic!("{body}: {why}"),
        }
    }
}

#[derive(Debug)]
enum Told {
    Answer(String),
    /// With an envelope, and when to come again.
    Refused,
    Broken(String),
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().timeout(PATIENCE).build().unwrap()
}

async fn ask(client: &reqwest::Client, url: &str, body: &Value, stream: bool) -> Told {
    let mut body = body.clone();
    body["stream"] = json!(stream);
    let answer = match client.post(format!("{url}/v1/chat/completions")).json(&body).send().await {
        Ok(answer) => answer,
        Err(error) => return Told::Broken(format!("{error:?}")),
    };
    let status = answer.status().as_u16();
    let later = answer.headers().get("retry-after").is_some();
    let text = match answer.text().await {
        Ok(text) => text,
        Err(error) => return Told::Broken(format!("{error:?}")),
    };
    let said = serde_json::from_str::<Value>(&text).unwrap_or_default();
    match status {
        429 | 503 if later && said["error"]["message"].is_string() => Told::Refused,
        200 if !stream => match said["choices"][0]["message"]["content"].as_str() {
            Some(content) => Told::Answer(content.to_owned()),
            None => Told::Broken(text),
        },
        200 => {
            let events = sse(&text);
            let ended = events.iter().any(|e| e["choices"][0]["finish_reason"].is_string());
            let pieces = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
            if ended { Told::Answer(pieces.collect()) } else { Told::Broken(text) }
        }
        _ => Told::Broken(format!("{status}: {text}")),
    }
}

/// `count` readers leave in the middle of a reply, while one asks on; how many answers that one had.
async fn leave(url: &str, count: usize, exam: &Arc<Exam>) -> usize {
    let (gone, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut leavers = JoinSet::new();
    for n in 0..LEAVERS {
        let (url, gone) = (url.to_owned(), gone.clone());
        leavers.spawn(async move {
            let client = client();
            let body = json!({ "messages": [{ "role": "user", "content": format!("Tell me a long story, {n}.") }], "max_tokens": 400, "stream": true });
            while gone.load(Ordering::Relaxed) < count {
                let mut answer = client.post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
                if answer.status() == 429 {
                    // Those who left a moment ago still hold places.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                assert_eq!(answer.status(), 200);
                // A reply that was shorter than that had its reader to the end.
                let wanted = 1 + gone.load(Ordering::Relaxed) % 4;
                let mut read = 0;
                while read < wanted && answer.chunk().await.unwrap().is_some() {
                    read += 1;
                }
                gone.fetch_add(usize::from(read == wanted), Ordering::Relaxed);
            }
        });
    }
    let (stays, done, exam) = (url.to_owned(), over.clone(), exam.clone());
    let stays = tokio::spawn(async move {
        let (client, mut answers) = (client(), 0);
        while !done.load(Ordering::Relaxed) {
            answers += usize::from(exam.ask(&client, &stays, answers).await);
        }
        answers
    });
    while let Some(left) = leavers.join_next().await {
        left.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    stays.await.unwrap()
}

/// Ten times as many askers as there are places, each of whom asks again at once.
async fn crowd(url: &str, time: Duration, exam: &Arc<Exam>) -> String {
    let end = Instant::now() + time;
    let mut askers = JoinSet::new();
    for n in 0..CROWD {
        let (url, exam) = (url.to_owned(), exam.clone());
        askers.spawn(async move {
            let (client, mut asked, mut taken) = (client(), n, Vec::new());
            let mut refused = 0_usize;
            while Instant::now() < end {
                let began = Instant::now();
                if exam.ask(&client, &url, asked).await {
                    taken.push(began.elapsed());
                } else {
                    refused += 1;
                    // Sooner than it was told to: the crowd presses.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                asked += 7;
            }
            (taken, refused)
        });
    }
    let (mut taken, mut refused) = (Vec::new(), 0);
    while let Some(asker) = askers.join_next().await {
        let (mine, turned_away) = asker.unwrap();
        taken.extend(mine);
        refused += turned_away;
    }
    assert!(refused > 0, "so many asked and none was refused");
    assert!(taken.len() >= REQUESTS_MAX, "only {} were answered", taken.len());
    taken.sort();
    let at = |share: usize| taken[(taken.len() - 1) * share / 100];
    format!("{} answered, {refused} refused; median {:.0?}, p99 {:.0?}", taken.len(), at(50), at(99))
}

/// Asks every question among connections that say nothing, half a header, or a byte of it now and then; the slowest answer.
async fn among_silent(url: &str, count: usize, exam: &Arc<Exam>) -> Duration {
    let address = url.trim_start_matches("http://").to_owned();
    let mut silent = JoinSet::new();
    let (over, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for n in 0..count {
        let (address, over, came) = (address.clone(), over.clone(), came.clone());
        silent.spawn(async move {
            let connected = TcpStream::connect(&address).await;
            came.fetch_add(1, Ordering::Relaxed);
            // Who is shown out has what he came for: the daemon's attention.
            let Ok(mut connection) = connected else { return };
            if n % 3 > 0 && connection.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: local").await.is_err() {
                return;
            }
            while !over.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(500)).await;
                if n % 3 == 2 && connection.write_all(b"h").await.is_err() {
                    return;
                }
            }
        });
    }
    // While they all come at once, a question could be one of those who have said nothing yet and give way to them.
    let waiting = Instant::now();
    while came.load(Ordering::Relaxed) < count {
        assert!(waiting.elapsed() < PATIENCE, "{} of {count} came", came.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A connection for each question: one that rests between two is among those that the daemon closes for newcomers.
    let client = reqwest::Client::builder().timeout(PATIENCE).pool_max_idle_per_host(0).build().unwrap();
    let mut slowest = Duration::ZERO;
    for n in 0..exam.0.len() {
        let began = Instant::now();
        assert!(exam.ask(&client, url, n).await, "refused for the sake of silent ones");
        slowest = slowest.max(began.elapsed());
    }
    over.store(true, Ordering::Relaxed);
    while silent.join_next().await.is_some() {}
    slowest
}

/// Waits until no reply is under way.
async fn settled(daemon: &Daemon) {
    let began = Instant::now();
    loop {
        let (status, told) = daemon.get("/v1/status").await;
        if status == 200 && told["replies"]["running"] == 0 {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "places do not come back: {told}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
