//! What a chat would be sent as: its plan and its prompt, made as for a reply, which is not generated.

use std::time::Duration;

use super::generate::chat_input;
use super::seat::Seat;
use super::steps::instructed;
use super::{Replies, STOPPING, check, unavailable};
use crate::actors::inference::Ask;
use crate::engine::protocol::{Event, FailureKind};
use crate::lessons::note;
use crate::service::{NoLessons, ReplyInput, ReplyRequest, ServiceError, ShownExample, ShownPrompt};
use crate::turn::{Note, Plan, Step, Thinking, Work};

/// Longest wait for the engine's answer: a long prompt, read by a library on a busy machine.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// What a request is answered by.
pub(super) struct Terms {
    pub(super) plan: Plan,
    /// Examples that were put into it.
    pub(super) examples: Vec<ShownExample>,
    pub(super) no_lessons: Option<NoLessons>,
}

impl Replies {
    /// The prompt that a chat request would be answered from. It only looks: a reply may be under way in the session, and
    /// what the steps before the answer would write is not known.
    pub async fn preview(&self, mut request: ReplyRequest) -> Result<ShownPrompt, ServiceError> {
        if self.draining.is_cancelled() {
            return Err(unavailable(STOPPING, 5));
        }
        check(&request)?;
        self.check_web(&request)?;
        let _permit = self.permits.enter(&request.principal.name)?;
        let seat = self.seat(request.model.as_deref()).await?;
        self.look(&mut request).await?;
        let Terms { plan, .. } = self.terms(&mut request, &seat).await?;
        if !matches!(request.input, ReplyInput::Chat { .. }) {
            return Err(ServiceError::Internal("only a chat has a prompt of its own".to_owned()));
        }
        let messages = self.withheld.whole(&request.principal.name, &plan.messages);
        let instruction = plan.steps.iter().find_map(Step::instruction).unwrap_or_default();
        let with = |notes: &[Note]| {
            let mut messages = messages.clone();
            note::show(&mut messages, notes);
            chat_input(&plan, instructed(messages, instruction, &[]), self.clock.date())
        };
        let (chat, ..) = self.noted(&seat, plan.notes.clone(), plan.max_tokens, with).await;
        let answer = seat.inference.send_within(Ask::ApplyTemplate { chat }, PROMPT_TIMEOUT).await;
        let retry_after_s = seat.board.retry_after_s();
        let failed = |error: String| unavailable(&error, retry_after_s);
        let answer = answer.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        match answer {
            Event::Rendered { text, ids, .. } => Ok(ShownPrompt { text, ids, plan }),
            Event::Failed { kind, message, .. } => Err(match kind {
                FailureKind::Messages => ServiceError::Invalid { message, param: Some("messages".to_owned()) },
                FailureKind::Invalid | FailureKind::Form => ServiceError::Invalid { message, param: None },
                FailureKind::Context => ServiceError::Context(message),
                FailureKind::Busy => ServiceError::Busy { message, retry_after_s: 1 },
                FailureKind::Internal => ServiceError::Internal(message),
            }),
            _ => Err(ServiceError::Internal("the engine answered something else than was asked".to_owned())),
        }
    }

    /// Shows the model the built-in tools that it may call.
    fn define_tools(&self, plan: &mut Plan) -> Result<(), ServiceError> {
        let offered = plan.steps.iter().filter_map(|step| match &step.work {
            Work::Tools(terms) => Some(&terms.offered),
            _ => None,
        });
        for name in offered.flatten() {
            let tool = self.toolbox.named(name).map_err(|error| ServiceError::Invalid {
                message: error.to_string(),
                param: Some("chimere.tools".to_owned()),
            })?;
            plan.tools.push(tool.definition());
        }
        Ok(())
    }

    /// The plan of a request for the model that will answer it, and the examples put into it.
    pub(super) async fn terms(&self, request: &mut ReplyRequest, seat: &Seat) -> Result<Terms, ServiceError> {
        let mut plan = self.plan(request, &seat.hosted).await?;
        self.define_tools(&mut plan)?;
        self.limit_tables(&mut plan, &seat.board, &request.principal.name)?;
        let examples = self.show_examples(&mut plan, &seat.hosted, &request.principal.name).await;
        let no_lessons = match request.recall {
            true => self.recall(&mut plan, &request.principal.name).await,
            false => None,
        };
        if !seat.hosted.thinks {
            plan.thinking = Thinking::Template;
        }
        Ok(Terms { plan, examples, no_lessons })
    }
}
