//! What a running daemon serves, for commands that look at a machine. It may have been started with another `--model` than
//! the configuration names, and it may run on another machine.

use std::path::PathBuf;
use std::time::Duration;

use chimere::config::Config;
use chimere::config::check::{Served, Told, Unsaid};

use super::client::{Client, Where, printable};
use super::exit::{EX_NOPERM, EX_UNAVAILABLE, code_of};

/// Longest wait for an answer of a daemon that is near.
pub const NEAR_TIMEOUT: Duration = Duration::from_secs(5);

/// What the daemon serves that `target` or the configuration names; absent: no daemon answers.
pub fn served(target: &Where, config: &Config) -> Option<Result<Served, Unsaid>> {
    let client = match Client::new(target, config.http.listen) {
        Ok(client) => client,
        // Which daemon was meant is not known.
        Err(error) => return Some(Err(Unsaid { why: format!("{error:#}"), here: true, guarded: false })),
    };
    let (by, here) = (printable(client.address()), client.is_here());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let ask = |path| runtime.block_on(async { tokio::time::timeout(NEAR_TIMEOUT, client.get(path)).await });
    if target.named().is_none() {
        // Nobody, or another program: that is for those to say who look at the port.
        ask("/health").ok()?.ok().filter(|health| health["status"] == "ok")?;
    }
    let unsaid = |why| Some(Err(Unsaid { why, here, guarded: false }));
    match ask("/v1/admin/model") {
        Ok(Ok(shown)) => match shown["file"].as_str() {
            Some(file) => Some(Ok(Served { file: PathBuf::from(file), here, by })),
            None => unsaid(format!("the daemon at {by} does not serve a model yet: wait while it loads")),
        },
        Ok(Err(error)) if code_of(&error) == EX_NOPERM && target.shown().is_none() => {
            let next = "give one of scope `admin` by CHIMERE_KEY or --key";
            let why = format!("the daemon at {by} has keys and was shown none: {next}");
            Some(Err(Unsaid { why, here, guarded: true }))
        }
        // None is there that could hold anything.
        Ok(Err(error)) => {
            let here = here && code_of(&error) != EX_UNAVAILABLE;
            let guarded = code_of(&error) == EX_NOPERM;
            Some(Err(Unsaid { why: printable(&format!("{error:#}")), here, guarded }))
        }
        Err(_) => unsaid(format!("the daemon at {by} did not answer within {} s", NEAR_TIMEOUT.as_secs())),
    }
}

/// What a daemon says of itself: the one that `target` or the configuration names, where it answers and tells it.
pub fn told(target: &Where, config: &Config) -> Option<Told> {
    let client = Client::new(target, config.http.listen).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let ask = async { tokio::time::timeout(NEAR_TIMEOUT, client.get("/v1/status")).await };
    let status = runtime.block_on(ask).ok()?.ok()?;
    // Another program may answer there.
    status["actors"].is_object().then(|| Told::new(printable(client.address()), status))
}
