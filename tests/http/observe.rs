//! Health, status, the night's honest answer, and the metrics page under the rules of a linter.

use std::sync::atomic::Ordering;

use chimere::night::phase::Job;
use chimere::service::{ModelWish, NightCommand};
use serde_json::json;

use crate::lint::lint;
use crate::server;

#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_tools_are_listed_with_what_they_take() {
    let server = server().await;
    let listed = server.get("/v1/tools").await.json();
    let tools = listed["data"].as_array().unwrap();
    assert_eq!((&listed["object"], &tools[0]["id"]), (&json!("list"), &json!("calculate")));
    assert_eq!((&tools[0]["state"], &tools[0]["taints"]), (&json!("ready"), &json!(false)));
    assert_eq!(tools[0]["parameters"]["required"], json!(["expression"]));
    let kept = tools.iter().find(|tool| tool["id"] == "search_web").unwrap();
    assert_eq!(
        (&kept["state"], &kept["needs"]),
        (&json!("not_built"), &json!("the user's word before a model searches the web"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_the_model() {
    let server = server().await;
    assert_eq!(server.get("/health").await.json(), json!({"status": "ok"}));
    assert_eq!(server.get("/v1/models").await.json()["data"][0]["id"], "fake-1");
    server.fake.loading.store(true, Ordering::SeqCst);
    let loading = server.get("/health").await;
    assert_eq!((loading.status, &loading.error()["code"]), (503, &json!("loading")));
    assert!(loading.headers.contains_key("retry-after"));
    assert_eq!(server.get("/v1/models").await.json()["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_get_honest_answers() {
    let server = server().await;
    let status = server.get("/v1/status").await.json();
    assert!(status["actors"].is_object() && status["http"]["connections"].as_u64().unwrap() >= 1);
    let night = server.post("/v1/night", &json!({"command": "run_now"})).await;
    assert_eq!((night.status, &night.error()["code"]), (501, &json!("not_built")));
    let post = |path: &str| server.send(server.client.post(server.url(path)));
    assert_eq!(post("/v1/admin/pause").await.json(), json!({"paused": true}));
    assert_eq!(post("/v1/admin/resume").await.json(), json!({"paused": false}));
    // What takes no parameter says so, and a body without any is none.
    assert_eq!(server.post("/v1/admin/resume", &json!({})).await.json(), json!({"paused": false}));
    for (answer, param, code) in [
        (server.post("/v1/admin/pause", &json!({"x": 1})).await, "x", "unknown_parameter"),
        (server.get("/openapi.json?x=1").await, "x", "bad_query"),
        (server.get("/v1/models?limit=1").await, "limit", "bad_query"),
    ] {
        let error = answer.error();
        assert_eq!((answer.status, &error["param"], &error["code"]), (400, &json!(param), &json!(code)), "{error}");
    }
    // Probes and links bring what they like.
    for path in ["/health?at=1", "/metrics?at=1", "/?from=mail"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_model_names_one_file() {
    let server = server().await;
    for (body, param, code) in [
        (json!({}), "path", json!("missing_parameter")),
        (json!({"before": false}), "before", json!(null)),
        (json!({"path": 7}), "path", json!("invalid_type")),
        (json!({"path": "/a.gguf", "before": true}), "before", json!(null)),
        (json!({"path": "/a.gguf", "wait": "no"}), "wait", json!("invalid_type")),
        (json!({"file": "/a.gguf"}), "file", json!("unknown_parameter")),
    ] {
        let answer = server.post("/v1/admin/model", &body).await;
        let error = answer.error();
        assert_eq!((answer.status, &error["param"], &error["code"]), (400, &json!(param), &code), "{error}");
    }
    assert!(server.fake.wishes.lock().unwrap().is_empty());
    for (body, wish) in [
        (json!({"path": "/a.gguf"}), (ModelWish::File("/a.gguf".into()), true)),
        (json!({"before": true, "wait": false}), (ModelWish::Before, false)),
    ] {
        assert_eq!(server.post("/v1/admin/model", &body).await.json()["file"], "/fake.gguf");
        assert_eq!(server.fake.wishes.lock().unwrap().pop(), Some(wish));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_for_the_night_arrives_whole_or_is_told_which_field_is_wrong() {
    let server = server().await;
    for (body, param, code) in [
        (json!({"command": "sleep"}), "command", ""),
        (json!({"command": 7}), "command", "invalid_type"),
        (json!({"job": "train"}), "command", "missing_parameter"),
        (json!({"command": "run_now", "job": "dance"}), "job", ""),
        (json!({"command": "run_now", "dry_run": "yes"}), "dry_run", "invalid_type"),
        (json!({"command": "run_now", "candidate": 7}), "candidate", "invalid_type"),
        (json!({"command": "rollback", "generation": -1}), "generation", ""),
        (json!({"command": "rollback", "generation": "one"}), "generation", "invalid_type"),
        (json!({"command": "report", "run": ["x"]}), "run", "invalid_type"),
        (json!({"command": "reset_pipeline"}), "route", "missing_parameter"),
        (json!({"command": "reset_pipeline", "route": 3}), "route", "invalid_type"),
        (json!({"command": "pause", "generations": 1}), "generations", "unknown_parameter"),
        (json!({"command": "pause", "dry_run": true}), "dry_run", ""),
        (json!({"command": "run_now", "generation": 2}), "generation", ""),
        (json!({"command": "rollback", "generation": 2, "run": "2026-03-01"}), "run", ""),
    ] {
        let answer = server.post("/v1/night", &body).await;
        let error = answer.error();
        let told = error["code"].as_str().unwrap_or_default();
        assert_eq!((answer.status, &error["param"], told), (400, &json!(param), code), "{error}");
        assert!(error["message"].as_str().unwrap().contains(&format!("`{param}`")), "{error}");
    }
    assert!(server.fake.nights.lock().unwrap().is_empty());
    let (run, candidate) = (Some("2026-03-01".to_owned()), Some("/a.gguf".into()));
    for (body, command) in [
        (json!({"command": "run_now"}), NightCommand::RunNow { job: Job::Train, candidate: None, dry_run: false }),
        (
            json!({"command": "run_now", "job": "reindex", "candidate": "/a.gguf", "dry_run": true}),
            NightCommand::RunNow { job: Job::Reindex, candidate, dry_run: true },
        ),
        (json!({"command": "status"}), NightCommand::Status),
        (json!({"command": "report", "run": "2026-03-01"}), NightCommand::Report { run }),
        (json!({"command": "pause"}), NightCommand::Pause),
        (json!({"command": "resume"}), NightCommand::Resume),
        (
            json!({"command": "reset_pipeline", "route": "code"}),
            NightCommand::ResetPipeline { route: "code".to_owned() },
        ),
        (json!({"command": "rollback", "generation": null}), NightCommand::Rollback { generation: None }),
        (json!({"command": "rollback", "generation": 2}), NightCommand::Rollback { generation: Some(2) }),
    ] {
        assert_eq!(server.post("/v1/night", &body).await.status, 501, "{body}");
        assert_eq!(server.fake.nights.lock().unwrap().pop(), Some(command));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_page_passes_a_linter_and_tells_no_secret() {
    let server = server().await;
    let secret = "sk-planted-secret";
    let request = server.client.get(server.url("/v1/models")).bearer_auth(secret);
    assert_eq!(server.send(request).await.status, 401);
    server.chat("hello planted-prompt", json!({})).await;
    server.chat("hello", json!({"stream": true})).await;
    server.chat("fail-late", json!({})).await;
    server.get("/nowhere/planted-path").await;
    let page = server.get("/metrics").await;
    assert_eq!(page.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let families = lint(&page.text);
    for name in [
        "chimere_build_info",
        "chimere_http_requests_total",
        "chimere_http_request_duration_seconds",
        "chimere_http_connections",
        "chimere_replies_total",
        "chimere_reply_tokens_total",
        "chimere_reply_first_event_seconds",
        "chimere_reply_duration_seconds",
    ] {
        assert!(families.contains_key(name), "{name} is missing from {families:?}");
    }
    assert!(!page.text.contains("planted"), "{}", page.text);
}

/// What the whole test process logs at `info`.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_requests_and_holds_neither_keys_nor_text() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // The other tests of this process log here too, which only makes the search wider.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = server().await;
    let body = crate::chat_body("a planted-question", json!({"chimere": {"conversation": "planted-name"}}));
    let request = server.client.post(server.url("/v1/chat/completions?planted-query=1")).json(&body);
    let answer = server.send(request.bearer_auth(crate::fake::CHAT_KEY)).await;
    assert_eq!(answer.status, 200);
    let id = answer.headers["x-request-id"].to_str().unwrap().to_owned();
    let wrong = server.client.get(server.url("/v1/models")).bearer_auth("planted-key");
    assert_eq!(server.send(wrong).await.status, 401);
    server.chat("panic", json!({})).await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = text.lines().find(|line| line.contains(&id)).unwrap_or_else(|| panic!("no {id} in {text}"));
    for part in ["route=\"/v1/chat/completions\"", "status=200", "principal=\"chatter\"", "method=\"POST\""] {
        assert!(line.contains(part), "{part} is missing: {line}");
    }
    for secret in ["planted", crate::fake::CHAT_KEY, "you said"] {
        assert!(!text.contains(secret), "{secret} was logged");
    }
}
