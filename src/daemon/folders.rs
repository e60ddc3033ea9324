//! Folders whose files are documents. Each is looked through at the start, when something in it changes, and now and then. What
//! is new is read, what changed is read anew, and what is gone is removed, all as if somebody had said so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use notify::event::EventKind;
use notify::{RecommendedWatcher, RecursiveMode};
use notify_debouncer_full::{DebounceEventResult, Debouncer, NoCache, new_debouncer_opt};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Daemon, documents};
use crate::config::WatchedFolder;
use crate::documents::folder::{Sight, Stamp, bytes, look};
use crate::documents::{Collection, DEFAULT_COLLECTION, Document, DocumentError, Draft, ReadError};
use crate::plural::counted;
use crate::service::{FolderState, ServiceError};
use crate::store::files::why_not;

/// Changes within this time are seen as one.
const DEBOUNCE: Duration = Duration::from_millis(300);
/// A file rests for so long before it is read.
const REST: Duration = Duration::from_secs(1);
/// Pauses between two looks: while a file rests or something changed, where nothing tells of changes or a look failed, and
/// where all is well.
const SOON: Duration = REST;
const OFTEN: Duration = Duration::from_secs(3);
const SELDOM: Duration = Duration::from_secs(60);
/// Files left out that are told.
const TOLD_MAX: usize = 100;

/// The folders of the configuration.
pub(super) struct Folders {
    all: Vec<Folder>,
    /// One file of all folders is read at a time: people's own come in between.
    one: Semaphore,
}

struct Folder {
    told: WatchedFolder,
    state: Mutex<FolderState>,
}

/// The files that were dealt with: in which state, and why one is no document.
type Handled = BTreeMap<String, (Stamp, Option<String>)>;

/// How a look ended, and so when the next one is due.
enum Look {
    Settled,
    /// Something changed, or is still being written.
    Moving,
    Failed(String),
    /// There is no room, say: the next look will not find more at once.
    Stopped(String),
}

impl Folders {
    pub(super) fn new(folders: &[WatchedFolder]) -> Folders {
        let one = |told: &WatchedFolder| {
            let state = FolderState { path: told.path.clone(), state: "reading", ..FolderState::default() };
            Folder { told: told.clone(), state: Mutex::new(state) }
        };
        Folders { all: folders.iter().map(one).collect(), one: Semaphore::new(1) }
    }

    /// The folder whose files a collection has.
    fn of(&self, principal: &str, collection: &str) -> Option<&Folder> {
        self.all.iter().find(|f| f.told.principal == principal && f.told.collection == collection)
    }

