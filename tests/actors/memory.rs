//! Memory when the disk fails: writing stops, serving goes on, and writing comes back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chimere::actors::memory::{Append, Memory, MemoryError, MemoryStatus, OpenStore};
use chimere::actors::supervisor::{Place, supervise};
use chimere::service::{Session, TurnFilter};
use chimere::store::{Piece, SledTurns, StoreError, TurnCounts, TurnStore};
use chimere::turn::{Feedback, Judgement, Sampling, Thinking, Tier, Turn, TurnId};
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::stage::{PATIENCE, budget, run};

/// A log whose disk fails while `broken`, and cannot be closed while `hangs`.
struct Flaky {
    inner: SledTurns,
    broken: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
}

impl Drop for Flaky {
    fn drop(&mut self) {
        while self.hangs.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Flaky {
    fn check(&self) -> Result<(), StoreError> {
        if self.broken.load(Ordering::Relaxed) { Err(StoreError::Disk("no space left".to_owned())) } else { Ok(()) }
    }
}

impl TurnStore for Flaky {
    fn append(&self, turn: &Turn) -> Result<u64, StoreError> {
        self.check()?;
        self.inner.append(turn)
    }
    fn add_feedback(&self, id: &TurnId, feedback: &Feedback) -> Result<(), StoreError> {
        self.inner.add_feedback(id, feedback)
    }
    fn add_judgement(&self, id: &TurnId, judgement: &Judgement) -> Result<bool, StoreError> {
        self.inner.add_judgement(id, judgement)
    }
    fn add_correction_judgement(&self, _: &TurnId, _: &str, _: &Judgement) -> Result<bool, StoreError> {
        Ok(true)
    }

    fn unscored(&self, after: Option<&TurnId>, limit: usize) -> Result<Vec<TurnId>, StoreError> {
        self.inner.unscored(after, limit)
    }
    fn get(&self, id: &TurnId) -> Result<Option<Turn>, StoreError> {
        self.inner.get(id)
    }
    fn list_piece(&self, filter: &TurnFilter) -> Result<Piece<Vec<Turn>>, StoreError> {
        self.inner.list_piece(filter)
    }
    fn forget_piece(&self, filter: &TurnFilter) -> Result<Piece<usize>, StoreError> {
        self.inner.forget_piece(filter)
    }
    fn put_session(&self, session: &Session) -> Result<(), StoreError> {
        self.inner.put_session(session)
    }
    fn session(&self, principal: &str, name: &str) -> Result<Option<Session>, StoreError> {
        self.inner.session(principal, name)
    }
    fn sessions(&self, principal: &str) -> Result<Vec<Session>, StoreError> {
        self.inner.sessions(principal)
    }
    fn room_for_session(&self, principal: &str) -> Result<(), StoreError> {
        self.inner.room_for_session(principal)
    }
    fn remove_session(&self, principal: &str, name: &str) -> Result<bool, StoreError> {
        self.inner.remove_session(principal, name)
    }
    fn counts(&self) -> Result<TurnCounts, StoreError> {
        self.inner.counts()
    }
    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.inner.flush()
    }
}

fn turn(id: &str) -> Box<Turn> {
    Box::new(Turn {
        version: 1,
        id: TurnId(id.to_owned()),
        conversation: "c".to_owned(),
        time_ms: 1,
        principal: "p".to_owned(),
        consent: false,
        taint: false,
        formed: false,
        continued: false,
        route: "default".to_owned(),
        tier: Tier::Fast,
        pipeline_version: "1".to_owned(),
        model: "m".to_owned(),
        model_hash: "h".to_owned(),
        adapter_revision: 0,
        template_hash: "t".to_owned(),
        messages: Vec::new(),
        tools: Vec::new(),
        prompt_ids: Vec::new(),
        sampling: Sampling::default(),
        thinking: Thinking::Off,
        generations: Vec::new(),
        feedback: Vec::new(),
        verdict: None,
        examples: 0,
        judgement: None,
    })
}

fn opener(folder: &Path, broken: &Arc<AtomicBool>, hangs: &Arc<AtomicBool>) -> OpenStore {
    let (folder, broken, hangs) = (folder.to_owned(), broken.clone(), hangs.clone());
    Arc::new(move || {
        let inner = SledTurns::open(&folder, 1 << 20)?;
        Ok(Arc::new(Flaky { inner, broken: broken.clone(), hangs: hangs.clone() }) as Arc<dyn TurnStore>)
    })
}

/// A log that does not close takes nobody along: Memory answers, and writes again when the disk is back.
#[test]
fn a_disk_that_hangs_holds_nobody_up() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (broken, hangs) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
        let open = opener(dir.path(), &broken, &hangs);
        let (told, _exhausted) = watch::channel(None);
        let memory = supervise("memory", Place::Here, budget(), Arc::new(told), move || Memory::new(open.clone()));
        assert!(matches!(
            memory.send_within(Append(turn("turn-1")), PATIENCE).await.unwrap(),
            Err(MemoryError::Store(_))
        ));
        for _ in 0..3 {
            // The disk hangs until the test lets go of it: whatever answers here waited for none.
            let answered = memory.send_within(Append(turn("turn-2")), PATIENCE).await;
            let error = answered.expect("the actor answers").unwrap_err();
            assert!(matches!(error, MemoryError::Stopped(_)), "{error}");
            sleep(Duration::from_millis(300)).await;
        }
        broken.store(false, Ordering::Relaxed);
        hangs.store(false, Ordering::Relaxed);
        let written = async {
            while memory.send_within(Append(turn("turn-3")), PATIENCE).await.unwrap().is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, written).await.expect("writing comes back");
    });
}

#[test]
fn writing_stops_on_a_failing_disk_and_comes_back() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (broken, hangs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let open = opener(dir.path(), &broken, &hangs);
        let (told, exhausted) = watch::channel(None);
        let memory = supervise("memory", Place::Here, budget(), Arc::new(told), move || Memory::new(open.clone()));
        memory.send_within(Append(turn("turn-1")), PATIENCE).await.unwrap().unwrap();
        broken.store(true, Ordering::Relaxed);
        assert!(matches!(
            memory.send_within(Append(turn("turn-2")), PATIENCE).await.unwrap(),
            Err(MemoryError::Store(_))
        ));
        // Now it does not even try, and says why.
        let error = memory.send_within(Append(turn("turn-3")), PATIENCE).await.unwrap().unwrap_err();
        assert!(matches!(&error, MemoryError::Stopped(why) if why.contains("no space left")), "{error}");
        assert_eq!(memory.send_within(MemoryStatus, PATIENCE).await.unwrap()["state"], "stopped");
        broken.store(false, Ordering::Relaxed);
        let written = async {
            while memory.send_within(Append(turn("turn-4")), PATIENCE).await.unwrap().is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, written).await.expect("writing comes back");
        let status = memory.send_within(MemoryStatus, PATIENCE).await.unwrap();
        assert_eq!((status["state"].as_str(), status["turns"].as_u64()), (Some("writing"), Some(2)));
        assert_eq!((memory.restarts(), *exhausted.borrow()), (0, None));
    });
}
