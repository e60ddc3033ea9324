//! Memory when the disk fails: writing stops, serving goes on, and writing comes back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use chimere::actors::memory::{
    Append, Get, List, ListFor, Memory, MemoryError, MemoryStatus, OpenStore, Survey, Teach,
};
use chimere::actors::supervisor::{Place, supervise};
use chimere::lessons::{Draft, Known, LessonError, LessonId, Lessons, Source};
use chimere::service::TurnFilter;
use chimere::store::{PIECE_TURNS, Piece, SledTurns, StoreError, TurnStore};
use chimere::turn::{Sampling, Thinking, Tier, Turn, TurnId};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::shelf::{Guard, Shelf};
use crate::stage::{PATIENCE, budget, run};

/// A log whose disk fails while `broken`, and cannot be closed while `hangs`.
struct Flaky {
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

impl Guard for Flaky {
    fn before_append(&self) -> Result<(), StoreError> {
        match self.broken.load(Ordering::Relaxed) {
            true => Err(StoreError::Disk("no space left".to_owned())),
            false => Ok(()),
        }
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
        redacted: false,
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
        steps: Vec::new(),
        feedback: Vec::new(),
        verdict: None,
        examples: 0,
        lessons: Vec::new(),
        judgement: None,
    })
}

fn opener(folder: &Path, broken: &Arc<AtomicBool>, hangs: &Arc<AtomicBool>) -> OpenStore {
    let (folder, broken, hangs) = (folder.to_owned(), broken.clone(), hangs.clone());
    Arc::new(move || {
        let inner = SledTurns::open(&folder, 1 << 20)?;
        let guard = Flaky { broken: broken.clone(), hangs: hangs.clone() };
        Ok(Arc::new(Shelf::new(guard, inner)) as Arc<dyn TurnStore>)
    })
}

/// The file of lessons is sound: whoever looks after the machine must look at the log.
#[test]
fn a_lesson_that_the_turn_log_keeps_from_being_made_blames_the_turn_log() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let lessons = Arc::new(Lessons::open(dir.path()));
        let (told, _exhausted) = watch::channel(None);
        let memory = supervise("memory", Place::Here, budget(), Arc::new(told), move || {
            let open: OpenStore = Arc::new(|| Err(StoreError::Disk("no space left".to_owned())));
            Memory::new(open).with_lessons(lessons.clone())
        });
        let taught = memory.send_within(teach("turn-1"), PATIENCE).await.unwrap();
        let Err(error) = taught else { panic!("{taught:?}") };
        let words = error.to_string();
        assert!(words.contains("turn log") && !words.contains("file of lessons"), "{words}");
    });
}

/// Of a correction of a turn.
fn teach(turn: &str) -> Teach {
    let turn = TurnId(turn.to_owned());
    let draft = Draft {
        principal: "p".to_owned(),
        questions: vec!["Which day?".to_owned()],
        answer: "Monday.".to_owned(),
        known: Known::Correction,
        sources: vec![Source { turn, conversation: "c".to_owned(), time_ms: 1, consent: false }],
        by_owner: false,
        sharing: None,
        shown: Vec::new(),
    };
    Teach { draft, id: LessonId("lesson-1".to_owned()), now_ms: 1 }
}

/// A turn may be forgotten while its correction is on the way.
#[test]
fn a_lesson_of_a_turn_that_is_not_there_is_not_kept() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let lessons = Arc::new(Lessons::open(dir.path()));
        let (open, kept) = (opener(&dir.path().join("turns"), &Arc::default(), &Arc::default()), lessons.clone());
        let (told, _exhausted) = watch::channel(None);
        let memory = supervise("memory", Place::Here, budget(), Arc::new(told), move || {
            Memory::new(open.clone()).with_lessons(kept.clone())
        });
        memory.send_within(Append(turn("turn-1")), PATIENCE).await.unwrap().unwrap();
        let gone = memory.send_within(teach("turn-2"), PATIENCE).await.unwrap().unwrap_err();
        assert_eq!((gone, lessons.book().lessons().len()), (LessonError::TurnGone, 0));
        memory.send_within(teach("turn-1"), PATIENCE).await.unwrap().unwrap();
        assert_eq!(Lessons::open(dir.path()).book().lessons()[0].answer, "Monday.");
    });
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
        let (opens, fails) = (opener(dir.path(), &broken, &hangs), broken.clone());
        // While the disk fails, opening the log anew fails too.
        let open: OpenStore = Arc::new(move || match fails.load(Ordering::Relaxed) {
            true => Err(StoreError::Disk("no space left".to_owned())),
            false => opens(),
        });
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

