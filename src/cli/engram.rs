//! `chimere engram build | learn | merge | decay | revoke | show | list`: makes and changes tables. What is written to
//! the state folder is signed; a running daemon takes it by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use chimere::config::Config;
use chimere::daemon::choice::served_file;
use chimere::engine::load::{Kind, vocabulary};
use chimere::engine::vocab::{Vocab, fingerprint};
use chimere::engram::count::{Corpus, CountRules};
use chimere::engram::file;
use chimere::engram::format::{EXTENSION, tokenizer_name};
use chimere::engram::learned;
use chimere::engram::revoked::Revoked;
use chimere::engram::shelf::{self, DIR, Shelf};
use chimere::engram::table::Run;
use chimere::engram::{Change, Draft, Source, Table};
use chimere::gguf::Gguf;
use chimere::night::manifest::{KEY_FILE, Seal};
use chimere::plural::counted;
use chimere::store::files::{create_private_dir, no_model, without_mark, write_durable};
use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::{Where, printable};
use super::exit::{EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_USAGE, cannot_write, coded, note, say};
use super::owner::become_owner;
use super::serve::Place;
use super::serving::served;

mod learn;
mod list;

/// Engram tables: n-grams of verified texts that are mixed into the answers
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Count n-grams of texts and keep the most telling ones, in a table of a given size
    Build(Build),
    /// Learn from verified answers (JSONL: text, principal, origin, verdict, time_s)
    Learn(learn::Learn),
    /// Merge tables of one tokenizer
    Merge {
        /// Tables to read
        #[arg(required = true, num_args = 1..)]
        tables: Vec<PathBuf>,
        #[command(flatten)]
        out: Output,
    },
    /// Apply age to a table: entries over 30 days count half, entries over 90 days are deleted
    Decay {
        /// Table of the state folder, by name, or a file
        table: PathBuf,
        /// Present time, Unix seconds [default: now]
        #[arg(long)]
        now: Option<i64>,
    },
    /// Remove a principal's words from a table; without a table, from all of them, never to be learned again
    Revoke {
        /// Principal whose words are removed
        #[arg(long)]
        principal: String,
        /// Only this table; by name, or a file
        #[arg(long)]
        table: Option<PathBuf>,
    },
    /// Print what a table holds
    Show {
        /// Table of the state folder or of the installation, by name, or a file; `chimere engram list` shows them
        table: Option<PathBuf>,
        /// Print this many contexts with their continuations
        #[arg(long, default_value_t = 0, value_name = "N")]
        contexts: usize,
        /// Model whose tokenizer made it, to print tokens as text [default: the configured one, if it has that tokenizer]
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
        #[arg(long)]
        json: bool,
    },
    /// Print the tables that may be served, which of them do not fit the served model, and those that may not and why
    List(list::List),
}

#[derive(clap::Args)]
struct Output {
    /// Name of the table
    #[arg(long)]
    name: String,
    /// Write this file, unsigned, instead of publishing in the state folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[arg(long, default_value = "")]
    description: String,
    /// Licences of the texts
    #[arg(long, default_value = "")]
    licence: String,
}

#[derive(clap::Args)]
struct Build {
    #[command(flatten)]
    output: Output,
    /// UTF-8 text; documents end with a zero byte, and each may have 16 MiB
    #[arg(long = "text", required = true, value_name = "FILE")]
    texts: Vec<PathBuf>,
    #[command(flatten)]
    of: Of,
    /// Size to reach, bytes
    #[arg(long, default_value_t = 700_000)]
    bytes: usize,
    /// Occurrences that a context must have
    #[arg(long, default_value_t = 3)]
    count_min: u32,
    /// Documents that a context must occur in
    #[arg(long, default_value_t = 2)]
    documents_min: u32,
}

