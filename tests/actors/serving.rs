//! What serves after a night: the canary's way in and back, another engine, swaps under load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use chimere::actors::inference::EngineState;
use chimere::service::{NightCommand, ReplyRequest};
use chimere::turn::{Turn, Vote};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::inference::kill;
use crate::night_stage::{GOOD_ADAPTER, Made, NO_STAGES, NightStage, Options, folder, labelled};
use crate::stage::{PATIENCE, chat, collect, run};

#[test]
fn an_alarm_of_the_canary_rolls_back_by_itself() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        night.night(&GOOD_ADAPTER).await;
        night.turns(0, 60, 4, None).await;
        night.turns(1, 20, 1, Some(Vote::Down)).await;
        let status = night.until(|status| status["served"]["canary"].is_null()).await;
        assert_eq!(status["served"]["champion"], 0);
        // Ten are enough: it may have been looked at before the last of them.
        assert!(status["notices"].to_string().contains("low verdicts: "), "{}", status["notices"]);
        for n in 0..30 {
            assert_eq!(night.ask(&format!("conversation {n}")).await, 0);
        }
    });
}

/// Turns that took so many milliseconds a token.
async fn timed(night: &NightStage, revision: u64, count: usize, token_ms: f64) {
    let change = |turn: &mut Turn| {
        turn.verdict = Some(4);
        for generation in &mut turn.generations {
            generation.usage.completion_tokens = 10;
            generation.timings.decode_ms = 10.0 * token_ms;
        }
    };
    night.log(revision, count, change).await;
}

#[test]
fn the_canary_of_the_first_adapter_may_take_longer_than_those_after_it() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        night.night(&GOOD_ADAPTER).await;
        // At 0.6 of the shipped weights' speed.
        for (turns, wanted) in [(50, json!(50)), (200, json!(null))] {
            timed(&night, 0, 20, 2.0).await;
            timed(&night, 1, turns, 2.0 / 0.6).await;
            night.until(|status| status["served"]["canary"]["percent"] == wanted).await;
        }
        assert_eq!(night.status().await["served"]["champion"], 1);
        // Beside that one, the next may not be as much slower again.
        night.night(&Made { right: 90, ..GOOD_ADAPTER }).await;
        timed(&night, 1, 20, 2.0 / 0.6).await;
        timed(&night, 2, 20, 2.0 / 0.36).await;
        let status = night.until(|status| status["served"]["canary"].is_null()).await;
        assert_eq!(status["served"]["champion"], 1);
        let words =
            "latency: 5.56 ms a token, the champion 3.33, more than 1.5 times as many (the champion has an adapter";
        assert!(status["notices"].to_string().contains(words), "{}", status["notices"]);
    });
}

#[test]
fn a_canary_that_is_not_proved_in_time_goes_back() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        night.night(&GOOD_ADAPTER).await;
        night.now.fetch_add(24 * 3_600_000, Ordering::Relaxed);
        let status = night.until(|status| status["served"]["canary"].is_null()).await;
        assert!(status["notices"].to_string().contains("not proved before the next night"), "{status:#}");
        // A second night while a canary is out ends that canary first.
        night.night(&GOOD_ADAPTER).await;
        let report = night.night(&Made { right: 80, ..GOOD_ADAPTER }).await;
        assert_eq!(report["outcome"]["promoted"]["generation"], 3, "{report:#}");
        let served = night.status().await["served"].clone();
        assert_eq!((&served["champion"], &served["canary"]["generation"]), (&json!(0), &json!(3)));
    });
}

/// Its time goes on all the same.
#[test]
fn a_canary_that_cannot_be_looked_at_goes_back_in_time() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        night.night(&GOOD_ADAPTER).await;
        night.stage.unreadable.store(true, Ordering::SeqCst);
        night.now.fetch_add(24 * 3_600_000, Ordering::Relaxed);
        let status = night.until(|status| status["served"]["canary"].is_null()).await;
        assert!(status["notices"].to_string().contains("not proved before the next night"), "{status:#}");
        assert_eq!(status["served"]["champion"], 0);
    });
}

#[test]
fn another_engine_answers_with_the_same_generation() {
    run(async {
        let night = NightStage::new(&folder(), Options { changes: vec![NO_STAGES], ..Options::default() }).await;
        night.night(&GOOD_ADAPTER).await;
        for _ in 0..3 {
            kill(night.stage.board.engine_pid().unwrap());
            night.stage.state(|s| !matches!(s, EngineState::Ready(_))).await;
            assert_eq!(night.ask("a").await, 1);
        }
    });
}

/// T10: 50 streams, 100 swaps; no stream breaks, and every reply is of the one revision that it is labelled with.
#[test]
fn a_hundred_swaps_under_fifty_streams_break_none() {
    run(async {
        let night = NightStage::new(&folder(), Options { changes: vec![NO_STAGES], ..Options::default() }).await;
        night.night(&GOOD_ADAPTER).await;
        night.night(&Made { right: 90, ..GOOD_ADAPTER }).await;
        assert_eq!(night.ask("a").await, 2);
        let done = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicI64::new(0));
        let streams: Vec<_> = (0..50)
            .map(|n| {
                let (replies, done, ended) = (night.stage.replies.clone(), done.clone(), ended.clone());
                tokio::task::spawn_local(async move {
                    let mut seen = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let conversation = Some(format!("c{n}"));
                        let request = ReplyRequest { conversation, max_tokens: Some(40), ..chat("endless") };
                        seen.push(labelled(collect(replies.start(request).await.unwrap()).await));
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                    seen
                })
            })
            .collect();
        let mut slowest = 0;
        for swap in 0..100u64 {
            let answer = night.tell(NightCommand::Rollback { generation: Some(swap % 3) }).await.unwrap();
            // Some replies end, and begin anew under the generation that now serves.
            let before = ended.load(Ordering::Relaxed);
            let some = async {
                while ended.load(Ordering::Relaxed) < before + 5 {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, some).await.expect("no reply ends any more");
            slowest = slowest.max(answer["took_ms"].as_u64().unwrap());
            assert_eq!(answer["champion"], swap % 3);
        }
        done.store(true, Ordering::Relaxed);
        let mut seen = BTreeMap::new();
        for stream in streams {
            stream.await.unwrap().into_iter().for_each(|revision| *seen.entry(revision).or_insert(0) += 1);
        }
        println!("replies by revision: {seen:?}; slowest swap {slowest} ms");
        assert!(seen.len() == 3, "{seen:?}");
        // Well below a second where nothing else runs; that it waits for none of the streams shows on any machine.
        assert!(slowest < 20_000, "a rollback took {slowest} ms");
    });
}
