//! `chimere bench --http --mixed`: how fast a daemon serves many at once through its HTTP server, and how soon a second
//! turn begins. With `--peer-server` llama.cpp's server gets the same requests in turn, from the same client. It has as
//! many threads, sequences and positions. The ratios are of the same round.

use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use chimere::bench::{Interval, Rates};
use chimere::optimise::random::Random;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::load::{self, Figures, PROMPT, Prompts, REPLY, ROUTE, Reply, Request, Round};
use super::server::Server;
use crate::cli::client::Client;
use crate::cli::exit::{EX_DATAERR, coded};

/// Each stream asks once in a round, and so many times, one for each stream within these bounds, one asks again.
const AGAIN: (usize, usize) = (3, 16);
/// Positions of a sequence: the longest prompt, the longest reply and what a chat adds.
const CONTEXT_TOKENS: u32 = 2_048;
/// The chat of two turns: what the first asks, how much is answered, what the second asks.
const TURN: (f64, u32, &str) = (1_500.0, 64, "And what became of it after the winter?");
const SECOND_TOKENS: u32 = 8;

/// What to measure.
pub struct Plan {
    pub model: PathBuf,
    pub threads: usize,
    /// Streams at once, one case each.
    pub batch: Vec<u16>,
    pub rounds: usize,
    /// llama.cpp's `llama-server`.
    pub peer: Option<PathBuf>,
}

/// The median over the rounds, and their mean with its 95 % interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    pub median: f64,
    #[serde(flatten)]
    pub interval: Interval,
}

impl Summary {
    fn of(values: Vec<f64>) -> Summary {
        let rates = Rates(values);
        Summary { median: rates.median(), interval: rates.interval() }
    }
}

fn summed(rounds: &[Figures<f64>]) -> Figures<Summary> {
    Figures::each(|pick| Summary::of(rounds.iter().map(|f| *pick(f)).collect()))
}

/// One case: so many streams at once.
#[derive(Debug, Serialize)]
pub struct Row {
    pub streams: u16,
    /// Of a round, with the tokens of their prompts and of their replies.
    pub requests: usize,
    pub prompt_tokens: u64,
    pub reply_tokens: u64,
    pub chimere: Figures<Summary>,
    pub peer: Option<Figures<Summary>>,
    /// Ours to the peer's of the same round.
    pub ratio: Option<Figures<Summary>>,
    /// Replies, of all rounds, that both wrote alike to the last character.
    pub same_texts: Option<usize>,
}

/// A chat of two turns.
#[derive(Debug, Serialize)]
pub struct Turns {
    pub prompt_tokens: [u64; 2],
    /// Of the second prompt, those that were kept of the first.
    pub cached_tokens: u64,
    /// To the first token, milliseconds.
    pub first_turn_ms: Summary,
    pub second_turn_ms: Summary,
    /// The second turn's to the first's, of the same chat.
    pub share: Summary,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub peer: Option<String>,
    pub threads: usize,
    /// Of each server, and positions of each of them.
    pub sequences: u16,
    pub context_tokens: u32,
    pub processors: usize,
    pub rounds: usize,
    pub rows: Vec<Row>,
    pub turns: Turns,
    pub peer_turns: Option<Turns>,
}

/// A server that is up, and what one asks it with.
struct Lane {
    server: Server,
    bias: Value,
}

