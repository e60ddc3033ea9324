//! The pairs of earlier nights. Pairs that a served generation learned from are shown again. Pairs of refused nights
//! are tried again a few times. The file `library.jsonl` has a line with format, count and SHA-256, then a pair a
//! line. It is written whole. What is forgotten of the turn log is forgotten here.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::dataset::{self, Row};
use super::inspect::hex;
use crate::service::Forgetting;
use crate::store::files::{read_bounded, write_durable};
use crate::training::recipe::Random;

pub const FORMAT: u32 = 1;
const FILE: &str = "library.jsonl";
/// Pairs that are kept, the newest, and bytes of the file.
const ROWS_MAX: usize = 20_000;
const BYTES_MAX: u64 = 256 << 20;
/// More nights than any setting tries again.
const GIVEN_UP: u32 = u32::MAX;

/// What the gate said of the night that brought some pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// Let in, as this generation.
    Promoted(u64),
    /// No improvement was shown.
    Refused,
    /// Clearly worse than the champion.
    Harmful,
}

#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error("the library of earlier pairs: {0}")]
    Io(#[from] io::Error),
    #[error("the library of earlier pairs, {path}, is damaged: {why}; move it away to begin anew")]
    Damaged { path: String, why: String },
    #[error("the library of earlier pairs has format {0}; this version reads {FORMAT}")]
    Format(u32),
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    rows: usize,
    sha256: String,
}

/// What became of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The gate let the generation in that learned it.
    Learned { generation: u64 },
    /// So many nights with it were refused.
    Refused { nights: u32 },
}

/// A pair and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub status: Status,
    pub row: Row,
}

/// Everything in the file, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs(pub Vec<Kept>);

/// Generations that the champion descends from, itself among them.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pub generations: BTreeSet<u64>,
    /// Nothing is known of the descent of generations up to this one: they count as ancestors.
    pub unknown_to: u64,
}

impl Line {
    fn holds(&self, generation: u64) -> bool {
        generation <= self.unknown_to || self.generations.contains(&generation)
    }
}

impl Pairs {
    /// Questions that are not learned again as new ones: those of the champion's line, and those that were tried often
    /// enough.
    pub fn questions(&self, line: &Line, retries_max: u32) -> BTreeSet<String> {
        let settled = self.0.iter().filter(|kept| learned(kept, line) || !retries(kept, line, retries_max));
        settled.map(|kept| kept.row.origin.question.clone()).collect()
    }

    /// The pairs that may still be learned, as of people who consent.
    pub fn of(&self, may: impl Fn(&Row) -> bool) -> Pairs {
        Pairs(self.0.iter().filter(|kept| may(&kept.row)).cloned().collect())
    }

    /// Pairs of refused nights, and of generations that were rolled back, that may be tried again.
    pub fn again(&self, line: &Line, retries_max: u32) -> Vec<Row> {
        self.0.iter().filter(|kept| retries(kept, line, retries_max)).map(|kept| kept.row.clone()).collect()
    }

    /// At most `most` pairs that the champion's line learned from, drawn by the seed, in the order of time.
    pub fn replay(&self, line: &Line, most: usize, seed: u64) -> Vec<Row> {
        let learned: Vec<&Row> = self.0.iter().filter(|kept| learned(kept, line)).map(|kept| &kept.row).collect();
        let mut drawn = Random::new(seed).shuffled(learned.len());
        drawn.truncate(most);
        drawn.sort_unstable();
        drawn.into_iter().map(|at| learned[at].clone()).collect()
    }

    /// Files the new pairs of a run that was judged. One poisoned night must not spoil the next: with a night that was
    /// refused those of suspects are given up, and with one that did harm all that it was the first to try.
    pub fn file(&mut self, rows: Vec<Row>, judged: Judged, suspects: &BTreeSet<String>) {
        for row in rows {
            let before = self.0.iter().position(|kept| kept.row.origin.question == row.origin.question);
            let nights = match before.map(|at| self.0.remove(at).status) {
                _ if suspects.contains(&row.origin.author) => GIVEN_UP,
                Some(Status::Refused { nights }) => nights.saturating_add(1),
                None if judged == Judged::Harmful => GIVEN_UP,
                Some(Status::Learned { .. }) | None => 1,
            };
            let status = match judged {
                Judged::Promoted(generation) => Status::Learned { generation },
                Judged::Refused | Judged::Harmful => Status::Refused { nights },
            };
            self.0.push(Kept { status, row });
        }
        let surplus = self.0.len().saturating_sub(ROWS_MAX);
        self.0.drain(..surplus);
    }
}

