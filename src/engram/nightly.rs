//! The learned tables of one writing, made anew from everything that may be learned from today. So what was
//! forgotten, withdrawn or revoked since the last writing is absent, and writing twice gives the same as writing
//! once. Only what came from elsewhere than the turn log (`chimere engram learn`) is carried over from the tables
//! before.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::draft::{DELETE_AFTER_S, Draft};
use super::format::{EngramError, Source};
use super::learned::{self, NAME, Record, own_name};
use super::table::{Bytes, Table};

/// Begins the origin of what came from the turn log.
const TURN: &str = "turn-";
pub const DESCRIPTION: &str = "learned from verified answers";
pub const LICENCE: &str = "this installation's own";

/// A finished table.
#[derive(Debug)]
pub struct Made {
    pub name: String,
    pub owner: Option<String>,
    pub table: Table,
}

/// How a writing differs from the one before. Records are answers, entries are continuations of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub principals: usize,
    pub records: usize,
    pub records_in: usize,
    /// Gone for age.
    pub records_aged: usize,
    /// Gone for any other reason: forgotten, revoked, judged otherwise since, or over a limit.
    pub records_withdrawn: usize,
    pub entries_before: usize,
    pub entries: usize,
    /// Of them, those that everybody may be told.
    pub shared_entries: usize,
}

/// What is to be written.
#[derive(Debug)]
pub struct Writing {
    /// Principals' own tables, then the shared one; empty ones are left out.
    pub tables: Vec<Made>,
    /// Names of learned tables that must go.
    pub gone: Vec<String>,
    pub counts: Counts,
}

/// Makes the learned tables. `records`: all that may be learned from, newest first. `before`: the learned tables of
/// the last writing. `revoked` names what of them may not be carried over.
pub fn make(
    records: &[Record],
    before: &[Table],
    revoked: impl Fn(&Source) -> bool,
    now_s: i64,
    (fingerprint, vocab): ([u8; 32], u32),
) -> Result<Writing, EngramError> {
    let fits = |table: &&Table| *table.fingerprint() == fingerprint && table.vocab() == vocab;
    let mut own = learned::learn(&said_once(records), fingerprint, vocab)?.own;
    for table in before.iter().filter(fits) {
        let Some(owner) = &table.meta().owner else { continue };
        let mut kept = Draft::of(table)?;
        kept.remove(|source| source.origin.starts_with(TURN) || revoked(source));
        if kept.contexts() > 0 {
            let draft = match own.entry(owner.clone()) {
                std::collections::btree_map::Entry::Occupied(draft) => draft.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => place.insert(Draft::new(fingerprint, vocab)?),
            };
            draft.merge(&finish(&kept, "kept", None)?)?;
        }
    }
    let mut tables = Vec::new();
    for (principal, mut draft) in own {
        draft.decay(now_s);
        if draft.contexts() > 0 {
            let name = own_name(NAME, &principal);
            tables.push(Made { table: finish(&draft, &name, Some(&principal))?, name, owner: Some(principal) });
        }
    }
    let shared = learned::shared(tables.iter().map(|made| &made.table), fingerprint, vocab)?;
    let mut counts = Counts { principals: tables.len(), ..compare(before, &tables, now_s) };
    if shared.contexts() > 0 {
        tables.push(Made { name: NAME.to_owned(), owner: None, table: finish(&shared, NAME, None)? });
        counts.shared_entries = shared.entries();
    }
    counts.entries = tables.iter().map(|made| made.table.entries()).sum();
    let names: BTreeSet<&str> = tables.iter().map(|made| made.name.as_str()).collect();
    let gone = before.iter().map(|table| &table.meta().name).filter(|name| !names.contains(name.as_str()));
    Ok(Writing { gone: gone.cloned().collect(), tables, counts })
}

/// The same words of the same principal count once, however often they were said: the newest time.
fn said_once(records: &[Record]) -> Vec<Record> {
    let mut seen = BTreeSet::new();
    records.iter().filter(|record| seen.insert((&record.principal, &record.tokens))).cloned().collect()
}

fn finish(draft: &Draft, name: &str, owner: Option<&str>) -> Result<Table, EngramError> {
    Table::open(Bytes::Owned(draft.finish(name, DESCRIPTION, LICENCE, owner)?), None)
}

/// What each principal was learned from, with its time.
fn origins<'a>(own: impl Iterator<Item = &'a Table>) -> BTreeMap<(String, String), i64> {
    own.filter(|table| table.meta().owner.is_some())
        .flat_map(Table::sources)
        .map(|source| ((source.principal, source.origin), source.time_s))
        .collect()
}

