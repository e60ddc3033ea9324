//! The command line's own HTTP client: plain JSON and event streams of a daemon. Whatever goes wrong is
//! one clear line.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use chimere::whole;
use serde_json::Value;

use super::exit::{EX_DATAERR, EX_IOERR, EX_NOPERM, EX_SOFTWARE, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, coded, note};

/// Longest wait for a connection: the daemon is near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence of a stream; the daemon sends comments far more often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest single event, bytes.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Which daemon, and with which key.
#[derive(clap::Args, Clone, Debug)]
pub struct Where {
    /// Address of the daemon
    #[arg(long, global = true, env = "CHIMERE_URL", value_name = "URL")]
    pub url: Option<String>,
    /// API key, if the daemon needs one
    #[arg(long, global = true, env = "CHIMERE_KEY", hide_env_values = true)]
    pub key: Option<String>,
}

impl Where {
    /// The address that somebody named; a variable that is set to nothing names none.
    pub fn named(&self) -> Option<&str> {
        self.url.as_deref().filter(|url| !url.trim().is_empty())
    }

    /// The key that somebody showed; a variable that is set to nothing is none.
    pub fn shown(&self) -> Option<&str> {
        self.key.as_deref().filter(|key| !key.trim().is_empty())
    }
}

/// Which daemon, and how its answer is printed: of commands of which each prints JSON where that is wanted.
#[derive(clap::Args, Clone, Debug)]
pub struct Target {
    #[command(flatten)]
    pub at: Where,
    /// As JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// A daemon that can be asked.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

impl Client {
    /// `listen` is the configured address, used where no URL was given.
    pub fn new(target: &Where, listen: SocketAddr) -> anyhow::Result<Self> {
        let base = match target.named() {
            Some(url) if url.contains("://") => url.trim_end_matches('/').to_owned(),
            Some(host) => format!("http://{}", host.trim_end_matches('/')),
            None => format!("http://{}", reachable(listen)),
        };
        if !base.starts_with("http://") {
            let message = "is not an http:// address: this client speaks to a daemon on the own machine or network";
            return Err(coded(EX_USAGE, format!("{base} {message}")));
        }
        if let Err(error) = reqwest::Url::parse(&base) {
            return Err(coded(
                EX_USAGE,
                format!("{base} is no address ({error}): write HOST:PORT or http://HOST:PORT"),
            ));
        }
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE_TIMEOUT)
            // A server may close an idle connection in the moment in which it is used again, and a POST is not repeated.
            .pool_max_idle_per_host(0)
            .build()
            .context("cannot set up the HTTP client")?;
        Ok(Client { http, base, key: target.shown().map(str::to_owned) })
    }

