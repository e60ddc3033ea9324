//! Event streams of any reply: whatever a model says, a client that reads by the rules of server-sent events is told that and
//! nothing else. The client here is written from those rules and from the API's documentation, and shares nothing with what
//! writes the stream. What the stream told in pieces is what the same reply is when it is told at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, LazyLock};

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::engine::protocol::{Channel, TokenLogprob};
use crate::fuzz::reader::{Reader, cut};
use crate::http::limits::HttpLimits;
use crate::http::reply::{ReplyClock, Running, collect};
use crate::http::sse::respond;
use crate::http::wire::chat::Form;
use crate::http::wire::chunk::{Kind, REVISED};
use crate::http::wire::reply;
use crate::service::{Logprob, PlanSummary, ReplyEvent, ServiceError};
use crate::turn::{FinishReason, Generation, Tier, Timings, ToolCall, TurnId, Usage};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().enable_time().build().expect("a runtime of one thread can be built")
});

const FINGERPRINT: &str = "fp_\n\ndata: x";

/// A reply as the daemon's parts would tell it.
struct Told {
    kind: Kind,
    form: Form,
    choices: u32,
    events: Vec<ReplyEvent>,
}

/// What a client knows of one choice.
#[derive(Clone, Debug, Default, PartialEq)]
struct Choice {
    thinking: String,
    content: String,
    calls: Vec<[String; 3]>,
    /// Texts of the tokens.
    tokens: Vec<String>,
    reason: Option<String>,
}

/// What a client knows of a reply.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    choices: Vec<Choice>,
    /// Message of the error that ended it.
    error: Option<String>,
    done: bool,
}

pub fn check(data: &[u8]) {
    let told = told(&mut Reader(data));
    let limits = Arc::new(HttpLimits::default());
    let running = |events: &[ReplyEvent]| {
        let (to, events_there) = mpsc::channel(events.len().max(1));
        events.iter().for_each(|event| to.try_send(event.clone()).expect("there is room"));
        let (ahead, clock) = (VecDeque::new(), ReplyClock::start());
        Running { events: events_there, ahead, clock, choices: told.choices }
    };
    RUNTIME.block_on(async {
        let response = respond(running(&told.events), told.kind.clone(), told.form.clone(), &limits);
        let bytes = response.into_body().collect().await.expect("a stream has no other end").to_bytes();
        let text = std::str::from_utf8(&bytes).expect("a stream is UTF-8");
        let heard = heard(text, &told);
        assert_eq!(heard, expected(&told), "{text}");
        // A revised answer stands after the first in a stream, and in its place where nothing was shown yet.
        let revised = told.events.iter().any(|event| matches!(event, ReplyEvent::Revised { .. }));
        if let Ok(whole) = collect(running(&told.events), limits.reply_silence_timeout()).await
            && told.kind == Kind::Chat
            && !revised
        {
            match reply::chat(&whole, &told.form) {
                Ok(value) => assert_eq!(at_once(&value), heard.choices, "{text}"),
                Err(error) => assert_eq!(heard.error.as_ref(), Some(&error.message)),
            }
        }
    });
}

/// Reads a stream by the rules of server-sent events: lines end with CR, LF or both, an empty one ends an event.
fn heard(stream: &str, told: &Told) -> Heard {
    let mut heard = Heard { choices: vec![Choice::default(); told.choices as usize], ..Heard::default() };
    let mut data: Vec<&str> = Vec::new();
    let lines = stream.split("\r\n").flat_map(|line| line.split(['\r', '\n']));
    for line in lines {
        match line.split_once(':') {
            _ if line.is_empty() && data.is_empty() => {}
            _ if line.is_empty() => {
                assert_eq!(data.len(), 1, "an event is one line: {stream}");
                assert!(!heard.done && heard.error.is_none(), "nothing follows the end: {stream}");
                event(std::mem::take(&mut data)[0], told, &mut heard);
            }
            Some(("data", rest)) => data.push(rest.strip_prefix(' ').unwrap_or(rest)),
            _ => panic!("a line that nobody wrote: {line:?} in {stream}"),
        }
    }
    assert!(data.is_empty(), "the last event ends: {stream}");
    assert!(heard.done || heard.error.is_some(), "a stream says how it ended: {stream}");
    heard
}

