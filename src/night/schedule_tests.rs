//! The schedule: what a file may say, and what is due after sleep, clock changes and busy hours.

use super::*;

const HOUR: i64 = 3_600_000;

fn shipped() -> Schedule {
    Schedule::parse(SHIPPED, FILE).unwrap()
}

fn at(text: &str, zone: &TimeZone) -> i64 {
    text.parse::<civil::DateTime>().unwrap().to_zoned(zone.clone()).unwrap().timestamp().as_millisecond()
}

fn free(now_ms: i64) -> Conditions {
    Conditions { now_ms, idle_ms: 24 * HOUR, on_battery: false }
}

#[test]
fn the_shipped_file_names_every_job_and_says_the_defaults() {
    let schedule = shipped();
    let patterns: Vec<_> = Job::ALL.iter().map(|job| schedule.jobs[job].pattern.as_str()).collect();
    assert_eq!(patterns, ["0 3 * * *", "0 4 * * *", "0 2 * * 1", "0 */6 * * *"]);
    assert_eq!(schedule.gate, gate::Limits::default());
    assert_eq!(schedule.canary, canary::Rules::default());
    assert_eq!(schedule.engram, Weighing::default());
}

#[test]
fn a_file_of_before_has_no_limits_for_the_first_adapter() {
    let without = |text: &str, key: &str| -> String {
        text.lines().filter(|line| !line.trim_start().starts_with(key)).map(|line| format!("{line}\n")).collect()
    };
    let before = without(&without(SHIPPED, "speed_first_min:"), "latency_ratio_first_max:");
    assert_eq!(before.lines().count() + 2, SHIPPED.lines().count());
    let schedule = Schedule::parse(&before, FILE).unwrap();
    assert_eq!((schedule.gate, schedule.canary), (shipped().gate, shipped().canary));
}

#[test]
fn a_bad_file_is_refused_with_its_place() {
    for (from, to, words) in [
        ("0 3 * * *", "0 25 * * *", "jobs.train.cron"),
        ("0 3 * * *", "0 0 3 * * *", "five fields"),
        ("margin: 0.01", "margin: 3", "gate.margin is 3"),
        ("margin: 0.01", "margins: 0.01", "margins"),
        ("speed_first_min: 0.5", "speed_first_min: 5", "gate.speed_first_min is 5"),
        ("speed_first_min: 0.5", "speed_frist_min: 0.5", "speed_frist_min"),
        ("ratio_first_max: 2.5", "ratio_first_max: 0.5", "canary.latency_ratio_first_max is 0.5"),
        ("percent: 5,", "percent: 70,", "must not shrink"),
        ("percent: 5,", "percent: 0,", "canary.stages[0].percent"),
        ("catch_up_hours: 4", "catch_up_hours: -1", "jobs.train.catch_up_hours"),
        ("  train:", "  trian:", "trian"),
        ("method: gradient", "method: gradually", "gradually"),
        ("objective: likelihood", "objective: luck", "luck"),
        ("minutes_max: 30\n", "minutes_max: -1\n", "engram.minutes_max is -1"),
        ("directions: 64", "directions: 1", "training.zeroth.directions is 1"),
        ("objective: likelihood", "method: mezo\n  objective: preference", "duplicate"),
    ] {
        assert!(SHIPPED.contains(from), "{from}");
        let error = Schedule::parse(&SHIPPED.replacen(from, to, 1), "n.yaml").unwrap_err().to_string();
        assert!(error.starts_with("n.yaml:") && error.contains(words), "{error}");
        // The line is the one that was changed.
        let line = SHIPPED[..SHIPPED.find(from).unwrap()].lines().count().max(1);
        let told: usize = error["n.yaml:".len()..].split(':').next().unwrap().parse().unwrap();
        assert!(told.abs_diff(line) <= 2, "{error} for line {line}");
    }
    let both =
        SHIPPED.replace("method: gradient", "method: mezo").replace("objective: likelihood", "objective: preference");
    let error = Schedule::parse(&both, "n.yaml").unwrap_err().to_string();
    assert!(error.contains("training.objective is preference, which only the gradient"), "{error}");
}

