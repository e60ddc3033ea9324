//! What `chimere doctor` finds of a daemon that runs, or ran: who holds the state folder, who answers at the address, and
//! whether the record of the nights can be read.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use chimere::config::Config;
use chimere::config::check::Finding;
use chimere::night::record::Record;
use chimere::store::files::{Holder, StateLock};

use super::found;
use crate::cli::client::{Client, Where};
use crate::cli::serving::NEAR_TIMEOUT;

/// Who answers at the configured address.
enum Answers {
    Nobody,
    /// A daemon that serves.
    Ready,
    /// A daemon that does not serve yet, or no more, or another program; in its words.
    Otherwise(String),
}

pub(super) fn look(config: &Config, target: &Where) -> Vec<Finding> {
    let listen = config.http.listen;
    let bound = TcpListener::bind(listen).map(drop);
    let used = bound.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse);
    let answers = if used { asked(&Where { url: None, key: None }, listen) } else { Answers::Nobody };
    let holder = StateLock::holder(&config.state_dir);
    let held = matches!(holder, Ok(Some(Holder { alive: true, .. })));
    let mut findings = vec![match bound {
        Err(error) if !used => {
            found("port", false, format!("{listen} cannot be bound: {error}: name another address with --listen"))
        }
        _ => port(listen, &answers, held),
    }];
    let url = target.named().map(|url| (url, asked(target, listen)));
    // It may listen where --url says, and not where the configuration does. Another machine's holds nothing here.
    let here = |url: &str| Client::new(target, listen).is_ok_and(|client| client.is_here()).then(|| url.to_owned());
    let elsewhere = url.iter().find(|(_, answers)| matches!(answers, Answers::Ready)).and_then(|(url, _)| here(url));
    findings.extend(match elsewhere {
        Some(url) => lock(config, holder, &Answers::Ready, &url),
        None => lock(config, holder, &answers, &listen.to_string()),
    });
    findings.extend(url.map(|(url, answers)| named(url, answers)));
    findings.push(night(&config.state_dir));
    findings
}

/// The daemon that --url or CHIMERE_URL names.
fn named(url: &str, answers: Answers) -> Finding {
    match answers {
        Answers::Otherwise(why) => found("url", false, why),
        _ => found("url", true, format!("a daemon serves at {url}")),
    }
}

fn asked(target: &Where, listen: SocketAddr) -> Answers {
    let health = async {
        let client = Client::new(target, listen)?;
        let answer = tokio::time::timeout(NEAR_TIMEOUT, client.get("/health")).await;
        let answer = answer.map_err(|_| anyhow::anyhow!("no answer within {} s", NEAR_TIMEOUT.as_secs()))??;
        anyhow::ensure!(answer["status"] == "ok", "what answers is no daemon of ours");
        Ok(())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(health)) {
        Ok(()) => Answers::Ready,
        Err(error) => Answers::Otherwise(format!("{error:#}")),
    }
}

/// `held`: a daemon lives in this state folder.
fn port(listen: SocketAddr, answers: &Answers, held: bool) -> Finding {
    let other = "start this daemon with another --listen";
    match answers {
        Answers::Nobody => found("port", true, format!("{listen} is free")),
        Answers::Ready if held => found("port", true, format!("a daemon serves at {listen}")),
        Answers::Ready => {
            found("port", true, format!("a daemon with another state folder serves at {listen}: {other}"))
        }
        Answers::Otherwise(why) if held => {
            let next = "wait while it loads, else read its log (`journalctl -u chimere`, or where it was started)";
            found("port", false, format!("{listen} does not serve: {why}: {next}"))
        }
        Answers::Otherwise(why) => found("port", false, format!("{listen} is another program's ({why}): {other}")),
    }
}

/// Whether the daemon that holds the state folder lives. `at`: who answers there.
fn lock(config: &Config, holder: std::io::Result<Option<Holder>>, answers: &Answers, at: &str) -> Option<Finding> {
    let folder = config.state_dir.display();
    match holder {
        Ok(None) => None,
        Err(error) => Some(found("daemon", false, format!("{folder}/daemon.lock: {error}: run this as its owner"))),
        Ok(Some(Holder { process, held: false, .. })) => {
            let ended =
                if process.is_empty() { String::new() } else { format!("; the last, process {process}, ended") };
            Some(found("daemon", true, format!("none runs in {folder}{ended}")))
        }
        // Of another container, whose processes have numbers of their own.
        Ok(Some(Holder { process, alive: false, .. })) if matches!(answers, Answers::Ready) => {
            let said = format!("process {process} of another container holds {folder}; a daemon serves at {at}");
            Some(found("daemon", true, said))
        }
        Ok(Some(Holder { process, alive: false, .. })) => {
            let next = format!("`fuser {folder}/daemon.lock` shows who has it open: end that, then start the daemon");
            let said = format!(
                "{folder} is held, but process {process} is not seen from here. It runs in another container (stop it \
                 there), or it is gone and a child of its lives: {next}"
            );
            Some(found("daemon", false, said))
        }
        Ok(Some(Holder { process, .. })) => match answers {
            Answers::Nobody => {
                let next = "it was started with another --listen (name it here too), or is about to end";
                let said = format!("process {process} holds {folder}, but nobody answers at {at}: {next}");
                Some(found("daemon", false, said))
            }
            _ => Some(found("daemon", true, format!("process {process} runs in {folder}"))),
        },
    }
}

/// The record without which no night begins.
fn night(state_dir: &Path) -> Finding {
    let path = Record::path(state_dir);
    match Record::load(state_dir) {
        Ok(_) if path.exists() => found("nights", true, format!("{} can be read", path.display())),
        Ok(_) => found("nights", true, "no night has been recorded yet"),
        Err(error) => {
            let next = match std::fs::File::open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    "ask as the account that the daemon runs as"
                }
                _ => "no night begins; move the file away and restart the daemon to begin anew",
            };
            found("nights", false, format!("{}: {error}: {next}", path.display()))
        }
    }
}
