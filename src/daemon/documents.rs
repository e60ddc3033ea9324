//! Documents as the server asks for them: who may see and change which, files read away from the runtime's threads, vectors
//! by the embedding model. What is added or removed is done to its end, also when the client has left.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::Daemon;
use super::lessons::to_the_end;
use crate::documents::{
    Added, Collection, CollectionId, Document, DocumentError, DocumentId, Documents, Draft, EVERYBODY, ReadError,
    Vectors,
};
use crate::embed::Embedder;
use crate::embed::embedder::{Purpose, Terms};
use crate::engine::protocol::EmbedInput;
use crate::meters;
use crate::service::{
    DocumentAnswer, DocumentCommand, ListedCollection, NewDocument, OWNER, Principal, Scope, ServiceError, Shelved,
};
use crate::store::new_turn_id;

/// Files that are read at once; more wait for so long.
const READ_AT_ONCE: usize = 2;
const READ_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for the vectors of so many passages.
const VECTORS_TIMEOUT: Duration = Duration::from_secs(300);
const VECTORS_AT_ONCE: usize = 64;
/// Pause between two looks for passages without vectors.
const PAUSE: Duration = Duration::from_secs(5);

/// A permit for each file that is read.
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    /// Waits for one of the places.
    pub(super) async fn acquire(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.0.clone().acquire_owned().await
    }
}

impl Default for Places {
    fn default() -> Self {
        Places(Arc::new(Semaphore::new(READ_AT_ONCE)))
    }
}

fn told(error: DocumentError) -> ServiceError {
    error.into()
}

fn lost(error: impl ToString) -> ServiceError {
    ServiceError::Internal(error.to_string())
}

/// Work on the documents, away from the runtime's threads.
async fn on<T: Send + 'static>(
    daemon: &Daemon,
    work: impl FnOnce(&Documents) -> Result<T, DocumentError> + Send + 'static,
) -> Result<T, ServiceError> {
    let documents = daemon.replies.documents.clone();
    spawn_blocking(move || work(&documents)).await.map_err(lost)?.map_err(told)
}

fn count(documents: &Documents) {
    let (all, passages) = documents.counts();
    meters::documents(all, passages);
}