/// For which model a table is made.
#[derive(clap::Args)]
struct Of {
    /// Model whose tokenizer to use [default: the one that a running daemon serves, else that of the configuration]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    target: Where,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { place, command } = args;
    let config = Config::load(&place.flags())?;
    match command {
        Cmd::Build(args) => build(&args, &config),
        Cmd::Learn(args) => learn::learn(&args, &config),
        Cmd::Merge { tables, out } => merge(&tables, &out, &config),
        Cmd::Decay { table, now } => {
            let now = now.unwrap_or_else(|| jiff::Timestamp::now().as_second());
            change(&find(&table, &config)?, &config, |draft| draft.decay(now)).map(drop)
        }
        Cmd::Revoke { principal, table } => revoke(&principal, table.as_deref(), &config),
        Cmd::Show { table, contexts, model, json } => {
            show(&find(&named(table, &config)?, &config)?, contexts, model, json, &config)
        }
        Cmd::List(args) => list::list(&args, &config),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The vocabulary that an engine of this configuration reads this model with.
fn tokenizer_of(path: &Path, config: &Config) -> anyhow::Result<Arc<dyn Vocab>> {
    let backend = Kind::from_str(&config.engine.backend, true).map_err(anyhow::Error::msg)?;
    let gguf = Gguf::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    vocabulary(path, &gguf, backend).with_context(|| format!("the vocabulary of {}", path.display()))
}

/// The file that a daemon serves, else what one would serve.
fn model_in_use(config: &Config, target: &Where) -> anyhow::Result<PathBuf> {
    match served(target, config) {
        Some(Ok(served)) if served.here => Ok(served.file),
        Some(Ok(_)) => {
            let message = "the daemon runs on another machine, and a file of that name may be another one here: name one \
                 with its tokenizer by --model";
            Err(coded(EX_UNAVAILABLE, message))
        }
        // For another model than that one nothing is right.
        Some(Err(unsaid)) => {
            let why = unsaid.why;
            let message = format!("which model the daemon serves is not known: {why}; or name its file with --model");
            Err(coded(EX_UNAVAILABLE, message))
        }
        None => served_file(config)
            .map_err(|found| coded(EX_NOINPUT, format!("{}: name one with --model", no_model(&found)))),
    }
}

/// The tokenizer of the file that was named, else of the model in use.
fn chosen_tokenizer(of: &Of, config: &Config) -> anyhow::Result<Arc<dyn Vocab>> {
    let path = match &of.model {
        Some(file) => file.clone(),
        None => model_in_use(config, &of.target)?,
    };
    let vocab = tokenizer_of(&path, config)?;
    let name = tokenizer_name(&fingerprint(vocab.as_ref()));
    note!("for the tokenizer {name} of {}; --model names another", printable(&path.display().to_string()));
    Ok(vocab)
}

fn build(args: &Build, config: &Config) -> anyhow::Result<()> {
    let vocab = chosen_tokenizer(&args.of, config)?;
    let mut draft = Draft::new(fingerprint(vocab.as_ref()), vocab.len() as u32)?;
    let mut corpus = Corpus::new(vocab.len());
    for path in &args.texts {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let origin = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let curated = Source { principal: String::new(), origin, time_s: 0, verdict: 0, halved: false };
        let source = draft.source(curated)?;
        for (number, document) in
            without_mark(&text).split('\0').enumerate().filter(|(_, document)| !document.trim().is_empty())
        {
            let mut ids = Vec::new();
            let place = || format!("{}, document {}", path.display(), number + 1);
            vocab.encode(document, false, &mut ids).with_context(place)?;
            corpus.add(ids, source)?;
        }
    }
    let rules = CountRules {
        count_min: args.count_min.max(1),
        documents_min: args.documents_min,
        bytes_max: args.bytes,
        ..CountRules::default()
    };
    corpus.count_into(&mut draft, &rules)?;
    let of = counted(corpus.documents(), "document", "documents");
    let read = format!("{} of {of}", counted(corpus.tokens(), "token", "tokens"));
    note!("{read}");
    if draft.contexts() == 0 {
        return Err(coded(EX_DATAERR, empty(&read, &rules)));
    }
    write(&draft, &args.output, None, config)
}

/// Why a table would hold nothing, and what helps.
fn empty(read: &str, rules: &CountRules) -> String {
    let CountRules { count_min, documents_min, .. } = rules;
    format!(
        "no table was written, for it would be empty: in {read} nothing occurs {count_min} times, in {documents_min} \
         documents. Give more text, end each document with a zero byte, or lower --count-min and --documents-min"
    )
}

fn merge(tables: &[PathBuf], out: &Output, config: &Config) -> anyhow::Result<()> {
    let mut draft: Option<Draft> = None;
    for path in tables {
        let table = shelf::read(&find(path, config)?)?;
        match &mut draft {
            None => draft = Some(Draft::of(&table)?),
            Some(draft) => draft.merge(&table).with_context(|| path.display().to_string())?,
        }
    }
    write(&draft.context("nothing to merge")?, out, None, config)
}

/// This installation's key, made if there is none.
fn seal(config: &Config) -> anyhow::Result<Seal> {
    become_owner(config)?;
    create_private_dir(&config.state_dir)?;
    Ok(Seal::open(&config.state_dir.join(KEY_FILE))?)
}

/// Writes a finished table: to the state folder, signed, or to a file.
fn write(draft: &Draft, output: &Output, owner: Option<&str>, config: &Config) -> anyhow::Result<()> {
    let bytes = draft.finish(&output.name, &output.description, &output.licence, owner)?;
    let path = match &output.out {
        Some(path) if file::is_packed(path) => {
            bail!("{}: a table is written unpacked: let --out end with `.{EXTENSION}`", path.display())
        }
        Some(path) => {
            write_durable(path, &bytes).map_err(cannot_write(path))?;
            path.clone()
        }
        None => {
            let (folder, name) = (config.state_dir.join(DIR), &output.name);
            let own = folder.join(format!("{name}.{EXTENSION}"));
            let (seal, there) = (seal(config)?, own.exists());
            let path = shelf::publish(&folder, &bytes, &seal)?;
            if there {
                note!("`{name}` takes the place of your table of that name, which is gone.");
            } else if shelf::is_shipped(name) {
                note!(
                    "`{name}` takes the place of the shipped table of that name, for every route and request that names it. \
                     Remove {} to have the shipped one back, or build yours under another --name.",
                    path.display()
                );
            }
            path
        }
    };
    let table = shelf::read(&path)?;
    say!(
        "{}: {}, {}, {} bytes, digest {}",
        path.display(),
        counted(table.contexts(), "context", "contexts"),
        counted(table.entries(), "continuation", "continuations"),
        bytes.len(),
        table.digest()
    );
    Ok(())
}

/// Rewrites a table of the state folder with a change; nothing is written where nothing changed.
fn change(path: &Path, config: &Config, with: impl FnOnce(&mut Draft) -> Change) -> anyhow::Result<Change> {
    let folder = config.state_dir.join(DIR);
    if path.parent() != Some(folder.as_path()) {
        bail!("{} is not in {}: a table that came with the program is not changed", path.display(), folder.display());
    }
    let table = shelf::read(path)?;
    let mut draft = Draft::of(&table)?;
    let mut changed = with(&mut draft);
    if table.meta().owner.is_none() {
        // What is left of a shared table must still have been said by several.
        let unsupported = draft.keep_supported(learned::principals_min);
        changed =
            Change { sources: changed.sources + unsupported.sources, entries: changed.entries + unsupported.entries };
    }
    if changed != Change::default() {
        let meta = table.meta();
        let bytes = draft.finish(&meta.name, &meta.description, &meta.licence, meta.owner.as_deref())?;
        shelf::publish(&folder, &bytes, &seal(config)?)?;
    }
    let sources = counted(changed.sources, "source", "sources");
    let entries = counted(changed.entries, "continuation", "continuations");
    say!("{}: {sources} and {entries} changed", path.display());
    Ok(changed)
}

fn revoke(principal: &str, table: Option<&Path>, config: &Config) -> anyhow::Result<()> {
    let paths = match table {
        Some(table) => vec![find(table, config)?],
        None => {
            become_owner(config)?;
            // First, so that no writing brings it back.
            Revoked::add(&config.state_dir.join(DIR), principal, jiff::Timestamp::now().as_millisecond())?;
            scan(config)?.tables.into_iter().filter(|t| !t.shipped).map(|t| t.path).collect()
        }
    };
    for path in paths {
        if shelf::read(&path)?.meta().owner.as_deref() == Some(principal) {
            become_owner(config)?;
            shelf::remove(&path)?;
            say!("{}: removed, it was {principal}'s own", path.display());
            continue;
        }
        change(&path, config, |draft| draft.revoke(principal))?;
    }
    Ok(())
}

/// Where the tables lie that came with the model.
fn shipped_folder(config: &Config) -> Option<PathBuf> {
    config.model.as_ref().ok().and_then(|model| model.parent()).map(|folder| folder.join(DIR))
}

fn scan(config: &Config) -> anyhow::Result<Shelf> {
    let shipped = shipped_folder(config);
    // Without a key nothing is signed yet.
    let signatures = Seal::look(&config.state_dir.join(KEY_FILE))?;
    Ok(Shelf::scan(shipped.as_deref(), &config.state_dir.join(DIR), signatures.as_ref()))
}

/// The table that was named.
fn named(table: Option<PathBuf>, config: &Config) -> anyhow::Result<PathBuf> {
    let missing = || {
        let names: Vec<String> =
            scan(config).map_or(Vec::new(), |shelf| shelf.tables.into_iter().map(|t| t.name).collect());
        let there = if names.is_empty() {
            "there is none by name yet".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        };
        coded(EX_USAGE, format!("name a table, or its file: {there}"))
    };
    table.ok_or_else(missing)
}

/// A file, or a table by its name.
fn find(table: &Path, config: &Config) -> anyhow::Result<PathBuf> {
    if table.is_file() {
        return Ok(table.to_owned());
    }
    let name = table.to_string_lossy();
    let known = scan(config)?.tables.into_iter().find(|t| t.name == name);
    let missing =
        || format!("there is no file and no table `{name}`: `chimere engram list` shows those that there are");
    Ok(known.ok_or_else(|| coded(EX_DATAERR, missing()))?.path)
}

fn show(path: &Path, contexts: usize, model: Option<PathBuf>, as_json: bool, config: &Config) -> anyhow::Result<()> {
    let table = shelf::read(path)?;
    let vocab = match model {
        Some(model) => Some(words_of(&table, &model, config)?),
        None if contexts > 0 => configured_words(&table, config),
        None => None,
    };
    let mut by_order: BTreeMap<usize, usize> = BTreeMap::new();
    table.all().for_each(|(context, _)| *by_order.entry(context.len() + 1).or_default() += 1);
    let sources = table.sources();
    let shown: Vec<Value> = table
        .all()
        .take(contexts)
        .map(|(context, run)| context_json(&context, run, &sources, vocab.as_deref()))
        .collect();
    print_table(&table, &by_order, sources.len(), &shown, as_json);
    Ok(())
}

/// The vocabulary of a model that has the table's tokenizer.
fn words_of(table: &Table, model: &Path, config: &Config) -> anyhow::Result<Arc<dyn Vocab>> {
    let vocab = tokenizer_of(model, config)?;
    let of_model = fingerprint(vocab.as_ref());
    if of_model != *table.fingerprint() {
        let (of_table, of_model) = (tokenizer_name(table.fingerprint()), tokenizer_name(&of_model));
        let shown = model.display();
        bail!(
            "the table was made for the tokenizer {of_table}, but {shown} has {of_model}: name by --model one that has it"
        );
    }
    Ok(vocab)
}

/// The same of the configured model; without it tokens are shown as numbers, and that is said.
fn configured_words(table: &Table, config: &Config) -> Option<Arc<dyn Vocab>> {
    let file = served_file(config).map_err(|found| anyhow::anyhow!("{}", no_model(&found)));
    let vocab = file.and_then(|file| words_of(table, &file, config));
    vocab.map_err(|error| note!("tokens are shown as numbers: {}", printable(&format!("{error:#}")))).ok()
}

/// A context with its continuations, and where each comes from.
fn context_json(context: &[u32], run: Run<'_>, sources: &[Source], vocab: Option<&dyn Vocab>) -> Value {
    let text = |id: u32| vocab.map_or_else(|| id.to_string(), |v| v.name(id));
    let mut next = Vec::new();
    for e in run.entries() {
        let Some(source) = sources.get(e.source as usize) else { continue };
        next.push(json!({
            "token": if e.is_rest() { "(others)".to_owned() } else { text(e.token) },
            "count": e.count,
            "origin": source.origin,
            "principal": source.principal,
            "verdict": source.verdict,
            "time_s": source.time_s,
            "halved": source.halved,
        }));
    }
    json!({ "context": context.iter().map(|id| text(*id)).collect::<Vec<_>>(), "next": next })
}

fn print_table(table: &Table, by_order: &BTreeMap<usize, usize>, sources: usize, shown: &[Value], as_json: bool) {
    let (meta, bytes) = (table.meta(), table.bytes().len());
    if as_json {
        let report = json!({
            "name": meta.name, "description": meta.description, "licence": meta.licence, "owner": meta.owner,
            "digest": table.digest(), "tokenizer": tokenizer_name(table.fingerprint()), "bytes": bytes, "contexts": table.contexts(), "entries": table.entries(),
            "orders": by_order, "sources": sources, "shown": shown,
        });
        say!("{report:#}");
        return;
    }
    say!("{}: {}", meta.name, meta.description);
    say!("licence     {}", meta.licence);
    say!("tokenizer   {}", tokenizer_name(table.fingerprint()));
    say!("digest      {}", table.digest());
    say!("contexts    {} ({})", table.contexts(), orders(by_order));
    let from = counted(sources, "source", "sources");
    say!("entries     {}, from {from}, {bytes} bytes", table.entries());
    shown.iter().for_each(|context| say!("{context}"));
}

fn orders(by_order: &BTreeMap<usize, usize>) -> String {
    by_order.iter().map(|(order, n)| format!("order {order}: {n}")).collect::<Vec<_>>().join(", ")
}
