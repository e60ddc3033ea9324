//! Turns of one conversation: their text is kept once, read whole, and forgotten in all of them.

use super::fixture::turn;
use super::record::pack;
use super::*;
use crate::scoring::correction::said_right;
use crate::turn::{Feedback, FinishReason, Generation, Message, Role, Timings, Usage};

fn answer(content: &str, thinking: &str) -> Generation {
    Generation {
        index: 0,
        content: content.to_owned(),
        thinking: thinking.to_owned(),
        tool_calls: Vec::new(),
        thinking_ids: Vec::new(),
        reply_ids: vec![7; 3],
        seed: 1,
        finish_reason: FinishReason::Stop,
        usage: Usage::default(),
        timings: Timings::default(),
        engram: None,
        thought: None,
        thought_cut: false,
        not_enforced: Vec::new(),
        error: None,
        quality: None,
    }
}

/// Words of question or answer number `n`; no other number's are in them.
fn words(what: &str, n: usize) -> String {
    format!("<{what}{n}> ").repeat(12)
}

/// The turn that goes on with what was said so far.
fn next(n: usize, said: &[Message]) -> Turn {
    let system = Message::new(Role::System, "Be brief.".repeat(20));
    let asked = Message::new(Role::User, words("q", n));
    Turn {
        messages: [&[system], said, &[asked]].concat(),
        prompt_ids: (0..said.len() as u32 * 40 + 40).collect(),
        generations: vec![answer(&words("a", n), "A thought."), answer("Another.", "")],
        ..turn(&format!("turn-{n:05}"), "p")
    }
}

/// Which thoughts a client sends back: all as a session does, none, or that of the last answer.
#[derive(Clone, Copy, PartialEq)]
enum Thoughts {
    All,
    None,
    Last,
}

fn conversation(turns: usize, thoughts: Thoughts) -> Vec<Turn> {
    let (mut all, mut said) = (Vec::new(), Vec::new());
    for n in 0..turns {
        let turn = next(n, &said);
        said = turn.clone().said(0);
        let kept = match thoughts {
            Thoughts::All => 0,
            Thoughts::None => said.len(),
            Thoughts::Last => said.len() - 1,
        };
        said.iter_mut().take(kept).for_each(|message| message.reasoning_content = None);
        all.push(turn);
    }
    all
}

fn log_of(turns: &[Turn]) -> (tempfile::TempDir, SledTurns) {
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), 1 << 26).unwrap();
    turns.iter().for_each(|turn| assert_eq!(log.append(turn).unwrap(), 0));
    (dir, log)
}

fn only(n: usize) -> TurnFilter {
    TurnFilter { turn: Some(TurnId(format!("turn-{n:05}"))), ..TurnFilter::default() }
}

fn written(log: &SledTurns) -> u64 {
    log.counts().unwrap().bytes
}

#[test]
fn a_conversation_of_two_hundred_turns_costs_its_text_once() {
    for thoughts in [Thoughts::All, Thoughts::None, Thoughts::Last] {
        let turns = conversation(200, thoughts);
        let (_dir, log) = log_of(&turns);
        let whole: u64 = turns.iter().map(|turn| pack(turn).unwrap().len() as u64).sum();
        let half = written(&log_of(&turns[..100]).1);
        assert!(written(&log) < half * 21 / 10, "the second hundred costs what the first does: {half}");
        assert!(written(&log) * 30 < whole, "{} of {whole} bytes", written(&log));
        assert_eq!(log.list(&TurnFilter::default()).unwrap(), turns);
        assert_eq!(log.get(&turns[199].id).unwrap().as_ref(), turns.last());
    }
}

