//! Searching the web for a reply: what is asked, found, fetched and shown. No actor, no HTTP server, no model. It exists where
//! the owner configured a search engine, and nowhere else.
//!
//! - [`Web`]: the whole of it. [`search`]: its stages, each with a deadline.
//! - [`engine`]: SearXNG and Brave.
//! - [`fetch`]: one page, with its redirects. [`place`], [`address`]: what may be fetched at all.
//! - [`net`]: names and connections, the only place that dials. [`wire`]: one request and its answer.
//! - [`page`]: bytes of a page to text and passages. [`show`]: how the model is shown them.
//! - [`cache`]: what was found and read a moment ago.

mod address;
mod cache;
mod engine;
mod fetch;
mod net;
mod page;
mod place;
mod search;
pub mod show;
#[cfg(test)]
mod tests;
mod wire;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::Semaphore;

pub use place::Domains;
pub use search::{Gathered, Wanted};

use crate::config::{Config, SearchEngine, WebConfig};
use cache::Cache;
use engine::Hit;
use net::{Net, Told};
use page::Page;
use wire::Tls;

/// Searches under way at once, each with its pages.
const SEARCHES_AT_ONCE: usize = 8;
/// Searches and pages that are kept, and the bytes of each.
const SEARCHES_KEPT: usize = 256;
const PAGES_KEPT: usize = 128;
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Largest file of a key, bytes, and longest key.
const KEY_BYTES_MAX: u64 = 1_024;

/// Why something of the web is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{0}")]
    Address(&'static str),
    #[error("its address is {0}")]
    Closed(&'static str),
    #[error("its name is not known")]
    Unknown,
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it is not trusted: {0}")]
    Untrusted(String),
    #[error("its answer is broken: {0}")]
    Broken(String),
    #[error("it answered {0}")]
    Status(u16),
    #[error("it is {0}")]
    Kind(String),
    #[error("it redirects more than {} times", fetch::REDIRECTS_MAX)]
    Redirects,
    #[error("it has no text")]
    Empty,
    #[error("it was late")]
    Late,
    /// What the owner can do something about.
    #[error("{0}")]
    Engine(String),
}

/// The search of the web.
pub struct Web {
    config: WebConfig,
    /// Of the engine, where it wants one.
    key: Option<Key>,
    net: Net,
    tls: Tls,
    searches: Cache<Vec<Hit>>,
    pages: Cache<Page>,
    permits: Semaphore,
}

/// A secret that no message shows.
struct Key(String);

impl Web {
    /// The search, where an engine is configured.
    pub fn configured(config: &Config) -> Result<Option<Arc<Web>>, String> {
        let open = |web| Web::open(web, config.internet.as_deref()).map(Arc::new);
        config.web.as_ref().map(open).transpose()
    }

    /// `internet`: the file of a test's own.
    pub fn open(config: &WebConfig, internet: Option<&Path>) -> Result<Web, String> {
        let net = match internet {
            None => Net::System,
            Some(file) => {
                let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
                Net::Told(Told::read(&text)?)
            }
        };
        let key = match &config.engine {
            SearchEngine::Searxng(_) => None,
            SearchEngine::Brave(_, file) => Some(Key::read(file)?),
        };
        let tls = Tls::new(net.trusted())?;
        Ok(Web {
            key,
            tls,
            net,
            searches: Cache::new(config.cache, SEARCHES_KEPT, KEPT_BYTES_MAX),
            pages: Cache::new(config.cache, PAGES_KEPT, KEPT_BYTES_MAX),
            permits: Semaphore::new(SEARCHES_AT_ONCE),
            config: config.clone(),
        })
    }

    /// What `chimere check` says of it.
    pub fn describe(config: &WebConfig) -> Result<String, String> {
        Web::open(config, None)?;
        let authorities = Tls::authorities();
        if authorities == 0 {
            return Err(
                "this machine trusts no authority, so no page can be read by https: install ca-certificates".to_owned()
            );
        }
        let (engine, url) = (config.engine.name(), config.engine.url());
        Ok(format!("searched by {engine} at {url}; {authorities} authorities vouch for pages"))
    }

    /// What status tells.
    pub fn status(&self) -> serde_json::Value {
        let (searches, pages) = (self.searches.len(), self.pages.len());
        serde_json::json!({"engine": self.config.engine.name(), "kept": {"searches": searches, "pages": pages}})
    }

    /// Forgets what was looked for: a principal's, or everybody's.
    pub fn forget(&self, principal: Option<&str>) {
        self.searches.forget(principal);
        self.pages.forget(principal);
    }
}

impl Key {
    fn read(file: &Path) -> Result<Key, String> {
        let wrong = |why: &str| format!("web.key_file: {}: {why}", file.display());
        let text = crate::store::files::read_bounded(file, KEY_BYTES_MAX).map_err(|error| wrong(&error.to_string()))?;
        let text = text.ok_or_else(|| wrong("there is no such file"))?;
        let key = text.trim();
        match !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Key(key.to_owned())),
            false => Err(wrong("it must hold the key alone, in one line")),
        }
    }
}
