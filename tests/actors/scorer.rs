//! Every turn gets one verdict, whatever happens to its reply, to the queue and to the judge.

use std::time::Duration;

use chimere::actors::memory::{AddFeedback, List};
use chimere::actors::scorer::{Inbox, ScorerStatus};
use chimere::service::TurnFilter;
use chimere::turn::{Feedback, FinishReason, Turn};
use tokio::time::{Instant, sleep};

use crate::fake::{CROWDED_JUDGE, FRAIL_JUDGE, GOOD, JUDGE, spec};
use crate::stage::{PATIENCE, Stage, chat, collect, run};

impl Stage {
    /// The turn log, once all of its `count` turns have a verdict.
    pub(crate) async fn scored(&self, count: usize) -> Vec<Turn> {
        let until = Instant::now() + PATIENCE;
        loop {
            let turns = self.replies.memory.send_within(List(TurnFilter::default()), PATIENCE).await.unwrap().unwrap();
            if turns.len() == count && turns.iter().all(|turn| turn.verdict.is_some()) {
                return turns;
            }
            assert!(Instant::now() < until, "{} turns, {:?}", turns.len(), self.scorer_status().await);
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The scorer's status, once it says that it scored `count` turns: that is counted after the log has them.
    async fn counted(&self, count: u64) -> serde_json::Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.scorer_status().await;
            if status["scored"].as_u64() >= Some(count) {
                return status;
            }
            assert!(Instant::now() < until, "{status}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn scorer_status(&self) -> serde_json::Value {
        self.scorer.as_ref().unwrap().send_within(ScorerStatus, PATIENCE).await.unwrap()
    }
}

#[test]
fn replies_on_every_path_get_one_verdict() {
    run(async {
        let mut stage = Stage::new(spec(GOOD));
        stage.judged_by(JUDGE);
        stage.ready().await;
        assert_eq!(stage.scorer_status().await["engine"]["state"], "not_started", "the judge starts when it is needed");
        let mut several = chat("three words");
        several.choices = 3;
        let mut short = chat("one word");
        short.max_tokens = Some(1);
        for request in [chat("plain"), several, chat("think"), chat("fail"), short] {
            collect(stage.replies.start(request).await.unwrap()).await;
        }
        let mut endless = chat("endless");
        endless.max_tokens = Some(2_000);
        let mut left = stage.replies.start(endless).await.unwrap();
        while !matches!(left.recv().await, Some(chimere::service::ReplyEvent::Delta { .. })) {}
        drop(left);
        let turns = stage.scored(6).await;
        for turn in &turns {
            let judgement = turn.judgement.as_ref().unwrap();
            assert_eq!(judgement.choices.len(), turn.generations.len());
            assert_eq!((turn.verdict, judgement.judge.as_str()), (judgement.verdict(), "scripted"));
            for (choice, generation) in judgement.choices.iter().zip(&turn.generations) {
                let wrong = generation.content.contains("w1");
                assert_eq!(choice.verdict, if wrong { 1 } else { 5 }, "{choice:?} of {generation:?}");
                assert!((choice.p - if wrong { 0.1 } else { 0.9 }).abs() < 1e-4, "{choice:?}");
            }
        }
        assert_eq!(turns[1].generations.len(), 3);
        assert!(turns.iter().any(|turn| turn.generations[0].finish_reason == FinishReason::Aborted));
        let thought = turns[2].judgement.as_ref().unwrap();
        assert_eq!((thought.choices[0].thought_steps, thought.choices[0].steps.len()), (1, 2));
        let status = stage.counted(6).await;
        assert_eq!(
            (status["scored"].as_u64(), status["failed"].as_u64(), status["queue"].as_u64()),
            (Some(6), Some(0), Some(0))
        );
        assert_eq!(status["engine"]["state"], "ready");
    });
}

#[test]
fn what_does_not_fit_into_the_queue_is_found_in_the_log() {
    run(async {
        // Nobody takes from the queue while the replies come.
        let mut stage = Stage::build(spec(GOOD), |_| {}, Inbox::new(2), &[]);
        stage.ready().await;
        for _ in 0..6 {
            collect(stage.replies.start(chat("plain")).await.unwrap()).await;
        }
        stage.judged_by(JUDGE);
        stage.scored(6).await;
        let status = stage.counted(6).await;
        assert_eq!((status["overflowed"].as_u64(), status["scored"].as_u64()), (Some(4), Some(6)));
    });
}

#[test]
fn turns_of_an_earlier_life_are_found_in_the_log() {
    run(async {
        let mut stage = Stage::new(spec(GOOD));
        stage.ready().await;
        for _ in 0..3 {
            collect(stage.replies.start(chat("plain")).await.unwrap()).await;
        }
        // What waited died with the daemon.
        stage.inbox = std::sync::Arc::new(Inbox::new(8));
        stage.judged_by(JUDGE);
        stage.scored(3).await;
    });
}

#[test]
fn a_judge_that_dies_again_and_again_costs_time_and_no_verdict() {
    run(async {
        let mut stage = Stage::new(spec(GOOD));
        stage.judged_by(FRAIL_JUDGE);
        stage.ready().await;
        for _ in 0..24 {
            collect(stage.replies.start(chat("plain")).await.unwrap()).await;
        }
        stage.scored(24).await;
        let status = stage.counted(24).await;
        assert_eq!((status["scored"].as_u64(), status["failed"].as_u64()), (Some(24), Some(0)), "{status}");
        assert!(status["engine"]["starts"].as_u64().unwrap() >= 3, "{status}");
    });
}

#[test]
fn several_turns_are_judged_at_once_and_a_judge_that_dies_with_them_loses_none() {
    run(async {
        let mut stage = Stage::new(spec(GOOD));
        stage.ready().await;
        for _ in 0..8 {
            collect(stage.replies.start(chat("plain")).await.unwrap()).await;
        }
        stage.judged_by(CROWDED_JUDGE);
        let turns = stage.scored(8).await;
        assert!(turns.iter().all(|turn| turn.judgement.as_ref().unwrap().choices.len() == 1));
        let status = stage.counted(8).await;
        assert_eq!((status["scored"].as_u64(), status["failed"].as_u64()), (Some(8), Some(0)), "{status}");
        // It dies of four requests at once and of nothing else: four turns, of one step each, were in hand together.
        assert!((2..=3).contains(&status["engine"]["starts"].as_u64().unwrap()), "{status}");
    });
}

#[test]
fn a_correction_that_comes_while_its_turn_is_judged_is_judged_too() {
    run(async {
        let mut stage = Stage::new(spec(GOOD));
        stage.judged_by(CROWDED_JUDGE);
        stage.ready().await;
        collect(stage.replies.start(chat("plain")).await.unwrap()).await;
        let id = stage.turns(1).await[0].id.clone();
        while stage.scorer_status().await["in_hand"] != 1 {
            sleep(Duration::from_millis(1)).await;
        }
        let (principal, correction) = ("tester".to_owned(), Some("15".to_owned()));
        let said = Feedback { time_ms: 1, principal, vote: None, correction, judgement: None };
        stage.replies.memory.send_within(AddFeedback(id.clone(), said), PATIENCE).await.unwrap().unwrap();
        stage.inbox.put(id);
        let until = Instant::now() + PATIENCE;
        while stage.scored(1).await[0].feedback[0].judgement.is_none() {
            assert!(Instant::now() < until, "{}", stage.scorer_status().await);
            sleep(Duration::from_millis(20)).await;
        }
    });
}
