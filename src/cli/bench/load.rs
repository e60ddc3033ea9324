//! A load of mixed lengths: what is asked, by how many streams at once, and when each piece of each reply came. The
//! same seed asks the same. No two seeds share a prompt, so nothing that a server kept of a round helps it in the next.

use std::cell::Cell;
use std::time::Instant;

use anyhow::{Context, bail};
use chimere::optimise::random::Random;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::cli::client::Client;

/// Tokens of a prompt and of a reply, shortest and longest: as many short ones as long ones by their logarithm.
pub const PROMPT: (f64, f64) = (20.0, 1_500.0);
pub const REPLY: (f64, f64) = (16.0, 256.0);
/// The route of these chats: no system message and no thought, so that both servers read the same prompt.
pub const ROUTE: (&str, &str) =
    ("bench", "name: bench\nversion: 1\nthinking: {fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}\n");

/// What the prompts are made of.
const WORDS: [&str; 96] = [
    "the", "a", "river", "house", "and", "old", "of", "was", "under", "mountain", "child", "red", "to", "walked", "in",
    "morning", "light", "with", "book", "his", "her", "small", "garden", "over", "bread", "table", "they", "found",
    "water", "window", "before", "winter", "friend", "letter", "that", "long", "road", "horse", "we", "carried",
    "tree", "green", "from", "village", "stone", "bridge", "is", "never", "cold", "night", "story", "for", "king",
    "ship", "sea", "island", "as", "bird", "song", "quiet", "on", "city", "street", "door", "opened", "by", "hand",
    "black", "clock", "seven", "at", "school", "teacher", "question", "answer", "but", "paper", "fire", "wind",
    "field", "not", "summer", "market", "apple", "silver", "or", "doctor", "number", "north", "star", "be", "boat",
    "music", "heart", "year", "dog",
];

/// One thing to ask.
pub struct Request {
    pub messages: Value,
    pub tokens: u32,
}

/// How many words a token of the served model is worth, for prompts of a wanted length.
pub struct Prompts {
    words_per_token: f64,
}

impl Prompts {
    /// Asks a server that tokenizes.
    pub async fn of(client: &Client) -> anyhow::Result<Prompts> {
        let answer = client.post("/tokenize", &json!({ "content": WORDS.join(" ") })).await?;
        let tokens = answer["tokens"].as_array().map_or(0, Vec::len);
        Ok(Prompts { words_per_token: WORDS.len() as f64 / tokens.max(1) as f64 })
    }

    /// A text of about so many tokens, that begins as no other does.
    pub fn text(&self, random: &mut Random, tokens: f64) -> String {
        let count = (tokens * self.words_per_token).round().max(1.0) as usize;
        (0..count).map(|_| WORDS[random.below(WORDS.len())]).collect::<Vec<_>>().join(" ")
    }

    /// So many requests: each round has the same lengths, in another order and in other words.
    pub fn requests(&self, seed: u64, count: usize) -> Vec<Request> {
        let mut random = Random::new(seed);
        let replies = random.some_of(count, count);
        let mut order = random.some_of(count, count).into_iter().zip(replies).collect::<Vec<_>>();
        let length =
            |(least, most): (f64, f64), at: usize| least * (most / least).powf((at as f64 + 0.5) / count as f64);
        order
            .drain(..)
            .map(|(prompt, reply)| Request {
                messages: json!([{ "role": "user", "content": self.text(&mut random, length(PROMPT, prompt)) }]),
                tokens: length(REPLY, reply).round() as u32,
            })
            .collect()
    }
}

/// What became of one request.
pub struct Reply {
    pub began: Instant,
    /// When each piece of its text came.
    pub pieces: Vec<Instant>,
    pub text: String,
    pub tokens: u32,
    pub prompt_tokens: u64,
    /// Of the prompt, those that the server had kept.
    pub cached_tokens: u64,
}

impl Reply {
    pub fn first_ms(&self) -> f64 {
        self.pieces[0].duration_since(self.began).as_secs_f64() * 1e3
    }
}

/// Asks one thing: greedy, without thought, and to its full length.
pub async fn ask(client: &Client, bias: &Value, request: &Request) -> anyhow::Result<Reply> {
    let body = json!({
        "messages": request.messages, "stream": true, "max_tokens": request.tokens, "temperature": 0,
        "logit_bias": bias, "chat_template_kwargs": { "enable_thinking": false }, "chimere": { "route": ROUTE.0 },
        "stream_options": { "include_usage": true },
    });
    let began = Instant::now();
    let events = client.stream("/v1/chat/completions", &body).await?.timed().await?;
    let (mut pieces, mut text, mut usage) = (Vec::new(), String::new(), Value::Null);
    for (at, mut event) in events {
        let delta = &event["choices"][0]["delta"];
        let said = ["reasoning_content", "content"].into_iter().filter_map(|part| delta[part].as_str());
        let said = said.collect::<String>();
        if !said.is_empty() {
            pieces.push(at);
            text.push_str(&said);
        }
        if !event["usage"].is_null() {
            usage = event["usage"].take();
        }
    }
    let tokens = usage["completion_tokens"].as_u64().context("the stream told no usage")? as u32;
    if tokens != request.tokens || pieces.is_empty() {
        bail!("a reply of {} tokens was asked for, and {tokens} in {} pieces came", request.tokens, pieces.len());
    }
    let prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
    let cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    Ok(Reply { began, pieces, text, tokens, prompt_tokens, cached_tokens })
}

/// A round: its replies in the order of the requests.
pub struct Round {
    pub replies: Vec<Reply>,
    /// When a stream had nothing more to ask for the first time: until then all were busy.
    pub dry: Instant,
}