/// Runs every case; `progress` is told after each measurement.
pub fn run(plan: &Plan, progress: &mut dyn FnMut()) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sequences = plan.batch.iter().copied().max().unwrap_or(1);
    let (lanes, prompts) = runtime.block_on(start(plan, sequences))?;
    let measure = |lane: &Lane, requests: &[Request], streams| {
        runtime.block_on(load::round(&lane.server.client, &lane.bias, requests, streams))
    };
    // Not counted: whatever a server does only once, it does for these.
    for lane in &lanes {
        let short = prompts.requests(0, sequences.into()).into_iter().map(|r| Request { tokens: 16, ..r });
        measure(lane, &short.collect::<Vec<_>>(), sequences)?;
    }
    let mut rows = Vec::new();
    for &streams in &plan.batch {
        let count = usize::from(streams) + usize::from(streams).clamp(AGAIN.0, AGAIN.1);
        let mut case = Case::default();
        for round in 0..plan.rounds {
            let requests = prompts.requests(1 + rows.len() as u64 * 1_000 + round as u64, count);
            let measured = in_turn(&lanes, round, |lane| {
                let measured = measure(lane, &requests, streams);
                progress();
                measured
            })?;
            case.take(&measured)?;
        }
        rows.push(case.row(streams, count));
    }
    let mut chats = lanes.iter().map(|_| Vec::new()).collect::<Vec<_>>();
    for round in 0..plan.rounds {
        let text = prompts.text(&mut Random::new(1_000_000 + round as u64), TURN.0);
        let measured = in_turn(&lanes, round, |lane| {
            let turns = chat(&runtime, &lane.server.client, &lane.bias, &text);
            progress();
            turns
        })?;
        chats.iter_mut().zip(measured).for_each(|(all, one)| all.push(one));
    }
    let mut turns = chats.iter().map(|chats| Turns::of(chats)).collect::<Vec<_>>().into_iter();
    Ok(Report {
        model: plan.model.display().to_string(),
        peer: plan.peer.as_ref().map(|file| file.display().to_string()),
        threads: plan.threads,
        sequences,
        context_tokens: CONTEXT_TOKENS,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        rounds: plan.rounds,
        rows,
        turns: turns.next().context("no daemon was measured")?,
        peer_turns: turns.next(),
    })
}

/// Ours first, then the peer, where there is one.
async fn start(plan: &Plan, sequences: u16) -> anyhow::Result<(Vec<Lane>, Prompts)> {
    let threads = plan.threads;
    // Nobody judges the replies: the other server has no judge.
    let config = format!(
        "[engine]\nthreads = {threads}\nsequences = {sequences}\ncontext_tokens = {CONTEXT_TOKENS}\n\
         [replies]\nrequests_max = {}\n[scorer]\nenabled = false\n",
        4 * sequences
    );
    let mut ours = Server::daemon(&plan.model, &config, &[ROUTE])?;
    ours.ready().await?;
    let (bias, prompts) = (ours.no_end().await?, Prompts::of(&ours.client).await?);
    let mut lanes = vec![Lane { server: ours, bias: bias.clone() }];
    if let Some(file) = &plan.peer {
        let mut server = Server::llama(file, &plan.model, threads, sequences, CONTEXT_TOKENS)?;
        server.ready().await?;
        lanes.push(Lane { server, bias });
    }
    Ok((lanes, prompts))
}

/// The same with each lane; who goes first finds the processor as the round before left it, so they take turns.
fn in_turn<T>(lanes: &[Lane], round: usize, mut of: impl FnMut(&Lane) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
    let turned = lanes.len() > 1 && round % 2 == 1;
    let order: Vec<&Lane> = if turned { lanes.iter().rev().collect() } else { lanes.iter().collect() };
    let mut done = order.into_iter().map(&mut of).collect::<anyhow::Result<Vec<T>>>()?;
    if turned {
        done.reverse();
    }
    Ok(done)
}

#[derive(Default)]
struct Case {
    chimere: Vec<Figures<f64>>,
    peer: Vec<Figures<f64>>,
    same_texts: usize,
    prompt_tokens: u64,
    reply_tokens: u64,
}

impl Case {
    fn take(&mut self, measured: &[Round]) -> anyhow::Result<()> {
        let sum = |round: &Round, of: fn(&Reply) -> u64| round.replies.iter().map(of).sum::<u64>();
        let ours = &measured[0];
        self.chimere.push(ours.figures());
        (self.prompt_tokens, self.reply_tokens) = (sum(ours, |r| r.prompt_tokens), sum(ours, |r| r.tokens.into()));
        let Some(peer) = measured.get(1) else { return Ok(()) };
        self.peer.push(peer.figures());
        let pairs = || ours.replies.iter().zip(&peer.replies);
        if let Some((a, b)) = pairs().find(|(a, b)| a.prompt_tokens != b.prompt_tokens) {
            let [a, b] = [a, b].map(|reply| reply.prompt_tokens);
            let message = format!("the servers read different prompts, of {a} and {b} tokens: nothing is compared");
            return Err(coded(EX_DATAERR, message));
        }
        self.same_texts += pairs().filter(|(a, b)| a.text == b.text).count();
        Ok(())
    }

    fn row(self, streams: u16, requests: usize) -> Row {
        let Case { chimere, peer, same_texts, prompt_tokens, reply_tokens } = self;
        let both = chimere.iter().zip(&peer);
        let ratios: Vec<_> = both.map(|(a, b)| Figures::each(|pick| pick(a) / pick(b))).collect();
        let with_peer = !peer.is_empty();
        Row {
            streams,
            requests,
            prompt_tokens,
            reply_tokens,
            chimere: summed(&chimere),
            peer: with_peer.then(|| summed(&peer)),
            ratio: with_peer.then(|| summed(&ratios)),
            same_texts: with_peer.then_some(same_texts),
        }
    }
}

