//! HTTP/2 with prior knowledge, written byte by byte: requests are answered, and its idle or stuck
//! connections fall under the same deadlines.

use std::time::{Duration, Instant};

use chimere::http::HttpLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{PATIENCE, read_to_end, server_with};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM_AND_HEADERS: u8 = 0x5;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// `GET path` in HPACK without Huffman: static entries 2 and 6, literals for `:path` and `:authority`.
fn get(path: &str, authority: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(4u8, path), (1, authority)] {
        block.push(0x40 | name);
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    block
}

/// Reads frames until the body of stream `wanted` is complete; gives the first byte of its headers and its body.
async fn answer(stream: &mut TcpStream, wanted: u32) -> (u8, String) {
    let (mut status, mut body) = (0, Vec::new());
    let read = async {
        loop {
            let mut head = [0u8; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0u8; length];
            stream.read_exact(&mut payload).await.unwrap();
            if u32::from_be_bytes([head[5], head[6], head[7], head[8]]) != wanted {
                continue;
            }
            match head[3] {
                HEADERS => status = payload[0],
                DATA => body.extend(payload),
                other => panic!("frame {other} on the stream"),
            }
            if head[4] & 1 == 1 {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("no answer over HTTP/2");
    (status, String::from_utf8(body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_and_an_idle_connection_is_closed() {
    // Seconds, so that a client on a busy machine is never too late by itself.
    let limits = HttpLimits { header_timeout_ms: 2_000, idle_timeout_ms: 12_000, ..HttpLimits::default() };
    let server = server_with(limits).await;
    let mut stream = server.connect().await;
    stream.write_all(PREFACE).await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    stream.write_all(&frame(HEADERS, END_STREAM_AND_HEADERS, 1, &get("/health", "localhost"))).await.unwrap();
    let (status, body) = answer(&mut stream, 1).await;
    // 0x88 is `:status: 200` of HPACK's static table.
    assert_eq!((status, body.as_str()), (0x88, "{\"status\":\"ok\"}"));
    // Longer than the header deadline, shorter than the idle one: HTTP/2 may talk between requests.
    stream.write_all(&frame(SETTINGS, 1, 0, &[])).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    stream.write_all(&frame(HEADERS, END_STREAM_AND_HEADERS, 3, &get("/health", "evil.example"))).await.unwrap();
    let (_, body) = answer(&mut stream, 3).await;
    assert!(body.contains("host_not_allowed"), "{body}");
    read_to_end(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_only_says_hello_is_closed() {
    let server = server_with(HttpLimits { header_timeout_ms: 300, ..HttpLimits::default() }).await;
    let begun = Instant::now();
    let mut stream = server.connect().await;
    stream.write_all(PREFACE).await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    read_to_end(&mut stream).await;
    assert!(begun.elapsed() >= Duration::from_millis(250), "closed early");
}