    pub(super) fn state(&self, collection: &Collection) -> Option<FolderState> {
        let folder = self.of(&collection.principal, &collection.name)?;
        Some(folder.state.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Refuses what would be undone at the next look.
    pub(super) fn refuse(&self, principal: &str, collection: Option<&str>, instead: &str) -> Result<(), ServiceError> {
        let name = collection.unwrap_or(DEFAULT_COLLECTION);
        let Some(folder) = self.of(principal, name) else { return Ok(()) };
        let path = folder.told.path.display();
        Err(ServiceError::Conflict(format!("the collection `{name}` has the files of the folder {path}: {instead}")))
    }
}

impl Folder {
    fn set(&self, change: impl FnOnce(&mut FolderState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What the collection has, by name.
    fn documents(&self, daemon: &Daemon) -> BTreeMap<String, Arc<Document>> {
        let own = |c: &Collection| c.principal == self.told.principal && c.name == self.told.collection;
        let all = daemon.replies.documents.list().into_iter().filter(|(_, collection)| own(collection));
        all.map(|(document, _)| (document.name.clone(), document)).collect()
    }
}

/// Follows every folder, for as long as the daemon runs.
pub(super) async fn follow(daemon: Arc<Daemon>) {
    join_all(daemon.folders.all.iter().map(|folder| follow_one(&daemon, folder))).await;
}

async fn follow_one(daemon: &Arc<Daemon>, folder: &Folder) {
    // Whoever asks is told of the folder before it has a document.
    if let Err(error) = documents::begin(daemon, &folder.told.principal, &folder.told.collection).await {
        tracing::error!(%error, collection = folder.told.collection, "the collection of a folder is not made");
    }
    let changed = Arc::new(Notify::new());
    let (mut watch, mut handled, mut failed) = (None, Handled::new(), None);
    loop {
        if watch.is_none() {
            watch = start(&folder.told.path, changed.clone());
        }
        let look = look_through(daemon, folder, &mut handled).await;
        let pause = match &look {
            Look::Moving => SOON,
            Look::Settled | Look::Stopped(_) if watch.is_some() => SELDOM,
            Look::Settled | Look::Stopped(_) | Look::Failed(_) => OFTEN,
        };
        // A folder that went may come back as another one.
        if matches!(look, Look::Failed(_)) {
            watch = None;
        }
        let why = match look {
            Look::Failed(why) | Look::Stopped(why) => Some(why),
            Look::Settled | Look::Moving => None,
        };
        if why != failed {
            let (path, collection) = (folder.told.path.display(), &folder.told.collection);
            match &why {
                Some(why) => tracing::warn!(%path, collection, why, "a folder of documents is not followed now"),
                None => tracing::info!(%path, collection, "a folder of documents is followed again"),
            }
        }
        folder.set(|state| {
            state.state = if why.is_some() { "failed" } else { "followed" };
            state.why.clone_from(&why);
        });
        failed = why;
        let _ = timeout(pause, changed.notified()).await;
    }
}

/// Watches a folder and those within it; `None`: it cannot be watched, and is looked through often.
fn start(folder: &Path, changed: Arc<Notify>) -> Option<Debouncer<RecommendedWatcher, NoCache>> {
    let told = move |result: DebounceEventResult| {
        // After an error something may have changed too. Our own reading is no change.
        let is_change = |events: Vec<notify_debouncer_full::DebouncedEvent>| {
            events.iter().any(|event| !matches!(event.kind, EventKind::Access(_)))
        };
        if result.map_or(true, is_change) {
            changed.notify_one();
        }
    };
    let options = notify::Config::default().with_follow_symlinks(false);
    let watch = || -> notify::Result<_> {
        let mut watch = new_debouncer_opt::<_, RecommendedWatcher, _>(DEBOUNCE, None, told, NoCache, options)?;
        watch.watch(folder, RecursiveMode::Recursive)?;
        Ok(watch)
    };
    watch().inspect_err(|error| tracing::debug!(%error, folder = %folder.display(), "not watched")).ok()
}

/// Makes the collection what the folder is.
async fn look_through(daemon: &Arc<Daemon>, folder: &Folder, handled: &mut Handled) -> Look {
    let (path, state_dir) = (folder.told.path.clone(), daemon.config.get().state_dir.clone());
    let seen = spawn_blocking(move || see(&path, &state_dir)).await;
    let (root, sight) = match seen.map_err(|error| error.to_string()) {
        Ok(Ok(seen)) => seen,
        Ok(Err(why)) | Err(why) => return Look::Failed(why),
    };
    let known = folder.documents(daemon);
    // What lies in a folder that cannot be read just now may be there still.
    let unseen = |name: &str| sight.left_out.keys().any(|out| out.ends_with('/') && name.starts_with(out));
    let mut gone: Vec<Arc<Document>> = known
        .iter()
        .filter(|(name, _)| !sight.files.contains_key(*name) && !unseen(name))
        .map(|(_, document)| document.clone())
        .collect();
    handled.retain(|name, _| sight.files.contains_key(name));
    let is_done = |name: &String, stamp: &Stamp| {
        let of = handled.get(name).filter(|(of, _)| of == stamp);
        of.is_some_and(|(_, why)| why.is_some() || known.contains_key(name))
    };
    let todo: Vec<(String, Stamp)> =
        sight.files.iter().filter(|(name, stamp)| !is_done(name, stamp)).map(|(n, s)| (n.clone(), *s)).collect();
    let (mut moving, mut stopped) = (!gone.is_empty(), None);
    // Words that are gone from the folder go before others come.
    remove(daemon, &std::mem::take(&mut gone)).await;
    for (at, (name, stamp)) in todo.iter().enumerate() {
        tell(folder, &sight, handled, todo.len() - at);
        moving = true;
        if stamp.is_fresh(SystemTime::now(), REST) {
            continue;
        }
        match take(daemon, folder, &root, name, known.get(name)).await {
            Ok(stamp) => drop(handled.insert(name.clone(), (stamp, None))),
            Err(Refused::File(why)) => {
                gone.extend(known.get(name).cloned());
                handled.insert(name.clone(), (*stamp, Some(why)));
            }
            Err(Refused::All(why)) => {
                stopped = Some(why);
                break;
            }
        }
    }
    remove(daemon, &gone).await;
    tell(folder, &sight, handled, 0);
    match stopped {
        Some(why) => Look::Stopped(why),
        None if moving => Look::Moving,
        None => Look::Settled,
    }
}

/// What lies in the folder, and where it is without links.
fn see(path: &Path, state_dir: &Path) -> Result<(PathBuf, Sight), String> {
    let why = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => why_not(path).unwrap_or_else(|| "there is no such folder".to_owned()),
        std::io::ErrorKind::PermissionDenied => "the daemon's user may not read it".to_owned(),
        _ => error.to_string(),
    };
    let root = path.canonicalize().map_err(why)?;
    let state_dir = state_dir.canonicalize().map_err(why)?;
    if root.starts_with(&state_dir) || state_dir.starts_with(&root) {
        return Err("it holds the daemon's own state, or lies in it".to_owned());
    }
    let sight = look(&root).map_err(why)?;
    Ok((root, sight))
}

fn tell(folder: &Folder, sight: &Sight, handled: &Handled, waiting: usize) {
    let unread = handled.iter().filter_map(|(name, (_, why))| Some((name.clone(), why.clone()?)));
    let out: BTreeMap<String, String> = sight.left_out.clone().into_iter().chain(unread).collect();
    folder.set(|state| {
        (state.files, state.waiting, state.others) = (sight.files.len(), waiting, sight.others);
        state.left_out_count = out.len();
        state.left_out = out.into_iter().take(TOLD_MAX).collect();
    });
}

/// Why a file is not taken.
enum Refused {
    /// It is no document, until it changes.
    File(String),
    /// Neither is any other, for now.
    All(String),
}

/// Reads one file and keeps it as a document.
async fn take(
    daemon: &Arc<Daemon>,
    folder: &Folder,
    root: &Path,
    name: &str,
    known: Option<&Arc<Document>>,
) -> Result<Stamp, Refused> {
    let all = |why: &dyn std::fmt::Display| Refused::All(why.to_string());
    let _one = daemon.folders.one.acquire().await.map_err(|error| all(&error))?;
    let _place = daemon.reading.acquire().await.map_err(|error| all(&error))?;
    let (path, of, bytes_max) = (root.to_owned(), name.to_owned(), daemon.config.get().file_bytes_max as u64);
    let before = known.map(|document| document.sha256.clone());
    let told = folder.told.clone();
    let read = move || {
        let (bytes, stamp) = bytes(&path, &of, bytes_max).map_err(|error| Refused::File(error.to_string()))?;
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if before.is_some_and(|before| before == digest) {
            return Ok((None, stamp));
        }
        let program = crate::program::own().map_err(|error| Refused::All(error.to_string()))?;
        let draft = Draft::read(&of, None, &bytes, &program).map_err(|error| match error {
            DocumentError::Unreadable(ReadError::NoReader(why)) => Refused::All(why),
            error => Refused::File(error.to_string()),
        })?;
        let (principal, collection) = (told.principal, Some(told.collection));
        Ok((Some(Draft { principal, by_owner: true, collection, ..draft }), stamp))
    };
    let (draft, stamp) = spawn_blocking(read).await.map_err(|error| all(&error))??;
    if let Some(draft) = draft {
        documents::keep(daemon, draft).await.map_err(|error| all(&error))?;
        tracing::info!(name, collection = folder.told.collection, "a file of a folder is a document");
    }
    Ok(stamp)
}

/// Removes documents, and the kept prompts that may show them.
async fn remove(daemon: &Arc<Daemon>, gone: &[Arc<Document>]) {
    if gone.is_empty() {
        return;
    }
    if let Err(error) = documents::remove_all(daemon, gone).await {
        tracing::error!(%error, "documents whose files are gone stay: they are removed at the next look");
    } else {
        tracing::info!("{} whose files are gone are removed", counted(gone.len(), "document", "documents"));
    }
}
