//! Listings of the turn log, piece by piece. Those of clients are read at a low priority and end when the client leaves,
//! so that no crowd of them holds up a night or a reply.

use std::sync::Arc;

use actix::prelude::*;
use chimere_ffi::limits::lower_priority;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Held, List, ListFor, Memory, MemoryError, Survey, blocking, done, tell, within};
use crate::service::TurnFilter;
use crate::store::{StoreError, TurnStore, rest_of_list};
use crate::turn::Turn;

/// As `blocking`, of what may wait: on a thread of low priority, so that it takes no processor from a night or a reply.
async fn modestly<T: Send + 'static>(
    log: Arc<Held>,
    work: impl FnOnce(&dyn TurnStore) -> Result<T, StoreError> + Send + 'static,
) -> Result<(Arc<Held>, T), StoreError> {
    let (to, heard) = oneshot::channel();
    let job = move || {
        // At the usual priority it is done as well.
        let _ = lower_priority();
        drop(to.send(done(log, work)));
    };
    let begun = std::thread::Builder::new().name("turns-list".to_owned()).spawn(job);
    begun.map_err(|error| StoreError::Disk(error.to_string()))?;
    within(async { heard.await.unwrap_or_else(|_| Err(StoreError::Broken("a listing panicked".to_owned()))) }).await
}

/// For whom a listing is read.
enum Reader {
    /// The daemon itself.
    Own,
    /// A client, until it leaves.
    Client(CancellationToken),
}

/// Reads a listing piece by piece, each a job of its own, so that listings take turns.
async fn pieces(
    (log, me): (Result<Arc<Held>, String>, Addr<Memory>),
    lists: Arc<Semaphore>,
    filter: TurnFilter,
    reader: Reader,
    mut take: impl FnMut(Turn),
) -> Result<(), MemoryError> {
    let left = async || match &reader {
        Reader::Own => std::future::pending().await,
        Reader::Client(wanted) => wanted.cancelled().await,
    };
    let mut log = log.map_err(MemoryError::Stopped)?;
    let mut rest = Some(filter);
    while let Some(filter) = rest {
        let _place = tokio::select! {
            place = lists.acquire() => place,
            () = left() => return Ok(()),
        };
        let (asked, read) = (filter.clone(), move |log: &dyn TurnStore| log.list_piece(&filter));
        let read = match &reader {
            Reader::Own => blocking(log, read).await,
            Reader::Client(_) => modestly(log, read).await,
        };
        let (same, piece) = tell(&me, read)?;
        (log, rest) = (same, rest_of_list(asked, &piece));
        piece.value.into_iter().for_each(&mut take);
    }
    Ok(())
}

impl Memory {
    fn list(
        &self,
        context: &Context<Self>,
        lists: &Arc<Semaphore>,
        filter: TurnFilter,
        reader: Reader,
    ) -> ResponseFuture<Result<Vec<Turn>, MemoryError>> {
        let (from, lists) = ((self.log.clone(), context.address()), lists.clone());
        Box::pin(async move {
            let mut turns = Vec::new();
            pieces(from, lists, filter, reader, |turn| turns.push(turn)).await?;
            Ok(turns)
        })
    }
}

impl Handler<List> for Memory {
    type Result = ResponseFuture<Result<Vec<Turn>, MemoryError>>;

    fn handle(&mut self, List(filter): List, context: &mut Self::Context) -> Self::Result {
        self.list(context, &self.own_lists, filter, Reader::Own)
    }
}

impl Handler<ListFor> for Memory {
    type Result = ResponseFuture<Result<Vec<Turn>, MemoryError>>;

    fn handle(&mut self, ListFor(filter, wanted): ListFor, context: &mut Self::Context) -> Self::Result {
        self.list(context, &self.lists, filter, Reader::Client(wanted))
    }
}

impl<T: Send + 'static> Handler<Survey<T>> for Memory {
    type Result = ResponseFuture<Result<T, MemoryError>>;

    fn handle(&mut self, survey: Survey<T>, context: &mut Self::Context) -> Self::Result {
        let (from, lists) = ((self.log.clone(), context.address()), self.own_lists.clone());
        let Survey { filter, mut seen, take } = survey;
        Box::pin(async move {
            pieces(from, lists, filter, Reader::Own, |turn| take(&mut seen, turn)).await?;
            Ok(seen)
        })
    }
}