#[test]
fn other_people_other_words_and_other_answers_share_nothing_that_differs() {
    let said = next(0, &[]).said(0);
    let other_answer = next(0, &[]).said(1);
    let mut edited = said.clone();
    edited[0].content.push('!');
    let mut late = said.clone();
    late.push(Message::new(Role::System, "From now on in French."));
    let more = [(1, said.clone(), "q"), (2, other_answer, "p"), (3, edited, "p"), (4, late, "p"), (5, said, "p")];
    let mut turns = vec![next(0, &[])];
    turns.extend(more.into_iter().map(|(n, said, who)| Turn { principal: who.to_owned(), ..next(n, &said) }));
    // Examples differ from turn to turn; the system's text too.
    turns[5].messages.splice(1..1, [Message::new(Role::User, "e"), Message::new(Role::Assistant, "f")]);
    turns[5].examples = 2;
    let (_dir, log) = log_of(&turns);
    assert_eq!(log.list(&TurnFilter::default()).unwrap(), turns);
    let followers = log.followers_piece(&only(0)).unwrap().value;
    assert_eq!(followers.iter().map(|id| id.0.as_str()).collect::<Vec<_>>(), ["turn-00002", "turn-00005"]);
}

/// A turn that goes on with a corrected answer shares its text, and loses it when it is forgotten.
#[test]
fn a_conversation_goes_on_with_a_corrected_answer() {
    let first = next(0, &[]);
    let (_dir, log) = log_of(std::slice::from_ref(&first));
    let feedback = |principal: &str, words: &str| Feedback {
        time_ms: 1,
        principal: principal.to_owned(),
        vote: None,
        correction: Some(words.to_owned()),
        judgement: None,
    };
    log.add_feedback(&first.id, &feedback("p", "<think>so</think>It is <right>.")).unwrap();
    log.add_feedback(&first.id, &feedback("owner", "It is nobody's.")).unwrap();
    let said = said_right(log.get(&first.id).unwrap().unwrap());
    assert_eq!(said[1], Message::new(Role::Assistant, "It is <right>."), "in the words of the one who asked");
    let second = next(1, &said);
    let on = GoesOn { turn: first.id.clone(), messages: said.len() };
    log.append_on(second.clone(), &on).unwrap();
    // Its reply had read the answer before it was corrected.
    let late = next(2, &first.clone().said(0));
    log.append_on(late.clone(), &on).unwrap();
    let third = next(3, &second.clone().said(0));
    log.append(&third).unwrap();
    for turn in [&second, &late, &third] {
        assert_eq!(log.get(&turn.id).unwrap().as_ref(), Some(turn));
    }
    let whole: u64 = [&first, &second, &late, &third].map(|turn| pack(turn).unwrap().len() as u64).iter().sum();
    assert!(written(&log) < whole, "{} of {whole} bytes", written(&log));
    assert_eq!(log.forget(&only(0)).unwrap(), 1);
    for turn in log.list(&TurnFilter::default()).unwrap() {
        let kept = format!("{turn:?}");
        assert!(turn.redacted && !kept.contains("<q0>") && !kept.contains("<right>"), "{kept}");
    }
    assert_eq!(log.counts().unwrap().turns, 3);
    assert!(log.followers_piece(&only(1)).unwrap().value.contains(&third.id));
}

#[test]
fn a_reply_that_read_what_was_forgotten_since_is_kept_without_it() {
    let turns = conversation(3, Thoughts::All);
    let on = |turn: usize| GoesOn { turn: turns[turn].id.clone(), messages: turns[turn].clone().said(0).len() };
    // Nothing was forgotten.
    let (_dir, log) = log_of(&turns[..2]);
    log.append_on(turns[2].clone(), &on(1)).unwrap();
    assert_eq!(log.get(&turns[2].id).unwrap().as_ref(), Some(&turns[2]));
    // The turn itself, one before it, and both.
    for gone in [vec![1], vec![0], vec![0, 1]] {
        let (_dir, log) = log_of(&turns[..2]);
        gone.iter().for_each(|gone| assert_eq!(log.forget(&only(*gone)).unwrap(), 1));
        log.append_on(turns[2].clone(), &on(1)).unwrap();
        let kept = log.get(&turns[2].id).unwrap().unwrap();
        let text = serde_json::to_string(&kept).unwrap();
        assert!(kept.redacted && kept.prompt_ids.is_empty() && text.contains(&words("q", 2)));
        assert!(gone.iter().all(|gone| !text.contains(&words("q", *gone)) && !text.contains(&words("a", *gone))));
    }
    // One that was dropped for want of room is not forgotten.
    let bytes_max = pack(&turns[2]).unwrap().len() as u64 + 100;
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), bytes_max).unwrap();
    for turn in &turns[..2] {
        log.append(turn).unwrap();
    }
    for n in 'a'..='z' {
        log.append(&Turn { id: TurnId(format!("turn-00001{n}")), ..next(9, &[]) }).unwrap();
    }
    assert_eq!(log.get(&turns[1].id).unwrap(), None);
    log.append_on(turns[2].clone(), &on(1)).unwrap();
    assert_eq!(log.get(&turns[2].id).unwrap().as_ref(), Some(&turns[2]));
}

