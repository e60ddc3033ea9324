//! Supervision of our own: actix's does not survive a panic. Each actor has a factory; when a life ends, by a
//! panic or by stopping, a new one is made after a back-off. When lives end faster than the budget allows,
//! the daemon exits with a failure, so that systemd starts it afresh.

use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, Addr, ArbiterHandle, AsyncContext, Context};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

use super::link::{Current, Life, Link};
use crate::meters;

/// First pause before a restart, milliseconds; it doubles with each life that ended within the window.
const BACK_OFF_FIRST_MS: u64 = 50;
const BACK_OFF_MAX_MS: u64 = 5_000;

/// How often an actor may be restarted.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Restarts allowed within `window`.
    pub restarts_max: u32,
    pub window: Duration,
}

/// Which thread an actor lives on.
#[derive(Clone)]
pub enum Place {
    /// The thread of the caller, which must run a `LocalSet` (tests).
    Here,
    Arbiter(ArbiterHandle),
}

/// The name of the first actor that spent its budget.
pub type Exhausted = watch::Sender<Option<&'static str>>;

struct Supervised<A: Actor> {
    name: &'static str,
    place: Place,
    budget: Budget,
    factory: Arc<dyn Fn() -> A + Send + Sync>,
    current: watch::Sender<Current<A>>,
    exhausted: Arc<Exhausted>,
}

/// Starts an actor and keeps it alive. The factory makes every life anew: nothing of the old state is kept.
pub fn supervise<A>(
    name: &'static str,
    place: Place,
    budget: Budget,
    exhausted: Arc<Exhausted>,
    factory: impl Fn() -> A + Send + Sync + 'static,
) -> Link<A>
where
    A: Actor<Context = Context<A>>,
{
    let (current, seen) = watch::channel(Current { addr: None, life: Life::Restarting, restarts: 0 });
    let local = matches!(place, Place::Here);
    let supervised = Supervised { name, place, budget, factory: Arc::new(factory), current, exhausted };
    if local {
        tokio::task::spawn_local(supervised.run());
    } else {
        tokio::spawn(supervised.run());
    }
    Link::new(name, seen)
}

impl<A: Actor<Context = Context<A>>> Supervised<A> {
    async fn run(self) {
        let mut ends: Vec<Instant> = Vec::new();
        loop {
            let (guard, ended) = oneshot::channel::<()>();
            let addr = self.start(guard);
            self.current.send_modify(|c| (c.addr, c.life) = (Some(addr), Life::Running));
            // Never sent: resolves when the guard is dropped with the actor's context.
            let _ = ended.await;
            let now = Instant::now();
            ends.retain(|end| now.duration_since(*end) < self.budget.window);
            ends.push(now);
            if ends.len() > self.budget.restarts_max as usize {
                return self.give_up();
            }
            self.current.send_modify(|c| {
                (c.addr, c.life) = (None, Life::Restarting);
                c.restarts += 1;
            });
            meters::actor_restarted(self.name);
            let pause = back_off(ends.len());
            tracing::error!(actor = self.name, restarts = ends.len(), pause_ms = pause.as_millis(), "actor ended");
            sleep(pause).await;
        }
    }

    /// One life. `guard` goes into the context, so that it is dropped when the context is, whatever the reason.
    fn start(&self, guard: oneshot::Sender<()>) -> Addr<A> {
        let factory = self.factory.clone();
        let make = move |context: &mut Context<A>| {
            context.spawn(wrap_future(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            }));
            factory()
        };
        match &self.place {
            Place::Here => A::create(make),
            Place::Arbiter(handle) => A::start_in_arbiter(handle, make),
        }
    }

    fn give_up(&self) {
        tracing::error!(actor = self.name, restarts_max = self.budget.restarts_max, "restart budget is spent");
        self.current.send_modify(|c| (c.addr, c.life) = (None, Life::GivenUp));
        self.exhausted.send_if_modified(|first| {
            let new = first.is_none();
            first.get_or_insert(self.name);
            new
        });
    }
}

fn back_off(ends: usize) -> Duration {
    let doublings = ends.saturating_sub(1).min(16) as u32;
    Duration::from_millis((BACK_OFF_FIRST_MS << doublings).min(BACK_OFF_MAX_MS))
}
