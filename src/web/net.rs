//! The only place of the daemon that opens a connection to somewhere else: names are looked up here, and addresses dialled.
//! It exists where a search engine is configured, and nowhere else.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::Fault;
use super::address::{closed, neighbours};
use super::place::Named;

/// Addresses of one name that are tried, and how long each.
const TRIED_MAX: usize = 4;
const DIAL_WITHIN: Duration = Duration::from_secs(2);
/// Addresses of one name that are looked at.
const ADDRESSES_MAX: usize = 64;

/// How names become addresses and addresses connections.
pub(super) enum Net {
    System,
    /// As a test says.
    Told(Told),
}

impl Net {
    /// A connection to a page's host. Its name is looked up once; every address of it must be of the open internet, and one of
    /// these is dialled.
    pub(super) async fn open(&self, name: &Named, port: u16) -> Result<TcpStream, Fault> {
        let addresses = match name {
            Named::Address(address) => vec![*address],
            Named::Name(name) => self.addresses(name, port).await?,
        };
        if addresses.is_empty() {
            return Err(Fault::Unknown);
        }
        for address in &addresses {
            if let Some(what) = closed(*address) {
                return Err(Fault::Closed(what));
            }
            if self.is_near(*address, port) {
                return Err(Fault::Closed("in the own network"));
            }
        }
        let mut last = io::Error::other("no address");
        for address in addresses.into_iter().take(TRIED_MAX) {
            match timeout(DIAL_WITHIN, self.dial(SocketAddr::new(address, port))).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(unreachable(&last))
    }

    /// A connection to the search engine that the owner configured, wherever it is.
    pub(super) async fn open_engine(&self, host: &str, port: u16) -> Result<TcpStream, Fault> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        TcpStream::connect((host, port)).await.map_err(|error| unreachable(&error))
    }

    async fn addresses(&self, name: &str, port: u16) -> Result<Vec<IpAddr>, Fault> {
        match self {
            Net::System => {
                let found = lookup_host((name, port)).await.map_err(|_| Fault::Unknown)?;
                let mut addresses: Vec<IpAddr> = found.map(|found| found.ip()).take(ADDRESSES_MAX).collect();
                // A house without IPv6 is more frequent than one without IPv4.
                addresses.sort_by_key(IpAddr::is_ipv6);
                Ok(addresses)
            }
            Net::Told(told) => told.addresses(name).ok_or(Fault::Unknown),
        }
    }

    /// Whether an open address is this machine's, or of a neighbour of its. Nothing is sent for it.
    fn is_near(&self, address: IpAddr, port: u16) -> bool {
        if let Net::Told(_) = self {
            return false;
        }
        let any: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect((address, port))?;
            socket.local_addr()
        });
        // Without a way to it there is no connection either.
        own.is_ok_and(|own| neighbours(own.ip(), address))
    }

    async fn dial(&self, to: SocketAddr) -> io::Result<TcpStream> {
        match self {
            Net::System => TcpStream::connect(to).await,
            Net::Told(told) => TcpStream::connect(told.dialled(to)?).await,
        }
    }

    /// Who may vouch for servers beside the authorities of this machine.
    pub(super) fn trusted(&self) -> Option<&Path> {
        match self {
            Net::System => None,
            Net::Told(told) => told.trust.as_deref(),
        }
    }
}

fn unreachable(error: &io::Error) -> Fault {
    Fault::Unreachable(match error.kind() {
        // So the kernel answers where the unit lets nothing out.
        io::ErrorKind::PermissionDenied => {
            "not permitted (the installed unit needs its drop-in for the web)".to_owned()
        }
        kind => kind.to_string(),
    })
}

/// An internet of a test: names with their addresses, and where those are on this machine. The rules for addresses hold in it
/// as in the real one. Lines of its file:
///
/// - `name HOST ANSWER …`: an answer is addresses with commas; each lookup gives the next one, and the last for ever
/// - `dial ADDRESS PLACE`: whoever dials the address is connected to the place; any other address cannot be reached
/// - `trust FILE`: a certificate (PEM) that vouches for servers
/// - `log FILE`: every lookup and every dial is written to it, a line each
#[derive(Default)]
pub(super) struct Told {
    names: HashMap<String, Mutex<Vec<Vec<IpAddr>>>>,
    places: HashMap<IpAddr, SocketAddr>,
    trust: Option<PathBuf>,
    log: Option<PathBuf>,
}

impl Told {
    pub(super) fn read(text: &str) -> Result<Told, String> {
        let mut told = Told::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let mut words = line.split_whitespace();
            let wrong = || format!("no line of an internet: {line}");
            let (kind, first) = (words.next().ok_or_else(wrong)?, words.next().ok_or_else(wrong)?);
            match kind {
                "name" => {
                    let answer = |word: &str| -> Result<Vec<IpAddr>, String> {
                        word.split(',').map(|one| one.parse().map_err(|_| wrong())).collect()
                    };
                    let mut answers = words.map(answer).collect::<Result<Vec<_>, String>>()?;
                    answers.reverse();
                    told.names.insert(first.to_owned(), Mutex::new(answers));
                }
                "dial" => {
                    let place = words.next().and_then(|place| place.parse().ok()).ok_or_else(wrong)?;
                    told.places.insert(first.parse().map_err(|_| wrong())?, place);
                }
                "trust" => told.trust = Some(first.into()),
                "log" => told.log = Some(first.into()),
                _ => return Err(wrong()),
            }
        }
        Ok(told)
    }

    fn addresses(&self, name: &str) -> Option<Vec<IpAddr>> {
        self.write(&format!("lookup {name}"));
        let mut answers = self.names.get(name)?.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() > 1 { answers.pop() } else { answers.last().cloned() }
    }

    fn dialled(&self, to: SocketAddr) -> io::Result<SocketAddr> {
        self.write(&format!("dial {to}"));
        self.places.get(&to.ip()).copied().ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }

    fn write(&self, line: &str) {
        let Some(log) = &self.log else { return };
        let file = OpenOptions::new().append(true).create(true).open(log);
        if let Err(error) = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())) {
            tracing::error!(%error, "the log of a test's internet");
        }
    }
}
