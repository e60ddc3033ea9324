//! Slow, silent and many clients; large bodies; draining.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chimere::http::HttpLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{PATIENCE, body_of, read_to_end, server_with};

/// Short deadlines for headers and bodies. The others are longer than a test waits, so that a connection which is
/// closed was closed by one of these.
fn quick() -> HttpLimits {
    HttpLimits {
        header_timeout_ms: 300,
        body_progress_timeout_ms: 300,
        body_timeout_ms: 1_000,
        ..HttpLimits::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_half_open_and_dribbling_headers_are_cut_off() {
    let server = server_with(quick()).await;
    let starts: [&[u8]; 4] = [b"", b"GET /health HTTP/1.1\r\nhost: loc", b"PRI * HTTP/2.0\r\n\r\nSM", b"\r\n\r\n"];
    for start in starts {
        let begun = Instant::now();
        let mut stream = server.connect().await;
        stream.write_all(start).await.unwrap();
        read_to_end(&mut stream).await;
        assert!(begun.elapsed() >= Duration::from_millis(250), "{start:?} was closed early");
    }
    let mut stream = server.connect().await;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    // One header line now and then keeps a naive server waiting for ever.
    let dribble = async {
        while stream.write_all(b"x: y\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, dribble).await.expect("a dribbling client was kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_kept_for_a_while_and_then_closed() {
    // Seconds, so that a client on a busy machine is never too late by itself.
    let limits = HttpLimits { header_timeout_ms: 2_000, ..HttpLimits::default() };
    let server = server_with(HttpLimits { idle_timeout_ms: 12_000, ..limits.clone() }).await;
    let mut stream = server.connect().await;
    let request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for _ in 0..2 {
        stream.write_all(request).await.unwrap();
        let mut buffer = [0u8; 1024];
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(buffer[..n].starts_with(b"HTTP/1.1 200"));
        // Longer than the header deadline, shorter than the idle one.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
    }
    read_to_end(&mut stream).await;
    // A second request that dribbles falls under the header deadline again.
    let server = server_with(limits).await;
    let mut stream = server.connect().await;
    stream.write_all(request).await.unwrap();
    let mut buffer = [0u8; 1024];
    assert!(stream.read(&mut buffer).await.unwrap() > 0);
    stream.write_all(b"GET /hea").await.unwrap();
    read_to_end(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_or_dribbles_is_408() {
    // The head itself may take its time.
    let header_timeout_ms = HttpLimits::default().header_timeout_ms;
    let server = server_with(HttpLimits { header_timeout_ms, ..quick() }).await;
    let head =
        b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let mut stream = server.connect().await;
    stream.write_all(head).await.unwrap();
    let raw = read_to_end(&mut stream).await;
    assert!(raw.starts_with("HTTP/1.1 408 "), "{raw}");
    assert_eq!(body_of(&raw)["error"]["code"], "request_timeout");
    let (mut reader, mut writer) = server.connect().await.into_split();
    writer.write_all(head).await.unwrap();
    let dribble = tokio::spawn(async move {
        for _ in 0..90 {
            if writer.write_all(b" ").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut buffer = [0u8; 1024];
    let n = tokio::time::timeout(PATIENCE, reader.read(&mut buffer)).await.unwrap().unwrap();
    assert!(buffer[..n].starts_with(b"HTTP/1.1 408 "));
    dribble.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_413() {
    let server = server_with(HttpLimits { body_bytes_max: 1000, ..HttpLimits::default() }).await;
    let fits = json!({"content": "x".repeat(900)});
    assert_eq!(server.post("/tokenize", &fits).await.status, 200);
    let declared = server.post("/tokenize", &json!({"content": "x".repeat(1000)})).await;
    assert_eq!((declared.status, &declared.error()["code"]), (413, &json!("body_too_large")));
    let chunked = reqwest::Body::wrap_stream(futures_util::stream::iter(
        (0..20).map(|_| Ok::<_, std::io::Error>("y".repeat(100))),
    ));
    let request = server.client.post(server.url("/tokenize")).header("content-type", "application/json").body(chunked);
    let answer = server.send(request).await;
    assert_eq!(answer.status, 413);
    let lie = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n{";
    assert!(server.raw(lie).await.starts_with("HTTP/1.1 413 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_silent_connections_keeps_nobody_out() {
    let limits = HttpLimits { connections_max: 64, connections_per_ip_max: 32, ..HttpLimits::default() };
    let server = server_with(limits).await;
    let mut crowd = Vec::new();
    let head =
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    for start in ["", "GET / HTTP/1.1\r\nhost: loc", head] {
        for _ in 0..100 {
            let mut stream = server.connect().await;
            // One of the crowd may already have been closed.
            let _ = stream.write_all(start.as_bytes()).await;
            crowd.push(stream);
        }
    }
    for _ in 0..10 {
        let fresh = reqwest::Client::new();
        assert_eq!(server.send(fresh.get(server.url("/health"))).await.status, 200);
    }
    let status = server.get("/v1/status").await.json();
    assert!(status["http"]["connections"].as_u64().unwrap() <= 32, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_at_work_are_not_evicted_and_the_newcomer_is_told() {
    let limits = HttpLimits { connections_per_ip_max: 2, stream_open_wait_ms: 10, ..HttpLimits::default() };
    let server = server_with(limits).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let body = crate::chat_body("slow 100000", json!({"stream": true}));
        streams.push(server.client.post(server.url("/v1/chat/completions")).json(&body).send().await.unwrap());
    }
    let raw = server.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(raw.starts_with("HTTP/1.1 503 ") && raw.contains("retry-after: 1"), "{raw}");
    assert_eq!(body_of(&raw)["error"]["code"], "service_unavailable");
    assert!(streams[0].chunk().await.unwrap().is_some(), "the first stream goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_finishes_streams_refuses_new_work_and_ends() {
    let server = server_with(HttpLimits::default()).await;
    let body = crate::chat_body("slow 30", json!({"stream": true}));
    let mut response = server.client.post(server.url("/v1/chat/completions")).json(&body).send().await.unwrap();
    let mut text = String::from_utf8(response.chunk().await.unwrap().unwrap().to_vec()).unwrap();
    server.fake.stopping.store(true, Ordering::SeqCst);
    let refused = server.chat("x", json!({})).await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    let health = server.get("/health").await;
    assert_eq!((health.status, &health.error()["code"]), (503, &json!("stopping")));
    server.shutdown.cancel();
    while let Some(chunk) = response.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.ends_with("data: [DONE]\n\n"), "the stream in flight was cut off");
    tokio::time::timeout(PATIENCE, server.task).await.expect("the drain did not end").unwrap();
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_takes_too_long_is_cut() {
    let server = server_with(HttpLimits { drain_timeout_ms: 200, ..HttpLimits::default() }).await;
    let body = crate::chat_body("slow 100000", json!({"stream": true}));
    let mut response = server.client.post(server.url("/v1/chat/completions")).json(&body).send().await.unwrap();
    response.chunk().await.unwrap();
    server.shutdown.cancel();
    tokio::time::timeout(PATIENCE, server.task).await.expect("the drain did not end").unwrap();
    crate::stream::wait_for_cancelled_count(&server.fake, 1).await;
}
