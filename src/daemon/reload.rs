//! Reading files again while the daemon runs: keys, pipelines and Engram tables when they change or on SIGHUP, the
//! configuration on SIGHUP. What cannot be read replaces nothing, and what needs a restart is named.

use std::sync::{Arc, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

use super::tables::own_folder;
use super::{Daemon, http_limits, notify};
use crate::actors::orchestrator::PipelinesChanged;
use crate::actors::scheduler::ScheduleChanged;
use crate::config::settings::{Setting, changed};
use crate::config::{Config, RepliesConfig};
use crate::engram::format::EXTENSION;
use crate::keys::{KeyError, KeyRing, Stamp};
use crate::meters;
use crate::pipeline::Watch;

/// What became of the configuration since the start, for the status.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// Unix milliseconds of the last reading again.
    reloaded_ms: Option<i64>,
    /// Why the last one was refused.
    refused: Option<String>,
    /// Keys whose values were taken over by the last one.
    applied: Vec<String>,
    /// Keys whose values in the files are not those in force.
    restart_to_apply: Vec<String>,
}

impl Daemon {
    /// Reads keys, tables, pipelines and configuration again.
    pub(super) async fn reload(self: &Arc<Self>) {
        notify::reloading();
        self.reload_keys(&mut self.keys_file(), false);
        self.reload_tables().await;
        let loaded = Config::load(&self.flags);
        meters::reloaded("config", loaded.is_ok());
        match loaded {
            Ok(config) => self.take(config),
            Err(error) => {
                tracing::error!(%error, "the configuration is not valid: the running one stays");
                self.reloaded.send_modify(|outcome| {
                    outcome.reloaded_ms = Some(self.clock.now_ms());
                    outcome.refused = Some(error.to_string());
                });
            }
        }
        // They are read by the configuration in force. The outcome is logged and shown in the status.
        let _ = self.cast.orchestrator.send(PipelinesChanged).await;
        let _ = self.cast.scheduler.send(ScheduleChanged).await;
        notify::reloaded();
    }

    /// Takes over what may change while the daemon runs, and names the rest.
    fn take(&self, new: Config) {
        let running = self.config.get();
        let differing = changed(&running.settings, &new.settings);
        let (live, restart): (Vec<&Setting>, Vec<&Setting>) = differing.into_iter().partition(|s| s.live);
        let keys = |settings: &[&Setting]| settings.iter().map(|s| s.key.clone()).collect::<Vec<_>>();
        let (applied, restart_to_apply) = (keys(&live), keys(&restart));
        if !live.is_empty() {
            let config = merge(&running, &new);
            if let Err(error) = self.log.set(&config.log.filter) {
                tracing::error!(%error, "the log keeps its filter");
            }
            self.limits.set(http_limits(&config));
            self.replies.config.set(config.replies.clone());
            self.replies.pipelines.ceilings.set(config.replies.ceilings);
            self.replies.append_timeout.set(config.memory.append_timeout);
            self.config.set(config);
            tracing::info!(keys = applied.join(", "), "configuration applied");
        }
        if !restart.is_empty() {
            tracing::warn!("restart to apply: {}", restart_to_apply.join(", "));
        }
        if live.is_empty() && restart.is_empty() {
            tracing::info!("configuration unchanged");
        }
        let reloaded_ms = Some(self.clock.now_ms());
        self.reloaded.send_replace(Outcome { reloaded_ms, refused: None, applied, restart_to_apply });
    }

    /// A change of the keys holds from the next request on: whoever revokes one waits for nothing.
    pub(super) fn follow_keys(&self) {
        let mut read = self.keys_file();
        let now = Some(Stamp::of(&self.config.get().state_dir));
        if read.stamp == now {
            return;
        }
        // One that cannot be read is tried at every request, and told of once.
        let told = read.told == now;
        if self.reload_keys(&mut read, told) {
            read.stamp = now;
        }
        read.told = now;
    }

    fn keys_file(&self) -> MutexGuard<'_, KeysFile> {
        self.keys_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the status: the keys in use, and why they are not those of the file.
    pub(super) fn keys_status(&self) -> Value {
        let ring = self.keys.borrow().clone();
        json!({ "keys": ring.entries().len(), "message": self.keys_file().kept })
    }

    /// False: the file could not be read just now, and is to be read again. `told`: that was said before.
    fn reload_keys(&self, read: &mut KeysFile, told: bool) -> bool {
        let config = self.config.get();
        let loaded = KeyRing::load(&config.state_dir);
        if told && matches!(loaded, Err(KeyError::Io { .. })) {
            return false;
        }
        meters::reloaded("keys", loaded.is_ok());
        match loaded {
            // Who makes a key wants a door that is shut. A file that goes, by mistake or by a thief's hand, opens none.
            Ok(ring)
                if ring.is_empty() && (!self.keys.borrow().is_empty() || !config.http.listen.ip().is_loopback()) =>
            {
                let path = KeyRing::path(&config.state_dir);
                let why = format!(
                    "{} has no keys any more: those read before stay in use until a restart. Put a copy of the file back, \
                     or restart the daemon to do without keys",
                    path.display()
                );
                tracing::error!("{why}");
                read.kept = Some(why);
                true
            }
            Ok(ring) => {
                self.keys.send_replace(Arc::new(ring));
                read.kept = None;
                true
            }
            Err(error) => {
                tracing::error!(%error, "keys not reloaded: the ones read before stay");
                read.kept = Some(format!("the keys read before stay in use: {error}"));
                !matches!(error, KeyError::Io { .. })
            }
        }
    }