fn compare(before: &[Table], made: &[Made], now_s: i64) -> Counts {
    let (old, new) = (origins(before.iter()), origins(made.iter().map(|made| &made.table)));
    let gone = old.iter().filter(|(who, _)| !new.contains_key(who));
    let (aged, withdrawn): (Vec<_>, Vec<_>) = gone.partition(|(_, time_s)| now_s - **time_s >= DELETE_AFTER_S);
    Counts {
        records: new.len(),
        records_in: new.keys().filter(|who| !old.contains_key(who)).count(),
        records_aged: aged.len(),
        records_withdrawn: withdrawn.len(),
        entries_before: before.iter().map(Table::entries).sum(),
        ..Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::draft::HALVE_AFTER_S;
    use super::*;

    const TOKENIZER: ([u8; 32], u32) = ([7; 32], 100);
    const NOW_S: i64 = 100 * 86_400;

    fn record(principal: &str, origin: &str, time_s: i64, tokens: &[u32]) -> Record {
        Record { tokens: tokens.to_vec(), principal: principal.into(), origin: origin.into(), verdict: 5, time_s }
    }

    fn write(records: &[Record], before: Vec<Made>) -> Writing {
        let before: Vec<Table> = before.into_iter().map(|made| made.table).collect();
        make(records, &before, |source| source.principal == "revoked", NOW_S, TOKENIZER).unwrap()
    }

    fn names(writing: &Writing) -> Vec<Option<&str>> {
        writing.tables.iter().map(|made| made.owner.as_deref()).collect()
    }

    #[test]
    fn what_two_say_on_different_days_is_shared_and_the_rest_stays_theirs() {
        let words = [1, 2, 3, 4, 5, 6];
        let ada = record("ada", "turn-a", NOW_S - 9 * 86_400, &words);
        let first = write(std::slice::from_ref(&ada), Vec::new());
        assert_eq!(names(&first), [Some("ada")], "she alone said it");
        assert_eq!((first.counts.records_in, first.counts.shared_entries), (1, 0));
        let bob = record("bob", "turn-b", NOW_S, &[1, 2, 3, 4, 5, 6, 7]);
        let both = write(&[bob.clone(), ada.clone()], first.tables);
        assert_eq!(names(&both), [Some("ada"), Some("bob"), None]);
        assert_eq!((both.counts.records_in, both.counts.records), (1, 2));
        let shared = &both.tables[2].table;
        assert!(shared.all().flat_map(|(_, run)| run.entries()).all(|entry| entry.token != 7), "bob's alone");
        // Bob's turn is forgotten: his table goes, and what he alone supported with it.
        let after = write(std::slice::from_ref(&ada), both.tables);
        assert_eq!((names(&after), after.gone.len()), (vec![Some("ada")], 2));
        assert_eq!((after.counts.records_withdrawn, after.counts.records_aged), (1, 0));
        // The same records give the same bytes.
        let again = write(&[ada], after.tables);
        assert_eq!((again.counts.records_in, again.counts.records_withdrawn), (0, 0));
        assert_eq!(again.counts.entries, again.counts.entries_before);
    }

    #[test]
    fn age_halves_and_then_deletes() {
        let old = record("ada", "turn-old", NOW_S - HALVE_AFTER_S, &[1, 2, 3, 4]);
        let gone = record("ada", "turn-gone", NOW_S - DELETE_AFTER_S, &[5, 6, 7, 8]);
        let new = record("ada", "turn-new", NOW_S - HALVE_AFTER_S + 1, &[9, 10, 11, 12]);
        let made = write(&[new, old, gone], Vec::new());
        let table = &made.tables[0].table;
        let halved: Vec<_> = table.sources().into_iter().map(|s| (s.origin, s.halved)).collect();
        assert_eq!(halved, [("turn-new".to_owned(), false), ("turn-old".to_owned(), true)]);
        let weight = |context: &[u32]| {
            let run = table.view().look_up(context)[context.len() - 1].unwrap();
            run.entries().map(|entry| table.view().weight(entry)).sum::<f32>()
        };
        assert_eq!((weight(&[9, 10, 11]), weight(&[1, 2, 3])), (1.0, 0.5));
    }

    #[test]
    fn what_came_from_elsewhere_is_carried_over_until_it_is_revoked() {
        let hand = [record("ada", "manual", NOW_S, &[1, 2, 3, 4]), record("revoked", "manual", NOW_S, &[1, 2, 3, 4])];
        let before = write(&hand, Vec::new());
        let after = write(&[record("ada", "turn-a", NOW_S, &[5, 6, 7, 8])], before.tables);
        assert_eq!(names(&after), [Some("ada")]);
        assert_eq!(after.tables[0].table.sources().len(), 2);
    }

    #[test]
    fn repeating_oneself_counts_once_and_what_one_may_add_is_bounded() {
        let same: Vec<Record> = (0..50).map(|n| record("eve", &format!("turn-{n}"), NOW_S, &[1, 2, 3, 4])).collect();
        assert_eq!(write(&same, Vec::new()).counts.records, 1);
        let long: Vec<Record> = (0..2_000)
            .map(|n| {
                let tokens: Vec<u32> = (0..100).map(|t| (n * 7 + t * t) % 100).collect();
                record("eve", &format!("turn-{n}"), NOW_S, &tokens)
            })
            .collect();
        let made = write(&long, Vec::new());
        assert!(made.counts.records * 100 <= learned::PRINCIPAL_TOKENS_MAX, "{:?}", made.counts);
        let many: Vec<Record> = (0..100).map(|n| record(&format!("p{n}"), "turn-x", NOW_S, &[1, 2, 3, 4])).collect();
        assert_eq!(write(&many, Vec::new()).counts.principals, learned::PRINCIPALS_MAX);
    }
}
