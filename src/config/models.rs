//! What models are called: the other names of the served one, and further models with their files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::raw::{self, Field};
use super::{ConfigError, millis, number};

/// Most other names of the model, and most further models.
const NAMES_MAX: usize = 64;
/// What a model may be called.
const NAMES: &str = "1 to 128 visible ASCII characters";

/// Further models beside the served one.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelsConfig {
    /// Each file with the names that requests give it, one at least.
    pub files: BTreeMap<PathBuf, Vec<String>>,
    /// Loaded at once.
    pub loaded_max: usize,
    /// One that nobody asks for so long is unloaded; `None`: only for another.
    pub idle_unload: Option<Duration>,
    /// Longest wait of a request for its model to be loaded, or for the served one to be changed.
    pub load_wait: Duration,
}

/// Further models: names as of aliases, of one model each; whether a file can be hosted shows when it is asked for.
pub(super) fn further(raw: raw::ModelsSection, model: &raw::ModelSection) -> Result<ModelsConfig, ConfigError> {
    let mut files: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    if let Some(field) = raw.files {
        let refuse = |value: String, wanted: &str| {
            let wanted = wanted.to_owned();
            Err(ConfigError::Range { origin: field.origin.clone(), key: "models.files", value, wanted })
        };
        if field.value.len() > NAMES_MAX {
            return refuse(format!("{} names", field.value.len()), &format!("at most {NAMES_MAX}"));
        }
        let aliases = model.aliases.as_ref().map(|field| field.value.as_slice()).unwrap_or_default();
        for (name, path) in &field.value {
            if !is_model_name(name) {
                return refuse(format!("`{}`", name.escape_debug()), NAMES);
            }
            if aliases.contains(name) {
                return refuse(format!("`{name}`, which is one of model.aliases"), "a name of one model");
            }
            if !path.is_absolute() {
                return refuse(format!("`{}`", path.display()), "files by whole paths, which begin with `/`");
            }
            files.entry(path.clone()).or_default().push(name.clone());
        }
    }
    let idle = number(raw.idle_unload_ms, 300_000, 0..=86_400_000, "models.idle_unload_ms")?;
    Ok(ModelsConfig {
        files,
        loaded_max: number(raw.loaded_max, 1, 1..=NAMES_MAX as u64, "models.loaded_max")? as usize,
        idle_unload: Some(Duration::from_millis(idle)).filter(|idle| !idle.is_zero()),
        load_wait: millis(raw.load_wait_ms, 300_000, "models.load_wait_ms")?,
    })
}

fn is_model_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
}

/// Other names of a model: printable, without blanks, none twice.
pub(super) fn aliases(field: Option<Field<Vec<String>>>, key: &'static str) -> Result<Vec<String>, ConfigError> {
    let Some(field) = field else { return Ok(Vec::new()) };
    let refuse =
        |value: String, wanted: String| Err(ConfigError::Range { origin: field.origin.clone(), key, value, wanted });
    let names = &field.value;
    if names.len() > NAMES_MAX {
        return refuse(format!("{} names", names.len()), format!("at most {NAMES_MAX}"));
    }
    for (i, name) in names.iter().enumerate() {
        if !is_model_name(name) {
            return refuse(format!("`{}`", name.escape_debug()), NAMES.to_owned());
        }
        if names[..i].contains(name) {
            return refuse(format!("`{name}` twice"), "each name once".to_owned());
        }
    }
    Ok(field.value)
}

#[cfg(test)]
mod tests {
    use crate::config::Environment;
    use crate::config::raw::RawConfig;

    fn refused(text: &str) -> String {
        let env = Environment { home: Some("/home/somebody".into()), cores: 1, ..Environment::default() };
        let config = RawConfig::parse(text, "c.toml").and_then(|raw| crate::config::Config::resolve(raw, &env));
        config.map(|config| format!("{:?}", config.models)).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn names_stand_for_one_model_each_and_may_share_a_file() {
        let two = refused("models.files = { a = '/x', b = '/y', c = '/x' }");
        assert!(two.contains(r#"{"/x": ["a", "c"], "/y": ["b"]}"#), "{two}");
        let both = "model.aliases = ['a']\nmodels.files = { a = '/x' }";
        for (text, why) in [
            (both, "c.toml:2:16: models.files is `a`, which is one of model.aliases, but must be a name of one model"),
            ("models.files = { 'a b' = '/x' }", "models.files is `a b`, but must be 1 to 128 visible ASCII characters"),
            (
                "models.files = { a = 'x' }",
                "models.files is `x`, but must be files by whole paths, which begin with `/`",
            ),
            ("models.loaded_max = 0", "models.loaded_max is 0, but must be 1 to 64"),
        ] {
            let error = refused(text);
            assert!(error.contains(why), "{error}");
        }
    }
}
