//! `chimere bench --http`: what the way through the daemon costs. An engine alone and a daemon make the same replies in
//! turn. The engine's come over its pipe, on its own clock; the daemon's as event streams, on this client's clock. The
//! daemon and both engines are started here and end here.

use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use chimere::bench::{Interval, Rates};
use chimere::engine::protocol::{self, Event, Generate, Prompt, encode, read_frame};
use chimere::turn::{Sampling, Turn};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::server::{Server, chimere};

/// Positions of a sequence for its prompt, the route's system message included. Where nobody says how many, the daemon's
/// engine would take all of a card's memory for them, and the engine alone would find none.
const PROMPT_TOKENS_MAX: u32 = 4_096;

/// What to measure.
pub struct Plan {
    pub model: PathBuf,
    pub threads: usize,
    /// Streams at once, one case each.
    pub batch: Vec<u16>,
    pub tokens: u32,
    pub rounds: usize,
}

impl Plan {
    fn context_tokens(&self) -> u32 {
        PROMPT_TOKENS_MAX + self.tokens
    }
}

/// One case: so many streams at once.
#[derive(Debug, Serialize)]
pub struct Row {
    pub streams: u16,
    /// Medians over the rounds, tokens per second of all streams, from the request to the last token.
    pub engine_tokens_per_s: f64,
    pub http_tokens_per_s: f64,
    /// The stream's rate to the rate of the engine alone, of the same round.
    pub kept: Interval,
    /// The stream's rate to that of the engine behind it, by the timings in the same reply.
    pub kept_of_own_engine: Interval,
    /// From the last token to the end of the stream: the turn is on disk by then. Median, milliseconds.
    pub end_ms: f64,
    /// Rounds in which every stream had the tokens that the engine alone made.
    pub same_tokens: usize,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub threads: usize,
    pub tokens: u32,
    pub rounds: usize,
    pub rows: Vec<Row>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Report { model, threads, tokens, rounds, rows } = self;
        writeln!(f, "model      {model}, {threads} threads, replies of {tokens} tokens, {rounds} rounds in turn")?;
        writeln!(
            f,
            "rates      from the request to the last token: the engine alone on its own clock, the streams here\n\
             kept       of an engine alone, to which nobody else takes processors; own: of the engine behind the \
             streams\n"
        )?;
        writeln!(
            f,
            "{:>7} {:>12} {:>12} {:>26} {:>18} {:>24} {:>9} {:>12}",
            "streams",
            "engine tok/s",
            "HTTP tok/s",
            "kept, mean [95 %]",
            "slowest…fastest",
            "own, mean [95 %]",
            "end, ms",
            "same tokens"
        )?;
        for row in rows {
            let Interval { least, most, .. } = row.kept;
            let share = |Interval { mean, low, high, .. }: &Interval| {
                format!("{:.1} % [{:.1}, {:.1}]", mean * 100.0, low * 100.0, high * 100.0)
            };
            writeln!(
                f,
                "{:>7} {:>12.1} {:>12.1} {:>26} {:>18} {:>24} {:>9.1} {:>12}",
                row.streams,
                row.engine_tokens_per_s,
                row.http_tokens_per_s,
                share(&row.kept),
                format!("{:.1}…{:.1} %", least * 100.0, most * 100.0),
                share(&row.kept_of_own_engine),
                row.end_ms,
                format!("{} of {rounds}", row.same_tokens)
            )?;
        }
        Ok(())
    }
}

