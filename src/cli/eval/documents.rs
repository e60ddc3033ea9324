//! `chimere eval documents`: how well passages are found on a labelled set, by words, by vectors and by both.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use chimere::config::Config;
use chimere::documents::{
    CollectionId, DEFAULT_COLLECTION, DocumentId, Documents, Draft, K_MAX, Query, Sought, TABLE_WEIGHT, Vectors,
};
use chimere::embed::{Code, Static};
use chimere::eval::documents::{Entry, Labelled, Mean, NDCG_AT, entries, labelled, ndcg, percentile, recall};
use chimere::service::OWNER;
use serde_json::{Value, json};

use super::super::exit::{EX_NOINPUT, coded, say};
use super::super::model_args::bar;
use super::super::serve::Place;

const WAYS: [(&str, Sought); 3] = [("words", Sought::Words), ("vectors", Sought::Dense), ("fused", Sought::Fused)];

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// A BEIR folder: `corpus.jsonl` with `_id`, `title` and `text`
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Questions (JSON lines with `_id` and `text`) [default: `queries.jsonl` in the folder]
    #[arg(long, value_name = "FILE")]
    queries: Option<PathBuf>,
    /// Judgements: question, document and grade between tabs, behind a line of names [default: `qrels/test.tsv`]
    #[arg(long, value_name = "FILE")]
    qrels: Option<PathBuf>,
    /// Embedding model, a table of token vectors [default: the configured one, else nano-embed.gguf]
    #[arg(long, value_name = "FILE")]
    embed_model: Option<PathBuf>,
    /// What a place in the list of vectors is worth beside one in the list of words
    #[arg(long, default_value_t = TABLE_WEIGHT)]
    vectors_weight: f32,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = match args.embed_model {
        Some(path) => path,
        None => {
            let embed = Config::load(&args.place.flags())?.embed;
            let none = || coded(EX_NOINPUT, "there is no embedding model: name one with --embed-model");
            embed.model.or(embed.shipped).ok_or_else(none)?
        }
    };
    let embedder = Static::open(&path)?;
    let corpus = entries(&args.folder.join("corpus.jsonl"))?;
    let queries = args.queries.unwrap_or_else(|| args.folder.join("queries.jsonl"));
    let qrels = args.qrels.unwrap_or_else(|| args.folder.join("qrels/test.tsv"));
    let questions = labelled(&queries, &qrels)?;
    let state = tempfile_dir()?;
    let (documents, indexed_s) = index(state.path(), &embedder, &corpus)?;
    let report = measure(&documents, &embedder, &questions, (indexed_s, args.vectors_weight))?;
    match args.json {
        true => say!("{report:#}"),
        false => print(&report),
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the documents of a corpus; how many seconds that took.
fn index(state: &Path, embedder: &Static, corpus: &[Entry]) -> anyhow::Result<(Documents, f64)> {
    let (documents, began) = (Documents::open(state), Instant::now());
    let id = CollectionId("collection-eval".to_owned());
    let collection = documents.share(OWNER, DEFAULT_COLLECTION, Vec::new(), id, 0)?;
    let progress = bar(corpus.len() as u64, "indexing");
    let program = chimere::program::own()?;
    for (n, entry) in corpus.iter().enumerate() {
        progress.inc(1);
        // The id is the name: the title and the text alone are found.
        let name = format!("{}.txt", entry.id);
        let Ok(draft) = Draft::read(&name, None, entry.text.as_bytes(), &program) else { continue };
        let mut draft = Draft { title: entry.title.clone(), ..draft };
        let rows: Vec<Vec<f32>> = draft.passages().iter().map(|text| embedder.embed(text)).collect();
        draft.vectors = Some(Vectors::new(embedder.digest(), embedder.width(), &rows));
        documents.put(&draft, DocumentId(format!("document-{n:09}")), &collection)?;
    }
    progress.finish_and_clear();
    Ok((documents, began.elapsed().as_secs_f64()))
}

fn measure(
    documents: &Documents,
    embedder: &Static,
    questions: &[Labelled],
    (indexed_s, vectors_weight): (f64, f32),
) -> anyhow::Result<Value> {
    let mut scores: HashMap<&str, [Vec<f64>; 2]> = HashMap::new();
    let mut took_ms = Vec::new();
    for question in questions {
        for (way, sought) in WAYS {
            let began = Instant::now();
            let code = Code::of(&embedder.embed(&question.text));
            let vector = Some((&code, embedder.digest()));
            let query = Query { text: &question.text, vector, k: K_MAX, sought, vectors_weight };
            let found = documents.search(OWNER, None, query).context("a search failed")?;
            if sought == Sought::Fused {
                took_ms.push(began.elapsed().as_secs_f64() * 1e3);
            }
            let mut ids: Vec<String> = Vec::new();
            for passage in &found {
                let id = passage.document.name.trim_end_matches(".txt");
                if ids.len() < NDCG_AT && !ids.iter().any(|known| known == id) {
                    ids.push(id.to_owned());
                }
            }
            let [recalls, gains] = scores.entry(way).or_default();
            recalls.push(recall(&ids, &question.relevant));
            gains.push(ndcg(&ids, &question.relevant));
        }
    }
    let (count, passages) = documents.counts();
    let mut report = json!({"documents": count, "passages": passages, "questions": questions.len(),
        "indexed_s": indexed_s, "vectors_weight": vectors_weight, "search_ms": {"p50": percentile(&took_ms, 0.5), "p95": percentile(&took_ms, 0.95)}});
    for (way, _) in WAYS {
        let [recalls, gains] = &scores[way];
        report[way] = json!({"recall_5": Mean::of(recalls), "ndcg_10": Mean::of(gains)});
    }
    let gained = |at: usize| -> Vec<f64> {
        scores["fused"][at].iter().zip(&scores["words"][at]).map(|(fused, words)| fused - words).collect()
    };
    report["fused_over_words"] = json!({"recall_5": Mean::of(&gained(0)), "ndcg_10": Mean::of(&gained(1))});
    Ok(report)
}

fn print(report: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    say!(
        "{} documents, {} passages, indexed in {:.1} s; {} questions; a search takes {:.1} ms, 95 of 100 at most {:.1}",
        report["documents"],
        report["passages"],
        number(&report["indexed_s"]),
        report["questions"],
        number(&report["search_ms"]["p50"]),
        number(&report["search_ms"]["p95"])
    );
    for way in ["words", "vectors", "fused", "fused_over_words"] {
        let mean = |name: &str| {
            let of = &report[way][name];
            format!("{:6.1} ± {:.1}", 100.0 * number(&of["mean"]), 100.0 * number(&of["within"]))
        };
        say!("{way:<17} recall@5 {}   nDCG@10 {}", mean("recall_5"), mean("ndcg_10"));
    }
}

/// A folder that goes with the measurement.
struct Folder(PathBuf);

impl Folder {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tempfile_dir() -> anyhow::Result<Folder> {
    let path = std::env::temp_dir().join(format!("chimere-eval-documents-{}", std::process::id()));
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(Folder(path))
}
