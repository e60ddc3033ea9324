//! `chimere keys add | list | renew | revoke`: works on the key file; a running daemon takes the change with its next request.

use std::path::Path;
use std::process::ExitCode;

use chimere::config::Config;
use chimere::keys::{Entry, KeyError, KeyRing, OWNER};
use chimere::service::Scope;
use chimere::store::files::create_private_dir;
use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::exit::{EX_USAGE, coded, note, say};
use super::owner::become_owner;
use super::serve::Place;

/// API keys: who may use the daemon, and for what
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Make a key and print it; it is never shown again
    Add {
        /// Who or what will hold it
        name: String,
        /// What it may do; repeatable [default: chat]
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<ScopeArg>,
        /// Nights may learn from what this key says; without the flag they may not
        #[arg(long)]
        consent: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Give the holder of a name a new key, or change the consent alone; turns and lessons stay
    ///
    /// The old key is refused from then on. A revoked key can be renewed too. The scope stays.
    Renew {
        /// Its name, as given to `add`
        name: String,
        /// Whether nights may learn from what this key says from now on [default: as it was]
        #[arg(long, value_name = "YES|NO")]
        consent: Option<Consent>,
        /// Leave the key itself as it is: change its consent alone
        #[arg(long, requires = "consent")]
        keep: bool,
        /// Refused, with what to do
        #[arg(long = "scope", hide = true)]
        scopes: Vec<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print all keys, by name
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key
    Revoke {
        /// Its name, as given to `add`
        name: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum ScopeArg {
    /// Chats, completions and what belongs to them
    Chat,
    /// The metrics page
    Metrics,
    /// Everything
    Admin,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Consent {
    Yes,
    No,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Chat => Scope::Chat,
            ScopeArg::Metrics => Scope::Metrics,
            ScopeArg::Admin => Scope::Admin,
        }
    }
}

const ONCE: &str = "This is the only time the key is shown. Send it as `Authorization: Bearer KEY`.";

/// Which keys were changed: a daemon with another state folder has keys of its own.
fn kept(dir: &Path) -> String {
    format!("Changed: the keys of a daemon whose state folder is {} (--state-dir names another).", dir.display())
}

/// What holds before the first key is made.
const KEYLESS: &str = "There are no keys. Who asks from this machine as the daemon's user or root (http.loopback_owner) \
     is its owner, with all rights; nights may learn from what the owner says. \
     `chimere keys add NAME` makes the first key; from then on every client needs one.";

/// What the consent of a key means; `None`: its holder says nothing that could be learned. `before`: as it was until now.
fn consent_words(entry: &Entry, before: Option<bool>) -> Option<String> {
    let Entry { name, consent, .. } = entry;
    if !entry.scopes.iter().any(|scope| matches!(scope, Scope::Chat | Scope::Admin)) {
        return None;
    }
    Some(match (*consent, before) {
        (true, _) => format!(
            "Nights may learn from what `{name}` says: `chimere keys renew {name} --keep --consent no` ends that."
        ),
        (false, Some(true)) => format!(
            "From now on nights learn nothing from what `{name}` says: `chimere keys renew {name} --keep --consent yes` \
             changes that. Lessons work all the same."
        ),
        (false, _) => format!(
            "Nights learn nothing from what `{name}` says, for nobody consented to it: `chimere keys renew {name} --keep \
             --consent yes` allows it. Lessons work all the same."
        ),
    })
}

fn note_consent(entry: &Entry, before: Option<bool>) {
    if let Some(words) = consent_words(entry, before) {
        note!("{words}");
    }
}

/// The key of a name, as it is kept.
fn entry_of(dir: &Path, name: &str) -> Result<Entry, KeyError> {
    let found = KeyRing::load(dir)?.entries().iter().find(|key| key.name == name).cloned();
    found.ok_or_else(|| KeyError::Unknown(name.to_owned()))
}

/// A new key under an old name, or another consent alone.
fn renew(dir: &Path, name: &str, (consent, keep): (Option<bool>, bool), as_json: bool) -> anyhow::Result<()> {
    let before = entry_of(dir, name)?.consent;
    if let (true, Some(consent)) = (keep, consent) {
        KeyRing::consent(dir, name, consent)?;
        let entry = entry_of(dir, name)?;
        if as_json {
            say!("{}", json!({ "name": name, "consent": consent }));
        }
        note_consent(&entry, Some(before));
        if consent_words(&entry, None).is_none() {
            note!("Consent means nothing for `{name}`: its scopes let it say nothing that nights could learn from.");
        }
        note!("{}", kept(dir));
        return Ok(());
    }
    let (key, entry) = KeyRing::renew(dir, name, consent, jiff::Timestamp::now())?;
    match as_json {
        true => say!("{}", json!({ "name": name, "key": key, "scopes": entry.scopes, "consent": entry.consent })),
        false => say!("{key}"),
    }
    note!("{ONCE} The old key of `{name}` opens nothing any more.");
    note!("{}", kept(dir));
    note_consent(&entry, Some(before));
    Ok(())
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    execute(args.command, &Config::load(&args.place.flags())?)?;
    Ok(ExitCode::SUCCESS)
}

fn execute(command: Cmd, config: &Config) -> anyhow::Result<()> {
    let dir = &config.state_dir;
    let now = jiff::Timestamp::now();
    match command {
        Cmd::Add { name, scopes, consent, json } => {
            become_owner(config)?;
            create_private_dir(dir).map_err(|source| KeyError::Io { path: dir.clone(), source })?;
            let scopes: Vec<Scope> =
                if scopes.is_empty() { vec![Scope::Chat] } else { scopes.into_iter().map(Scope::from).collect() };
            let (key, first) = KeyRing::add(dir, &name, &scopes, consent, now)?;
            match json {
                true => say!("{}", json!({ "name": name, "key": key, "scopes": scopes, "consent": consent })),
                false => say!("{key}"),
            }
            note!("{ONCE}");
            note!("{}", kept(dir));
            note_consent(&entry_of(dir, &name)?, None);
            if first {
                note!("From now on every client needs a key, on this machine too.");
                if name != OWNER {
                    note!(
                        "What was said without one stays `{OWNER}`'s: a key of that name (`chimere keys add {OWNER} \
                           --scope admin`) goes on with its sessions."
                    );
                }
            }
        }
        Cmd::List { json: true } => {
            let shown: Vec<_> = KeyRing::load(dir)?
                .entries()
                .iter()
                .map(|k| {
                    json!({ "name": k.name, "scopes": k.scopes, "consent": k.consent,
                        "created": k.created, "revoked": k.revoked })
                })
                .collect();
            say!("{}", serde_json::Value::from(shown));
        }
        Cmd::Renew { name, scopes, .. } if !scopes.is_empty() => {
            let message = format!(
                "the scope of `{name}` stays, for turns are kept under the name: make a key of another name with \
                 `chimere keys add NAME --scope {}`, and end this one with `chimere keys revoke {name}`",
                scopes.join(" --scope ")
            );
            return Err(coded(EX_USAGE, message));
        }
        Cmd::Renew { name, consent, keep, scopes: _, json } => {
            become_owner(config)?;
            let consent = consent.map(|consent| consent == Consent::Yes);
            renew(dir, &name, (consent, keep), json)?;
        }
        Cmd::List { json: false } => {
            let ring = KeyRing::load(dir)?;
            if ring.is_empty() {
                note!("{KEYLESS}");
                note!("This is of the state folder {} (--state-dir names another).", dir.display());
            }
            for k in ring.entries() {
                let scopes: Vec<_> = k.scopes.iter().map(|s| format!("{s:?}").to_lowercase()).collect();
                let consent = if k.consent { "consent" } else { "no consent" };
                let state = k.revoked.as_ref().map_or_else(|| "active".to_owned(), |at| format!("revoked {at}"));
                say!("{:<20} {:<20} {consent:<10} {} {state}", k.name, scopes.join(","), k.created);
            }
        }
        Cmd::Revoke { name, json } => {
            become_owner(config)?;
            KeyRing::revoke(dir, &name, now)?;
            if json {
                say!("{}", json!({ "name": name, "revoked": true }));
            }
            note!(
                "`{name}` opens nothing any more. Its turns and lessons stay; `chimere keys renew {name}` makes a new key of the name."
            );
            note!("{}", kept(dir));
        }
    }
    Ok(())
}
