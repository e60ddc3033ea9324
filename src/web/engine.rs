//! The search engines: how each is asked, and what its answer says. Its address is the owner's own choice and may lie
//! anywhere; what it finds may not.

use serde_json::Value;
use url::Url;

use super::wire::{self, Asked};
use super::{Fault, Web};
use crate::config::SearchEngine;
use crate::documents::read::{Kind, read};

/// Bytes of an engine's answer.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Bytes of what an engine says of one result.
const SNIPPET_BYTES_MAX: usize = 4_096;
const TITLE_CHARS_MAX: usize = 300;
/// Brave takes so many characters of a question.
pub(super) const QUERY_CHARS_MAX: usize = 400;

/// A result of a search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hit {
    pub(super) url: Url,
    pub(super) title: String,
    /// What the engine shows of the page.
    pub(super) snippet: String,
}

impl Web {
    /// What an engine finds for a question, best first.
    pub(super) async fn ask(&self, query: &str) -> Result<Vec<Hit>, Fault> {
        let engine = &self.config.engine;
        let url = address(engine, query, self.config.results);
        let host = url.host_str().ok_or(Fault::Address("the engine's address names no host"))?;
        let port = url.port_or_known_default().unwrap_or_default();
        let stream = self.net.open_engine(host, port).await?;
        let secret = self.key.as_ref().map(|key| ("x-subscription-token", key.0.as_str()));
        let asked = Asked { accept: "application/json", secret, bytes_max: ANSWER_BYTES_MAX, kinds: &[] };
        // A redirect is not followed: the key would go with it.
        let answer = wire::get(stream, &url, (url.scheme() == "https").then_some(&self.tls), asked).await?;
        if answer.status != 200 {
            return Err(refused(engine, answer.status));
        }
        if answer.cut {
            return Err(Fault::Engine(format!("{} answered more than {ANSWER_BYTES_MAX} bytes", engine.name())));
        }
        let told: Value = serde_json::from_slice(&answer.body).map_err(|_| refused(engine, answer.status))?;
        Ok(hits(engine, &told, self.config.results))
    }
}

/// What an engine is asked by.
fn address(engine: &SearchEngine, query: &str, results: usize) -> Url {
    let mut url = engine.url().clone();
    match engine {
        SearchEngine::Searxng(_) => {
            if let Ok(mut path) = url.path_segments_mut() {
                path.pop_if_empty().push("search");
            }
            url.query_pairs_mut().append_pair("q", query).append_pair("format", "json");
        }
        SearchEngine::Brave(..) => {
            url.query_pairs_mut().append_pair("q", query).append_pair("count", &results.to_string());
        }
    }
    url
}

/// What an engine's refusal means, and what to do.
fn refused(engine: &SearchEngine, status: u16) -> Fault {
    Fault::Engine(match (engine, status) {
        (SearchEngine::Searxng(_), 200 | 403) => {
            "searxng gives no JSON: add `json` to `search.formats` of its settings.yml".to_owned()
        }
        (SearchEngine::Brave(..), 401 | 403 | 422) => format!("brave answered {status}: it does not take the key"),
        (engine, 429) => format!("{} answered 429: it wants fewer searches", engine.name()),
        (engine, status) => format!("{} answered {status}", engine.name()),
    })
}

/// The results of an answer. One that is not as it should be is left out.
fn hits(engine: &SearchEngine, told: &Value, results: usize) -> Vec<Hit> {
    let (list, snippet) = match engine {
        SearchEngine::Searxng(_) => (&told["results"], "content"),
        SearchEngine::Brave(..) => (&told["web"]["results"], "description"),
    };
    let of = |value: &Value| value.as_str().map(plain).unwrap_or_default();
    let hit = |one: &Value| {
        let url = Url::parse(one["url"].as_str()?).ok()?;
        Some(Hit { url, title: of(&one["title"]).chars().take(TITLE_CHARS_MAX).collect(), snippet: of(&one[snippet]) })
    };
    list.as_array().into_iter().flatten().filter_map(hit).take(results).collect()
}

/// A text without the marks in which an engine dresses it.
fn plain(text: &str) -> String {
    let end = (0..=SNIPPET_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let read = read(Kind::Html, &text.as_bytes()[..end]);
    let words = read.map(|reading| reading.text).unwrap_or_default();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn engines_are_asked_in_their_own_words() {
        let at = |url: &str| Url::parse(url).unwrap();
        let searxng = SearchEngine::Searxng(at("http://127.0.0.1:8888/s/"));
        let asked = address(&searxng, "a b & c", 10);
        assert_eq!(asked.as_str(), "http://127.0.0.1:8888/s/search?q=a+b+%26+c&format=json");
        let brave = SearchEngine::Brave(at("https://b.example/web/search"), "/k".into());
        assert_eq!(address(&brave, "a", 5).as_str(), "https://b.example/web/search?q=a&count=5");
        assert!(refused(&searxng, 403).to_string().contains("`search.formats`"));
        assert!(refused(&brave, 401).to_string().contains("does not take the key"));
        assert!(refused(&brave, 429).to_string().contains("fewer searches"));
    }

    #[test]
    fn an_answer_is_read_as_far_as_it_is_one() {
        let searxng = SearchEngine::Searxng(Url::parse("http://a/").unwrap());
        let told = json!({"results": [
            {"url": "https://a.example/", "title": "A <b>&amp;</b> B", "content": "x\n y"},
            {"url": "no address"}, {"title": "without"}, 7,
            {"url": "https://b.example/", "title": null},
            {"url": "https://c.example/"},
        ]});
        let found = hits(&searxng, &told, 2);
        assert_eq!((found.len(), found[0].title.as_str(), found[0].snippet.as_str()), (2, "A & B", "x y"));
        assert_eq!((found[1].url.as_str(), found[1].title.as_str()), ("https://b.example/", ""));
        let brave = SearchEngine::Brave(Url::parse("http://a/").unwrap(), "/k".into());
        let told = json!({"web": {"results": [{"url": "https://a.example/", "title": "A", "description": "<strong>x</strong>"}]}});
        assert_eq!(hits(&brave, &told, 9)[0].snippet, "x");
        for strange in [json!(null), json!([]), json!({"results": 7}), json!("x")] {
            assert!(hits(&searxng, &strange, 9).is_empty() && hits(&brave, &strange, 9).is_empty());
        }
        assert!(plain(&"\u{e9}".repeat(SNIPPET_BYTES_MAX)).len() <= SNIPPET_BYTES_MAX);
    }
}
