//! Listings of the turn log, piece by piece. Those of clients are read, and written as JSON, on a thread of their own, one
//! piece at a time. Where others want the processor it rests after each piece. A listing ends when its client leaves. So
//! no crowd of them holds up a night or a reply.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use actix::prelude::*;
use chimere_ffi::limits::lower_priority;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Held, List, ListFor, Memory, MemoryError, Survey, blocking, done, tell, within};
use crate::service::{Listed, TurnFilter, TurnText};
use crate::store::{Piece, StoreError, TurnStore, rest_of_list};
use crate::turn::{Turn, TurnId};

/// Others want the processor where the thread waited for it for so large a part of the time that it computed.
const WAITED_PART: u32 = 8;
/// Then it rests so many times as long as it computed: it takes a sixteenth of a core at most.
const REST: u32 = 15;
const REST_MAX: Duration = Duration::from_millis(500);

type Job = Box<dyn FnOnce() + Send>;

/// The thread that reads for clients. It ends with its owner.
#[derive(Clone)]
pub(super) struct Lister(Arc<Mutex<mpsc::Sender<Job>>>);

impl Lister {
    pub(super) fn start() -> Self {
        Lister(Arc::new(Mutex::new(Lister::begin())))
    }

    fn jobs(&self) -> MutexGuard<'_, mpsc::Sender<Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin() -> mpsc::Sender<Job> {
        let (jobs, asked) = mpsc::channel();
        let begun = thread::Builder::new().name("turns-list".to_owned()).spawn(move || serve(&asked));
        if let Err(error) = begun {
            tracing::error!(%error, "no listing of turns can be read: no thread for it");
        }
        jobs
    }

    /// As `blocking`, of what may wait.
    async fn run<T: Send + 'static>(
        &self,
        log: Arc<Held>,
        work: impl FnOnce(&dyn TurnStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<(Arc<Held>, T), StoreError> {
        let (to, heard) = oneshot::channel();
        let job: Job = Box::new(move || drop(to.send(done(log, work))));
        let mut sent = self.jobs().send(job);
        if let Err(mpsc::SendError(job)) = sent {
            // Where no thread was to be had, one may be now.
            let mut jobs = self.jobs();
            *jobs = Lister::begin();
            sent = jobs.send(job);
        }
        sent.map_err(|_| StoreError::Disk("the thread that reads listings is not there".to_owned()))?;
        let broken = |_| Err(StoreError::Broken("a listing panicked".to_owned()));
        let told = within(async { heard.await.unwrap_or_else(broken) }).await;
        if let Err(StoreError::Disk(_)) = &told {
            // A disk may hang for ever, and the thread with it: the next listing has another.
            *self.jobs() = Lister::begin();
        }
        told
    }
}

fn serve(jobs: &mpsc::Receiver<Job>) {
    // At the usual priority it is done as well.
    let _ = lower_priority();
    let mut spent = Spent::of_this_thread();
    for job in jobs {
        let began = Instant::now();
        // Whoever waits is told: the job drops its answer.
        let _ = catch_unwind(AssertUnwindSafe(job));
        let now = Spent::of_this_thread();
        let rested = match (spent, now) {
            (Some(before), Some(now)) => {
                rest(now.computed.saturating_sub(before.computed), now.waited.saturating_sub(before.waited))
            }
            // A system that does not say counts as busy.
            _ => rest(began.elapsed(), began.elapsed()),
        };
        spent = now;
        thread::sleep(rested);
    }
}

/// How long to leave the processor to others after some work.
fn rest(computed: Duration, waited: Duration) -> Duration {
    let alone = waited * WAITED_PART <= computed;
    if alone { Duration::ZERO } else { (computed * REST).min(REST_MAX) }
}

/// What a thread has had of the processor, and how long it was ready and did not have it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spent {
    computed: Duration,
    waited: Duration,
}

impl Spent {
    fn of_this_thread() -> Option<Spent> {
        Spent::read(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    /// Nanoseconds of both, and a count.
    fn read(text: &str) -> Option<Spent> {
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok().map(Duration::from_nanos));
        Some(Spent { computed: numbers.next()??, waited: numbers.next()?? })
    }
}

/// For whom a listing is read.
enum Reader {
    /// The daemon itself.
    Own,
    /// A client, until it leaves or its time is up.
    Client(Lister, CancellationToken, Instant),
}

/// How a piece is read.
type Read<T> = fn(&dyn TurnStore, &TurnFilter) -> Result<Piece<Vec<T>>, StoreError>;

fn whole(log: &dyn TurnStore, filter: &TurnFilter) -> Result<Piece<Vec<Turn>>, StoreError> {
    log.list_piece(filter)
}

fn written(log: &dyn TurnStore, filter: &TurnFilter) -> Result<Piece<Vec<TurnText>>, StoreError> {
    let Piece { value, next } = log.list_piece(filter)?;
    let text =
        |turn: Turn| TurnText::of(&turn).map_err(|error| StoreError::Damaged { id: turn.id.0, why: error.to_string() });
    Ok(Piece { value: value.into_iter().map(text).collect::<Result<_, _>>()?, next })
}

/// Reads a listing piece by piece, each a job of its own, so that listings take turns. The last turn that was looked at,
/// where the time was up before the end.
async fn pieces<T: Send + 'static>(
    (log, me): (Result<Arc<Held>, String>, Addr<Memory>),
    lists: Arc<Semaphore>,
    (filter, reader): (TurnFilter, Reader),
    read: Read<T>,
    mut take: impl FnMut(T),
) -> Result<Option<TurnId>, MemoryError> {
    let left = async || match &reader {
        Reader::Own => std::future::pending().await,
        Reader::Client(_, wanted, _) => wanted.cancelled().await,
    };
    // Every listing reads a piece, so that whoever goes on comes to an end.
    let mut seen = None;
    let late = async |seen: &Option<TurnId>| match &reader {
        // A timer may be late, and there is always a place.
        Reader::Client(_, _, until) if seen.is_some() && Instant::now() >= *until => {}
        Reader::Client(_, _, until) if seen.is_some() => tokio::time::sleep_until((*until).into()).await,
        _ => std::future::pending().await,
    };
    let mut log = log.map_err(MemoryError::Stopped)?;
    let mut rest = Some(filter);
    while let Some(filter) = rest {
        let _place = tokio::select! {
            biased;
            () = left() => return Ok(None),
            () = late(&seen) => return Ok(seen),
            place = lists.acquire() => place,
        };
        let asked = filter.clone();
        let piece = match &reader {
            Reader::Own => blocking(log, move |log| read(log, &filter)).await,
            Reader::Client(lister, ..) => lister.run(log, move |log| read(log, &filter)).await,
        };
        let (same, piece) = tell(&me, piece)?;
        (log, rest) = (same, rest_of_list(asked, &piece));
        seen = rest.as_ref().and_then(|rest| rest.after.clone());
        piece.value.into_iter().for_each(&mut take);
    }
    Ok(None)
}

