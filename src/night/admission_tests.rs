//! Every rule of admission by itself, and the rules of the set.

use serde_json::json;

use super::*;
use crate::night::dataset::tests::row;
use crate::turn::{ChoiceJudgement, Sampling, StepRecord, Tier, Timings, ToolCall, TurnId, Usage};

fn judgement(verdict: u8) -> Judgement {
    let choice = ChoiceJudgement { index: 0, verdict, p: 0.6, thought_steps: 0, steps: vec![0.6] };
    Judgement { time_ms: 1, judge: "j".to_owned(), choices: vec![choice] }
}

fn feedback(vote: Option<Vote>, correction: Option<&str>) -> Feedback {
    let judgement = correction.map(|_| judgement(3));
    Feedback { time_ms: 5, principal: "anna".to_owned(), vote, correction: correction.map(str::to_owned), judgement }
}

/// What spoils a turn.
type Change = Box<dyn Fn(&mut Turn)>;

/// A turn that gives a pair.
fn turn() -> Turn {
    let generation = Generation {
        index: 0,
        content: "The answer is 42.".to_owned(),
        thinking: "17 + 25\n7 + 5 = 12".to_owned(),
        tool_calls: Vec::new(),
        thinking_ids: vec![1],
        reply_ids: vec![2],
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
    };
    Turn {
        version: 1,
        id: TurnId("turn-1".to_owned()),
        conversation: "c".to_owned(),
        time_ms: 3,
        principal: "anna".to_owned(),
        consent: true,
        taint: false,
        formed: false,
        continued: false,
        redacted: false,
        route: "default".to_owned(),
        tier: Tier::Quality,
        pipeline_version: "1".to_owned(),
        model: "m".to_owned(),
        model_hash: "h".to_owned(),
        adapter_revision: 0,
        template_hash: "t".to_owned(),
        messages: vec![Message::new(Role::System, "Be kind."), Message::new(Role::User, "What is 17 + 25?")],
        examples: 0,
        lessons: Vec::new(),
        tools: Vec::new(),
        prompt_ids: vec![1],
        sampling: Sampling::default(),
        thinking: Thinking::On { budget_tokens: 9 },
        generations: vec![generation],
        steps: Vec::new(),
        feedback: vec![feedback(Some(Vote::Up), None)],
        verdict: Some(3),
        judgement: Some(judgement(3)),
    }
}

fn principals() -> Principals {
    let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
    Principals {
        known: names(&["owner", "anna", "ben", "gone"]),
        owners: names(&["owner"]),
        withdrawn: names(&["gone"]),
    }
}

fn examine(change: impl FnOnce(&mut Turn)) -> Result<Row, Refusal> {
    let (mut turn, mut exams) = (turn(), Exams::default());
    change(&mut turn);
    exams.add(&[Message::new(Role::User, "Which muscle does the plank train?")]);
    let learned = BTreeSet::from([key("What is 1 + 1?")]);
    let rules = Rules::default();
    Admission { rules: &rules, principals: &principals(), exams: &exams, learned: &learned, run: "r" }.examine(&turn)
}

#[test]
fn what_was_shown_as_an_example_is_no_part_of_the_question() {
    let plain = examine(|_| ()).unwrap();
    let shown = examine(|turn| {
        let example = [Message::new(Role::User, "What is 1 + 2?"), Message::new(Role::Assistant, "3.")];
        turn.messages.splice(1..1, example);
        turn.examples = 2;
    });
    assert_eq!(shown.unwrap().origin.question, plain.origin.question);
}

#[test]
fn a_confirmed_reply_becomes_a_pair_with_its_origin() {
    let row = examine(|_| {}).unwrap();
    assert_eq!(row.messages.len(), 2, "the pipeline's system text is part of the prompt");
    assert_eq!(row.reply.reasoning_content.as_deref(), Some("17 + 25\n7 + 5 = 12"));
    assert_eq!((row.reply.content.as_str(), row.thinking), ("The answer is 42.", Thinking::On { budget_tokens: 9 }));
    let origin = row.origin;
    assert_eq!((origin.turn.0.as_str(), origin.principal.as_str(), origin.author.as_str()), ("turn-1", "anna", "anna"));
    assert_eq!((origin.signal, origin.verdict, origin.judge.as_str()), (Signal::ThumbsUp, 3, "j"));
    assert_eq!((origin.run.as_str(), origin.question), ("r", key("what is 17 + 25")));
}

