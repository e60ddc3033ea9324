//! The worker threads of the CPU kernels: one set for the life of the process. So a decode step of
//! about a hundred stages pays a few hundred nanoseconds a stage and not a thread start.
//!
//! Owns the threads and the hand-over of one job at a time. The caller is thread 0 and works too. A
//! worker joins a job only while it is open, and the caller waits only for those that joined. So a
//! worker that the system has put aside delays nobody. Idle workers spin for [`SPINS`] polls (tens
//! of microseconds), then sleep until the next job.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most threads a pool may have.
pub const THREADS_MAX: usize = 64;
/// Polls of an idle worker before it sleeps: about 100 µs.
const SPINS: u32 = 4_000;
/// Polls of the waiting caller between two offers of its processor to others.
const SPINS_BEFORE_YIELD: u32 = 2_000;

/// Why a pool could not be built.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("{asked} threads asked for; choose 1 to {THREADS_MAX}")]
    Threads { asked: usize },
    #[error("could not start a worker thread: {0}")]
    Start(#[from] std::io::Error),
}

type Task<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// One job: the task function, erased, and how many tasks there are.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize, usize) + Sync),
    tasks: usize,
}

/// Bit of [`Shared::state`]: workers may still join. Below it: how many are inside; above: the job's number.
const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;

#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    state: Padded<AtomicU64>,
    next: Padded<AtomicUsize>,
    job: UnsafeCell<Option<Job>>,
    sleepers: Padded<AtomicUsize>,
    quit: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written only by the caller while the state is closed with nobody inside, and read
// only by threads that joined after it was opened; the acquire/release pairs on `state` order both.
unsafe impl Sync for Shared {}
// SAFETY: as above; the erased task pointer is `Sync` and outlives the job (see `Pool::run`).
unsafe impl Send for Shared {}

thread_local! {
    /// True while this thread executes a task: a nested run is then done in place.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

fn guard<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Takes tasks until none is left; a panic ends this thread's share and is kept for the caller.
    fn work(&self, job: Job, thread: usize) {
        // SAFETY: the caller of `run` keeps the closure alive until every joined thread has left.
        let task: Task<'_> = unsafe { &*job.task };
        let was_busy = BUSY.replace(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = self.next.0.fetch_add(1, Ordering::Relaxed);
                if i >= job.tasks {
                    break;
                }
                task(i, thread);
            }
        }));
        BUSY.set(was_busy);
        if let Err(payload) = result {
            self.next.0.store(job.tasks, Ordering::Relaxed);
            guard(&self.panic).get_or_insert(payload);
        }
    }

    fn worker(&self, thread: usize) {
        let mut seen = 0;
        let mut polls = 0u32;
        while self.quit.load(Ordering::Relaxed) == 0 {
            let state = self.state.0.load(Ordering::Acquire);
            let number = state >> 16;
            if state & OPEN != 0 && number != seen {
                if self.state.0.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                    continue;
                }
                seen = number;
                polls = 0;
                // SAFETY: joined while open, so the caller has written the job and will not change it.
                if let Some(job) = unsafe { *self.job.get() } {
                    self.work(job, thread);
                }
                self.state.0.fetch_sub(1, Ordering::Release);
                continue;
            }
            polls += 1;
            if polls < SPINS {
                std::hint::spin_loop();
            } else {
                self.sleep(seen);
                polls = 0;
            }
        }
    }

    /// Sleeps until a job newer than `seen` is open or the pool ends.
    fn sleep(&self, seen: u64) {
        let mut held = guard(&self.lock);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = self.state.0.load(Ordering::SeqCst);
            let fresh = state & OPEN != 0 && state >> 16 != seen;
            if fresh || self.quit.load(Ordering::SeqCst) != 0 {
                break;
            }
            held = self.wake.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_sleepers(&self) {
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            drop(guard(&self.lock));
            self.wake.notify_all();
        }
    }
}

