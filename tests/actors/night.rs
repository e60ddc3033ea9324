//! Nights that judge adapters whose worth is known: what comes in, what is refused, what a stop, a full disk and the
//! clock do.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chimere::actors::memory::List;
use chimere::failpoint::{Failpoint, JUDGING};
use chimere::night::phase::Job;
use chimere::service::{NightCommand, ServiceError};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::night_stage::{GOOD_ADAPTER, Made, NO_STAGES, NightStage, Options, folder};
use crate::stage::{PATIENCE, run};

#[test]
fn a_better_adapter_comes_in_by_its_canary_and_serves() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        assert_eq!(night.ask("a").await, 0);
        let report = night.night(&GOOD_ADAPTER).await;
        assert!(report["outcome"]["promoted"]["generation"] == 1, "{report:#}");
        assert!(report["golden"]["difference"]["low"].as_f64().unwrap() > 0.0);
        assert_eq!(report["lineage"][0]["generation"], 1);
        let served = &night.status().await["served"];
        assert_eq!((&served["champion"], &served["canary"]["percent"]), (&json!(0), &json!(5)));
        // One conversation keeps its revision, and some have the new one.
        let mut seen = std::collections::BTreeMap::new();
        for n in 0..60 {
            let name = format!("conversation {n}");
            let revision = night.ask(&name).await;
            assert_eq!(night.ask(&name).await, revision);
            *seen.entry(revision).or_insert(0) += 1;
        }
        assert!(seen[&0] > 40 && seen.get(&1).is_some_and(|n| *n < 20), "{seen:?}");
        night.turns(1, 50, 4, None).await;
        night.until(|status| status["served"]["canary"]["percent"] == 50).await;
        night.turns(1, 200, 4, None).await;
        let status = night.until(|status| status["served"]["champion"] == 1).await;
        assert!(status["served"]["canary"].is_null() && status["served"]["previous"] == 0);
        assert_eq!(night.ask("a").await, 1);
        // Every turn is labelled too.
        let turns = night.stage.replies.memory.send_within(List(Default::default()), PATIENCE);
        assert!(turns.await.unwrap().unwrap().iter().any(|t| t.adapter_revision == 1));
    });
}

/// T1: whatever is wrong with a candidate, it is refused, and not a byte of what is served changes.
#[test]
fn catastrophic_candidates_are_refused_and_change_nothing() {
    run(async {
        let night = NightStage::new(&folder(), Options { changes: vec![NO_STAGES], ..Options::default() }).await;
        night.night(&GOOD_ADAPTER).await;
        let served = night.served();
        assert_eq!(night.ask("a").await, 1);
        for (made, rule) in [
            (Made { right: 20, ..GOOD_ADAPTER }, "overall"),
            (Made { right: 75, ..GOOD_ADAPTER }, "improvement"),
            (Made { fill: f32::NAN, ..GOOD_ADAPTER }, "file"),
            (Made { base: "another model", ..GOOD_ADAPTER }, "file"),
            (Made { rank: 3, ..GOOD_ADAPTER }, "file"),
            (Made { fill: 10.0, ..GOOD_ADAPTER }, "update_norm"),
            (Made { kl: 3.0, ..GOOD_ADAPTER }, "divergence"),
            (Made { kl: f32::NAN, ..GOOD_ADAPTER }, "divergence"),
        ] {
            let report = night.night(&made).await;
            assert_eq!(report["outcome"]["rejected"]["rule"], rule, "{:#}", report["outcome"]);
            assert_eq!(night.served(), served);
        }
        std::fs::write(night.path("nonsense"), "GGUF").unwrap();
        for name in ["nonsense", "absent"] {
            let candidate = Some(night.path(name));
            let command = NightCommand::RunNow { job: Job::Train, candidate, dry_run: false };
            let id = night.tell(command).await.unwrap()["run"].as_str().unwrap().to_owned();
            let outcome = night.report(&id).await["outcome"].clone();
            assert!(outcome["promoted"].is_null(), "{outcome}");
        }
        assert_eq!(night.served(), served);
        assert_eq!(night.ask("a").await, 1);
        assert!(!night.path("candidates").join("x").exists());
    });
}

