//! The phase `reinforce`: makes the learned engram tables anew from the turn log, publishes them signed, and lets the
//! engine take them between two requests. A kill at any point leaves tables that are whole, signed and of one of the
//! two writings, and the next life writes the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::desk::blocking;
use super::promote::{RETRY_PAUSE, TRIES};
use super::work::Work;
use crate::actors::inference::Ask;
use crate::actors::memory::List;
use crate::engine::protocol::{Event as EngineEvent, Hosted};
use crate::engram::draft::DELETE_AFTER_S;
use crate::engram::learned::{NAME, Record};
use crate::engram::nightly::{self, Writing};
use crate::engram::revoked::Revoked;
use crate::engram::shelf::{self, DIR, Listed, Shelf};
use crate::engram::{Source, Table};
use crate::night::admission::{Admission, Principals, Refusal, Rules};
use crate::night::dataset::Signal;
use crate::night::likeness::Exams;
use crate::night::manifest::{KEY_FILE, Seal};
use crate::night::phase::Event;
use crate::night::report::EngramReport;
use crate::service::TurnFilter;
use crate::store::files::{create_private_dir, read_bounded, write_durable};
use crate::store::first_turn_id;
use crate::turn::Turn;

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

/// Who and what may be learned from: the rules of training, less what was revoked.
pub(super) struct People {
    rules: Rules,
    principals: Principals,
    exams: Exams,
    revoked: Revoked,
}

/// An answer that may be learned from.
pub(super) struct Admitted {
    pub(super) text: String,
    /// Whose words they are: who asked, or who corrected.
    principal: String,
    /// Its tokens by the model that generated it; none where it was corrected.
    ids: Option<Vec<u32>>,
    verdict: u8,
}

impl People {
    fn load(state_dir: &Path, exams: &[PathBuf], rules: Rules) -> Result<People, String> {
        let principals = super::learn::principals(state_dir)?;
        let revoked = Revoked::load(&state_dir.join(DIR)).map_err(|error| error.to_string())?;
        Ok(People { rules, principals, exams: super::learn::exams(exams)?, revoked })
    }

    fn knows(&self, principal: &str) -> bool {
        self.principals.teaches(principal)
    }

    /// What may be learned from a turn, or why nothing may.
    pub(super) fn admit(&self, turn: &Turn) -> Result<Admitted, &'static str> {
        // What an earlier night learned stays in the tables as long as it is young.
        let learned = BTreeSet::new();
        let People { rules, principals, exams, revoked } = self;
        let admission = Admission { rules, principals, exams, learned: &learned, run: "" };
        let row = admission.examine(turn).map_err(Refusal::words)?;
        let corrected = row.origin.signal == Signal::Correction;
        let principal = if corrected { row.origin.author } else { turn.principal.clone() };
        if [&turn.principal, &principal].into_iter().any(|who| revoked.covers(who, turn.time_ms)) {
            return Err("its principal was revoked");
        }
        if !row.reply.tool_calls.is_empty() {
            return Err("a call of a tool");
        }
        let ids = turn.generations.first().filter(|_| !corrected).map(|first| first.reply_ids.clone());
        Ok(Admitted { text: row.reply.content, principal, ids, verdict: row.origin.verdict })
    }
}

impl Work {
    pub(super) async fn reinforce(&self) -> Result<Event, String> {
        let hosted = self.hosted().await?;
        let tokenizer = (print_of(&hosted)?, hosted.model.vocab as u32);
        let people = self.people().await?;
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
        Ok(match (none, self.run.order.dry_run) {
            (true, _) => Event::Nothing { words },
            (false, true) => Event::WouldChange { words },
            (false, false) => Event::Passed { words },
        })
    }

    /// Everything in the log that may be learned from, newest first.
    async fn records(
        &self,
        people: &People,
        hosted: &Hosted,
        report: &mut EngramReport,
    ) -> Result<Vec<Record>, String> {
        let today = self.run.order.started_ms - DAY_MS;
        let mut admitted = Vec::new();
        self.each_turn(|turn| {
            report.turns += 1;
            if turn.time_ms >= today {
                report.used.add(turn);
            }
            match people.admit(turn) {
                // Ids of another model mean something else.
                Ok(mut answer) => {
                    answer.ids = answer.ids.filter(|_| turn.model_hash == hosted.model_hash);
                    admitted.push((turn.id.0.clone(), turn.time_ms / 1_000, answer));
                }
                Err(why) => *report.left_out.entry(why.to_owned()).or_default() += 1,
            }
        })
        .await?;
        self.desk.pass("reinforce.read").map_err(|error| error.to_string())?;
        let mut records = Vec::new();
        for (origin, time_s, Admitted { text, principal, ids, verdict }) in admitted {
            let tokens = match ids {
                Some(ids) => ids,
                None => self.tokens(text).await?,
            };
            records.push(Record { tokens, principal, origin, verdict, time_s });
        }
        let over = cap_days(&mut records, |principal| people.principals.owners.contains(principal));
        if over > 0 {
            report.left_out.insert("over what one principal may add in a day".to_owned(), over);
        }
        records.reverse();
        Ok(records)
    }

    /// Passes over the turns of the last 90 days, oldest first.
    pub(super) async fn each_turn(&self, mut take: impl FnMut(&Turn)) -> Result<(), String> {
        let mut after = first_turn_id(self.run.order.started_ms - DELETE_AFTER_S * 1_000);
        loop {
            let filter = TurnFilter { after: Some(after), limit: Some(PAGE_TURNS), ..TurnFilter::default() };
            let page = self.desk.memory.send_within(List(filter), PAGE_TIMEOUT).await;
            let page = page.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id.clone();
            page.iter().for_each(&mut take);
            self.desk.tick();
        }
    }

    pub(super) async fn hosted(&self) -> Result<Arc<Hosted>, String> {
        self.desk.board.hosted_within(ENGINE_TIMEOUT).await.ok_or_else(|| "no engine serves".to_owned())
    }

    pub(super) async fn people(&self) -> Result<People, String> {
        let (state_dir, rules) = (self.desk.state_dir.clone(), self.schedule.selection);
        let exams: Vec<PathBuf> =
            [&self.desk.golden, &self.desk.slice].into_iter().filter_map(|p| p.clone().ok()).collect();
        blocking(move || People::load(&state_dir, &exams, rules)).await?
    }

    /// A text's tokens by the served model: asked of the engine, or of the successor of one that dies meanwhile.
    pub(super) async fn tokens(&self, text: String) -> Result<Vec<u32>, String> {
        let mut tokens = self.tokens_now(text.clone()).await;
        for _ in 1..TRIES {
            if tokens.is_ok() {
                break;
            }
            sleep(RETRY_PAUSE).await;
            self.hosted().await?;
            tokens = self.tokens_now(text.clone()).await;
        }
        tokens
    }

    async fn tokens_now(&self, text: String) -> Result<Vec<u32>, String> {
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
        Ok(())
    }

    pub(super) async fn keep(&self, report: EngramReport) -> Result<(), String> {
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
pub(super) fn learned_tables(shelf: &Shelf) -> Vec<Listed> {
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
    use crate::keys::OWNER;

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
