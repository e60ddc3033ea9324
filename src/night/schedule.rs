//! `night.yaml`: when which job runs, under which conditions, how a candidate is judged and watched. Which job is due
//! depends on the file, the record and the daemon's clock alone. So a machine that slept, or whose clock jumped, does
//! each job once or not at all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use chrono::{Datelike, NaiveDate, Timelike};
use croner::Cron;
use jiff::Timestamp;
use jiff::civil;
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::phase::Job;
use super::record::Handled;
use super::{admission, canary, gate, learning};
use crate::optimise::Settings;
use crate::pipeline::yaml::{self, YamlError};
use crate::store::files::read_bounded;

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
const NODES_MAX: usize = 2_000;
const DEPTH_MAX: usize = 16;
/// The file of this source tree, for a binary without its folder.
pub const SHIPPED: &str = include_str!("../../pipelines/night.yaml");
const FILE: &str = "night.yaml";
/// A job that is due this long ago still counts as on time.
const ON_TIME_MS: i64 = 120_000;
/// A clock set back by more than this makes what was handled meaningless.
const SET_BACK_MS: i64 = 24 * 3_600_000;
/// Due times that are looked through at once.
const TIMES_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    #[error("{place}: {message}")]
    Parse { place: String, message: String },
    #[error("{place}: {field} {message}")]
    Invalid { place: String, field: String, message: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawJob {
    cron: String,
    catch_up_hours: f64,
    idle_minutes: f64,
    #[serde(default)]
    on_battery: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSchedule {
    version: u32,
    jobs: BTreeMap<Job, RawJob>,
    #[serde(default)]
    scoring: learning::Scoring,
    #[serde(default)]
    selection: admission::Rules,
    #[serde(default)]
    training: learning::Training,
    #[serde(default)]
    optimise: Settings,
    #[serde(default)]
    engram: Weighing,
    exam: Exam,
    gate: gate::Limits,
    canary: canary::Rules,
}

/// When one job runs.
#[derive(Clone, Debug)]
pub struct Entry {
    cron: Cron,
    /// As written, for people.
    pub pattern: String,
    /// A run that was missed may still begin so much later.
    pub catch_up_ms: i64,
    /// No live reply for so long before it begins.
    pub idle_ms: i64,
    /// May begin while the machine runs on its battery.
    pub on_battery: bool,
}

/// How the exams are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exam {
    /// Most items of each exam.
    pub items_max: usize,
    /// Requests under way at once.
    pub parallel: usize,
}

/// How the learned engram tables are weighed once they are written.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weighing {
    /// Most items of the slice exam that are asked with them and without; 0: none.
    pub items_max: usize,
    /// After so long no further item is asked.
    pub minutes_max: f64,
}

impl Default for Weighing {
    fn default() -> Self {
        Weighing { items_max: 100, minutes_max: 30.0 }
    }
}

/// A checked file.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub version: u32,
    pub jobs: BTreeMap<Job, Entry>,
    pub scoring: learning::Scoring,
    pub selection: admission::Rules,
    pub training: learning::Training,
    /// How much a search for better prompts may try.
    pub optimise: Settings,
    pub engram: Weighing,
    pub exam: Exam,
    pub gate: gate::Limits,
    pub canary: canary::Rules,
}

impl Schedule {
    /// The first `night.yaml` of the folders, strongest first; else the one compiled in.
    pub fn load(folders: &[PathBuf]) -> Result<Schedule, ScheduleError> {
        for folder in folders {
            let path = folder.join(FILE);
            let place = path.display().to_string();
            match read_bounded(&path, FILE_BYTES_MAX) {
                Ok(Some(text)) => return Schedule::parse(&text, &place),
                Ok(None) => {}
                Err(error) => return Err(ScheduleError::Parse { place, message: error.to_string() }),
            }
        }
        Schedule::parse(SHIPPED, FILE)
    }