fn event(data: &str, told: &Told, heard: &mut Heard) {
    if data == "[DONE]" {
        heard.done = true;
        return;
    }
    let value: Value = serde_json::from_str(data).expect("an event is JSON");
    if let Some(error) = value.get("error") {
        heard.error = Some(error["message"].as_str().expect("an error has a message").to_owned());
        return;
    }
    let Some(ReplyEvent::Started { model, .. }) = told.events.first() else { panic!("it has not begun: {value}") };
    assert_eq!((value["model"].as_str(), &value["system_fingerprint"]), (Some(model.as_str()), &json!(FINGERPRINT)));
    assert_eq!(value.get("usage").is_some(), told.form.include_usage, "{value}");
    for choice in value["choices"].as_array().expect("every chunk has choices") {
        let index = choice["index"].as_u64().expect("a choice has an index") as usize;
        let own = heard.choices.get_mut(index).expect("a choice that was asked for");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        own.thinking += &text(&choice["delta"]["reasoning_content"]);
        own.content += &text(&choice["delta"]["content"]);
        own.content += &text(&choice["text"]);
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().expect("a call has an index") as usize;
            if at >= own.calls.len() {
                own.calls.resize(at + 1, Default::default());
            }
            own.calls[at][0] += &text(&call["id"]);
            own.calls[at][1] += &text(&call["function"]["name"]);
            own.calls[at][2] += &text(&call["function"]["arguments"]);
        }
        own.tokens.extend(tokens(&choice["logprobs"]));
        assert!(own.reason.is_none() || choice["finish_reason"].is_null(), "a choice ends once");
        own.reason = own.reason.take().or(choice["finish_reason"].as_str().map(str::to_owned));
    }
}

/// Texts of the tokens that a `logprobs` object tells of, in either form.
fn tokens(logprobs: &Value) -> Vec<String> {
    let content = logprobs["content"].as_array().into_iter().flatten().map(|entry| &entry["token"]);
    let tokens = logprobs["tokens"].as_array().into_iter().flatten();
    content.chain(tokens).map(|token| token.as_str().expect("a token has a text").to_owned()).collect()
}

/// The choices of a whole reply.
fn at_once(value: &Value) -> Vec<Choice> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |choice: &Value| Choice {
        thinking: text(&choice["message"]["reasoning_content"]),
        content: text(&choice["message"]["content"]),
        calls: (choice["message"]["tool_calls"].as_array().into_iter().flatten())
            .map(|call| [&call["id"], &call["function"]["name"], &call["function"]["arguments"]].map(text))
            .collect(),
        tokens: tokens(&choice["logprobs"]),
        reason: choice["finish_reason"].as_str().map(str::to_owned),
    };
    value["choices"].as_array().into_iter().flatten().map(one).collect()
}

