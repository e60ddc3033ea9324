//! The turn log on disk: what comes back, what is written once, what is forgotten, what damage does.

use super::super::fixture::turn;
use super::super::new_turn_id;
use super::*;
use crate::turn::{ChoiceJudgement, Message, Role, Vote};

impl SledTurns {
    /// All that is written, whatever its key.
    pub(in crate::store) fn records(&self) -> Vec<Vec<u8>> {
        self.log.iter().map(|entry| entry.unwrap().1.to_vec()).collect()
    }

    /// The log as it was before turns were linked.
    pub(in crate::store) fn write_unlinked(&self, turns: &[Turn]) {
        let mut counts = TurnCounts::default();
        for turn in turns {
            let mut record = pack(turn).unwrap();
            record[0] = UNLINKED_FORMAT;
            (counts.turns, counts.bytes) = (counts.turns + 1, counts.bytes + record.len() as u64);
            self.log.insert(&turn.id.0, record).unwrap();
            self.log.insert(beside(UNSCORED_PREFIX, turn.id.0.as_bytes()), &[]).unwrap();
        }
        self.log.insert(COUNTS_KEY, pack(&counts).unwrap()).unwrap();
        self.db.open_tree("meta").unwrap().insert("format", &[UNLINKED_FORMAT]).unwrap();
    }

    pub(in crate::store) fn damage_record(&self, id: &TurnId) {
        let mut record = self.log.get(&id.0).unwrap().unwrap().to_vec();
        *record.last_mut().unwrap() ^= 1;
        self.log.insert(&id.0, record).unwrap();
    }
}

fn vote(time_ms: i64) -> Feedback {
    Feedback { time_ms, principal: "p".to_owned(), vote: Some(Vote::Up), correction: None, judgement: None }
}

#[tokio::test]
async fn turns_come_back_after_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (turn("turn-a", "p"), turn("turn-b", "q"));
    {
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        log.append(&b).unwrap();
        log.append(&a).unwrap();
        log.append(&a).unwrap();
        log.add_feedback(&a.id, &vote(7)).unwrap();
        log.add_feedback(&a.id, &vote(8)).unwrap();
        log.flush().await.unwrap();
    }
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(log.counts().unwrap().turns, 2);
    let all = log.list(&TurnFilter::default()).unwrap();
    assert_eq!(all.iter().map(|t| t.id.0.as_str()).collect::<Vec<_>>(), ["turn-a", "turn-b"]);
    assert_eq!(all[0].feedback, [vote(7), vote(8)]);
    assert_eq!(all[1], b);
    let filter = TurnFilter { after: Some(a.id.clone()), ..TurnFilter::default() };
    assert_eq!(log.list(&filter).unwrap(), [b]);
    assert!(matches!(log.add_feedback(&TurnId("turn-x".into()), &vote(1)), Err(StoreError::Unknown(_))));
}

/// What an earlier version wrote holds none of the fields that came later.
#[test]
fn a_turn_of_before_there_were_steps_is_read() {
    let mut record = serde_json::to_value(turn("turn-a", "p")).unwrap();
    for later in ["formed", "continued", "examples", "steps"] {
        record.as_object_mut().unwrap().remove(later);
    }
    let read: Turn = unpack(b"turn-a", &pack(&record).unwrap()).unwrap();
    assert_eq!(read, turn("turn-a", "p"));
    let mut stepped = turn("turn-b", "p");
    stepped.steps = serde_json::from_str(
        r#"[{"kind": "generate", "name": "plan", "outcome": "done", "model": "m", "prompt_tokens": 3,
             "completion_tokens": 4, "took_ms": 5, "visible": false, "text": "hidden"}]"#,
    )
    .unwrap();
    assert_eq!(unpack::<Turn>(b"turn-b", &pack(&stepped).unwrap()).unwrap(), stepped);
}

/// The burst that sled's transactions deadlocked under.
#[test]
fn many_writers_and_readers_at_once_all_get_through() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 24).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..24 {
            let log = &log;
            scope.spawn(move || {
                for n in 0..20 {
                    let turn = turn(&format!("turn-{writer:02}-{n:02}"), "p");
                    log.append(&turn).unwrap();
                    log.add_feedback(&turn.id, &vote(n)).unwrap();
                    assert!(!log.list(&TurnFilter { limit: Some(3), ..TurnFilter::default() }).unwrap().is_empty());
                }
            });
        }
    });
    assert_eq!(log.counts().unwrap().turns, 480);
    drop(log);
    assert_eq!(SledTurns::open(dir.path(), 1 << 24).unwrap().counts().unwrap().turns, 480);
}