/// A log whose opening panics a few times, and whose reading then panics once.
fn panicking(folder: &Path, openings: u32) -> (OpenStore, Arc<AtomicU32>, Arc<AtomicBool>) {
    let (folder, opened, broken) = (folder.to_owned(), Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, breaks) = (opened.clone(), broken.clone());
    let open: OpenStore = Arc::new(move || {
        assert!(count.fetch_add(1, Ordering::Relaxed) >= openings, "sled does not like this file");
        let inner = SledTurns::open(&folder, 1 << 20)?;
        let guard = Reading { broken: breaks.clone(), read: Arc::default(), nice: Arc::default() };
        Ok(Arc::new(Shelf::new(guard, inner)) as Arc<dyn TurnStore>)
    });
    (open, opened, broken)
}

#[test]
fn a_log_whose_reading_panics_costs_nobody_a_life_and_is_opened_anew() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        // More often than any restart budget allows.
        let (open, opened, broken) = panicking(dir.path(), 2);
        let (told, exhausted) = watch::channel(None);
        let memory = supervise("memory", Place::Here, budget(), Arc::new(told), move || Memory::new(open.clone()));
        let written = async {
            while memory.send_within(Append(turn("turn-1")), PATIENCE).await.unwrap().is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, written).await.expect("writing comes back");
        let before = opened.load(Ordering::Relaxed);
        broken.store(true, Ordering::Relaxed);
        assert!(memory.send_within(Get(TurnId("turn-1".to_owned())), PATIENCE).await.unwrap().is_err());
        broken.store(false, Ordering::Relaxed);
        let read = async {
            loop {
                match memory.send_within(Get(TurnId("turn-1".to_owned())), PATIENCE).await.unwrap() {
                    Ok(Some(_)) if opened.load(Ordering::Relaxed) > before => return,
                    _ => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(PATIENCE, read).await.expect("the log is opened anew");
        assert_eq!((memory.restarts(), *exhausted.borrow()), (0, None));
    });
}

/// A log that counts the pieces that were read of it, slowly.
struct Reading {
    broken: Arc<AtomicBool>,
    read: Arc<AtomicU32>,
    /// Of the threads that read for clients.
    nice: Arc<AtomicU32>,
}

/// How low the priority of this thread is.
fn nice() -> u32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    fields.split(' ').nth(16).unwrap().parse().unwrap()
}

impl Guard for Reading {
    fn before_get(&self) {
        assert!(!self.broken.load(Ordering::Relaxed), "sled reads what it did not write");
    }

    fn listed(&self, filter: &TurnFilter) -> Option<Result<Piece<Vec<Turn>>, StoreError>> {
        std::thread::sleep(Duration::from_millis(20));
        self.read.fetch_add(1, Ordering::SeqCst);
        // Nobody is found, and the log has no end.
        filter.principal.is_some().then(|| {
            self.nice.store(nice(), Ordering::SeqCst);
            Ok(Piece { value: Vec::new(), next: Some(TurnId("turn-1".to_owned())) })
        })
    }
}

