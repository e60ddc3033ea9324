//! The turn that tests keep.

use super::TURN_VERSION;
use crate::turn::{Sampling, Thinking, Tier, Turn, TurnId};

pub(crate) fn turn(id: &str, principal: &str) -> Turn {
    Turn {
        version: TURN_VERSION,
        id: TurnId(id.to_owned()),
        conversation: "c".to_owned(),
        time_ms: 5,
        principal: principal.to_owned(),
        consent: true,
        taint: false,
        formed: false,
        continued: false,
        redacted: false,
        route: "default".to_owned(),
        tier: Tier::Quality,
        pipeline_version: "1".to_owned(),
        model: "m".to_owned(),
        model_hash: "h".to_owned(),
        adapter_revision: 0,
        template_hash: "t".to_owned(),
        messages: Vec::new(),
        tools: Vec::new(),
        prompt_ids: vec![1, 2, 3],
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
