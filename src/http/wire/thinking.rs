//! The ways clients ask for thought, all mapped to `Thinking`: OpenAI's `reasoning_effort`, Qwen's
//! `enable_thinking` and `thinking_budget` (at the top or in `chat_template_kwargs`). The more precise wins:
//! a budget over a switch, a switch over an effort.

use serde::{Deserialize, Serialize};

use super::template::TemplateArguments;
use crate::http::error::ApiError;
use crate::turn::Thinking;

/// Thought of `enable_thinking: true` without a budget, tokens.
const DEFAULT_BUDGET: u32 = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl Effort {
    fn thinking(self) -> Thinking {
        match self {
            Effort::None | Effort::Minimal => Thinking::Off,
            Effort::Low => Thinking::On { budget_tokens: 512 },
            Effort::Medium => Thinking::On { budget_tokens: DEFAULT_BUDGET },
            Effort::High => Thinking::On { budget_tokens: 8192 },
            Effort::Xhigh => Thinking::On { budget_tokens: 32_768 },
            Effort::Max => Thinking::On { budget_tokens: 131_072 },
        }
    }

    /// As clients and templates write it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Effort::None => "none",
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            Effort::Xhigh => "xhigh",
            Effort::Max => "max",
        }
    }
}

/// `None` = the client said nothing, the pipeline decides.
pub(crate) fn thinking(
    effort: Option<Effort>,
    enable: Option<bool>,
    budget: Option<u32>,
    arguments: &TemplateArguments,
) -> Result<Option<Thinking>, ApiError> {
    let switch = arguments.enable_thinking.or(enable);
    let budget = arguments.thinking_budget.or(budget);
    let effort = effort.or(arguments.reasoning_effort);
    match (switch, budget) {
        (Some(false), Some(1..)) => {
            Err(ApiError::param("thinking_budget", "`thinking_budget` contradicts `enable_thinking: false`"))
        }
        (Some(true), Some(0)) => {
            Err(ApiError::param("thinking_budget", "`thinking_budget: 0` contradicts `enable_thinking: true`"))
        }
        (Some(false), _) | (_, Some(0)) => Ok(Some(Thinking::Off)),
        (_, Some(budget_tokens)) => Ok(Some(Thinking::On { budget_tokens })),
        (Some(true), None) => Ok(Some(match effort.map(Effort::thinking) {
            Some(on @ Thinking::On { .. }) => on,
            _ => Thinking::On { budget_tokens: DEFAULT_BUDGET },
        })),
        (None, None) => Ok(effort.map(Effort::thinking)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_precise_wish_wins() {
        let none = TemplateArguments::default();
        let with = |enable_thinking, thinking_budget| TemplateArguments {
            enable_thinking,
            thinking_budget,
            ..Default::default()
        };
        let on = |budget_tokens| Some(Thinking::On { budget_tokens });
        assert_eq!(thinking(None, None, None, &none).unwrap(), None);
        for (effort, expected) in [
            (Effort::None, Some(Thinking::Off)),
            (Effort::Minimal, Some(Thinking::Off)),
            (Effort::Low, on(512)),
            (Effort::Medium, on(DEFAULT_BUDGET)),
            (Effort::High, on(8192)),
            (Effort::Xhigh, on(32_768)),
            (Effort::Max, on(131_072)),
        ] {
            assert_eq!(thinking(Some(effort), None, None, &none).unwrap(), expected);
            assert_eq!(serde_json::to_value(effort).unwrap(), effort.word());
            let argument = TemplateArguments { reasoning_effort: Some(effort), ..Default::default() };
            assert_eq!(thinking(None, None, None, &argument).unwrap(), expected);
        }
        assert_eq!(thinking(Some(Effort::High), None, None, &with(Some(false), None)).unwrap(), Some(Thinking::Off));
        assert_eq!(thinking(Some(Effort::High), Some(true), None, &none).unwrap(), on(8192));
        assert_eq!(thinking(None, Some(true), None, &none).unwrap(), on(DEFAULT_BUDGET));
        assert_eq!(thinking(Some(Effort::High), None, None, &with(None, Some(7))).unwrap(), on(7));
        assert!(thinking(None, Some(false), Some(7), &none).is_err());
        assert!(thinking(None, Some(true), Some(0), &none).is_err());
    }
}
