//! The lessons of the moment. A change makes another book, so that a reader's snapshot never changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::words::key;
use super::{
    ANSWER_CHARS_MAX, BYTES_MAX, Draft, Edit, LESSONS_MAX, Lesson, LessonError, LessonId, OWNERS_SHARE,
    PER_PRINCIPAL_MAX, PRINCIPAL_BYTES_MAX, QUESTION_CHARS_MAX, QUESTIONS_MAX, Sharing, State,
};
use crate::service::TurnFilter;

/// In the order of their ids, which is that of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Book(Vec<Arc<Lesson>>);

/// Bytes of a lesson, as its limits count them.
fn bytes(lesson: &Lesson) -> usize {
    let sources = lesson.sources.iter().map(|source| source.turn.0.len() + source.conversation.len() + 64);
    let questions: usize = lesson.questions.iter().map(|question| question.len() + 4).sum();
    questions + lesson.answer.len() + lesson.principal.len() + sources.sum::<usize>() + 256
}

fn keys(lesson: &Lesson) -> BTreeSet<String> {
    lesson.questions.iter().map(|question| key(question)).collect()
}

fn same_question(a: &Lesson, b: &Lesson) -> bool {
    !keys(a).is_disjoint(&keys(b))
}

/// Two lessons, each before and after a change of one of them, of which the newer had taken the place of the other: does
/// it still? One that was retired as wrong is on another question; it stays so while the question of the changed one is
/// the same.
fn still_in_place([newer_before, newer]: [&Lesson; 2], [older_before, older]: [&Lesson; 2]) -> bool {
    let asks_the_same = same_question(newer, older);
    let as_before = same_question(newer_before, newer) && same_question(older_before, older);
    newer.beside(older) && (asks_the_same || (as_before && !same_question(newer_before, older_before)))
}

/// The state of a lesson when others are gone.
fn outlived(state: &State, gone: &[Arc<Lesson>]) -> State {
    let mut state = state.clone();
    // Each step leads to another of those that are gone.
    for _ in gone {
        let State::Retired { by } = &state else { break };
        let Some(retirer) = gone.iter().find(|lesson| lesson.id == *by) else { break };
        state = retirer.state.clone();
    }
    state
}

/// Words of a lesson as they are kept, or what is wrong with them.
fn checked(texts: Vec<String>, param: &'static str, chars_max: usize) -> Result<Vec<String>, LessonError> {
    let invalid = |message: String| LessonError::Invalid { param, message };
    if texts.is_empty() || texts.len() > QUESTIONS_MAX {
        return Err(invalid(format!("a lesson has 1 to {QUESTIONS_MAX} questions, not {}", texts.len())));
    }
    let trimmed: Vec<String> = texts.iter().map(|text| text.trim().to_owned()).collect();
    let what = if param == "answer" { "the answer" } else { "a question" };
    for text in &trimmed {
        match text.chars().count() {
            0 => return Err(invalid(format!("{what} of a lesson must say something, not blanks alone"))),
            chars if chars > chars_max => {
                return Err(invalid(format!("{what} of a lesson has at most {chars_max} characters, not {chars}")));
            }
            _ => {}
        }
    }
    Ok(trimmed)
}

