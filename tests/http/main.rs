//! The HTTP server over a real socket, with a service without a model: keys, limits, hostile clients, wire
//! formats, event streams, cancellation, draining.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod auth;
mod chat;
mod cli;
mod document;
mod documents;
mod edge;
mod embeddings;
mod fake;
mod http2;
mod json;
mod lessons;
mod likely;
mod limits;
mod lint;
mod memory;
mod observe;
mod page;
mod runs;
mod sessions;
mod stream;
mod timing;
mod turns;
mod volume;

use std::sync::Arc;
use std::time::Duration;

use chimere::config::Live;
use chimere::http::{HttpLimits, serve};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use fake::Fake;

/// What is waited for comes at once on an idle machine; only a test that fails waits for so long on a busy one.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A door on a port of its own.
pub struct Server {
    pub address: std::net::SocketAddr,
    pub fake: Arc<Fake>,
    pub limits: Arc<Live<HttpLimits>>,
    pub shutdown: CancellationToken,
    pub task: JoinHandle<()>,
    pub client: reqwest::Client,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    /// The four fields of the error envelope, checked to be there.
    pub fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "no {field} in {self:?}");
        }
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{self:?}");
        error
    }
}

pub async fn server() -> Server {
    server_with(HttpLimits::default()).await
}

pub async fn server_with(limits: HttpLimits) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = Arc::new(Fake::default());
    let shutdown = CancellationToken::new();
    let limits = Arc::new(Live::new(limits));
    let service = Arc::clone(&fake) as Arc<dyn chimere::service::Service>;
    let serving = serve(listener, service, Arc::clone(&limits), shutdown.clone());
    let task = tokio::spawn(async move { serving.await.unwrap() });
    Server { address, fake, limits, shutdown, task, client: reqwest::Client::new() }
}

impl Server {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = tokio::time::timeout(PATIENCE, request.send()).await.expect("no answer in time").unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Answer { status, headers, text: response.text().await.unwrap() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.client.get(self.url(path))).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.client.post(self.url(path)).json(body)).await
    }

    /// A chat with one user message and more parameters.
    pub async fn chat(&self, order: &str, extra: Value) -> Answer {
        self.post("/v1/chat/completions", &chat_body(order, extra)).await
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a new connection and reads until the door closes it.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The door may refuse before everything is sent.
        let _ = stream.write_all(bytes).await;
        read_to_end(&mut stream).await
    }
}

pub fn chat_body(order: &str, extra: Value) -> Value {
    let mut body = serde_json::json!({"messages": [{"role": "user", "content": order}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

pub async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let read = async {
        let mut buffer = [0u8; 4096];
        // A reset after the answer is an end as well.
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            all.extend_from_slice(&buffer[..n]);
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the door did not close the connection");
    String::from_utf8_lossy(&all).into_owned()
}

/// The JSON body of a raw HTTP/1.1 answer.
pub fn body_of(raw: &str) -> Value {
    let (_, body) = raw.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no header end in {raw:?}"));
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e} in {raw:?}"))
}