pub(super) async fn command(
    daemon: &Daemon,
    principal: Principal,
    command: DocumentCommand,
) -> Result<DocumentAnswer, ServiceError> {
    let documents = &daemon.replies.documents;
    let admin = principal.may(Scope::Admin);
    // None would be told of those that there are.
    documents.usable().map_err(told)?;
    match command {
        DocumentCommand::Add(new) => {
            daemon.folders.refuse(&principal.name, new.collection.as_deref(), "put the file there")?;
            to_the_end(daemon, |daemon| async move { add(&daemon, principal, new).await }).await
        }
        DocumentCommand::List { collection, principal: of, after, limit } => {
            let sees = |(_, c): &Shelved| match &of {
                Some(of) => c.principal == *of,
                None => admin || c.read_by(&principal.name),
            };
            let named = |(_, c): &Shelved| collection.as_ref().is_none_or(|name| c.name == *name || c.id.0 == *name);
            let behind = |(d, _): &Shelved| after.as_ref().is_none_or(|after| d.id > *after);
            let found = documents.list().into_iter().filter(sees).filter(named).filter(behind);
            Ok(DocumentAnswer::List(found.take(limit).collect()))
        }
        DocumentCommand::Show { id, from, limit } => {
            let document = find(documents, &id, |shelved| admin || shelved.1.read_by(&principal.name))?;
            let texts = on(daemon, move |documents| documents.texts(&id, from..from.saturating_add(limit))).await?;
            Ok(DocumentAnswer::Shown { document, from, texts })
        }
        DocumentCommand::Remove(id) => {
            let mine = |shelved: &Shelved| admin || shelved.1.principal == principal.name;
            // A damaged file is nobody's that is known: the owner removes it.
            if !admin || documents.get(&id).is_some() {
                let (_, collection) = find(documents, &id, mine)?;
                daemon.folders.refuse(&collection.principal, Some(&collection.name), "remove the file there")?;
            }
            let gone = move |daemon: Arc<Daemon>| async move { remove(&daemon, id).await };
            to_the_end(daemon, gone).await
        }
        DocumentCommand::Search { query, collections, k } => search(daemon, principal, query, collections, k).await,
        DocumentCommand::Collections => {
            let of = (!admin).then_some(principal.name.as_str());
            let listed = |(collection, documents, passages): (Arc<Collection>, usize, usize)| {
                let folder = daemon.folders.state(&collection);
                ListedCollection { collection, documents, passages, folder }
            };
            Ok(DocumentAnswer::Collections(documents.collections(of).into_iter().map(listed).collect()))
        }
        DocumentCommand::Share { name, readers } => {
            if !admin && !readers.is_empty() {
                let message = "only the owner shares a collection: ask whoever holds the scope `admin`".to_owned();
                return Err(ServiceError::Invalid { message, param: Some("readers".to_owned()) });
            }
            let ring = daemon.keys.borrow().clone();
            let is_known = |reader: &String| {
                reader == EVERYBODY || reader == OWNER || ring.entries().iter().any(|key| key.name == *reader)
            };
            if let Some(unknown) = readers.iter().find(|reader| !is_known(reader)) {
                let shown: String = unknown.chars().take(80).collect();
                let message =
                    format!("there is no key `{shown}`: `chimere keys add` makes one, `chimere keys list` names them");
                return Err(ServiceError::Invalid { message, param: Some("readers".to_owned()) });
            }
            let now_ms = daemon.clock.now_ms();
            let all = documents.collections(None);
            // The owner of the house shares anybody's, by its id.
            let by_id = all.iter().find(|(collection, ..)| admin && collection.id.0 == name);
            let (of, name) = by_id.map_or((principal.name, name), |(c, ..)| (c.principal.clone(), c.name.clone()));
            let read = |c: &Collection| c.principal == of && c.name == name && !c.readers.is_empty();
            let was_read = all.iter().any(|(collection, ..)| read(collection));
            let share =
                move |documents: &Documents| documents.share(&of, &name, readers, new_collection(now_ms), now_ms);
            let collection = on(daemon, share).await?;
            if was_read {
                forget_shown(daemon, None).await;
            }
            Ok(DocumentAnswer::Collection { collection })
        }
        DocumentCommand::RemoveCollection(name) => {
            let all = documents.collections(None);
            let own = |c: &Collection| {
                c.principal == principal.name && c.name == name
                    || c.id.0 == name && (admin || c.principal == principal.name)
            };
            let found = all.into_iter().find(|(collection, _, _)| own(collection));
            let none = || told(DocumentError::NoCollection(name.chars().take(80).collect()));
            let collection = found.ok_or_else(none)?.0;
            let instead = "take the folder out of `documents.folders` first";
            daemon.folders.refuse(&collection.principal, Some(&collection.name), instead)?;
            let id = collection.id.clone();
            to_the_end(daemon, |daemon| async move { remove_collection(&daemon, id).await }).await
        }
    }
}

/// What is wrong with the documents, for whoever may know it. Whose a damaged file is nobody can say.
pub(super) fn damage(documents: &Documents, principal: &Principal) -> Option<String> {
    let told = documents.damage()?;
    let others =
        "a document of this daemon is damaged and not in use, and it may be yours: ask the owner, or add it again";
    Some(if principal.may(Scope::Admin) { told } else { others.to_owned() })
}

fn new_collection(now_ms: i64) -> CollectionId {
    CollectionId(new_turn_id(now_ms).0.replacen("turn-", "collection-", 1))
}

