//! A search of the web in its stages: questions, results, one list of them, pages, passages, and the best of these. Each stage
//! has a deadline. What is late is left out, and the trace says so.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::engine::{Hit, QUERY_CHARS_MAX};
use super::page::Page;
use super::place::Place as Checked;
use super::{Fault, Web};
use crate::documents::loose::{Loose, Place};
use crate::documents::{Draft, FUSED, MODEL_WEIGHT, TABLE_WEIGHT, show};
use crate::embed::embedder::{Embedder, Purpose, Terms};
use crate::engine::protocol::EmbedInput;
use crate::plural::counted;
use crate::turn::{ShownPassage, WebStage};

/// A question of more characters than this is asked in two parts: its beginning and its end, where the question mostly stands.
const QUERY_CHARS: usize = 200;
/// Passages that are ranked by their directions.
const DEPTH: usize = 50;
/// Reasons that a stage tells.
const REASONS_MAX: usize = 3;

/// What is looked for, and for whom.
pub struct Wanted {
    pub principal: String,
    /// The user's own words.
    pub question: String,
    /// Passages at most, and the number of the first of them.
    pub k: usize,
    pub first: u32,
    pub embedder: Option<Arc<Embedder>>,
}

/// What came of a search.
#[derive(Debug, Default)]
pub struct Gathered {
    pub passages: Vec<ShownPassage>,
    pub stages: Vec<WebStage>,
    /// Why nothing could be looked for.
    pub failed: Option<String>,
}

/// A text that was found, and where.
struct Source {
    url: Url,
    draft: Draft,
}

impl Gathered {
    fn stage(&mut self, name: &str, outcome: &str, began: Instant, told: String) {
        let took_ms = began.elapsed().as_millis() as u64;
        self.stages.push(WebStage { name: name.to_owned(), outcome: outcome.to_owned(), took_ms, told });
    }
}

impl Web {
    /// Searches, reads and ranks. It always ends within its time, with what there is by then.
    pub async fn gather(&self, wanted: Wanted) -> Gathered {
        let (began, mut out) = (Instant::now(), Gathered::default());
        let until = began + self.config.timeout;
        let queries = queries(&wanted.question);
        out.stage("queries", "done", began, counted(queries.len(), "question", "questions"));
        if queries.is_empty() {
            return out;
        }
        let stage = Instant::now();
        let permit = timeout_at(self.by(until, self.config.search_timeout), self.permits.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            out.stage("search", "late", stage, "too many searches are under way".to_owned());
            out.failed = Some("too many searches of the web are under way".to_owned());
            return out;
        };
        let lists = match self.search(&wanted.principal, &queries, until, &mut out).await {
            Ok(lists) => lists,
            Err(why) => {
                out.failed = Some(why);
                return out;
            }
        };
        let stage = Instant::now();
        let (found, refused) = self.fused(lists);
        let left_out = if refused > 0 { format!(", {refused} left out") } else { String::new() };
        out.stage("fuse", "done", stage, format!("{}{left_out}", counted(found.len(), "result", "results")));
        if found.is_empty() {
            return out;
        }
        let pages = self.pages(&wanted.principal, &found, until, &mut out).await;
        let stage = Instant::now();
        let sources = sources(found, pages);
        let drafts = sources.iter().map(|source| source.draft.clone()).collect();
        let Ok(Ok(loose)) = timeout_at(until, spawn_blocking(move || Loose::of(drafts))).await else {
            out.stage("chunk", "late", stage, "what was found was not read in time".to_owned());
            out.failed = Some("what was found on the web was not read in time".to_owned());
            return out;
        };
        let (passages, texts) = (loose.passages(), sources.len());
        let told = format!("{} of {}", counted(passages, "passage", "passages"), counted(texts, "text", "texts"));
        out.stage("chunk", "done", stage, told);
        self.rank(wanted, loose, &sources, until, &mut out).await;
        out
    }

    /// When a stage that begins now has to end.
    fn by(&self, until: Instant, within: Duration) -> Instant {
        until.min(Instant::now() + within)
    }

