//! Answers to the exams, kept from night to night by revision. So a champion is not asked again what it answered as a
//! candidate, and an interrupted gate goes on where it was. Greedy answers of one revision, one engine and one exam
//! are always the same. So the name of a file says exactly whose answers to which exam it holds.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::dataset::lines;
use super::inspect::hex;
use crate::store::files::{create_private_dir, read_bounded, write_durable};

pub const FORMAT: u32 = 1;
const FOLDER: &str = "answers";
const BYTES_MAX: u64 = 256 << 20;
/// Files that stay: the champion's, the canary's, the candidate's and a few to roll back to.
const FILES_MAX: usize = 6;

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The item.
    pub id: String,
    pub passed: bool,
    pub reply: String,
    /// Prompt and reply, and where the reply begins.
    pub ids: Vec<u32>,
    pub reply_from: usize,
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    sha256: String,
}

/// The answers of one revision.
#[derive(Debug, Default)]
pub struct Answers {
    path: Option<PathBuf>,
    kept: HashMap<String, Answer>,
    /// Some are not on the disk.
    new: bool,
}

impl Answers {
    /// Those of `whose`: everything that an answer depends on. A damaged file is as good as none.
    pub fn load(state_dir: &Path, whose: &[&str]) -> io::Result<Answers> {
        let mut hash = Sha256::new();
        for part in whose {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let folder = state_dir.join(FOLDER);
        create_private_dir(&folder)?;
        let path = folder.join(format!("{}.jsonl", &hex(&hash.finalize())[..32]));
        let kept = read_bounded(&path, BYTES_MAX)?.and_then(|text| parse(&text)).unwrap_or_default();
        Ok(Answers { path: Some(path), kept, new: false })
    }

    pub fn get(&self, item: &str) -> Option<&Answer> {
        self.kept.get(item)
    }

    pub fn put(&mut self, answer: Answer) {
        self.new |= self.kept.get(&answer.id) != Some(&answer);
        self.kept.insert(answer.id.clone(), answer);
    }

    /// Writes them, and removes the files that were longest not written.
    pub fn save(&mut self) -> io::Result<()> {
        let Some(path) = self.path.as_ref().filter(|_| self.new) else { return Ok(()) };
        let mut answers: Vec<&Answer> = self.kept.values().collect();
        answers.sort_by(|a, b| a.id.cmp(&b.id));
        let rest = lines(&answers)?;
        let head = Head { format: FORMAT, sha256: hex(&Sha256::digest(&rest)) };
        write_durable(path, &[lines(&[head])?, rest].concat())?;
        self.new = false;
        path.parent().map_or(Ok(()), prune)
    }
}

fn parse(text: &str) -> Option<HashMap<String, Answer>> {
    let (head, rest) = text.split_once('\n')?;
    let head: Head = serde_json::from_str(head).ok()?;
    if head.format != FORMAT || hex(&Sha256::digest(rest.as_bytes())) != head.sha256 {
        return None;
    }
    rest.lines().map(|line| serde_json::from_str::<Answer>(line).ok().map(|a| (a.id.clone(), a))).collect()
}

fn prune(folder: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        files.push((entry.metadata()?.modified()?, entry.path()));
    }
    files.sort();
    let surplus = files.len().saturating_sub(FILES_MAX);
    files.into_iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: &str, passed: bool) -> Answer {
        Answer { id: id.into(), passed, reply: "42".into(), ids: vec![1, 2, 3], reply_from: 2 }
    }

    #[test]
    fn answers_come_back_to_the_one_who_gave_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut answers = Answers::load(dir.path(), &["base", "gen-1", "exam"]).unwrap();
        assert_eq!(answers.get("a"), None);
        answers.put(answer("a", true));
        answers.put(answer("b", false));
        answers.save().unwrap();
        let again = Answers::load(dir.path(), &["base", "gen-1", "exam"]).unwrap();
        assert_eq!((again.get("a"), again.get("b")), (Some(&answer("a", true)), Some(&answer("b", false))));
        for other in [["base", "gen-2", "exam"], ["base", "gen-1", "other"], ["baseg", "en-1", "exam"]] {
            assert_eq!(Answers::load(dir.path(), &other).unwrap().get("a"), None);
        }
        let path = again.path.unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("true", "false")).unwrap();
        assert_eq!(Answers::load(dir.path(), &["base", "gen-1", "exam"]).unwrap().get("a"), None, "damaged");
    }

    #[test]
    fn old_files_go() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..FILES_MAX + 3 {
            let mut answers = Answers::load(dir.path(), &[&n.to_string()]).unwrap();
            answers.put(answer("a", true));
            answers.save().unwrap();
        }
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), FILES_MAX);
    }
}
