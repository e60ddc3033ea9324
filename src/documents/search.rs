//! Searching collections: by words and by direction, fused by rank. Only collections that the asker may read take part: an
//! index each, so that nobody else's documents change a score.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::shelf::{Held, Shelf};
use super::words::Hit;
use super::{Collection, CollectionId, Document, DocumentError, DocumentId, Documents, K_MAX, file};
use crate::embed::nearest::Code;

/// Reciprocal rank fusion: a passage scores weight / (60 + rank) in each list (Cormack et al. 2009).
pub const FUSED: f32 = 60.0;
/// The weight of the vectors of a table of token vectors, and of a model's that an engine hosts. A table knows little beside
/// the words themselves: with the weight of words it pushes right passages down (docs/figures/documents.md).
pub const TABLE_WEIGHT: f32 = 0.2;
pub const MODEL_WEIGHT: f32 = 1.0;
/// Passages of each list, at least.
const DEPTH_MIN: usize = 50;

/// Which lists count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sought {
    #[default]
    Fused,
    Words,
    Dense,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Query<'q> {
    pub text: &'q str,
    /// Its direction, and the embedder that made it.
    pub vector: Option<(&'q Code, [u8; 32])>,
    pub k: usize,
    pub sought: Sought,
    /// What a place in the list of vectors is worth beside one in the list of words.
    pub vectors_weight: f32,
}

/// A place in one list, from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    pub rank: usize,
    pub score: f32,
}

/// A passage that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub document: Arc<Document>,
    pub collection: Arc<Collection>,
    pub chunk: usize,
    pub text: String,
    pub score: f32,
    pub words: Option<Rank>,
    pub dense: Option<Rank>,
}

/// A passage by its document and number, with its ranks.
type Fused = BTreeMap<(DocumentId, usize), [Option<Rank>; 2]>;

impl Documents {
    /// The passages of these collections, or of all that the principal may read, that bear on a question, best first.
    pub fn search(
        &self,
        principal: &str,
        collections: Option<&[String]>,
        query: Query<'_>,
    ) -> Result<Vec<Found>, DocumentError> {
        self.usable()?;
        let shelf = self.shelf();
        let readable = shelf.readable(principal, collections)?;
        let depth = DEPTH_MIN.max(2 * query.k.min(K_MAX));
        let (mut words, mut dense) = (Vec::new(), Vec::new());
        if query.sought != Sought::Dense {
            for collection in &readable {
                words.extend(self.by_words(&collection.id, query.text, depth));
            }
        }
        if let Some((code, fingerprint)) = query.vector.filter(|_| query.sought != Sought::Words) {
            let ids: BTreeSet<&CollectionId> = readable.iter().map(|collection| &collection.id).collect();
            let held = shelf.documents.values().filter(|held| ids.contains(&held.document.collection));
            dense = by_direction(held, code, fingerprint, depth);
        }
        let mut fused = Fused::new();
        for (list, hits) in [words, dense].into_iter().enumerate() {
            for (rank, hit) in ranked(hits, depth) {
                fused.entry((hit.document, hit.chunk)).or_default()[list] = Some(Rank { rank, score: hit.score });
            }
        }
        Ok(self.best(&shelf, fused, &query))
    }

    /// The best of them with their texts. What was removed meanwhile is left out.
    fn best(&self, shelf: &Shelf, fused: Fused, query: &Query<'_>) -> Vec<Found> {
        let weights = [1.0, query.vectors_weight];
        let score = |ranks: &[Option<Rank>; 2]| -> f32 {
            let worth = |(rank, weight): (&Option<Rank>, f32)| rank.map(|rank| weight / (FUSED + rank.rank as f32));
            ranks.iter().zip(weights).filter_map(worth).sum()
        };
        let mut all: Vec<_> = fused.into_iter().map(|(place, ranks)| (score(&ranks), place, ranks)).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let found = all.into_iter().filter_map(|(score, (id, chunk), [words, dense])| {
            let held = shelf.documents.get(&id)?;
            let collection = shelf.collection(&held.document.collection)?.clone();
            let place = held.document.chunks.get(chunk)?;
            let text = file::passage(&self.path(&id, file::END), held.text_at, place.start, place.end).ok()?;
            Some(Found { document: held.document.clone(), collection, chunk, text, score, words, dense })
        });
        found.take(query.k.min(K_MAX)).collect()
    }
}

fn by_direction<'h>(
    held: impl Iterator<Item = &'h Held>,
    code: &Code,
    fingerprint: [u8; 32],
    depth: usize,
) -> Vec<Hit> {
    let mut hits: Vec<Hit> = Vec::new();
    let mut least = 0.0;
    for held in held {
        let Some(vectors) = held.vectors.as_ref().filter(|vectors| vectors.fingerprint == fingerprint) else {
            continue;
        };
        let near = vectors.nearest(code, depth, least);
        let hit = |(chunk, score)| Hit { document: held.document.id.clone(), chunk, score };
        hits.extend(near.into_iter().map(hit));
        if hits.len() > 4 * depth {
            hits.sort_by(|a, b| b.score.total_cmp(&a.score));
            hits.truncate(depth);
            least = hits.last().map_or(0.0, |hit| hit.score);
        }
    }
    hits
}

/// The best hits with their ranks; of equals the order is that of their ids.
fn ranked(mut hits: Vec<Hit>, depth: usize) -> impl Iterator<Item = (usize, Hit)> {
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| (&a.document, a.chunk).cmp(&(&b.document, b.chunk))));
    hits.truncate(depth);
    (1..).zip(hits)
}
