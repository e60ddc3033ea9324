//! Several prompts in one request: a reply for each, a few at a time, told as one reply whose choices are numbered through.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::error::ApiError;
use super::reply::{self, ReplyClock, Running};
use super::routes::Door;
use super::wire::chunk::broke_off;
use crate::service::{ReplyEvent, ReplyRequest, Service};
use crate::turn::{Generation, StepRecord, Usage};

/// Replies of one request that are under way at once.
const AT_ONCE: usize = 4;
/// Events on their way.
const EVENTS_MAX: usize = 256;

/// Asks the service for a reply to each.
pub(crate) async fn start(door: &Arc<Door>, mut requests: Vec<ReplyRequest>) -> Result<Running, ApiError> {
    if requests.len() == 1
        && let Some(request) = requests.pop()
    {
        return reply::start(door, request).await;
    }
    let choices = requests.iter().map(|request| request.choices).sum();
    let (to, events) = mpsc::channel(EVENTS_MAX);
    tokio::spawn(join(Arc::clone(&door.service), requests, to));
    Ok(Running { events, ahead: VecDeque::new(), clock: ReplyClock::start(), choices })
}

/// Tells all replies as one. A client that leaves ends them, for nobody holds their events any more.
async fn join(service: Arc<dyn Service>, requests: Vec<ReplyRequest>, to: mpsc::Sender<ReplyEvent>) {
    let mut choices = 0;
    let parts: Vec<(u32, ReplyRequest)> = requests
        .into_iter()
        .map(|request| {
            choices += request.choices;
            (choices - request.choices, request)
        })
        .collect();
    let mut joined = Joined { left: parts.len(), generations: vec![None; choices as usize], ..Joined::default() };
    let one = |(first, request): (u32, ReplyRequest)| {
        let service = Arc::clone(&service);
        let events = async move {
            match service.reply(request).await {
                Ok(events) => ReceiverStream::new(events).left_stream(),
                Err(error) => stream::iter([ReplyEvent::Failed(error)]).right_stream(),
            }
        };
        Box::pin(stream::once(events).flatten().map(move |event| (first, event)))
    };
    let mut all = stream::iter(parts).map(one).flatten_unordered(AT_ONCE);
    loop {
        let next = tokio::select! {
            next = all.next() => next,
            () = to.closed() => return,
        };
        let event =
            next.map_or_else(|| Some(ReplyEvent::Failed(broke_off())), |(first, event)| joined.take(first, event));
        let Some(event) = event else { continue };
        let last = matches!(event, ReplyEvent::Done { .. } | ReplyEvent::Failed(_));
        if to.send(event).await.is_err() || last {
            return;
        }
    }
}

/// What was told so far of all replies.
#[derive(Default)]
struct Joined {
    /// Replies that are not done.
    left: usize,
    started: bool,
    queued: bool,
    usage: Usage,
    generations: Vec<Option<Generation>>,
    steps: Vec<StepRecord>,
    /// One of the turns could not be kept.
    lost: bool,
}

impl Joined {
    /// An event of the reply whose choices begin at `first`, as one of all; `None`: it is told later, or was already.
    fn take(&mut self, first: u32, event: ReplyEvent) -> Option<ReplyEvent> {
        Some(match event {
            ReplyEvent::Started { .. } if std::mem::replace(&mut self.started, true) => return None,
            ReplyEvent::Queued if std::mem::replace(&mut self.queued, true) => return None,
            ReplyEvent::Delta { choice, channel, text, logprobs } => {
                ReplyEvent::Delta { choice: first + choice, channel, text, logprobs }
            }
            ReplyEvent::PromptRead { choice, tokens } => ReplyEvent::PromptRead { choice: first + choice, tokens },
            ReplyEvent::ToolBegin { choice, call, id, name } => {
                ReplyEvent::ToolBegin { choice: first + choice, call, id, name }
            }
            ReplyEvent::ToolArguments { choice, call, delta } => {
                ReplyEvent::ToolArguments { choice: first + choice, call, delta }
            }
            ReplyEvent::ChoiceFinished { choice, reason, tool_calls } => {
                ReplyEvent::ChoiceFinished { choice: first + choice, reason, tool_calls }
            }
            ReplyEvent::Revised { choice, generation, logprobs } => {
                ReplyEvent::Revised { choice: first + choice, generation, logprobs }
            }
            ReplyEvent::Done { usage, generations, steps, kept } => {
                self.usage.prompt_tokens += usage.prompt_tokens;
                self.usage.completion_tokens += usage.completion_tokens;
                self.usage.cached_tokens += usage.cached_tokens;
                self.usage.thinking_tokens += usage.thinking_tokens;
                for (place, generation) in self.generations.iter_mut().skip(first as usize).zip(generations) {
                    *place = Some(generation);
                }
                self.steps.extend(steps);
                self.lost |= !kept;
                self.left -= 1;
                if self.left > 0 {
                    return None;
                }
                let generations = self.generations.drain(..).flatten().collect();
                let (usage, kept) = (self.usage, !self.lost);
                ReplyEvent::Done { usage, generations, steps: std::mem::take(&mut self.steps), kept }
            }
            event => event,
        })
    }
}
