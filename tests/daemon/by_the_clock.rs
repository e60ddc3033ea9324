//! Jobs that begin by themselves, through the real daemon whose clock this test moves. They begin at their hour, and
//! only when nobody spoke for a while. Where the machine slept they begin later, as long as the file allows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::harness::Daemon;
use crate::night::{folder, launch_with_clock, until};

/// Long enough for several looks at the schedule.
const A_WHILE: Duration = Duration::from_millis(2_500);

/// The clock of a daemon, moved by a file.
struct Hand(PathBuf);

/// That time of a day of March 2027 in UTC, Unix milliseconds; the 1st is a Monday.
fn time(day: i8, hour: i8, minute: i8, second: i8) -> i64 {
    let at = date(2027, 3, day).at(hour, minute, second, 0).to_zoned(TimeZone::UTC).unwrap();
    at.timestamp().as_millisecond()
}

impl Hand {
    fn set(&self, day: i8, hour: i8, minute: i8, second: i8) {
        let offset = time(day, hour, minute, second) - Timestamp::now().as_millisecond();
        let aside = self.0.with_extension("aside");
        std::fs::write(&aside, offset.to_string()).unwrap();
        std::fs::rename(aside, &self.0).unwrap();
    }
}

/// Whether the job ran last on that day: a run's id is its date, and a number where it was not the first of it.
fn ran(status: &Value, job: &str, day: &str) -> bool {
    status["jobs"][job]["last"]["id"].as_str().is_some_and(|id| id.starts_with(day))
}

async fn serving(daemon: &Daemon) {
    daemon.ready().await;
    until(daemon, |status| status["served"]["ready"] == true).await;
}

#[tokio::test]
async fn a_job_begins_at_its_hour_when_nobody_speaks_and_after_a_sleep() {
    let state: Arc<tempfile::TempDir> = folder();
    // Wherever the test runs.
    let yaml = state.path().join("pipelines/night.yaml");
    let text = std::fs::read_to_string(&yaml).unwrap();
    let (learns, anywhere) = ("    idle_minutes: 10\n", "    idle_minutes: 10\n    on_battery: true\n");
    assert!(text.contains(learns));
    std::fs::write(&yaml, text.replace(learns, anywhere)).unwrap();
    let hand = Hand(state.path().join("clock"));
    hand.set(3, 12, 0, 0);
    let daemon = launch_with_clock(&state, &hand.0);
    serving(&daemon).await;
    tokio::time::sleep(A_WHILE).await;
    let (_, status) = daemon.get("/v1/night").await;
    assert!(status["jobs"]["train"]["last"].is_null(), "nothing is due at noon: {status:#}");
    assert_eq!(status["jobs"]["train"]["next_ms"], time(4, 3, 0, 0), "{status:#}");

    // Three in the morning, after a silent night: learning first, which finds nothing to learn from.
    hand.set(4, 3, 0, 1);
    let status = until(&daemon, |status| ran(status, "train", "2027-03-04")).await;
    assert!(status["jobs"]["train"]["last"]["outcome"]["nothing"].is_object(), "{status:#}");

    // The next night somebody still talks: the job waits and says why, until ten minutes of silence have gone by.
    hand.set(5, 2, 59, 50);
    daemon.chat("What is 1 + 2?").await;
    hand.set(5, 3, 0, 30);
    let waits = |status: &Value| status["jobs"]["train"]["waits"].as_str().is_some_and(|why| why.contains("a reply"));
    until(&daemon, waits).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(ran(&daemon.get("/v1/night").await.1, "train", "2027-03-04"));
    hand.set(5, 3, 12, 0);
    until(&daemon, |status| ran(status, "train", "2027-03-05")).await;

    // Off at three and on again at five: caught up. Off until nine: let pass until the next night.
    until(&daemon, |status| status["run"].is_null()).await;
    drop(daemon);
    hand.set(6, 5, 0, 0);
    let daemon = launch_with_clock(&state, &hand.0);
    serving(&daemon).await;
    hand.set(6, 5, 15, 0);
    until(&daemon, |status| ran(status, "train", "2027-03-06") && status["run"].is_null()).await;
    drop(daemon);
    hand.set(7, 9, 0, 0);
    let daemon = launch_with_clock(&state, &hand.0);
    serving(&daemon).await;
    hand.set(7, 9, 15, 0);
    // The tables are written up to twelve hours late: they are, and learning is not.
    until(&daemon, |status| ran(status, "engram_write", "2027-03-07")).await;
    tokio::time::sleep(A_WHILE).await;
    let (_, status) = daemon.get("/v1/night").await;
    assert!(ran(&status, "train", "2027-03-06"), "{status:#}");
    let train = &status["jobs"]["train"];
    assert_eq!((&train["waits"], &train["next_ms"]), (&Value::Null, &json!(time(8, 3, 0, 0))), "{status:#}");
}
