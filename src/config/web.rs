//! Which search engine the web is searched by, and how far a search goes. Without an engine no connection outward is opened.

use std::path::PathBuf;
use std::time::Duration;

use url::{Host, Url};

use super::raw::{self, Field};
use super::{ConfigError, millis, number};
use crate::web::Domains;

/// Brave's address where nobody names another one.
const BRAVE: &str = "https://api.search.brave.com/res/v1/web/search";
const DOMAINS_MAX: usize = 1_000;
const URL_WANTED: &str = "an address without a user's name, such as http://127.0.0.1:8888";

/// A search engine.
#[derive(Clone, Debug, PartialEq)]
pub enum SearchEngine {
    /// SearXNG, asked for JSON.
    Searxng(Url),
    /// Brave's API, with the file of its key.
    Brave(Url, PathBuf),
}

impl SearchEngine {
    pub fn name(&self) -> &'static str {
        match self {
            SearchEngine::Searxng(_) => "searxng",
            SearchEngine::Brave(..) => "brave",
        }
    }

    pub fn url(&self) -> &Url {
        match self {
            SearchEngine::Searxng(url) | SearchEngine::Brave(url, _) => url,
        }
    }
}

/// Searching the web.
#[derive(Clone, Debug, PartialEq)]
pub struct WebConfig {
    pub engine: SearchEngine,
    pub domains: Domains,
    /// Results of a search that are looked at, and how many of their pages are fetched.
    pub results: usize,
    pub pages: usize,
    pub page_bytes_max: usize,
    pub search_timeout: Duration,
    /// For all pages of a reply together.
    pub fetch_timeout: Duration,
    pub rank_timeout: Duration,
    /// For all of it.
    pub timeout: Duration,
    /// How long a search and a page are kept in memory.
    pub cache: Duration,
}

/// `None`: no engine is named. What else is said is checked all the same.
pub(super) fn web(raw: raw::WebSection) -> Result<Option<WebConfig>, ConfigError> {
    let results = number(raw.results, 10, 1..=20, "web.results")? as usize;
    let pages = number(raw.pages, 4, 0..=10, "web.pages")? as usize;
    let page_bytes_max = number(raw.page_bytes_max, 1 << 20, 1 << 12..=4 << 20, "web.page_bytes_max")? as usize;
    let search_timeout = millis(raw.search_timeout_ms, 4_000, "web.search_timeout_ms")?;
    let fetch_timeout = millis(raw.fetch_timeout_ms, 5_000, "web.fetch_timeout_ms")?;
    let rank_timeout = millis(raw.rank_timeout_ms, 1_000, "web.rank_timeout_ms")?;
    let timeout = Duration::from_millis(number(raw.timeout_ms, 10_000, 100..=120_000, "web.timeout_ms")?);
    let cache = Duration::from_millis(number(raw.cache_ms, 600_000, 0..=86_400_000, "web.cache_ms")?);
    let domains = Domains {
        allowed: domains(raw.allowed_domains, "web.allowed_domains")?,
        blocked: domains(raw.blocked_domains, "web.blocked_domains")?,
    };
    let url = raw.url.map(|field| address(&field).map(|url| (url, field))).transpose()?;
    let Some(engine) = raw.engine else { return Ok(None) };
    let lacks = |key: &'static str, wanted: &str| ConfigError::Range {
        origin: engine.origin.clone(),
        key,
        value: "missing".to_owned(),
        wanted: wanted.to_owned(),
    };
    let engine = match engine.value.as_str() {
        "searxng" => {
            let (url, _) = url.ok_or_else(|| lacks("web.url", "SearXNG's address, such as http://127.0.0.1:8888"))?;
            SearchEngine::Searxng(url)
        }
        "brave" => {
            let file = raw.key_file.ok_or_else(|| lacks("web.key_file", "the file that holds Brave's key"))?.value;
            let own = url.map(|(url, field)| secret(&url).then_some(url).ok_or(field)).transpose();
            let url = own.map_err(|field| out_of_range(&field, "web.url", "https: a key is sent to it"))?;
            match url.map_or_else(|| Url::parse(BRAVE), Ok) {
                Ok(url) => SearchEngine::Brave(url, file),
                Err(_) => return Err(lacks("web.url", URL_WANTED)),
            }
        }
        _ => return Err(out_of_range(&engine, "web.engine", "searxng or brave; leave it out to search no web")),
    };
    Ok(Some(WebConfig {
        engine,
        domains,
        results,
        pages,
        page_bytes_max,
        search_timeout,
        fetch_timeout,
        rank_timeout,
        timeout,
        cache,
    }))
}

