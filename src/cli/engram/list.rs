//! `chimere engram list`: the tables, and which of them the served model can use.

use chimere::config::Config;
use chimere::engine::vocab::fingerprint;
use chimere::engram::fit;
use chimere::engram::shelf::{self, DIR, Listed};
use chimere::night::inspect::hex;
use serde_json::{Value, json};

use super::{model_in_use, scan, shipped_folder, tokenizer_of};
use crate::cli::client::{Where, printable};
use crate::cli::exit::{note, say};

#[derive(clap::Args)]
pub(super) struct List {
    #[command(flatten)]
    target: Where,
    #[arg(long)]
    json: bool,
}

pub(super) fn list(args: &List, config: &Config) -> anyhow::Result<()> {
    let shelf = scan(config)?;
    let tokenizer = match model_in_use(config, &args.target).and_then(|file| tokenizer_of(&file, config)) {
        Ok(vocab) => Some(hex(&fingerprint(vocab.as_ref()))),
        Err(error) => {
            note!("which tables fit the served model is not known: {}", printable(&format!("{error:#}")));
            None
        }
    };
    let fits = |table: &Listed| tokenizer.as_ref().map(|tokenizer| table.tokenizer == *tokenizer);
    if args.json {
        let mut told = json!(shelf);
        for (table, entry) in shelf.tables.iter().zip(told["tables"].as_array_mut().into_iter().flatten()) {
            entry["fits"] = fits(table).map_or(Value::Null, Value::Bool);
            entry["replaces_shipped"] = replaces(table).into();
        }
        say!("{told}");
        return Ok(());
    }
    for table in &shelf.tables {
        say!("{}{}", line(table), if fits(table) == Some(false) { "; another tokenizer's, not used" } else { "" });
    }
    for refused in &shelf.refused {
        say!("refused: {}: {}", refused.path.display(), refused.message);
    }
    if shelf.tables.is_empty() && shelf.refused.is_empty() {
        note!("There are no tables. `chimere engram build --name NAME --text FILE` makes one.");
    }
    let shipped = shipped_folder(config).map(|folder| format!("; shipped ones in {}", folder.display()));
    let own = config.state_dir.join(DIR);
    note!("Own tables lie in {}{}.", own.display(), shipped.unwrap_or_default());
    let unfit: Vec<&Listed> = shelf.tables.iter().filter(|table| fits(table) == Some(false)).collect();
    fit::by_kind(&unfit).iter().for_each(|told| note!("{told}"));
    Ok(())
}

fn line(table: &Listed) -> String {
    let origin = if table.shipped { "shipped" } else { "own" };
    let instead = if replaces(table) { "; in the place of the shipped one" } else { "" };
    let owner = table.owner.as_ref().map(|owner| format!(" for {owner} alone")).unwrap_or_default();
    let Listed { name, contexts, bytes, description, .. } = table;
    format!("{name:<16} {origin:<8} {contexts:>8} contexts {bytes:>9} bytes  {description}{owner}{instead}")
}

/// An own table of a shipped one's name: that one is not used.
fn replaces(table: &Listed) -> bool {
    !table.shipped && shelf::is_shipped(&table.name)
}
