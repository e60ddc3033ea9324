//! `chimere keys add | list | revoke`: works on the key file; a running daemon takes the change with its next request.

use std::process::ExitCode;

use chimere::config::Config;
use chimere::keys::{KeyError, KeyRing, OWNER};
use chimere::service::Scope;
use chimere::store::files::create_private_dir;
use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::exit::{note, say};
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
        /// The daemon may learn from turns of this key
        #[arg(long)]
        consent: bool,
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

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Chat => Scope::Chat,
            ScopeArg::Metrics => Scope::Metrics,
            ScopeArg::Admin => Scope::Admin,
        }
    }
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
            note!("This is the only time the key is shown. Send it as `Authorization: Bearer KEY`.");
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
        Cmd::List { json: false } => {
            for k in KeyRing::load(dir)?.entries() {
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
        }
    }
    Ok(())
}
