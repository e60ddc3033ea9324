//! Sequences and prompts shared out between keys, in an order that the script of a test decides.

use super::*;
use crate::engine::slot::RESUMED_TOKENS_MIN;

impl Rig {
    fn asks(&self, principal: &str, id: u64, ids: Vec<u32>, max_tokens: u32) {
        let adapter = Some("odd".to_owned());
        let job = Prepared { principal: principal.to_owned(), adapter, ..Rig::job(id, ids, max_tokens, None) };
        self.inputs.send(Input::Prepared(Box::new(job))).unwrap();
    }

    /// Every reply goes on with the odd numbers, no faster than a test can ask for more.
    fn odd(sequences: usize, replays: bool) -> Rig {
        let backend = Counting { replays, ..counting(sequences, Duration::from_millis(1), Arc::default()) };
        let mut rig = Rig::over(backend, 64);
        rig.load(999, "odd", 1);
        rig.until(|e| matches!(e, Event::AdapterLoaded { .. }));
        rig
    }

    /// The requests that were begun, in their order.
    fn begun(&self) -> Vec<u64> {
        let begun = |e: &Event| match e {
            Event::Started { id, .. } => Some(*id),
            _ => None,
        };
        self.seen.iter().filter_map(begun).collect()
    }

    /// Sequences that were taken away, and given again.
    fn moved(&mut self) -> (u64, u64) {
        self.seen.retain(|e| !matches!(e, Event::Stats { .. }));
        self.send(Command::Stats { id: 1_000 });
        self.until(|e| matches!(e, Event::Stats { .. }));
        let moved = |e: &Event| match e {
            Event::Stats { stats, .. } => Some((stats.suspended, stats.resumed)),
            _ => None,
        };
        self.seen.iter().find_map(moved).unwrap()
    }
}

fn odd_numbers(from: u32, count: usize) -> Vec<u32> {
    (1..=count as u32).map(|n| (from + 2 * n) % VOCAB as u32).collect()
}

#[test]
fn the_key_with_the_fewest_sequences_comes_first_and_each_key_in_order() {
    let mut rig = Rig::odd(2, true);
    rig.hold();
    for id in 1..=5 {
        rig.asks("ann", id, vec![1], 10);
    }
    for id in 11..=12 {
        rig.asks("bob", id, vec![1], 10);
    }
    rig.go_on();
    (1..=5).chain(11..=12).for_each(|id| rig.until(ended(id)));
    assert_eq!(rig.begun(), [1, 11, 2, 12, 3, 4, 5]);
    assert_eq!(rig.moved(), (0, 0));
}

#[test]
fn the_youngest_reply_of_a_key_gives_way_and_goes_on_where_it_stood() {
    let mut rig = Rig::odd(2, true);
    for id in 1..=3 {
        rig.asks("ann", id, vec![id as u32 * 2 + 1; 100], 1_000);
    }
    rig.until(|e| matches!(e, Event::Token(t) if t.id == 2));
    rig.asks("bob", 11, vec![1], 10);
    rig.until(ended(11));
    assert_eq!(rig.tokens_of(11), odd_numbers(1, 10));
    assert!(rig.finish_of(1).is_none() && rig.finish_of(2).is_none());
    for id in 1..=3 {
        rig.until(ended(id));
        assert_eq!(rig.tokens_of(id), odd_numbers(id as u32 * 2 + 1, 1_000), "request {id}");
    }
    // The one that gave way goes on before what its key asked later.
    assert_eq!(rig.begun(), [1, 2, 11, 3]);
    assert_eq!(rig.moved(), (1, 1));
}

#[test]
fn under_a_steady_stream_of_another_key_every_reply_comes_to_its_end() {
    let (mut rig, length) = (Rig::odd(2, true), 1_000);
    rig.asks("ann", 1, vec![3], length);
    rig.asks("ann", 2, vec![5], length);
    rig.until(|e| matches!(e, Event::Token(t) if t.id == 2));
    let mut next = 10;
    // Two of it are always there.
    while rig.finish_of(1).is_none() || rig.finish_of(2).is_none() {
        rig.asks("bob", next, vec![1], 4);
        if next > 10 {
            rig.until(ended(next - 1));
        }
        next += 1;
        assert!(next < 100_000, "a reply starves");
    }
    for id in 1..=2 {
        assert_eq!(rig.tokens_of(id), odd_numbers(id as u32 * 2 + 1, length as usize), "request {id}");
    }
    // Taken away once at first, and then not before it has written so many.
    let (suspended, resumed) = rig.moved();
    let most = 2 * (1 + u64::from(length / RESUMED_TOKENS_MIN));
    assert!((1..=most).contains(&suspended) && resumed == suspended, "{suspended} {resumed}");
}

#[test]
fn where_bits_would_change_nothing_is_taken_away() {
    let mut rig = Rig::odd(2, false);
    rig.hold();
    for id in 1..=3 {
        rig.asks("ann", id, vec![1], 1_000);
    }
    rig.go_on();
    rig.until(|e| matches!(e, Event::Token(t) if t.id == 2));
    rig.hold();
    rig.asks("bob", 11, vec![1], 10);
    rig.go_on();
    for id in [1, 2, 3, 11] {
        rig.until(ended(id));
    }
    assert_eq!((rig.begun(), rig.moved()), (vec![1, 2, 11, 3], (0, 0)));
}

#[test]
fn prompts_of_keys_are_read_by_turns() {
    let mut rig = Rig::odd(4, true);
    rig.hold();
    let before = rig.seen_by_backend.lock().unwrap().steps.len();
    rig.asks("ann", 1, vec![21; 6_400], 1);
    rig.asks("ann", 2, vec![23; 640], 1);
    rig.asks("bob", 11, vec![25; 128], 1);
    rig.go_on();
    [1, 2, 11].into_iter().for_each(|id| rig.until(ended(id)));
    let seen = rig.seen_by_backend.lock().unwrap();
    let read: Vec<u32> = seen.steps[before..before + 6].iter().map(|step| step[0]).collect();
    assert_eq!(read, [21, 25, 21, 25, 21, 21]);
}