fn find(documents: &Documents, id: &DocumentId, may: impl Fn(&Shelved) -> bool) -> Result<Shelved, ServiceError> {
    // Somebody else's document is not there, as far as this principal may know.
    let unknown = || told(DocumentError::Unknown(id.0.chars().take(80).collect()));
    documents.get(id).filter(may).ok_or_else(unknown)
}

async fn add(daemon: &Daemon, principal: Principal, new: NewDocument) -> Result<DocumentAnswer, ServiceError> {
    let place = tokio::time::timeout(READ_WAIT, daemon.reading.acquire()).await;
    let busy = |_| ServiceError::Busy { message: "other files are read first".to_owned(), retry_after_s: 5 };
    let _place = place.map_err(busy)?.map_err(lost)?;
    let by_owner = principal.may(Scope::Admin);
    let read = move || {
        let program = crate::program::own().map_err(|error| ReadError::NoReader(error.to_string()))?;
        let draft = Draft::read(&new.name, new.media_type.as_deref(), &new.bytes, &program)?;
        let title = new.title.filter(|title| !title.trim().is_empty()).unwrap_or_else(|| draft.title.clone());
        Ok(Draft { principal: principal.name, by_owner, collection: new.collection, title, ..draft })
    };
    let kept = keep(daemon, spawn_blocking(read).await.map_err(lost)?.map_err(told)?).await?;
    let document = (kept.document, kept.collection);
    Ok(DocumentAnswer::Added { document, replaced: kept.replaced, unchanged: kept.unchanged })
}

/// Keeps what was read.
pub(super) async fn keep(daemon: &Daemon, mut draft: Draft) -> Result<Added, ServiceError> {
    // A table makes them at once; an engine's come later.
    if let Some(embedder) = daemon.replies.examples.embedder().ok().filter(|embedder| embedder.is_table()) {
        draft.vectors = Some(vectors(embedder, draft.passages()).await.map_err(lost)?);
    }
    let now_ms = daemon.clock.now_ms();
    let id = DocumentId(new_turn_id(now_ms).0.replacen("turn-", "document-", 1));
    let kept = on(daemon, move |documents| {
        let kept = documents.add(draft, id, new_collection(now_ms), now_ms);
        count(documents);
        kept
    });
    let kept = kept.await?;
    if kept.replaced.is_some() {
        forget_shown(daemon, Some(&kept.collection)).await;
    }
    Ok(kept)
}

/// Makes a collection where there is none of this name.
pub(super) async fn begin(daemon: &Daemon, principal: &str, name: &str) -> Result<(), ServiceError> {
    let is_there = |c: &Collection| c.principal == principal && c.name == name;
    if daemon.replies.documents.collections(None).iter().any(|(collection, ..)| is_there(collection)) {
        return Ok(());
    }
    let (principal, name, now_ms) = (principal.to_owned(), name.to_owned(), daemon.clock.now_ms());
    on(daemon, move |documents| {
        documents.share(&principal, &name, Vec::new(), new_collection(now_ms), now_ms).map(drop)
    })
    .await
}

/// Removes documents of one collection.
pub(super) async fn remove_all(daemon: &Daemon, gone: &[Arc<Document>]) -> Result<(), ServiceError> {
    let ids: Vec<DocumentId> = gone.iter().map(|document| document.id.clone()).collect();
    let collection = ids.first().and_then(|id| daemon.replies.documents.get(id)).map(|(_, collection)| collection);
    let gone = on(daemon, move |documents| {
        let gone = ids.iter().try_for_each(|id| match documents.remove(id) {
            // Somebody else was faster.
            Err(DocumentError::Unknown(_)) => Ok(()),
            gone => gone,
        });
        count(documents);
        gone
    });
    let gone = gone.await;
    forget_shown(daemon, collection.as_deref()).await;
    gone
}

