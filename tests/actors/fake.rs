//! A scripted engine: this test binary again, started as a child that speaks the engine's frames. The test
//! harness owns standard output, and so a shell puts the pipe on descriptor 3.
//!
//! The prompt of a request says what happens. `hang` never gives a token, `crash` ends the process, and `invalid`,
//! `context` and `busy` are refused. `strange` is answered in a way that nobody understands, `endless` goes on to its
//! limit, `fail` fails after two tokens, `think` thinks first. `item N` is answered `right` or `wrong`. Anything else
//! gets three words and stops. Asked to reflect it says `better`; `stubborn` gets the same words again, `slow` nothing.
//! A last word of the user's that begins with `script: ` holds what is said, generation by generation, parted by ` | `.
//! There `echo` says the messages, the names of the tools and whether there is a form; `hang`, `crash` and refusals do
//! what they do elsewhere.
//! To a last line that ends in `echo` it says the messages that it was sent, as JSON.
//! A system message `with care` makes it right on thirty items of a hundred more, `carelessly` on ten. With `by heart` it
//! is right on all below number 1,000 and on few above. Tables that a request names make it right on twenty more; no live
//! request here names any. Under an adapter each word carries its revision. An adapter's file says what it is worth.
//! `test.right` of a hundred items are right (base model 60); `test.kl` is its divergence, `test.speed` its tokens a
//! second beside the base model's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use chimere::actors::inference::EngineSpec;
use chimere::engine::adapter::AdapterFacts;
use chimere::engine::backend::ModelInfo;
use chimere::engine::protocol::{
    Channel, Command, EmbedInput, EngineStats, Event, FailureKind, Generate, Hosted, PROTOCOL, Prompt, PromptPart,
    RowScore, TokenEvent, TokenLogprob, read_frame, write_frame,
};
use chimere::gguf::Gguf;
use chimere::night::inspect::hash_file;
use chimere::scoring::reflect::REFLECTION;
use chimere::turn::{EngramUse, FinishReason, Role, Timings, Usage};

use crate::stage::PATIENCE;

/// How the child behaves as a whole.
pub const GOOD: &str = "good";
/// It says that the model can never be hosted.
pub const FATAL: &str = "fatal";
/// It speaks a later protocol, or one that knows no greeting.
pub const STRANGER: &str = "stranger";
pub const SAYS_NO_HELLO: &str = "says_no_hello";
/// It ends before it says anything.
pub const DIES: &str = "dies";
/// It loads and then answers nothing.
pub const SILENT: &str = "silent";
/// It is ready but fails every request.
pub const TOKENLESS: &str = "tokenless";
/// It has much to write when it is told to end.
pub const LEAVES_SLOWLY: &str = "leaves_slowly";
const LEAVES_MS: u64 = 500;
/// It judges: a step is right unless it says `w1`. One word of thought comes before the label.
pub const JUDGE: &str = "judge";
/// It judges, and dies at every tenth request.
pub const FRAIL_JUDGE: &str = "frail_judge";
/// It judges slowly, and dies as soon as it has four requests in hand.
pub const CROWDED_JUDGE: &str = "crowded_judge";
const CROWD: usize = 4;
/// Steps before its first word: long enough for four requests to meet.
const CROWD_STEPS: u32 = 250;
const LABELS: [(&str, u32); 2] = [("<|good|>", 6), ("<|bad|>", 7)];
const FRAIL_REQUESTS: u64 = 10;

pub const MODEL: &str = "scripted";
const TOKEN_MS: u64 = 2;
/// What a busy engine takes to begin, or to end a reply that is cancelled, and the tokens that it writes meanwhile.
const LATE: Duration = Duration::from_millis(700);
pub const LATE_TOKENS: u32 = 10_000;
/// What a script ends with that stands still before its last token.
pub const ENDLESS: char = '…';
/// Of a script, in one token.
const PIECE_CHARS: usize = 9;

