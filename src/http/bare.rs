//! Hyper refuses some input before any request exists: too large a header block, too long an address, bytes that are no
//! HTTP/1. It answers them with a bare status. On its way to the socket such an answer gets an id and the envelope, as
//! every other one has.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::ApiError;
use super::gate::{REQUEST_ID, request_id};

/// A stream whose bare refusals are dressed.
pub(crate) struct Dressed<S> {
    inner: S,
    /// An answer in the place of a bare one, and how much of it is written.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S> Dressed<S> {
    pub(crate) fn new(inner: S) -> Self {
        Dressed { inner, instead: None }
    }
}

/// The status of an answer that the router did not make: those all have an id.
fn bare(bytes: &[u8]) -> Option<StatusCode> {
    let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let head = std::str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?.to_ascii_lowercase();
    let has = |name: &str| head.contains(&format!("\r\n{name}:"));
    let empty = head.contains("\r\ncontent-length: 0");
    (status[0] == b'4' && empty && !has(REQUEST_ID.as_str())).then(|| StatusCode::from_bytes(status).ok()).flatten()
}

/// The answer that says what the status means.
fn dressed(status: StatusCode) -> Vec<u8> {
    let (code, message) = match status.as_u16() {
        431 => ("headers_too_large", "the headers of the request are too many or too large"),
        414 => ("address_too_long", "the address of the request is too long"),
        _ => ("bad_request", "the request is no valid HTTP: its first line, a header or its framing is wrong"),
    };
    let body = ApiError::new(status, "invalid_request_error", message).code(code).envelope().to_string();
    let id = request_id();
    tracing::info!(request_id = %id, status = status.as_u16(), "a request was refused unread");
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{REQUEST_ID}: {id}\r\nx-content-type-options: nosniff\r\n\
         cache-control: no-store\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl<S: AsyncWrite + Unpin> Dressed<S> {
    /// Writes the answer that stands in the place of these bytes; `None`: none does.
    fn write_instead(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.instead.is_none() {
            self.instead = Some((dressed(bare(bytes)?), 0));
        }
        let (answer, written) = self.instead.as_mut()?;
        while *written < answer.len() {
            match ready_some(Pin::new(&mut self.inner).poll_write(cx, &answer[*written..])) {
                Ok(0) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Ok(n) => *written += n,
                Err(other) => return Some(other),
            }
        }
        self.instead = None;
        Some(Poll::Ready(Ok(bytes.len())))
    }
}

/// Bytes written, or what to return instead.
fn ready_some(polled: Poll<io::Result<usize>>) -> Result<usize, Poll<io::Result<usize>>> {
    match polled {
        Poll::Ready(Ok(n)) => Ok(n),
        other => Err(other),
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Dressed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Dressed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.write_instead(cx, buf) {
            Some(written) => written,
            None => Pin::new(&mut self.inner).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A bare answer has no body, and so is one piece.
        let first = bufs.iter().find(|buf| !buf.is_empty());
        match first.and_then(|first| self.write_instead(cx, first)) {
            Some(written) => written,
            None => Pin::new(&mut self.inner).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn only_bare_refusals_are_dressed() {
        let own = "HTTP/1.1 404 Not Found\r\nx-request-id: req-1\r\ncontent-length: 0\r\n\r\n";
        let good = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let body = "HTTP/1.1 431 said the model\r\ncontent-length: 0";
        for (bytes, status) in [
            (own, None),
            (good, None),
            (body, None),
            (
                "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
                Some(431),
            ),
        ] {
            // A pipe so narrow that nothing fits at once.
            let (mine, mut theirs) = tokio::io::duplex(7);
            let mut stream = Dressed::new(mine);
            let writing = async {
                stream.write_all(bytes.as_bytes()).await.unwrap();
                drop(stream);
            };
            let mut read = String::new();
            let (_, got) = tokio::join!(writing, theirs.read_to_string(&mut read));
            got.unwrap();
            match status {
                None => assert_eq!(read, bytes),
                Some(status) => {
                    assert!(read.starts_with(&format!("HTTP/1.1 {status} ")), "{read}");
                    assert!(read.contains("x-request-id: req-") && read.contains("headers_too_large"), "{read}");
                }
            }
        }
    }
}