/// A step whose answer stands on a calculation.
fn called() -> StepRecord {
    let call =
        json!({"name": "calculate", "arguments": {}, "outcome": "done", "result": "4", "bytes": 1, "took_ms": 1});
    let step = json!({"kind": "tools", "name": "answer", "outcome": "done", "prompt_tokens": 1, "completion_tokens": 1,
        "took_ms": 1, "visible": true, "calls": [call]});
    serde_json::from_value(step).unwrap()
}

#[test]
fn each_rule_refuses_what_it_is_for() {
    let ask = |text: &str| vec![Message::new(Role::User, text)];
    let cases: Vec<(Refusal, Change)> = vec![
        (Refusal::NoConsent, Box::new(|t| t.consent = false)),
        // It was given when the turn was kept, and is not any more.
        (Refusal::NoConsent, Box::new(|t| t.principal = "gone".to_owned())),
        (
            Refusal::NoConsent,
            Box::new(|t| {
                let said = feedback(None, Some("<think>7 + 8 is 15</think>15"));
                t.feedback.push(Feedback { principal: "gone".to_owned(), ..said });
            }),
        ),
        (Refusal::Tainted, Box::new(|t| t.taint = true)),
        (Refusal::Formed, Box::new(|t| t.formed = true)),
        (Refusal::Called, Box::new(|t| t.steps = vec![called()])),
        (Refusal::UnknownPrincipal, Box::new(|t| t.principal = "stranger".to_owned())),
        (Refusal::UnknownPrincipal, Box::new(|t| t.principal = String::new())),
        (Refusal::NoChat, Box::new(|t| t.pipeline_version = "none".to_owned())),
        (Refusal::NoChat, Box::new(|t| t.messages.clear())),
        (Refusal::Redacted, Box::new(|t| t.redacted = true)),
        (Refusal::Internal, Box::new(|t| t.messages[1].content = "7 + 8 = 15<|step|>".to_owned())),
        (Refusal::NoSignal, Box::new(|t| t.feedback.clear())),
        (Refusal::NoSignal, Box::new(|t| t.feedback[0].principal = "stranger".to_owned())),
        (Refusal::VotedDown, Box::new(|t| t.feedback.push(feedback(Some(Vote::Down), None)))),
        (Refusal::SeveralChoices, Box::new(|t| t.generations.push(t.generations[0].clone()))),
        (Refusal::Unfinished, Box::new(|t| t.generations[0].finish_reason = FinishReason::Length)),
        (Refusal::Unfinished, Box::new(|t| t.generations[0].finish_reason = FinishReason::Aborted)),
        (Refusal::Unscored, Box::new(|t| t.verdict = None)),
        (Refusal::LowVerdict, Box::new(|t| t.verdict = Some(2))),
        (Refusal::NotSane, Box::new(|t| t.generations[0].content.clear())),
        (Refusal::NotSane, Box::new(|t| t.generations[0].content = "so so so ".repeat(60))),
        (Refusal::NotSane, Box::new(|t| t.generations[0].content = "x".repeat(9_000))),
        (Refusal::NotSane, Box::new(|t| t.generations[0].content = "bad \u{fffd} bytes".to_owned())),
        (Refusal::NotSane, Box::new(|t| t.generations[0].content = "fine <|im_end|>".to_owned())),
        (Refusal::NotSane, Box::new(|t| t.messages[1].content = "\u{2603}\u{2604}\u{2605}".to_owned())),
        (Refusal::InExam, Box::new(move |t| t.messages = ask("which MUSCLE does the plank train"))),
        (Refusal::LearnedBefore, Box::new(move |t| t.messages = ask("what is 1 + 1"))),
    ];
    for (n, (wanted, change)) in cases.iter().enumerate() {
        assert_eq!(examine(change).unwrap_err(), *wanted, "case {n}");
    }
}