/// Runs every case; `progress` is told after each measurement.
pub fn run(plan: &Plan, progress: &mut dyn FnMut()) -> anyhow::Result<Report> {
    let widest = plan.batch.iter().copied().max().unwrap_or(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let daemon = Daemon::start(plan, widest, &runtime)?;
    let mut engine = Engine::start(plan, widest)?;
    let mut rows = Vec::new();
    for &streams in &plan.batch {
        // Not counted, and the source of the very prompts and sampling that the daemon gives its engine.
        let warm = runtime.block_on(daemon.streams(streams, plan.tokens))?;
        let turns = warm.iter().map(|w| runtime.block_on(daemon.turn(&w.turn))).collect::<Result<Vec<_>, _>>()?;
        engine.replies(&turns, plan.tokens)?;
        let mut case = Case::default();
        for round in 0..plan.rounds {
            // Whoever goes first gets the processor as the round before left it: so they take turns.
            let first = (round % 2 == 0).then(|| engine.replies(&turns, plan.tokens)).transpose()?;
            let ours = runtime.block_on(daemon.streams(streams, plan.tokens))?;
            let alone = first.map_or_else(|| engine.replies(&turns, plan.tokens), Ok)?;
            case.take(&alone, &ours);
            progress();
        }
        rows.push(case.row(streams));
    }
    let Plan { model, threads, tokens, rounds, .. } = plan;
    let (threads, tokens, rounds) = (*threads, *tokens, *rounds);
    Ok(Report { model: model.display().to_string(), threads, tokens, rounds, rows })
}

/// What became of one reply.
struct Reply {
    tokens: u32,
    /// From the request to the last token, by whose clock it was measured.
    seconds: f64,
    /// The same on the clock of the engine that made it, where another clock measured it.
    engine_seconds: f64,
    /// From the last token to the end of the stream.
    end_seconds: f64,
    text: String,
    turn: String,
}

/// Tokens per second of replies made together, each at its own rate.
fn rate(replies: &[Reply], seconds: fn(&Reply) -> f64) -> f64 {
    replies.iter().map(|reply| f64::from(reply.tokens) / seconds(reply)).sum()
}

#[derive(Default)]
struct Case {
    engine: Rates,
    http: Rates,
    kept: Rates,
    kept_of_own_engine: Rates,
    end_ms: Rates,
    same_tokens: usize,
}

impl Case {
    fn take(&mut self, alone: &[Reply], ours: &[Reply]) {
        let (engine, http) = (rate(alone, |r| r.seconds), rate(ours, |r| r.seconds));
        self.engine.0.push(engine);
        self.http.0.push(http);
        self.kept.0.push(http / engine);
        self.kept_of_own_engine.0.push(http / rate(ours, |r| r.engine_seconds));
        self.end_ms.0.extend(ours.iter().map(|r| r.end_seconds * 1e3));
        let same = alone.iter().zip(ours).all(|(a, b)| a.tokens == b.tokens && a.text == b.text);
        self.same_tokens += usize::from(same);
    }

    fn row(self, streams: u16) -> Row {
        Row {
            streams,
            engine_tokens_per_s: self.engine.median(),
            http_tokens_per_s: self.http.median(),
            kept: self.kept.interval(),
            kept_of_own_engine: self.kept_of_own_engine.interval(),
            end_ms: self.end_ms.median(),
            same_tokens: self.same_tokens,
        }
    }
}

/// The daemon that is measured.
struct Daemon {
    server: Server,
    bias: Value,
}

impl Daemon {
    fn start(plan: &Plan, widest: u16, runtime: &Runtime) -> anyhow::Result<Daemon> {
        let (threads, context) = (plan.threads, plan.context_tokens());
        let config = format!("[engine]\nthreads = {threads}\nsequences = {widest}\ncontext_tokens = {context}\n");
        let mut server = Server::daemon(&plan.model, &config, &[])?;
        runtime.block_on(server.ready())?;
        let bias = runtime.block_on(server.no_end())?;
        Ok(Daemon { server, bias })
    }

    /// As many chats at once, greedy and without thought, each with a question of its own.
    async fn streams(&self, streams: u16, tokens: u32) -> anyhow::Result<Vec<Reply>> {
        try_join_all((0..streams).map(|n| self.stream(n, tokens))).await
    }

    async fn stream(&self, n: u16, tokens: u32) -> anyhow::Result<Reply> {
        let question = format!("Tell me a long story about the number {n}.");
        let body = json!({
            "messages": [{ "role": "user", "content": question }], "stream": true, "max_tokens": tokens,
            "temperature": 0, "enable_thinking": false, "logit_bias": self.bias, "chimere": { "route": "default" },
            "stream_options": { "include_usage": true },
        });
        let began = Instant::now();
        let events = self.server.client.stream("/v1/chat/completions", &body).await?.timed().await?;
        let done = Instant::now();
        let (mut text, mut last, mut end) = (String::new(), began, Value::Null);
        for (at, event) in events {
            if let Some(piece) = event["choices"][0]["delta"]["content"].as_str().filter(|piece| !piece.is_empty()) {
                text.push_str(piece);
                last = at;
            }
            if !event["usage"].is_null() {
                end = event;
            }
        }
        let tokens = end["usage"]["completion_tokens"].as_u64().context("the stream told no usage")? as u32;
        let own = &end["x_chimere"];
        let engine_ms: f64 =
            ["queued_ms", "prefill_ms", "decode_ms"].iter().filter_map(|part| own["timings"][part].as_f64()).sum();
        Ok(Reply {
            tokens,
            seconds: last.duration_since(began).as_secs_f64(),
            engine_seconds: engine_ms / 1e3,
            end_seconds: done.duration_since(last).as_secs_f64(),
            text,
            turn: own["turn"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// What the daemon kept of a reply.
    async fn turn(&self, id: &str) -> anyhow::Result<Turn> {
        let mut answer = self.server.client.get(&format!("/v1/memory/turns?turn={id}")).await?;
        Ok(serde_json::from_value(answer["data"][0].take())?)
    }
}

/// An engine alone, at the other end of a pipe.
struct Engine {
    child: Child,
    commands: ChildStdin,
    events: BufReader<ChildStdout>,
    next_id: u64,
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Engine {
    fn start(plan: &Plan, widest: u16) -> anyhow::Result<Engine> {
        let mut command = chimere()?;
        command.args(["engine", "--threads", &plan.threads.to_string(), "--sequences", &widest.to_string()]);
        command.args(["--context", &plan.context_tokens().to_string()]);
        command.arg("--model").arg::<&Path>(&plan.model).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start an engine")?;
        let (Some(commands), Some(events)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the engine has no pipes");
        };
        let mut engine = Engine { child, commands, events: BufReader::new(events), next_id: 1 };
        while !matches!(engine.next()?, Event::Ready(_)) {}
        Ok(engine)
    }

    fn next(&mut self) -> anyhow::Result<Event> {
        match read_frame(&mut self.events)? {
            Some(Event::Fatal { message }) => bail!("{message}"),
            Some(event) => Ok(event),
            None => bail!("the engine ended"),
        }
    }

    /// The replies of `turns` again, all at once; `seconds` are those of the engine's own clock.
    fn replies(&mut self, turns: &[Turn], tokens: u32) -> anyhow::Result<Vec<Reply>> {
        let first = self.next_id;
        let mut frames = Vec::new();
        for turn in turns {
            let sampling = Sampling { seed: Some(0), ..turn.sampling.clone() };
            let generate =
                Generate { id: self.next_id, ..Generate::new(Prompt::Ids(turn.prompt_ids.clone()), sampling, tokens) };
            encode(&protocol::Command::Generate(Box::new(generate)), &mut frames)?;
            self.next_id += 1;
        }
        self.commands.write_all(&frames)?;
        self.commands.flush()?;
        let mut replies: Vec<(Reply, bool)> = turns.iter().map(|_| (Reply::empty(), false)).collect();
        while replies.iter().any(|(_, done)| !done) {
            match self.next()? {
                Event::Token(token) if token.id >= first => {
                    replies[(token.id - first) as usize].0.text.push_str(&token.text);
                }
                Event::Finished { id, text, usage, timings, .. } if id >= first => {
                    let (reply, done) = &mut replies[(id - first) as usize];
                    reply.text.push_str(&text);
                    reply.tokens = usage.completion_tokens;
                    reply.seconds = (timings.queued_ms + timings.prefill_ms + timings.decode_ms) / 1e3;
                    *done = true;
                }
                Event::Failed { message, .. } => bail!("{message}"),
                _ => {}
            }
        }
        Ok(replies.into_iter().map(|(reply, _)| reply).collect())
    }
}

impl Reply {
    fn empty() -> Reply {
        Reply {
            tokens: 0,
            seconds: 0.0,
            engine_seconds: 0.0,
            end_seconds: 0.0,
            text: String::new(),
            turn: String::new(),
        }
    }
}
