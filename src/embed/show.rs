//! Examples in a conversation: verified exchanges put behind the system message as turns of it, the most alike next to
//! the question. An exchange stands by itself, so it helps with a first question. Later turns of a conversation keep
//! the beginning that the engine has already read.

use super::Example;
use crate::turn::{Message, Role};

/// What a template writes around a message takes at most so many tokens.
const FRAME_TOKENS: usize = 16;
/// Longest question that examples are looked for, bytes.
const QUESTION_BYTES_MAX: usize = 16 << 10;

/// The question of a conversation that has just begun; `behind` messages after the system's are no part of it.
pub fn first_question(messages: &[Message], behind: usize) -> Option<&str> {
    let mut said = messages.iter().skip_while(|m| m.role == Role::System).skip(behind);
    let question = said.next().filter(|m| m.role == Role::User && m.content.len() <= QUESTION_BYTES_MAX)?;
    said.next().is_none().then_some(question.content.as_str())
}

/// Bytes that examples may have beside these messages in a context of `context` tokens, of which `reply` are kept for
/// the reply. A token is at least one byte, so what is within is sure to fit.
pub fn room(messages: &[Message], context: usize, reply: usize) -> usize {
    let said: usize = messages.iter().map(|m| m.content.len() + FRAME_TOKENS).sum();
    context.saturating_sub(reply).saturating_sub(said)
}

/// Bytes that an example takes of the room.
pub(super) fn bytes(example: &Example) -> usize {
    example.question.len() + example.answer.len() + 2 * FRAME_TOKENS
}

/// Puts examples, likest first, before the question; `behind`: messages after the system's that come before them.
/// Returns how many messages that made.
pub fn insert<'a>(
    messages: &mut Vec<Message>,
    behind: usize,
    found: impl DoubleEndedIterator<Item = &'a Example>,
) -> usize {
    let systems = messages.iter().take_while(|m| m.role == Role::System).count();
    let at = (systems + behind).min(messages.len());
    let before = messages.len();
    let pairs = found.rev().flat_map(|example| {
        [Message::new(Role::User, &example.question), Message::new(Role::Assistant, &example.answer)]
    });
    drop(messages.splice(at..at, pairs));
    messages.len() - before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(question: &str) -> Example {
        Example { question: question.into(), answer: format!("Answer to {question}"), ..Example::default() }
    }

    fn user(text: &str) -> Message {
        Message::new(Role::User, text)
    }

    #[test]
    fn the_likest_stands_next_to_the_question() {
        let mut messages = vec![
            Message::new(Role::System, "s"),
            user("demonstration"),
            Message::new(Role::Assistant, "d"),
            user("question"),
        ];
        let found = [example("near"), example("far")];
        assert_eq!(first_question(&messages, 2), Some("question"));
        assert_eq!(insert(&mut messages, 2, found.iter()), 4);
        let texts: Vec<&str> = messages.iter().map(|m| m.content.as_str()).collect();
        assert_eq!(texts, ["s", "demonstration", "d", "far", "Answer to far", "near", "Answer to near", "question"]);
        assert_eq!(first_question(&messages, 6), Some("question"));
    }

    #[test]
    fn only_a_first_question_is_one() {
        assert_eq!(first_question(&[], 0), None);
        assert_eq!(first_question(&[Message::new(Role::System, "s")], 0), None);
        let later = [user("a"), Message::new(Role::Assistant, "b"), user("c")];
        assert_eq!(first_question(&later, 0), None);
        assert_eq!(first_question(&[user(&"x".repeat(QUESTION_BYTES_MAX + 1))], 0), None);
    }

    #[test]
    fn the_room_is_what_is_surely_left() {
        let messages = [user("1234")];
        assert_eq!(room(&messages, 100, 50), 30);
        assert_eq!(room(&messages, 100, 90), 0);
        assert_eq!(bytes(&example("q")), 1 + 11 + 32);
    }
}
