//! The phase `reinforce`: makes the learned engram tables anew from the turn log, publishes them signed, and lets the
//! engine take them between two requests. A kill at any point leaves tables that are whole, signed and of one of the
//! two writings, and the next life writes the rest.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::desk::blocking;
use super::work::Work;
use crate::actors::inference::{Ask, TablesChanged};
use crate::actors::memory::List;
use crate::engine::protocol::{Event as EngineEvent, Hosted};
use crate::engram::draft::DELETE_AFTER_S;
use crate::engram::learned::{NAME, Record, VERDICT_MIN};
use crate::engram::nightly::{self, Writing};
use crate::engram::revoked::Revoked;
use crate::engram::shelf::{self, DIR, Listed, Shelf};
use crate::engram::{Source, Table};
use crate::keys::{KeyRing, OWNER};
use crate::night::manifest::{KEY_FILE, Seal};
use crate::night::phase::Event;
use crate::night::report::EngramReport;
use crate::reply::first_turn_id;
use crate::service::{Scope, TurnFilter};
use crate::store::files::{create_private_dir, read_bounded, write_durable};
use crate::turn::{Feedback, FinishReason, Turn, Vote};

/// What the phase leaves for the report.
const FILE: &str = "engram.json";
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Turns read at once.
const PAGE_TURNS: usize = 500;
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
const ENGINE_TIMEOUT: Duration = Duration::from_secs(120);
const DAY_MS: i64 = 24 * 3_600_000;
/// Records of one day from one principal who is no owner: the larger of this and that share of the day's.
const DAY_RECORDS: usize = 20;
const DAY_SHARE: f64 = 0.05;

/// Who may be learned from.
struct People {
    ring: KeyRing,
    revoked: Revoked,
}

/// Text to be learned: as it was generated, or as it was corrected.
enum Words {
    Ids(Vec<u32>),
    Text(String),
}

impl People {
    fn load(state_dir: &Path) -> Result<People, String> {
        let ring = KeyRing::load(state_dir).map_err(|error| error.to_string())?;
        let revoked = Revoked::load(&state_dir.join(DIR)).map_err(|error| error.to_string())?;
        Ok(People { ring, revoked })
    }

    /// The owner, or a key that is valid and consents today.
    fn knows(&self, principal: &str) -> bool {
        let mut keys = self.ring.entries().iter();
        principal == OWNER || keys.any(|k| k.name == principal && k.revoked.is_none() && k.consent)
    }

    fn owner(&self, principal: &str) -> bool {
        let mut keys = self.ring.entries().iter();
        let admin = |k: &crate::keys::Entry| k.revoked.is_none() && k.scopes.contains(&Scope::Admin);
        principal == OWNER || keys.any(|k| k.name == principal && admin(k))
    }

    /// What may be learned from a turn, or why nothing may.
    fn admit(&self, turn: &Turn) -> Result<(Words, u8), &'static str> {
        let first = turn.generations.first().ok_or("without an answer")?;
        if !turn.consent {
            return Err("without consent");
        }
        if turn.taint {
            return Err("tainted");
        }
        if !self.knows(&turn.principal) || self.revoked.covers(&turn.principal, turn.time_ms) {
            return Err("of a principal who is unknown, revoked or no longer consents");
        }
        let verdict = turn.verdict.ok_or("unscored")?;
        if verdict < VERDICT_MIN {
            return Err("with a low verdict");
        }
        if first.finish_reason != FinishReason::Stop || !first.tool_calls.is_empty() {
            return Err("broken off or a tool call");
        }
        let said = |has: fn(&Feedback) -> bool| turn.feedback.iter().rev().find(|f| has(f));
        let corrected = said(|f| f.correction.is_some());
        let vote = said(|f| f.vote.is_some()).and_then(|f| f.vote);
        match (corrected, vote) {
            (Some(feedback), _) if self.owner(&feedback.principal) => {
                Ok((Words::Text(feedback.correction.clone().unwrap_or_default()), verdict))
            }
            (Some(_), _) => Err("corrected by somebody who is no owner"),
            (None, Some(Vote::Up)) => Ok((Words::Ids(first.reply_ids.clone()), verdict)),
            (None, _) => Err("without a second signal"),
        }
    }
}

