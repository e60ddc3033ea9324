//! One page: its address is checked, its host is looked up and dialled, and the same again at every redirect.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use url::Url;

use super::page::{KINDS, Page};
use super::place::Place;
use super::wire::{self, Answer, Asked};
use super::{Fault, Web};

/// Redirects of one page.
pub(super) const REDIRECTS_MAX: usize = 5;

impl Web {
    /// A page that a search found, from the cache or from where it lies. Nothing in it is fetched in turn.
    pub(super) async fn page(&self, principal: &str, url: &Url) -> Result<Arc<Page>, Fault> {
        if let Some(page) = self.pages.get(principal, url.as_str()) {
            return Ok(page);
        }
        let (place, answer) = self.fetch(url.clone()).await?;
        let read = spawn_blocking(move || Page::read(place.url, answer)).await;
        let page = Arc::new(read.map_err(|_| Fault::Broken("it cannot be read".to_owned()))??);
        self.pages.put(principal, url.as_str(), page.clone(), page.bytes());
        Ok(page)
    }

    async fn fetch(&self, mut url: Url) -> Result<(Place, Answer), Fault> {
        for _ in 0..=REDIRECTS_MAX {
            let place = Place::of(url, &self.config.domains)?;
            let stream = self.net.open(&place.host, place.port).await?;
            let accept = "text/html, application/xhtml+xml;q=0.9, text/plain;q=0.8";
            let asked = Asked { accept, secret: None, bytes_max: self.config.page_bytes_max, kinds: KINDS };
            let answer = wire::get(stream, &place.url, place.tls.then_some(&self.tls), asked).await?;
            let to = answer.location.as_deref().filter(|_| matches!(answer.status, 301 | 302 | 303 | 307 | 308));
            match (to, answer.status) {
                (Some(to), _) => {
                    url = place.url.join(to).map_err(|_| Fault::Broken("it redirects to no address".to_owned()))?;
                }
                (None, 200) => return Ok((place, answer)),
                (None, status) => return Err(Fault::Status(status)),
            }
        }
        Err(Fault::Redirects)
    }
}