/// Starts this binary as an engine that follows `script`; `once` names a file whose absence makes it `DIES`
/// first (and that it then makes).
pub fn spec(script: &str) -> EngineSpec {
    let exe = std::env::current_exe().unwrap();
    let line = format!(
        "exec env CHIMERE_TEST_SCRIPT={script} '{}' --exact fake::engine_child --ignored --nocapture \
         3>&1 >/dev/null",
        exe.display()
    );
    EngineSpec {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), line.into()],
        // Whose tokenizer reads the pairs of a training without a child.
        model: concat!(env!("CARGO_MANIFEST_DIR"), "/nano/nano.gguf").into(),
        instead: None,
        load_timeout: PATIENCE,
        stall_timeout: PATIENCE,
        exit_timeout: Duration::from_secs(3),
        first_start_attempts: 3,
    }
}

/// Not a test: what the child process runs.
#[test]
#[ignore = "the scripted engine, started by other tests"]
fn engine_child() {
    let Ok(script) = std::env::var("CHIMERE_TEST_SCRIPT") else { return };
    let out = OpenOptions::new().write(true).open("/dev/fd/3").unwrap();
    // A plain exit: the harness must not wait for other threads.
    let adapters = BTreeMap::new();
    let (running, tables) = (BTreeMap::new(), BTreeSet::new());
    let child = Child { out, script, paused: false, running, requests: 0, adapters, candidate: None, tables };
    std::process::exit(child.run());
}

struct Child {
    out: std::fs::File,
    script: String,
    paused: bool,
    running: BTreeMap<u64, (Generate, u32)>,
    requests: u64,
    adapters: BTreeMap<String, Worth>,
    /// How often the candidate was moved, if there is one.
    candidate: Option<u32>,
    /// Engram tables that were loaded.
    tables: BTreeSet<String>,
}

/// What an adapter does.
struct Worth {
    /// Items of a hundred that it answers rightly.
    right: u32,
    /// Its divergence, nats a token.
    kl: f64,
    /// Its tokens a second over the base model's.
    speed: f64,
}

/// Items of a hundred that the base model answers rightly.
const BASE_RIGHT: u32 = 60;
/// Items of a hundred more with engram tables, which know the contexts of so many of a reply's tokens.
pub const TABLES_RIGHT: u32 = 20;
pub const TABLES_HITS: u32 = 2;

fn text(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Chat(chat) => match &chat.messages[..] {
            [.., asked, _, last] if last.content == REFLECTION => format!("reflect on {}", asked.content),
            messages => messages.last().map(|m| m.content.clone()).unwrap_or_default(),
        },
        Prompt::Text(text) | Prompt::Marked(text) => text.clone(),
        Prompt::Ids(_) => String::new(),
        Prompt::Parts(parts) => {
            let mut texts = parts.iter().filter_map(|part| match part {
                PromptPart::Text(text) => Some(text.as_str()),
                PromptPart::Control(_) => None,
            });
            texts.next_back().unwrap_or_default().to_owned()
        }
    }
}

/// The messages of a chat whose last one asks for them.
fn echoed(prompt: &Prompt) -> Option<String> {
    let Prompt::Chat(chat) = prompt else { return None };
    let wanted = chat.messages.last().is_some_and(|last| last.content.ends_with("echo"));
    wanted.then(|| serde_json::to_string(&chat.messages).unwrap())
}

/// What a script has for this generation: the assistant has spoken so often since it was given.
fn scripted(prompt: &Prompt) -> Option<String> {
    let Prompt::Chat(chat) = prompt else { return None };
    let at = chat.messages.iter().rposition(|message| message.role == Role::User)?;
    let replies = chat.messages[at].content.strip_prefix("script: ")?;
    let spoken = chat.messages[at..].iter().filter(|message| message.role == Role::Assistant).count();
    Some(replies.split(" | ").nth(spoken).unwrap_or("done").to_owned())
}

/// A text as no tokenizer would cut it.
fn pieces(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect()
}

/// What a generation was given, as JSON.
fn given(request: &Generate) -> String {
    let Prompt::Chat(chat) = &request.prompt else { return String::new() };
    let tools: Vec<&str> = chat.tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
    // The script is what was asked, and a mark in what is told must not be read as a call.
    let at = chat.messages.iter().rposition(|message| message.role == Role::User).map_or(0, |at| at + 1);
    let messages = &chat.messages[at..];
    let told = serde_json::json!({"messages": messages, "tools": tools, "form": request.grammar});
    told.to_string().replace('<', "\\u003c")
}

/// What the system message says.
fn told(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Chat(chat) if chat.messages[0].role == Role::System => chat.messages[0].content.clone(),
        _ => String::new(),
    }
}

