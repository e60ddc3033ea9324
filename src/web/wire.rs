//! One request and its answer over a connection that is open already: HTTP/1.1, by TLS where the address says so. What an
//! answer may hold is bounded, and nothing of it is followed here.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION,
    USER_AGENT,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::Url;

use super::Fault;

/// Who asks, as servers are told.
const AGENT: &str = concat!("Chimere/", env!("CARGO_PKG_VERSION"));
/// Bytes of the head of an answer, and its lines.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 128;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) location: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) body: Vec<u8>,
    /// It was longer.
    pub(super) cut: bool,
}

/// What is asked of a server beside its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) accept: &'static str,
    /// A header that nobody else is shown.
    pub(super) secret: Option<(&'static str, &'a str)>,
    pub(super) bytes_max: usize,
    /// Kinds of content whose body is read; empty: all.
    pub(super) kinds: &'static [&'static str],
}

/// Checks servers by the authorities of this machine, and by a test's own.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    pub(super) fn new(trusted: Option<&Path>) -> Result<Tls, String> {
        let mut roots = RootCertStore::empty();
        match trusted {
            Some(file) => {
                let own =
                    CertificateDer::from_pem_file(file).map_err(|error| format!("{}: {error}", file.display()))?;
                roots.add(own).map_err(|error| format!("{}: {error}", file.display()))?;
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let provider = Arc::new(ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = versions.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth();
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }

    /// Authorities that this machine trusts.
    pub(super) fn authorities() -> usize {
        rustls_native_certs::load_native_certs().certs.len()
    }
}

/// Asks for what an address names, over a connection to its host.
pub(super) async fn get(stream: TcpStream, url: &Url, tls: Option<&Tls>, asked: Asked<'_>) -> Result<Answer, Fault> {
    let _ = stream.set_nodelay(true);
    match tls {
        None => exchange(stream, url, asked).await,
        Some(Tls(connector)) => {
            let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.').to_owned();
            let name = ServerName::try_from(host).map_err(|_| Fault::Untrusted("its name is none".to_owned()))?;
            let stream = connector.connect(name, stream).await;
            exchange(stream.map_err(|error| Fault::Untrusted(error.to_string()))?, url, asked).await
        }
    }
}

async fn exchange<S>(stream: S, url: &Url, asked: Asked<'_>) -> Result<Answer, Fault>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| Fault::Broken(said(&error));
    let mut client = http1::Builder::new();
    client.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let request = request(url, asked)?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = response.into_parts();
        let of = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (kind, packed) = (of(CONTENT_TYPE), of(CONTENT_ENCODING));
        let mut answer =
            Answer { status: head.status.as_u16(), location: of(LOCATION), kind, body: Vec::new(), cut: false };
        let essence = answer.kind.as_deref().map(essence);
        let wanted = asked.kinds.is_empty() || essence.is_some_and(|kind| asked.kinds.contains(&kind.as_str()));
        if answer.status == 200 && wanted {
            (answer.body, answer.cut) = read(body, asked.bytes_max).await?;
            unpack(&mut answer, packed.as_deref(), asked.bytes_max)?;
        }
        Ok(answer)
    };
    tokio::pin!(talk, connection);
    // The connection is driven for as long as somebody waits for its answer, and dropped with it.
    tokio::select! {
        answer = &mut talk => answer,
        ended = &mut connection => match ended {
            Err(error) => Err(broken(error)),
            Ok(()) => talk.await,
        },
    }
}

fn request(url: &Url, asked: Asked<'_>) -> Result<Request<Empty<Bytes>>, Fault> {
    let host = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, _) => return Err(Fault::Address("the address names no host")),
    };
    let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let mut request = Request::get(path)
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, asked.accept)
        .header(ACCEPT_ENCODING, "gzip, identity")
        .header(CONNECTION, "close");
    if let Some((name, value)) = asked.secret {
        let mut value = HeaderValue::from_str(value).map_err(|_| Fault::Address("the key holds no text"))?;
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    request.body(Empty::new()).map_err(|_| Fault::Address("the address cannot be asked for"))
}

/// A body up to so many bytes; whether there was more.
async fn read(mut body: hyper::body::Incoming, bytes_max: usize) -> Result<(Vec<u8>, bool), Fault> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| Fault::Broken(said(&error)))?.into_data() else { continue };
        let room = bytes_max - bytes.len();
        bytes.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return Ok((bytes, true));
        }
    }
    Ok((bytes, false))
}

/// Unpacks a body that came in gzip, up to so many bytes.
fn unpack(answer: &mut Answer, packed: Option<&str>, bytes_max: usize) -> Result<(), Fault> {
    match packed.map(str::trim).filter(|how| !how.is_empty() && !how.eq_ignore_ascii_case("identity")) {
        None => Ok(()),
        Some(how) if how.eq_ignore_ascii_case("gzip") || how.eq_ignore_ascii_case("x-gzip") => {
            let mut plain = Vec::new();
            let read = MultiGzDecoder::new(answer.body.as_slice()).take(bytes_max as u64 + 1).read_to_end(&mut plain);
            // The beginning of one that was cut is good.
            if read.is_err() && !answer.cut {
                return Err(Fault::Broken("its gzip is damaged".to_owned()));
            }
            answer.cut |= plain.len() > bytes_max;
            plain.truncate(bytes_max);
            answer.body = plain;
            Ok(())
        }
        Some(_) => Err(Fault::Kind("packed in a way that is not read".to_owned())),
    }
}

/// A kind of content without its parameters.
pub(super) fn essence(kind: &str) -> String {
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// An error of hyper's with its cause, which says more.
fn said(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