/// However little time there is for each, listings one behind the other come to the end of the log.
#[test]
fn a_listing_whose_time_is_up_tells_what_it_found_and_where_to_go_on() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let log = SledTurns::open(dir.path(), 1 << 24).unwrap();
        for n in 0..=PIECE_TURNS {
            log.append(&turn(&format!("turn-{n:04}"))).unwrap();
        }
        drop(log);
        let (told, _exhausted) = watch::channel(None);
        let open = opener(dir.path(), &Arc::default(), &Arc::default());
        let memory = supervise("memory", Place::Here, budget(), Arc::new(told), move || Memory::new(open.clone()));
        let ask = async |filter: &TurnFilter, time| {
            let list = ListFor(filter.clone(), CancellationToken::new(), time);
            memory.send_within(list, PATIENCE).await.unwrap().unwrap()
        };
        let last = format!("turn-{PIECE_TURNS:04}");
        for (principal, first, rest) in [("p", PIECE_TURNS, 1), ("nobody", 0, 0)] {
            let own = TurnFilter { principal: Some(principal.to_owned()), ..TurnFilter::default() };
            let begun = ask(&own, Duration::ZERO).await;
            assert_eq!(
                (begun.turns.len(), &begun.next),
                (first, &Some(TurnId(format!("turn-{:04}", PIECE_TURNS - 1))))
            );
            let ended = ask(&TurnFilter { after: begun.next, ..own.clone() }, Duration::ZERO).await;
            assert_eq!((ended.turns.len(), ended.next), (rest, None));
            assert!(ended.turns.iter().all(|turn| turn.id.0 == last));
            let whole = ask(&own, PATIENCE).await;
            assert_eq!((whole.turns.len(), whole.next), (first + rest, None));
        }
    });
}

#[test]
fn a_listing_ends_with_its_client_and_holds_up_no_work_of_the_daemon() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (folder, read) = (dir.path().to_owned(), Arc::new(AtomicU32::new(0)));
        let nice = Arc::new(AtomicU32::new(0));
        let (pieces, of_readers) = (read.clone(), nice.clone());
        let open: OpenStore = Arc::new(move || {
            let inner = SledTurns::open(&folder, 1 << 20)?;
            let (broken, read, nice) = (Arc::default(), pieces.clone(), of_readers.clone());
            Ok(Arc::new(Shelf::new(Reading { broken, read, nice }, inner)) as Arc<dyn TurnStore>)
        });
        let (told, _exhausted) = watch::channel(None);
        let memory = supervise("memory", Place::Here, budget(), Arc::new(told), move || Memory::new(open.clone()));
        memory.send_within(Append(turn("turn-1")), PATIENCE).await.unwrap().unwrap();
        let endless = TurnFilter { principal: Some("nobody".to_owned()), ..TurnFilter::default() };
        let wanted: Vec<_> = (0..12).map(|_| CancellationToken::new()).collect();
        for token in &wanted {
            let (memory, list) = (memory.clone(), ListFor(endless.clone(), token.clone(), PATIENCE));
            tokio::task::spawn_local(async move { memory.send_within(list, PATIENCE).await });
        }
        while read.load(Ordering::SeqCst) < 4 {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(nice.load(Ordering::SeqCst), 15, "they take no processor from anybody");
        // A night's reading goes between them.
        assert_eq!(memory.send_within(List(TurnFilter::default()), PATIENCE).await.unwrap().unwrap().len(), 1);
        let survey = Survey { filter: TurnFilter::default(), seen: 0, take: |seen: &mut u32, _| *seen += 1 };
        assert_eq!(memory.send_within(survey, PATIENCE).await.unwrap().unwrap(), 1);
        // And so does a look at a canary, which reads no more than it asks for.
        for n in 2..=9 {
            memory.send_within(Append(turn(&format!("turn-{n}"))), PATIENCE).await.unwrap().unwrap();
        }
        let filter = TurnFilter { after: Some(TurnId("turn-2".to_owned())), limit: Some(5), ..TurnFilter::default() };
        let look = Survey { filter, seen: Vec::new(), take: |seen: &mut Vec<String>, turn| seen.push(turn.id.0) };
        let seen = memory.send_within(look, PATIENCE).await.unwrap().unwrap();
        assert_eq!(seen, ["turn-3", "turn-4", "turn-5", "turn-6", "turn-7"]);
        wanted.iter().for_each(CancellationToken::cancel);
        let ended = async {
            let mut before = read.load(Ordering::SeqCst);
            loop {
                sleep(Duration::from_millis(200)).await;
                let now = read.load(Ordering::SeqCst);
                if std::mem::replace(&mut before, now) == now {
                    return;
                }
            }
        };
        timeout(PATIENCE, ended).await.expect("whoever left is read to no more");
    });
}