fn learned(kept: &Kept, line: &Line) -> bool {
    matches!(kept.status, Status::Learned { generation } if line.holds(generation))
}

fn retries(kept: &Kept, line: &Line, retries_max: u32) -> bool {
    match kept.status {
        Status::Learned { generation } => !line.holds(generation) && retries_max > 0,
        Status::Refused { nights } => nights <= retries_max,
    }
}

/// The file. One at a time reads and changes it.
pub struct Library {
    path: PathBuf,
    alone: Mutex<()>,
}

impl Library {
    pub fn new(state_dir: &Path) -> Library {
        Library { path: state_dir.join(FILE), alone: Mutex::new(()) }
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn load(&self) -> Result<Pairs, LibraryError> {
        let _alone = self.alone();
        self.read()
    }

    /// Files the pairs of a run that was judged. A run is filed once: its pairs are known by its name.
    pub fn file(
        &self,
        run: &str,
        rows: Vec<Row>,
        judged: Judged,
        suspects: &BTreeSet<String>,
    ) -> Result<(), LibraryError> {
        let _alone = self.alone();
        let mut pairs = self.read()?;
        let mine = rows.into_iter().map(|mut row| {
            run.clone_into(&mut row.origin.run);
            row
        });
        let filed = |row: &Row| pairs.0.iter().any(|kept| kept.row.id == row.id && kept.row.origin.run == run);
        let fresh: Vec<Row> = mine.filter(|row| !filed(row)).collect();
        pairs.file(fresh, judged, suspects);
        self.write(&pairs)
    }

    /// Drops what a forgetting reaches; returns the ids of the pairs that went.
    pub fn forget(&self, wanted: &Forgetting) -> Result<BTreeSet<String>, LibraryError> {
        let _alone = self.alone();
        let mut pairs = self.read()?;
        let reached = pairs.0.iter().filter(|kept| kept.row.origin.is_reached(wanted));
        let gone: BTreeSet<String> = reached.map(|kept| kept.row.id.clone()).collect();
        if !gone.is_empty() {
            pairs.0.retain(|kept| !kept.row.origin.is_reached(wanted));
            self.write(&pairs)?;
        }
        Ok(gone)
    }

    fn read(&self) -> Result<Pairs, LibraryError> {
        let Some(text) = read_bounded(&self.path, BYTES_MAX)? else { return Ok(Pairs::default()) };
        let damaged = |why: String| LibraryError::Damaged { path: self.path.display().to_string(), why };
        let (head, rest) = text.split_once('\n').ok_or_else(|| damaged("it has no first line".to_owned()))?;
        let head: Head = serde_json::from_str(head).map_err(|e| damaged(e.to_string()))?;
        if head.format != FORMAT {
            return Err(LibraryError::Format(head.format));
        }
        if hex(&Sha256::digest(rest.as_bytes())) != head.sha256 {
            return Err(damaged("its checksum is another".to_owned()));
        }
        let rows: Result<Vec<Kept>, _> = rest.lines().map(serde_json::from_str).collect();
        rows.map(Pairs).map_err(|e| damaged(e.to_string()))
    }

    fn write(&self, pairs: &Pairs) -> Result<(), LibraryError> {
        let rest = dataset::lines(&pairs.0)?;
        let head = Head { format: FORMAT, rows: pairs.0.len(), sha256: hex(&Sha256::digest(&rest)) };
        Ok(write_durable(&self.path, &[dataset::lines(&[head])?, rest].concat())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::night::dataset::tests::row;
    use crate::service::TurnFilter;
    use crate::turn::TurnId;

    fn rows(range: std::ops::Range<usize>) -> Vec<Row> {
        range.map(|n| row(n, "anna")).collect()
    }

    fn nobody() -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn line(generations: &[u64]) -> Line {
        Line { generations: generations.iter().copied().collect(), unknown_to: 0 }
    }

    fn ids(rows: &[Row]) -> Vec<usize> {
        rows.iter().map(|row| row.id.trim_start_matches("turn-").parse().unwrap()).collect()
    }

    #[test]
    fn learned_pairs_are_shown_again_and_refused_ones_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::new(dir.path());
        assert_eq!(library.load().unwrap(), Pairs::default());
        library.file("a", rows(0..4), Judged::Promoted(1), &nobody()).unwrap();
        library.file("b", rows(4..6), Judged::Refused, &nobody()).unwrap();
        library.file("b", rows(4..6), Judged::Refused, &nobody()).unwrap();
        let pairs = library.load().unwrap();
        assert_eq!(pairs.0.len(), 6);
        assert_eq!(ids(&pairs.again(&line(&[1]), 2)), [4, 5]);
        assert_eq!(pairs.questions(&line(&[1]), 2).len(), 4);
        assert_eq!(ids(&pairs.replay(&line(&[1]), 9, 7)), [0, 1, 2, 3]);
        let drawn = pairs.replay(&line(&[1]), 2, 7);
        assert_eq!((drawn.len(), &drawn), (2, &pairs.replay(&line(&[1]), 2, 7)));
        // Two nights more, and they are given up.
        for run in ["c", "d"] {
            library.file(run, rows(4..6), Judged::Refused, &nobody()).unwrap();
        }
        let pairs = library.load().unwrap();
        assert!(pairs.again(&line(&[1]), 2).is_empty());
        assert_eq!(pairs.questions(&line(&[1]), 2).len(), 6);
    }

    #[test]
    fn what_a_generation_learned_that_was_rolled_back_counts_as_refused() {
        let mut pairs = Pairs::default();
        pairs.file(rows(0..2), Judged::Promoted(1), &nobody());
        pairs.file(rows(2..4), Judged::Promoted(2), &nobody());
        let back = line(&[1]);
        assert_eq!((ids(&pairs.replay(&back, 9, 1)), ids(&pairs.again(&back, 2))), (vec![0, 1], vec![2, 3]));
        let old = Line { unknown_to: 2, ..Line::default() };
        assert_eq!(pairs.replay(&old, 9, 1).len(), 4);
    }

    #[test]
    fn what_suspects_said_in_a_refused_night_is_not_tried_again() {
        let mut pairs = Pairs::default();
        let rows = [rows(0..2), vec![row(7, "mallory")]].concat();
        pairs.file(rows.clone(), Judged::Refused, &BTreeSet::from(["mallory".to_owned()]));
        assert_eq!(ids(&pairs.again(&line(&[]), 100)), [0, 1]);
        assert_eq!(pairs.questions(&line(&[]), 100).len(), 1, "settled, and not new in the next night");
        pairs.file(rows, Judged::Refused, &nobody());
        assert_eq!(ids(&pairs.again(&line(&[]), 100)), [0, 1], "for good");
    }

    #[test]
    fn what_a_harmful_night_brought_is_given_up_and_what_came_along_is_not() {
        let mut pairs = Pairs::default();
        pairs.file(rows(0..2), Judged::Refused, &nobody());
        pairs.file(rows(0..4), Judged::Harmful, &nobody());
        assert_eq!(ids(&pairs.again(&line(&[]), 2)), [0, 1]);
        assert_eq!(pairs.questions(&line(&[]), 2).len(), 2, "and not new in the next night");
        pairs.file(rows(0..2), Judged::Refused, &nobody());
        assert!(pairs.again(&line(&[]), 2).is_empty(), "a try is a try");
    }

    #[test]
    fn the_forgotten_is_gone_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::new(dir.path());
        library.file("a", rows(0..4), Judged::Promoted(1), &nobody()).unwrap();
        let one = TurnFilter { turn: Some(TurnId("turn-0002".into())), ..TurnFilter::default() };
        // Of another turn went on a pair that stays in the log without its words.
        let one = Forgetting { filter: one, followers: [TurnId("turn-0003".into())].into() };
        assert_eq!((library.forget(&one).unwrap().len(), library.forget(&one).unwrap().len()), (2, 0));
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(!text.contains("turn-0002") && library.load().unwrap().0.len() == 2);
        std::fs::write(dir.path().join(FILE), text.replace("Answer 1", "Answer 7")).unwrap();
        assert!(library.load().unwrap_err().to_string().contains("checksum"));
        std::fs::write(dir.path().join(FILE), "{\"format\":9,\"rows\":0,\"sha256\":\"\"}\n").unwrap();
        assert!(matches!(library.load(), Err(LibraryError::Format(9))));
    }
}
