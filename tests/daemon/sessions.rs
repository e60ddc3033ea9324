//! Named sessions through the daemon. It remembers what was said, and one reply at a time goes on with it. Each key has
//! its own sessions. What is forgotten of the log is gone from every session.

use std::sync::Arc;

use chimere::keys::KeyRing;
use chimere::service::Scope;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, kill};
use crate::people::told;

struct Home {
    daemon: Daemon,
    state: Arc<tempfile::TempDir>,
    anna: String,
    bob: String,
}

impl Home {
    async fn new() -> Home {
        let state = Arc::new(tempfile::tempdir().unwrap());
        let key = |name| KeyRing::add(state.path(), name, &[Scope::Chat], true, jiff::Timestamp::now()).unwrap().0;
        let (anna, bob) = (key("anna"), key("bob"));
        let daemon = Daemon::launch(Arc::clone(&state), &[]);
        daemon.ready().await;
        Home { daemon, state, anna, bob }
    }

    async fn send(&self, key: &str, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let request = reqwest::Client::new().request(method, format!("{}{path}", self.daemon.url)).bearer_auth(key);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn get(&self, key: &str, path: &str) -> (u16, Value) {
        self.send(key, Method::GET, path, None).await
    }

    async fn post(&self, key: &str, path: &str, body: Value) -> (u16, Value) {
        self.send(key, Method::POST, path, Some(body)).await
    }

    async fn delete(&self, key: &str, path: &str) -> (u16, Value) {
        self.send(key, Method::DELETE, path, None).await
    }

    async fn ask(&self, key: &str, session: Option<&str>, messages: Value) -> Value {
        let own = session.map_or(json!({}), |name| json!({ "session": name }));
        let body = json!({ "messages": messages, "temperature": 0, "max_tokens": 24, "chimere": own });
        let (status, reply) = self.post(key, "/v1/chat/completions", body).await;
        assert_eq!(status, 200, "{reply}");
        reply
    }

    /// A reply in a session that goes on until its client leaves.
    async fn story(&self, key: &str, session: &str) -> reqwest::Response {
        let long = json!({
            "messages": [user("Tell me a story.")], "stream": true, "logit_bias": { "0": -100, "2": -100 },
            "max_tokens": 3000, "temperature": 0, "chimere": { "session": session },
        });
        let url = format!("{}/v1/chat/completions", self.daemon.url);
        let stream = reqwest::Client::new().post(&url).bearer_auth(key).json(&long).send().await.unwrap();
        assert_eq!(stream.status(), 200);
        stream
    }

    /// What was said in a session.
    async fn said(&self, key: &str, session: &str) -> Vec<Value> {
        let (status, told) = self.get(key, &format!("/v1/sessions/{session}")).await;
        assert_eq!(status, 200, "{told}");
        told["messages"].as_array().unwrap().clone()
    }

    async fn names(&self, key: &str) -> Vec<String> {
        let (_, list) = self.get(key, "/v1/sessions").await;
        list["data"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

#[tokio::test]
async fn a_session_goes_on_as_if_everything_had_been_sent_again() {
    let home = Home::new().await;
    let anna = home.anna.as_str();
    let rules = "Answer in one short sentence. Numbers are written as digits, names with a capital letter. ".repeat(20);
    let system = json!({ "role": "system", "content": rules });
    let first = home.ask(anna, Some("trip"), json!([system, user("What is 17 + 25?")])).await;
    assert_eq!(first["x_chimere"]["session"], json!({ "name": "trip", "messages": 0 }));
    let second = home.ask(anna, Some("trip"), json!([system, user("And 9 * 7?")])).await;
    assert_eq!(second["x_chimere"]["session"], json!({ "name": "trip", "messages": 2 }));

    // The same, sent whole by a client that remembers everything itself.
    let answer = |reply: &Value| {
        let message = &reply["choices"][0]["message"];
        json!({
            "role": "assistant", "content": message["content"], "reasoning_content": message["reasoning_content"],
        })
    };
    let whole = json!([system, user("What is 17 + 25?"), answer(&first), user("And 9 * 7?")]);
    let without = home.ask(anna, None, whole).await;
    assert_eq!(second["choices"][0]["message"], without["choices"][0]["message"]);
    assert_eq!(second["usage"]["prompt_tokens"], without["usage"]["prompt_tokens"]);
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 256, "{cached} tokens of the session's prompt were kept");

    let said = home.said(anna, "trip").await;
    let roles: Vec<_> = said.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"], "the system's text is the request's own");
    assert_eq!(said[3]["content"], second["choices"][0]["message"]["content"]);
    let (_, turns) = home.get(anna, "/v1/memory/turns?conversation=trip").await;
    assert_eq!(turns["data"].as_array().unwrap().len(), 2, "a session is a conversation of its name");
}

/// A session goes on with what its last answer should have been, as a client does that sends everything itself.
#[tokio::test]
async fn a_session_goes_on_with_the_corrected_answer() {
    let home = Home::new().await;
    let (anna, bob) = (home.anna.as_str(), home.bob.as_str());
    let first = home.ask(anna, Some("trip"), json!([user("Where is the key of the shed?")])).await;
    let turn = first["x_chimere"]["turn"].as_str().unwrap();
    let correct = async |key: &str, words: &str| {
        home.post(key, "/v1/feedback", json!({ "turn": turn, "correction": words })).await.0
    };
    assert_eq!(correct(anna, "Under the pot.").await, 200);
    assert_eq!(correct(anna, "<think>moved</think>Behind the clock.").await, 200);
    assert_ne!(correct(bob, "Bob has it.").await, 200);
    assert_eq!(home.said(anna, "trip").await[1]["content"], "Behind the clock.");
    let second = home.ask(anna, Some("trip"), json!([user("And whose is it?")])).await;
    let (_, kept) = home.get(anna, "/v1/memory/turns").await;
    let kept = kept["data"].as_array().unwrap();
    assert!(kept[1]["messages"].to_string().contains("Behind the clock."), "{kept:?}");
    assert!(!kept[1]["messages"].to_string().contains("moved"), "{kept:?}");
    let assistant = json!({ "role": "assistant", "content": "Behind the clock." });
    let whole = json!([user("Where is the key of the shed?"), assistant, user("And whose is it?")]);
    let without = home.ask(anna, None, whole).await;
    assert_eq!(second["usage"]["prompt_tokens"], without["usage"]["prompt_tokens"]);

    // Forgetting the corrected turn takes its words out of what went on with it.
    assert_eq!(home.delete(anna, &format!("/v1/memory/turns?turn={turn}")).await.1["turns"], 1);
    let (_, left) = home.get(anna, "/v1/memory/turns").await;
    let asked: Vec<&Value> = left["data"].as_array().unwrap().iter().map(|turn| &turn["messages"]).collect();
    assert!(!json!(asked).to_string().contains("clock"), "{left}");
}

#[tokio::test]
async fn sessions_are_forked_moved_back_and_deleted_and_outlive_the_daemon() {
    let mut home = Home::new().await;
    let anna = home.anna.clone();
    let first = home.ask(&anna, Some("trip"), json!([user("What is 17 + 25?")])).await;
    home.ask(&anna, Some("trip"), json!([user("And 9 * 7?")])).await;
    let forked = told(&home.daemon, &["session", "fork", "trip", "other"], &anna);
    assert!(forked.starts_with("other  "), "{forked}");
    home.ask(&anna, Some("other"), json!([user("Who are you?")])).await;
    assert_eq!((home.said(&anna, "trip").await.len(), home.said(&anna, "other").await.len()), (4, 6));

    let turn = first["x_chimere"]["turn"].as_str().unwrap();
    let save = json!({ "name": "trip", "turn": turn });
    let (status, refused) = home.post(&anna, "/v1/sessions", save).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("conflict")));
    told(&home.daemon, &["session", "save", "trip", "--turn", turn, "--replace"], &anna);
    assert_eq!(home.said(&anna, "trip").await.len(), 2, "back to its first turn");

    kill(home.daemon.pid());
    home.daemon = Daemon::launch(Arc::clone(&home.state), &[]);
    home.daemon.ready().await;
    assert_eq!(home.names(&anna).await, ["other", "trip"]);
    let shown = told(&home.daemon, &["session", "show", "trip"], &anna);
    assert!(shown.starts_with("user: What is 17 + 25?\nassistant: "), "{shown}");
    let on = home.ask(&anna, Some("trip"), json!([user("And 9 * 7?")])).await;
    assert_eq!(on["x_chimere"]["session"]["messages"], 2);

    told(&home.daemon, &["session", "delete", "trip"], &anna);
    assert_eq!(home.get(&anna, "/v1/sessions/trip").await.0, 404);
    assert_eq!(home.delete(&anna, "/v1/sessions/trip").await.0, 404);
    let listed = told(&home.daemon, &["session", "list"], &anna);
    assert!(listed.lines().count() == 1 && listed.starts_with("other  "), "{listed}");
    let (_, turns) = home.get(&anna, &format!("/v1/memory/turns?turn={turn}")).await;
    assert_eq!(turns["data"].as_array().unwrap().len(), 1, "a name was taken away, and nothing that was said");
    // Two messages of one command after the other, and of nobody else's.
    for (question, messages) in [("What is 3 + 4?", 2), ("And 5 + 6?", 4)] {
        told(&home.daemon, &["chat", "--session", "cli", "--temperature", "0", question], &anna);
        assert_eq!(home.said(&anna, "cli").await.len(), messages);
    }
}

#[tokio::test]
async fn nobody_reaches_a_session_of_somebody_else() {
    let home = Home::new().await;
    let (anna, bob) = (home.anna.as_str(), home.bob.as_str());
    let reply = home.ask(anna, Some("trip"), json!([user("What is 17 + 25?")])).await;
    let turn = reply["x_chimere"]["turn"].clone();
    assert_eq!(home.get(bob, "/v1/sessions/trip").await.0, 404);
    assert_eq!(home.delete(bob, "/v1/sessions/trip").await.0, 404);
    assert_eq!(home.names(bob).await, Vec::<String>::new());
    assert_eq!(home.post(bob, "/v1/sessions", json!({ "name": "mine", "turn": turn })).await.0, 404);
    assert_eq!(home.post(bob, "/v1/sessions", json!({ "name": "mine", "from": "trip" })).await.0, 404);
    let his = home.ask(bob, Some("trip"), json!([user("Who are you?")])).await;
    assert_eq!(his["x_chimere"]["session"]["messages"], 0, "one of his own under the same name");
    assert_eq!(home.said(anna, "trip").await[0]["content"], "What is 17 + 25?");

    // What is forgotten is gone from every session, and its name with it.
    home.post(anna, "/v1/sessions", json!({ "name": "kept", "from": "trip" })).await;
    let path = format!("/v1/memory/turns?turn={}", turn.as_str().unwrap());
    assert_eq!(home.delete(anna, &path).await.1["turns"], 1);
    assert_eq!(home.names(anna).await, Vec::<String>::new());
    assert_eq!(home.get(anna, "/v1/sessions/kept").await.0, 404);
    assert_eq!(home.names(bob).await, ["trip"]);
    let anew = home.ask(anna, Some("trip"), json!([user("What is 3 + 4?")])).await;
    assert_eq!(anew["x_chimere"]["session"]["messages"], 0);
}

/// What was said in a forgotten turn is gone from the later turns of the conversation, and the conversation goes on.
#[tokio::test]
async fn a_forgotten_turn_leaves_a_session_that_goes_on_without_its_words() {
    let home = Home::new().await;
    let anna = home.anna.as_str();
    let mut turns = Vec::new();
    for question in ["What is 17 + 25?", "Is a quokka a bird?", "And 9 * 7?"] {
        let reply = home.ask(anna, Some("trip"), json!([user(question)])).await;
        turns.push(reply["x_chimere"]["turn"].as_str().unwrap().to_owned());
    }
    let forgotten = home.delete(anna, &format!("/v1/memory/turns?turn={}", turns[1])).await.1;
    assert_eq!(forgotten["turns"], 1);
    let said = home.said(anna, "trip").await;
    let questions: Vec<_> = said.iter().filter(|m| m["role"] == "user").map(|m| m["content"].clone()).collect();
    assert_eq!((questions, said.len()), (vec![json!("What is 17 + 25?"), json!("And 9 * 7?")], 4));
    let (_, kept) = home.get(anna, "/v1/memory/turns").await;
    assert!(!kept.to_string().contains("quokka"), "{kept}");
    let kept = kept["data"].as_array().unwrap();
    let redacted: Vec<_> = kept.iter().map(|turn| turn["redacted"].as_bool().unwrap_or(false)).collect();
    assert_eq!((redacted, &kept[1]["prompt_ids"]), (vec![false, true], &json!([])));
    let on = home.ask(anna, Some("trip"), json!([user("Is a numbat a bird?")])).await;
    assert_eq!(on["x_chimere"]["session"]["messages"], 4);

    // Nor does a reply bring them back that went on with the session when they were forgotten.
    let mut stream = home.story(anna, "trip").await;
    stream.chunk().await.unwrap();
    let numbat = on["x_chimere"]["turn"].as_str().unwrap();
    assert_eq!(home.delete(anna, &format!("/v1/memory/turns?turn={numbat}")).await.1["turns"], 1);
    drop(stream);
    let began = std::time::Instant::now();
    let kept = loop {
        let (_, kept) = home.get(anna, "/v1/memory/turns").await;
        if kept.to_string().contains("Tell me a story.") {
            break kept;
        }
        assert!(began.elapsed() < PATIENCE, "the story is not kept");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    // What it says in words of its own stays.
    let story = kept["data"].as_array().unwrap().last().unwrap();
    assert_eq!((&story["redacted"], &story["prompt_ids"]), (&json!(true), &json!([])), "{story}");
    assert!(!story["messages"].to_string().contains("numbat"), "{story}");

    // Nor one that begins while they are being forgotten.
    for n in 0..6 {
        let (session, word) = (format!("s{n}"), format!("okapi{n}"));
        let told = home.ask(anna, Some(&session), json!([user(&format!("Remember {word}."))])).await;
        let path = format!("/v1/memory/turns?turn={}", told["x_chimere"]["turn"].as_str().unwrap());
        let next = async {
            tokio::time::sleep(std::time::Duration::from_millis(n * 2)).await;
            home.ask(anna, Some(&session), json!([user("And now?")])).await
        };
        let (forgotten, _) = tokio::join!(home.delete(anna, &path), next);
        assert_eq!(forgotten.1["turns"], 1);
        let (_, kept) = home.get(anna, "/v1/memory/turns?limit=100").await;
        // The answer may repeat the word: it is its own.
        let asked: Vec<&Value> = kept["data"].as_array().unwrap().iter().map(|turn| &turn["messages"]).collect();
        assert!(!json!(asked).to_string().contains(&word), "{kept}");
    }
}

#[tokio::test]
async fn one_reply_at_a_time_and_what_breaks_off_leaves_the_session_where_it_was() {
    let home = Home::new().await;
    let anna = home.anna.as_str();
    home.ask(anna, Some("trip"), json!([user("What is 17 + 25?")])).await;
    let mut stream = home.story(anna, "trip").await;
    stream.chunk().await.unwrap();
    let body = json!({ "messages": [user("And 9 * 7?")], "chimere": { "session": "trip" } });
    let (status, refused) = home.post(anna, "/v1/chat/completions", body.clone()).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("conflict")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("`trip`"), "{refused}");
    // Its prompt may be looked at meanwhile.
    let (status, shown) = home.post(anna, "/apply-template", body.clone()).await;
    assert!(status == 200 && shown["prompt"].as_str().unwrap().contains("17 + 25"), "{shown}");
    let (status, refused) = home.post(anna, "/v1/chat/completions", body.clone()).await;
    assert_eq!(status, 409, "who looks does not let it go: {refused}");
    // Nor is it moved or deleted under that reply; it may be forked.
    let save = |name: &str| json!({ "name": name, "from": "trip", "replace": true });
    assert_eq!(home.post(anna, "/v1/sessions", save("trip")).await.0, 409);
    assert_eq!(home.delete(anna, "/v1/sessions/trip").await.0, 409);
    assert_eq!(home.post(anna, "/v1/sessions", save("aside")).await.0, 200);
    drop(stream);
    // The client left: the session is free again, and stands where it stood.
    let on = loop {
        let (status, reply) = home.post(anna, "/v1/chat/completions", body.clone()).await;
        match status {
            409 => tokio::task::yield_now().await,
            _ => break reply,
        }
    };
    assert_eq!(on["x_chimere"]["session"], json!({ "name": "trip", "messages": 2 }), "{on}");

    for (param, wrong) in [
        ("chimere.session", json!({ "messages": [user("a")], "chimere": { "session": "a/b" } })),
        ("chimere.session", json!({ "messages": [user("a")], "chimere": { "session": "" } })),
        ("chimere.session", json!({ "messages": [user("a")], "chimere": { "session": ".." } })),
        ("n", json!({ "messages": [user("a")], "n": 2, "chimere": { "session": "trip" } })),
    ] {
        let (status, refused) = home.post(anna, "/v1/chat/completions", wrong).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    assert_eq!(home.get(anna, "/v1/sessions/a%20b").await.0, 400);
    assert_eq!(home.post(anna, "/v1/sessions", json!({ "name": "a b", "from": "trip" })).await.0, 400);
}