async fn remove(daemon: &Daemon, id: DocumentId) -> Result<DocumentAnswer, ServiceError> {
    let collection = daemon.replies.documents.get(&id).map(|(_, collection)| collection);
    let gone = on(daemon, move |documents| {
        let gone = documents.remove(&id);
        count(documents);
        gone
    });
    let gone = gone.await;
    forget_shown(daemon, collection.as_deref()).await;
    gone?;
    Ok(DocumentAnswer::Removed { documents: 1 })
}

async fn remove_collection(daemon: &Daemon, id: CollectionId) -> Result<DocumentAnswer, ServiceError> {
    let all = daemon.replies.documents.collections(None);
    let collection = all.into_iter().map(|(collection, ..)| collection).find(|collection| collection.id == id);
    let gone = id.clone();
    let documents = on(daemon, move |documents| {
        let removed = documents.remove_collection(&gone);
        count(documents);
        removed
    });
    let documents = documents.await;
    forget_shown(daemon, collection.as_deref()).await;
    Ok(DocumentAnswer::RemovedCollection { id, documents: documents? })
}

/// Forgets the kept prompts that may show passages of a collection: its principal's, or everybody's where others read it.
async fn forget_shown(daemon: &Daemon, collection: Option<&Collection>) {
    let own = collection.filter(|collection| collection.readers.is_empty());
    let of_one = own.map(|collection| collection.principal.clone());
    if let Err(error) = daemon.forget_prefixes(of_one).await {
        tracing::error!(%error, "a document went, and kept prompts that showed it did not");
    }
}

async fn search(
    daemon: &Daemon,
    principal: Principal,
    query: String,
    collections: Option<Vec<String>>,
    k: usize,
) -> Result<DocumentAnswer, ServiceError> {
    let found = daemon.replies.search_documents(principal.name, query, collections, k).await;
    let (passages, no_vectors) = found?;
    Ok(DocumentAnswer::Found { passages, no_vectors })
}

async fn vectors(embedder: &Embedder, passages: Vec<String>) -> Result<Vectors, String> {
    let mut rows = Vec::with_capacity(passages.len());
    let terms = Terms { cut: true, within: VECTORS_TIMEOUT, first: false };
    for some in passages.chunks(VECTORS_AT_ONCE) {
        let texts = some.iter().map(|text| (Purpose::Document, EmbedInput::Text(text.clone()))).collect();
        let made = embedder.embed(texts, terms, ()).await.map_err(|why| why.to_string())?;
        rows.extend(made.into_iter().map(|vector| vector.values));
    }
    Ok(Vectors::new(embedder.fingerprint(), embedder.width(), &rows))
}

/// Makes the words of all collections, then the vectors that are missing, whenever there are some.
pub(super) async fn tend(daemon: Arc<Daemon>) {
    let documents = daemon.replies.documents.clone();
    let preparing = documents.clone();
    if let Err(error) = spawn_blocking(move || preparing.prepare()).await {
        tracing::error!(%error, "the words of the documents");
    }
    count(&documents);
    let Ok(embedder) = daemon.replies.examples.embedder() else { return };
    loop {
        for id in documents.without_vectors(embedder.fingerprint()) {
            if let Err(why) = embed_one(&documents, embedder, &id).await {
                tracing::warn!(id = id.0, why, "a document has no vectors yet: it is found by its words");
                break;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn embed_one(documents: &Arc<Documents>, embedder: &Embedder, id: &DocumentId) -> Result<(), String> {
    embedder.ready(VECTORS_TIMEOUT).await.map_err(|why| why.to_string())?;
    let (from, wanted) = (documents.clone(), id.clone());
    let passages = spawn_blocking(move || from.passages(&wanted)).await.map_err(|error| error.to_string())?;
    // One that went meanwhile needs none.
    let Ok(passages) = passages else { return Ok(()) };
    let made = vectors(embedder, passages).await?;
    let (to, id) = (documents.clone(), id.clone());
    let kept = spawn_blocking(move || to.set_vectors(&id, made)).await.map_err(|error| error.to_string())?;
    kept.map_err(|error| error.to_string())
}