#[test]
fn each_due_time_is_handled_once() {
    let (zone, schedule) = (TimeZone::UTC, shipped());
    let train = &schedule.jobs[&Job::Train];
    let three = at("2026-03-02T03:00", &zone);
    let before = Handled { until_ms: three - HOUR };
    assert_eq!(train.due(before, free(three - 1), &zone), Due::Later { next_ms: Some(three) });
    assert_eq!(train.due(before, free(three), &zone), Due::Now { due_ms: three });
    let done = Handled { until_ms: three };
    assert_eq!(train.due(done, free(three), &zone), Due::Later { next_ms: Some(three + 24 * HOUR) });
    // The clock is set back by a minute after the run began: it does not begin again.
    assert_eq!(train.due(done, free(three - 60_000), &zone), Due::Later { next_ms: Some(three + 24 * HOUR) });
    // A clock that was a year ahead is put right: tomorrow's night still comes.
    let ahead = Handled { until_ms: three + 8_760 * HOUR };
    assert_eq!(train.due(ahead, free(three - HOUR), &zone), Due::Later { next_ms: Some(three) });
}

#[test]
fn what_was_slept_through_is_caught_up_once_or_let_pass() {
    let (zone, schedule) = (TimeZone::UTC, shipped());
    let train = &schedule.jobs[&Job::Train];
    let three = at("2026-03-02T03:00", &zone);
    let old = Handled { until_ms: three - 100 * HOUR };
    assert_eq!(train.due(old, free(three + 3 * HOUR), &zone), Due::Now { due_ms: three });
    let late = train.due(old, free(three + 5 * HOUR), &zone);
    assert_eq!(late, Due::Later { next_ms: Some(three + 24 * HOUR) }, "more than four hours late");
    // Four reindexings were missed: one run handles them all.
    let reindex = &schedule.jobs[&Job::Reindex];
    let noon = at("2026-03-02T12:00", &zone);
    assert_eq!(reindex.due(old, free(noon + 1), &zone), Due::Now { due_ms: noon });
}

#[test]
fn a_busy_machine_and_a_battery_wait() {
    let (zone, schedule) = (TimeZone::UTC, shipped());
    let train = &schedule.jobs[&Job::Train];
    let three = at("2026-03-02T03:00", &zone);
    let before = Handled { until_ms: three - HOUR };
    let busy = Conditions { idle_ms: 1_000, ..free(three) };
    assert!(matches!(train.due(before, busy, &zone), Due::Waits { why, .. } if why.contains("reply")));
    let battery = Conditions { on_battery: true, ..free(three) };
    assert!(matches!(train.due(before, battery, &zone), Due::Waits { why, .. } if why.contains("battery")));
}

#[test]
fn wall_clocks_that_change_keep_one_night_a_day() {
    // Where a fixed rule gives the zone, without the system's table: Europe, summer from 29 March 2026, 02:00.
    let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
    let schedule = shipped();
    let train = &schedule.jobs[&Job::Train];
    let mut now = at("2026-03-27T12:00", &zone);
    let mut nights = Vec::new();
    while nights.len() < 5 {
        now = train.next(now, &zone).unwrap();
        nights.push(Timestamp::from_millisecond(now).unwrap().to_zoned(zone.clone()).datetime().to_string());
    }
    let days = ["28", "29", "30", "31"].map(|d| format!("2026-03-{d}T03:00:00"));
    assert_eq!(nights[..4], days);
    assert_eq!(nights[4], "2026-04-01T03:00:00");
    let monday = &schedule.jobs[&Job::OptimisePrompts];
    let next = monday.next(at("2026-10-24T12:00", &zone), &zone).unwrap();
    assert_eq!(next, at("2026-10-26T02:00", &zone));
}