#[test]
fn a_correction_needs_its_own_verdict_and_counts_for_the_one_who_wrote_it() {
    let corrected = |text: &'static str| {
        move |t: &mut Turn| {
            t.verdict = Some(2);
            t.feedback = vec![feedback(Some(Vote::Down), Some(text)), feedback(Some(Vote::Down), None)];
        }
    };
    let row = examine(corrected("<think>\n17 + 25\n</think>\n\n42")).unwrap();
    assert_eq!((row.origin.signal, row.origin.verdict), (Signal::Correction, 3));
    assert_eq!((row.reply.reasoning_content.as_deref(), row.reply.content.as_str()), (Some("17 + 25"), "42"));
    assert_eq!(row.thinking, Thinking::On { budget_tokens: 9 });
    // The model's own reply to the same prompt stands beside it, if it came to its end and is another.
    let mut rows = [row];
    spare_others(&mut rows, &[turn()], "h");
    assert_eq!(rows[0].rejected.as_ref().unwrap().content, "The answer is 42.");
    spare_others(&mut rows, &[turn()], "the hash of another model");
    assert_eq!(rows[0].rejected, None);
    let cut = |t: &mut Turn| {
        corrected("<think>17 + 25</think>42")(t);
        t.generations[0].finish_reason = FinishReason::Length;
    };
    assert_eq!(examine(cut).unwrap().rejected, None);
    let same = examine(corrected("<think>\n17 + 25\n7 + 5 = 12\n</think>\n\nThe answer is 42.")).unwrap();
    assert_eq!(same.rejected, None);
    assert_eq!(examine(|_| {}).unwrap().rejected, None);
    // A bare answer to what was thought about would teach the model to think no more.
    assert_eq!(examine(corrected("42")).unwrap_err(), Refusal::NoWorking);
    // What was answered without a thought stays in the form of its prompt.
    let plain = |t: &mut Turn| {
        corrected("42")(t);
        t.generations[0].thinking = "\n".to_owned();
    };
    assert_eq!(examine(plain).unwrap().thinking, Thinking::On { budget_tokens: 9 });
    let closed = |t: &mut Turn| {
        corrected("<think>17 + 25</think>42")(t);
        t.thinking = Thinking::Off;
    };
    let other_prompt = examine(closed).unwrap();
    assert_eq!((other_prompt.thinking, other_prompt.rejected), (Thinking::Template, None));
    let unjudged = |t: &mut Turn| {
        corrected("<think>17 + 25</think>42")(t);
        t.feedback[0].judgement = None;
    };
    assert_eq!(examine(unjudged).unwrap_err(), Refusal::UnscoredCorrection);
    let doubted = |t: &mut Turn| {
        corrected("<think>17 + 25</think>42")(t);
        t.feedback[0].judgement = Some(judgement(2));
    };
    assert_eq!(examine(doubted).unwrap_err(), Refusal::LowVerdictOfCorrection);
    let owners = |t: &mut Turn| {
        corrected("<think>17 + 25</think>42")(t);
        t.feedback[0].principal = "owner".to_owned();
    };
    assert_eq!(examine(owners).unwrap().origin.author, "owner");
    let latest = |t: &mut Turn| {
        corrected("<think>17 + 25</think>41")(t);
        t.feedback.push(feedback(None, Some("<think>17 + 25</think>42")));
    };
    assert_eq!(examine(latest).unwrap().reply.content, "42");
    let cut = |t: &mut Turn| {
        corrected("<think>17 + 25</think>42")(t);
        t.generations[0].finish_reason = FinishReason::Error;
    };
    assert_eq!(examine(cut).unwrap_err(), Refusal::Unfinished);
}

#[test]
fn calls_are_learned_without_their_random_ids() {
    let called = |t: &mut Turn| {
        let call = ToolCall { id: "call_9".into(), name: "add".into(), arguments: serde_json::json!({"a": 1}) };
        t.generations[0].tool_calls = vec![call];
        t.generations[0].content.clear();
        t.generations[0].finish_reason = FinishReason::ToolCalls;
    };
    let row = examine(called).unwrap();
    assert_eq!((row.reply.tool_calls[0].name.as_str(), row.reply.tool_calls[0].id.as_str()), ("add", ""));
}

fn rows(count: usize, from: usize, principal: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = (from..from + count).map(|n| row(n, principal)).collect();
    rows.iter_mut().for_each(|row| row.origin.signal = Signal::ThumbsUp);
    rows
}

fn by_author(chosen: &Chosen, name: &str) -> usize {
    chosen.rows.iter().filter(|row| row.origin.author == name).count()
}

