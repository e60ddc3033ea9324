//! `chimere memory list | export | forget`: the turn log, through the daemon when one runs or is named by --url, else
//! on the disk.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use chimere::config::Config;
use chimere::daemon::{TURNS_DIR, open_turns};
use chimere::embed::Examples;
use chimere::engine::prefix::discard;
use chimere::lessons::Lessons;
use chimere::night::forget;
use chimere::night::library::Library;
use chimere::plural::counted;
use chimere::service::{Forgetting, Forgotten, TurnFilter, TurnText};
use chimere::store::files::{CHAT_HISTORY, LockError, StateLock, remove_file_if_there};
use chimere::store::{SledTurns, TurnStore};
use chimere::turn::{Role, Turn, TurnId};
use clap::Subcommand;

use super::client::{Client, Where};
use super::exit::{EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_USAGE, cannot_write, coded, note, say};
use super::owner::become_owner;
use super::serve::Place;

/// A forgetting that takes longer says what it waits for.
const SILENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Turns read at once.
const PAGE_TURNS: usize = 100;
/// Characters of a question that the list shows.
const QUESTION_CHARS: usize = 60;

/// Remembered replies: list, export, forget
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Where,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Print the newest turns, one line each, the newest last
    List {
        #[command(flatten)]
        which: Which,
        /// Most turns to print
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
        /// Whole turns, as JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Write whole turns as JSON lines
    Export {
        #[command(flatten)]
        which: Which,
        /// File to write [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Remove turns for good, with lessons that came of them; without --turn and --conversation also those by hand
    Forget {
        #[command(flatten)]
        which: Which,
        /// Everything: of everybody, with what was typed at `chimere chat`, as the owner or with the scope `admin`; else
        /// what is one's own
        #[arg(long)]
        all: bool,
        /// Do not ask whether to forget everything; for scripts
        #[arg(long)]
        yes: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Which turns; all given conditions must hold
#[derive(clap::Args, Default)]
struct Which {
    /// Only this turn, by its id or that of the reply
    #[arg(long, value_name = "ID")]
    turn: Option<String>,
    /// Only turns of this key or owner
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Only turns of this conversation
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Only turns since this time (2026-01-31, 2026-01-31T12:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<i64>,
}

impl Which {
    /// It names nothing: all turns are meant.
    fn is_empty(&self) -> bool {
        let Which { turn, principal, conversation, since } = self;
        turn.is_none() && principal.is_none() && conversation.is_none() && since.is_none()
    }

    fn filter(self) -> TurnFilter {
        TurnFilter {
            turn: self.turn.as_deref().map(TurnId::named),
            principal: self.principal,
            conversation: self.conversation,
            since_ms: self.since,
            ..TurnFilter::default()
        }
    }
}

/// Unix milliseconds of a date (local midnight) or a time stamp.
fn parse_time(text: &str) -> Result<i64, String> {
    if let Ok(stamp) = text.parse::<jiff::Timestamp>() {
        return Ok(stamp.as_millisecond());
    }
    let wrong = |_| "write a date as 2026-01-31 or a time as 2026-01-31T12:00:00Z".to_owned();
    let date: jiff::civil::Date = text.parse().map_err(wrong)?;
    let midnight = date.to_zoned(jiff::tz::TimeZone::system()).map_err(|error| error.to_string())?;
    Ok(midnight.timestamp().as_millisecond())
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.place.flags())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before the log, which may be another user's: this file is whose the call is.
    let out = match &args.command {
        Cmd::Export { out: Some(path), .. } => Some(private_file(path)?),
        _ => None,
    };
    let mut log = Log::open(&config, &args.target)?;
    if let Cmd::Forget { which, all: true, yes: false, .. } = &args.command
        && which.is_empty()
    {
        let what = log.all_of_it();
        // The question may stand for long. A daemon may start meanwhile.
        drop(log);
        confirm(&what)?;
        log = Log::open(&config, &args.target)?;
        if log.all_of_it() != what {
            let message = "nothing was forgotten: meanwhile a daemon has started or ended, so ask again";
            return Err(coded(EX_UNAVAILABLE, message));
        }
    }
    let typed = config.state_dir.join(CHAT_HISTORY);
    runtime.block_on(execute(args.command, out, log, &typed))?;
    Ok(ExitCode::SUCCESS)
}

/// Asks at a terminal whether to forget everything. Nobody can be asked elsewhere.
fn confirm(what: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        let message = format!("this would forget, for good, {what}. Say --yes as well");
        return Err(coded(EX_USAGE, message));
    }
    note!("This forgets, for good, {what}. Write yes to go on:");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if answer.trim() == "yes" { Ok(()) } else { Err(coded(EX_USAGE, "nothing was forgotten")) }
}

/// Conversations: for nobody else on this machine. What is in the file stays until there is something else to write.
fn private_file(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(cannot_write(path))?;
    // Also where a file of that name lay open to others.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// `typed`: where this machine keeps what was typed at `chimere chat`.
async fn execute(command: Cmd, out: Option<File>, log: Log, typed: &Path) -> anyhow::Result<()> {
    match command {
        Cmd::List { which, limit, json } => {
            let (turns, more) = log.newest(which.filter(), usize::try_from(limit).unwrap_or(usize::MAX)).await?;
            if turns.is_empty() {
                note!("There are no turns that fit. A chat with the daemon makes one.");
            }
            let mut out = io::stdout().lock();
            for turn in &turns {
                if json { line(&mut out, turn)? } else { writeln!(out, "{}", summary(turn))? }
            }
            if more {
                let told = if limit == 1 { "this one".to_owned() } else { format!("these {limit}") };
                note!("there are older turns than {told}: --limit shows more, `memory export` writes all");
            }
            Ok(())
        }
        Cmd::Export { which, .. } => {
            let Some(file) = out else {
                let mut out = io::stdout().lock();
                return log.each(which.filter(), None, &mut |turn| line(&mut out, turn)).await;
            };
            // An earlier export stays where this one cannot be read.
            let mut to_empty = file.metadata()?.is_file();
            let mut out = BufWriter::new(file);
            log.each(which.filter(), None, &mut |turn| {
                if std::mem::take(&mut to_empty) {
                    out.get_ref().set_len(0)?;
                }
                line(&mut out, turn)
            })
            .await?;
            if to_empty {
                out.get_ref().set_len(0)?;
            }
            Ok(out.into_inner().map_err(|error| error.into_error())?.sync_all()?)
        }
        Cmd::Forget { which, all, json, .. } => {
            if which.is_empty() && !all {
                let message = "say what to forget: --turn, --principal, --conversation, --since, or --all";
                return Err(coded(EX_USAGE, message));
            }
            forget(which, json, &log, typed).await
        }
    }
}

async fn forget(which: Which, json: bool, log: &Log, typed: &Path) -> anyhow::Result<()> {
    let (everything, filter) = (which.is_empty(), which.filter());
    let forgotten = log.forget(filter.clone()).await?;
    there(filter.turn.as_ref(), !forgotten.is_nothing())?;
    if let (true, Some(whose)) = (forgotten.is_nothing(), filter.principal.as_ref().or(filter.conversation.as_ref())) {
        let next = "`chimere memory list` shows whose turns there are (`--json`: of which conversations)";
        let narrowed = filter.since_ms.is_some() || filter.principal.is_some() && filter.conversation.is_some();
        let and = if narrowed { " that meets the other conditions" } else { "" };
        return Err(coded(
            EX_DATAERR,
            format!("nothing was forgotten, for there is nothing of `{whose}`{and}: {next}"),
        ));
    }
    match json {
        true => say!("{}", serde_json::json!(forgotten)),
        false => say!("{}", told(&forgotten)),
    }
    // A daemon removes its own; another machine's does not know of this one.
    if everything && typed.exists() {
        note!("{} still holds what was typed at `chimere chat` on this machine: remove it by hand", typed.display());
    }
    Ok(())
}

/// The turn log, wherever it can be reached.
enum Log {
    Disk {
        turns: SledTurns,
        /// Prompts that the daemon kept for its next start.
        prefixes: PathBuf,
        state_dir: PathBuf,
        _lock: StateLock,
    },
    Daemon(Client),
}

impl Log {
    fn open(config: &Config, target: &Where) -> anyhow::Result<Log> {
        if target.named().is_some() {
            return Ok(Log::Daemon(Client::new(target, config.http.listen)?));
        }
        if !config.state_dir.exists() {
            let message =
                "is not there, so nothing is kept in it: name another with --state-dir, or a daemon with --url";
            return Err(coded(EX_NOINPUT, format!("the state folder {} {message}", config.state_dir.display())));
        }
        become_owner(config)?;
        match StateLock::take(&config.state_dir, Duration::ZERO) {
            Ok(lock) => {
                let folder = config.state_dir.join(TURNS_DIR);
                let turns = open_turns(&folder, config.memory.bytes_max, &chimere::program::own()?)?;
                let (prefixes, state_dir) = (config.prefixes_file(), config.state_dir.clone());
                Ok(Log::Disk { turns, prefixes, state_dir, _lock: lock })
            }
            Err(LockError::Held(_)) => Ok(Log::Daemon(Client::new(target, config.http.listen)?)),
            Err(error) => Err(error.into()),
        }
    }

    /// What forgetting all of it means.
    fn all_of_it(&self) -> String {
        match self {
            Log::Daemon(client) => format!(
                "every turn and lesson at the daemon {}: as its owner or with the scope `admin` those of everybody, else \
                 those of this key alone",
                client.address()
            ),
            Log::Disk { state_dir, .. } => format!("every turn and lesson of everybody in {}", state_dir.display()),
        }
    }

    /// Calls `take` with the turns in order of time, page by page.
    async fn each(
        &self,
        mut filter: TurnFilter,
        limit: Option<usize>,
        take: &mut dyn FnMut(&Turn) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut left = limit.unwrap_or(usize::MAX);
        let turn = filter.turn.clone();
        while left > 0 {
            let wanted = left.min(PAGE_TURNS);
            filter.limit = Some(wanted);
            let (page, next) = self.page(&filter).await?;
            there(turn.as_ref(), !page.is_empty() || next.is_some())?;
            for turn in &page {
                take(turn)?;
            }
            left -= page.len();
            let full = page.last().filter(|_| page.len() == wanted);
            let Some(last) = next.or_else(|| full.map(|last| last.id.clone())) else { break };
            filter.after = Some(last);
        }
        Ok(())
    }

    /// The last turns, in the order of time, and whether there are older ones.
    async fn newest(&self, mut filter: TurnFilter, limit: usize) -> anyhow::Result<(Vec<Turn>, bool)> {
        filter.newest_first = true;
        let (mut turns, mut more) = (Vec::new(), false);
        // One more than asked tells whether there is more.
        let wanted = limit.saturating_add(1);
        self.each(filter, Some(wanted), &mut |turn| {
            if turns.len() == limit {
                more = true
            } else {
                turns.push(turn.clone())
            }
            Ok(())
        })
        .await?;
        turns.reverse();
        Ok((turns, more))
    }

    /// With it, where a daemon says that there is more.
    async fn page(&self, filter: &TurnFilter) -> anyhow::Result<(Vec<Turn>, Option<TurnId>)> {
        match self {
            Log::Disk { turns, .. } => Ok((turns.list(filter)?, None)),
            Log::Daemon(client) => {
                let mut answer = client.get(&path(query(filter))?).await?;
                let next = answer["next"].as_str().map(|id| TurnId(id.to_owned()));
                Ok((serde_json::from_value(answer["data"].take())?, next))
            }
        }
    }

    async fn forget(&self, filter: TurnFilter) -> anyhow::Result<Forgotten> {
        match self {
            Log::Disk { turns, prefixes, state_dir, .. } => {
                let pairs = forget_learned(turns, state_dir, &filter)?;
                // What keeps lessons from it is said at the end: the log must forget all the same.
                let lessons = Lessons::open(state_dir).forget(&filter);
                discard(prefixes).with_context(|| prefixes.display().to_string())?;
                let forgotten = Forgotten { turns: turns.forget(&filter)?, lessons: 0, pairs };
                turns.flush().await?;
                let typed = state_dir.join(CHAT_HISTORY);
                let removed = match filter == TurnFilter::default() {
                    true => remove_file_if_there(&typed).map(drop),
                    false => Ok(()),
                };
                let lessons = lessons.with_context(|| {
                    format!("{} forgotten, but no lesson", counted(forgotten.turns, "turn", "turns"))
                })?;
                removed.with_context(|| typed.display().to_string())?;
                Ok(Forgotten { lessons, ..forgotten })
            }
            Log::Daemon(client) => {
                let mut query = query(&filter);
                if query.is_empty() {
                    query.push(("all", "true".to_owned()));
                }
                let path = path(query)?;
                let answer = patient(client.delete(&path)).await?;
                serde_json::from_value(answer).context("the daemon did not say what it forgot")
            }
        }
    }
}

/// Waits for a forgetting, and says what it waits for where that takes a while.
async fn patient<T>(forgetting: impl Future<Output = T>) -> T {
    let mut forgetting = std::pin::pin!(forgetting);
    match tokio::time::timeout(SILENT_TIMEOUT, &mut forgetting).await {
        Ok(done) => done,
        Err(_) => {
            note!(
                "Still waiting. The daemon's engine may be reading somebody's long prompt or changing its model: it holds the words too."
            );
            forgetting.await
        }
    }
}

fn told(forgotten: &Forgotten) -> String {
    let Forgotten { turns, lessons, pairs } = *forgotten;
    let (turns, lessons) = (counted(turns, "turn", "turns"), counted(lessons, "lesson", "lessons"));
    let pairs = if pairs > 0 { format!(" and {} of nights", counted(pairs, "pair", "pairs")) } else { String::new() };
    format!("{turns} forgotten, with {lessons}{pairs}")
}

/// A turn that was named must be there: else a wrong id is taken for an empty log.
fn there(named: Option<&TurnId>, found: bool) -> anyhow::Result<()> {
    let Some(id) = named.filter(|_| !found) else { return Ok(()) };
    let message = format!("there is no turn `{}` here: it may have been forgotten or dropped", id.0);
    Err(coded(EX_DATAERR, message))
}

/// Takes turns out of what was learned from them and what is shown of them, before the log forgets them; how many pairs.
fn forget_learned(turns: &SledTurns, state_dir: &Path, filter: &TurnFilter) -> anyhow::Result<usize> {
    let (mut followers, mut rest) = (BTreeSet::new(), Some(filter.clone()));
    while let Some(wanted) = rest {
        let piece = turns.followers_piece(&wanted)?;
        followers.extend(piece.value);
        rest = piece.next.map(|after| TurnFilter { after: Some(after), ..wanted });
    }
    let wanted = Forgetting { filter: filter.clone(), followers };
    let (pairs, _) = forget::pairs(state_dir, &Library::new(state_dir), &wanted, None).map_err(anyhow::Error::msg)?;
    Examples::open(Err("no daemon runs".to_owned()), state_dir).forget(filter)?;
    Ok(pairs)
}

/// The address of the turns with a query, escaped.
fn path(query: Vec<(&str, String)>) -> anyhow::Result<String> {
    let mut url = reqwest::Url::parse("http://daemon/v1/memory/turns")?;
    url.query_pairs_mut().extend_pairs(query);
    Ok(format!("{}?{}", url.path(), url.query().unwrap_or_default()))
}

fn query(filter: &TurnFilter) -> Vec<(&'static str, String)> {
    [
        ("turn", filter.turn.as_ref().map(|id| id.0.clone())),
        ("principal", filter.principal.clone()),
        ("conversation", filter.conversation.clone()),
        ("since_ms", filter.since_ms.map(|ms| ms.to_string())),
        ("limit", filter.limit.map(|n| n.to_string())),
        ("order", filter.newest_first.then(|| "desc".to_owned())),
        ("after", filter.after.as_ref().map(|id| id.0.clone())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

fn line(out: &mut dyn Write, turn: &Turn) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", TurnText::of(turn)?.json)?)
}

fn summary(turn: &Turn) -> String {
    let time = jiff::Timestamp::from_millisecond(turn.time_ms).map(|t| t.to_string()).unwrap_or_default();
    let question = turn.messages.iter().rev().find(|m| m.role == Role::User).map_or("", |m| m.content.as_str());
    let question: String =
        question.chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUESTION_CHARS).collect();
    let tokens: u32 = turn.generations.iter().map(|g| g.usage.completion_tokens).sum();
    // As the API names it.
    let reason = turn.generations.first().map(|generation| serde_json::json!(generation.finish_reason));
    let reason = reason.as_ref().and_then(|reason| reason.as_str()).unwrap_or_default();
    let verdict = turn.verdict.map_or_else(String::new, |verdict| format!(" verdict {verdict}"));
    let votes = if turn.feedback.is_empty() { String::new() } else { format!(" [{} feedback]", turn.feedback.len()) };
    format!(
        "{} {time} {} {} {reason} {}{verdict}{votes}  {question}",
        turn.id.0,
        turn.principal,
        turn.route,
        counted(tokens, "token", "tokens")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_or_stamps() {
        assert_eq!(parse_time("2026-01-31T12:00:00Z"), Ok(1_769_860_800_000));
        assert!(parse_time("2026-01-31").is_ok());
        assert!(parse_time("yesterday").is_err());
    }
}