    /// Where the daemon is asked.
    pub fn address(&self) -> &str {
        &self.base
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Whether the address is one of this machine: its files and its memory are the daemon's too.
    pub fn is_here(&self) -> bool {
        let Ok(url) = reqwest::Url::parse(&self.base) else { return false };
        let addresses = url.socket_addrs(|| None).unwrap_or_default();
        // What can be bound is of this machine.
        let ours = |ip: IpAddr| ip.is_loopback() || TcpListener::bind((ip, 0)).is_ok();
        addresses.iter().any(|address| ours(address.ip()))
    }

    /// A request whose answer is a success; anything else becomes an error with the daemon's own words.
    async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body: Value = response.json().await.unwrap_or(Value::Null);
        let stranger = || format!("{} answers with {status}, not as a daemon of ours: is --url right?", self.base);
        // A proxy's own words: the daemon's have the envelope.
        if matches!(status.as_u16(), 502..=504) && !body["error"]["message"].is_string() {
            let next = "start that daemon, or say with --url where it is";
            let message = format!("a proxy at {} answers {status}: the daemon behind it does not: {next}", self.base);
            return Err(coded(EX_UNAVAILABLE, message));
        }
        let message = body["error"]["message"].as_str().map_or_else(stranger, printable);
        Err(match status.as_u16() {
            403 if self.key.is_some() => {
                coded(EX_NOPERM, format!("{message} (CHIMERE_KEY or --key shows another key)"))
            }
            401 | 403 => coded(EX_NOPERM, format!("{message} (set CHIMERE_KEY or --key)")),
            429 | 503 => coded(EX_TEMPFAIL, message),
            400..500 => coded(EX_DATAERR, message),
            _ => coded(EX_SOFTWARE, message),
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> anyhow::Error {
        if error.is_connect() {
            let hint = "start one with `chimere serve`, or say where with --url";
            return coded(EX_UNAVAILABLE, format!("no daemon answers at {}: {hint}", self.base));
        }
        if error.is_timeout() {
            return coded(EX_TEMPFAIL, format!("the daemon at {} did not answer in time", self.base));
        }
        if error.is_decode() {
            return self.stranger();
        }
        coded(EX_IOERR, format!("talking to {}: {error}", self.base))
    }

    fn stranger(&self) -> anyhow::Error {
        coded(EX_IOERR, format!("what answers at {} is no daemon of ours: is --url right?", self.base))
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.json(self.request(reqwest::Method::GET, path)).await
    }

    /// The text of an answer.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.send(self.request(reqwest::Method::GET, path)).await?;
        response.text().await.map_err(|error| self.unreachable(&error))
    }

    pub async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.json(self.request(reqwest::Method::DELETE, path)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.json(self.request(reqwest::Method::PATCH, path).json(body)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        // A reply that is not streamed is silent until it is complete.
        self.json(self.request(reqwest::Method::POST, path).json(body).timeout(Duration::from_secs(3600))).await
    }

    async fn json(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Value> {
        let response = self.send(request).await?;
        let text = response.text().await.map_err(|error| self.unreachable(&error))?;
        whole::read_record(&text).map_err(|_| self.stranger())
    }

    /// A POST answered by an event stream. Dropping the stream cancels the reply.
    pub async fn stream(&self, path: &str, body: &Value) -> anyhow::Result<Events> {
        let response = self.send(self.request(reqwest::Method::POST, path).json(body)).await?;
        Ok(Events { response, parser: Parser::default(), done: false })
    }
}

/// An address that listens everywhere is reached on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Text without control characters: what a model or a server says must not steer the terminal.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Says what the daemon left out of a list, for its files are damaged.
pub fn note_damage(list: &Value) {
    if let Some(why) = list["message"].as_str() {
        note!("{}", printable(why));
    }
}

/// The events of one stream.
pub struct Events {
    response: reqwest::Response,
    parser: Parser,
    done: bool,
}

impl Events {
    /// The whole stream, and when each event came. Nothing is parsed before the end: whoever measures a stream leaves
    /// the processor to those who make it.
    pub async fn timed(mut self) -> anyhow::Result<Vec<(Instant, Value)>> {
        let mut pieces = Vec::new();
        while let Some(bytes) = self.response.chunk().await.context("the stream broke off")? {
            pieces.push((Instant::now(), bytes));
        }
        let mut events = Vec::new();
        for (at, bytes) in pieces {
            self.parser.feed(&bytes)?;
            while let Some(event) = self.parsed()? {
                events.push((at, event));
            }
        }
        if !self.done {
            bail!("the stream broke off before its end");
        }
        Ok(events)
    }

    /// The next event; `None` after `[DONE]`. An `error` event and a stream that breaks off are errors.
    pub async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        while !self.done {
            if let Some(event) = self.parsed()? {
                return Ok(Some(event));
            }
            if self.done {
                break;
            }
            match self.response.chunk().await.context("the stream broke off")? {
                Some(bytes) => self.parser.feed(&bytes)?,
                None => bail!("the stream broke off before its end"),
            }
        }
        Ok(None)
    }

    /// The next event of what has come; `None` where more must come, or `done` says that nothing will.
    fn parsed(&mut self) -> anyhow::Result<Option<Value>> {
        let Some(data) = self.parser.next() else { return Ok(None) };
        if data == "[DONE]" {
            self.done = true;
            return Ok(None);
        }
        let event = whole::read_record(&data).context("the daemon sent an event that is not JSON")?;
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(coded(EX_SOFTWARE, printable(message)));
        }
        Ok(Some(event))
    }
}

/// Cuts bytes into the `data` of server-sent events.
#[derive(Debug, Default)]
struct Parser {
    buffer: Vec<u8>,
    ready: std::collections::VecDeque<String>,
    /// Data lines of the event that is being received.
    data: Option<String>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > EVENT_BYTES_MAX {
            bail!("the daemon sent an event of more than {EVENT_BYTES_MAX} bytes");
        }
        let mut start = 0;
        while let Some(length) = self.buffer[start..].iter().position(|&b| b == b'\n') {
            let line = &self.buffer[start..start + length];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                self.ready.extend(self.data.take());
            } else if let Some(text) = line.strip_prefix(b"data:") {
                let text = String::from_utf8_lossy(text.strip_prefix(b" ").unwrap_or(text)).into_owned();
                match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(&text);
                    }
                    None => self.data = Some(text),
                }
            }
            start += length + 1;
        }
        self.buffer.drain(..start);
        Ok(())
    }

    fn next(&mut self) -> Option<String> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_wherever_the_bytes_are() {
        let text = ": hello\n\ndata: {\"a\":\"\u{e9}\"}\r\n\r\ndata:x\ndata: y\n\nevent: z\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            for piece in text.as_bytes().chunks(size) {
                parser.feed(piece).unwrap();
            }
            let events: Vec<_> = std::iter::from_fn(|| parser.next()).collect();
            assert_eq!(events, ["{\"a\":\"\u{e9}\"}", "x\ny", "[DONE]"], "pieces of {size}");
        }
    }

    #[test]
    fn addresses_are_made_reachable() {
        let of = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(of("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(of("[::]:1"), "[::1]:1");
        assert_eq!(of("192.168.1.2:1"), "192.168.1.2:1");
        let listen = "127.0.0.1:1".parse().unwrap();
        let at = |url: &str| Client::new(&Where { url: Some(url.to_owned()), key: None }, listen).map(|c| c.base);
        assert_eq!(at("127.0.0.1:9/").unwrap(), "http://127.0.0.1:9");
        assert!(at("https://example.org").is_err());
        assert_eq!(
            (at("").unwrap(), at(" ").unwrap()),
            ("http://127.0.0.1:1".to_owned(), "http://127.0.0.1:1".to_owned())
        );
    }

    #[test]
    fn an_address_is_of_this_machine_or_not() {
        let listen = "0.0.0.0:1".parse().unwrap();
        let here = |url: Option<&str>| {
            Client::new(&Where { url: url.map(str::to_owned), key: None }, listen).unwrap().is_here()
        };
        assert!(here(None) && here(Some("127.0.0.1:9")) && here(Some("http://[::1]:9")) && here(Some("localhost:9")));
        assert!(!here(Some("203.0.113.7:9")) && !here(Some("http://[2001:db8::7]:9")));
    }

    #[test]
    fn terminal_commands_are_not_printed() {
        assert_eq!(printable("a\u{1b}[31mb\u{7}\u{9b}c\n\td"), "a[31mbc\n\td");
    }
}
