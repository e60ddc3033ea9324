//! What the turn log promises beyond one turn: its limit, damaged records, listings.

use super::fixture::turn;
use super::*;
use crate::turn::Vote;

fn words(bytes: usize) -> Feedback {
    Feedback {
        time_ms: 1,
        principal: "p".to_owned(),
        vote: Some(Vote::Up),
        correction: Some("x".repeat(bytes)),
        judgement: None,
    }
}

#[test]
fn feedback_takes_room_like_a_turn_and_gives_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    log.append(&turn("turn-a", "p")).unwrap();
    let one = log.counts().unwrap().bytes;
    log.add_feedback(&TurnId("turn-a".into()), &words(3_000)).unwrap();
    assert!(log.counts().unwrap().bytes > one + 3_000);
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 1);
    assert_eq!(log.counts().unwrap(), TurnCounts::default());
    drop(log);

    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 3 * one).unwrap();
    let dropped = (0..3).map(|i| log.append(&turn(&format!("turn-{i}"), "p")).unwrap()).sum::<u64>();
    assert_eq!(dropped, 0, "three turns fit");
    log.add_feedback(&TurnId("turn-2".into()), &words(one as usize)).unwrap();
    assert!(log.append(&turn("turn-3", "p")).unwrap() >= 2);
    assert!(log.counts().unwrap().bytes <= 3 * one);
}

#[test]
fn one_turn_is_found_by_its_id_and_no_other_key_passes_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    log.append(&turn("turn-a", "p")).unwrap();
    log.add_feedback(&TurnId("turn-a".into()), &words(1)).unwrap();
    let by = |id: &str, who: Option<&str>| TurnFilter {
        turn: Some(TurnId(id.to_owned())),
        principal: who.map(str::to_owned),
        ..TurnFilter::default()
    };
    let found = |filter: &TurnFilter| log.list(filter).unwrap().len();
    let seen = [found(&by("turn-a", None)), found(&by("turn-a", Some("p"))), found(&by("turn-a", Some("q")))];
    assert_eq!(seen, [1, 1, 0]);
    for key in ["turn-a/", "!counts", "!unscored/turn-a"] {
        assert_eq!((found(&by(key, None)), log.forget(&by(key, None)).unwrap()), (0, 0), "{key}");
    }
    assert_eq!(log.forget(&by("turn-a", Some("q"))).unwrap(), 0);
    assert_eq!(log.forget(&by("turn-typo", None)).unwrap(), 0);
    assert!(!std::fs::read_to_string(dir.path().join("forgotten")).unwrap().contains("typo"), "what never was");
    assert_eq!(log.forget(&by("turn-a", Some("p"))).unwrap(), 1);
}

#[test]
fn a_listing_from_the_newest_back_is_the_other_way_round() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    for n in 0..2 * PIECE_TURNS + 7 {
        log.append(&turn(&format!("turn-{n:04}"), if n % 3 == 0 { "q" } else { "p" })).unwrap();
    }
    log.add_feedback(&TurnId("turn-0205".into()), &words(1)).unwrap();
    let of = |principal: Option<&str>, newest_first: bool| TurnFilter {
        principal: principal.map(str::to_owned),
        newest_first,
        ..TurnFilter::default()
    };
    for principal in [None, Some("p"), Some("q"), Some("nobody")] {
        let mut all = log.list(&of(principal, false)).unwrap();
        all.reverse();
        assert_eq!(log.list(&of(principal, true)).unwrap(), all, "{principal:?}");
        // Page by page.
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = log.list(&TurnFilter { after, limit: Some(10), ..of(principal, true) }).unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
            pages.extend(page);
        }
        assert_eq!(pages, all, "{principal:?}");
    }
}

