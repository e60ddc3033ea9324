//! HTTP at its edges: hosts and origins, methods, media types, header and body sizes, framing tricks.

use chimere::http::HttpLimits;
use serde_json::json;

use crate::fake::{ADMIN_KEY, METRICS_KEY};
use crate::{body_of, server, server_with};

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_origins_are_refused() {
    let server = server().await;
    for host in ["evil.example", "localhost.evil.example", "10.1.2.3", "a b", ""] {
        let raw =
            server.raw(format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes()).await;
        assert!(raw.starts_with("HTTP/1.1 421 ") || raw.starts_with("HTTP/1.1 400 "), "{host}: {raw}");
    }
    for host in ["localhost", "localhost.", "localhost.:8377", "127.0.0.1:1", "[::1]:80", "chat.localhost"] {
        let raw =
            server.raw(format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes()).await;
        assert!(raw.starts_with("HTTP/1.1 200 "), "{host}: {raw}");
    }
    let two =
        server.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n").await;
    assert!(two.starts_with("HTTP/1.1 400 "), "{two}");
    let none = server.raw(b"GET /health HTTP/1.0\r\n\r\n").await;
    assert!(none.starts_with("HTTP/1.0 400 ") || none.starts_with("HTTP/1.1 400 "), "{none}");
    assert_eq!(body_of(&none)["error"]["code"], "bad_host");
    for (origin, status) in [("http://evil.example", 403), ("null", 403), (server.url("").as_str(), 200)] {
        let request = server.client.get(server.url("/v1/models")).header("origin", origin);
        let answer = server.send(request).await;
        assert_eq!(answer.status, status, "{origin}");
        assert!(status == 200 || answer.error()["code"] == "origin_not_allowed", "{}", answer.text);
        assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("access-control")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_page_cannot_start_a_reply() {
    let server = server().await;
    let url = server.url("/v1/chat/completions");
    let body = json!({"messages": [{"role": "user", "content": "x"}]}).to_string();
    let simple = server.client.post(&url).header("content-type", "text/plain").body(body.clone());
    assert_eq!(server.send(simple).await.status, 415);
    let cross =
        server.client.post(&url).header("origin", "http://evil.example").header("content-type", "application/json");
    assert_eq!(server.send(cross.body(body)).await.status, 403);
    let preflight = server.client.request(reqwest::Method::OPTIONS, &url).header("origin", "http://evil.example");
    assert_eq!(server.send(preflight).await.status, 403);
    assert!(server.fake.requests.lock().unwrap().is_empty());
}

/// A page of a named origin may chat by the rules of CORS, and no more; every other page is refused as ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_named_origin_may_chat_and_no_more() {
    const PAGE: &str = "app://obsidian.md";
    let server = server_with(HttpLimits { origins: vec![PAGE.to_owned()], ..HttpLimits::default() }).await;
    let url = server.url("/v1/chat/completions");
    let preflight = |origin: &'static str| {
        let request = server.client.request(reqwest::Method::OPTIONS, &url).header("origin", origin);
        let request = request.header("access-control-request-method", "POST");
        request
            .header("access-control-request-headers", "authorization,content-type,x-stainless-os")
            .header("access-control-request-private-network", "true")
    };
    let allowed = server.send(preflight(PAGE)).await;
    assert_eq!((allowed.status, allowed.text.as_str()), (204, ""));
    let told = |name: &str| allowed.headers.get(name).and_then(|value| value.to_str().ok());
    for (name, value) in [
        ("access-control-allow-origin", PAGE),
        ("access-control-allow-methods", "GET, POST, PATCH, DELETE"),
        ("access-control-allow-headers", "authorization,content-type,x-stainless-os"),
        ("access-control-allow-private-network", "true"),
        ("access-control-max-age", "600"),
        ("vary", "origin"),
    ] {
        assert_eq!(told(name), Some(value), "{name}");
    }
    assert_eq!(told("access-control-allow-credentials"), None);
    assert_eq!(server.send(preflight("https://evil.example")).await.status, 403);
    let post = |origin: &'static str| {
        let request = server.client.post(&url).header("origin", origin);
        server.send(request.json(&json!({"messages": [{"role": "user", "content": "x"}]})))
    };
    let said = post(PAGE).await;
    assert_eq!((said.status, &said.headers["access-control-allow-origin"]), (200, &PAGE.parse().unwrap()));
    assert!(said.headers["access-control-expose-headers"].to_str().unwrap().contains("x-request-id"));
    let foreign = post("https://evil.example").await;
    assert_eq!(foreign.status, 403);
    assert!(!foreign.headers.keys().any(|name| name.as_str().starts_with("access-control")));
    // An error can be read by the page as well; what is not chat is refused whatever key it holds.
    for (method, path, key) in [
        (reqwest::Method::POST, "/v1/admin/pause", None),
        (reqwest::Method::POST, "/v1/admin/pause", Some(ADMIN_KEY)),
        (reqwest::Method::GET, "/metrics", Some(METRICS_KEY)),
    ] {
        let request = server.client.request(method, server.url(path)).header("origin", PAGE);
        let answer = server.send(key.iter().fold(request, |request, key| request.bearer_auth(key))).await;
        assert_eq!((answer.status, &answer.error()["code"]), (403, &json!("insufficient_scope")), "{path}");
        assert_eq!(answer.headers["access-control-allow-origin"], PAGE);
    }
    // A program sends no origin, and is not affected.
    let program = server.get("/v1/status").await;
    assert_eq!(program.status, 200);
    assert!(!program.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_paths_methods_and_media_types_get_the_envelope() {
    let server = server().await;
    let lost = server.get("/v1/nothing").await;
    assert_eq!((lost.status, &lost.error()["code"]), (404, &json!("not_found")));
    let model = server.get("/v1/models/owner/name").await;
    assert_eq!((model.status, &model.error()["code"]), (404, &json!("model_not_found")));
    assert_eq!(server.get("/v1/models/fake-1").await.json()["id"], "fake-1");
    let method = server.get("/v1/chat/completions").await;
    assert_eq!((method.status, &method.error()["code"]), (405, &json!("method_not_allowed")));
    assert_eq!(method.headers["allow"], "POST");
    let both = server.send(server.client.put(server.url("/v1/memory/turns"))).await;
    assert_eq!((both.status, both.headers["allow"].to_str().unwrap()), (405, "GET, DELETE"));
    let post = |kind: &'static str| {
        server.client.post(server.url("/tokenize")).header("content-type", kind).body("{\"content\":\"a\"}")
    };
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", ""] {
        let answer = server.send(post(kind)).await;
        assert_eq!((answer.status, &answer.error()["code"]), (415, &json!("unsupported_media_type")), "{kind}");
    }
    for (kind, status) in [
        ("Application/JSON; charset=utf-8", 200),
        ("application/json;CHARSET=\"UTF-8\"", 200),
        ("application/json; profile=x; charset=us-ascii", 200),
        ("application/json; charset=iso-8859-1", 415),
        ("application/json; charset=utf-16", 415),
        ("application/json; charset=", 415),
    ] {
        assert_eq!(server.send(post(kind)).await.status, status, "{kind}");
    }
    let zipped = post("application/json").header("content-encoding", "gzip");
    assert_eq!(server.send(zipped).await.status, 415);
    let head = server.send(server.client.head(server.url("/health"))).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_is_400() {
    let server = server().await;
    let head =
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked";
    let raw = server.raw(format!("{head}\r\nconnection: close\r\n\r\n5\r\n{{\"con\r\nno number\r\n").as_bytes()).await;
    assert!(raw.starts_with("HTTP/1.1 400 "), "{raw}");
    assert_eq!(body_of(&raw)["error"]["code"], "bad_body");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_or_too_large_headers_are_431() {
    let server = server().await;
    let many: String = (0..150).map(|i| format!("x-{i}: y\r\n")).collect();
    let raw = server
        .raw(format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{many}\r\n").as_bytes())
        .await;
    assert!(raw.starts_with("HTTP/1.1 431 "), "{raw}");
    assert_eq!(body_of(&raw)["error"]["code"], "headers_too_large");
    let large =
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: {}\r\n\r\n", "y".repeat(40_000));
    assert!(server.raw(large.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    let flood: String = (0..100_000).map(|i| format!("x-{i}: {}\r\n", "z".repeat(20))).collect();
    let raw = server.raw(format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{flood}\r\n").as_bytes()).await;
    assert!(raw.is_empty() || raw.starts_with("HTTP/1.1 431 "), "{raw}");
    assert_eq!(server.get("/health").await.status, 200);
}

/// What the protocol's own layer refuses, before there is a request, is answered like everything else.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_the_protocol_have_the_envelope_and_an_id() {
    let server = server().await;
    let head = "GET /health HTTP/1.1\r\nhost: localhost\r\n";
    let many: String = (0..500).map(|i| format!("x-{i}: y\r\n")).collect();
    for (status, code, request) in [
        (431, "headers_too_large", format!("{head}{many}\r\n")),
        (414, "address_too_long", format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(1 << 16))),
        (400, "bad_request", "GET /health\r\n\r\n\r\n".to_owned()),
        (400, "bad_request", format!("{head}a b: c\r\n\r\n")),
        (400, "bad_request", "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n{}".to_owned()),
    ] {
        let raw = server.raw(request.as_bytes()).await;
        assert!(raw.starts_with(&format!("HTTP/1.1 {status} ")), "{raw}");
        assert!(raw.contains("\r\nx-request-id: req-") && raw.contains("\r\nconnection: close"), "{raw}");
        let error = body_of(&raw)["error"].clone();
        assert_eq!((&error["code"], &error["type"]), (&json!(code), &json!("invalid_request_error")), "{raw}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn framing_tricks_do_not_smuggle_a_second_request() {
    let server = server().await;
    // No `connection: close`: a server that misreads the framing would answer what follows.
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let smuggled = "GET /v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for framing in [
        format!("{head}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("{head}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("{head}content-length: 2\r\ncontent-length: 40\r\n\r\n{{}}{smuggled}"),
        format!("{head}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("{head}content-length: +2\r\n\r\n{{}}{smuggled}"),
        format!("{head}content-length: -1\r\n\r\n{{}}{smuggled}"),
        format!("{head}transfer-encoding : chunked\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("{head}transfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n{{}}\r\n0\r\n\r\n{smuggled}"),
    ] {
        let raw = server.raw(framing.as_bytes()).await;
        assert_eq!(raw.matches("HTTP/1.1 ").count(), 1, "{framing:?} got {raw:?}");
        assert!(raw.starts_with("HTTP/1.1 4"), "{framing:?} got {raw:?}");
        assert!(!raw.contains("actors"), "{raw}");
    }
    assert_eq!(server.get("/health").await.status, 200);
}