impl Child {
    fn say(&mut self, event: &Event) {
        if write_frame(&mut self.out, event).is_err() {
            std::process::exit(3);
        }
    }

    fn run(mut self) -> i32 {
        let protocol = if self.script == STRANGER { PROTOCOL + 1 } else { PROTOCOL };
        if self.script != DIES && self.script != SAYS_NO_HELLO {
            self.say(&Event::Hello { protocol, version: "9.9.9".to_owned() });
        }
        match self.script.as_str() {
            DIES => return 1,
            FATAL => {
                self.say(&Event::Fatal { message: "the file is no model".to_owned() });
                return 65;
            }
            _ => {}
        }
        self.say(&Event::Loading { progress: 0.5 });
        self.say(&Event::Ready(Box::new(hosted())));
        let (to, commands) = channel();
        std::thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            while let Ok(Some(command)) = read_frame::<Command>(&mut stdin) {
                if to.send(command).is_err() {
                    return;
                }
            }
        });
        loop {
            match commands.recv_timeout(Duration::from_millis(TOKEN_MS)) {
                Ok(Command::Exit) if self.script == LEAVES_SLOWLY => {
                    std::thread::sleep(Duration::from_millis(LEAVES_MS));
                    return 0;
                }
                Ok(Command::Exit) | Err(RecvTimeoutError::Disconnected) => return 0,
                Ok(command) => self.command(command),
                Err(RecvTimeoutError::Timeout) => self.step(),
            }
        }
    }

    fn command(&mut self, command: Command) {
        // The probe for the first token is answered, and nothing after it.
        let probed = self.requests > 0;
        if self.script == SILENT && probed {
            return;
        }
        match command {
            Command::Generate(request) => self.generate(*request),
            Command::Cancel { id } => {
                if let Some((request, done)) = self.running.remove(&id) {
                    let more = if text(&request.prompt) == "late end" { LATE_TOKENS } else { 0 };
                    std::thread::sleep(if more > 0 { LATE } else { Duration::ZERO });
                    self.finish(&request, FinishReason::Aborted, done + more);
                }
            }
            Command::Pause => {
                self.paused = true;
                self.say(&Event::Paused);
            }
            Command::Resume => {
                self.paused = false;
                self.say(&Event::Resumed);
            }
            Command::Tokenize { id, text, specials: true } if LABELS.iter().any(|(label, _)| *label == text) => {
                let ids = LABELS.iter().filter(|(label, _)| *label == text).map(|(_, id)| *id).collect();
                self.say(&Event::Tokens { id, ids, pieces: vec![text] });
            }
            Command::Tokenize { id, text, .. } => {
                let ids: Vec<u32> = text.bytes().map(u32::from).collect();
                let pieces = text.chars().map(String::from).collect();
                self.say(&Event::Tokens { id, ids, pieces });
            }
            Command::Embed { id, input: EmbedInput::Text(text), .. } => match (text.as_str(), refusal(&text)) {
                ("hang", _) => {}
                ("crash", _) => std::process::exit(9),
                (_, Some(kind)) => self.say(&Event::Failed { id, kind, message: format!("is {text}") }),
                (_, None) => self.say(&Event::Embedded { id, vector: vec![1.0], tokens: text.len() as u32 }),
            },
            Command::Embed { id, input: EmbedInput::Ids(ids), .. } => {
                self.say(&Event::Embedded { id, vector: vec![1.0], tokens: ids.len() as u32 });
            }
            Command::Detokenize { id, ids } => {
                let text = ids.iter().filter_map(|i| char::from_u32(*i)).collect();
                self.say(&Event::Text { id, text });
            }
            Command::ApplyTemplate { id, chat } => {
                let text = format!("{} messages", chat.messages.len());
                self.say(&Event::Rendered { id, ids: vec![text.len() as u32], text });
            }
            Command::Stats { id } => {
                let stats = EngineStats { running: self.running.len() as u32, ..EngineStats::default() };
                self.say(&Event::Stats { id, stats: Box::new(stats) });
            }
            Command::LoadAdapter { id, revision, path, sha256 } => match worth(&path, &sha256) {
                Ok(worth) => {
                    self.adapters.insert(revision.clone(), worth);
                    self.say(&loaded(id, revision));
                }
                Err(message) => self.say(&Event::Failed { id, kind: FailureKind::Invalid, message }),
            },
            Command::DropAdapter { id, revision } => {
                self.adapters.remove(&revision);
                self.say(&Event::AdapterDropped { id, revision });
            }
            Command::Evaluate { id, adapter, rows, with_kl } => {
                let kl = adapter.and_then(|a| self.adapters.get(&a)).map_or(0.0, |a| a.kl);
                let row = RowScore { nll: 1.0, tokens: 1, top1: 1, kl: with_kl.then_some(kl) };
                self.say(&Event::Evaluated { id, rows: vec![row; rows.len()] });
            }
            Command::BeginCandidate { id, candidate, .. } => {
                self.candidate = Some(0);
                self.say(&stands(id, candidate));
            }
            Command::ProbeCandidate { id, .. } if self.candidate.is_none() => self.say(&unknown(id)),
            Command::ProbeCandidate { id, probes, .. } => {
                // Better with every move.
                let moves = f64::from(self.candidate.unwrap_or_default());
                std::thread::sleep(Duration::from_millis(TOKEN_MS));
                let losses = (0..probes.len()).map(|n| Some(2.0 - 0.001 * moves + 0.01 * n as f64)).collect();
                self.say(&Event::CandidateProbed { id, losses });
            }
            Command::MoveCandidate { id, candidate, .. } => {
                self.candidate = self.candidate.map(|moves| moves + 1);
                self.say(&stands(id, candidate));
            }
            Command::SaveCandidate { id, path, .. } => {
                // `learned.gguf` of the state folder, as the scripted trainer does.
                let learned = path.ancestors().nth(3).unwrap().join("learned.gguf");
                std::fs::copy(learned, &path).unwrap();
                self.say(&Event::CandidateSaved { id, facts: AdapterFacts::default() });
            }
            Command::DropCandidate { id, candidate } => match self.candidate.take() {
                Some(_) => self.say(&stands(id, candidate)),
                None => self.say(&unknown(id)),
            },
            Command::LoadTable { id, name, .. } => {
                self.tables.insert(name.clone());
                self.say(&Event::TableLoaded { id, name, contexts: 1, entries: 1 });
            }
            Command::ForgetPrefixes { id, .. } => self.say(&Event::PrefixesForgotten { id, snapshots: 0 }),
            Command::DropTable { id, name } => {
                self.tables.remove(&name);
                self.say(&Event::TableDropped { id, name });
            }
            Command::Exit => {}
        }
    }

    fn generate(&mut self, request: Generate) {
        self.requests += 1;
        let (id, prompt) = (request.id, scripted(&request.prompt).unwrap_or_else(|| text(&request.prompt)));
        let refuse = |kind| Event::Failed { id, kind, message: format!("{prompt} was asked for") };
        if self.script == TOKENLESS {
            return self.say(&refuse(FailureKind::Internal));
        }
        if self.script == FRAIL_JUDGE && self.requests > FRAIL_REQUESTS {
            std::process::exit(9);
        }
        if self.script == CROWDED_JUDGE && self.running.len() + 1 >= CROWD {
            std::process::exit(9);
        }
        match prompt.as_str() {
            "strange" => {
                let body = format!("{{\"dream\":{{\"id\":{id},\"of\":\"sheep\"}}}}");
                self.out.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
                return self.out.write_all(body.as_bytes()).unwrap();
            }
            "invalid" => return self.say(&refuse(FailureKind::Invalid)),
            "context" => return self.say(&refuse(FailureKind::Context)),
            "busy" => return self.say(&refuse(FailureKind::Busy)),
            "late start" => std::thread::sleep(LATE),
            "crash" => std::process::exit(9),
            _ => {}
        }
        if let Some(unknown) = request.adapter.as_ref().filter(|a| !self.adapters.contains_key(*a)) {
            let message = format!("the adapter {unknown} is not loaded");
            return self.say(&Event::Failed { id, kind: FailureKind::Invalid, message });
        }
        let named = request.engram.as_ref().filter(|engram| engram.required).map(|engram| &engram.tables);
        if let Some(unknown) = named.and_then(|named| named.iter().find(|name| !self.tables.contains(*name))) {
            let message = format!("the table {unknown} is not loaded");
            return self.say(&Event::Failed { id, kind: FailureKind::Invalid, message });
        }
        if named.is_some_and(|named| !named.is_empty()) && !request.background {
            return self.say(&refuse(FailureKind::Invalid));
        }
        let seed = request.sampling.seed.unwrap_or(42);
        self.say(&Event::Queued { id });
        self.say(&Event::Started { id, prompt_ids: vec![1, 2, 3], cached_tokens: 1, seed, not_enforced: Vec::new() });
        self.running.insert(id, (request, 0));
    }

    fn step(&mut self) {
        if self.paused {
            return;
        }
        for id in self.running.keys().copied().collect::<Vec<_>>() {
            let Some((request, done)) = self.running.get_mut(&id) else { continue };
            let prompt = text(&request.prompt);
            if let Some(said) = scripted(&request.prompt) {
                let number = std::mem::replace(done, *done + 1);
                let pieces = match said.as_str() {
                    "hang" => continue,
                    "echo" => vec![given(request)],
                    said => pieces(said),
                };
                // It never comes to the end of what it says.
                if said.ends_with(ENDLESS) && number as usize + 1 >= pieces.len() {
                    continue;
                }
                self.speak(id, number, &pieces);
                continue;
            }
            if matches!(request.prompt, Prompt::Parts(_)) {
                let (n, bad) = (*done, prompt.contains("w1"));
                *done += 1;
                self.judge(id, n, bad);
                continue;
            }
            let item = prompt.strip_prefix("dinner ").and_then(|n| n.parse::<u32>().ok());
            let limit = if prompt == "endless" || prompt == "late end" {
                request.max_tokens
            } else {
                request.max_tokens.min(3)
            };
            if prompt == "hang" || prompt == "reflect on slow" {
                continue;
            }
            if prompt == "fail" && *done == 2 {
                self.running.remove(&id);
                let message = "it was told to".to_owned();
                self.say(&Event::Failed { id, kind: FailureKind::Internal, message });
                continue;
            }
            let told = told(&request.prompt);
            let (number, whole) = (*done, *done >= limit);
            if whole {
                let reason = if limit == request.max_tokens { FinishReason::Length } else { FinishReason::Stop };
                if let Some((request, _)) = self.running.remove(&id) {
                    self.finish(&request, reason, number);
                }
                continue;
            }
            let adapter = request.adapter.clone();
            let right = adapter.as_ref().and_then(|a| self.adapters.get(a)).map_or(BASE_RIGHT, |a| a.right);
            let echo = echoed(&request.prompt);
            let right = match item {
                Some(_) if told.contains("with care") => right + 30,
                Some(_) if told.contains("carelessly") => 10,
                Some(item) if told.contains("by heart") => [100, 20][usize::from(item >= 1_000)],
                _ => right,
            };
            let with_tables = request.engram.as_ref().is_some_and(|engram| !engram.tables.is_empty());
            let right = right + if with_tables { TABLES_RIGHT } else { 0 };
            *done += 1;
            let better = prompt.starts_with("reflect on ") && prompt != "reflect on stubborn";
            let channel = if prompt == "think" && number == 0 { Channel::Thinking } else { Channel::Answer };
            self.say(&Event::Token(TokenEvent {
                id,
                token: 100 + number,
                channel,
                text: match (item, adapter) {
                    _ if echo.is_some() => echo.filter(|_| number == 0).unwrap_or_default(),
                    (Some(_), _) if number > 0 => String::new(),
                    (Some(item), _) if item % 100 < right => "right".to_owned(),
                    (Some(_), _) => "wrong".to_owned(),
                    (None, None) if better => format!("better{number} "),
                    (None, Some(adapter)) => format!("w{number}@{adapter} "),
                    (None, None) => format!("w{number} "),
                },
                forced: false,
                logprob: None,
                top: Vec::new(),
            }));
        }
    }

    /// A piece of what is to be said, or its end.
    fn speak(&mut self, id: u64, number: u32, pieces: &[String]) {
        let max_tokens = self.running.get(&id).map_or(0, |(request, _)| request.max_tokens);
        let Some(piece) = pieces.get(number as usize).filter(|_| number < max_tokens) else {
            let whole = number as usize == pieces.len();
            let Some((request, _)) = self.running.remove(&id) else { return };
            return self.finish(&request, if whole { FinishReason::Stop } else { FinishReason::Length }, number);
        };
        let (token, channel, text) = (100 + number, Channel::Answer, piece.clone());
        self.say(&Event::Token(TokenEvent { id, token, channel, text, forced: false, logprob: None, top: Vec::new() }));
    }

    /// A word, the label, and words until somebody cancels.
    fn judge(&mut self, id: u64, number: u32, bad: bool) {
        let late = if self.script == CROWDED_JUDGE { CROWD_STEPS } else { 0 };
        let Some(number) = number.checked_sub(late) else { return };
        let describe = |id: u32, p: f32| TokenLogprob { id, text: String::new(), bytes: Vec::new(), logprob: p.ln() };
        let p_good = if bad { 0.1 } else { 0.9 };
        let token = if number == 1 { LABELS[usize::from(bad)].1 } else { 100 + number };
        let top = if number == 1 { vec![describe(6, p_good), describe(7, 1.0 - p_good)] } else { Vec::new() };
        let (channel, text) = (Channel::Answer, "w ".to_owned());
        self.say(&Event::Token(TokenEvent { id, token, channel, text, forced: false, logprob: None, top }));
    }

    fn finish(&mut self, request: &Generate, reason: FinishReason, completion_tokens: u32) {
        let (id, adapter) = (request.id, request.adapter.as_ref().and_then(|a| self.adapters.get(a)));
        let decode_ms = 3.0 / adapter.map_or(1.0, |a| a.speed);
        let usage = Usage { prompt_tokens: 3, cached_tokens: 1, completion_tokens, thinking_tokens: 0 };
        let timings = Timings { queued_ms: 1.0, prefill_ms: 2.0, decode_ms };
        let engram = request.engram.as_ref().map(|choice| {
            Box::new(EngramUse { tables: choice.tables.clone(), hits: TABLES_HITS, mixed: 1, ..EngramUse::default() })
        });
        self.say(&Event::Finished {
            id,
            reason,
            text: String::new(),
            stop: None,
            usage,
            timings,
            engram,
            thought: None,
        });
        self.out.flush().unwrap();
    }
}