    /// The results of each question, or why there are none of any.
    async fn search(
        &self,
        principal: &str,
        queries: &[String],
        until: Instant,
        out: &mut Gathered,
    ) -> Result<Vec<Arc<Vec<Hit>>>, String> {
        let (stage, by) = (Instant::now(), self.by(until, self.config.search_timeout));
        let asked = join_all(queries.iter().map(|query| self.results(principal, query, by))).await;
        let (mut lists, mut faults) = (Vec::new(), Vec::new());
        for answer in asked {
            match answer {
                Ok(hits) => lists.push(hits),
                Err(fault) => faults.push(fault),
            }
        }
        let outcome = match (lists.is_empty(), faults.contains(&Fault::Late)) {
            (_, true) => "late",
            (true, false) => "failed",
            (false, false) => "done",
        };
        let results: usize = lists.iter().map(|hits| hits.len()).sum();
        let engine = self.config.engine.name();
        let mut told = format!("{} of {engine}", counted(results, "result", "results"));
        if let Some(why) = reasons(&faults) {
            told = if lists.is_empty() { format!("{engine}: {why}") } else { format!("{told}; {why}") };
        }
        out.stage("search", outcome, stage, told.clone());
        if lists.is_empty() { Err(told) } else { Ok(lists) }
    }

    /// The results of one question, from the cache or from the engine.
    async fn results(&self, principal: &str, query: &str, by: Instant) -> Result<Arc<Vec<Hit>>, Fault> {
        if let Some(hits) = self.searches.get(principal, query) {
            return Ok(hits);
        }
        let hits = timeout_at(by, self.ask(query)).await.unwrap_or(Err(Fault::Late))?;
        let bytes = hits.iter().map(|hit| hit.title.len() + hit.snippet.len() + hit.url.as_str().len()).sum();
        let hits = Arc::new(hits);
        self.searches.put(principal, query, hits.clone(), bytes);
        Ok(hits)
    }

    /// One list of results without those that may not be fetched; how many these are. A page that several questions find stands
    /// before one that a single question finds.
    fn fused(&self, lists: Vec<Arc<Vec<Hit>>>) -> (Vec<Hit>, usize) {
        let mut scores: HashMap<String, (f32, Hit)> = HashMap::new();
        let mut refused = 0;
        for hits in lists {
            for (rank, hit) in (1..).zip(hits.iter()) {
                let Ok(place) = Checked::of(hit.url.clone(), &self.config.domains) else {
                    refused += 1;
                    continue;
                };
                let worth = 1.0 / (FUSED + rank as f32);
                let hit = Hit { url: place.url, ..hit.clone() };
                scores.entry(hit.url.to_string()).or_insert((0.0, hit)).0 += worth;
            }
        }
        let mut all: Vec<(f32, Hit)> = scores.into_values().collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.url.cmp(&b.1.url)));
        (all.into_iter().map(|(_, hit)| hit).take(self.config.results).collect(), refused)
    }

    /// The pages of the first results that are read in time, by the place of their result.
    async fn pages(
        &self,
        principal: &str,
        found: &[Hit],
        until: Instant,
        out: &mut Gathered,
    ) -> BTreeMap<usize, Arc<Page>> {
        // Some of the time is left for what comes of it.
        let kept = self.config.rank_timeout.min(self.config.timeout / 4);
        let (stage, by) = (Instant::now(), self.by(until - kept, self.config.fetch_timeout));
        let one = |(at, hit): (usize, &Hit)| {
            let url = hit.url.clone();
            async move { (at, self.page(principal, &url).await) }
        };
        let mut jobs: FuturesUnordered<_> = found.iter().take(self.config.pages).enumerate().map(one).collect();
        let (wanted, mut read, mut faults) = (jobs.len(), BTreeMap::new(), Vec::new());
        if wanted == 0 {
            out.stage("fetch", "skipped", stage, "no page is fetched (`web.pages`)".to_owned());
            return read;
        }
        let late = loop {
            match timeout_at(by, jobs.next()).await {
                Ok(Some((at, Ok(page)))) => drop(read.insert(at, page)),
                Ok(Some((_, Err(fault)))) => faults.push(fault),
                Ok(None) => break 0,
                Err(_) => break jobs.len(),
            }
        };
        faults.extend((0..late).map(|_| Fault::Late));
        let cut = read.values().filter(|page| page.cut).count();
        let mut told = format!("{} of {} read", read.len(), counted(wanted, "page", "pages"));
        if cut > 0 {
            told += &format!("; {cut} cut at {} bytes", self.config.page_bytes_max);
        }
        if let Some(why) = reasons(&faults) {
            told += &format!("; {why}");
        }
        let outcome = match (late > 0, read.is_empty()) {
            (true, _) => "late",
            (false, true) => "failed",
            (false, false) => "done",
        };
        out.stage("fetch", outcome, stage, told);
        read
    }

    /// The passages that bear on the question, best first: by words, and by direction where that is known in time.
    async fn rank(&self, wanted: Wanted, loose: Loose, sources: &[Source], until: Instant, out: &mut Gathered) {
        let (stage, by) = (Instant::now(), self.by(until, self.config.rank_timeout));
        let words = loose.by_words(&wanted.question, DEPTH);
        let (near, without) = match &wanted.embedder {
            None => (Vec::new(), Some("there is no embedding model".to_owned())),
            Some(embedder) => match timeout_at(by, near(embedder, &wanted.question, &loose, &words)).await {
                Ok(Ok(near)) => (near, None),
                Ok(Err(why)) => (Vec::new(), Some(why)),
                Err(_) => (Vec::new(), Some("its vectors were late".to_owned())),
            },
        };
        let late = wanted.embedder.is_some() && without.is_some();
        let weight = match &wanted.embedder {
            Some(embedder) if embedder.is_table() => TABLE_WEIGHT,
            _ => MODEL_WEIGHT,
        };
        let mut best = ranked(&words, &near, weight);
        let mut seen = HashSet::new();
        best.retain(|place| loose.passage(*place).is_some_and(|(_, text)| seen.insert(text.trim().to_owned())));
        best.truncate(wanted.k);
        out.passages =
            (wanted.first..).zip(best).filter_map(|(number, at)| shown(number, at, &loose, sources)).collect();
        let mut told = format!("{} that bear on the question", counted(out.passages.len(), "passage", "passages"));
        if let Some(why) = without {
            told += &format!("; by words alone: {why}");
        }
        out.stage("rank", if late { "late" } else { "done" }, stage, told);
    }
}