/// So many streams at once, each of which asks the next thing as soon as it has its reply.
pub async fn round(client: &Client, bias: &Value, requests: &[Request], streams: u16) -> anyhow::Result<Round> {
    let next = Cell::new(0);
    let stream = || async {
        let mut replies = Vec::new();
        while let Some(request) = requests.get(next.get()) {
            let at = next.replace(next.get() + 1);
            replies.push((at, ask(client, bias, request).await?));
        }
        anyhow::Ok((replies, Instant::now()))
    };
    let done = try_join_all((0..streams).map(|_| stream())).await?;
    let dry = done.iter().map(|(_, end)| *end).min().context("no stream was asked for")?;
    let mut replies = done.into_iter().flat_map(|(replies, _)| replies).collect::<Vec<_>>();
    replies.sort_by_key(|(at, _)| *at);
    Ok(Round { replies: replies.into_iter().map(|(_, reply)| reply).collect(), dry })
}

/// One number of each kind: of a round, or of all of them.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Figures<T> {
    /// Of all replies, from the first request to the last token.
    pub tokens_per_s: T,
    /// The same while every stream was busy.
    pub busy_tokens_per_s: T,
    /// From a request to its first token, milliseconds.
    pub first_ms_p50: T,
    pub first_ms_p99: T,
    /// Between two tokens of a reply, milliseconds.
    pub gap_ms_p50: T,
    pub gap_ms_p99: T,
}

impl<T> Figures<T> {
    /// The same for each kind of number.
    pub fn each<R>(of: impl Fn(fn(&Figures<T>) -> &T) -> R) -> Figures<R> {
        Figures {
            tokens_per_s: of(|f| &f.tokens_per_s),
            busy_tokens_per_s: of(|f| &f.busy_tokens_per_s),
            first_ms_p50: of(|f| &f.first_ms_p50),
            first_ms_p99: of(|f| &f.first_ms_p99),
            gap_ms_p50: of(|f| &f.gap_ms_p50),
            gap_ms_p99: of(|f| &f.gap_ms_p99),
        }
    }
}

impl Round {
    pub fn figures(&self) -> Figures<f64> {
        let began = self.replies.iter().map(|r| r.began).min().unwrap_or(self.dry);
        let ended = self.replies.iter().filter_map(|r| r.pieces.last()).copied().max().unwrap_or(self.dry);
        // A piece is a token, but for the few that waited for the rest of a character.
        let until = |end: Instant| -> f64 {
            let share = |r: &Reply| r.pieces.iter().filter(|at| **at <= end).count() as f64 / r.pieces.len() as f64;
            let tokens: f64 = self.replies.iter().map(|r| share(r) * f64::from(r.tokens)).sum();
            tokens / end.duration_since(began).as_secs_f64()
        };
        let mut first: Vec<f64> = self.replies.iter().map(Reply::first_ms).collect();
        let gap = |pair: &[Instant]| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3;
        let mut gaps: Vec<f64> = self.replies.iter().flat_map(|r| r.pieces.windows(2).map(gap)).collect();
        first.sort_by(f64::total_cmp);
        gaps.sort_by(f64::total_cmp);
        Figures {
            tokens_per_s: until(ended),
            busy_tokens_per_s: until(self.dry),
            first_ms_p50: quantile(&first, 0.5),
            first_ms_p99: quantile(&first, 0.99),
            gap_ms_p50: quantile(&gaps, 0.5),
            gap_ms_p99: quantile(&gaps, 0.99),
        }
    }
}

/// The nearest rank among sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_round_asks_every_length_once_and_nothing_twice() {
        let prompts = Prompts { words_per_token: 1.0 };
        let words = |r: &Request| r.messages[0]["content"].as_str().unwrap().split(' ').count();
        let of = |seed| prompts.requests(seed, 32);
        let (one, two) = (of(1), of(2));
        let mut lengths: Vec<_> = one.iter().map(|r| (words(r), r.tokens)).collect();
        assert_eq!(lengths, of(1).iter().map(|r| (words(r), r.tokens)).collect::<Vec<_>>(), "the same seed");
        assert!(lengths.iter().all(|l| (20..=1_500).contains(&l.0) && (16..=256).contains(&l.1)), "{lengths:?}");
        let (mut others, sum) = (two.iter().map(words).collect::<Vec<_>>(), one.iter().map(|r| r.tokens).sum::<u32>());
        assert_eq!(sum, two.iter().map(|r| r.tokens).sum::<u32>(), "as many tokens in each round");
        lengths.sort();
        others.sort();
        assert_eq!(lengths.iter().map(|l| l.0).collect::<Vec<_>>(), others);
        assert!(lengths[0].0 < 25 && lengths[31].0 > 1_300, "{lengths:?}");
        let mut texts: Vec<_> = one.iter().chain(&two).map(|r| r.messages.to_string()).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 64);
    }

    #[test]
    fn figures_are_those_of_what_came_when() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let reply = |began: u64, pieces: &[u64]| Reply {
            began: at(began),
            pieces: pieces.iter().map(|&ms| at(ms)).collect(),
            text: String::new(),
            tokens: pieces.len() as u32,
            prompt_tokens: 1,
            cached_tokens: 0,
        };
        let replies = vec![reply(0, &[100, 110, 120, 130]), reply(0, &[400, 500]), reply(130, &[150, 1_000])];
        let figures = Round { replies, dry: at(500) }.figures();
        let Figures { tokens_per_s, busy_tokens_per_s, first_ms_p50, first_ms_p99, gap_ms_p50, gap_ms_p99 } = figures;
        assert_eq!((tokens_per_s, busy_tokens_per_s), (8.0, 14.0));
        assert_eq!((first_ms_p50, first_ms_p99, gap_ms_p50, gap_ms_p99), (100.0, 400.0, 10.0, 850.0));
    }
}
