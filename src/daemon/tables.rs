//! Engram tables of the daemon: which may be served, at the start and whenever their folder changes.

use std::path::PathBuf;
use std::sync::Arc;

use super::Daemon;
use crate::config::Config;
use crate::embed::{Embedder, Examples};
use crate::engram::shelf::{DIR, Shelf};
use crate::meters;

/// Folder of the installation's own tables.
pub(super) fn own_folder(config: &Config) -> PathBuf {
    config.state_dir.join(DIR)
}

/// Folder of the tables that came with the model.
pub(super) fn shipped_folder(config: &Config) -> Option<PathBuf> {
    Some(config.model.as_ref().ok()?.parent()?.join(DIR))
}

/// The own tables, and the ones that came with the model.
pub fn look(config: &Config) -> Shelf {
    Shelf::of_installation(&config.state_dir, shipped_folder(config).as_deref())
}

/// As [`look`]; what is refused is logged.
pub(super) fn scan(config: &Config) -> Shelf {
    let shelf = look(config);
    for refused in &shelf.refused {
        tracing::error!(path = %refused.path.display(), message = refused.message, "engram table refused");
    }
    shelf
}

/// The index of the last run, for an embedding model.
pub(super) fn examples(config: &Config, embedder: Result<Arc<Embedder>, String>) -> Examples {
    let examples = Examples::open(embedder, &config.state_dir);
    if let Some(why) = examples.why() {
        tracing::warn!(why, "no verified exchange is shown as an example");
    }
    examples
}

impl Daemon {
    /// Reads the shelf again; the engine is told of what changed.
    pub(super) async fn reload_tables(self: &Arc<Self>) {
        let daemon = Arc::clone(self);
        let scanned = tokio::task::spawn_blocking(move || scan(&daemon.config.get())).await;
        meters::reloaded("engram", scanned.as_ref().is_ok_and(|shelf| shelf.refused.is_empty()));
        let Ok(shelf) = scanned else { return };
        tracing::info!(tables = shelf.tables.len(), refused = shelf.refused.len(), "engram tables reloaded");
        self.board.set_shelf(shelf);
    }
}
