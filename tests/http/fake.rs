//! A `Service` without a model. The last user message says what it does, so that a test can ask for every
//! behaviour of the daemon, the worst ones included.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chimere::engine::backend::ModelInfo;
use chimere::engine::grammar::NotEnforced;
use chimere::engine::protocol::{Channel, EmbedInput, Hosted};
use chimere::lessons::{Lesson, LessonId};
use chimere::pipeline::{Wishes, plain_plan};
use chimere::service::{
    AuthError, DocumentAnswer, DocumentCommand, DocumentsWish, EmbedFor, EmbedModel, Embedded, FeedbackKept,
    FeedbackRequest, Forgotten, FurtherModel, LessonCommand, Listed, ModelWish, NightCommand, PlanSummary, Principal,
    ReplyEvent, ReplyInput, ReplyRequest, RunSummary, Scope, Service, ServiceError, Session, SessionAt, SessionUse,
    ShownPrompt, StepEvent, StepsWish, Taught, TokenPieces, TurnFilter, TurnText,
};
use chimere::turn::{
    CallOutcome, CallRecord, FinishReason, Generation, Message, Quality, QualityOutcome, Role, StepOutcome, StepRecord,
    Tier, Timings, ToolCall, Turn, TurnId, Usage,
};
use chimere::whole;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::likely::{logprob, read};
use crate::turns::{matches, turn};

pub const CHAT_KEY: &str = "key-chat";
pub const OTHER_KEY: &str = "key-other";
pub const METRICS_KEY: &str = "key-metrics";
pub const ADMIN_KEY: &str = "key-admin";
/// Turns that the fake's memory holds, half of them of another principal.
pub const TURNS: usize = 200;

#[derive(Default)]
pub struct Fake {
    /// A client without a key is refused even on loopback.
    pub locked: AtomicBool,
    /// No key is configured: whoever comes from this machine is the owner, whatever key it sends.
    pub keyless: AtomicBool,
    pub stopping: AtomicBool,
    pub loading: AtomicBool,
    pub without_embeddings: AtomicBool,
    pub turn_ids: AtomicU64,
    /// Replies whose client left before the end.
    pub cancelled: Arc<AtomicU64>,
    pub requests: Mutex<Vec<ReplyRequest>>,
    pub feedbacks: Mutex<Vec<(String, FeedbackRequest)>>,
    pub lesson_commands: Mutex<Vec<(String, LessonCommand)>>,
    pub document_commands: Mutex<Vec<(String, DocumentCommand)>>,
    /// What is wrong with the documents' files.
    pub damage: Mutex<Option<String>>,
    pub forgets: Mutex<Vec<TurnFilter>>,
    pub nights: Mutex<Vec<NightCommand>>,
    pub wishes: Mutex<Vec<(ModelWish, bool)>>,
    /// Runs that were cancelled.
    pub ended: Mutex<Vec<TurnId>>,
    /// Sessions that were saved: for whom, under which name, where, and whether in the place of another.
    pub saved: Mutex<Vec<(String, String, SessionAt, bool)>>,
}

/// A run under way.
fn run_of(principal: &str) -> RunSummary {
    RunSummary {
        id: TurnId(format!("turn-{principal}")),
        principal: principal.to_owned(),
        route: "code".to_owned(),
        model: "fake-1".to_owned(),
        began_ms: 1_700_000_000_000,
        step: 1,
        steps: 2,
        kind: "generate".to_owned(),
        name: "architect".to_owned(),
        generations_max: 2,
        tokens_max: 600,
    }
}

/// The step that looked for documents, where the request wants some: it found a passage, or none where one was wanted.
fn retrieved(request: &ReplyRequest) -> Option<StepRecord> {
    let DocumentsWish::Use(terms) = &request.documents else { return None };
    let passage = json!({"number": 1, "document": "document-1", "start": 10, "end": 40, "line": 7});
    let step = json!({"kind": "retrieve", "name": "retrieve", "outcome": "done", "prompt_tokens": 0,
        "completion_tokens": 0, "took_ms": 1, "visible": false, "decided": "1 passage", "passages": [passage]});
    let mut step: StepRecord = serde_json::from_value(step).unwrap();
    step.passages[0].title = "House".to_owned();
    step.passages[0].text = "Nobody knows. You said hello in [the] garden.".to_owned();
    if terms.k == 1 {
        step.passages.clear();
    }
    Some(step)
}