    /// Reloads pipelines, keys and tables when their files change.
    pub(super) async fn follow_files(self: Arc<Self>) {
        let config = self.config.get();
        let mut folders = vec![config.pipelines.overlay.clone()];
        folders.extend(config.pipelines.shipped.clone());
        let watched = Watch::start(&folders, "yaml").and_then(|p| {
            let keys = Watch::start(std::slice::from_ref(&config.state_dir), "toml")?;
            Ok((p, keys, Watch::start(&[own_folder(&config)], EXTENSION)?))
        });
        let ((_pipelines, mut yaml), (_keys, mut toml), (_tables, mut engr)) = match watched {
            Ok(watched) => watched,
            Err(error) => return tracing::error!(%error, "files are not watched: reload with SIGHUP"),
        };
        loop {
            tokio::select! {
                Ok(()) = yaml.changed() => {
                    drop(self.cast.orchestrator.send(PipelinesChanged).await);
                    drop(self.cast.scheduler.send(ScheduleChanged).await);
                }
                Ok(()) = toml.changed() => self.follow_keys(),
                Ok(()) = engr.changed() => self.reload_tables().await,
                else => return,
            }
        }
    }
}

/// The key file as it was looked at last.
#[derive(Default)]
pub(super) struct KeysFile {
    /// When it was read last, where it could be.
    stamp: Option<Option<Stamp>>,
    /// When it was told last what came of it.
    told: Option<Option<Stamp>>,
    /// Why the keys in use are not those of the file.
    kept: Option<String>,
}

/// The running configuration with the values of `new` where a change needs no restart (`settings::LIVE`).
fn merge(running: &Config, new: &Config) -> Config {
    let mut config = running.clone();
    config.http = new.http.clone();
    config.http.listen = running.http.listen;
    // The engine's queue was made for as many.
    config.replies = RepliesConfig { requests_max: running.replies.requests_max, ..new.replies.clone() };
    config.memory.append_timeout = new.memory.append_timeout;
    config.file_bytes_max = new.file_bytes_max;
    config.embed.aliases.clone_from(&new.embed.aliases);
    config.drain_timeout = new.drain_timeout;
    config.log.filter.clone_from(&new.log.filter);
    for setting in config.settings.iter_mut().filter(|setting| setting.live) {
        if let Some(new) = new.settings.iter().find(|new| new.key == setting.key) {
            setting.clone_from(new);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw::RawConfig;
    use crate::config::{Environment, Flags};

    /// What keys may be, one of which is valid for each and not its default.
    const VALUES: [&str; 17] = [
        "61",
        "67",
        "2000000",
        "true",
        "false",
        "'/x'",
        "'127.0.0.1:1'",
        "['a']",
        "['https://a.example']",
        "'never'",
        "'cpu'",
        "'json'",
        "{ b = '/b' }",
        "'q8_0/q4_0'",
        "'bf16'",
        "7",
        "70000",
    ];
    /// Keys of which one alone says nothing.
    const TOGETHER: [&str; 10] = [
        "web.engine = 'searxng'",
        "web.url = 'http://127.0.0.1:1'",
        "judge.form = 'text'",
        "judge.prompt = '{question} {steps}'",
        "judge.step = '{n}: {step}!'",
        "judge.before_label = 'is'",
        "judge.good = '+'",
        "judge.bad = '-'",
        "judge.think_tokens = 5",
        "judge.label_each = true",
    ];

    fn load(text: &str) -> Result<Config, crate::config::ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let env = Environment { home: Some("/home/somebody".into()), cores: 2, ..Environment::default() };
        Config::load_in(&Flags { config: Some(file), ..Flags::default() }, &env)
    }

    /// A file that says something else than the default for every key.
    fn all_changed(defaults: &Config) -> String {
        let line = |(section, key): (&str, &str)| {
            let begins = format!("{section}.{key} = ");
            if let Some(line) = TOGETHER.iter().find(|line| line.starts_with(&begins)) {
                return format!("{line}\n");
            }
            let lines = VALUES.map(|value| format!("{section}.{key} = {value}\n"));
            let other = |line: &&String| {
                load(line).is_ok_and(|config| !changed(&defaults.settings, &config.settings).is_empty())
            };
            lines.iter().find(other).unwrap_or_else(|| panic!("no value for {section}.{key}")).clone()
        };
        RawConfig::keys().map(line).collect()
    }

    /// Whatever is called live really arrives, and nothing else does.
    #[test]
    fn exactly_the_live_keys_are_taken_over() {
        let running = load("").unwrap();
        let new = load(&all_changed(&running)).unwrap();
        let mut merged = merge(&running, &new);
        let applied = changed(&running.settings, &merged.settings);
        assert!(applied.iter().all(|s| s.live) && applied.len() == crate::config::settings::LIVE.len());
        // What the merged settings say is what the merged configuration holds.
        let said: String =
            merged.settings.iter().filter(|s| s.live).map(|s| format!("{} = {}\n", s.key, s.value)).collect();
        let mut expected = load(&said).unwrap();
        (expected.settings, merged.settings) = (Vec::new(), Vec::new());
        assert_eq!(merged, expected);
    }
}
