//! Every setting with the value in force and the place it came from, for people; and what a change of each needs.

use serde::Serialize;

use super::Config;
use super::raw::{RawConfig, Typed};

/// The installed file: it says every default, as a test of the configuration proves.
const SHIPPED: &str = include_str!("../../systemd/config.toml");

/// Keys that a running daemon takes over when it reads its configuration again. Limits of connections hold for
/// those accepted from then on, limits of replies for those that begin from then on.
pub const LIVE: &[&str] = &[
    "model.aliases",
    "http.connections_max",
    "http.connections_per_address_max",
    "http.body_bytes_max",
    "http.header_timeout_ms",
    "http.body_timeout_ms",
    "http.idle_timeout_ms",
    "http.write_timeout_ms",
    "http.hosts",
    "http.origins",
    "http.loopback_owner",
    "replies.max_tokens",
    "replies.tokens_max",
    "replies.generations_max",
    "replies.tool_calls_max",
    "replies.start_timeout_ms",
    "replies.reply_timeout_ms",
    "replies.client_stall_timeout_ms",
    "memory.append_timeout_ms",
    "embed.aliases",
    "documents.file_bytes_max",
    "daemon.drain_timeout_ms",
    "log.filter",
];

/// One key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// `section.key`
    pub key: String,
    /// As TOML; what the daemon chose by itself where nobody said anything, in words where that is no value.
    pub value: String,
    /// `default`, a file with line and column, a variable or a flag.
    pub origin: String,
    /// A running daemon takes a change over; otherwise it must be restarted.
    pub live: bool,
}

/// Every key, in the order of the installed file.
pub(super) fn of(typed: &[Typed], config: &Config) -> Vec<Setting> {
    let shipped: toml::Table = toml::from_str(SHIPPED).unwrap_or_default();
    RawConfig::keys()
        .map(|(section, name)| {
            let key = format!("{section}.{name}");
            let live = LIVE.contains(&key.as_str());
            let said = typed.iter().find(|typed| typed.key == key);
            let default = || match shipped.get(section).and_then(|s| s.get(name)) {
                Some(value) => value.to_string(),
                None => chosen(&key, config),
            };
            let origin = said.map_or("default", |typed| typed.origin.as_str()).to_owned();
            Setting { value: said.map_or_else(default, |typed| typed.value.clone()), key, origin, live }
        })
        .collect()
}

/// What stands for a key without a fixed default.
fn chosen(key: &str, config: &Config) -> String {
    let path = |path: &std::path::Path| toml::Value::from(path.display().to_string()).to_string();
    match key {
        "model.path" => config.model.as_deref().map_or_else(|_| "none found".to_owned(), path),
        "scorer.model" => config.scorer.model.as_deref().map_or_else(|_| "none found".to_owned(), path),
        "scorer.adapter" => {
            config.scorer.adapter.as_deref().map_or_else(|| "nano-prm.gguf beside the model".to_owned(), path)
        }
        "embed.model" => {
            let shipped = "nano-embed.gguf beside the model, else the installation's";
            config.embed.model.as_deref().map_or_else(|| shipped.to_owned(), path)
        }
        "engine.threads" => config.engine.threads.to_string(),
        "embed.context_tokens" => "as the model was trained, at most 2048".to_owned(),
        "engine.context_tokens" => "as the model was trained".to_owned(),
        "engine.step_tokens" => "as suits the device".to_owned(),
        "web.engine" => "none: no web is searched".to_owned(),
        "web.url" => "the engine's own, where it has one".to_owned(),
        "web.key_file" => "none".to_owned(),
        "pipelines.dir" => config.pipelines.shipped.as_deref().map_or_else(|| "compiled in".to_owned(), path),
        "night.golden" => config.night.golden.as_deref().map_or_else(|_| "none found".to_owned(), path),
        "night.slice" => config.night.slice.as_deref().map_or_else(|_| "none found".to_owned(), path),
        "daemon.state_dir" => path(&config.state_dir),
        _ => "not set".to_owned(),
    }
}

/// Keys whose values differ.
pub fn changed<'a>(before: &'a [Setting], after: &'a [Setting]) -> Vec<&'a Setting> {
    after.iter().filter(|new| before.iter().any(|old| old.key == new.key && old.value != new.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};

    fn settings(text: &str, flags: Flags) -> Vec<Setting> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let env = Environment {
            home: Some("/home/somebody".into()),
            cores: 2,
            chimere: vec![("CHIMERE_ENGINE_SEQUENCES".into(), "6".into())],
            ..Environment::default()
        };
        let mut all = Config::load_in(&Flags { config: Some(file.clone()), ..flags }, &env).unwrap().settings;
        for setting in &mut all {
            setting.origin = setting.origin.replace(&file.display().to_string(), "c.toml");
        }
        all
    }

    fn find<'a>(all: &'a [Setting], key: &str) -> (&'a str, &'a str, bool) {
        let found = all.iter().find(|s| s.key == key).unwrap_or_else(|| panic!("no {key}"));
        (&found.value, &found.origin, found.live)
    }

    #[test]
    fn every_key_has_a_value_and_an_origin() {
        let flags = Flags { listen: Some("127.0.0.1:1".into()), ..Flags::default() };
        let all = settings("[replies]\nmax_tokens = 7\n[http]\nlisten = '[::1]:2'\nhosts = ['a']\n", flags);
        assert_eq!(all.len(), RawConfig::keys().count());
        assert_eq!(find(&all, "replies.max_tokens"), ("7", "c.toml:2:14", true));
        assert_eq!(find(&all, "http.hosts"), ("[\"a\"]", "c.toml:5:9", true));
        assert_eq!(find(&all, "http.listen"), ("\"127.0.0.1:1\"", "flag --listen", false));
        assert_eq!(find(&all, "engine.sequences"), ("6", "environment variable CHIMERE_ENGINE_SEQUENCES", false));
        assert_eq!(find(&all, "engine.threads"), ("2", "default", false));
        assert_eq!(find(&all, "replies.reply_timeout_ms"), ("600000", "default", true));
        assert_eq!(find(&all, "daemon.state_dir").0, "\"/home/somebody/.local/state/chimere\"");
        assert!(all.iter().all(|s| s.value != "not set"), "{all:#?}");
    }

    #[test]
    fn live_keys_exist_and_changes_are_found_by_value() {
        for key in LIVE {
            assert!(RawConfig::keys().any(|(section, name)| *key == format!("{section}.{name}")), "{key}");
        }
        let before = settings("[replies]\nmax_tokens = 7\n", Flags::default());
        let moved = settings("\n\n[replies]\nmax_tokens = 7\n[engine]\nsequences = 9\n", Flags::default());
        assert!(changed(&before, &moved).is_empty(), "the variable wins over the file");
        let after = settings("[replies]\nmax_tokens = 8\n[night]\nenabled = true\n", Flags::default());
        let keys: Vec<_> = changed(&before, &after).into_iter().map(|s| s.key.as_str()).collect();
        assert_eq!(keys, ["replies.max_tokens", "night.enabled"]);
    }
}
