//! The quality gate: a poor answer is tried again and the better one stands; whatever fails, the first answer does, and
//! says why. One Turn holds it all, and the daemon's own words stand in none.

use std::time::Duration;

use chimere::pipeline::{Pipeline, Wishes, plan};
use chimere::scoring::Reading;
use chimere::scoring::reflect::REFLECTION;
use chimere::service::{ReplyEvent, ReplyRequest};
use chimere::turn::{FinishReason, HiddenUsage, Message, Quality, QualityGate, QualityOutcome, Role, Tier, Turn, Work};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::fake::{GOOD, JUDGE, SILENT, spec};
use crate::stage::{PATIENCE, Stage, chat, collect, run};

/// For whatever does come, on a busy machine; all of it passes where something does not.
const ENOUGH: Duration = Duration::from_secs(15);

fn gated(text: &str) -> ReplyRequest {
    ReplyRequest { quality_gate: Some(true), ..chat(text) }
}

fn judged(script: &str) -> Stage {
    let mut stage = Stage::new(spec(GOOD));
    stage.judged_by(script);
    stage
}

fn quality(turn: &Turn) -> &Quality {
    turn.generations[0].quality.as_deref().unwrap_or_else(|| panic!("{turn:?}"))
}

fn revisions(events: &[ReplyEvent]) -> Vec<&str> {
    let texts = events.iter().filter_map(|e| match e {
        ReplyEvent::Revised { generation, .. } => Some(generation.content.as_str()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn a_good_answer_passes_a_poor_one_is_revised_and_a_worse_one_is_not_kept() {
    run(async {
        let stage = judged(JUDGE);
        // What is asked, what comes of it, verdicts, the answer that stands.
        let cases = [
            ("dinner 5", QualityOutcome::Passed, &[5][..], "right"),
            ("plain", QualityOutcome::Revised, &[1, 5], "better0 better1 better2 "),
            ("stubborn", QualityOutcome::Kept, &[1, 1], "w0 w1 w2 "),
        ];
        for (n, (text, outcome, verdicts, answer)) in cases.into_iter().enumerate() {
            let events = collect(stage.replies.start(gated(text)).await.unwrap()).await;
            let turns = stage.turns(n + 1).await;
            let turn = &turns[n];
            let quality = quality(turn);
            assert_eq!((quality.outcome, quality.verdicts.as_slice()), (outcome, verdicts), "{text}: {quality:?}");
            assert_eq!((turn.generations.len(), turn.generations[0].content.as_str()), (1, answer), "{text}");
            // The judgement is of what stands, and came with the Turn.
            assert_eq!(turn.verdict, Some(verdicts[quality.kept as usize]), "{text}");
            assert_eq!(quality.others.len(), verdicts.len() - 1);
            let revised = outcome == QualityOutcome::Revised;
            assert_eq!(revisions(&events), if revised { vec![answer] } else { vec![] }, "{text}");
            let ReplyEvent::Done { usage, generations, steps, .. } = events.last().unwrap() else {
                panic!("{events:?}")
            };
            assert_eq!(generations[0].content, answer);
            // The usage is that of the answer that stands; the other attempt was work too.
            let hidden = 3 * (verdicts.len() as u32 - 1);
            assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 3), "{text}");
            assert_eq!(HiddenUsage::of(steps, generations).completion_tokens, hidden, "{text}: {steps:?}");
            assert_eq!(*steps, turn.steps);
            assert!(!serde_json::to_string(turn).unwrap().contains(REFLECTION), "the daemon's own words: {turn:?}");
            assert_eq!(turn.messages.last().unwrap().content, text);
        }
        let status =
            stage.scorer.as_ref().unwrap().send_within(chimere::actors::scorer::ScorerStatus, PATIENCE).await.unwrap();
        assert_eq!(
            (status["scored"].as_u64(), status["queue"].as_u64()),
            (Some(3), Some(0)),
            "one verdict each: {status}"
        );
    });
}

#[test]
fn without_a_verdict_the_first_answer_stands_and_says_why() {
    run(async {
        let unjudged = |stage: Stage, request: ReplyRequest, words: &'static str| async move {
            stage.ready().await;
            let events = collect(stage.replies.start(request).await.unwrap()).await;
            assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })), "{events:?}");
            let turn = stage.turns(1).await.remove(0);
            let found = quality(&turn);
            assert_eq!((found.outcome, found.verdicts.len()), (QualityOutcome::Unjudged, 0));
            assert!(found.because.as_ref().unwrap().contains(words), "{found:?}");
            assert_eq!(turn.generations[0].content, "w0 w1 w2 ");
        };
        unjudged(Stage::new(spec(GOOD)), gated("plain"), "no judge").await;
        let mut cut = gated("plain");
        cut.max_tokens = Some(3);
        unjudged(judged(JUDGE), cut, "cut at its limit").await;
        let mut long = Stage::new(spec(GOOD));
        long.judged_with(JUDGE, Reading { answer_chars_max: Some(5), ..Reading::default() });
        unjudged(long, gated("plain"), "calibration").await;
        let mut late = Stage::with(spec(GOOD), |c| c.reply_timeout = ENOUGH);
        late.judged_by(SILENT);
        unjudged(late, gated("plain"), "ms").await;
    });
}

