//! How well passages of documents are found: recall and nDCG over labelled questions, for words, for vectors and for both
//! together. The files are those of a BEIR folder: `corpus.jsonl`, `queries.jsonl` and a table of judgements.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Longest line of a file, bytes, and lines of one.
const LINE_BYTES_MAX: usize = 16 << 20;
const LINES_MAX: usize = 1_000_000;
/// Documents that count for recall, and for nDCG.
pub const RECALL_AT: usize = 5;
pub const NDCG_AT: usize = 10;

#[derive(Debug, thiserror::Error)]
pub enum SetError {
    #[error("cannot read {path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path}, line {line}: {message}")]
    Line { path: String, line: usize, message: String },
    #[error("the set holds no question with a relevant document: are the ids of both files the same?")]
    Empty,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Entry {
    #[serde(rename = "_id")]
    pub id: String,
    #[serde(default)]
    pub title: String,
    pub text: String,
}

/// A question with its relevant documents, each with its grade.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    pub text: String,
    pub relevant: BTreeMap<String, f64>,
}

/// The entries of a file in JSON lines.
pub fn entries(path: &Path) -> Result<Vec<Entry>, SetError> {
    let name = || path.display().to_string();
    let lines = lines(path)?;
    let read = |(n, line): (usize, String)| {
        serde_json::from_str(&line).map_err(|error| SetError::Line {
            path: name(),
            line: n + 1,
            message: error.to_string(),
        })
    };
    lines.into_iter().filter(|(_, line)| !line.trim().is_empty()).map(read).collect()
}

fn lines(path: &Path) -> Result<Vec<(usize, String)>, SetError> {
    let failed = |source| SetError::Io { path: path.display().to_string(), source };
    let mut found = Vec::new();
    for (n, line) in BufReader::new(File::open(path).map_err(failed)?).lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.len() > LINE_BYTES_MAX || n == LINES_MAX {
            let message = format!("a file has at most {LINES_MAX} lines of {LINE_BYTES_MAX} bytes");
            return Err(SetError::Line { path: path.display().to_string(), line: n + 1, message });
        }
        found.push((n, line));
    }
    Ok(found)
}

/// The questions that have a relevant document. `qrels`: question, document and grade between tabs, behind a line of names.
pub fn labelled(queries: &Path, qrels: &Path) -> Result<Vec<Labelled>, SetError> {
    let mut relevant: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for (n, line) in lines(qrels)?.into_iter().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.trim_end().split('\t').collect();
        let grade = fields.get(2).and_then(|grade| grade.parse::<f64>().ok());
        let (&[question, document, ..], Some(grade)) = (&fields[..], grade) else {
            let message = "a judgement is a question, a document and a grade between tabs".to_owned();
            return Err(SetError::Line { path: qrels.display().to_string(), line: n + 1, message });
        };
        if grade > 0.0 {
            relevant.entry(question.to_owned()).or_default().insert(document.to_owned(), grade);
        }
    }
    let with = |entry: Entry| Some(Labelled { relevant: relevant.remove(&entry.id)?, text: entry.text });
    let found: Vec<Labelled> = entries(queries)?.into_iter().filter_map(with).collect();
    if found.is_empty() { Err(SetError::Empty) } else { Ok(found) }
}

/// Share of the relevant documents among the first `RECALL_AT`.
pub fn recall(found: &[String], relevant: &BTreeMap<String, f64>) -> f64 {
    let hits = found.iter().take(RECALL_AT).filter(|id| relevant.contains_key(*id)).count();
    hits as f64 / relevant.len().max(1) as f64
}

/// Discounted gain of the first `NDCG_AT`, of the best that could be.
pub fn ndcg(found: &[String], relevant: &BTreeMap<String, f64>) -> f64 {
    let gain = |grades: &mut dyn Iterator<Item = f64>| -> f64 {
        grades.take(NDCG_AT).zip(2..).map(|(grade, rank)| (grade.exp2() - 1.0) / f64::from(rank).log2()).sum()
    };
    let mut best: Vec<f64> = relevant.values().copied().collect();
    best.sort_by(|a, b| b.total_cmp(a));
    let ideal = gain(&mut best.into_iter());
    let own = gain(&mut found.iter().map(|id| relevant.get(id).copied().unwrap_or_default()));
    if ideal > 0.0 { own / ideal } else { 0.0 }
}

/// A mean over questions with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Mean {
    pub n: usize,
    pub mean: f64,
    /// Half the width of the interval.
    pub within: f64,
}

impl Mean {
    pub fn of(values: &[f64]) -> Mean {
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n.max(1) as f64;
        let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n.saturating_sub(1).max(1) as f64;
        Mean { n, mean, within: 1.96 * (spread / n.max(1) as f64).sqrt() }
    }
}

/// The value below which this share of the values lies.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn measures_are_what_they_are_by_hand() {
        let relevant = BTreeMap::from([("a".to_owned(), 1.0), ("b".to_owned(), 1.0)]);
        assert_eq!(recall(&ids("a x y z w b"), &relevant), 0.5);
        assert_eq!((recall(&ids("b a"), &relevant), ndcg(&ids("b a"), &relevant)), (1.0, 1.0));
        // One of two at the second place: (1 / log2 3) of (1 + 1 / log2 3).
        let wanted = (1.0 / 3f64.log2()) / (1.0 + 1.0 / 3f64.log2());
        assert!((ndcg(&ids("x a"), &relevant) - wanted).abs() < 1e-12);
        assert_eq!(ndcg(&ids("x y"), &relevant), 0.0);
        let mean = Mean::of(&[0.0, 1.0]);
        assert!(mean.mean == 0.5 && (mean.within - 1.96 * 0.5).abs() < 1e-12);
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.95), percentile(&values, 0.5), percentile(&[], 0.5)), (95.0, 50.0, 0.0));
    }

    #[test]
    fn a_folder_is_read_and_a_wrong_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let queries = write("q.jsonl", "{\"_id\": \"1\", \"text\": \"q\"}\n\n{\"_id\": \"2\", \"text\": \"r\"}\n");
        let qrels = write("t.tsv", "query-id\tcorpus-id\tscore\n1\td\t2\n1\te\t0\n3\td\t1\n");
        let read = labelled(&queries, &qrels).unwrap();
        assert_eq!(read, [Labelled { text: "q".to_owned(), relevant: BTreeMap::from([("d".to_owned(), 2.0)]) }]);
        let none = write("n.tsv", "h\n9\td\t1\n");
        assert!(matches!(labelled(&queries, &none), Err(SetError::Empty)));
        let wrong = write("w.tsv", "h\n1\td\t1\n1 d 1\n");
        assert!(labelled(&queries, &wrong).unwrap_err().to_string().contains("w.tsv, line 3: a judgement is"));
        let broken = write("b.jsonl", "{\"_id\": \"1\"}\n");
        assert!(entries(&broken).unwrap_err().to_string().contains("b.jsonl, line 1: missing field"));
    }
}