/// What an engine is asked: the user's words and nothing else.
fn queries(question: &str) -> Vec<String> {
    let words: Vec<&str> =
        question.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    let whole = words.join(" ");
    if whole.chars().count() <= QUERY_CHARS {
        return if whole.is_empty() { Vec::new() } else { vec![whole] };
    }
    let first = fitting(words.iter());
    let mut last = fitting(words.iter().rev());
    last.reverse();
    let mut parts: Vec<String> =
        [first, last].into_iter().map(|part| part.join(" ")).filter(|p| !p.is_empty()).collect();
    if parts.is_empty() {
        // One word that is longer than a question.
        parts.push(whole.chars().take(QUERY_CHARS_MAX).collect());
    }
    parts
}

/// As many of the words as one question has room for.
fn fitting<'w>(words: impl Iterator<Item = &'w &'w str>) -> Vec<&'w str> {
    let mut left = QUERY_CHARS;
    let fits = |word: &&&str| {
        left = left.saturating_sub(word.chars().count() + 1);
        left > 0
    };
    words.take_while(fits).copied().collect()
}

/// Why things are missing, each reason once.
fn reasons(faults: &[Fault]) -> Option<String> {
    let mut told: Vec<(String, usize)> = Vec::new();
    for fault in faults {
        let why = fault.to_string();
        match told.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => told.push((why, 1)),
        }
    }
    let one = |(why, count): &(String, usize)| format!("{count} not: {why}");
    let words: Vec<String> = told.iter().take(REASONS_MAX).map(one).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Every result as a text: its page, or what the engine shows of it where that was not read. A page that several results lead
/// to counts once.
fn sources(found: Vec<Hit>, mut pages: BTreeMap<usize, Arc<Page>>) -> Vec<Source> {
    let mut all: Vec<Source> = Vec::new();
    for (at, hit) in found.into_iter().enumerate() {
        let source = match pages.remove(&at) {
            Some(page) => Some(Source { url: page.url.clone(), draft: page.draft.clone() }),
            None => snippet(hit),
        };
        if let Some(source) = source.filter(|source| all.iter().all(|known| known.url != source.url)) {
            all.push(source);
        }
    }
    all
}

fn snippet(hit: Hit) -> Option<Source> {
    let mut draft = Draft::read_here("result.txt", "text/plain", hit.snippet.as_bytes()).ok()?;
    draft.title = if hit.title.is_empty() { hit.url.host_str().unwrap_or_default().to_owned() } else { hit.title };
    Some(Source { url: hit.url, draft })
}