/// Nothing on disk holds what was forgotten, and the rest of the conversation is as it was.
fn demand_without(log: &SledTurns, turns: &[Turn], gone: &[usize]) {
    for (n, before) in turns.iter().enumerate().filter(|(n, _)| !gone.contains(n)) {
        let now = log.get(&before.id).unwrap().unwrap();
        let text = serde_json::to_string(&now).unwrap();
        for part in 0..turns.len() {
            let there = text.contains(&words("q", part)) && (part == n || text.contains(&words("a", part)));
            assert_eq!(there, part <= n && !gone.contains(&part), "words of {part} in turn {n} without {gone:?}");
        }
        let later = gone.iter().any(|gone| *gone < n);
        assert_eq!((now.redacted, now.prompt_ids.is_empty()), (later, later), "turn {n} without {gone:?}");
        assert_eq!(now.generations, before.generations);
    }
    for entry in log.records() {
        let text = String::from_utf8_lossy(&entry).into_owned();
        assert!(gone.iter().all(|n| !text.contains(&words("q", *n)) && !text.contains(&words("a", *n))));
    }
}

#[test]
fn what_is_forgotten_is_forgotten_in_the_turns_behind_it() {
    let turns = conversation(8, Thoughts::All);
    for gone in [vec![0], vec![3], vec![7], vec![0, 1], vec![2, 5], vec![1, 3, 4], (0..7).collect()] {
        let (_dir, log) = log_of(&turns);
        for n in &gone {
            let followers = log.followers_piece(&only(*n)).unwrap().value.len();
            assert_eq!(followers, 7 - n);
            assert_eq!(log.forget(&only(*n)).unwrap(), 1);
        }
        demand_without(&log, &turns, &gone);
    }
    // The order does not matter, nor does one stroke.
    let (_dir, log) = log_of(&turns);
    for n in [5, 2] {
        log.forget(&only(n)).unwrap();
    }
    demand_without(&log, &turns, &[2, 5]);
    let (_dir, log) = log_of(&turns);
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 8);
    assert_eq!((log.counts().unwrap(), log.records().len()), (TurnCounts::default(), 1), "only the counts are left");
}

#[test]
fn a_conversation_goes_on_without_what_was_forgotten() {
    let turns = conversation(4, Thoughts::All);
    let (_dir, log) = log_of(&turns);
    log.forget(&only(1)).unwrap();
    let said = log.get(&turns[3].id).unwrap().unwrap().said(0);
    let more = next(9, &said);
    log.append(&more).unwrap();
    assert_eq!(log.get(&more.id).unwrap().unwrap(), more);
    assert_eq!(log.followers_piece(&only(3)).unwrap().value, [more.id]);
}

#[test]
fn the_oldest_go_and_those_behind_them_stay_whole() {
    let turns = conversation(30, Thoughts::None);
    let (_dir, log) = log_of(&turns);
    let all = written(&log);
    drop(log);
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), all / 2).unwrap();
    let dropped: u64 = turns.iter().map(|turn| log.append(turn).unwrap()).sum();
    assert!(dropped > 0 && written(&log) <= all / 2);
    assert_eq!(log.list(&TurnFilter::default()).unwrap(), turns[dropped as usize..]);
}

/// A log of the format before, as that version wrote it: each turn whole.
#[test]
fn an_older_log_is_linked_when_it_is_opened() {
    let turns = conversation(20, Thoughts::Last);
    let dir = tempfile::tempdir().unwrap();
    SledTurns::open(dir.path(), 1 << 26).unwrap().write_unlinked(&turns);
    let log = SledTurns::open(dir.path(), 1 << 26).unwrap();
    assert_eq!(log.list(&TurnFilter::default()).unwrap(), turns);
    let (_dir, linked) = log_of(&turns);
    assert_eq!(log.counts().unwrap(), linked.counts().unwrap());
    log.forget(&only(4)).unwrap();
    demand_without(&log, &turns, &[4]);
}