/// What a listing found, and where it goes on if its time was up.
type Page<T> = (Vec<T>, Option<TurnId>);

impl Memory {
    fn list<T: Send + 'static>(
        &self,
        context: &Context<Self>,
        lists: &Arc<Semaphore>,
        wanted: (TurnFilter, Reader),
        read: Read<T>,
    ) -> ResponseFuture<Result<Page<T>, MemoryError>> {
        let (from, lists) = ((self.log.clone(), context.address()), lists.clone());
        Box::pin(async move {
            let mut turns = Vec::new();
            let next = pieces(from, lists, wanted, read, |turn| turns.push(turn)).await?;
            Ok((turns, next))
        })
    }
}

impl Handler<List> for Memory {
    type Result = ResponseFuture<Result<Vec<Turn>, MemoryError>>;

    fn handle(&mut self, List(filter): List, context: &mut Self::Context) -> Self::Result {
        let listed = self.list(context, &self.own_lists, (filter, Reader::Own), whole);
        Box::pin(async move { Ok(listed.await?.0) })
    }
}

impl Handler<ListFor> for Memory {
    type Result = ResponseFuture<Result<Listed, MemoryError>>;

    fn handle(&mut self, ListFor(filter, wanted, time): ListFor, context: &mut Self::Context) -> Self::Result {
        let reader = Reader::Client(self.lister.clone(), wanted, Instant::now() + time);
        let listed = self.list(context, &self.lists, (filter, reader), written);
        Box::pin(async move { listed.await.map(|(turns, next)| Listed { turns, next }) })
    }
}

impl<T: Send + 'static> Handler<Survey<T>> for Memory {
    type Result = ResponseFuture<Result<T, MemoryError>>;

    fn handle(&mut self, survey: Survey<T>, context: &mut Self::Context) -> Self::Result {
        let (from, lists) = ((self.log.clone(), context.address()), self.own_lists.clone());
        let Survey { filter, mut seen, take } = survey;
        Box::pin(async move {
            pieces(from, lists, (filter, Reader::Own), whole, |turn| take(&mut seen, turn)).await?;
            Ok(seen)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_had_to_wait_rests_and_whoever_was_alone_goes_on() {
        let ms = Duration::from_millis;
        for (computed, waited, rested) in
            [(8, 0, 0), (8, 1, 0), (8, 2, 120), (1, 100, 15), (100, 100, 500), (0, 0, 0), (0, 9, 0)]
        {
            assert_eq!(rest(ms(computed), ms(waited)), ms(rested), "{computed} {waited}");
        }
    }

    #[test]
    fn after_a_failure_another_thread_reads() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let lister = Lister::start();
        let (free, held) = mpsc::channel::<()>();
        lister.jobs().send(Box::new(move || assert!(held.recv().is_err()))).unwrap();
        // Behind one that hangs nobody is answered.
        let (told, heard) = mpsc::channel();
        let first = told.clone();
        lister.jobs().send(Box::new(move || first.send(1).unwrap())).unwrap();
        *lister.jobs() = Lister::begin();
        lister.jobs().send(Box::new(move || told.send(2).unwrap())).unwrap();
        assert_eq!(heard.recv().unwrap(), 2);
        drop(free);
        assert_eq!(heard.recv().unwrap(), 1);
        // A closed log is a failure of the disk.
        let failed = runtime.block_on(lister.run(Arc::new(Held(None)), |_| Ok(())));
        assert!(matches!(failed, Err(StoreError::Disk(_))));
        lister.jobs().send(Box::new(|| panic!("sled reads what it did not write"))).unwrap();
        let (told, heard) = mpsc::channel();
        lister.jobs().send(Box::new(move || told.send(3).unwrap())).unwrap();
        assert_eq!(heard.recv().unwrap(), 3, "a panic ends the piece alone");
    }

    #[test]
    fn the_system_says_what_a_thread_has_spent() {
        let nanos = Duration::from_nanos;
        assert_eq!(Spent::read("12 34 5\n"), Some(Spent { computed: nanos(12), waited: nanos(34) }));
        assert_eq!(Spent::read(""), None);
        assert_eq!(Spent::read("12 many 5"), None);
    }
}