#[tokio::test]
async fn many_wait_for_a_flush_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(SledTurns::open(dir.path(), 1 << 24).unwrap());
    let writers = (0..64).map(|w| {
        let log = log.clone();
        tokio::spawn(async move {
            for i in 0..20 {
                let (log, id) = (log.clone(), format!("turn-{w:02}-{i:02}"));
                let writing = log.clone();
                tokio::task::spawn_blocking(move || writing.append(&turn(&id, "p"))).await.unwrap().unwrap();
                log.flush().await.unwrap();
            }
        })
    });
    let all = futures_util::future::join_all(writers.collect::<Vec<_>>());
    tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("the flushes wait for one another");
    assert_eq!(log.list(&TurnFilter { limit: Some(2_000), ..TurnFilter::default() }).unwrap().len(), 64 * 20);
    let kept = log.counts().unwrap();
    assert_eq!((kept.turns, kept), (64 * 20, count(&log.log).unwrap()));
}

#[test]
fn forgetting_takes_the_feedback_along() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    for (id, who) in [("turn-a", "p"), ("turn-b", "q"), ("turn-c", "p")] {
        log.append(&turn(id, who)).unwrap();
        log.add_feedback(&TurnId(id.into()), &vote(1)).unwrap();
    }
    let filter = TurnFilter { principal: Some("p".into()), ..TurnFilter::default() };
    assert_eq!(log.forget(&filter).unwrap(), 2);
    assert_eq!(log.counts().unwrap().turns, 1);
    assert_eq!(log.log.len(), 4, "a turn, its feedback, its place among the unscored, the counts");
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 1);
    assert_eq!(log.counts().unwrap(), TurnCounts::default());
}

#[test]
fn listing_and_forgetting_work_in_bounded_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 26).unwrap();
    let turns = PIECE_TURNS + 5;
    // Whoever is looked for comes first, in the middle and last.
    let rare = [0, PIECE_TURNS, turns - 1];
    for n in 0..turns {
        log.append(&turn(&format!("turn-{n:05}"), if rare.contains(&n) { "rare" } else { "p" })).unwrap();
    }
    let of = |who: &str| TurnFilter { principal: Some(who.into()), ..TurnFilter::default() };
    let piece = log.list_piece(&of("rare")).unwrap();
    assert_eq!((piece.value.len(), piece.next), (1, Some(TurnId(format!("turn-{:05}", PIECE_TURNS - 1)))));
    assert_eq!(log.list(&of("rare")).unwrap().len(), 3);
    assert_eq!(log.list(&TurnFilter { limit: Some(2), ..of("rare") }).unwrap().len(), 2);
    assert_eq!(log.list(&TurnFilter { limit: Some(turns), ..of("p") }).unwrap().len(), turns - 3);
    assert_eq!(log.forget_piece(&of("rare")).unwrap().value, 1, "no more is looked at");
    assert_eq!(log.forget(&of("rare")).unwrap(), 2);
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), turns - 3);
    assert_eq!(log.counts().unwrap(), TurnCounts::default());
}

#[test]
fn a_piece_of_long_turns_has_fewer() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 26).unwrap();
    for n in 0..6 {
        let mut long = turn(&format!("turn-{n}"), "p");
        long.messages = vec![Message::new(Role::User, "x".repeat(PIECE_BYTES / 2))];
        log.append(&long).unwrap();
    }
    let piece = log.list_piece(&TurnFilter::default()).unwrap();
    assert_eq!((piece.value.len(), piece.next), (2, Some(TurnId("turn-1".to_owned()))));
    assert_eq!(log.list(&TurnFilter::default()).unwrap().len(), 6);
}

