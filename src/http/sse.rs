//! The event stream of a reply. It pulls what is ready from the reply's channel and writes it in one piece.
//! Comments keep a silent stream alive. No task of its own: when hyper drops the body because the client left,
//! the receiver goes with it and the reply is cancelled.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use tokio::time::{Instant, Sleep};

use super::limits::HttpLimits;
use super::reply::{Running, silent};
use super::wire::chat::Form;
use super::wire::chunk::{ChunkWriter, Kind, Next, broke_off};
use crate::service::ReplyEvent;

/// Events taken from the channel for one write.
const EVENTS_PER_WRITE: usize = 64;
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

struct ReplyStream {
    running: Running,
    writer: ChunkWriter,
    batch: Vec<ReplyEvent>,
    keep_alive: Pin<Box<Sleep>>,
    keep_alive_interval: Duration,
    last_event: Instant,
    silence_limit: Duration,
    ended: bool,
}

/// Answers with the stream of `running`.
pub(crate) fn respond(running: Running, kind: Kind, form: Form, limits: &Arc<HttpLimits>) -> Response {
    let stream = ReplyStream {
        writer: ChunkWriter::new(kind, form, running.choices),
        running,
        batch: Vec::with_capacity(EVENTS_PER_WRITE),
        keep_alive: Box::pin(tokio::time::sleep(limits.keep_alive_interval())),
        keep_alive_interval: limits.keep_alive_interval(),
        last_event: Instant::now(),
        silence_limit: limits.reply_silence_timeout(),
        ended: false,
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache, no-store")),
        // A buffering proxy would turn the stream into one late answer.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(stream)).into_response()
}

impl ReplyStream {
    /// Writes the events in `batch`; the stream ends with the first that ends the reply.
    fn write_batch(&mut self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 * self.batch.len());
        for event in self.batch.drain(..) {
            self.running.clock.saw(&event);
            match self.writer.write(event, &mut out) {
                Next::More => {}
                Next::Done(usage) => {
                    self.running.clock.stop("done", Some(&usage));
                    self.ended = true;
                    break;
                }
                Next::Failed => {
                    self.running.clock.stop("failed", None);
                    self.ended = true;
                    break;
                }
            }
        }
        out
    }

    fn touched(&mut self) {
        self.last_event = Instant::now();
        let at = self.last_event + self.keep_alive_interval;
        self.keep_alive.as_mut().reset(at);
    }
}

impl Stream for ReplyStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if this.ended {
                return Poll::Ready(None);
            }
            let ahead = std::mem::take(&mut this.running.ahead);
            if ahead.is_empty() {
                match this.running.events.poll_recv_many(cx, &mut this.batch, EVENTS_PER_WRITE) {
                    Poll::Ready(0) => this.batch.push(ReplyEvent::Failed(broke_off())),
                    Poll::Ready(_) => {}
                    Poll::Pending => {
                        if this.keep_alive.as_mut().poll(cx).is_pending() {
                            return Poll::Pending;
                        }
                        if this.last_event.elapsed() < this.silence_limit {
                            let next = Instant::now() + this.keep_alive_interval;
                            this.keep_alive.as_mut().reset(next);
                            return Poll::Ready(Some(Ok(Bytes::from_static(KEEP_ALIVE))));
                        }
                        this.batch.push(ReplyEvent::Failed(silent()));
                    }
                }
            } else {
                this.batch.extend(ahead);
            }
            let out = this.write_batch();
            this.touched();
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(out.into())));
            }
        }
    }
}
