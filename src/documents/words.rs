//! The words of a collection: a tantivy index of its passages, searched by BM25. It holds no text, and is made of the
//! documents' files: a damaged one is made anew. Each language has a field of its own, so that words of one are cut to their
//! stems by its rules and weighed among their like.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tantivy::collector::TopDocs;
use tantivy::indexer::NoMergePolicy;
use tantivy::query::{BooleanQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, STORED, STRING, Schema, TextFieldIndexing, TextOptions, Value};
use tantivy::tokenizer::{
    AsciiFoldingFilter, Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer,
};
use tantivy::{Index, IndexReader, IndexWriter, ReloadPolicy, TantivyDocument, TantivyError, Term};
use whatlang::{Detector, Lang};

use super::{Document, DocumentId};
use crate::store::files::create_private_dir;

/// Memory of the one thread that writes; the least that tantivy takes.
const ARENA_BYTES: usize = 16 << 20;
/// Longest word, bytes: what is longer is no word.
const WORD_BYTES_MAX: usize = 64;
/// Different words of one question that are looked up.
const TERMS_MAX: usize = 64;
/// Characters of a text that tell its language.
const TOLD_CHARS: usize = 4_000;

/// Languages whose words are known, with their codes. The last has no rules.
const LANGUAGES: [(&str, Option<Language>); 6] = [
    ("en", Some(Language::English)),
    ("fr", Some(Language::French)),
    ("de", Some(Language::German)),
    ("es", Some(Language::Spanish)),
    ("it", Some(Language::Italian)),
    ("", None),
];

/// The language of a text, among those whose words are known; empty: none of them.
pub(super) fn language(text: &str) -> &'static str {
    let detector = Detector::with_allowlist(vec![Lang::Eng, Lang::Fra, Lang::Deu, Lang::Spa, Lang::Ita]);
    let begins: String = text.chars().take(TOLD_CHARS).collect();
    match detector.detect_lang(&begins) {
        Some(Lang::Eng) => "en",
        Some(Lang::Fra) => "fr",
        Some(Lang::Deu) => "de",
        Some(Lang::Spa) => "es",
        Some(Lang::Ita) => "it",
        _ => "",
    }
}

fn analyser(language: Option<Language>) -> TextAnalyzer {
    let plain = TextAnalyzer::builder(SimpleTokenizer::default())
        .filter(RemoveLongFilter::limit(WORD_BYTES_MAX))
        .filter(LowerCaser)
        .dynamic();
    let Some(language) = language else { return plain.filter_dynamic(AsciiFoldingFilter).build() };
    let stopped = match StopWordFilter::new(language) {
        Some(stop) => plain.filter_dynamic(stop),
        None => plain,
    };
    stopped.filter_dynamic(Stemmer::new(language)).filter_dynamic(AsciiFoldingFilter).build()
}

struct Fields {
    document: Field,
    chunk: Field,
    /// In the order of `LANGUAGES`.
    words: Vec<Field>,
}

fn schema() -> (Schema, Fields) {
    let mut builder = Schema::builder();
    let document = builder.add_text_field("document", STRING | STORED);
    let chunk = builder.add_u64_field("chunk", STORED);
    let field = |(code, _): &(&str, _)| {
        let indexing = TextFieldIndexing::default()
            .set_tokenizer(&name(code))
            .set_index_option(IndexRecordOption::WithFreqs)
            .set_fieldnorms(true);
        builder.add_text_field(&name(code), TextOptions::default().set_indexing_options(indexing))
    };
    let words = LANGUAGES.iter().map(field).collect();
    (builder.build(), Fields { document, chunk, words })
}

fn name(code: &str) -> String {
    format!("words_{}", if code.is_empty() { "other" } else { code })
}

/// A passage that has words of the question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hit {
    pub document: DocumentId,
    pub chunk: usize,
    pub score: f32,
}

pub(super) struct Words {
    index: Index,
    reader: IndexReader,
    fields: Fields,
}

type Result<T> = std::result::Result<T, TantivyError>;

impl Words {
    /// Opens the index of a folder, or makes it. What cannot be opened is made anew, empty.
    pub(super) fn open(folder: &Path) -> Result<Words> {
        let opened = Words::try_open(folder);
        let Err(error) = opened else { return opened };
        if folder.exists() {
            tracing::warn!(%error, folder = %folder.display(), "an index of documents is made anew");
            fs::remove_dir_all(folder)?;
        }
        Words::try_open(folder)
    }

    fn try_open(folder: &Path) -> Result<Words> {
        create_private_dir(folder)?;
        let (schema, fields) = schema();
        let index = match folder.join("meta.json").exists() {
            true => Index::open_in_dir(folder)?,
            false => Index::create_in_dir(folder, schema.clone())?,
        };
        if index.schema() != schema {
            return Err(TantivyError::SchemaError("it has other fields".to_owned()));
        }
        for (code, language) in LANGUAGES {
            index.tokenizers().register(&name(code), analyser(language));
        }
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        Ok(Words { index, reader, fields })
    }