/// What an adapter file is worth, when it is the one that was meant.
fn worth(path: &Path, sha256: &str) -> Result<Worth, String> {
    let (found, _) = hash_file(path).map_err(|error| error.to_string())?;
    if found != sha256 {
        return Err("the adapter is another file".to_owned());
    }
    let file = Gguf::open(path).map_err(|error| error.to_string())?;
    let number = |key: &str| file.f32(key).map(f64::from).map_err(|error| error.to_string());
    let right = file.u32("test.right").map_err(|error| error.to_string())?;
    Ok(Worth { right, kl: number("test.kl")?, speed: number("test.speed")? })
}

/// What a text for an embedding model is refused as.
fn refusal(text: &str) -> Option<FailureKind> {
    match text {
        "context" => Some(FailureKind::Context),
        "invalid" => Some(FailureKind::Invalid),
        "fail" => Some(FailureKind::Internal),
        _ => None,
    }
}

fn stands(id: u64, candidate: String) -> Event {
    Event::CandidateStands { id, candidate, parameters: 100, norm: 0.1 }
}

fn unknown(id: u64) -> Event {
    Event::Failed { id, kind: FailureKind::Invalid, message: "there is no such candidate".to_owned() }
}

fn loaded(id: u64, revision: String) -> Event {
    Event::AdapterLoaded { id, revision, facts: Box::default() }
}

fn hosted() -> Hosted {
    Hosted {
        model: ModelInfo {
            name: MODEL.to_owned(),
            architecture: "scripted".to_owned(),
            backend: "none".to_owned(),
            device: "none".to_owned(),
            vocab: 1_000,
            width: 1,
            layers: 1,
            context_tokens: 4_096,
            trained_context_tokens: 4_096,
            sequences_max: 8,
            parameters: 1,
            bytes_per_token: 1,
            mtp: false,
            embedding_only: false,
        },
        model_hash: "m".to_owned(),
        tokenizer_hash: "07".repeat(32),
        template_hash: "t".to_owned(),
        thinks: true,
        steered_by: Vec::new(),
        holds_calls: true,
        chats: true,
        calls: "qwen-tags".to_owned(),
        frozen: None,
        load_ms: 1,
        defaults: Default::default(),
    }
}
