//! Tells when files of some folders change. The folders are watched, not the files, so that a rename over a file is
//! seen. Changes within a moment come as one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode};
use notify_debouncer_full::{DebounceEventResult, Debouncer, RecommendedCache, new_debouncer};
use tokio::sync::watch;

const DEBOUNCE_MS: u64 = 200;

/// Watches until it is dropped.
pub struct Watch {
    _debouncer: Debouncer<RecommendedWatcher, RecommendedCache>,
}

impl Watch {
    /// Counts changes of files with one of these names' extensions in `folders`; a folder that does not exist
    /// is passed over.
    pub fn start(folders: &[PathBuf], extension: &'static str) -> notify::Result<(Watch, watch::Receiver<u64>)> {
        let (changes, seen) = watch::channel(0u64);
        let ours = move |path: &Path| path.extension().is_some_and(|e| e == extension);
        let handler = move |result: DebounceEventResult| {
            let changed = match result {
                Ok(events) => events.iter().any(|e| !e.kind.is_access() && e.paths.iter().any(|path| ours(path))),
                // The queue of the kernel overflowed or the like: something may have changed.
                Err(_) => true,
            };
            if changed {
                changes.send_modify(|count| *count += 1);
            }
        };
        let mut debouncer = new_debouncer(Duration::from_millis(DEBOUNCE_MS), None, handler)?;
        for folder in folders.iter().filter(|folder| folder.is_dir()) {
            debouncer.watch(folder, RecursiveMode::NonRecursive)?;
        }
        Ok((Watch { _debouncer: debouncer }, seen))
    }
}