#[test]
fn a_fault_of_the_gate_costs_the_second_opinion_and_not_the_turn() {
    run(async {
        let mut stage = judged(JUDGE);
        stage.breaks_at("reply.judge=panic");
        let events = collect(stage.replies.start(gated("plain")).await.unwrap()).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })), "{events:?}");
        let turn = stage.turns(1).await.remove(0);
        assert_eq!((turn.generations[0].content.as_str(), turn.generations[0].quality.as_ref()), ("w0 w1 w2 ", None));
        // The place of the reply is free again, and the daemon goes on.
        collect(stage.replies.start(chat("plain")).await.unwrap()).await;
        stage.turns(2).await;
    });
}

#[test]
fn a_second_attempt_that_never_comes_leaves_the_first_answer() {
    run(async {
        // The judge is ready before: its start takes none of the reply's time.
        let mut stage = Stage::with(spec(GOOD), |c| c.reply_timeout = ENOUGH);
        stage.judged_by(JUDGE);
        stage.ready().await;
        collect(stage.replies.start(chat("plain")).await.unwrap()).await;
        stage.scored(1).await;
        collect(stage.replies.start(gated("slow")).await.unwrap()).await;
        let turn = stage.turns(2).await.remove(1);
        assert_eq!((quality(&turn).outcome, quality(&turn).verdicts.as_slice()), (QualityOutcome::Kept, &[1][..]));
        assert_eq!(turn.verdict, Some(1));
    });
}

#[test]
fn fast_answers_several_choices_and_whoever_opts_out_are_left_alone() {
    run(async {
        let stage = judged(JUDGE);
        let fast = ReplyRequest { tier: Some(Tier::Fast), ..gated("plain") };
        let several = ReplyRequest { choices: 2, ..gated("plain") };
        for (n, request) in [fast, several, chat("plain")].into_iter().enumerate() {
            let events = collect(stage.replies.start(request).await.unwrap()).await;
            assert!(revisions(&events).is_empty());
            let turns = stage.turns(n + 1).await;
            assert!(turns[n].generations.iter().all(|g| g.quality.is_none()), "{:?}", turns[n]);
        }
    });
}

#[test]
fn the_pipeline_decides_by_tier_and_the_request_over_it() {
    let file = "name: code\nversion: 1\nthinking: {fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}\n\
        quality_gate: {verdict_max: 3, tiers: [ultra]}\n";
    let pipeline = Pipeline::parse(file, "code.yaml", "code", false).unwrap();
    let gate = |tier, quality_gate| -> Option<QualityGate> {
        let wishes = Wishes { tier: Some(tier), quality_gate, max_tokens_default: 9, ..Wishes::default() };
        let plan = plan(&pipeline, String::new(), vec![Message::new(Role::User, "q")], wishes).unwrap();
        plan.steps.into_iter().find_map(|step| match step.work {
            Work::Judge(gate) => Some(gate),
            _ => None,
        })
    };
    assert_eq!(gate(Tier::Ultra, None).unwrap().verdict_max, 3);
    assert_eq!(gate(Tier::Quality, Some(true)).unwrap().verdict_max, 3);
    for (tier, wish) in
        [(Tier::Quality, None), (Tier::Ultra, Some(false)), (Tier::Fast, None), (Tier::Fast, Some(true))]
    {
        assert_eq!(gate(tier, wish), None, "{tier:?} {wish:?}");
    }
}

#[test]
fn a_client_that_leaves_while_it_is_judged_leaves_a_whole_turn() {
    run(async {
        let stage = judged(SILENT);
        let mut events = stage.replies.start(gated("plain")).await.unwrap();
        while !matches!(events.recv().await, Some(ReplyEvent::ChoiceFinished { .. })) {}
        drop(events);
        let turn = stage.turns(1).await.remove(0);
        assert_eq!(turn.generations[0].finish_reason, FinishReason::Stop);
        assert!(quality(&turn).because.as_ref().unwrap().contains("left"), "{:?}", quality(&turn));
    });
}

#[test]
fn the_judge_takes_so_many_answers_and_leaves_the_others_as_they_are() {
    run(async {
        let mut stage = Stage::with(spec(GOOD), |c| c.requests_max = 24);
        stage.judged_by(SILENT);
        stage.ready().await;
        let mut all = FuturesUnordered::new();
        for _ in 0..20 {
            all.push(collect(stage.replies.start(gated("plain")).await.unwrap()));
        }
        // Those that the judge does not take end at once; the others wait for it until their clients leave.
        for _ in 0..4 {
            let events = all.next().await.unwrap();
            assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })), "{events:?}");
        }
        drop(all);
        let turns = stage.turns(20).await;
        let why = |words: &str| {
            turns.iter().filter(|t| quality(t).because.as_ref().is_some_and(|b| b.contains(words))).count()
        };
        assert_eq!((why("in hand"), why("left")), (4, 16), "{:?}", turns.iter().map(quality).collect::<Vec<_>>());
    });
}
