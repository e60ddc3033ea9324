//! The HTTP server, sole user of hyper and axum: accept loop, keys and limits, OpenAI's wire types, event
//! streams, admin routes and metrics. It sees the daemon as a [`Service`] and knows nothing behind it.
//!
//! A request's way: `accept` (deadlines, caps) → `gate` (Host, Origin, log) → `routes` (key, scope, body) →
//! a handler. The handler turns the body into a `ReplyRequest` (`wire`), and the events into JSON or an
//! event stream (`reply`, `sse`).

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::Live;
use crate::service::Service;

mod accept;
mod bare;
mod body;
mod chat;
mod completions;
mod connections;
mod cors;
mod documents;
mod embeddings;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gate;
mod lessons;
mod limits;
mod memory;
mod metrics;
mod models;
mod openapi;
mod operate;
mod owner;
mod page;
mod prompts;
mod query;
mod reply;
mod routes;
mod runs;
mod sessions;
mod sse;
mod table;
mod text;
mod tools;
mod unique;
mod watch;
mod wire;

pub use limits::HttpLimits;
pub use metrics::{MetricsError, install_recorder};
pub use routes::{Access, ROUTES, Route};

/// Serves `service` on `listener` until `shutdown` is cancelled and the drain is over. Limits that are replaced
/// meanwhile hold for connections and requests from then on.
///
/// # Errors
/// When the metrics recorder cannot be installed (another one is).
pub async fn serve(
    listener: TcpListener,
    service: Arc<dyn Service>,
    limits: Arc<Live<HttpLimits>>,
    shutdown: CancellationToken,
) -> Result<(), MetricsError> {
    let handle = install_recorder()?;
    let connections = connections::Connections::default();
    let door = Arc::new(routes::Door {
        service,
        limits: Arc::clone(&limits),
        metrics: handle.clone(),
        connections: connections.clone(),
        bodies: body::Budget::default(),
        started_unix_s: std::time::UNIX_EPOCH.elapsed().map(|d| d.as_secs() as i64).unwrap_or_default(),
    });
    let upkeep = async {
        loop {
            tokio::time::sleep(metrics::UPKEEP_INTERVAL).await;
            handle.run_upkeep();
        }
    };
    tokio::select! {
        () = accept::accept_loop(listener, routes::router(door), connections, limits, shutdown) => {}
        () = upkeep => {}
    }
    Ok(())
}
