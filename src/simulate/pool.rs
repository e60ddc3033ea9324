//! Questions with their reference replies, from JSON lines, plain or gzip: what a week's users ask, and the exams. The
//! form is documented in `nano/traffic/README.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::eval::golden::{ITEMS_MAX, Item};
use crate::training::recipe::Random;
use crate::turn::ToolCall;

/// Unpacked bytes of one file.
const BYTES_MAX: u64 = 512 << 20;
/// Of a foreign exam, tenths for the gate and for the night's own slice; the rest is asked before and after.
const GATE_TENTHS: u8 = 4;
const SLICE_TENTHS: u8 = 2;

/// A question, how its answer is checked, and what the answer should have been.
#[derive(Clone, Debug, Deserialize)]
pub struct Question {
    #[serde(flatten)]
    pub item: Item,
    #[serde(default)]
    pub think: String,
    #[serde(default)]
    pub answer: String,
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
}

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path}:{line}: {source}")]
    Question { path: String, line: usize, source: serde_json::Error },
    #[error("{path} has no questions")]
    Empty { path: String },
    #[error("{path} has more than {ITEMS_MAX} questions")]
    TooMany { path: String },
    #[error("{path} has {found} questions, too few to deal into three exams: give --week and --slice too")]
    TooFew { path: String, found: usize },
}

impl Question {
    /// The reference reply as a user writes it in a correction, in the model's own form.
    pub fn reference(&self) -> String {
        let mut text = match self.think.is_empty() {
            true => String::new(),
            false => format!("<think>\n{}\n</think>\n\n", self.think),
        };
        text.push_str(&self.answer);
        for call in &self.tool_calls {
            if !self.answer.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&format!("<tool_call>\n<function={}>\n", call.name));
            for (key, value) in call.arguments.as_object().into_iter().flatten() {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.push_str(&format!("<parameter={key}>\n{value}\n</parameter>\n"));
            }
            text.push_str("</function>\n</tool_call>");
        }
        text
    }
}

/// The lines of a file, unpacked where it is gzip.
pub fn open(path: &Path) -> std::io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    let packed = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(match packed {
        true => Box::new(BufReader::new(MultiGzDecoder::new(file).take(BYTES_MAX))),
        false => Box::new(file.take(BYTES_MAX)),
    })
}

/// Reads questions.
pub fn read(path: &Path) -> Result<Vec<Question>, PoolError> {
    let name = path.display().to_string();
    let failed = |source| PoolError::Read { path: name.clone(), source };
    let mut questions = Vec::new();
    for (n, line) in open(path).map_err(failed)?.lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let question = serde_json::from_str(&line);
        questions.push(question.map_err(|source| PoolError::Question { path: name.clone(), line: n + 1, source })?);
        if questions.len() > ITEMS_MAX {
            return Err(PoolError::TooMany { path: name });
        }
    }
    if questions.is_empty() { Err(PoolError::Empty { path: name }) } else { Ok(questions) }
}

/// The order in which a week asks: domains in turn, in each the families in turn, each family in an order of its own, so
/// that any stretch has them evenly. Where one of them ends, the others go on.
pub fn evenly(questions: &[Question], seed: u64) -> Vec<usize> {
    let mut domains = BTreeMap::<&str, BTreeMap<&str, Vec<usize>>>::new();
    let mut random = Random::new(seed);
    for at in random.shuffled(questions.len()) {
        let item = &questions[at].item;
        domains.entry(&item.domain).or_default().entry(&item.family).or_default().push(at);
    }
    let of_domain = |families: BTreeMap<&str, Vec<usize>>| in_turn(families.into_values().collect(), &mut random);
    let domains: Vec<Vec<usize>> = domains.into_values().map(of_domain).collect();
    in_turn(domains.into_iter().map(|domain| domain.into_iter().rev().collect()).collect(), &mut random)
}

/// One of each list, from its end, in an order drawn anew for every round.
fn in_turn(mut lists: Vec<Vec<usize>>, random: &mut Random) -> Vec<usize> {
    let mut order = Vec::new();
    while !lists.is_empty() {
        for at in random.shuffled(lists.len()) {
            order.extend(lists[at].pop());
        }
        lists.retain(|list| !list.is_empty());
    }
    order
}

/// The first `most` of `evenly`.
pub fn some_of(questions: Vec<Question>, most: usize, seed: u64) -> Vec<Question> {
    if questions.len() <= most {
        return questions;
    }
    evenly(&questions, seed).into_iter().take(most).map(|at| questions[at].clone()).collect()
}