#[test]
fn a_listing_since_a_time_begins_there_and_a_forgetting_looks_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    let at = |id: TurnId, time_ms: i64| Turn { time_ms, ..turn(&id.0, "p") };
    for time_ms in 0..=PIECE_TURNS as i64 {
        log.append(&at(new_turn_id(time_ms), time_ms)).unwrap();
    }
    let late: Vec<Turn> = [1_000, 1_001, 2_000].map(|time_ms| at(new_turn_id(time_ms), time_ms)).to_vec();
    for turn in &late {
        log.append(turn).unwrap();
    }
    let since = |since_ms: i64| TurnFilter { since_ms: Some(since_ms), ..TurnFilter::default() };
    // In the first piece, which looks at fewer turns than came before.
    assert_eq!(log.list_piece(&since(1_000)).unwrap().value, late);
    assert_eq!(log.list(&since(1_001)).unwrap(), late[1..]);
    assert_eq!(log.list(&TurnFilter { after: Some(late[1].id.clone()), ..since(3) }).unwrap(), late[2..]);
    assert_eq!(log.list(&since(i64::MAX)).unwrap(), []);
    assert_eq!(log.list(&since(i64::MIN)).unwrap().len(), PIECE_TURNS + 4);
    // From the newest back it ends there: nothing is left to go on with, however many turns came before.
    let back = |since_ms: i64| TurnFilter { newest_first: true, ..since(since_ms) };
    let piece = log.list_piece(&back(1_000)).unwrap();
    assert_eq!((piece.value, piece.next), (late.iter().rev().cloned().collect(), None));
    let below = TurnFilter { after: Some(new_turn_id(900)), ..back(1_000) };
    assert_eq!(log.list_piece(&below).unwrap().next, None);
    assert_eq!(log.list(&back(i64::MIN)).unwrap().len(), PIECE_TURNS + 4);
    // Ids that say no time are looked at.
    let (early, odd) = (at(TurnId("a".into()), 5), at(TurnId("zebra".into()), 1_500));
    for turn in [&early, &odd] {
        log.append(turn).unwrap();
    }
    assert_eq!(log.list(&since(1_000)).unwrap(), [&late[..], &[odd]].concat());
    assert_eq!(log.list(&since(5)).unwrap()[0], early);
    assert_eq!(log.list(&back(5)).unwrap().last(), Some(&early));
    assert_eq!(log.forget(&since(1_000)).unwrap(), 4);
    assert_eq!(log.list(&since(1_000)).unwrap(), []);
}

#[test]
fn a_damaged_turn_can_be_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    log.append(&turn("turn-a", "p")).unwrap();
    log.append(&turn("turn-b", "p")).unwrap();
    drop(log);
    // sled lets go of its lock a moment later.
    assert!(salvage::hold(dir.path()).unwrap().is_some());
    let db = sled::open(dir.path()).unwrap();
    let tree = db.open_tree("log").unwrap();
    let mut record = tree.get("turn-a").unwrap().unwrap().to_vec();
    *record.last_mut().unwrap() ^= 1;
    tree.insert("turn-a", record).unwrap();
    drop((tree, db));
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    assert!(matches!(log.get(&TurnId("turn-a".into())), Err(StoreError::Damaged { .. })));
    assert_eq!(log.list(&TurnFilter::default()).unwrap().len(), 1);
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 2, "what cannot be read can be forgotten");
    assert_eq!(log.counts().unwrap(), TurnCounts::default());
}

#[test]
fn a_log_whose_lock_is_let_go_in_a_moment_opens() {
    let dir = tempfile::tempdir().unwrap();
    let before = SledTurns::open(dir.path(), 1 << 20).unwrap();
    before.append(&turn("turn-a", "p")).unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(before);
    });
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(log.list(&TurnFilter::default()).unwrap().len(), 1);
    holder.join().unwrap();
    let refused = SledTurns::open(dir.path(), 1 << 20).err().expect("the lock is kept").to_string();
    assert!(refused.contains("could not acquire lock"), "{refused}");
}

fn session(name: &str, turn: &str) -> Session {
    let (principal, turn) = ("p".to_owned(), TurnId(turn.to_owned()));
    Session { principal, name: name.to_owned(), turn, created_ms: 1, updated_ms: 2 }
}

#[test]
fn sessions_stand_at_turns_that_are_there_and_go_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    for id in ["turn-a", "turn-b"] {
        log.append(&turn(id, "p")).unwrap();
    }
    assert!(matches!(log.put_session(&session("x", "turn-c")), Err(StoreError::Unknown(_))));
    assert!(matches!(log.put_session(&session("x", "!counts")), Err(StoreError::Unknown(_))));
    log.put_session(&session("x", "turn-a")).unwrap();
    log.put_session(&session("x", "turn-b")).unwrap();
    log.put_session(&session("y", "turn-a")).unwrap();
    assert_eq!(log.session("p", "x").unwrap(), Some(session("x", "turn-b")));
    // Neither the beginning of a name nor of a principal's is enough.
    assert_eq!((log.session("p", "").unwrap(), log.sessions("").unwrap()), (None, Vec::new()));
    let forgotten = TurnFilter { turn: Some(TurnId("turn-a".to_owned())), ..TurnFilter::default() };
    assert_eq!(log.forget(&forgotten).unwrap(), 1);
    assert_eq!(log.sessions("p").unwrap(), [session("x", "turn-b")]);
    assert!(!log.remove_session("p", "y").unwrap(), "its name went with its turn");
    assert!(log.remove_session("p", "x").unwrap());
    assert_eq!(log.sessions("p").unwrap(), []);
}

#[test]
fn a_principal_has_room_for_so_many_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
    log.append(&turn("turn-a", "p")).unwrap();
    for n in 0..SESSIONS_MAX {
        log.room_for_session("p").unwrap();
        log.put_session(&session(&n.to_string(), "turn-a")).unwrap();
    }
    assert!(matches!(log.room_for_session("p"), Err(StoreError::SessionsFull)));
    log.room_for_session("q").unwrap();
}