#[test]
fn a_lost_turn_costs_its_own_words_alone() {
    let turns = conversation(4, Thoughts::All);
    let (_dir, log) = log_of(&turns);
    log.damage_record(&turns[1].id);
    // The loss is seen in all that stand behind it, however far.
    for n in [2, 3] {
        let now = log.get(&turns[n].id).unwrap().unwrap();
        assert!(now.redacted && now.prompt_ids.is_empty());
        let left = turns[n].messages.len() - turns[2].messages.len() + 1;
        assert_eq!(now.messages, turns[n].messages[turns[n].messages.len() - left..]);
    }
    assert_eq!(log.list(&TurnFilter::default()).unwrap().len(), 3);
    assert_eq!(log.forget(&only(1)).unwrap(), 1, "what cannot be read can be forgotten");
    assert!(log.get(&turns[2].id).unwrap().unwrap().redacted);
}

/// A question, a call, its result and an answer are two turns; without one of them no half of the call is left.
#[test]
fn no_half_of_a_call_is_left() {
    use crate::turn::ToolCall;
    let call = ToolCall { id: "call-1".into(), name: "find".into(), arguments: serde_json::json!({}) };
    let mut asks = next(0, &[]);
    asks.generations = vec![Generation { tool_calls: vec![call], ..answer("", "") }];
    let mut answers = next(1, &asks.clone().said(0));
    let result = Message { tool_call_id: Some("call-1".into()), ..Message::new(Role::Tool, "found") };
    *answers.messages.last_mut().unwrap() = result;
    let more = next(2, &answers.clone().said(0));
    let turns = [asks, answers, more];
    let left = |gone: usize| {
        let (_dir, log) = log_of(&turns);
        log.forget(&only(gone)).unwrap();
        let messages = log.get(&turns[2].id).unwrap().unwrap().messages;
        messages.iter().skip(1).map(|m| (m.role, m.tool_calls.len())).collect::<Vec<_>>()
    };
    let (user, assistant) = ((Role::User, 0), (Role::Assistant, 0));
    assert_eq!(left(0), [assistant, user], "without question and call the result says nothing");
    assert_eq!(left(1), [user, assistant, user]);
}

/// Whoever forgets a long conversation does not write what is about to go anew, and nobody waits for it.
#[test]
fn a_long_conversation_is_forgotten_in_one_stroke() {
    let turns = conversation(3 * PIECE_TURNS, Thoughts::None);
    let (_dir, log) = log_of(&turns);
    let all = TurnFilter { conversation: Some("c".into()), ..TurnFilter::default() };
    assert_eq!(log.forget_piece(&all).unwrap().value, turns.len(), "the first piece takes those behind it along");
    assert_eq!(log.counts().unwrap(), TurnCounts::default());
}

/// A turn that a thousand go on with is dropped without a thousand copies of it.
#[test]
fn a_dropped_turn_is_not_multiplied() {
    let mut first = next(0, &[]);
    first.messages[1].content = "long ".repeat(2_000);
    let said = first.clone().said(0);
    let forks: Vec<Turn> = (1..50).map(|n| next(n, &said)).collect();
    let (_dir, log) = log_of(&[&[first.clone()], &forks[..]].concat());
    let bytes_max = written(&log);
    drop(log);
    let dir = tempfile::tempdir().unwrap();
    let log = SledTurns::open(dir.path(), bytes_max).unwrap();
    [&[first], &forks[..]].concat().iter().for_each(|turn| assert_eq!(log.append(turn).unwrap(), 0));
    let dropped = log.append(&next(60, &[])).unwrap();
    assert!(dropped <= 4, "{dropped} were dropped for one");
    assert!(written(&log) <= bytes_max);
    let last = log.get(&forks[48].id).unwrap().unwrap();
    assert_eq!(last, forks[48], "the newest stays whole");
    assert!(log.get(&forks[20].id).unwrap().unwrap().redacted);
}
