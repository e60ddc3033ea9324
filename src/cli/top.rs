//! `chimere top`: what a daemon is doing, looked at again and again. Speeds and latencies are of the last ten
//! seconds, or of the time between two updates where that is longer. The engine tells its counts every two seconds.

mod histogram;

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use chimere::config::Config;
use chimere::plural::counted;
use serde_json::{Value, json};

use super::client::{Client, Where, printable};
use super::exit::{note, say};
use super::serve::Place;
use histogram::Histogram;

/// Puts the cursor home; what follows is written over the last look, line by line.
const HOME: &str = "\u{1b}[H";
const CLEAR: &str = "\u{1b}[2J";
const REST_OF_LINE: &str = "\u{1b}[K";
const REST_OF_SCREEN: &str = "\u{1b}[J";

/// Speeds and latencies are of so long.
const WINDOW: Duration = Duration::from_secs(10);

/// Watch the daemon: load, speed, latency, the night
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Where,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args)]
struct How {
    /// Seconds between two updates
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    interval: f64,
    /// Print once and exit
    #[arg(long)]
    once: bool,
    /// Print a JSON object for each update
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || "a number of seconds from 0.1 to 3600".to_owned();
    text.parse().ok().filter(|s| (0.1..=3600.0).contains(s)).ok_or_else(wrong)
}

pub fn run(Args { place, target, how }: Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&place.flags())?;
    let client = Client::new(&target, config.http.listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch(&client, &how))?;
    Ok(ExitCode::SUCCESS)
}

async fn watch(client: &Client, how: &How) -> anyhow::Result<()> {
    // Who may not look, and a daemon that is not there, end it at once; a daemon that goes away later is waited for.
    let mut looks = VecDeque::from([Look::at(client).await?]);
    let screen = !how.json && !how.once && std::io::stdout().is_terminal();
    if screen {
        write(&format!("{HOME}{CLEAR}"));
    }
    loop {
        tokio::time::sleep(Duration::from_secs_f64(how.interval)).await;
        let now = match Look::at(client).await {
            Ok(now) => now,
            Err(error) if how.once => return Err(error),
            Err(error) => {
                note!("{error}");
                continue;
            }
        };
        // At least the look before this one is kept.
        while looks.len() > 1 && looks.front().is_some_and(|old| now.when.duration_since(old.when) > WINDOW) {
            looks.pop_front();
        }
        let seen = looks.front().map_or(Value::Null, |before| seen(before, &now));
        looks.push_back(now);
        if how.json {
            say!("{seen}");
        } else if screen {
            let lines: String = shown(&seen).lines().map(|line| format!("{line}{REST_OF_LINE}\n")).collect();
            write(&format!("{HOME}{lines}{REST_OF_SCREEN}"));
        } else {
            say!("{}", shown(&seen));
        }
        if how.once {
            return Ok(());
        }
    }
}

/// A terminal that is gone ends the watching at the next line.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// The daemon at a moment.
struct Look {
    when: Instant,
    status: Value,
    first: Histogram,
    next: Histogram,
}

impl Look {
    async fn at(client: &Client) -> anyhow::Result<Look> {
        let status = client.get("/v1/status").await?;
        let page = client.text("/metrics").await?;
        Ok(Look {
            when: Instant::now(),
            status,
            first: Histogram::read(&page, "chimere_reply_first_event_seconds"),
            next: Histogram::read(&page, "chimere_reply_inter_token_seconds"),
        })
    }

    fn count(&self, path: &str) -> u64 {
        self.status.pointer(path).and_then(Value::as_u64).unwrap_or(0)
    }
}

/// What is shown, as data: counts now, and speeds and latencies since an earlier look.
fn seen(before: &Look, now: &Look) -> Value {
    let took = now.when.duration_since(before.when).as_secs_f64().max(1e-3);
    // A daemon or an engine that began again counts from nothing.
    let same = before.status["pid"] == now.status["pid"] && before.count("/engine/pid") == now.count("/engine/pid");
    let rate = |path: &str| match now.count(path).checked_sub(before.count(path)) {
        Some(grown) if same => grown as f64 / took,
        _ => now.count(path) as f64 / took,
    };
    let latency = |now: &Histogram, before: &Histogram| {
        let since = now.since(before);
        json!({"count": since.count(), "p50_s": since.quantile(0.5), "p99_s": since.quantile(0.99)})
    };
    let status = &now.status;
    let actors = status["actors"].as_object().map(|actors| {
        let life = |(name, actor): (&String, &Value)| {
            (name.clone(), json!({"life": actor["life"], "restarts": actor["restarts"]}))
        };
        actors.iter().map(life).collect::<serde_json::Map<_, _>>()
    });
    let night = &status["actors"]["scheduler"];
    json!({
        "version": status["version"],
        "uptime_ms": status["uptime_ms"],
        "seconds": took,
        "model": status.pointer("/engine/hosted/model/name"),
        "device": status.pointer("/engine/hosted/model/device"),
        "engine": {"state": status["engine"]["state"], "starts": status["engine"]["starts"]},
        "sequences": {
            "running": now.count("/engine/stats/running"),
            "waiting": now.count("/engine/stats/waiting"),
            "max": now.count("/engine/hosted/model/sequences_max"),
        },
        "memory_bytes": now.count("/engine/stats/resident_bytes"),
        "tokens_per_s": {"generated": rate("/engine/stats/generated_tokens"), "read": rate("/engine/stats/prompt_tokens")},
        "replies": status["replies"],
        "connections": now.count("/http/connections"),
        "first_token": latency(&now.first, &before.first),
        "next_token": latency(&now.next, &before.next),
        "turns": {"scored": now.count("/actors/scorer/scored"), "to_score": now.count("/actors/scorer/queue")},
        "night": {"state": night["state"], "phase": night.pointer("/run/phase"), "champion": night.pointer("/served/champion")},
        "actors": actors,
    })
}