    fn writer(&self) -> Result<IndexWriter> {
        self.index.writer_with_num_threads(1, ARENA_BYTES)
    }

    /// Adds documents with their texts, all or none.
    pub(super) fn add<'d>(&self, documents: impl IntoIterator<Item = (&'d Document, &'d str)>) -> Result<()> {
        let mut writer = self.writer()?;
        for (document, text) in documents {
            let at = LANGUAGES.iter().position(|(code, _)| *code == document.language).unwrap_or(LANGUAGES.len() - 1);
            for (n, chunk) in document.chunks.iter().enumerate() {
                let mut row = TantivyDocument::default();
                row.add_text(self.fields.document, &document.id.0);
                row.add_u64(self.fields.chunk, n as u64);
                row.add_text(self.fields.words[at], indexed(document, n, text_of(text, chunk.start, chunk.end)));
                writer.add_document(row)?;
            }
        }
        writer.commit()?;
        writer.wait_merging_threads()?;
        self.reader.reload()
    }

    /// Removes documents, and what the index held of them: segments that had them are written without them.
    pub(super) fn remove(&self, documents: &[DocumentId]) -> Result<()> {
        let mut writer = self.writer()?;
        writer.set_merge_policy(Box::new(NoMergePolicy));
        for document in documents {
            writer.delete_term(Term::from_field_text(self.fields.document, &document.0));
        }
        writer.commit()?;
        let segments = self.index.searchable_segment_metas()?;
        let touched: Vec<_> = segments.iter().filter(|segment| segment.has_deletes()).map(|s| s.id()).collect();
        drop(segments);
        if !touched.is_empty() {
            writer.merge(&touched).wait()?;
        }
        self.reader.reload()?;
        writer.garbage_collect_files().wait()?;
        writer.wait_merging_threads()
    }

    /// Every document that it has, or had until a removal that was cut off.
    pub(super) fn documents(&self) -> Result<BTreeSet<DocumentId>> {
        let mut found = BTreeSet::new();
        for segment in self.reader.searcher().segment_readers() {
            let index = segment.inverted_index(self.fields.document)?;
            let mut terms = index.terms().stream()?;
            while terms.advance() {
                found.insert(DocumentId(String::from_utf8_lossy(terms.key()).into_owned()));
            }
        }
        Ok(found)
    }

    /// The passages that have words of a question, best first. `languages`: those of the collection's documents.
    pub(super) fn search(&self, question: &str, languages: &BTreeSet<&str>, k: usize) -> Result<Vec<Hit>> {
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        for ((code, _), field) in LANGUAGES.iter().zip(&self.fields.words) {
            if !languages.contains(code) {
                continue;
            }
            let mut analyser = self.index.tokenizer_for_field(*field)?;
            let mut tokens = analyser.token_stream(question);
            let mut terms = BTreeSet::new();
            while tokens.advance() && terms.len() < TERMS_MAX {
                terms.insert(Term::from_field_text(*field, &tokens.token().text));
            }
            let clause = |term| {
                let query: Box<dyn Query> = Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs));
                (Occur::Should, query)
            };
            clauses.extend(terms.into_iter().map(clause));
        }
        if clauses.is_empty() || k == 0 {
            return Ok(Vec::new());
        }
        let searcher = self.reader.searcher();
        let best = searcher.search(&BooleanQuery::new(clauses), &TopDocs::with_limit(k).order_by_score())?;
        let mut hits = Vec::with_capacity(best.len());
        for (score, address) in best {
            let row: TantivyDocument = searcher.doc(address)?;
            let document = row.get_first(self.fields.document).and_then(|value| value.as_str().map(str::to_owned));
            let chunk = row.get_first(self.fields.chunk).and_then(|value| value.as_u64());
            if let (Some(document), Some(chunk)) = (document, chunk) {
                hits.push(Hit { document: DocumentId(document), chunk: chunk as usize, score });
            }
        }
        // Of equals the order is that of their ids, whatever segments they lie in.
        hits.sort_by(|a, b| {
            b.score.total_cmp(&a.score).then_with(|| (&a.document, a.chunk).cmp(&(&b.document, b.chunk)))
        });
        Ok(hits)
    }
}

pub(super) fn text_of(text: &str, start: u64, end: u64) -> &str {
    text.get(start as usize..end as usize).unwrap_or_default()
}

/// What a passage is found by: its title and headings stand before its text.
pub(super) fn indexed(document: &Document, chunk: usize, text: &str) -> String {
    let heading = document.chunks.get(chunk).map(|chunk| chunk.heading.as_str()).unwrap_or_default();
    let title = if heading.starts_with(&document.title) { "" } else { document.title.as_str() };
    let before = [title, heading].into_iter().filter(|part| !part.is_empty());
    before.chain([text]).collect::<Vec<_>>().join("\n")
}

/// Where the index of a collection lies.
pub(super) fn folder(index: &Path, collection: &str) -> PathBuf {
    index.join(collection)
}