/// Two turns of one chat, the second with the first in front of it.
fn chat(runtime: &Runtime, client: &Client, bias: &Value, text: &str) -> anyhow::Result<[Reply; 2]> {
    let ask = |messages: Value, tokens| runtime.block_on(load::ask(client, bias, &Request { messages, tokens }));
    let said = json!({ "role": "user", "content": text });
    let first = ask(json!([said]), TURN.1)?;
    let answer = json!({ "role": "assistant", "content": first.text });
    let second = ask(json!([said, answer, { "role": "user", "content": TURN.2 }]), SECOND_TOKENS)?;
    Ok([first, second])
}

impl Turns {
    fn of(chats: &[[Reply; 2]]) -> Turns {
        let each = |of: fn(&[Reply; 2]) -> f64| Summary::of(chats.iter().map(of).collect());
        let last = chats.last();
        Turns {
            prompt_tokens: last.map_or([0; 2], |chat| [chat[0].prompt_tokens, chat[1].prompt_tokens]),
            cached_tokens: last.map_or(0, |chat| chat[1].cached_tokens),
            first_turn_ms: each(|chat| chat[0].first_ms()),
            second_turn_ms: each(|chat| chat[1].first_ms()),
            share: each(|chat| chat[1].first_ms() / chat[0].first_ms()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { model, threads, sequences, context_tokens, processors, rounds, .. } = self;
        writeln!(
            f,
            "model      {model}; {threads} threads, {sequences} sequences of {context_tokens} positions, {processors} \
             processors at hand; {rounds} rounds"
        )?;
        writeln!(
            f,
            "load       prompts of {} to {} tokens, replies of {} to {}, a stream asks again as soon as it has its reply\n\
             figures    medians over the rounds; busy: while all streams were; first: from a request to its first token;\n\
             \x20          gap: between two tokens of a reply; ratio: mean over the rounds and its 95 % interval\n",
            PROMPT.0, PROMPT.1, REPLY.0, REPLY.1
        )?;
        let head = ["tokens/s", "busy", "first p50", "p99, ms", "gap p50", "p99, ms"];
        writeln!(f, "{:>7} {:<8}{}", "streams", "server", head.map(|name| format!("{name:>19}")).concat())?;
        for row in &self.rows {
            let line = |of: &dyn Fn(&Summary) -> String, figures: &Figures<Summary>| {
                let cells = [
                    &figures.tokens_per_s,
                    &figures.busy_tokens_per_s,
                    &figures.first_ms_p50,
                    &figures.first_ms_p99,
                    &figures.gap_ms_p50,
                    &figures.gap_ms_p99,
                ];
                cells.map(|cell| format!("{:>19}", of(cell))).concat()
            };
            let median = |s: &Summary| format!("{:.1}", s.median);
            writeln!(f, "{:>7} {:<8}{}", row.streams, "chimere", line(&median, &row.chimere))?;
            if let (Some(peer), Some(ratio)) = (&row.peer, &row.ratio) {
                let share =
                    |s: &Summary| format!("{:.2} [{:.2}, {:.2}]", s.interval.mean, s.interval.low, s.interval.high);
                writeln!(f, "{:>7} {:<8}{}", "", "peer", line(&median, peer))?;
                writeln!(f, "{:>7} {:<8}{}", "", "ratio", line(&share, ratio))?;
            }
        }
        writeln!(f)?;
        for (name, turns) in [("chimere", Some(&self.turns)), ("peer", self.peer_turns.as_ref())] {
            let Some(Turns { prompt_tokens, cached_tokens, first_turn_ms, second_turn_ms, share }) = turns else {
                continue;
            };
            writeln!(
                f,
                "two turns  {name}: {} and {} tokens, {cached_tokens} of them kept: first token after {:.1} and {:.1} ms, \
                 {:.1} % [{:.1}, {:.1}]",
                prompt_tokens[0],
                prompt_tokens[1],
                first_turn_ms.median,
                second_turn_ms.median,
                share.interval.mean * 100.0,
                share.interval.low * 100.0,
                share.interval.high * 100.0
            )?;
        }
        Ok(())
    }
}
