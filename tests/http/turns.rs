//! The turns that the service without a model remembers.

use chimere::service::TurnFilter;
use chimere::turn::{Sampling, Thinking, Tier, Turn, TurnId};

pub fn turn(index: usize) -> Turn {
    Turn {
        version: 1,
        id: TurnId(format!("turn-{index:06}")),
        conversation: format!("c{}", index % 3),
        time_ms: index as i64,
        principal: if index.is_multiple_of(2) { "chatter" } else { "somebody" }.to_owned(),
        consent: true,
        taint: false,
        formed: false,
        continued: false,
        redacted: false,
        route: "default".to_owned(),
        tier: Tier::Fast,
        pipeline_version: "1".to_owned(),
        model: "fake-1".to_owned(),
        model_hash: "00".to_owned(),
        adapter_revision: 0,
        template_hash: "00".to_owned(),
        messages: Vec::new(),
        tools: Vec::new(),
        prompt_ids: Vec::new(),
        sampling: Sampling::default(),
        thinking: Thinking::Off,
        generations: Vec::new(),
        steps: Vec::new(),
        feedback: Vec::new(),
        verdict: None,
        examples: 0,
        lessons: Vec::new(),
        judgement: None,
    }
}

pub fn matches(turn: &Turn, filter: &TurnFilter) -> bool {
    filter.turn.as_ref().is_none_or(|id| *id == turn.id)
        && filter.principal.as_ref().is_none_or(|name| *name == turn.principal)
        && filter.conversation.as_ref().is_none_or(|name| *name == turn.conversation)
        && filter.since_ms.is_none_or(|since| turn.time_ms >= since)
        && filter
            .after
            .as_ref()
            .is_none_or(|after| if filter.newest_first { turn.id < *after } else { turn.id > *after })
}
