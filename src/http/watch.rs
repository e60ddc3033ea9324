//! The time-outs of one connection: for its headers, for idling, for a client that takes nothing of its response.
//! They are enforced from outside hyper, for HTTP/1 and HTTP/2 alike. The socket tells when bytes arrive, the service
//! when a request is under way, the response body when the client takes something.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use super::limits::HttpLimits;

/// Milliseconds since the first use; never 0, which means "not running" below.
fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

/// Activity of one connection: few, small and shared between the socket, the service and the watch.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Requests between the end of their headers and the end of their response.
    requests: AtomicU32,
    /// Requests that are complete, allowed, and being worked on or answered.
    admitted: AtomicU32,
    /// Responses being sent.
    responses: AtomicU32,
    /// Since when a request's headers are being received; 0 = they are not.
    header_since_ms: AtomicU64,
    /// Since when no request is under way.
    idle_since_ms: AtomicU64,
    /// When a response body last gave something away.
    taken_ms: AtomicU64,
    /// HTTP/2 talks between requests (settings, window updates), so bytes do not mean headers there.
    multiplexed: AtomicBool,
}

/// Why a connection was closed from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    Header,
    Idle,
    Write,
}

impl Activity {
    /// A connection that was just accepted: its first header is awaited.
    pub(crate) fn new() -> Arc<Self> {
        let now = now_ms();
        Arc::new(Activity {
            requests: AtomicU32::new(0),
            admitted: AtomicU32::new(0),
            responses: AtomicU32::new(0),
            header_since_ms: AtomicU64::new(now),
            idle_since_ms: AtomicU64::new(now),
            taken_ms: AtomicU64::new(now),
            multiplexed: AtomicBool::new(false),
        })
    }

    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::SeqCst) == 0
    }

    /// Nothing would be lost with this connection: no request of it is complete, or it has none.
    pub(crate) fn may_give_way(&self) -> bool {
        self.admitted.load(Ordering::SeqCst) == 0
    }

    /// Something was read from the socket.
    pub(crate) fn bytes_arrived(&self) {
        if self.is_idle() && !self.multiplexed.load(Ordering::SeqCst) {
            let _ = self.header_since_ms.compare_exchange(0, now_ms(), Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// A request's headers are complete. Dropping the mark ends the request.
    pub(crate) fn begin(self: &Arc<Self>, multiplexed: bool) -> RequestMark {
        self.multiplexed.store(multiplexed, Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.header_since_ms.store(0, Ordering::SeqCst);
        RequestMark { activity: Arc::clone(self), admission: Admission::default() }
    }

    /// Which deadline has passed, or how long until the next one could.
    pub(crate) fn check(&self, limits: &HttpLimits) -> Result<Duration, Overdue> {
        let now = now_ms();
        let left = |since: u64, limit: Duration, why: Overdue| {
            let passed = Duration::from_millis(now.saturating_sub(since));
            if passed >= limit { Err(why) } else { Ok(limit - passed) }
        };
        let header_since = self.header_since_ms.load(Ordering::SeqCst);
        if self.is_idle() && header_since != 0 {
            return left(header_since, limits.header_timeout(), Overdue::Header);
        }
        if self.is_idle() {
            // Bytes of a next request may start the shorter header deadline at any time.
            let idle = left(self.idle_since_ms.load(Ordering::SeqCst), limits.idle_timeout(), Overdue::Idle)?;
            return Ok(idle.min(limits.header_timeout()));
        }
        if self.responses.load(Ordering::SeqCst) > 0 {
            return left(self.taken_ms.load(Ordering::SeqCst), limits.write_timeout(), Overdue::Write);
        }
        // The handler is at work, under deadlines of its own.
        Ok(limits.write_timeout().min(limits.header_timeout()))
    }

    /// Returns once a deadline has passed.
    pub(crate) async fn overdue(&self, limits: &HttpLimits) -> Overdue {
        loop {
            match self.check(limits) {
                Ok(wait) => tokio::time::sleep(wait.max(Duration::from_millis(5))).await,
                Err(why) => return why,
            }
        }
    }
}

/// True once a request is complete and allowed.
#[derive(Clone, Debug, Default)]
struct Admission(Arc<AtomicBool>);

/// A request under way on a connection.
#[derive(Debug)]
pub(crate) struct RequestMark {
    activity: Arc<Activity>,
    admission: Admission,
}

impl RequestMark {
    /// What the route uses to say that the request is complete and allowed.
    pub(crate) fn ticket(&self) -> AdmissionTicket {
        AdmissionTicket { activity: Arc::clone(&self.activity), admission: self.admission.clone() }
    }
}

/// The route's hold on a request's admission.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionTicket {
    activity: Arc<Activity>,
    admission: Admission,
}

impl AdmissionTicket {
    /// From now on the connection does not give way to newcomers, until the request's end.
    pub(crate) fn admit(&self) {
        if !self.admission.0.swap(true, Ordering::SeqCst) {
            self.activity.admitted.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for RequestMark {
    fn drop(&mut self) {
        if self.admission.0.load(Ordering::SeqCst) {
            self.activity.admitted.fetch_sub(1, Ordering::SeqCst);
        }
        // Before the count falls, or a look in between would see an idle time from before this request.
        self.activity.idle_since_ms.store(now_ms(), Ordering::SeqCst);
        self.activity.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A response body that reports when the client takes something.
pub(crate) struct WatchedBody {
    inner: Body,
    mark: RequestMark,
}

impl WatchedBody {
    pub(crate) fn new(inner: Body, mark: RequestMark) -> Self {
        mark.activity.taken_ms.store(now_ms(), Ordering::SeqCst);
        mark.activity.responses.fetch_add(1, Ordering::SeqCst);
        WatchedBody { inner, mark }
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.mark.activity.responses.fetch_sub(1, Ordering::SeqCst);
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // hyper asks for the next frame only when it has room for it.
        self.mark.activity.taken_ms.store(now_ms(), Ordering::SeqCst);
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
