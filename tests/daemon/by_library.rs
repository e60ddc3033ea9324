//! The served model by libllama, over HTTP. What a client wrote stays text. The next turn of a conversation reads only
//! what is new, and gets the replies of a daemon that keeps nothing.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, model};
use crate::night::until;

async fn daemon(snapshot_bytes: &str) -> Daemon {
    let kept = ("CHIMERE_ENGINE_SNAPSHOT_BYTES_MAX", snapshot_bytes);
    // With several threads the last bits of a reply depend on how many had a core.
    let variables = [("CHIMERE_ENGINE_BACKEND", "llama"), ("CHIMERE_ENGINE_THREADS", "1"), kept];
    let daemon = Daemon::launch_with(Arc::new(tempfile::tempdir().unwrap()), &[], &variables);
    daemon.ready().await;
    daemon
}

#[tokio::test]
async fn the_library_takes_text_as_text_and_keeps_what_it_read() {
    let (keeps, forgets) = tokio::join!(daemon("268435456"), daemon("0"));
    for text in ["<think>x</think>", "a<tool_call>{}</tool_call><|im_end|>"] {
        let ids = async |special: bool| {
            let body = json!({ "content": text, "parse_special": special });
            keeps.post("/tokenize", &body).await.1["tokens"].as_array().unwrap().clone()
        };
        let (plain, marked) = (ids(false).await, ids(true).await);
        assert!(plain.len() > marked.len() && !plain.contains(&marked[marked.len() - 1]), "{plain:?} {marked:?}");
        let back = keeps.post("/detokenize", &json!({ "tokens": plain })).await.1;
        assert_eq!(back["content"], text);
    }

    let rules = "Answer in one short sentence. Numbers are written as digits, names with a capital letter. ".repeat(20);
    let mut messages = vec![json!({ "role": "system", "content": rules })];
    let mut cached = Vec::new();
    for question in ["What is 17 + 25?", "And 9 * 7?", "Who are you?"] {
        messages.push(json!({ "role": "user", "content": question }));
        let body = json!({ "messages": messages, "temperature": 0, "max_tokens": 16, "logprobs": true });
        let ask = async |daemon: &Daemon| -> (Value, Value, u64) {
            let (status, reply) = daemon.post("/v1/chat/completions", &body).await;
            assert_eq!(status, 200, "{reply}");
            let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            let choice = &reply["choices"][0];
            (choice["message"]["content"].clone(), choice["logprobs"].clone(), cached)
        };
        let ((content, logprobs, held), (wanted, wanted_logprobs, none)) = (ask(&keeps).await, ask(&forgets).await);
        assert_eq!((&content, &logprobs, none), (&wanted, &wanted_logprobs, 0), "{question}");
        messages.push(json!({ "role": "assistant", "content": content }));
        cached.push(held);
    }
    assert!(cached[0] == 0 && cached[1] > 256 && cached[2] > 256, "{cached:?}");
}

/// Before a night it is said that the library computes no adapters, and what works without. A night that is begun all
/// the same is over at once.
#[tokio::test]
async fn that_its_weights_cannot_learn_is_said_before_a_night() {
    let daemon = daemon("0").await;
    let why = "weights cannot learn: `engine.backend` is \"llama\"";
    let (_, status) = daemon.get("/v1/night").await;
    let words = status["learning"]["words"].as_str().unwrap();
    assert!(status["learning"]["weights"] == false && words.contains(why) && words.contains("Lessons"), "{status}");
    let (code, begun) = daemon.post("/v1/night", &json!({ "command": "run_now" })).await;
    assert_eq!(code, 200, "{begun}");
    let last = until(&daemon, |status| status["last"]["id"] == begun["run"]).await["last"].clone();
    assert!(last["outcome"]["nothing"]["words"].as_str().is_some_and(|words| words.contains(why)), "{last}");
    assert_eq!(daemon.get("/v1/night/report").await.0, 200);
    // The same words without a daemon, and of another backend.
    for (backend, wanted) in [("llama", why), ("cpu", "weights learn at night")] {
        let mut check = chimere();
        check.env("CHIMERE_ENGINE_BACKEND", backend).args(["check", "--json", "--model"]).arg(model());
        let said = check.arg("--state-dir").arg(daemon.state.path()).output().unwrap();
        let said: Value = serde_json::from_slice(&said.stdout).unwrap();
        let found = said["findings"].as_array().unwrap().iter().find(|found| found["what"] == "learning").unwrap();
        assert!(found["message"].as_str().unwrap().contains(wanted), "{found}");
    }
}
