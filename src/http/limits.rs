//! Every limit of the HTTP server, named with its unit: time-outs of headers, bodies, idle connections and writes,
//! caps of connections and sizes. The configuration fills them; tests shrink them. `watch` and `accept` enforce the
//! time-outs, `body` the sizes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::service::LoopbackOwner;

/// Messages and tools of one request, where no test says otherwise.
pub(crate) const MESSAGES_MAX: usize = 4096;
pub(crate) const TOOLS_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpLimits {
    /// Names that a `Host` header may carry besides loopback names and the address the connection came in on.
    /// The defence against DNS rebinding: a foreign name pointed at this machine is refused.
    pub host_names: Vec<String>,
    /// Origins whose pages may chat, as a browser names them (`https://chat.example`).
    pub origins: Vec<String>,
    /// Who on this machine is the owner while there is no key.
    pub loopback_owner: LoopbackOwner,
    /// Open connections in all. At the limit the oldest connection without a request gives way.
    pub connections_max: usize,
    /// Open connections from one address; the same rule.
    pub connections_per_ip_max: usize,
    /// From the first byte of a request (or from accept) to the end of its headers.
    pub header_timeout_ms: u64,
    /// Longest pause between two pieces of a request body.
    pub body_progress_timeout_ms: u64,
    /// The whole request body.
    pub body_timeout_ms: u64,
    /// A connection without a request under way is closed after this.
    pub idle_timeout_ms: u64,
    /// A client that takes nothing of its response for this long is dropped, and its reply cancelled.
    pub write_timeout_ms: u64,
    /// After the order to stop, requests under way get this long to finish.
    pub drain_timeout_ms: u64,
    /// A comment line is sent to a silent event stream this often, so that nobody between takes it for dead.
    pub keep_alive_interval_ms: u64,
    /// A stream's status line waits this long for the engine's word that the request is good, so that a refusal gets
    /// its own status.
    pub stream_open_wait_ms: u64,
    /// A reply that makes no progress for this long is given up (queueing and prefill included).
    pub reply_silence_timeout_ms: u64,
    /// Largest request body.
    pub body_bytes_max: usize,
    /// Largest file that becomes a document.
    pub file_bytes_max: usize,
    /// Request bodies of all connections together; more get 503 until some are answered.
    pub bodies_bytes_max: usize,
    /// Names and values of all request headers together.
    pub header_bytes_max: usize,
    /// Request header lines.
    pub headers_max: usize,
    /// Arrays and objects within one another in a request body.
    pub json_depth_max: usize,
    /// Requests at once on one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// Messages in one chat request.
    pub messages_max: usize,
    /// Tools in one chat request.
    pub tools_max: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            host_names: Vec::new(),
            origins: Vec::new(),
            loopback_owner: LoopbackOwner::default(),
            connections_max: 4096,
            connections_per_ip_max: 1024,
            header_timeout_ms: 10_000,
            body_progress_timeout_ms: 30_000,
            body_timeout_ms: 300_000,
            idle_timeout_ms: 60_000,
            write_timeout_ms: 30_000,
            drain_timeout_ms: 30_000,
            keep_alive_interval_ms: 10_000,
            stream_open_wait_ms: 5_000,
            reply_silence_timeout_ms: 600_000,
            body_bytes_max: 8 << 20,
            file_bytes_max: 64 << 20,
            bodies_bytes_max: 256 << 20,
            header_bytes_max: 32 << 10,
            headers_max: 100,
            json_depth_max: 64,
            http2_streams_max: 64,
            messages_max: MESSAGES_MAX,
            tools_max: TOOLS_MAX,
        }
    }
}

impl HttpLimits {
    pub(crate) fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.header_timeout_ms)
    }

    pub(crate) fn body_progress_timeout(&self) -> Duration {
        Duration::from_millis(self.body_progress_timeout_ms)
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms)
    }

    pub(crate) fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.write_timeout_ms)
    }

    pub(crate) fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.drain_timeout_ms)
    }

    /// Never as long as the write timeout: the comments are what shows that a silent client still reads.
    pub(crate) fn keep_alive_interval(&self) -> Duration {
        Duration::from_millis(self.keep_alive_interval_ms.min(self.write_timeout_ms / 2).max(1))
    }

    pub(crate) fn stream_open_wait(&self) -> Duration {
        Duration::from_millis(self.stream_open_wait_ms)
    }

    pub(crate) fn reply_silence_timeout(&self) -> Duration {
        Duration::from_millis(self.reply_silence_timeout_ms)
    }
}