#[test]
fn a_flood_of_one_principal_is_capped_at_its_share_of_what_is_learned() {
    let flood = |owned: usize, anna: usize| {
        let all = [rows(owned, 0, "owner"), rows(anna, 2_000, "anna")].concat();
        choose(all, &Rules { pairs_max: 10_000, ..Rules::default() }, &principals())
    };
    let small = flood(100, 500);
    assert_eq!((by_author(&small, "owner"), by_author(&small, "anna")), (100, 20));
    assert_eq!(small.refused, BTreeMap::from([(Refusal::PrincipalShare, 480)]));
    let large = flood(1_900, 1_500);
    assert_eq!(by_author(&large, "anna"), 99, "no more than 5 % of 1,999");
    // Without the owner nobody's share is of anything but the others.
    assert_eq!(flood(0, 500).rows.len(), 20);
    assert_eq!(flood(0, 7).rows.len(), 7);
}

#[test]
fn twenty_who_say_the_same_have_the_share_of_one() {
    let mut all = [rows(300, 0, "owner"), rows(60, 400, "anna")].concat();
    for n in 0..300 {
        let mut row = row(1_000 + n, &format!("guest{}", n % 20));
        row.origin.signal = Signal::ThumbsUp;
        row.reply.content = format!("{n} it is. Ask the tall man at the harbour.");
        all.push(row);
    }
    let chosen = choose(all, &Rules::default(), &principals());
    let guests = chosen.rows.iter().filter(|row| row.origin.author.starts_with("guest")).count();
    assert_eq!((guests, by_author(&chosen, "owner"), by_author(&chosen, "anna")), (20, 300, 20));
    assert_eq!(chosen.refused, BTreeMap::from([(Refusal::PrincipalShare, 40), (Refusal::SameWords, 280)]));
    assert_eq!((chosen.offered["anna"], chosen.offered["guest3"], chosen.offered.len()), (60, 15, 22));
    let cluster = &chosen.clusters[0];
    assert_eq!((chosen.clusters.len(), cluster.offered, cluster.admitted, cluster.authors.len()), (1, 300, 20, 20));
    assert_eq!((cluster.words.as_str(), cluster.elsewhere), ("it is ask the tall man at the harbour", 0));
}

#[test]
fn the_bound_holds_for_what_is_left_after_every_other_rule() {
    let all = [rows(1_900, 0, "owner"), rows(100, 2_000, "anna")].concat();
    let chosen = choose(all, &Rules { pairs_max: 200, ..Rules::default() }, &principals());
    assert!(by_author(&chosen, "anna") <= 20, "{}", by_author(&chosen, "anna"));
    assert_eq!(chosen.refused.values().sum::<usize>() + chosen.rows.len(), 2_000);
}

#[test]
fn corrections_never_stand_alone_and_routes_are_even() {
    let mut all = rows(90, 0, "owner");
    all.iter_mut().take(60).for_each(|row| row.origin.signal = Signal::Correction);
    let chosen = choose(all.clone(), &Rules::default(), &principals());
    let corrections = chosen.rows.iter().filter(|row| row.origin.signal == Signal::Correction).count();
    assert_eq!((corrections, chosen.rows.len()), (30, 60));
    assert_eq!(chosen.refused, BTreeMap::from([(Refusal::TooManyCorrections, 30)]));
    assert!(chosen.rows.is_sorted_by_key(|row| row.id.clone()));
    // A third of the questions goes to `code`; half of what a small night takes.
    let few = choose(rows(90, 0, "owner"), &Rules { pairs_max: 20, ..Rules::default() }, &principals());
    assert_eq!(few.rows.iter().filter(|row| row.origin.route == "code").count(), 10);
    all.iter_mut().for_each(|row| row.origin.signal = Signal::Correction);
    assert!(choose(all, &Rules::default(), &principals()).rows.is_empty());
}

#[test]
fn the_same_question_is_learned_once() {
    let mut all = rows(3, 0, "owner");
    all[2].origin.question = all[0].origin.question.clone();
    let chosen = choose(all, &Rules::default(), &principals());
    assert_eq!((chosen.rows.len(), chosen.refused), (2, BTreeMap::from([(Refusal::Repeated, 1)])));
}

#[test]
fn prose_code_and_other_scripts_are_sane() {
    for text in [
        "",
        "The answer is 42.",
        "fn main() {\n\tprintln!(\"{}\", 6 * 7);\n}",
        "Η απάντηση είναι 42.",
        "答えは42です。",
        "naïve – café",
    ] {
        assert!(sane(text), "{text}");
    }
}