/// What an adapter costs is paid by the first one, and by the first after a way back to the shipped weights.
#[test]
fn the_first_adapter_may_cost_more_than_those_after_it() {
    run(async {
        let night = NightStage::new(&folder(), Options { changes: vec![NO_STAGES], ..Options::default() }).await;
        let first = "the first adapter: what any adapter costs is paid once, limit 0.5";
        let later = "the champion has an adapter too, limit 0.9";
        for (back, right, speed, promoted, words) in [
            (false, 75, 0.4, None, first),
            (false, 75, 0.6, Some(1), first),
            (false, 90, 0.6 * 0.85, None, later),
            (false, 90, 0.6 * 0.95, Some(2), later),
            (true, 95, 0.6, Some(3), first),
        ] {
            if back {
                night.tell(NightCommand::Rollback { generation: Some(0) }).await.unwrap();
            }
            let report = night.night(&Made { right, speed, ..GOOD_ADAPTER }).await;
            let outcome = &report["outcome"];
            assert_eq!(outcome["promoted"]["generation"].as_u64(), promoted, "{speed}: {report:#}");
            assert!(promoted.is_some() || outcome["rejected"]["rule"] == "speed", "{outcome:#}");
            let finding = report["verdict"]["findings"].as_array().unwrap().last().unwrap();
            assert!(finding["rule"] == "speed" && finding["words"].as_str().unwrap().contains(words), "{finding:#}");
        }
    });
}

#[test]
fn a_dry_run_a_second_run_and_a_pause_promote_nothing() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        let before = night.served();
        let id = night.begin(&GOOD_ADAPTER, true).await;
        let second = NightCommand::RunNow { job: Job::Reindex, candidate: None, dry_run: false };
        assert!(matches!(night.tell(second).await, Err(ServiceError::Busy { .. })), "never two at once");
        assert!(night.report(&id).await["outcome"]["would_promote"].is_object());
        assert_eq!(night.served(), before);
        let id = night.begin(&GOOD_ADAPTER, false).await;
        night.until(|status| status["run"]["phase"] == "gate").await;
        night.tell(NightCommand::Pause).await.unwrap();
        assert!(night.report(&id).await["outcome"]["stopped"].is_object());
        assert_eq!(night.served(), before);
        assert_eq!(night.status().await["state"], "paused");
        night.tell(NightCommand::Resume).await.unwrap();
        assert_eq!(night.status().await["state"], "resting");
    });
}

#[test]
fn jobs_begin_by_the_daemons_clock_once_and_say_what_is_missing() {
    run(async {
        // The exams here are too small for a search of prompts.
        let changes = vec![("items_min: 60", "items_min: 1000")];
        let options = Options { enabled: true, changes, ..Options::default() };
        let night = NightStage::new(&folder(), options).await;
        sleep(Duration::from_millis(1_500)).await;
        assert!(night.status().await["last"].is_null(), "nothing is due at noon");
        // Three in the morning, and nobody spoke for hours.
        night.now.fetch_add(15 * 3_600_000, Ordering::Relaxed);
        let status = night.until(|status| status["last"]["job"] == "train").await;
        assert!(status["last"]["outcome"]["nothing"].is_object(), "{status:#}");
        // A clock that is set back a little runs nothing again: the jobs of Monday and of every six hours are caught up,
        // and the night is not run again.
        night.now.fetch_sub(60_000, Ordering::Relaxed);
        let nothing = |status: &Value, job: &str| status["jobs"][job]["last"]["outcome"]["nothing"].is_object();
        night.until(|status| ["optimise_prompts", "reindex"].iter().all(|job| nothing(status, job))).await;
        sleep(Duration::from_millis(1_500)).await;
        assert_eq!(night.status().await["jobs"]["train"]["last"]["id"], "2026-03-02");
        night.now.fetch_add(3_700_000, Ordering::Relaxed);
        let status = night.until(|status| status["last"]["job"] == "engram_write").await;
        assert!(status["last"]["outcome"]["nothing"].is_object(), "{status:#}");
        assert_eq!(status["jobs"]["train"]["last"]["id"], "2026-03-02");
    });
}

/// T3 without the kill: the disk fills up at each point, and what serves is the state before or after.
#[test]
fn a_full_disk_at_any_point_leaves_before_or_after() {
    for point in JUDGING {
        run(async move {
            let state = folder();
            let failpoint = Failpoint::parse(&format!("{point}=full"));
            let changes = vec![NO_STAGES];
            let night =
                NightStage::new(&state, Options { failpoint, changes: changes.clone(), ..Options::default() }).await;
            let id = night.begin(&GOOD_ADAPTER, false).await;
            night.until(|status| status["run"].is_null()).await;
            let revision = night.ask("a").await;
            drop(night);
            // A new life finds the same, and can do the same night to its end.
            let night = NightStage::new(&state, Options { changes, ..Options::default() }).await;
            let status = night.until(|status| status["run"].is_null()).await;
            let now = night.ask("a").await;
            assert!(now == revision || (revision == 0 && now == 1), "{point}: {revision} and then {now}, {status:#}");
            let report = night.night(&Made { right: 90, ..GOOD_ADAPTER }).await;
            assert!(report["outcome"]["promoted"].is_object(), "{point} {id}: {report:#}");
        });
    }
}