impl Work {
    pub(super) async fn reinforce(&self) -> Result<Event, String> {
        let hosted = self.desk.board.hosted_within(ENGINE_TIMEOUT).await.ok_or("no engine serves")?;
        let tokenizer = (print_of(&hosted)?, hosted.model.vocab as u32);
        let state_dir = self.desk.state_dir.clone();
        let people = blocking(move || People::load(&state_dir)).await??;
        let mut report = EngramReport::default();
        let records = self.records(&people, &hosted, &mut report).await?;
        report.admitted = records.len() as u64;
        let before = learned_tables(&self.desk.board.shelf());
        let now_s = self.desk.clock.now_ms() / 1_000;
        let (writing, before) = blocking(move || {
            let before: Vec<(Listed, Table)> = before.into_iter().filter_map(read_again).collect();
            let revoked =
                |s: &Source| people.revoked.covers(&s.principal, s.time_s * 1_000) || !people.knows(&s.principal);
            let (listed, tables): (Vec<_>, Vec<_>) = before.into_iter().unzip();
            let made = nightly::make(&records, &tables, revoked, now_s, tokenizer).map_err(|e| e.to_string())?;
            Ok::<_, String>((made, listed))
        })
        .await??;
        report.counts = writing.counts.clone();
        let none = writing.tables.is_empty() && writing.gone.is_empty();
        if !none && !self.run.order.dry_run {
            self.publish(writing, before).await?;
        }
        let words = report.words();
        self.keep(report).await?;
        Ok(match none {
            true => Event::Nothing { words },
            false if self.run.order.dry_run => Event::Nothing { words: format!("dry run, nothing written: {words}") },
            false => Event::Passed { words },
        })
    }

    /// Everything in the log that may be learned from and is young enough, newest first.
    async fn records(
        &self,
        people: &People,
        hosted: &Hosted,
        report: &mut EngramReport,
    ) -> Result<Vec<Record>, String> {
        let started = self.run.order.started_ms;
        let mut after = first_turn_id(started - DELETE_AFTER_S * 1_000);
        let mut records: Vec<Record> = Vec::new();
        loop {
            let filter = TurnFilter { after: Some(after.clone()), limit: Some(PAGE_TURNS), ..TurnFilter::default() };
            let page = self.desk.memory.send_within(List(filter), PAGE_TIMEOUT).await;
            let page = page.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            let Some(last) = page.last() else { break };
            after = last.id.clone();
            for turn in &page {
                report.turns += 1;
                if turn.time_ms >= started - DAY_MS {
                    report.used.add(turn);
                }
                match people.admit(turn) {
                    Ok((words, verdict)) => records.push(self.record(turn, words, verdict, hosted).await?),
                    Err(why) => *report.left_out.entry(why.to_owned()).or_default() += 1,
                }
            }
            self.desk.tick();
        }
        let over = cap_days(&mut records, |principal| people.owner(principal));
        if over > 0 {
            report.left_out.insert("over what one principal may add in a day".to_owned(), over);
        }
        records.reverse();
        Ok(records)
    }

    async fn record(&self, turn: &Turn, words: Words, verdict: u8, hosted: &Hosted) -> Result<Record, String> {
        let content = || turn.generations.first().map(|g| g.content.clone()).unwrap_or_default();
        let tokens = match words {
            Words::Ids(ids) if turn.model_hash == hosted.model_hash => ids,
            // Ids of another model mean something else.
            Words::Ids(_) => self.tokens(content()).await?,
            Words::Text(text) => self.tokens(text).await?,
        };
        let (principal, origin) = (turn.principal.clone(), turn.id.0.clone());
        Ok(Record { tokens, principal, origin, verdict, time_s: turn.time_ms / 1_000 })
    }