/// What was seen, for people.
fn shown(seen: &Value) -> String {
    let number = |path: &str| seen.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    let word = |path: &str| printable(seen.pointer(path).and_then(Value::as_str).unwrap_or("–"));
    let latency = |path: &str| {
        let at = |q: &str| match seen.pointer(&format!("{path}/{q}")).and_then(Value::as_f64) {
            Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
            Some(seconds) => format!("{seconds:.2} s"),
            None => "–".to_owned(),
        };
        format!("p50 {}, p99 {} ({} seen)", at("p50_s"), at("p99_s"), number(&format!("{path}/count")))
    };
    let restarts = |(name, actor): (&String, &Value)| {
        let (life, restarts) = (actor["life"].as_str().unwrap_or("?"), actor["restarts"].as_u64().unwrap_or(0));
        let all_well = life == "running" && restarts == 0;
        (!all_well).then(|| printable(&format!("{name} {life}, {}", counted(restarts, "restart", "restarts"))))
    };
    let unwell: Vec<String> = seen["actors"].as_object().into_iter().flatten().filter_map(restarts).collect();
    let lines = [
        format!(
            "chimere {}   {} on {}   up {}",
            word("/version"),
            word("/model"),
            word("/device"),
            span(number("/uptime_ms") / 1e3)
        ),
        format!(
            "engine       {}, {}, {:.0} MiB",
            word("/engine/state"),
            counted(number("/engine/starts"), "start", "starts"),
            number("/memory_bytes") / f64::from(1 << 20)
        ),
        format!(
            "sequences    {} of {} running, {} waiting",
            number("/sequences/running"),
            number("/sequences/max"),
            number("/sequences/waiting")
        ),
        format!(
            "tokens       {:.0} /s generated, {:.0} /s read",
            number("/tokens_per_s/generated"),
            number("/tokens_per_s/read")
        ),
        format!("first token  {}", latency("/first_token")),
        format!("next token   {}", latency("/next_token")),
        format!(
            "replies      {} of {} under way, {}",
            number("/replies/running"),
            number("/replies/max"),
            counted(number("/connections"), "connection", "connections")
        ),
        format!("turns        {} scored, {} to score", number("/turns/scored"), number("/turns/to_score")),
        format!(
            "night        {}, phase {}, generation {} serves",
            word("/night/state"),
            word("/night/phase"),
            number("/night/champion")
        ),
        format!("actors       {}", if unwell.is_empty() { "all running".to_owned() } else { unwell.join("; ") }),
    ];
    lines.join("\n")
}

/// 3 h 12 min, 12 min 5 s, 5 s.
fn span(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(status: Value, when: Instant) -> Look {
        Look { when, status, first: Histogram::default(), next: Histogram::default() }
    }

    #[test]
    fn speeds_are_of_the_time_between_two_looks() {
        let began = Instant::now();
        let status =
            |pid: u64, tokens: u64| json!({"pid": 1, "engine": {"pid": pid, "stats": {"generated_tokens": tokens}}});
        let before = look(status(7, 100), began);
        let speed = |after: Value| {
            let now = look(after, began + Duration::from_secs(2));
            seen(&before, &now)["tokens_per_s"]["generated"].as_f64().unwrap()
        };
        assert_eq!(speed(status(7, 300)), 100.0);
        // Another engine has counted from nothing.
        assert_eq!(speed(status(8, 300)), 150.0);
        assert_eq!(speed(json!({})), 0.0);
    }

    #[test]
    fn what_is_shown_names_what_is_unwell_and_steers_no_terminal() {
        let seen = json!({
            "version": "1\u{1b}[31m", "uptime_ms": 3_723_000, "first_token": {"count": 3, "p50_s": 0.0125, "p99_s": 2.5},
            "actors": {"memory": {"life": "running", "restarts": 0}, "scorer": {"life": "restarting", "restarts": 2}},
        });
        let text = shown(&seen);
        assert!(text.contains("up 1 h 2 min") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains("p50 12.5 ms, p99 2.50 s (3 seen)") && text.contains("p50 –"), "{text}");
        assert!(text.contains("scorer restarting, 2 restarts") && !text.contains("memory"), "{text}");
        assert_eq!((span(5.0), span(65.0)), ("5 s".to_owned(), "1 min 5 s".to_owned()));
    }
}