fn out_of_range(field: &Field<String>, key: &'static str, wanted: &str) -> ConfigError {
    let (origin, value) = (field.origin.clone(), format!("`{}`", field.value.escape_debug()));
    ConfigError::Range { origin, key, value, wanted: wanted.to_owned() }
}

fn address(field: &Field<String>) -> Result<Url, ConfigError> {
    let url = Url::parse(&field.value).ok().filter(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
    });
    url.ok_or_else(|| out_of_range(field, "web.url", URL_WANTED))
}

/// Nobody else reads what is sent there.
fn secret(url: &Url) -> bool {
    let own = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || own
}

/// Names of domains, as addresses write them.
fn domains(field: Option<Field<Vec<String>>>, key: &'static str) -> Result<Vec<String>, ConfigError> {
    let Some(Field { value, origin, .. }) = field else { return Ok(Vec::new()) };
    let refuse = |value: String, wanted: &str| ConfigError::Range {
        origin: origin.clone(),
        key,
        value,
        wanted: wanted.to_owned(),
    };
    if value.len() > DOMAINS_MAX {
        return Err(refuse(format!("{} domains", value.len()), &format!("at most {DOMAINS_MAX}")));
    }
    let one = |name: &String| {
        let wrong = || {
            let wanted = "names alone, such as example.com, which stands for all below it too";
            refuse(format!("`{}`", name.escape_debug()), wanted)
        };
        let plain = !name.is_empty() && !name.contains(['/', ':', '@', '*', '?', '#', ' ']);
        let url = Url::parse(&format!("http://{name}/")).ok().filter(|_| plain).ok_or_else(wrong)?;
        url.host_str().map(|host| host.trim_matches('.').to_owned()).filter(|host| !host.is_empty()).ok_or_else(wrong)
    };
    value.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw::RawConfig;

    fn of(text: &str) -> Result<Option<WebConfig>, String> {
        let raw = RawConfig::parse(&format!("[web]\n{text}"), "c").unwrap();
        web(raw.web).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_searched_until_an_engine_is_named() {
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("url = 'http://127.0.0.1:8888'\nresults = 5"), Ok(None));
        let web = of("engine = 'searxng'\nurl = 'http://127.0.0.1:8888/s'").unwrap().unwrap();
        assert_eq!((web.engine.name(), web.engine.url().as_str()), ("searxng", "http://127.0.0.1:8888/s"));
        assert_eq!((web.results, web.pages, web.page_bytes_max), (10, 4, 1 << 20));
        let brave = of("engine = 'brave'\nkey_file = '/k'").unwrap().unwrap();
        assert_eq!(brave.engine, SearchEngine::Brave(Url::parse(BRAVE).unwrap(), "/k".into()));
        let lists =
            "engine = 'searxng'\nurl = 'https://s.example'\nallowed_domains = ['Example.COM', 'b\u{fc}cher.example']";
        assert_eq!(of(lists).unwrap().unwrap().domains.allowed, ["example.com", "xn--bcher-kva.example"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_key_and_what_to_write() {
        for (text, words) in [
            ("engine = 'google'", "web.engine is `google`, but must be searxng or brave"),
            ("engine = 'searxng'", "web.url is missing, but must be SearXNG's address"),
            ("engine = 'brave'", "web.key_file is missing"),
            ("engine = 'brave'\nkey_file = '/k'\nurl = 'http://b.example/'", "https: a key is sent to it"),
            ("url = 'ftp://a'", "web.url is `ftp://a`, but must be an address"),
            ("url = 'http://u:p@a/'", "must be an address without a user's name"),
            ("url = 'http://a/?q=1'", "web.url"),
            ("results = 21", "web.results is 21, but must be 1 to 20"),
            ("pages = 11", "web.pages is 11, but must be 0 to 10"),
            ("page_bytes_max = 1", "web.page_bytes_max is 1"),
            ("timeout_ms = 1", "web.timeout_ms is 1, but must be 100 to 120000"),
            ("blocked_domains = ['http://a']", "web.blocked_domains is `http://a`, but must be names alone"),
            ("allowed_domains = ['*.a']", "web.allowed_domains is `*.a`"),
            ("allowed_domains = ['']", "web.allowed_domains is ``"),
        ] {
            let why = of(text).expect_err(text);
            assert!(why.starts_with("c:") && why.contains(words), "{text}: {why}");
        }
    }
}