/// What a client must hear of these events.
fn expected(told: &Told) -> Heard {
    let mut heard = Heard { choices: vec![Choice::default(); told.choices as usize], ..Heard::default() };
    let chat = told.kind == Kind::Chat;
    // Completions know no calls.
    let calls_max = if chat { usize::MAX } else { 0 };
    let mut reasons: BTreeMap<u32, FinishReason> = BTreeMap::new();
    let said = |choice: &mut Choice, text: &str, logprobs: &[Logprob]| {
        choice.content += text;
        if told.form.logprobs {
            let shown = logprobs.iter().filter(|logprob| !logprob.chosen.bytes.is_empty());
            choice.tokens.extend(shown.map(|logprob| logprob.chosen.text.clone()));
        }
    };
    for event in &told.events {
        match event {
            // Told where the form asks for it, which these do not.
            ReplyEvent::PromptRead { .. } => {}
            ReplyEvent::Started { .. } => {
                if let Kind::Completion { echoes } = &told.kind {
                    heard.choices.iter_mut().zip(echoes).for_each(|(choice, echo)| choice.content += echo);
                }
            }
            ReplyEvent::Delta { choice, channel, text, logprobs } => {
                let choice = &mut heard.choices[*choice as usize];
                match channel {
                    Channel::Thinking if chat => choice.thinking += text,
                    _ => said(choice, text, logprobs),
                }
            }
            ReplyEvent::ChoiceFinished { choice, reason, tool_calls } => {
                reasons.insert(*choice, *reason);
                let own = &mut heard.choices[*choice as usize].calls;
                let late = tool_calls.iter().take(calls_max).skip(own.len());
                own.extend(late.map(|call| [call.id.clone(), call.name.clone(), call.arguments.to_string()]));
            }
            ReplyEvent::ToolBegin { choice, call, id, name } if (*call as usize) < calls_max => {
                heard.choices[*choice as usize].calls.push([id.clone(), name.clone(), String::new()]);
            }
            ReplyEvent::ToolArguments { choice, call, delta } if (*call as usize) < calls_max => {
                heard.choices[*choice as usize].calls[*call as usize][2] += delta;
            }
            ReplyEvent::Revised { choice, generation, logprobs } => {
                let choice = &mut heard.choices[*choice as usize];
                said(choice, REVISED, &[]);
                said(choice, &generation.content, logprobs);
            }
            ReplyEvent::Failed(error) => heard.error = Some(error.to_string()),
            ReplyEvent::Queued
            | ReplyEvent::ToolBegin { .. }
            | ReplyEvent::ToolArguments { .. }
            | ReplyEvent::Step(_)
            | ReplyEvent::Done { .. } => {}
        }
    }
    let ended = told.events.iter().any(|event| matches!(event, ReplyEvent::Done { .. }));
    match ended {
        true => finish(told, &reasons, &mut heard),
        false if heard.error.is_none() => {
            heard.error = Some("the reply broke off: the engine stopped answering".to_owned());
        }
        false => {}
    }
    heard
}

/// The ends of all choices, or the error that stands for the first that has none to be told.
fn finish(told: &Told, reasons: &BTreeMap<u32, FinishReason>, heard: &mut Heard) {
    let words = (0..told.choices).map(|choice| match reasons.get(&choice) {
        Some(FinishReason::Stop) => Ok("stop"),
        Some(FinishReason::Length) => Ok("length"),
        Some(FinishReason::ToolCalls) => Ok("tool_calls"),
        Some(FinishReason::Aborted) => Err("the reply was aborted"),
        Some(FinishReason::Error) | None => Err("the engine failed while it was replying"),
    });
    match words.collect::<Result<Vec<_>, _>>() {
        Ok(words) => {
            heard.done = true;
            for (choice, word) in heard.choices.iter_mut().zip(words) {
                choice.reason = Some(word.to_owned());
            }
        }
        Err(message) => heard.error = Some(message.to_owned()),
    }
}

