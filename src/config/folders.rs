//! Folders whose files are documents: each is a collection, of the owner or of a key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::ConfigError;
use super::raw::Field;
use crate::documents::COLLECTION_CHARS_MAX;
use crate::service::OWNER;

/// Most folders.
const FOLDERS_MAX: usize = 64;

/// A folder that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedFolder {
    /// Whose its documents are, and in which collection.
    pub principal: String,
    pub collection: String,
    pub path: PathBuf,
}

/// `documents.folders`: `COLLECTION = "PATH"`, or `"KEY/COLLECTION" = "PATH"` for a key's own.
pub(super) fn folders(
    raw: Option<Field<BTreeMap<String, PathBuf>>>,
    state_dir: &Path,
) -> Result<Vec<WatchedFolder>, ConfigError> {
    let Some(field) = raw else { return Ok(Vec::new()) };
    let refuse = |value: String, wanted: &str| {
        let (origin, wanted) = (field.origin.clone(), wanted.to_owned());
        Err(ConfigError::Range { origin, key: "documents.folders", value, wanted })
    };
    if field.value.len() > FOLDERS_MAX {
        return refuse(format!("{} folders", field.value.len()), &format!("at most {FOLDERS_MAX}"));
    }
    let mut folders = Vec::with_capacity(field.value.len());
    for (name, path) in &field.value {
        let (principal, collection) = name.split_once('/').unwrap_or((OWNER, name));
        let named = !principal.is_empty()
            && !collection.trim().is_empty()
            && collection.chars().count() <= COLLECTION_CHARS_MAX
            && !collection.chars().any(|c| c.is_control() || c == '/' || c == '*');
        if !named {
            let wanted = format!(
                "COLLECTION or \"KEY/COLLECTION\", a collection of 1 to {COLLECTION_CHARS_MAX} characters without `*`"
            );
            return refuse(format!("`{}`", name.escape_debug()), &wanted);
        }
        if !path.is_absolute() {
            return refuse(format!("`{}`", path.display()), "folders by whole paths, which begin with `/`");
        }
        if path.starts_with(state_dir) || state_dir.starts_with(path) {
            return refuse(format!("`{}`", path.display()), "a folder apart from the daemon's own state");
        }
        let (principal, collection) = (principal.to_owned(), collection.to_owned());
        folders.push(WatchedFolder { principal, collection, path: path.clone() });
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use crate::config::raw::RawConfig;
    use crate::config::{Config, Environment};

    fn read(text: &str) -> Result<Vec<(String, String, String)>, String> {
        let env = Environment { home: Some("/home/somebody".into()), cores: 1, ..Environment::default() };
        let config = RawConfig::parse(text, "c.toml").and_then(|raw| Config::resolve(raw, &env));
        let config = config.map_err(|error| error.to_string())?;
        let one = |f: &super::WatchedFolder| (f.principal.clone(), f.collection.clone(), f.path.display().to_string());
        Ok(config.folders.iter().map(one).collect())
    }

    #[test]
    fn a_folder_is_a_collection_of_the_owner_or_of_a_key() {
        let folders = read("documents.folders = { papers = '/srv/papers', 'ada/notes' = '/srv/ada' }").unwrap();
        let one = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(folders, [one("ada", "notes", "/srv/ada"), one("owner", "papers", "/srv/papers")]);
        assert_eq!(read("").unwrap(), []);
        for (text, why) in [
            ("{ papers = 'papers' }", "c.toml:1:21: documents.folders is `papers`, but must be folders by whole paths"),
            ("{ papers = '' }", "empty"),
            ("{ '' = '/x' }", "COLLECTION or"),
            ("{ 'a/b/c' = '/x' }", "COLLECTION or"),
            ("{ 'a*' = '/x' }", "COLLECTION or"),
            ("{ all = '/' }", "apart from the daemon's own state"),
            ("{ all = '/home/somebody/.local/state/chimere/documents' }", "apart from the daemon's own state"),
            ("['/x']", "documents.folders must be"),
        ] {
            let error = read(&format!("documents.folders = {text}")).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
