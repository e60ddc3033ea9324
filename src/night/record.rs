//! The phase record `night.json`: what the Scheduler must know after a kill or a power cut. Written whole,
//! synced and renamed before each action.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::phase::{Job, Outcome, Run};
use crate::store::files::{read_bounded, write_durable};

pub const FORMAT: u32 = 1;
const BYTES_MAX: u64 = 4 << 20;
/// Runs remembered in the record; their reports stay in `runs/`.
const PAST_MAX: usize = 60;

/// A run that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    pub id: String,
    pub job: Job,
    pub started_ms: i64,
    pub ended_ms: i64,
    pub outcome: Outcome,
}

/// What a job's schedule remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handled {
    /// Due times up to this one were run or let pass, Unix milliseconds.
    pub until_ms: i64,
}

/// Everything in the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub format: u32,
    /// Grows with every write.
    pub serial: u64,
    /// No scheduled job begins.
    pub paused: bool,
    pub run: Option<Run>,
    /// Newest last.
    pub past: Vec<Past>,
    pub jobs: BTreeMap<Job, Handled>,
    /// Why the served generation is another than the pointer said, and other things the owner must read.
    pub notices: Vec<String>,
}

impl Default for Record {
    fn default() -> Self {
        Record {
            format: FORMAT,
            serial: 0,
            paused: false,
            run: None,
            past: Vec::new(),
            jobs: BTreeMap::new(),
            notices: Vec::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot read or write night.json: {0}")]
    Io(#[from] io::Error),
    #[error("night.json is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error("night.json has format {0}; this version reads {FORMAT}")]
    Format(u32),
}

impl Record {
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("night.json")
    }

    pub fn load(state_dir: &Path) -> Result<Record, RecordError> {
        let Some(text) = read_bounded(&Record::path(state_dir), BYTES_MAX)? else { return Ok(Record::default()) };
        let record: Record = serde_json::from_str(&text)?;
        if record.format == FORMAT { Ok(record) } else { Err(RecordError::Format(record.format)) }
    }

    /// Writes the record durably.
    pub fn save(&mut self, state_dir: &Path) -> Result<(), RecordError> {
        self.serial += 1;
        let surplus = self.past.len().saturating_sub(PAST_MAX);
        self.past.drain(..surplus);
        let surplus = self.notices.len().saturating_sub(PAST_MAX);
        self.notices.drain(..surplus);
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(write_durable(&Record::path(state_dir), &text)?)
    }

    /// A name for a run that begins on `date`: the date, then `date.2` and so on.
    pub fn run_id(&self, date: &str, taken: impl Fn(&str) -> bool) -> String {
        let known = |id: &str| taken(id) || self.past.iter().any(|p| p.id == id);
        let named = |n: u32| if n == 1 { date.to_owned() } else { format!("{date}.{n}") };
        (1..10_000).map(named).find(|id| !known(id)).unwrap_or_else(|| format!("{date}.{}", self.serial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::night::phase::Order;

    #[test]
    fn the_record_comes_back_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), Record::default());
        let order = Order {
            id: "2026-01-01".into(),
            job: Job::Train,
            started_ms: 3,
            dry_run: false,
            given: Some("a.gguf".into()),
            seed: 1,
        };
        let (run, _) = crate::night::phase::phase(None, crate::night::phase::Event::Begin(order));
        let mut record = Record { run, paused: true, ..Record::default() };
        record.jobs.insert(Job::Train, Handled { until_ms: 9 });
        record.save(dir.path()).unwrap();
        assert_eq!((Record::load(dir.path()).unwrap(), record.serial), (record.clone(), 1));
        std::fs::write(Record::path(dir.path()), "{").unwrap();
        assert!(matches!(Record::load(dir.path()), Err(RecordError::Damaged(_))));
        let other = serde_json::to_string(&Record { format: 9, ..record }).unwrap();
        std::fs::write(Record::path(dir.path()), other).unwrap();
        assert!(matches!(Record::load(dir.path()), Err(RecordError::Format(9))));
    }

    #[test]
    fn two_runs_of_one_day_have_two_names() {
        let record = Record::default();
        assert_eq!(record.run_id("2026-01-01", |_| false), "2026-01-01");
        assert_eq!(record.run_id("2026-01-01", |id| !id.ends_with(".3")), "2026-01-01.3");
    }
}