/// A fixed set of threads that run one job at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] being one of them.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        if threads == 0 || threads > THREADS_MAX {
            return Err(PoolError::Threads { asked: threads });
        }
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            next: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            sleepers: Padded(AtomicUsize::new(0)),
            quit: AtomicUsize::new(0),
            panic: Mutex::new(None),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::new(()) };
        for thread in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker =
                std::thread::Builder::new().name(format!("kernel-{thread}")).spawn(move || shared.worker(thread))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i, thread)` once for each `i < tasks`, spread over the threads, and returns when all
    /// are done. Tasks are handed out in order, one at a time. A panic in a task is raised again here
    /// after every thread has left the job. Called from inside a task, it runs everything in place.
    pub fn run(&self, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() || BUSY.get() {
            (0..tasks).for_each(|i| task(i, 0));
            return;
        }
        let _turn = guard(&self.turn);
        let s = &*self.shared;
        let erased: Task<'_> = &task;
        // SAFETY: only the lifetime is erased; `task` lives until this function returns, and it returns
        // only after the job is closed and every joined worker has left (also when a task panics).
        let erased = unsafe { std::mem::transmute::<Task<'_>, *const (dyn Fn(usize, usize) + Sync + 'static)>(erased) };
        let job = Job { task: erased, tasks };
        // SAFETY: the state is closed with nobody inside (end of the last run), and `turn` is held.
        unsafe { *s.job.get() = Some(job) };
        s.next.0.store(0, Ordering::Relaxed);
        let number = (s.state.0.load(Ordering::Relaxed) >> 16) + 1;
        s.state.0.store(number << 16 | OPEN, Ordering::SeqCst);
        s.wake_sleepers();
        s.work(job, 0);
        s.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut polls = 0u32;
        while s.state.0.load(Ordering::Acquire) & INSIDE != 0 {
            polls += 1;
            if polls.is_multiple_of(SPINS_BEFORE_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let payload = guard(&s.panic).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Calls `task(i, &mut items[i], thread)` once for each item, spread over the threads.
    pub fn each<S: Send>(&self, items: &mut [S], task: impl Fn(usize, &mut S, usize) + Sync) {
        let base = Shared1(items.as_mut_ptr());
        self.run(items.len(), |i, thread| {
            // SAFETY: `run` hands each index out once, so each item has one exclusive user, and the
            // slice is borrowed for the whole call.
            let item = unsafe { &mut *base.at(i) };
            task(i, item, thread);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(1, Ordering::SeqCst);
        drop(guard(&self.shared.lock));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // a worker catches every panic of its tasks, so there is nothing to report
        }
    }
}

/// A pointer that tasks share to write disjoint parts of one buffer; users argue disjointness.
pub(super) struct Shared1<T>(pub(super) *mut T);

impl<T> Clone for Shared1<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared1<T> {}

impl<T> Shared1<T> {
    /// The address of element `i`; the caller keeps it inside the buffer.
    pub(super) fn at(self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

// SAFETY: sending the address is harmless; every dereference states why it is exclusive.
unsafe impl<T: Send> Send for Shared1<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared1<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 100] {
                let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.run(tasks, |i, thread| {
                        assert!(thread < threads);
                        hits[i].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 50));
            }
        }
    }

    #[test]
    fn items_are_exclusive_and_sleeping_workers_wake() {
        let pool = Pool::new(2).unwrap();
        let mut items = vec![0usize; 33];
        for round in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5)); // longer than the spin
            pool.each(&mut items, |i, item, _| *item += i);
            assert!(items.iter().enumerate().all(|(i, v)| *v == i * (round + 1)));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, |i, _| assert_ne!(i, 13, "thirteen"));
            }));
            assert!(caught.is_err());
            let n = AtomicUsize::new(0);
            pool.run(64, |_, _| {
                n.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(n.into_inner(), 64);
        }
    }

    #[test]
    fn a_nested_run_is_done_in_place() {
        let pool = Pool::new(2).unwrap();
        let n = AtomicUsize::new(0);
        pool.run(4, |_, _| {
            pool.run(5, |_, _| {
                n.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(n.into_inner(), 20);
        assert!(matches!(Pool::new(0), Err(PoolError::Threads { asked: 0 })));
    }
}