pub(super) fn questions(texts: Vec<String>) -> Result<Vec<String>, LessonError> {
    let mut distinct = Vec::new();
    for text in checked(texts, "questions", QUESTION_CHARS_MAX)? {
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    Ok(distinct)
}

pub(super) fn answer(text: String) -> Result<String, LessonError> {
    Ok(checked(vec![text], "answer", ANSWER_CHARS_MAX)?.remove(0))
}

impl Book {
    pub(super) fn new(lessons: Vec<Arc<Lesson>>) -> Book {
        Book(lessons)
    }

    pub fn lessons(&self) -> &[Arc<Lesson>] {
        &self.0
    }

    pub fn get(&self, id: &LessonId) -> Option<&Arc<Lesson>> {
        self.0.iter().find(|lesson| lesson.id == *id)
    }

    /// With one more lesson, which retires those on the same question.
    pub fn with(&self, draft: Draft, id: LessonId, now_ms: i64) -> Result<(Book, Arc<Lesson>), LessonError> {
        let lesson = Lesson {
            id,
            questions: questions(draft.questions)?,
            answer: answer(draft.answer)?,
            principal: draft.principal,
            known: draft.known,
            sources: draft.sources,
            state: State::New,
            sharing: draft.sharing.filter(|_| draft.by_owner).unwrap_or(Sharing::Private),
            created_ms: now_ms,
            updated_ms: now_ms,
        };
        let mut book = self.clone();
        book.retire_for(&lesson, &draft.shown);
        book.make_room(&lesson, draft.by_owner)?;
        Ok(book.put(lesson))
    }

    fn put(mut self, lesson: Lesson) -> (Book, Arc<Lesson>) {
        let lesson = Arc::new(lesson);
        let at = self.0.partition_point(|kept| kept.id < lesson.id);
        self.0.insert(at, lesson.clone());
        (self, lesson)
    }

    /// Retires the other lessons of this one's principal on the same question, and those of `wrong`. A shared one retires
    /// whosever shared ones: the owner has more than one name.
    fn retire_for(&mut self, newer: &Lesson, wrong: &[LessonId]) {
        let own = keys(newer);
        for lesson in &mut self.0 {
            let same = || !own.is_disjoint(&keys(lesson)) || wrong.contains(&lesson.id);
            if lesson.state == State::New && lesson.beside(newer) && lesson.id != newer.id && same() {
                let state = State::Retired { by: newer.id.clone() };
                *lesson = Arc::new(Lesson { state, ..Lesson::clone(lesson) });
            }
        }
    }

    /// Makes room for a lesson: retired ones of its own principal go, the oldest first. What another had taught is not
    /// touched: it would come back to that one when what took its place is forgotten.
    fn make_room(&mut self, lesson: &Lesson, by_owner: bool) -> Result<(), LessonError> {
        let share = |all: usize| if by_owner { all } else { all - all / OWNERS_SHARE };
        loop {
            let own = || self.0.iter().filter(|kept| kept.principal == lesson.principal);
            let own_bytes: usize = own().map(|kept| bytes(kept)).sum::<usize>() + bytes(lesson);
            let full = match () {
                () if own().count() >= PER_PRINCIPAL_MAX => format!("{PER_PRINCIPAL_MAX} lessons of one key are kept"),
                () if own_bytes > PRINCIPAL_BYTES_MAX => format!("{PRINCIPAL_BYTES_MAX} bytes of one key are kept"),
                () if self.0.len() >= share(LESSONS_MAX) || self.bytes() + bytes(lesson) > share(BYTES_MAX) => {
                    "all keys together have taught as much as is kept".to_owned()
                }
                () => return Ok(()),
            };
            let retired = |kept: &&Arc<Lesson>| kept.principal == lesson.principal && kept.state != State::New;
            let Some(oldest) = self.0.iter().find(retired).cloned() else {
                let message = format!("{full}, and no more: forget one that is not needed");
                return Err(LessonError::Full(message));
            };
            self.0.retain(|kept| kept.id != oldest.id);
            // What it had taken the place of is retired by what took its own.
            for kept in &mut self.0 {
                let state = outlived(&kept.state, std::slice::from_ref(&oldest));
                if state != kept.state {
                    *kept = Arc::new(Lesson { state, ..Lesson::clone(kept) });
                }
            }
        }
    }

    /// With a lesson in other words, or shared with others than before.
    pub(super) fn changed(&self, id: &LessonId, edit: Edit, now_ms: i64) -> Result<(Book, Arc<Lesson>), LessonError> {
        let before = self.get(id).ok_or_else(|| LessonError::Unknown(id.0.clone()))?;
        if let Some(seen) = edit.seen_ms.filter(|seen| *seen != before.updated_ms) {
            return Err(LessonError::Changed { seen, now: before.updated_ms });
        }
        let mut lesson = Lesson::clone(before);
        if let Some(texts) = edit.questions {
            lesson.questions = questions(texts)?;
        }
        if let Some(text) = edit.answer {
            lesson.answer = answer(text)?;
        }
        if lesson != **before {
            lesson.updated_ms = now_ms;
            // The owner shared other words than these.
            if !edit.by_owner {
                lesson.sharing = Sharing::Private;
            }
        }
        lesson.sharing = edit.sharing.unwrap_or(lesson.sharing);
        let mut book = Book(self.0.iter().filter(|kept| kept.id != *id).cloned().collect());
        if lesson.state == State::New {
            book.retire_for(&lesson, &[]);
        }
        // Fewer words, or other people: that always fits.
        if bytes(&lesson) > bytes(before) {
            book.make_room(&lesson, edit.by_owner)?;
        }
        let (mut book, lesson) = book.put(lesson);
        book.give_back(before, &lesson);
        let lesson = book.get(id).cloned().unwrap_or(lesson);
        Ok((book, lesson))
    }

    /// After a change of a lesson: those that it no longer takes the place of are shown again, and so is itself where
    /// what took its place no longer does.
    fn give_back(&mut self, before: &Lesson, lesson: &Lesson) {
        let by = |kept: &Lesson, newer: &LessonId| matches!(&kept.state, State::Retired { by } if by == newer);
        for at in (0..self.0.len()).rev() {
            let Some(kept) = self.0.get(at).cloned() else { continue };
            let is_freed = match &kept.state {
                State::Retired { by: newer } if kept.id == lesson.id => {
                    self.get(newer).is_some_and(|newer| !still_in_place([newer, newer], [before, lesson]))
                }
                _ => by(&kept, &lesson.id) && !still_in_place([before, lesson], [&kept, &kept]),
            };
            if is_freed {
                self.free(at);
            }
        }
    }

    /// Shows a retired lesson again, unless there is another on the same question, which then has its place.
    fn free(&mut self, at: usize) {
        let Some(lesson) = self.0.get(at) else { return };
        let takes = |other: &&Arc<Lesson>| {
            other.state == State::New && other.beside(lesson) && other.id != lesson.id && same_question(other, lesson)
        };
        let taken = self.0.iter().rfind(takes);
        let state = taken.map_or(State::New, |other| State::Retired { by: other.id.clone() });
        let lesson = Arc::new(Lesson { state, ..Lesson::clone(lesson) });
        self.0.splice(at..=at, [lesson]);
    }

    /// Without those that pass; `None`: there is none of them here. What a lesson that goes had retired is shown again, unless
    /// there is another on the same question.
    pub(super) fn without(&self, forgotten: impl Fn(&Lesson) -> bool) -> Option<Book> {
        let (gone, left): (Vec<_>, Vec<_>) = self.0.iter().cloned().partition(|lesson| forgotten(lesson));
        if gone.is_empty() {
            return None;
        }
        let mut left = Book(left);
        // The newest first: of two on the same question it is the one that is shown.
        for at in (0..left.0.len()).rev() {
            let Some(kept) = left.0.get(at).cloned() else { continue };
            match outlived(&kept.state, &gone) {
                state if state == kept.state => {}
                State::New => left.free(at),
                state => drop(left.0.splice(at..=at, [Arc::new(Lesson { state, ..Lesson::clone(&kept) })])),
            }
        }
        Some(left)
    }

    pub(super) fn without_turns(&self, filter: &TurnFilter) -> Option<Book> {
        self.without(|lesson| lesson.passes(filter))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|lesson| bytes(lesson)).sum()
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