/// The cosines of passages with the question: of those that have its words, then of the first ones of each text.
async fn near(
    embedder: &Embedder,
    question: &str,
    loose: &Loose,
    words: &[Place],
) -> Result<Vec<(Place, f32)>, String> {
    let mut places = words.to_vec();
    let first = (0..loose.texts()).map(|text| Place { text, chunk: 0, score: 0.0 });
    let further = first.filter(|at| !words.iter().any(|known| (known.text, known.chunk) == (at.text, at.chunk)));
    places.extend(further.collect::<Vec<_>>());
    places.truncate(DEPTH);
    let asked = embedder.query(question.to_owned()).await.map_err(|why| why.to_string())?;
    let texts = places.iter().map(|at| (Purpose::Document, EmbedInput::Text(loose.indexed(*at)))).collect();
    let terms = Terms { cut: true, within: Duration::from_secs(60), first: true };
    let vectors = embedder.embed(texts, terms, ()).await.map_err(|why| why.to_string())?;
    Ok(places.into_iter().zip(vectors).map(|(at, vector)| (at, cosine(&asked.values, &vector.values))).collect())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let length = (dot(a, a) * dot(b, b)).sqrt();
    if length > 0.0 { dot(a, b) / length } else { 0.0 }
}

/// Both lists fused by rank, as those of documents are; without what shares neither words nor direction with the question.
fn ranked(words: &[Place], near: &[(Place, f32)], weight: f32) -> Vec<Place> {
    let mut near = near.to_vec();
    near.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut scores: BTreeMap<(usize, usize), f32> = BTreeMap::new();
    for (rank, at) in (1..).zip(words) {
        *scores.entry((at.text, at.chunk)).or_default() += 1.0 / (FUSED + rank as f32);
    }
    for (rank, (at, cosine)) in (1..).zip(&near) {
        let has_words = scores.contains_key(&(at.text, at.chunk));
        if has_words || *cosine >= show::LIKE_MIN {
            *scores.entry((at.text, at.chunk)).or_default() += weight / (FUSED + rank as f32);
        }
    }
    let mut all: Vec<Place> = scores.into_iter().map(|((text, chunk), score)| Place { text, chunk, score }).collect();
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

fn shown(number: u32, at: Place, loose: &Loose, sources: &[Source]) -> Option<ShownPassage> {
    let (chunk, text) = loose.passage(at)?;
    Some(ShownPassage {
        number,
        url: sources.get(at.text)?.url.to_string(),
        start: chunk.start,
        end: chunk.end,
        line: chunk.line,
        title: loose.title(at).to_owned(),
        text: text.to_owned(),
        ..ShownPassage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_question_is_asked_by_its_beginning_and_its_end() {
        assert_eq!(queries("  Who\nbuilt\u{0} the  tower? "), ["Who built the tower?"]);
        assert!(queries(" \n").is_empty());
        let long = format!("Begin here {} who built it?", "word ".repeat(100));
        let asked = queries(&long);
        assert_eq!(asked.len(), 2);
        assert!(asked[0].starts_with("Begin here word") && asked[1].ends_with("word who built it?"), "{asked:?}");
        assert!(asked.iter().all(|query| query.chars().count() <= QUERY_CHARS));
        assert_eq!(queries(&"x".repeat(1_000)), ["x".repeat(QUERY_CHARS_MAX)]);
    }

    #[test]
    fn lists_are_fused_by_rank() {
        let at = |text: usize| Place { text, chunk: 0, score: 0.0 };
        let of = |words: &[usize], near: &[(usize, f32)], weight: f32| -> Vec<usize> {
            let words: Vec<Place> = words.iter().map(|text| at(*text)).collect();
            let near: Vec<(Place, f32)> = near.iter().map(|(text, cosine)| (at(*text), *cosine)).collect();
            ranked(&words, &near, weight).into_iter().map(|place| place.text).collect()
        };
        assert_eq!(of(&[3, 1], &[], 1.0), [3, 1]);
        assert_eq!(of(&[1, 2], &[(2, 0.9), (1, 0.1)], 1.0), [1, 2], "one each: the first in order");
        assert_eq!(of(&[1, 2, 3], &[(3, 0.9)], 1.0)[0], 3);
        assert_eq!(of(&[1], &[(7, 0.6), (8, 0.4)], 0.2), [1, 7], "what is unlike and has no word is left out");
        assert!((cosine(&[1.0, 0.0], &[2.0, 0.0]) - 1.0).abs() < 1e-6 && cosine(&[0.0], &[1.0]) == 0.0);
    }

    #[test]
    fn each_reason_is_told_once() {
        assert_eq!(reasons(&[]), None);
        let faults = [Fault::Late, Fault::Status(404), Fault::Late];
        assert_eq!(reasons(&faults).unwrap(), "2 not: it was late; 1 not: it answered 404");
    }
}
