//! Two keys share an engine of two sequences. One of them asks for more than there is place for. The other is served all
//! the same, and nothing that was taken away for it changes.

use std::sync::Arc;
use std::time::Instant;

use chimere::keys::KeyRing;
use chimere::service::Scope;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{Daemon, PATIENCE};
use crate::people::with_key;

/// The ids that end a reply of `nano`.
const ENDS: [&str; 2] = ["0", "2"];
const LONG: u32 = 400;

/// A reply of just so many tokens.
fn asking(question: &str, max_tokens: u32) -> Value {
    json!({
        "messages": [{ "role": "user", "content": question }], "max_tokens": max_tokens, "temperature": 0.8, "seed": 7,
        "logit_bias": { ENDS[0]: -100, ENDS[1]: -100 },
    })
}

async fn ask(url: String, key: String, body: Value) -> (u16, Option<String>, Value) {
    let url = format!("{url}/v1/chat/completions");
    let answer = reqwest::Client::new().post(url).bearer_auth(key).json(&body).send().await.unwrap();
    let after = answer.headers().get("retry-after").map(|after| after.to_str().unwrap().to_owned());
    (answer.status().as_u16(), after, answer.json().await.unwrap())
}

struct House {
    daemon: Daemon,
    ann: String,
    bob: String,
}

impl House {
    async fn with(requests_max: &str) -> House {
        let state = Arc::new(tempfile::tempdir().unwrap());
        let [ann, bob] = ["ann", "bob"].map(|name| {
            let scopes = [Scope::Chat, Scope::Metrics];
            KeyRing::add(state.path(), name, &scopes, false, jiff::Timestamp::now()).unwrap().0
        });
        let variables = [("CHIMERE_ENGINE_SEQUENCES", "2"), ("CHIMERE_REPLIES_REQUESTS_MAX", requests_max)];
        let daemon = Daemon::launch_with(state, &[], &variables);
        daemon.ready().await;
        House { daemon, ann, bob }
    }

    fn begin(&self, key: &str, question: &str, max_tokens: u32) -> JoinHandle<(u16, Option<String>, Value)> {
        tokio::spawn(ask(self.daemon.url.clone(), key.to_owned(), asking(question, max_tokens)))
    }

    async fn metric(&self, name: &str) -> f64 {
        let url = format!("{}/metrics", self.daemon.url);
        let page = reqwest::Client::new().get(url).bearer_auth(&self.ann).send().await.unwrap().text().await.unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned);
        line.unwrap_or_else(|| "0".to_owned()).trim().parse().unwrap()
    }

    /// Waits until so many replies are under way; nothing of them need be in the engine yet.
    async fn under_way(&self, replies: usize) {
        let began = Instant::now();
        loop {
            let url = format!("{}/v1/runs", self.daemon.url);
            let answer = reqwest::Client::new().get(url).bearer_auth(&self.ann).send().await.unwrap();
            let runs: Value = answer.json().await.unwrap();
            // Those that write are past their plan.
            if runs["data"].as_array().unwrap().iter().filter(|run| run["kind"] == "generate").count() == replies {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{runs}");
        }
    }
}

#[tokio::test]
async fn a_key_with_many_long_replies_holds_no_other_up_and_gets_its_own_bits() {
    let house = House::with("64").await;
    let questions = ["Tell me of rivers.", "Tell me of copper.", "Tell me of lanterns."];
    let mut alone = Vec::new();
    for question in questions {
        alone.push(with_key(&house.daemon, &house.ann, "/v1/chat/completions", &asking(question, LONG)).await);
    }
    let mut long: Vec<_> = questions.iter().map(|question| house.begin(&house.ann, question, LONG)).collect();
    house.under_way(questions.len()).await;
    // A steady stream of small requests: each is served, and the long replies come to their end beside them.
    let mut small = 0;
    while long.iter().any(|reply| !reply.is_finished()) {
        let (status, _, reply) = house.begin(&house.bob, "How many are two and two?", 4).await.unwrap();
        assert_eq!((status, &reply["usage"]["completion_tokens"]), (200, &json!(4)), "{reply}");
        small += 1;
        // The first of them ended before any of the long ones, which had all places.
        assert!(small > 1 || long.iter().all(|reply| !reply.is_finished()));
    }
    for (reply, alone) in long.drain(..).zip(&alone) {
        let (status, _, reply) = reply.await.unwrap();
        assert_eq!((status, &reply["choices"][0]), (200, &alone["choices"][0]));
        assert_eq!(reply["usage"]["completion_tokens"], LONG);
    }
    // The engine tells its numbers every two seconds.
    let began = Instant::now();
    let (mut suspended, mut resumed) = (0.0, 0.0);
    while suspended == 0.0 || suspended != resumed {
        assert!(began.elapsed() < PATIENCE, "{suspended} suspended, {resumed} resumed, beside {small}");
        suspended = house.metric("chimere_engine_suspended_total").await;
        resumed = house.metric("chimere_engine_resumed_total").await;
    }
}

#[tokio::test]
async fn a_key_that_holds_every_permit_is_refused_and_another_finds_its_share() {
    let house = House::with("4").await;
    let all: Vec<_> = (0..4).map(|n| house.begin(&house.ann, &format!("Tell me of the number {n}."), 2_000)).collect();
    house.under_way(4).await;
    let (status, after, refusal) = house.begin(&house.ann, "And now?", 4).await.unwrap();
    assert_eq!((status, after.as_deref()), (429, Some("1")), "{refusal}");
    let message = refusal["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("4 replies are under way, 4 of them for this key: it has its share. Let one"),
        "{message}"
    );
    assert!(message.contains("`replies.requests_max`") && message.ends_with("; ask again in 1 s"), "{message}");
    let (status, _, reply) = house.begin(&house.bob, "And now?", 4).await.unwrap();
    assert_eq!((status, &reply["usage"]["completion_tokens"]), (200, &json!(4)), "{reply}");
    assert!(all.iter().all(|reply| !reply.is_finished()), "nobody had to end for it");
    all.iter().for_each(JoinHandle::abort);
}
