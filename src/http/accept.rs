//! The accept loop. hyper serves each connection under the deadlines of `limits`. After the order to stop nothing new
//! is accepted, and replies under way may finish within the drain timeout.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::{Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::bare::Dressed;
use super::connections::{Connections, Place, Refused};
use super::error::ApiError;
use super::limits::HttpLimits;
use super::metrics;
use super::owner::Peer;
use super::watch::{Activity, Overdue, WatchedBody};
use crate::config::Live;

/// Pause after a failed accept (out of file descriptors), so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Both ends of the connection that a request came in on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// Serves until `shutdown`, then drains. Returns when the last connection is closed or the drain timed out.
pub(crate) async fn accept_loop(
    listener: TcpListener,
    router: Router,
    connections: Connections,
    limits: Arc<Live<HttpLimits>>,
    shutdown: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let activity = Activity::new();
        let limits = limits.get();
        match connections.admit(peer.ip().to_canonical(), Arc::clone(&activity), &limits) {
            Ok(place) => {
                tasks.spawn(connection(router.clone(), limits, stream, peer, activity, place, graceful.watcher()));
            }
            Err(refused) => refuse(&stream, refused),
        }
        metrics::connections(connections.open());
    }
    drop(listener);
    let drained = async {
        graceful.shutdown().await;
        while tasks.join_next().await.is_some() {}
    };
    if tokio::time::timeout(limits.get().drain_timeout(), drained).await.is_err() {
        tracing::warn!(open = connections.open(), "drain timed out, closing what is left");
    }
}

fn builder(limits: &HttpLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // A second net: hyper counts the idle time between requests too, the precise deadlines are `Activity`'s.
        .header_read_timeout(limits.idle_timeout().max(limits.header_timeout()))
        .max_headers(limits.headers_max * 2);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.http2_streams_max)
        .max_header_list_size(u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX))
        .keep_alive_interval(limits.write_timeout())
        .keep_alive_timeout(limits.write_timeout());
    builder
}

async fn connection(
    router: Router,
    limits: Arc<HttpLimits>,
    stream: TcpStream,
    peer: SocketAddr,
    activity: Arc<Activity>,
    place: Place,
    watcher: Watcher,
) {
    let Ok(local) = stream.local_addr() else { return };
    // Tokens are small writes that must not wait for one another.
    let _ = stream.set_nodelay(true);
    let (ends, whose) = (Ends { peer, local }, Peer::default());
    let arrived = Arc::clone(&activity);
    let watched = InspectReader::new(stream, move |bytes| {
        if !bytes.is_empty() {
            arrived.bytes_arrived()
        }
    });
    let io = TokioIo::new(Dressed::new(watched));
    let service = hyper::service::service_fn({
        let activity = Arc::clone(&activity);
        move |request| answer(router.clone(), request, (ends, whose.clone()), Arc::clone(&activity))
    });
    let served = builder(&limits).serve_connection(io, service).into_owned();
    tokio::select! {
        result = watcher.watch(served) => {
            if let Err(error) = result {
                tracing::debug!(%peer, %error, "connection ended early");
            }
        }
        why = activity.overdue(&limits) => {
            metrics::connection_closed(match why {
                Overdue::Header => "header_timeout",
                Overdue::Idle => "idle_timeout",
                Overdue::Write => "write_timeout",
            });
            tracing::debug!(%peer, ?why, "connection closed: deadline passed");
        }
        () = place.evict.cancelled() => metrics::connection_closed("evicted"),
    }
}

/// One request: through the router, its response watched to the last byte.
async fn answer(
    router: Router,
    request: hyper::Request<Incoming>,
    (ends, whose): (Ends, Peer),
    activity: Arc<Activity>,
) -> Result<Response<WatchedBody>, std::convert::Infallible> {
    let mark = activity.begin(request.version() == Version::HTTP_2);
    let mut request: Request = request.map(Body::new);
    request.extensions_mut().insert(ends);
    request.extensions_mut().insert(whose);
    request.extensions_mut().insert(mark.ticket());
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    Ok(response.map(|body| WatchedBody::new(body, mark)))
}

/// Says why, without waiting for the client: at the cap nobody is worth a task.
fn refuse(stream: &TcpStream, refused: Refused) {
    let (reason, message) = match refused {
        Refused::Total => ("connections_max", "too many open connections"),
        Refused::PerIp => ("connections_per_ip_max", "too many open connections from this address"),
    };
    metrics::connection_closed(reason);
    let body = ApiError::unavailable(message, 1).envelope().to_string();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let sent: io::Result<usize> = stream.try_write(text.as_bytes());
    if sent.is_err() {
        tracing::debug!("a refused client did not take the refusal");
    }
}