    /// Reads and checks a file; `place` is its name in messages.
    pub fn parse(text: &str, place: &str) -> Result<Schedule, ScheduleError> {
        let mut raw: RawSchedule = yaml::read(text, place, NODES_MAX, DEPTH_MAX)
            .map_err(|YamlError { place, message }| ScheduleError::Parse { place, message })?;
        let invalid = |(field, message): (String, String)| {
            let line = yaml::line_of(text, &field).map(|line| format!(":{line}")).unwrap_or_default();
            ScheduleError::Invalid { place: format!("{place}{line}"), field, message }
        };
        let mut jobs = BTreeMap::new();
        for (job, raw) in std::mem::take(&mut raw.jobs) {
            let entry = Entry::check(raw).map_err(|(f, m)| invalid((format!("jobs.{}.{f}", job.name()), m)))?;
            jobs.insert(job, entry);
        }
        let exam = (raw.exam.items_max as f64, raw.exam.parallel as f64);
        let (selection, gate, canary) = (&raw.selection, &raw.gate, &raw.canary);
        let ranges = [
            ("scoring.minutes_max", raw.scoring.minutes_max, 0.0, 1_440.0),
            ("selection.window_hours", selection.window_hours, 0.01, 8_760.0),
            ("selection.verdict_min", selection.verdict_min.into(), 1.0, 5.0),
            ("selection.pairs_min", selection.pairs_min as f64, 8.0, 100_000.0),
            ("selection.pairs_max", selection.pairs_max as f64, 8.0, 100_000.0),
            ("selection.principal_share_max", selection.principal_share_max, 0.0, 0.5),
            ("selection.principal_pairs_max", selection.principal_pairs_max as f64, 0.0, 10_000.0),
            ("selection.corrections_share_max", selection.corrections_share_max, 0.0, 1.0),
            ("engram.items_max", raw.engram.items_max as f64, 0.0, 100_000.0),
            ("engram.minutes_max", raw.engram.minutes_max, 0.0, 1_440.0),
            ("exam.items_max", exam.0, 1.0, 100_000.0),
            ("exam.parallel", exam.1, 1.0, 256.0),
            ("gate.margin", gate.margin, 0.0, 0.2),
            ("gate.domain_alpha", gate.domain_alpha, 0.0, 0.5),
            ("gate.domain_drop_max", gate.domain_drop_max, 0.0, 1.0),
            ("gate.domain_items_min", gate.domain_items_min as f64, 1.0, 1e6),
            ("gate.kl_max", gate.kl_max, 0.0, 100.0),
            ("gate.update_rms_max", gate.update_rms_max, 0.0, 100.0),
            ("gate.speed_min", gate.speed_min, 0.0, 1.0),
            ("gate.speed_first_min", gate.speed_first_min, 0.0, 1.0),
            ("gate.gain_alpha", gate.gain_alpha, 0.0, 1.0),
            ("gate.items_min", gate.items_min as f64, 1.0, 1e6),
            ("canary.stages", canary.stages.len() as f64, 0.0, 8.0),
            ("canary.alarm_p", canary.alarm_p, 0.0, 0.5),
            ("canary.alarm_turns_min", canary.alarm_turns_min as f64, 1.0, 1e6),
            ("canary.latency_ratio_max", canary.latency_ratio_max, 1.0, 100.0),
            ("canary.latency_ratio_first_max", canary.latency_ratio_first_max, 1.0, 100.0),
            ("canary.hours_max", canary.hours_max, 0.0, 720.0),
        ];
        let more = raw.training.ranges().into_iter().chain(raw.optimise.ranges());
        for (field, value, low, high) in ranges.into_iter().chain(more) {
            within(field, value, low, high).map_err(invalid)?;
        }
        if let Some((field, why)) = raw.training.refusal() {
            return Err(invalid((field.to_owned(), why.to_owned())));
        }
        for (n, stage) in canary.stages.iter().enumerate() {
            within(&format!("canary.stages[{n}].percent"), stage.percent.into(), 1.0, 99.0).map_err(invalid)?;
            let scored = stage.scored_turns as f64;
            within(&format!("canary.stages[{n}].scored_turns"), scored, 1.0, 1e6).map_err(invalid)?;
        }
        if !canary.stages.is_sorted_by_key(|s| s.percent) {
            return Err(invalid(("canary.stages".into(), "must not shrink".into())));
        }
        let RawSchedule { version, scoring, selection, training, optimise, engram, exam, gate, canary, .. } = raw;
        Ok(Schedule { version, jobs, scoring, selection, training, optimise, engram, exam, gate, canary })
    }
}