/// Somebody else's exam, dealt by the hash of each line's id: (for the gate, for the slice, for before and after).
pub fn deal(lines: Vec<(String, Question)>, path: &Path) -> Result<[Vec<(String, Question)>; 3], PoolError> {
    let found = lines.len();
    let mut dealt: [Vec<(String, Question)>; 3] = Default::default();
    for (line, question) in lines {
        let draw = Sha256::digest(question.item.id.as_bytes())[0] % 10;
        let part = usize::from(draw >= GATE_TENTHS) + usize::from(draw >= GATE_TENTHS + SLICE_TENTHS);
        dealt[part].push((line, question));
    }
    match dealt.iter().any(Vec::is_empty) {
        true => Err(PoolError::TooFew { path: path.display().to_string(), found }),
        false => Ok(dealt),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(id: usize, family: &str) -> String {
        format!(
            r#"{{"id":"q-{id}","domain":"d","family":"{family}","messages":[{{"role":"user","content":"{id}?"}}],
            "check":{{"kind":"number","value":"{id}"}},"think":"t","answer":"{id}"}}"#
        )
        .replace('\n', " ")
    }

    #[test]
    fn plain_and_packed_files_read_alike_and_errors_name_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..20).map(|n| line(n, ["a", "b"][n % 2]) + "\n").collect();
        let (plain, packed) = (dir.path().join("p.jsonl"), dir.path().join("p.jsonl.gz"));
        std::fs::write(&plain, &text).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap();
        let ids = |path| read(path).unwrap().into_iter().map(|q| q.item.id).collect::<Vec<_>>();
        assert_eq!(ids(&plain), ids(&packed));
        std::fs::write(&plain, format!("{}\n{{}}\n", line(1, "a"))).unwrap();
        assert!(read(&plain).unwrap_err().to_string().contains("p.jsonl:2: "));
        std::fs::write(&plain, "\n").unwrap();
        assert!(matches!(read(&plain), Err(PoolError::Empty { .. })));
    }

    #[test]
    fn any_stretch_has_the_families_evenly() {
        let questions: Vec<Question> =
            (0..90).map(|n| serde_json::from_str(&line(n, if n < 60 { "big" } else { "small" })).unwrap()).collect();
        let order = evenly(&questions, 3);
        let big = order[..40].iter().filter(|&&at| at < 60).count();
        assert_eq!((order.len(), big), (90, 20));
        assert_ne!(order, evenly(&questions, 4));
        assert_eq!(some_of(questions, 10, 3).len(), 10);
    }

    #[test]
    fn a_domain_of_few_families_is_asked_as_much_as_the_others() {
        let line = |n: usize| match n {
            0..60 => line(n, &format!("f{}", n % 12)),
            _ => line(n, "only").replace(r#""domain":"d""#, r#""domain":"e""#),
        };
        let questions: Vec<Question> = (0..90).map(|n| serde_json::from_str(&line(n)).unwrap()).collect();
        let order = evenly(&questions, 3);
        assert_eq!(order[..48].iter().filter(|&&at| at >= 60).count(), 24);
        let families: std::collections::BTreeSet<usize> =
            order[..24].iter().filter(|&&at| at < 60).map(|at| at % 12).collect();
        assert_eq!(families.len(), 12);
    }

    #[test]
    fn a_reference_is_written_as_the_model_writes() {
        let mut question: Question = serde_json::from_str(&line(7, "a")).unwrap();
        assert_eq!(question.reference(), "<think>\nt\n</think>\n\n7");
        let call = serde_json::json!({"name": "f", "arguments": {"x": 1, "y": "z"}});
        (question.answer, question.tool_calls) = (String::new(), vec![serde_json::from_value(call).unwrap()]);
        let tools = [serde_json::json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}}})];
        let (rest, calls) = crate::toolcall::parse(question.reference().rsplit("</think>").next().unwrap(), &tools);
        assert_eq!((rest.trim(), calls[0].arguments["x"].as_i64()), ("", Some(1)));
    }

    #[test]
    fn a_foreign_exam_is_dealt_into_three() {
        let lines: Vec<_> = (0..200).map(|n| (line(n, "a"), serde_json::from_str(&line(n, "a")).unwrap())).collect();
        let dealt = deal(lines, Path::new("x")).unwrap();
        let sizes = dealt.each_ref().map(Vec::len);
        assert!(sizes[0] > 60 && sizes[1] > 20 && sizes[2] > 60 && sizes.iter().sum::<usize>() == 200, "{sizes:?}");
        assert!(matches!(deal(Vec::new(), Path::new("x")), Err(PoolError::TooFew { .. })));
    }
}
