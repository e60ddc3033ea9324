//! Lives, restarts and the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use actix::prelude::*;
use chimere::actors::link::{Life, Link, LinkError};
use chimere::actors::supervisor::{Budget, Place, supervise};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::stage::{PATIENCE, run};

struct Counter {
    count: u32,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "u32")]
struct Add(u32);

#[derive(Message)]
#[rtype(result = "()")]
struct Panic;

/// Panics in the future that the handler returns, and not in the handler's own call.
#[derive(Message)]
#[rtype(result = "()")]
struct PanicLater;

#[derive(Message)]
#[rtype(result = "()")]
struct Sleep(Duration);

impl Handler<Add> for Counter {
    type Result = u32;

    fn handle(&mut self, Add(n): Add, _: &mut Self::Context) -> u32 {
        self.count += n;
        self.count
    }
}

impl Handler<Panic> for Counter {
    type Result = ();

    fn handle(&mut self, _: Panic, _: &mut Self::Context) {
        panic!("told to");
    }
}

impl Handler<PanicLater> for Counter {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: PanicLater, _: &mut Self::Context) -> Self::Result {
        Box::pin(async {
            sleep(Duration::from_millis(5)).await;
            panic!("told to, later");
        })
    }
}

impl Handler<Sleep> for Counter {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Sleep(time): Sleep, _: &mut Self::Context) -> Self::Result {
        Box::pin(sleep(time))
    }
}

struct Setting {
    link: Link<Counter>,
    lives: Arc<AtomicU32>,
    exhausted: watch::Receiver<Option<&'static str>>,
}

fn setting(restarts_max: u32) -> Setting {
    let lives = Arc::new(AtomicU32::new(0));
    let (told, exhausted) = watch::channel(None);
    let born = lives.clone();
    let budget = Budget { restarts_max, window: Duration::from_secs(60) };
    let link = supervise("counter", Place::Here, budget, Arc::new(told), move || {
        born.fetch_add(1, Ordering::Relaxed);
        Counter { count: 0 }
    });
    Setting { link, lives, exhausted }
}

#[test]
fn a_panic_costs_its_message_and_the_state_and_nothing_else() {
    run(async {
        let s = setting(5);
        assert_eq!(s.link.send(Add(2)).await, Ok(2));
        assert_eq!(s.link.send(Add(2)).await, Ok(4));
        assert_eq!(s.link.send(Panic).await, Err(LinkError::Died { actor: "counter" }));
        // The same link reaches the next life, which begins anew.
        assert_eq!(s.link.send(Add(1)).await, Ok(1));
        assert_eq!((s.lives.load(Ordering::Relaxed), s.link.restarts()), (2, 1));
        // A future that a handler gave away runs beside the actor: its panic costs the message alone.
        assert_eq!(s.link.send(PanicLater).await, Err(LinkError::Died { actor: "counter" }));
        assert_eq!(s.link.send(Add(1)).await, Ok(2));
        assert_eq!((s.lives.load(Ordering::Relaxed), s.link.restarts()), (2, 1));
        assert_eq!(s.link.life(), Life::Running);
        assert_eq!(*s.exhausted.borrow(), None);
    });
}

#[test]
fn a_spent_budget_is_told_once_and_the_link_fails_at_once() {
    run(async {
        let mut s = setting(2);
        for _ in 0..3 {
            assert!(s.link.send(Panic).await.is_err());
        }
        timeout(PATIENCE, s.exhausted.wait_for(Option::is_some)).await.unwrap().unwrap();
        assert_eq!(*s.exhausted.borrow(), Some("counter"));
        assert_eq!(s.link.life(), Life::GivenUp);
        // There is no use in waiting, however long one may.
        let sent = timeout(PATIENCE, s.link.send_within(Add(1), 100 * PATIENCE)).await;
        assert!(matches!(sent, Ok(Err(LinkError::Down { .. }))));
    });
}

#[test]
fn a_slow_handler_is_late_and_not_dead() {
    run(async {
        let s = setting(1);
        let limit = Duration::from_millis(20);
        let late = s.link.send_within(Sleep(PATIENCE), limit).await;
        assert_eq!(late, Err(LinkError::Late { actor: "counter", waited_ms: 20 }));
        assert_eq!(s.link.send(Add(1)).await, Ok(1));
    });
}

#[test]
fn an_actor_of_another_thread_is_supervised_too() {
    let system = System::new();
    system.block_on(async {
        let (told, _exhausted) = watch::channel(None);
        let budget = Budget { restarts_max: 5, window: Duration::from_secs(60) };
        let arbiter = Arbiter::new();
        let place = Place::Arbiter(arbiter.handle());
        let link = supervise("counter", place, budget, Arc::new(told), || Counter { count: 0 });
        assert_eq!(link.send(Add(1)).await, Ok(1));
        assert!(matches!(link.send(Panic).await, Err(LinkError::Died { .. })));
        // The answer can be dropped a moment before the mailbox is.
        let restarted = async {
            while link.restarts() == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, restarted).await.expect("no new life began");
        assert_eq!(link.send(Add(1)).await, Ok(1));
        arbiter.stop();
    });
}
