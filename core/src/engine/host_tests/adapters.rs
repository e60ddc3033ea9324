//! Requests under adapters: whose they are, and when one is dropped.

use super::*;

#[test]
fn requests_under_different_adapters_share_steps_and_keep_to_their_own() {
    let mut rig = Rig::start(4, 8, Duration::ZERO);
    rig.load(100, "gen-1", 1);
    rig.load(101, "gen-2", 2);
    rig.submit(1, vec![10], 5, Some("gen-1"), false);
    rig.submit(2, vec![10], 5, Some("gen-2"), false);
    rig.submit(3, vec![10], 5, None, false);
    rig.submit(4, vec![10], 5, Some("gen-3"), false);
    for id in 1..=4 {
        rig.until(ended(id));
    }
    assert_eq!(rig.tokens_of(1), [12, 14, 16, 18, 20]);
    assert_eq!(rig.tokens_of(2), [13, 16, 19, 22, 25]);
    assert_eq!(rig.tokens_of(3), [11, 12, 13, 14, 15]);
    assert!(matches!(rig.failure_of(4), Some((FailureKind::Invalid, m)) if m.contains("gen-3 is not loaded")));
}

#[test]
fn an_adapter_is_dropped_when_its_last_request_has_ended() {
    let mut rig = Rig::start(1, 8, Duration::from_millis(1));
    rig.load(100, "gen-1", 1);
    rig.submit(1, vec![1], 10, Some("gen-1"), false);
    rig.submit(2, vec![1], 10, Some("gen-1"), false);
    rig.send(Command::DropAdapter { id: 101, revision: "gen-1".to_owned() });
    // Promised before the drop: served to the end. Asked after it: refused.
    rig.submit(3, vec![1], 10, Some("gen-1"), false);
    rig.until(|e| matches!(e, Event::AdapterDropped { id: 101, .. }));
    for id in [1, 2] {
        assert_eq!(rig.tokens_of(id), (1..=10).map(|n| 1 + 2 * n).collect::<Vec<_>>());
    }
    assert!(matches!(rig.failure_of(3), Some((FailureKind::Invalid, _))));
    rig.send(Command::DropAdapter { id: 102, revision: "gen-1".to_owned() });
    rig.until(ended(102));
}

#[test]
fn a_name_stands_for_one_content_and_there_are_so_many() {
    let mut rig = Rig::start(2, 8, Duration::ZERO);
    rig.load(100, "a", 1);
    rig.load(101, "a", 1);
    rig.load(102, "a", 2);
    for n in 0..16 {
        rig.load(200 + n, &format!("gen-{n}"), 1);
    }
    rig.until(ended(215));
    let loaded = |rig: &Rig, id| rig.seen.iter().any(|e| matches!(e, Event::AdapterLoaded { id: i, .. } if *i == id));
    assert!(loaded(&rig, 100) && loaded(&rig, 101) && loaded(&rig, 214));
    assert!(matches!(rig.failure_of(102), Some((FailureKind::Invalid, m)) if m.contains("another content")));
    assert!(matches!(rig.failure_of(215), Some((FailureKind::Busy, _))));
    // Loaded again while a request still holds it: the drop is off.
    rig.hold();
    rig.submit(1, vec![1], 1_000, Some("a"), false);
    rig.send(Command::DropAdapter { id: 300, revision: "a".to_owned() });
    rig.load(301, "a", 1);
    rig.until(|e| matches!(e, Event::AdapterLoaded { id: 301, .. }));
    rig.go_on();
    rig.until(ended(300));
    rig.submit(2, vec![1], 3, Some("a"), false);
    rig.until(ended(2));
    assert_eq!(rig.tokens_of(2), [3, 5, 7]);
}
