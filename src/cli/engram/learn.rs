//! `chimere engram learn`: each principal's own table, and what several of them said for everybody.

use std::path::PathBuf;

use anyhow::Context;
use chimere::config::Config;
use chimere::engine::vocab::{Vocab, fingerprint};
use chimere::engram::file;
use chimere::engram::learned::{self, Record};
use chimere::engram::shelf::{self, Listed, Refused};
use chimere::engram::{Bytes, Table, nightly};
use chimere::plural::counted;
use chimere::store::files::without_mark;
use serde::Deserialize;

use super::{Of, Output, chosen_tokenizer, scan, write};
use crate::cli::exit::{EX_DATAERR, coded, note, say};

#[derive(clap::Args)]
pub(super) struct Learn {
    /// Verified answers, a JSON object a line
    #[arg(long, value_name = "FILE")]
    records: PathBuf,
    /// Name of the shared table; a principal's own is `NAME-PRINCIPAL`
    #[arg(long, default_value = "learned")]
    name: String,
    #[command(flatten)]
    of: Of,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRecord {
    text: String,
    principal: String,
    origin: String,
    verdict: u8,
    time_s: i64,
}

pub(super) fn learn(args: &Learn, config: &Config) -> anyhow::Result<()> {
    let vocab = chosen_tokenizer(&args.of, config)?;
    let (print, size) = (fingerprint(vocab.as_ref()), vocab.len() as u32);
    let records = records(args, vocab.as_ref())?;
    let learned = learned::learn(&records, print, size)?;
    let read = format!("{}, {} of them left out", counted(records.len(), "record", "records"), learned.left_out);
    note!("{read}");
    let drafts: Vec<_> = learned.own.into_iter().filter(|(_, draft)| draft.contexts() > 0).collect();
    if drafts.is_empty() {
        let message = format!(
            "no table was written, for it would be empty: {read}. A record needs a verdict from {} to 5, a principal, and \
             more than three tokens",
            learned::VERDICT_MIN
        );
        return Err(coded(EX_DATAERR, message));
    }
    // Everything is read before anything is written.
    let mut own = before(&args.name, config, |table| *table.fingerprint() == print && table.vocab() == size)?;
    let shelf = scan(config)?;
    let is_own =
        |refused: &&Refused| file::name_of(&refused.path).is_some_and(|n| n.starts_with(&format!("{}-", args.name)));
    for refused in shelf.refused.iter().filter(is_own) {
        note!("{} is left out: {}", refused.path.display(), refused.message);
    }
    let mut changed = Vec::new();
    for (principal, mut draft) in drafts {
        let name = learned::own_name(&args.name, &principal);
        if let Some(refused) = shelf.refused(&name) {
            return Err(coded(EX_DATAERR, format!("{}: {}", refused.path.display(), refused.message)));
        }
        if let Some(at) = own.iter().position(|table| table.meta().name == name) {
            draft.merge(&own.swap_remove(at))?;
        }
        let bytes = draft.finish(&name, nightly::DESCRIPTION, nightly::LICENCE, Some(&principal))?;
        own.push(Table::open(Bytes::Owned(bytes), None)?);
        changed.push((name, Some(principal), draft));
    }
    let shared = learned::shared(&own, print, size)?;
    let mut unsaid = None;
    match shared.contexts() {
        0 => {
            note!("no table for everybody was written: nothing was said by several");
            let earlier = |t: &&Listed| !t.shipped && t.owner.is_none() && t.name == args.name;
            unsaid = shelf.tables.iter().find(earlier).filter(|t| t.description == nightly::DESCRIPTION);
        }
        _ => changed.push((args.name.clone(), None, shared)),
    }
    for (name, owner, draft) in changed {
        let (description, licence) = (nightly::DESCRIPTION.to_owned(), nightly::LICENCE.to_owned());
        write(&draft, &Output { name, out: None, description, licence }, owner.as_deref(), config)?;
    }
    // What was learned of several and is now one's alone serves nobody else.
    if let Some(table) = unsaid {
        shelf::remove(&table.path)?;
        say!("{}: removed, for no two say any of it now", table.path.display());
    }
    Ok(())
}

fn records(args: &Learn, vocab: &dyn Vocab) -> anyhow::Result<Vec<Record>> {
    let shown = args.records.display();
    let text = std::fs::read_to_string(&args.records).with_context(|| format!("cannot read {shown}"))?;
    let mut records = Vec::new();
    for (number, line) in without_mark(&text).lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{shown}:{}", number + 1);
        let raw: RawRecord =
            serde_json::from_str(line).map_err(|error| coded(EX_DATAERR, format!("{}: {error}", place())))?;
        let mut tokens = Vec::new();
        vocab.encode(&raw.text, false, &mut tokens).with_context(place)?;
        let RawRecord { principal, origin, verdict, time_s, .. } = raw;
        records.push(Record { tokens, principal, origin, verdict, time_s });
    }
    Ok(records)
}

/// The principals' own tables of earlier writings. One of another tokenizer is not learned from: its principal's next
/// writing takes its place.
fn before(shared: &str, config: &Config, fits: impl Fn(&Table) -> bool) -> anyhow::Result<Vec<Table>> {
    let shelf = scan(config)?;
    let ours = |t: &Listed| !t.shipped && t.owner.as_ref().is_some_and(|o| t.name == learned::own_name(shared, o));
    let mut tables = Vec::new();
    for listed in shelf.tables.into_iter().filter(ours) {
        let shown = listed.path.display();
        let table = shelf::read(&listed.path).with_context(|| shown.to_string())?;
        match fits(&table) {
            true => tables.push(table),
            false => note!("{shown} is passed over: it was made for another tokenizer"),
        }
    }
    Ok(tables)
}
