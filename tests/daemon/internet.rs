//! A little internet in a test: a server that is every page and the search engine too, and the file that says which names and
//! addresses lead to it. The daemon's rules for addresses hold in it as in the real one.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a page does.
#[derive(Clone)]
pub enum Page {
    /// Status, kind of content, further lines of the head, body.
    Whole(u16, &'static str, Vec<String>, Vec<u8>),
    /// A body without an end, as fast as it is taken.
    Endless(&'static str),
    /// A byte now and then.
    Drip,
    /// The connection is taken, and nothing is said.
    Silent,
}

impl Page {
    pub fn html(body: &str) -> Page {
        Page::Whole(200, "text/html", Vec::new(), body.as_bytes().to_vec())
    }

    pub fn to(address: &str) -> Page {
        Page::Whole(302, "text/html", vec![format!("Location: {address}")], Vec::new())
    }
}

#[derive(Default)]
struct Shared {
    pages: Mutex<HashMap<String, Page>>,
    /// What the engine answers, as JSON; absent: that it gives no JSON.
    results: Mutex<Option<String>>,
    seen: Mutex<Vec<String>>,
}

pub struct Internet {
    dir: tempfile::TempDir,
    pub place: SocketAddr,
    shared: Arc<Shared>,
}

impl Internet {
    /// With these lines in its file beside those that lead the addresses 93.184.216.x to it. A page at `HOST` has the address
    /// that a line `name HOST …` says.
    pub fn new(lines: &str) -> Internet {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = serving.clone();
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let dials: String = (1..100).map(|n| format!("dial 93.184.216.{n} {place}\n")).collect();
        let log = format!("log {}\n", dir.path().join("log").display());
        fs::write(dir.path().join("internet"), format!("{lines}\n{dials}{log}")).unwrap();
        Internet { dir, place, shared }
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("internet")
    }

    /// Puts a page at `host/path`.
    pub fn page(&self, at: &str, page: Page) {
        self.shared.pages.lock().unwrap().insert(at.to_owned(), page);
    }

    /// What the engine finds from now on: address, title, and what it shows of the page.
    pub fn finds(&self, results: &[(&str, &str, &str)]) {
        let one = |(url, title, content): &(&str, &str, &str)| serde_json::json!({"url": url, "title": title, "content": content});
        let all: Vec<_> = results.iter().map(one).collect();
        *self.shared.results.lock().unwrap() = Some(serde_json::json!({"results": all}).to_string());
    }

    /// Requests so far: `HOST/PATH` of pages, `engine QUERY` of searches.
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// What the daemon looked up and dialled so far.
    pub fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) {
    let Ok(mut reading) = stream.try_clone().map(BufReader::new) else { return };
    let (mut first, mut host) = (String::new(), String::new());
    if reading.read_line(&mut first).is_err() {
        return;
    }
    loop {
        let mut line = String::new();
        match reading.read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if line.trim().is_empty() => break,
            Ok(_) => {}
        }
        if let Some((_, value)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("host")) {
            host = value.trim().to_owned();
        }
    }
    let path = first.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let page = match path.strip_prefix("/search?") {
        Some(query) if host.starts_with("127.0.0.1:") => {
            shared.seen.lock().unwrap().push(format!("engine {query}"));
            match shared.results.lock().unwrap().clone() {
                Some(told) => Page::Whole(200, "application/json", Vec::new(), told.into_bytes()),
                None => Page::Whole(403, "text/html", Vec::new(), Vec::new()),
            }
        }
        _ => {
            let at = format!("{host}{path}");
            shared.seen.lock().unwrap().push(at.clone());
            let found = shared.pages.lock().unwrap().get(&at).cloned();
            found.unwrap_or(Page::Whole(404, "text/plain", Vec::new(), Vec::new()))
        }
    };
    // The other side may leave at any moment.
    let _ = send(&mut stream, page);
}

fn send(stream: &mut TcpStream, page: Page) -> std::io::Result<()> {
    let head = |kind: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n");
    match page {
        Page::Whole(status, kind, lines, body) => {
            let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{lines}\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(&body)
        }
        Page::Endless(kind) => {
            stream.write_all(head(kind).as_bytes())?;
            let piece = "A sentence without an end about pears. ".repeat(1_000);
            loop {
                stream.write_all(piece.as_bytes())?;
            }
        }
        Page::Drip => {
            stream.write_all(head("text/html").as_bytes())?;
            loop {
                stream.write_all(b"x")?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Page::Silent => {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        }
    }
}
