//! What a running daemon serves, for commands that look at a machine. It may have been started with another `--model` than
//! the configuration names, and it may run on another machine.

use std::path::PathBuf;
use std::time::Duration;

use chimere::config::Config;
use chimere::config::check::Served;

use super::client::{Client, Where, printable};

/// Longest wait for an answer of a daemon that is near.
pub const NEAR_TIMEOUT: Duration = Duration::from_secs(5);

/// What the daemon serves that `target` or the configuration names; absent: no daemon answers. `Err`: why it did not say.
pub fn served(target: &Where, config: &Config) -> Option<Result<Served, String>> {
    let client = match Client::new(target, config.http.listen) {
        Ok(client) => client,
        Err(error) => return Some(Err(format!("{error:#}"))),
    };
    let by = printable(client.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let ask = |path| runtime.block_on(async { tokio::time::timeout(NEAR_TIMEOUT, client.get(path)).await });
    if target.named().is_none() {
        // Nobody, or another program: that is for those to say who look at the port.
        ask("/health").ok()?.ok().filter(|health| health["status"] == "ok")?;
    }
    Some(match ask("/v1/admin/model") {
        Ok(Ok(shown)) => match shown["file"].as_str() {
            Some(file) => Ok(Served { file: PathBuf::from(file), here: client.is_here(), by }),
            None => Err(format!("the daemon at {by} does not serve a model yet: wait while it loads")),
        },
        Ok(Err(error)) => Err(printable(&format!("{error:#}"))),
        Err(_) => Err(format!("the daemon at {by} did not answer within {} s", NEAR_TIMEOUT.as_secs())),
    })
}