fn within(field: &str, value: f64, low: f64, high: f64) -> Result<(), (String, String)> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err((field.to_owned(), format!("is {value}, but must be {low} to {high}")))
}

/// What the machine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Unix milliseconds by the daemon's clock.
    pub now_ms: i64,
    /// Since the last live reply ended.
    pub idle_ms: i64,
    pub on_battery: bool,
}

/// Whether a job begins now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Later {
        next_ms: Option<i64>,
    },
    /// It is due, but the machine is not free for it.
    Waits {
        due_ms: i64,
        why: &'static str,
    },
    /// It begins, for the due time `due_ms` and those before it.
    Now {
        due_ms: i64,
    },
}

impl Entry {
    fn check(raw: RawJob) -> Result<Entry, (String, String)> {
        let fields = "must have five fields, such as `0 3 * * *`".to_owned();
        if raw.cron.split_whitespace().count() != 5 {
            return Err(("cron".to_owned(), fields));
        }
        let cron =
            Cron::from_str(&raw.cron).map_err(|error| ("cron".to_owned(), format!("is not readable: {error}")))?;
        within("catch_up_hours", raw.catch_up_hours, 0.0, 168.0)?;
        within("idle_minutes", raw.idle_minutes, 0.0, 1_440.0)?;
        Ok(Entry {
            cron,
            pattern: raw.cron,
            catch_up_ms: (raw.catch_up_hours * 3_600_000.0) as i64,
            idle_ms: (raw.idle_minutes * 60_000.0) as i64,
            on_battery: raw.on_battery,
        })
    }

    /// The first due time after `after_ms`, Unix milliseconds, by the wall clocks of `zone`.
    pub fn next(&self, after_ms: i64, zone: &TimeZone) -> Option<i64> {
        let start = Timestamp::from_millisecond(after_ms).ok()?.to_zoned(zone.clone()).datetime();
        // croner reckons in chrono's types: civil time goes in as if it were UTC, and comes out the same way.
        let date = NaiveDate::from_ymd_opt(start.year().into(), start.month() as u32, start.day() as u32)?;
        let mut civil = date.and_hms_opt(start.hour() as u32, start.minute() as u32, start.second() as u32)?.and_utc();
        for _ in 0..4 {
            civil = self.cron.find_next_occurrence(&civil, false).ok()?;
            let day = civil::date(civil.year() as i16, civil.month() as i8, civil.day() as i8);
            let at = day.at(civil.hour() as i8, civil.minute() as i8, civil.second() as i8, 0);
            let due = zone.to_ambiguous_zoned(at).compatible().ok()?.timestamp().as_millisecond();
            // In the hour that a change of clocks repeats, a time can come out before the one it follows.
            if due > after_ms {
                return Some(due);
            }
        }
        None
    }

    /// Whether the job begins now, given the due times that were handled.
    pub fn due(&self, handled: Handled, conditions: Conditions, zone: &TimeZone) -> Due {
        let now = conditions.now_ms;
        // A clock that was far ahead and was put right must not stop the job until then.
        let handled = if handled.until_ms - now > SET_BACK_MS { now } else { handled.until_ms };
        let oldest = now - self.catch_up_ms.max(ON_TIME_MS) - 1;
        let mut next = self.next(handled.max(oldest), zone);
        let mut due = None;
        for _ in 0..TIMES_MAX {
            match next {
                Some(at) if at <= now => (due, next) = (Some(at), self.next(at, zone)),
                _ => break,
            }
        }
        let Some(due_ms) = due else { return Due::Later { next_ms: next } };
        if conditions.on_battery && !self.on_battery {
            return Due::Waits { due_ms, why: "the machine runs on its battery" };
        }
        if conditions.idle_ms < self.idle_ms {
            return Due::Waits { due_ms, why: "there was a reply a moment ago" };
        }
        Due::Now { due_ms }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
