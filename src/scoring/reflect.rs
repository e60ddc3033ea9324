//! A second attempt at an answer that the judge thought little of: what the model is asked, and which attempt is kept.
//! The words put here are the daemon's own: they stand in no Turn and never become training data.

use crate::turn::{Message, Role, ToolCall};

/// What follows the poor answer.
pub const REFLECTION: &str =
    "That answer may be wrong. Work it out again step by step, then give the whole corrected answer.";

/// The conversation that asks for another attempt: the poor answer, and why it is asked again.
pub fn reflection(messages: &[Message], content: &str, calls: &[ToolCall]) -> Vec<Message> {
    let mut again = messages.to_vec();
    let said = Message { tool_calls: calls.to_vec(), ..Message::new(Role::Assistant, content) };
    again.extend([said, Message::new(Role::User, REFLECTION)]);
    again
}

/// The attempt to keep, by the judge's probability of each: the best, of equal ones the first.
pub fn best(p: impl IntoIterator<Item = f32>) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (at, p) in p.into_iter().enumerate() {
        if p > best.1 {
            best = (at, p);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_attempt_is_kept_and_a_tie_stays_with_the_first() {
        assert_eq!(best([0.2, 0.7, 0.4]), 1);
        assert_eq!(best([0.5, 0.5]), 0);
        assert_eq!(best([f32::NAN, 0.1]), 1);
        assert_eq!(best([]), 0);
    }
}
