//! The turns that a night looks at: the newest of its window, as many as fit in memory.

use std::collections::VecDeque;

use crate::turn::{ToolCall, Turn};

const TURNS_MAX: usize = 20_000;
const BYTES_MAX: usize = 1 << 30;

#[derive(Default)]
pub(super) struct Window {
    /// The oldest first.
    pub(super) turns: VecDeque<Turn>,
    bytes: usize,
    /// Turns that had no room.
    pub(super) dropped: usize,
}

impl Window {
    /// Adds a turn; the oldest go where it needs their room.
    pub(super) fn push(&mut self, turn: Turn) {
        self.push_within(turn, TURNS_MAX, BYTES_MAX);
    }

    fn push_within(&mut self, turn: Turn, turns_max: usize, bytes_max: usize) {
        self.bytes += bytes(&turn);
        self.turns.push_back(turn);
        while self.turns.len() > turns_max || (self.bytes > bytes_max && self.turns.len() > 1) {
            let Some(oldest) = self.turns.pop_front() else { return };
            self.bytes -= bytes(&oldest);
            self.dropped += 1;
        }
    }
}

/// Bytes of a turn in memory, but for what is small.
fn bytes(turn: &Turn) -> usize {
    let calls = |calls: &[ToolCall]| calls.iter().map(|call| call.arguments.to_string().len()).sum::<usize>();
    let said = turn.messages.iter().map(|message| {
        let thought = message.reasoning_content.as_ref().map_or(0, String::len);
        size_of_val(message) + message.content.len() + thought + calls(&message.tool_calls)
    });
    let answered = turn.generations.iter().map(|generation| {
        let texts = generation.content.len() + generation.thinking.len() + calls(&generation.tool_calls);
        texts + 4 * (generation.reply_ids.len() + generation.thinking_ids.len())
    });
    let steps =
        turn.steps.iter().map(|step| step.text.len() + step.calls.iter().map(|call| call.result.len()).sum::<usize>());
    let tools = turn.tools.iter().map(|tool| tool.to_string().len());
    let votes = turn.feedback.iter().map(|vote| vote.correction.as_ref().map_or(0, String::len));
    let texts = said.chain(answered).chain(steps).chain(tools).chain(votes).sum::<usize>();
    size_of::<Turn>() + texts + 4 * turn.prompt_ids.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_turns_give_way_to_newer_ones() {
        let turn = |id: &str, tokens: usize| {
            let mut turn = crate::store::fixture::turn(id, "p");
            turn.prompt_ids = vec![1; tokens];
            turn
        };
        let mut window = Window::default();
        let ids = |window: &Window| window.turns.iter().map(|turn| turn.id.0.clone()).collect::<Vec<_>>();
        for id in ["a", "b", "c", "d"] {
            window.push_within(turn(id, 10), 3, 1 << 20);
        }
        assert_eq!((ids(&window), window.dropped), (vec!["b".to_owned(), "c".to_owned(), "d".to_owned()], 1));
        window.push_within(turn("e", 200_000), 3, 1 << 19);
        assert_eq!((ids(&window), window.dropped), (vec!["e".to_owned()], 4));
        window.push_within(turn("f", 10), 3, 1 << 19);
        assert_eq!((ids(&window), window.bytes), (vec!["f".to_owned()], bytes(&turn("f", 10))));
    }
}
