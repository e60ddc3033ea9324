//! The Turn of a reply: what is kept, with the rules of consent and taint.

use crate::engine::protocol::Hosted;
use crate::service::{ReplyInput, ReplyRequest, ShownExample};
use crate::store::TURN_VERSION;
use crate::turn::{Generation, Message, Plan, PromptEnd, Role, StepRecord, Turn, TurnId, Usage};

/// What is known of a reply before its first token.
pub(super) struct Opening {
    pub(super) id: TurnId,
    pub(super) time_ms: i64,
    pub(super) conversation: String,
    pub(super) principal: String,
    pub(super) consent: bool,
    /// The generation that answers; 0 = the base model.
    pub(super) generation: u64,
    /// A grammar holds the answers to a form.
    pub(super) formed: bool,
    /// Verified exchanges put before the conversation, for the client.
    pub(super) examples: Vec<ShownExample>,
    /// The prompt of a completion, in place of messages.
    text: Option<String>,
}

impl Opening {
    pub(super) fn new(id: TurnId, time_ms: i64, request: &ReplyRequest) -> Self {
        Opening {
            time_ms,
            conversation: request.conversation.clone().unwrap_or_else(|| id.0.clone()),
            principal: request.principal.name.clone(),
            generation: 0,
            formed: request.grammar.is_some(),
            examples: Vec::new(),
            consent: request.principal.consent && request.consent != Some(false),
            text: match &request.input {
                ReplyInput::Text(text) | ReplyInput::Marked(text) => Some(text.clone()),
                ReplyInput::Chat { .. } | ReplyInput::Ids(_) => None,
            },
            id,
        }
    }

    /// What the canary draws by. Most clients name no conversation: there its first words stand for it, so that
    /// all of its turns are answered by the same generation.
    pub(super) fn conversation_key(&self, request: &ReplyRequest) -> String {
        if let Some(conversation) = &request.conversation {
            return conversation.clone();
        }
        let opening = match &request.input {
            ReplyInput::Chat { messages, .. } => messages.iter().find(|m| m.role == Role::User).map(|m| &m.content),
            ReplyInput::Text(text) | ReplyInput::Marked(text) => Some(text),
            ReplyInput::Ids(_) => None,
        };
        opening.map_or_else(|| self.id.0.clone(), |text| format!("{}\n{text}", self.principal))
    }

    pub(super) fn turn(
        self,
        plan: Plan,
        hosted: &Hosted,
        prompt_ids: Vec<u32>,
        generations: Vec<Generation>,
        steps: Vec<StepRecord>,
    ) -> Turn {
        let evidence = steps.iter().any(|step| !step.passages.is_empty());
        let messages = match self.text {
            Some(text) => vec![Message::new(Role::User, text)],
            None => plan.messages,
        };
        Turn {
            version: TURN_VERSION,
            id: self.id,
            conversation: self.conversation,
            time_ms: self.time_ms,
            principal: self.principal,
            consent: self.consent,
            // Passages are texts from elsewhere that shaped the answer, and so are those of documents.
            taint: tainted(&messages)
                || steps.iter().flat_map(|step| &step.calls).any(|call| call.taints)
                || evidence
                || plan.engram.is_some_and(|engram| !engram.passages.is_empty()),
            // What somebody else began is not what the model would have said either.
            formed: self.formed || plan.prompt.end == PromptEnd::Within,
            continued: plan.prompt.end == PromptEnd::Within,
            redacted: false,
            route: plan.route,
            tier: plan.tier,
            pipeline_version: plan.pipeline_version,
            model: hosted.model.name.clone(),
            model_hash: hosted.model_hash.clone(),
            adapter_revision: self.generation,
            template_hash: hosted.template_hash.clone(),
            messages,
            examples: plan.examples,
            lessons: plan.notes.iter().map(|note| note.lesson.clone()).collect(),
            tools: plan.tools,
            // They hold the words of lessons and documents, which may go.
            prompt_ids: if plan.notes.is_empty() && !evidence { prompt_ids } else { Vec::new() },
            sampling: plan.sampling,
            thinking: plan.thinking,
            generations,
            steps,
            feedback: Vec::new(),
            verdict: None,
            judgement: None,
        }
    }
}

/// Text that a tool gave took part.
fn tainted(messages: &[Message]) -> bool {
    messages.iter().any(|m| m.role == Role::Tool)
}

/// The usage of a reply: of its answers, whose prompt is read for each but counted once. So a client reads off it how full
/// the context is.
pub(super) fn total_usage(generations: &[Generation]) -> Usage {
    let first = generations.first().map(|g| g.usage).unwrap_or_default();
    let sum = |field: fn(&Usage) -> u32| generations.iter().map(|g| field(&g.usage)).sum();
    Usage { completion_tokens: sum(|u| u.completion_tokens), thinking_tokens: sum(|u| u.thinking_tokens), ..first }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::service::{Principal, SamplingOverrides};

    /// A completion.
    pub(in crate::reply) fn request(principal: bool, asked: Option<bool>) -> ReplyRequest {
        ReplyRequest {
            principal: Principal { name: "p".into(), scopes: Vec::new(), consent: principal },
            input: ReplyInput::Text("t".into()),
            model: None,
            conversation: None,
            session: None,
            route: None,
            tier: None,
            thinking: None,
            thought: None,
            thought_parameters: Vec::new(),
            prompt: Default::default(),
            sampling: SamplingOverrides::default(),
            max_tokens: None,
            stop: Vec::new(),
            choices: 1,
            consent: asked,
            engram: Default::default(),
            quality_gate: None,
            steps: Default::default(),
            grammar: None,
            form_terms: Default::default(),
            not_enforced: Vec::new(),
            one_tool_call: false,
            built_in: None,
            prompt_logprobs: false,
            recall: true,
            documents: Default::default(),
            web: Default::default(),
            streamed: false,
        }
    }

    #[test]
    fn consent_can_only_be_withdrawn() {
        let consent = |principal, asked| Opening::new(TurnId("t".into()), 0, &request(principal, asked)).consent;
        assert!(consent(true, None) && consent(true, Some(true)));
        assert!(!consent(true, Some(false)) && !consent(false, None) && !consent(false, Some(true)));
    }

    #[test]
    fn tool_results_taint() {
        assert!(!tainted(&[Message::new(Role::User, "q"), Message::new(Role::Assistant, "a")]));
        assert!(tainted(&[Message::new(Role::User, "q"), Message::new(Role::Tool, "42")]));
    }
}
