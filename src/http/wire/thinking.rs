//! The ways clients ask for thought, all mapped to `Thinking`: OpenAI's `reasoning_effort`, Qwen's
//! `enable_thinking` and `thinking_budget` (at the top or in `chat_template_kwargs`). The more precise wins:
//! a budget over a switch, a switch over an effort.

use serde::Deserialize;

use crate::http::error::ApiError;
use crate::turn::Thinking;

/// Thought of `enable_thinking: true` without a budget, tokens.
const DEFAULT_BUDGET: u32 = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

impl Effort {
    fn thinking(self) -> Thinking {
        match self {
            Effort::None | Effort::Minimal => Thinking::Off,
            Effort::Low => Thinking::On { budget_tokens: 512 },
            Effort::Medium => Thinking::On { budget_tokens: DEFAULT_BUDGET },
            Effort::High => Thinking::On { budget_tokens: 8192 },
            Effort::Xhigh => Thinking::On { budget_tokens: 32_768 },
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TemplateArguments {
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) thinking_budget: Option<u32>,
}

/// `None` = the client said nothing, the pipeline decides.
pub(crate) fn thinking(
    effort: Option<Effort>,
    top: TemplateArguments,
    arguments: TemplateArguments,
) -> Result<Option<Thinking>, ApiError> {
    let switch = arguments.enable_thinking.or(top.enable_thinking);
    let budget = arguments.thinking_budget.or(top.thinking_budget);
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
        let with = |enable_thinking, thinking_budget| TemplateArguments { enable_thinking, thinking_budget };
        let on = |budget_tokens| Some(Thinking::On { budget_tokens });
        assert_eq!(thinking(None, none, none).unwrap(), None);
        assert_eq!(thinking(Some(Effort::Minimal), none, none).unwrap(), Some(Thinking::Off));
        assert_eq!(thinking(Some(Effort::Low), none, none).unwrap(), on(512));
        assert_eq!(thinking(Some(Effort::High), none, with(Some(false), None)).unwrap(), Some(Thinking::Off));
        assert_eq!(thinking(Some(Effort::High), with(Some(true), None), none).unwrap(), on(8192));
        assert_eq!(thinking(None, with(Some(true), None), none).unwrap(), on(DEFAULT_BUDGET));
        assert_eq!(thinking(Some(Effort::High), none, with(None, Some(7))).unwrap(), on(7));
        assert!(thinking(None, with(Some(false), Some(7)), none).is_err());
        assert!(thinking(None, with(Some(true), Some(0)), none).is_err());
    }
}
