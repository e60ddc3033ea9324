//! Engram tables of the daemon: which may be served, at the start and whenever their folder changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Daemon;
use crate::actors::inference::TablesChanged;
use crate::config::Config;
use crate::engram::shelf::{DIR, Shelf};
use crate::meters;
use crate::night::manifest::{KEY_FILE, Seal};

/// Folder of the installation's own tables.
pub(super) fn own_folder(config: &Config) -> PathBuf {
    config.state_dir.join(DIR)
}

/// Reads the shelf: the own tables, and the ones that came with the model.
pub(super) fn scan(config: &Config) -> Shelf {
    let signatures = match Seal::open(&config.state_dir.join(KEY_FILE)) {
        Ok(signatures) => Some(signatures),
        Err(error) => {
            tracing::error!(%error, "no engram table of this installation is served");
            None
        }
    };
    let shipped = config.model.as_ref().ok().and_then(|model| model.parent()).map(|folder: &Path| folder.join(DIR));
    let shelf = Shelf::scan(shipped.as_deref(), &own_folder(config), signatures.as_ref());
    for refused in &shelf.refused {
        tracing::error!(path = %refused.path.display(), message = refused.message, "engram table refused");
    }
    shelf
}

impl Daemon {
    /// Reads the shelf again and tells the engine what changed.
    pub(super) async fn reload_tables(self: &Arc<Self>) {
        let daemon = Arc::clone(self);
        let scanned = tokio::task::spawn_blocking(move || scan(&daemon.config.get())).await;
        meters::reloaded("engram", scanned.as_ref().is_ok_and(|shelf| shelf.refused.is_empty()));
        let Ok(shelf) = scanned else { return };
        tracing::info!(tables = shelf.tables.len(), refused = shelf.refused.len(), "engram tables reloaded");
        self.board.set_shelf(shelf);
        if let Err(error) = self.cast.inference.send(TablesChanged).await {
            // An engine that starts again reads the shelf by itself.
            tracing::warn!(%error, "the engine was not told of changed engram tables");
        }
    }
}
