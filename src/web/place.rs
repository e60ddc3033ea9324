//! Addresses of pages as text: which may be fetched at all, before any name is looked up.

use std::net::IpAddr;

use url::{Host, Url};

use super::Fault;
use super::address::closed;

/// Longest address, bytes.
const BYTES_MAX: usize = 2_048;
/// Endings of names that stand for something in the house.
const HOUSE: &[&str] = &[
    "localhost",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "private",
    "home.arpa",
    "test",
    "invalid",
    "onion",
];

/// Names of domains that the owner allows and blocks; each with everything below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Domains {
    /// Empty: all but the blocked ones.
    pub allowed: Vec<String>,
    pub blocked: Vec<String>,
}

impl Domains {
    fn allow(&self, host: &str) -> bool {
        let within = |domain: &String| {
            host.strip_suffix(domain.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        !self.blocked.iter().any(within) && (self.allowed.is_empty() || self.allowed.iter().any(within))
    }
}

/// Where a page lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub url: Url,
    pub host: Named,
    pub port: u16,
    pub tls: bool,
}

/// A name that is still to be looked up, or an address that was said itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Named {
    Name(String),
    Address(IpAddr),
}

impl Place {
    /// Checks the address of a page. Numbers in whatever form they were written are addresses here, and checked as such.
    pub fn of(mut url: Url, domains: &Domains) -> Result<Place, Fault> {
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(Fault::Address("only http and https are fetched")),
        };
        if url.as_str().len() > BYTES_MAX {
            return Err(Fault::Address("the address is too long"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Fault::Address("the address holds a user's name"));
        }
        let port = url.port_or_known_default().unwrap_or_default();
        if port != if tls { 443 } else { 80 } {
            return Err(Fault::Address("only the ports 80 and 443 are fetched from"));
        }
        url.set_fragment(None);
        let host = match url.host() {
            Some(Host::Domain(name)) => Named::Name(checked(name)?),
            Some(Host::Ipv4(address)) => Named::Address(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Named::Address(IpAddr::V6(address)),
            None => return Err(Fault::Address("the address names no host")),
        };
        if let Named::Address(address) = host
            && let Some(what) = closed(address)
        {
            return Err(Fault::Closed(what));
        }
        let named = match &host {
            Named::Name(name) => name.clone(),
            Named::Address(address) => address.to_string(),
        };
        match domains.allow(&named) {
            true => Ok(Place { url, host, port, tls }),
            false => Err(Fault::Address("its domain is not allowed (`web.allowed_domains`, `web.blocked_domains`)")),
        }
    }
}

/// A name of the open internet, as far as a name tells.
fn checked(name: &str) -> Result<String, Fault> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let of_house = HOUSE.iter().any(|end| name.strip_suffix(end).is_some_and(|before| before.ends_with('.')));
    if !name.contains('.') || of_house {
        return Err(Fault::Address("its name is one of the own network"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str, domains: &Domains) -> Result<String, String> {
        let place = Place::of(Url::parse(url).map_err(|error| error.to_string())?, domains);
        place.map(|place| place.url.to_string()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn only_pages_of_the_open_internet_are_fetched() {
        let all = Domains::default();
        assert_eq!(place("https://a.example/b?c#d", &all).unwrap(), "https://a.example/b?c");
        assert!(place("http://8.8.8.8/", &all).is_ok() && place("http://[2606:4700::1111]/", &all).is_ok());
        for (url, words) in [
            ("ftp://a.example/", "only http and https"),
            ("file:///etc/passwd", "only http and https"),
            ("data:text/html,x", "only http and https"),
            ("https://u@a.example/", "user's name"),
            ("https://u:p@a.example/", "user's name"),
            ("http://a.example:22/", "ports 80 and 443"),
            ("http://a.example:443/", "ports 80 and 443"),
            ("https://a.example:80/", "ports 80 and 443"),
            ("http://localhost/", "own network"),
            ("http://x.localhost/", "own network"),
            ("http://nas.local/", "own network"),
            ("http://nas.local./", "own network"),
            ("http://NAS/", "own network"),
            ("http://metadata.google.internal/", "own network"),
            // Forms of 127.0.0.1 and its like.
            ("http://127.0.0.1/", "loopback"),
            ("http://2130706433/", "loopback"),
            ("http://0x7f.1/", "loopback"),
            ("http://0177.0.0.1/", "loopback"),
            ("http://127.1/", "loopback"),
            ("http://127.0.0.1./", "loopback"),
            ("http://\u{ff11}27.0.0.1/", "loopback"),
            ("http://[::1]/", "not of the open internet"),
            ("http://[::ffff:127.0.0.1]/", "IPv4 in another form"),
            ("http://[fd00::1]/", "not of the open internet"),
            ("http://169.254.169.254/latest/meta-data", "link-local"),
            ("http://0/", "of this host"),
        ] {
            let why = place(url, &all).expect_err(url);
            assert!(why.contains(words), "{url}: {why}");
        }
        let long = format!("https://a.example/{}", "a".repeat(BYTES_MAX));
        assert!(place(&long, &all).unwrap_err().contains("too long"));
    }

    #[test]
    fn domains_are_allowed_and_blocked_with_all_below_them() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let some = Domains { allowed: list(&["a.example", "b.example"]), blocked: list(&["bad.a.example"]) };
        for good in ["https://a.example/", "https://x.a.example/", "https://b.example/"] {
            assert!(place(good, &some).is_ok(), "{good}");
        }
        for bad in ["https://c.example/", "https://xa.example/", "https://bad.a.example/", "https://8.8.8.8/"] {
            assert!(place(bad, &some).unwrap_err().contains("not allowed"), "{bad}");
        }
        let but = Domains { allowed: Vec::new(), blocked: list(&["8.8.8.8", "x.example"]) };
        assert!(place("https://a.example/", &but).is_ok() && place("https://8.8.8.8/", &but).is_err());
    }
}