#[test]
fn feedback_has_its_limit_also_when_many_give_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 24).unwrap();
    let a = turn("turn-a", "p");
    log.append(&a).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for n in 0..20 {
                    match log.add_feedback(&a.id, &vote(n)) {
                        Ok(()) | Err(StoreError::FeedbackFull(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(log.get(&a.id).unwrap().unwrap().feedback.len(), FEEDBACK_MAX);
}

#[tokio::test]
async fn a_judgement_is_written_once_and_survives() {
    let dir = tempfile::tempdir().unwrap();
    let judged = |verdict| Judgement {
        time_ms: 9,
        judge: "j".to_owned(),
        choices: vec![ChoiceJudgement { index: 0, verdict, p: 0.9, thought_steps: 1, steps: vec![0.9, 0.95] }],
    };
    let (a, b) = (TurnId("turn-a".into()), TurnId("turn-b".into()));
    {
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        log.append(&turn("turn-a", "p")).unwrap();
        log.append(&turn("turn-b", "p")).unwrap();
        assert_eq!(log.unscored(None, 10).unwrap(), [a.clone(), b.clone()]);
        let c = Turn { judgement: Some(judged(2)), ..turn("turn-c", "p") };
        log.append(&c).unwrap();
        assert_eq!(log.unscored(None, 10).unwrap().len(), 2, "it came with its judgement");
        assert_eq!(log.get(&c.id).unwrap().unwrap().verdict, Some(2));
        assert!(!log.add_judgement(&c.id, &judged(1)).unwrap());
        assert_eq!(log.unscored(Some(&a), 10).unwrap(), std::slice::from_ref(&b));
        assert_eq!(log.unscored(None, 1).unwrap(), std::slice::from_ref(&a));
        assert!(log.add_judgement(&a, &judged(4)).unwrap());
        assert!(!log.add_judgement(&a, &judged(1)).unwrap(), "the second judgement must not replace the first");
        assert!(matches!(log.add_judgement(&TurnId("turn-x".into()), &judged(1)), Err(StoreError::Unknown(_))));
        log.flush().await.unwrap();
    }
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(log.unscored(None, 10).unwrap(), [b]);
    let kept = log.get(&a).unwrap().unwrap();
    assert_eq!((kept.verdict, kept.judgement), (Some(4), Some(judged(4))));
    assert_eq!(log.list(&TurnFilter::default()).unwrap()[1].verdict, None);
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 3);
    assert_eq!(log.log.len(), 1, "nothing but the counts is left");
}

#[tokio::test]
async fn a_correction_is_judged_once_and_forgotten_with_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    let id = TurnId("turn-a".into());
    log.append(&turn("turn-a", "p")).unwrap();
    let correction = |text: &str| Feedback { correction: Some(text.to_owned()), ..vote(7) };
    for text in ["42", "43", "42"] {
        log.add_feedback(&id, &correction(text)).unwrap();
    }
    let judged = |verdict| Judgement {
        time_ms: 9,
        judge: "j".to_owned(),
        choices: vec![ChoiceJudgement { index: 0, verdict, p: 0.9, thought_steps: 0, steps: vec![0.9] }],
    };
    assert!(log.add_correction_judgement(&id, "42", &judged(3)).unwrap());
    assert!(!log.add_correction_judgement(&id, "42", &judged(1)).unwrap(), "the first judgement stays");
    let unknown = log.add_correction_judgement(&TurnId("turn-x".into()), "42", &judged(1));
    assert!(matches!(unknown, Err(StoreError::Unknown(_))));
    let turn = log.get(&id).unwrap().unwrap();
    let verdicts: Vec<_> = turn.feedback.iter().map(|f| f.judgement.as_ref().and_then(Judgement::verdict)).collect();
    assert_eq!((verdicts, turn.verdict), (vec![Some(3), None, Some(3)], None));
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 1);
    assert_eq!(log.log.len(), 1, "nothing but the counts is left");
}

#[test]
fn the_oldest_make_room_for_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = pack(&turn("turn-00", "p")).unwrap().len() as u64;
    let log = SledTurns::open(dir.path(), 3 * bytes).unwrap();
    let dropped: u64 = (0..10).map(|i| log.append(&turn(&format!("turn-{i:02}"), "p")).unwrap()).sum();
    assert_eq!(dropped, 7);
    let left = log.list(&TurnFilter::default()).unwrap();
    assert_eq!(left.first().unwrap().id.0, "turn-07");
    assert_eq!(log.counts().unwrap(), TurnCounts { turns: 3, bytes: 3 * bytes });
    let log = log.list(&TurnFilter { limit: Some(2), ..TurnFilter::default() }).unwrap();
    assert_eq!(log.len(), 2);
}

/// Turns of a clock that ran ahead are no reason to drop the one that was just taken.
#[test]
fn the_newest_stays_also_where_others_began_in_the_future() {
    let dir = tempfile::tempdir().unwrap();
    let id = |ms: i64| new_turn_id(ms).0;
    let (now, year) = (1_700_000_000_000, 365 * 86_400_000);
    let bytes = pack(&turn(&id(now), "p")).unwrap().len() as u64;
    let log = SledTurns::open(dir.path(), 3 * bytes).unwrap();
    let ids: Vec<String> = [now + year, now + year + 1, now, now + 1, now + 2, now + 3].map(id).to_vec();
    for id in &ids {
        log.append(&turn(id, "p")).unwrap();
    }
    let left: Vec<String> = log.list(&TurnFilter::default()).unwrap().into_iter().map(|kept| kept.id.0).collect();
    assert_eq!(left, ids[3..]);
}

#[test]
fn a_flipped_bit_is_noticed_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    log.append(&turn("turn-a", "p")).unwrap();
    log.append(&turn("turn-b", "p")).unwrap();
    let tree = log.log.clone();
    let mut record = tree.get("turn-a").unwrap().unwrap().to_vec();
    *record.last_mut().unwrap() ^= 1;
    tree.insert("turn-a", record).unwrap();
    assert!(matches!(log.get(&TurnId("turn-a".into())), Err(StoreError::Damaged { .. })));
    assert_eq!(log.list(&TurnFilter::default()).unwrap().len(), 1);
}

#[test]
fn another_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    drop(log.db.open_tree("meta").unwrap().insert("format", &[9]).unwrap());
    drop(log);
    assert!(matches!(SledTurns::open(dir.path(), 1 << 20), Err(StoreError::Format { .. })));
}
