//! Which model file is served where that was changed while a daemon ran: `model.json` of the state folder. It is written
//! when a file has proved itself, and holds as long as the configuration names the same file as then.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::store::files::{read_bounded, write_durable};

const FILE: &str = "model.json";
const FORMAT: u32 = 1;
const BYTES_MAX: u64 = 64 << 10;

/// A file that serves in the place of the configured one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    format: u32,
    /// What the configuration named.
    configured: PathBuf,
    /// What serves.
    pub path: PathBuf,
    /// What served before, for the way back.
    pub before: PathBuf,
    /// Unix milliseconds.
    pub chosen_ms: i64,
}

impl Choice {
    pub(super) fn new(configured: &Path, path: PathBuf, before: PathBuf, chosen_ms: i64) -> Choice {
        let (configured, path, before) = (whole(configured), whole(&path), whole(&before));
        Choice { format: FORMAT, configured, path, before, chosen_ms }
    }

    /// The choice in force, if there is one. One that cannot be read is passed over with a line in the log.
    pub fn in_force(state_dir: &Path, configured: &Path) -> Option<Choice> {
        let choice = match Choice::load(state_dir) {
            Ok(choice) => choice?,
            Err(error) => {
                let path = state_dir.join(FILE);
                let next = "put a copy of it back, or choose the model again with `chimere model swap`";
                tracing::error!(
                    "{} cannot be read, so the configured model is served: {error}: {next}",
                    path.display()
                );
                return None;
            }
        };
        if choice.configured != whole(configured) {
            tracing::warn!(file = %choice.path.display(), "the configuration names another model since: it is served");
            return None;
        }
        Some(choice)
    }

    fn load(state_dir: &Path) -> io::Result<Option<Choice>> {
        let Some(text) = read_bounded(&state_dir.join(FILE), BYTES_MAX)? else { return Ok(None) };
        let choice: Choice = serde_json::from_str(&text)?;
        match choice.format {
            FORMAT => Ok(Some(choice)),
            other => Err(io::Error::other(format!("format {other}, not {FORMAT}"))),
        }
    }

    pub(super) fn save(&self, state_dir: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        write_durable(&state_dir.join(FILE), &text)
    }
}

/// The file that a daemon would serve, or the places that were looked at.
pub fn served_file(config: &Config) -> Result<PathBuf, Vec<PathBuf>> {
    let configured = config.model.clone()?;
    let chosen = Choice::in_force(&config.state_dir, &configured).map(|choice| choice.path);
    // One that is gone is not what a daemon would come up with.
    Ok(chosen.filter(|path| path.is_file()).unwrap_or(configured))
}

/// A path says the same from every folder, and of what was installed also after an update: each release lies in a folder
/// of its own, to which `current` leads.
pub fn whole(path: &Path) -> PathBuf {
    let path = whole_here(path);
    of_any_release(&path).unwrap_or(path)
}

/// A path that says the same from every folder, until an update.
pub(super) fn whole_here(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// `…/lib/chimere/RELEASE/share/…` with `current` for the release, where that has such a file.
fn of_any_release(path: &Path) -> Option<PathBuf> {
    let parts: Vec<_> = path.components().collect();
    let at = parts.windows(4).position(|four| {
        four[0].as_os_str() == "lib" && four[1].as_os_str() == "chimere" && four[3].as_os_str() == "share"
    })?;
    let mut current: PathBuf = parts[..at + 2].iter().collect();
    current.push("current");
    current.extend(&parts[at + 3..]);
    current.is_file().then_some(current)
}

/// The file that `path` means to a daemon that serves from the release of `configured`: another one may be `current` by now.
pub(super) fn of_own_release(path: &Path, configured: &Path) -> PathBuf {
    let current: Vec<_> = path.components().collect();
    let own: Vec<_> = configured.components().collect();
    let at = current.windows(4).position(|four| {
        let names: Vec<_> = four.iter().map(|part| part.as_os_str()).collect();
        names == ["lib", "chimere", "current", "share"]
    });
    let Some(at) = at.filter(|at| own.get(..at + 2) == Some(&current[..at + 2]) && own.len() > at + 2) else {
        return path.to_owned();
    };
    let file: PathBuf = own[..at + 3].iter().chain(&current[at + 3..]).collect();
    if file.is_file() { file } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_holds_while_the_configuration_names_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
        assert_eq!(Choice::in_force(dir.path(), &a), None);
        let choice = Choice::new(&a, b.clone(), a.clone(), 7);
        choice.save(dir.path()).unwrap();
        assert_eq!(Choice::in_force(dir.path(), &a), Some(choice));
        assert_eq!(Choice::in_force(dir.path(), &b), None, "the configuration was changed since");
        for damaged in ["{", "{}", r#"{"format":2,"configured":"/a","path":"/b","before":"/a","chosen_ms":1}"#] {
            std::fs::write(dir.path().join(FILE), damaged).unwrap();
            assert_eq!(Choice::in_force(dir.path(), &a), None, "{damaged}");
        }
    }

    #[test]
    fn a_choice_outlives_an_update() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("lib/chimere");
        let (other, current) = (dir.path().join("b.gguf"), root.join("current"));
        let file = |release: &str| root.join(release).join("share/chimere/nano.gguf");
        for release in ["1.0-a", "1.1-b"] {
            std::fs::create_dir_all(file(release).parent().unwrap()).unwrap();
            std::fs::write(file(release), release).unwrap();
        }
        std::os::unix::fs::symlink("1.0-a", &current).unwrap();
        Choice::new(&file("1.0-a"), other, file("1.0-a"), 7).save(dir.path()).unwrap();
        std::fs::remove_file(&current).unwrap();
        std::os::unix::fs::symlink("1.1-b", &current).unwrap();
        let choice = Choice::in_force(dir.path(), &file("1.1-b")).expect("the configuration is the same");
        assert_eq!(choice.before.canonicalize().unwrap(), file("1.1-b"));
        // A daemon of the release before, which runs on, means its own file by that.
        assert_eq!(of_own_release(&choice.before, &file("1.0-a")), file("1.0-a"));
        assert_eq!(of_own_release(&choice.path, &file("1.0-a")), choice.path, "a file of nobody's release");
        let gone = root.join("current/share/chimere/gone.gguf");
        assert_eq!(of_own_release(&gone, &file("1.0-a")), gone);
    }
}
