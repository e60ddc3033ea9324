//! Which files `chimere documents add` takes: of a folder those of a known kind, without what is hidden and without what
//! programs made there. What is passed over is counted, and `--all` takes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chimere::documents::folder::is_made;
use chimere::documents::read;
use chimere::plural::counted;

use crate::cli::exit::{EX_DATAERR, EX_NOINPUT, coded};

/// Files of folders that one command adds, and how deep it goes.
const FILES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 32;
/// Names of passed-over folders that are said.
const NAMES_SHOWN: usize = 5;

/// What lies under the paths of a command.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Each with the name that its document gets.
    pub(super) files: Vec<(PathBuf, String)>,
    /// Hidden files and folders, folders that programs made with their names, and files of no known kind.
    hidden: usize,
    made: usize,
    names: BTreeSet<String>,
    unknown: usize,
}

impl Found {
    /// The files under a path. Links of a folder are passed over. `all`: nothing but that and files of no known kind.
    pub(super) fn add(&mut self, path: &Path, all: bool) -> anyhow::Result<()> {
        let missing = |error| coded(EX_NOINPUT, format!("cannot read {}: {error}", path.display()));
        if fs::metadata(path).map_err(missing)?.is_dir() {
            return self.walk(path, path, all, 0);
        }
        let own = path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        self.files.push((path.to_owned(), own));
        Ok(())
    }

    fn walk(&mut self, root: &Path, folder: &Path, all: bool, depth: usize) -> anyhow::Result<()> {
        let context = || format!("cannot read {}", folder.display());
        let mut entries: Vec<_> =
            fs::read_dir(folder).with_context(context)?.collect::<Result<_, _>>().with_context(context)?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type().with_context(context)?);
            let own = entry.file_name().to_string_lossy().into_owned();
            if kind.is_symlink() {
                continue;
            }
            if own.starts_with('.') && !all {
                self.hidden += 1;
            } else if kind.is_dir() && !all && is_made(folder, &path, &own) {
                self.made += 1;
                self.names.insert(own);
            } else if kind.is_dir() && depth < DEPTH_MAX {
                self.walk(root, &path, all, depth + 1)?;
            } else if kind.is_file() {
                self.take(root, path)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, root: &Path, path: PathBuf) -> anyhow::Result<()> {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if read::kind(&name, None).is_err() {
            self.unknown += 1;
            return Ok(());
        }
        if self.files.len() == FILES_MAX {
            return Err(coded(EX_DATAERR, format!("more than {FILES_MAX} files: add the folders one by one")));
        }
        self.files.push((path, name));
        Ok(())
    }

    /// What was passed over, and what takes it; `None`: nothing was.
    pub(super) fn passed_over(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.hidden > 0 {
            parts.push(counted(self.hidden, "hidden file or folder", "hidden files and folders"));
        }
        if self.made > 0 {
            let mut names: Vec<&str> = self.names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
            names.extend((self.names.len() > NAMES_SHOWN).then_some("…"));
            let folders = counted(self.made, "folder that a program made", "folders that programs made");
            parts.push(format!("{folders} ({})", names.join(", ")));
        }
        let help = if parts.is_empty() { "" } else { "; --all takes what is hidden or made by programs" };
        if self.unknown > 0 {
            parts.push(counted(self.unknown, "file of no known kind", "files of no known kind"));
        }
        (!parts.is_empty()).then(|| format!("Passed over: {}{help}.", parts.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_made_and_what_is_hidden_is_passed_over_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let names = [
            "notes.md",
            "target/notes.md",
            "photo.xyz",
            ".git/HEAD.txt",
            "web/node_modules/a/README.md",
            "env/pyvenv.cfg",
            "env/lib/a.py",
            "rust/Cargo.toml",
            "rust/target/a.md",
            "rust/src/main.rs",
            ".hidden.md",
        ];
        for name in names {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), "text").unwrap();
        }
        let found = |all| {
            let mut found = Found::default();
            found.add(dir.path(), all).unwrap();
            found
        };
        let some = found(false);
        let taken: Vec<_> = some.files.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(taken, ["notes.md", "rust/Cargo.toml", "rust/src/main.rs", "target/notes.md"]);
        assert_eq!(
            some.passed_over().unwrap(),
            "Passed over: 2 hidden files and folders, 3 folders that programs made (env, node_modules, target), 1 file of no \
             known kind; --all takes what is hidden or made by programs."
        );
        let all = found(true);
        assert!(all.files.iter().any(|(_, name)| name == "rust/target/a.md"));
        assert!(all.files.iter().any(|(_, name)| name == ".git/HEAD.txt"), "{all:?}");
        // A folder that was named is meant.
        let mut named = Found::default();
        named.add(&dir.path().join("rust/target"), false).unwrap();
        assert_eq!((named.files.len(), named.passed_over()), (1, None));
    }
}