/// A reply in the order that the daemon keeps: it starts, says things, and ends in one way or another.
fn told(reader: &mut Reader<'_>) -> Told {
    let flags = reader.byte();
    let choices = 1 + u32::from(flags & 3);
    let kind = match flags & 4 {
        0 => Kind::Chat,
        _ => Kind::Completion { echoes: vec![reader.text(); choices as usize] },
    };
    let form = Form {
        stream: true,
        include_usage: flags & 8 != 0,
        logprobs: flags & 16 != 0,
        every_token: false,
        ignored: Vec::new(),
    };
    let mut told = Told { kind, form, choices, events: Vec::new() };
    if flags & 64 != 0 {
        told.events.push(ReplyEvent::Failed(ServiceError::Internal(reader.text())));
        return told;
    }
    let plan = PlanSummary {
        turn: TurnId(reader.text()),
        route: reader.text(),
        because: String::new(),
        tier: Tier::Fast,
        pipeline_version: String::new(),
        adapter_revision: 0,
        examples: Vec::new(),
        lessons: Vec::new(),
        no_lessons: None,
        session: None,
        not_enforced: Vec::new(),
        without_effect: Box::default(),
    };
    told.events.push(ReplyEvent::Started {
        plan,
        model: reader.text(),
        fingerprint: FINGERPRINT.to_owned(),
        created_unix_s: 1,
    });
    let mut calls = vec![Vec::new(); choices as usize];
    while !reader.is_empty() && told.events.len() < 200 {
        let kind = reader.byte();
        let choice = u32::from(kind >> 4) % choices;
        match kind & 15 {
            0..=5 => told.events.push(ReplyEvent::Delta {
                choice,
                channel: if kind & 1 == 0 { Channel::Answer } else { Channel::Thinking },
                text: reader.text(),
                logprobs: logprobs(reader),
            }),
            6..=8 => call(reader, choice, &mut calls[choice as usize], &mut told.events),
            9 => told.events.push(ReplyEvent::Queued),
            10 => {
                let (generation, logprobs) = (Box::new(generation(choice, reader.text())), logprobs(reader));
                told.events.push(ReplyEvent::Revised { choice, generation, logprobs });
            }
            // The end of this choice; what it says afterwards is no longer asked for.
            11 | 12 => break,
            13 => {
                told.events.push(ReplyEvent::Failed(ServiceError::Internal(reader.text())));
                return told;
            }
            14 => return told,
            _ => {}
        }
    }
    for (choice, tool_calls) in (0u32..).zip(calls) {
        let reason = match reader.byte() % 16 {
            0 => FinishReason::Aborted,
            1 => FinishReason::Error,
            2..=5 => FinishReason::Length,
            _ if !tool_calls.is_empty() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        told.events.push(ReplyEvent::ChoiceFinished { choice, reason, tool_calls });
    }
    let generations = (0..choices).map(|choice| generation(choice, String::new())).collect();
    told.events.push(ReplyEvent::Done { usage: Usage::default(), generations, steps: Vec::new(), kept: Some(true) });
    told
}

/// A call, in pieces where they are told of while it is written, or only at the end.
fn call(reader: &mut Reader<'_>, choice: u32, calls: &mut Vec<ToolCall>, events: &mut Vec<ReplyEvent>) {
    let (id, name, key, value) = (reader.text(), reader.text(), reader.text(), reader.text());
    let call = calls.len() as u32;
    let begun = events.iter().filter(|event| matches!(event, ReplyEvent::ToolBegin { choice: c, .. } if *c == choice));
    let arguments = json!({ key.as_str(): value });
    // Once one was kept for the end, those after it are.
    if reader.byte() & 1 == 0 && begun.count() == calls.len() {
        events.push(ReplyEvent::ToolBegin { choice, call, id: id.clone(), name: name.clone() });
        let written = arguments.to_string();
        for delta in cut(&written, 1 + usize::from(reader.byte())) {
            events.push(ReplyEvent::ToolArguments { choice, call, delta: delta.to_owned() });
        }
    }
    calls.push(ToolCall { id, name, arguments });
}

fn logprobs(reader: &mut Reader<'_>) -> Vec<Logprob> {
    let token = |reader: &mut Reader<'_>| {
        let text = reader.text();
        let logprob = [-0.5, f32::NEG_INFINITY, f32::NAN, 0.0][usize::from(reader.byte() & 3)];
        TokenLogprob { id: 7, bytes: text.clone().into_bytes(), text, logprob }
    };
    let many = reader.byte() % 4;
    (0..many).map(|_| Logprob { chosen: token(reader), top: (0..many).map(|_| token(reader)).collect() }).collect()
}

fn generation(index: u32, content: String) -> Generation {
    Generation {
        index,
        content,
        thinking: String::new(),
        tool_calls: Vec::new(),
        thinking_ids: Vec::new(),
        reply_ids: Vec::new(),
        seed: 1,
        finish_reason: FinishReason::Stop,
        usage: Usage::default(),
        timings: Timings::default(),
        engram: None,
        thought: None,
        thought_cut: false,
        not_enforced: Vec::new(),
        error: None,
        quality: None,
    }
}