/// What one choice says.
struct Script {
    thinking: Vec<String>,
    answer: Vec<String>,
    tools: Vec<ToolCall>,
    delay: Duration,
    failure: Option<ServiceError>,
    hang: bool,
}

/// A call with a number that no machine has.
fn counted() -> CallRecord {
    CallRecord {
        name: "count".to_owned(),
        arguments: whole::read(r#"{"n":18446744073709551616}"#).unwrap(),
        outcome: CallOutcome::Done,
        result: "many".to_owned(),
        bytes: 4,
        took_ms: 1,
        taints: false,
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_inclusive(' ').map(str::to_owned).collect()
}

fn script(order: &str, seed: u64) -> Script {
    let mut script = Script {
        thinking: Vec::new(),
        answer: Vec::new(),
        tools: Vec::new(),
        delay: Duration::ZERO,
        failure: None,
        hang: false,
    };
    let number = |text: &str| text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10usize);
    let call = |id: &str, city: &str| ToolCall {
        id: id.to_owned(),
        name: "get_weather".to_owned(),
        arguments: json!({"city": city, "unit": "celsius"}),
    };
    match order.split_whitespace().next().unwrap_or_default() {
        "fast" => script.answer = (0..number(order)).map(|i| format!("tok{} ", i % 100)).collect(),
        "slow" => {
            script.answer = (0..number(order)).map(|i| format!("{i} ")).collect();
            script.delay = Duration::from_millis(20);
        }
        "hang" => script.hang = true,
        "fail-late" => {
            script.answer = words("this will break");
            script.failure = Some(ServiceError::Internal("the engine stopped".to_owned()));
        }
        "cancelled" => script.failure = Some(ServiceError::Cancelled("the reply was cancelled".to_owned())),
        "think" => {
            script.thinking = words("let me see ");
            script.answer = words("forty two");
        }
        "muse" | "budget" => script.thinking = words("let me see once more "),
        "half a thought" => {
            script.thinking = words("let me ");
            script.answer = words("seven");
        }
        "random" => script.answer = (0..8).map(|i| format!("w{} ", (seed.wrapping_mul(31) + i * 7) % 97)).collect(),
        "tool" => script.tools = vec![call("call_1", "Oslo")],
        "tools" => script.tools = vec![call("call_1", "Oslo"), call("call_2", "Rome")],
        _ if order.contains("weather") => script.tools = vec![call("call_1", "Paris")],
        _ => script.answer = words(&format!("you said {order}")),
    }
    script
}

fn early(order: &str) -> Option<ServiceError> {
    let message = || order.to_owned();
    Some(match order {
        "busy" => ServiceError::Busy { message: message(), retry_after_s: 7 },
        "unavailable" => ServiceError::Unavailable { message: message(), retry_after_s: 3 },
        "not-built" => ServiceError::NotBuilt(message()),
        "not-found" => ServiceError::NotFound(message()),
        "conflict" => ServiceError::Conflict(message()),
        "invalid" => ServiceError::Invalid { message: message(), param: Some("model".to_owned()) },
        _ => return None,
    })
}

/// Cuts the answer before the first stop string.
fn apply_stops(answer: Vec<String>, stops: &[String]) -> Vec<String> {
    let text: String = answer.concat();
    let Some(at) = stops.iter().filter_map(|stop| text.find(stop.as_str())).min() else { return answer };
    words(&text[..at])
}

fn session(principal: String, name: String) -> Session {
    Session { principal, name, turn: TurnId("turn-000001".to_owned()), created_ms: 1, updated_ms: 2 }
}

struct Reply {
    request: ReplyRequest,
    order: String,
    turn: TurnId,
    cancelled: Arc<AtomicU64>,
}

impl Reply {
    async fn run(self, to: mpsc::Sender<ReplyEvent>) {
        if self.tell(&to).await.is_none() {
            self.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn tell(&self, to: &mpsc::Sender<ReplyEvent>) -> Option<()> {
        if self.order == "fail-early" {
            let message = "prompt of 9000 tokens and reply do not fit the context of 4096 tokens";
            return to.send(ReplyEvent::Failed(ServiceError::Context(message.to_owned()))).await.ok();
        }
        let plan = PlanSummary {
            turn: self.turn.clone(),
            route: self.request.route.clone().unwrap_or_else(|| "default".to_owned()),
            because: "test".to_owned(),
            tier: self.request.tier.unwrap_or(Tier::Quality),
            pipeline_version: "1".to_owned(),
            adapter_revision: 0,
            examples: Vec::new(),
            lessons: Vec::new(),
            no_lessons: None,
            session: self.request.session.clone().map(|name| Box::new(SessionUse { name, messages: 2 })),
            not_enforced: self.request.not_enforced.clone(),
            // As a model without thoughts says.
            without_effect: match self.order.as_str() {
                "thoughtless" => self.request.thought_parameters.clone().into(),
                _ => Box::default(),
            },
        };
        let started = ReplyEvent::Started {
            plan,
            model: "fake-1".to_owned(),
            fingerprint: "fp_0123456789abcdef".to_owned(),
            created_unix_s: 1_700_000_000,
        };
        to.send(started).await.ok()?;
        let step = StepRecord {
            kind: "generate".to_owned(),
            name: "answer".to_owned(),
            outcome: StepOutcome::Done,
            model: Some("fake-1".to_owned()),
            prompt_tokens: 5 * self.request.choices + 8,
            completion_tokens: 9,
            took_ms: 1,
            visible: true,
            decided: None,
            because: None,
            text: "what no client sees".to_owned(),
            calls: Vec::from_iter((self.order == "counts").then(counted)),
            passages: Vec::new(),
            stages: Vec::new(),
        };
        if self.request.steps == StepsWish::Events {
            let (kind, name) = (step.kind.clone(), step.name.clone());
            to.send(ReplyEvent::Step(Box::new(StepEvent::Began { kind, name }))).await.ok()?;
            for CallRecord { name, arguments, .. } in step.calls.clone() {
                to.send(ReplyEvent::Step(Box::new(StepEvent::Calling { name, arguments }))).await.ok()?;
            }
            to.send(ReplyEvent::Step(Box::new(StepEvent::Ended(step.told())))).await.ok()?;
        }
        if self.order == "fail-queued" {
            to.send(ReplyEvent::Queued).await.ok()?;
            return to.send(ReplyEvent::Failed(ServiceError::Internal("the engine stopped".to_owned()))).await.ok();
        }
        let mut generations = Vec::new();
        let mut usage = Usage { prompt_tokens: 5, cached_tokens: 2, ..Usage::default() };
        for choice in 0..self.request.choices {
            let generation = self.choice(choice, to).await?;
            usage.completion_tokens += generation.usage.completion_tokens;
            usage.thinking_tokens += generation.usage.thinking_tokens;
            generations.push(generation);
        }
        to.send(ReplyEvent::Done {
            usage,
            generations,
            steps: retrieved(&self.request).into_iter().chain([step]).collect(),
            kept: if self.order == "late log" { None } else { Some(self.order != "full disk") },
        })
        .await
        .ok()
    }

    async fn choice(&self, choice: u32, to: &mpsc::Sender<ReplyEvent>) -> Option<Generation> {
        let seed = self.request.sampling.seed.unwrap_or(1) + u64::from(choice);
        let mut script = script(&self.order, seed);
        if self.request.one_tool_call {
            script.tools.truncate(1);
        }
        if matches!(&self.request.input, ReplyInput::Chat { tools, .. } if tools.is_empty()) && !script.tools.is_empty()
        {
            script.tools.clear();
            script.answer = words("there is no tool for that");
        }
        if script.hang {
            to.closed().await;
            return None;
        }
        if self.request.prompt_logprobs {
            let tokens = read(words(&self.order), self.request.sampling.logprobs.unwrap_or_default());
            to.send(ReplyEvent::PromptRead { choice, tokens }).await.ok()?;
        }
        let max = self.request.max_tokens.unwrap_or(u32::MAX) as usize;
        let mut reason = if self.order == "abort" { FinishReason::Aborted } else { FinishReason::Stop };
        let mut answer = apply_stops(script.answer, &self.request.stop);
        if answer.len() > max {
            answer.truncate(max);
            reason = FinishReason::Length;
        } else if self.order == "muse" {
            reason = FinishReason::Length;
        }
        // The end of the reply is a token too: one without text.
        let end = self.request.sampling.logprobs.map(|top| logprob("", top));
        for (channel, texts) in [(Channel::Thinking, &script.thinking), (Channel::Answer, &answer)] {
            for text in texts {
                let logprobs = self.request.sampling.logprobs.map(|top| logprob(text, top)).into_iter().collect();
                to.send(ReplyEvent::Delta { choice, channel, text: text.clone(), logprobs }).await.ok()?;
                if script.delay > Duration::ZERO {
                    tokio::time::sleep(script.delay).await;
                }
            }
        }
        if let Some(end) = end {
            let logprobs = vec![end];
            to.send(ReplyEvent::Delta { choice, channel: Channel::Answer, text: String::new(), logprobs })
                .await
                .ok()?;
        }
        if let Some(error) = script.failure {
            to.send(ReplyEvent::Failed(error)).await.ok()?;
            to.closed().await;
            return None;
        }
        for (call, tool) in (0u32..).zip(&script.tools) {
            reason = FinishReason::ToolCalls;
            let (id, name) = (tool.id.clone(), tool.name.clone());
            to.send(ReplyEvent::ToolBegin { choice, call, id, name }).await.ok()?;
            let text = tool.arguments.to_string();
            let (first, second) = text.split_at(text.len() / 2);
            for delta in [first, second] {
                to.send(ReplyEvent::ToolArguments { choice, call, delta: delta.to_owned() }).await.ok()?;
            }
        }
        let tool_calls = script.tools.clone();
        to.send(ReplyEvent::ChoiceFinished { choice, reason, tool_calls: tool_calls.clone() }).await.ok()?;
        let first = Generation {
            index: choice,
            content: answer.concat(),
            thinking: script.thinking.concat(),
            tool_calls,
            thinking_ids: Vec::new(),
            reply_ids: Vec::new(),
            seed,
            finish_reason: reason,
            usage: Usage {
                completion_tokens: (answer.len() + script.thinking.len()) as u32,
                thinking_tokens: script.thinking.len() as u32,
                ..Usage::default()
            },
            timings: Timings { queued_ms: 0.1, prefill_ms: 1.0, decode_ms: 2.0 },
            engram: None,
            thought: None,
            thought_cut: matches!(self.order.as_str(), "budget" | "half a thought"),
            not_enforced: match self.order.as_str() {
                "heavy" => vec![NotEnforced { path: "tools".to_owned(), reason: "too much".to_owned() }],
                _ => Vec::new(),
            },
            quality: None,
            error: None,
        };
        if self.order != "revise" {
            return Some(first);
        }
        let (verdicts, took_ms, outcome) = (vec![1, 4], 7, QualityOutcome::Revised);
        let quality = Quality { outcome, verdicts, kept: 1, took_ms, because: None, others: vec![first.clone()] };
        let better = Generation { content: "a better answer".to_owned(), quality: Some(Box::new(quality)), ..first };
        let generation = Box::new(better.clone());
        to.send(ReplyEvent::Revised { choice, generation, logprobs: Vec::new() }).await.ok()?;
        to.send(ReplyEvent::ChoiceFinished { choice, reason, tool_calls: Vec::new() }).await.ok()?;
        Some(better)
    }
}

impl Service for Fake {
    fn reply(&self, request: ReplyRequest) -> BoxFuture<'_, Result<mpsc::Receiver<ReplyEvent>, ServiceError>> {
        Box::pin(async move {
            let order = match &request.input {
                ReplyInput::Chat { messages, .. } => messages.last().map(|m| m.content.clone()).unwrap_or_default(),
                ReplyInput::Text(text) | ReplyInput::Marked(text) => text.clone(),
                ReplyInput::Ids(ids) => format!("{ids:?}"),
            };
            self.requests.lock().unwrap().push(request.clone());
            assert_ne!(order, "panic", "asked to panic");
            if let Some(error) = early(&order) {
                return Err(error);
            }
            if let Some(name) = request.model.as_deref().filter(|name| *name != "fake-1") {
                return Err(ServiceError::NoSuchModel(format!("the model `{name}` is not served here")));
            }
            let (to, events) = mpsc::channel(256);
            let turn = TurnId(format!("turn-{:06}", self.turn_ids.fetch_add(1, Ordering::SeqCst)));
            let reply = Reply { request, order, turn, cancelled: Arc::clone(&self.cancelled) };
            tokio::spawn(reply.run(to));
            Ok(events)
        })
    }

    fn hosted(&self) -> Option<Arc<Hosted>> {
        if self.loading.load(Ordering::SeqCst) {
            return None;
        }
        let model = ModelInfo {
            name: "fake-1".to_owned(),
            architecture: "none".to_owned(),
            backend: "fake".to_owned(),
            device: "none".to_owned(),
            vocab: 1000,
            width: 1,
            layers: 1,
            context_tokens: 4096,
            trained_context_tokens: 4096,
            sequences_max: 8,
            parameters: 0,
            bytes_per_token: 0,
            mtp: false,
            embedding_only: false,
        };
        Some(Arc::new(Hosted {
            model,
            model_hash: "0123456789abcdef0123456789abcdef".to_owned(),
            template_hash: "00".to_owned(),
            tokenizer_hash: "07".repeat(32),
            thinks: true,
            steered_by: Vec::new(),
            holds_calls: true,
            chats: true,
            calls: "qwen-tags".to_owned(),
            frozen: None,
            load_ms: 1,
            defaults: Default::default(),
        }))
    }

    fn tokenize(&self, text: String, specials: bool) -> BoxFuture<'_, Result<TokenPieces, ServiceError>> {
        Box::pin(async move {
            let pieces = if specials && text.starts_with("<|") { vec![text] } else { words(&text) };
            Ok(((0..pieces.len() as u32).collect(), pieces))
        })
    }

    fn detokenize(&self, ids: Vec<u32>) -> BoxFuture<'_, Result<String, ServiceError>> {
        Box::pin(async move { Ok(ids.iter().map(|id| format!("<{id}>")).collect()) })
    }

    fn aliases(&self) -> Vec<String> {
        vec!["other-name".to_owned(), "fake-embed".to_owned()]
    }

    fn further_models(&self) -> Vec<FurtherModel> {
        vec![FurtherModel { name: "further".to_owned(), state: "unloaded", hosted: None }]
    }

    fn embed_model(&self) -> Option<EmbedModel> {
        let there = !self.without_embeddings.load(Ordering::SeqCst);
        there.then(|| EmbedModel {
            name: "fake-embed".to_owned(),
            aliases: vec!["text-embedding-x".to_owned()],
            architecture: "fake".to_owned(),
            width: 2,
            tokens_max: 4,
            state: "ready",
        })
    }

    /// The first letter against the others; four words or ids a window. Ids stand for that letter where they begin with 1.
    fn embed(
        &self,
        model: Option<String>,
        texts: Vec<EmbedInput>,
        purpose: EmbedFor,
    ) -> BoxFuture<'_, Result<Embedded, ServiceError>> {
        Box::pin(async move {
            let Some(own) = self.embed_model() else { return Err(ServiceError::NotBuilt("no embeddings".to_owned())) };
            if model.is_some_and(|name| name != own.name && !own.aliases.contains(&name)) {
                return Err(ServiceError::NoSuchModel("another model".to_owned()));
            }
            let read = |input: &EmbedInput| match input {
                EmbedInput::Text(text) => (text.starts_with('a'), words(text).len()),
                EmbedInput::Ids(ids) => (ids[0] == 1, ids.len()),
            };
            let read: Vec<(bool, usize)> = texts.iter().map(read).collect();
            let most = if purpose == EmbedFor::Ranking { own.tokens_max } else { usize::MAX };
            Ok(Embedded {
                model: own.name,
                vectors: read.iter().map(|(first, _)| if *first { vec![1.0, 0.0] } else { vec![0.0, 1.0] }).collect(),
                windows: read.iter().map(|(_, long)| (*long).min(most).div_ceil(own.tokens_max) as u32).collect(),
                tokens: read.iter().map(|(_, long)| (*long).min(most) as u32).sum(),
            })
        })
    }

    fn prompt(&self, request: ReplyRequest) -> BoxFuture<'_, Result<ShownPrompt, ServiceError>> {
        Box::pin(async move {
            let ReplyInput::Chat { messages, tools } = request.input else { panic!("only chats have a prompt") };
            let lines: Vec<_> = messages.iter().map(|m| format!("{:?}: {}", m.role, m.content)).collect();
            let text = format!("{}|{:?}", lines.join("\n"), request.thinking);
            let wishes = Wishes { prompt: request.prompt, tools, max_tokens_default: 7, ..Wishes::default() };
            Ok(ShownPrompt { text, ids: vec![1, 2], plan: plain_plan(wishes)? })
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<Value, ServiceError>> {
        Box::pin(async { Ok(json!({"actors": {}})) })
    }

    fn feedback(
        &self,
        principal: Principal,
        feedback: FeedbackRequest,
    ) -> BoxFuture<'_, Result<FeedbackKept, ServiceError>> {
        Box::pin(async move {
            if feedback.turn.0 == "turn-none" {
                return Err(ServiceError::NotFound("no such turn".to_owned()));
            }
            let unknown = feedback.correction.as_deref() == Some("late");
            let corrected = feedback.correction.as_ref().filter(|_| !unknown);
            let lesson = corrected.map(|_| LessonId("lesson-fake".to_owned()));
            self.feedbacks.lock().unwrap().push((principal.name, feedback));
            Ok(FeedbackKept { lesson, unknown, ..FeedbackKept::default() })
        })
    }

    fn lessons(
        &self,
        principal: Principal,
        command: LessonCommand,
    ) -> BoxFuture<'_, Result<Vec<Arc<Lesson>>, ServiceError>> {
        let lessons = crate::lessons::answer(&principal, &command);
        self.lesson_commands.lock().unwrap().push((principal.name, command));
        Box::pin(async move { lessons })
    }

    fn damage(&self, of: Taught, _: &Principal) -> Option<String> {
        self.damage.lock().unwrap().clone().filter(|_| of == Taught::Documents)
    }

    fn documents(
        &self,
        principal: Principal,
        command: DocumentCommand,
    ) -> BoxFuture<'_, Result<DocumentAnswer, ServiceError>> {
        let answer = crate::documents::answer(&principal, &command);
        self.document_commands.lock().unwrap().push((principal.name, command));
        Box::pin(async move { answer })
    }

    fn turns(&self, filter: TurnFilter) -> BoxFuture<'_, Result<Listed, ServiceError>> {
        let limit = filter.limit.unwrap_or(usize::MAX);
        let text = |turn: Turn| TurnText::of(&turn).unwrap();
        let mut turns: Vec<Turn> = (0..TURNS).map(turn).filter(|turn| matches(turn, &filter)).collect();
        if filter.newest_first {
            turns.reverse();
        }
        let mut listed = Listed { turns: turns.into_iter().take(limit).map(text).collect(), next: None };
        // Its time is up before it has found anything.
        if filter.conversation.as_deref() == Some("slow") && filter.after.is_none() {
            listed = Listed { turns: Vec::new(), next: Some(turn(1).id) };
        }
        Box::pin(async move { Ok(listed) })
    }

    fn forget(&self, filter: TurnFilter) -> BoxFuture<'_, Result<Forgotten, ServiceError>> {
        let turns = (0..TURNS).map(turn).filter(|turn| matches(turn, &filter)).count();
        // One that was dropped has left a lesson.
        let dropped = filter.turn.as_ref().is_some_and(|id| id.0 == "turn-dropped");
        self.forgets.lock().unwrap().push(filter);
        Box::pin(async move { Ok(Forgotten { turns, lessons: usize::from(turns > 0 || dropped), pairs: 0 }) })
    }

    fn runs(&self, principal: Option<&str>) -> Vec<RunSummary> {
        // Everybody has one of the same name.
        let own = RunSummary { id: TurnId("fake-1".to_owned()), ..run_of(principal.unwrap_or("owner")) };
        let all = ["owner", "other"].map(run_of).into_iter().chain([own]);
        all.filter(|run| principal.is_none_or(|own| own == run.principal)).collect()
    }

    fn cancel_run(&self, principal: Option<&str>, id: &TurnId) -> Result<(), ServiceError> {
        let there = self.runs(principal).into_iter().any(|run| run.id == *id);
        let none = || ServiceError::NotFound(format!("no run {} is under way", id.0));
        there.then(|| self.ended.lock().unwrap().push(id.clone())).ok_or_else(none)
    }

    fn sessions(&self, principal: String) -> BoxFuture<'_, Result<Vec<Session>, ServiceError>> {
        Box::pin(async move { Ok(vec![session(principal, "fake-1".to_owned())]) })
    }

    fn session(&self, principal: String, name: String) -> BoxFuture<'_, Result<(Session, Vec<Message>), ServiceError>> {
        Box::pin(async move {
            let call = ToolCall { id: "call-1".to_owned(), name: "look".to_owned(), arguments: json!({"at": 1}) };
            let asked = Message { tool_calls: vec![call], ..Message::new(Role::Assistant, "") };
            let told = Message { tool_call_id: Some("call-1".to_owned()), ..Message::new(Role::Tool, "42") };
            Ok((session(principal, name), vec![Message::new(Role::User, "Look"), asked, told]))
        })
    }

    fn save_session(
        &self,
        principal: String,
        name: String,
        at: SessionAt,
        replace: bool,
    ) -> BoxFuture<'_, Result<Session, ServiceError>> {
        self.saved.lock().unwrap().push((principal.clone(), name.clone(), at, replace));
        Box::pin(async move {
            if name == "taken" && !replace {
                return Err(ServiceError::Conflict("there is a session `taken` already".to_owned()));
            }
            Ok(session(principal, name))
        })
    }

    fn delete_session(&self, _: String, name: String) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async move {
            if name == "none" { Err(ServiceError::NotFound("there is no session `none`".to_owned())) } else { Ok(()) }
        })
    }

    fn night(&self, command: NightCommand) -> BoxFuture<'_, Result<Value, ServiceError>> {
        self.nights.lock().unwrap().push(command);
        Box::pin(async { Err(ServiceError::NotBuilt("the night is not built yet".to_owned())) })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async { Ok(()) })
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async { Ok(()) })
    }

    fn model(&self) -> Value {
        json!({"file": "/fake.gguf", "before": null})
    }

    fn change_model(&self, wish: ModelWish, wait: bool) -> BoxFuture<'_, Result<Value, ServiceError>> {
        self.wishes.lock().unwrap().push((wish, wait));
        Box::pin(async { Ok(self.model()) })
    }

    fn authenticate(&self, bearer: Option<&str>, loopback: bool) -> Result<Principal, AuthError> {
        let known =
            |name: &str, scope: Scope| Ok(Principal { name: name.to_owned(), scopes: vec![scope], consent: true });
        match bearer.filter(|_| !self.keyless.load(Ordering::SeqCst)) {
            Some(CHAT_KEY) => known("chatter", Scope::Chat),
            Some(OTHER_KEY) => known("other", Scope::Chat),
            Some(METRICS_KEY) => known("prometheus", Scope::Metrics),
            Some(ADMIN_KEY) => known("admin", Scope::Admin),
            Some(_) => Err(AuthError::Unknown),
            None if loopback && !self.locked.load(Ordering::SeqCst) => known("owner", Scope::Admin),
            None => Err(AuthError::Missing),
        }
    }

    fn accepting(&self) -> bool {
        !self.stopping.load(Ordering::SeqCst)
    }
}
