//! Lessons as the model is shown them: notes in front of the question, in the same message of the user. A template needs no
//! place of its own for them, and a note has no more authority than who asks.

use super::recall::Recalled;
use crate::turn::{Message, Note, Role};

/// Bytes of all notes of a reply, and what stands around them; a token is at least one byte.
const NOTES_BYTES_MAX: usize = 4_000;
const FRAME_BYTES: usize = 160;

/// The notes of lessons, likest first, that have no more than `room` bytes together. One that does not fit is left out.
pub(crate) fn fitting(found: &[Recalled], room: usize) -> Vec<Note> {
    let mut left = room.min(NOTES_BYTES_MAX).saturating_sub(FRAME_BYTES);
    let mut notes = Vec::new();
    for Recalled { lesson, question, .. } in found {
        let Some(question) = lesson.questions.get(*question) else { continue };
        let bytes = question.len() + lesson.answer.len() + 2;
        if bytes <= left {
            left -= bytes;
            notes.push(Note { lesson: lesson.id.0.clone(), question: question.clone(), answer: lesson.answer.clone() });
        }
    }
    notes
}

/// Puts the notes in front of the last message, where that is the user's.
pub(crate) fn show(messages: &mut [Message], notes: &[Note]) {
    let Some(last) = messages.last_mut().filter(|last| last.role == Role::User && !notes.is_empty()) else { return };
    let lines: Vec<String> = notes.iter().map(|note| format!("{} {}", note.question, note.answer)).collect();
    last.content = format!("Note: {}\n\n{}", lines.join("\n"), last.content);
}
