//! One flush at a time, for everyone who waits for one. sled's own `flush_async` waits on the threads that have to
//! write. A few of them at once leave no thread to write with, and all wait for ever. Here a thread of our own
//! flushes, and all requests that come meanwhile share the next flush.

use std::io;
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use sled::Db;
use tokio::sync::{mpsc, oneshot};

use super::StoreError;

/// Askers waiting at once; more wait for a place.
const ASKS_MAX: usize = 4_096;

type Answer = oneshot::Sender<Result<(), String>>;

pub(super) struct Flusher {
    asks: mpsc::Sender<Answer>,
}

impl Flusher {
    /// The thread ends with the flusher, and holds the database only while it flushes.
    pub(super) fn start(db: &Arc<Db>) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let db = Arc::downgrade(db);
        std::thread::Builder::new().name("turns-flush".to_owned()).spawn(move || serve(&db, asked))?;
        Ok(Flusher { asks })
    }

    /// Resolves when everything written before the call is flushed.
    pub(super) fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let asks = self.asks.clone();
        Box::pin(async move {
            let gone = || StoreError::Disk("the flushing thread ended".to_owned());
            let (answer, flushed) = oneshot::channel();
            asks.send(answer).await.map_err(|_| gone())?;
            flushed.await.map_err(|_| gone())?.map_err(StoreError::Disk)
        })
    }
}

fn serve(db: &Weak<Db>, mut asked: mpsc::Receiver<Answer>) {
    let mut waiting = Vec::new();
    while asked.blocking_recv_many(&mut waiting, ASKS_MAX) > 0 {
        let Some(db) = db.upgrade() else { return };
        let flushed = db.flush().map(drop).map_err(|error| match error {
            sled::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        });
        drop(db);
        for answer in waiting.drain(..) {
            // Whoever stopped waiting needs no answer.
            let _ = answer.send(flushed.clone());
        }
    }
}
