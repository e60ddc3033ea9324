//! A night that learns and promotes, killed everywhere. The daemon is killed at every point of learning, the engine and
//! the judge at every point of all. (`night.rs` kills the daemon while it judges.) What serves is what served before or
//! what was promoted, with its signed manifest, and a rollback needs no restart (P3, P4, P5 of docs/security.md).

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use chimere::failpoint::{JUDGING, LEARNING};
use chimere::night::inspect::hash_file;
use serde_json::{Value, json};

use crate::harness::kill;
use crate::learn::{House, Open, full_at, killed_at, taught};

const PATIENCE: Duration = Duration::from_secs(600);
const ROLLBACK_MAX: Duration = Duration::from_secs(1);

#[tokio::test]
#[ignore = "long: seven lives that train, some minutes on two cores"]
async fn a_kill_at_any_point_of_learning_resumes() {
    let house = taught().await;
    for point in LEARNING {
        killed_at(&house, point).await;
    }
}

#[tokio::test]
#[ignore = "long: fourteen lives, nine of which train, a minute on two cores"]
async fn a_full_disk_at_any_point_of_learning_changes_nothing() {
    let house = taught().await;
    for point in LEARNING {
        full_at(&house, point).await;
    }
}

/// Points that the log names, as far as it goes.
fn passed(open: &Open<'_>) -> Vec<String> {
    let log = open.daemon.log.lock().unwrap();
    let named = log.iter().filter(|line| line.contains("failpoint reached"));
    let name =
        |line: &String| line.split("name=").nth(1).map(|rest| rest.split_whitespace().next().unwrap().to_owned());
    named.filter_map(name).map(|name| name.trim_matches(['"', '\\']).to_owned()).collect()
}

/// At each point of the run that begins now, once, kills the serving engine and the judge; returns the points.
async fn kill_children_at_every_point(open: &Open<'_>, run: &str) -> BTreeSet<String> {
    let (mut met, mut killed, began) = (BTreeSet::new(), [0, 0], Instant::now());
    let record = open.house.state.path().join("night.json");
    loop {
        let new: Vec<String> = passed(open).into_iter().filter(|name| !met.contains(name)).collect();
        if !new.is_empty() {
            for (count, children) in killed.iter_mut().zip([open.daemon.engines(), open.daemon.judges()]) {
                *count += children.len();
                children.into_iter().for_each(kill);
            }
            met.extend(new);
        }
        let text = fs::read(&record).unwrap_or_default();
        let record: Value = serde_json::from_slice(&text).unwrap_or_default();
        let past = record["past"].as_array().cloned().unwrap_or_default();
        if record["run"].is_null() && past.iter().any(|past| past["id"] == run) {
            println!(
                "{} points, {} engines and {} judges killed in {:?}",
                met.len(),
                killed[0],
                killed[1],
                began.elapsed()
            );
            assert!(killed[0] >= met.len() / 2 && killed[1] > 0, "{killed:?} at {met:?}");
            return met;
        }
        let log = || open.daemon.log.lock().unwrap().join("\n");
        assert!(began.elapsed() < PATIENCE, "{met:?}\n{record:#}\n{}", log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// P4: the generation that answers has its signed manifest, and the adapter is the one that it names.
async fn served_as_signed(house: &House, open: &Open<'_>, generation: u64) {
    let served = open.until(|status| status["served"]["ready"] == true).await["served"].clone();
    assert_eq!((&served["champion"], open.revision().await), (&json!(generation), generation), "{served}");
    if generation > 0 {
        let dir = house.state.path().join(format!("generations/{generation}"));
        let manifest: Value = serde_json::from_slice(&fs::read(dir.join("manifest.json")).unwrap()).unwrap();
        assert!(dir.join("manifest.sig").exists());
        assert_eq!(manifest["adapter"]["sha256"], hash_file(&dir.join("adapter.gguf")).unwrap().0);
    }
}

#[tokio::test]
#[ignore = "long: a whole night that loses its engine and its judge twenty times"]
async fn engine_and_judge_killed_at_every_point_leave_before_or_after() {
    let house = taught().await;
    let open = house.open(&["--failpoint", "every=hold"]).await;
    let pid = open.daemon.pid();
    let run = open.begin(false).await;
    let met = kill_children_at_every_point(&open, &run).await;
    let report = open.report(&run).await;
    let outcome = &report["outcome"];
    println!("{met:?}\n{outcome}");
    let generation = u64::from(outcome["promoted"].is_object());
    assert!(generation == 1 || outcome["rejected"].is_object() || outcome["failed"].is_object(), "{report:#}");
    let reached: BTreeSet<String> = LEARNING.iter().chain(JUDGING).map(|name| (*name).to_owned()).collect();
    if generation == 1 {
        assert_eq!(met, reached, "a promoted run passes every point");
    }
    // P3: what serves is what served before, or what was promoted; and the daemon is the same process.
    served_as_signed(&house, &open, generation).await;
    assert!(open.daemon.pid() == pid && fs::exists(format!("/proc/{pid}")).unwrap());
    drop(open);
    // And the next life serves the same. P5: from there is a way back at once.
    let open = house.open(&[]).await;
    served_as_signed(&house, &open, generation).await;
    if generation == 1 {
        let began = Instant::now();
        let (status, answer) = open.ask(&house.owner, "/v1/night", Some(json!({ "command": "rollback" }))).await;
        assert!(status == 200 && began.elapsed() < ROLLBACK_MAX, "{status} {answer} after {:?}", began.elapsed());
        served_as_signed(&house, &open, 0).await;
    }
}