    async fn tokens(&self, text: String) -> Result<Vec<u32>, String> {
        let ask = Ask::Tokenize { text, specials: false };
        match self.desk.inference.send_within(ask, ENGINE_TIMEOUT).await {
            Ok(Ok(EngineEvent::Tokens { ids, .. })) => Ok(ids),
            Ok(Ok(EngineEvent::Failed { message, .. })) => Err(message),
            Ok(Ok(_)) => Err("the engine answered something else than was asked".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Puts the tables on the disk and into the engine. What goes, goes first: a kill in between withholds
    /// something, and never shows what was revoked.
    async fn publish(&self, writing: Writing, before: Vec<Listed>) -> Result<(), String> {
        let folder = self.desk.state_dir.join(DIR);
        let key = self.desk.state_dir.join(KEY_FILE);
        self.desk.pass("reinforce.made").map_err(|error| error.to_string())?;
        let failpoint = self.desk.failpoint.clone();
        let published = blocking(move || {
            let seal = Seal::open(&key).map_err(|error| error.to_string())?;
            for name in &writing.gone {
                let known = before.iter().find(|listed| listed.name == *name);
                known.map_or(Ok(()), |listed| shelf::remove(&listed.path)).map_err(|error| error.to_string())?;
            }
            // The shared table first: it is the one whose old contents others can see.
            for made in writing.tables.iter().rev() {
                let same = before.iter().any(|b| b.name == made.name && b.digest == made.table.digest());
                if !same {
                    shelf::publish(&folder, made.table.bytes(), &seal).map_err(|error| error.to_string())?;
                    failpoint.pass("reinforce.published").map_err(|error| error.to_string())?;
                }
            }
            Ok::<_, String>(())
        });
        published.await??;
        let (state_dir, shipped) = (self.desk.state_dir.clone(), self.desk.shipped_tables.clone());
        let shelf = blocking(move || Shelf::of_installation(&state_dir, shipped.as_deref())).await?;
        self.desk.board.set_shelf(shelf);
        // Requests that are submitted from now on come after the tables.
        self.desk.inference.send_within(TablesChanged, ENGINE_TIMEOUT).await.map_err(|error| error.to_string())
    }

    async fn keep(&self, report: EngramReport) -> Result<(), String> {
        let dir = self.desk.run_dir(&self.run.order.id);
        let kept = blocking(move || {
            create_private_dir(&dir)?;
            write_durable(&dir.join(FILE), &serde_json::to_vec_pretty(&report).map_err(io::Error::other)?)
        });
        kept.await?.map_err(|error| format!("the tables are written, but not what was done: {error}"))
    }
}

/// What the phase left in a run's folder.
pub(super) fn read(run_dir: &Path) -> Option<EngramReport> {
    let text = read_bounded(&run_dir.join(FILE), FILE_BYTES_MAX).ok().flatten()?;
    serde_json::from_str(&text).ok()
}

/// The fingerprint of the served tokenizer.
fn print_of(hosted: &Hosted) -> Result<[u8; 32], String> {
    let mut print = [0; 32];
    let digits = hosted.tokenizer_hash.as_bytes();
    for (byte, pair) in print.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).map_err(|_| "the engine does not name its tokenizer")?;
    }
    match digits.len() {
        64 => Ok(print),
        _ => Err("the engine does not name its tokenizer".to_owned()),
    }
}

/// The tables of the last writing, as far as they are signed.
fn learned_tables(shelf: &Shelf) -> Vec<Listed> {
    let learned = |t: &&Listed| !t.shipped && (t.name == NAME || t.name.starts_with(&format!("{NAME}-")));
    shelf.tables.iter().filter(learned).cloned().collect()
}

/// A table, if it is still the one whose signature was verified.
fn read_again(listed: Listed) -> Option<(Listed, Table)> {
    let table = shelf::read(&listed.path).ok().filter(|table| table.digest() == listed.digest);
    if table.is_none() {
        tracing::warn!(name = listed.name, "the table changed on the disk: nothing is carried over from it");
    }
    Some((listed, table?))
}

/// Leaves of each day and principal as many records as somebody who is no owner may add; returns how many went.
fn cap_days(records: &mut Vec<Record>, owner: impl Fn(&str) -> bool) -> u64 {
    const DAY_S: i64 = DAY_MS / 1_000;
    let mut days: BTreeMap<i64, usize> = BTreeMap::new();
    records.iter().for_each(|record| *days.entry(record.time_s / DAY_S).or_default() += 1);
    let mut taken: BTreeMap<(i64, String), usize> = BTreeMap::new();
    let before = records.len();
    records.retain(|record| {
        let day = record.time_s / DAY_S;
        let most = DAY_RECORDS.max((DAY_SHARE * days.get(&day).copied().unwrap_or(0) as f64) as usize);
        let count = taken.entry((day, record.principal.clone())).or_default();
        *count += 1;
        *count <= most || owner(&record.principal)
    });
    (before - records.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_adds_little_in_a_day_and_the_owner_as_much_as_there_is() {
        let record = |principal: &str, day: i64| Record {
            tokens: vec![1],
            principal: principal.into(),
            origin: "turn-x".into(),
            verdict: 5,
            time_s: day * 86_400 + 7,
        };
        let mut records: Vec<Record> = (0..100).map(|_| record("eve", 1)).collect();
        records.extend((0..100).map(|_| record(OWNER, 1)));
        records.extend((0..15).map(|_| record("eve", 2)));
        assert_eq!(cap_days(&mut records, |principal| principal == OWNER), 80);
        let of = |who: &str| records.iter().filter(|r| r.principal == who).count();
        assert_eq!((of("eve"), of(OWNER)), (20 + 15, 100));
    }
}
