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
    pub(super) fn with(&self, draft: Draft, id: LessonId, now_ms: i64) -> Result<(Book, Arc<Lesson>), LessonError> {
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

    /// Makes room for a lesson: retired ones of its principal go first, the oldest before others.
    fn make_room(&mut self, lesson: &Lesson, by_owner: bool) -> Result<(), LessonError> {
        let share = |all: usize| if by_owner { all } else { all - all / OWNERS_SHARE };
        loop {
            let own = || self.0.iter().filter(|kept| kept.principal == lesson.principal);
            let own_bytes: usize = own().map(|kept| bytes(kept)).sum::<usize>() + bytes(lesson);
            let full = match () {
                () if own().count() >= PER_PRINCIPAL_MAX => format!("{PER_PRINCIPAL_MAX} lessons of one key are kept"),
                () if own_bytes > PRINCIPAL_BYTES_MAX => format!("{PRINCIPAL_BYTES_MAX} bytes of one key are kept"),
                () if self.0.len() >= share(LESSONS_MAX) || self.bytes() + bytes(lesson) > share(BYTES_MAX) => {
                    return Err(LessonError::Full("all keys together have taught as much as is kept".to_owned()));
                }
                () => return Ok(()),
            };
            let retired = |kept: &Arc<Lesson>| kept.principal == lesson.principal && kept.state != State::New;
            let Some(oldest) = self.0.iter().position(retired) else {
                let message = format!("{full}, and no more: forget one that is not needed");
                return Err(LessonError::Full(message));
            };
            self.0.remove(oldest);
        }
    }

    /// With a lesson in other words, or shared with others than before.
    pub(super) fn changed(&self, id: &LessonId, edit: Edit, now_ms: i64) -> Result<(Book, Arc<Lesson>), LessonError> {
        let before = self.get(id).ok_or_else(|| LessonError::Unknown(id.0.clone()))?;
        if edit.seen_ms.is_some_and(|seen| seen != before.updated_ms) {
            return Err(LessonError::Changed);
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
        book.make_room(&lesson, edit.by_owner)?;
        Ok(book.put(lesson))
    }

    /// Without those that pass; `None`: there is none of them here. What a lesson that goes had retired is shown again, unless
    /// there is another on the same question.
    pub(super) fn without(&self, forgotten: impl Fn(&Lesson) -> bool) -> Option<Book> {
        let (gone, mut left): (Vec<_>, Vec<_>) = self.0.iter().cloned().partition(|lesson| forgotten(lesson));
        if gone.is_empty() {
            return None;
        }
        for at in 0..left.len() {
            let state = outlived(&left[at].state, &gone);
            if state == left[at].state {
                continue;
            }
            let lesson = Lesson { state, ..Lesson::clone(&left[at]) };
            let own = keys(&lesson);
            let taken = |other: &Arc<Lesson>| {
                other.state == State::New && other.beside(&lesson) && !own.is_disjoint(&keys(other))
            };
            if lesson.state != State::New || !left.iter().any(taken) {
                left[at] = Arc::new(lesson);
            }
        }
        Some(Book(left))
    }

    pub(super) fn without_turns(&self, filter: &TurnFilter) -> Option<Book> {
        self.without(|lesson| lesson.passes(filter))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|lesson| bytes(lesson)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Known, Source};
    use super::*;
    use crate::turn::TurnId;

    fn draft(principal: &str, question: &str, answer: &str) -> Draft {
        Draft {
            principal: principal.into(),
            questions: vec![question.into()],
            answer: answer.into(),
            known: Known::Added,
            sources: Vec::new(),
            by_owner: false,
            sharing: None,
            shown: Vec::new(),
        }
    }

    fn id(n: usize) -> LessonId {
        LessonId(format!("lesson-{n:04}"))
    }

    fn book(drafts: &[Draft]) -> Book {
        drafts
            .iter()
            .enumerate()
            .fold(Book::default(), |book, (n, draft)| book.with(draft.clone(), id(n), n as i64).unwrap().0)
    }

    #[test]
    fn a_newer_lesson_takes_the_place_of_an_older_one_of_its_own_principal() {
        let book = book(&[
            draft("ada", "Where is the key?", "In the drawer."),
            draft("bob", "Where is the key?", "In the car."),
            draft("ada", "Where's the key", "On the hook."),
        ]);
        let states: Vec<bool> = book.lessons().iter().map(|lesson| lesson.state == State::New).collect();
        assert_eq!(states, [false, true, true]);
        assert_eq!(book.lessons()[0].state, State::Retired { by: id(2) });
        assert!(!book.lessons()[0].shown_to("ada") && book.lessons()[2].shown_to("ada"));
        assert!(!book.lessons()[2].shown_to("bob"));
        // An edit may make two questions the same.
        let book = book.with(draft("ada", "Where is the torch?", "Upstairs."), id(3), 3).unwrap().0;
        let edit = Edit { questions: Some(vec!["Where is the key?".into()]), ..Edit::default() };
        let (book, lesson) = book.changed(&id(3), edit, 9).unwrap();
        assert_eq!((lesson.updated_ms, lesson.created_ms), (9, 3));
        assert_eq!(book.lessons()[2].state, State::Retired { by: id(3) });
    }

    #[test]
    fn only_the_owner_shares_and_nothing_is_shared_by_itself() {
        let shared =
            |by_owner| Draft { sharing: Some(Sharing::Shared), by_owner, ..draft("ada", "Which day?", "Monday.") };
        assert_eq!(book(&[shared(false)]).lessons()[0].sharing, Sharing::Private);
        let first = book(&[shared(true)]);
        assert!(first.lessons()[0].shown_to("bob"));
        for (by_owner, then) in [(true, Sharing::Shared), (false, Sharing::Private)] {
            let next = Draft { by_owner, ..draft("ada", "Which day?", "Tuesday.") };
            assert_eq!(first.with(next, id(1), 1).unwrap().1.sharing, Sharing::Private, "nobody asked for more");
            let edit = Edit { answer: Some("Tuesday.".into()), by_owner, ..Edit::default() };
            assert_eq!(first.changed(&id(0), edit, 1).unwrap().1.sharing, then);
        }
        let same = Edit { answer: Some("Monday.".into()), ..Edit::default() };
        assert_eq!(first.changed(&id(0), same, 5).unwrap().1.updated_ms, 0, "nothing was changed");
        // Other words than those that were seen are not shared.
        let seen = |seen_ms| Edit { sharing: Some(Sharing::Shared), seen_ms, by_owner: true, ..Edit::default() };
        assert!(first.changed(&id(0), seen(Some(0)), 5).is_ok());
        assert_eq!(first.changed(&id(0), seen(Some(1)), 5).unwrap_err(), LessonError::Changed);
    }

    #[test]
    fn a_newer_shared_lesson_takes_the_place_of_an_older_shared_one_whosever_it_is() {
        let of = |principal: &str, sharing| Draft {
            sharing: Some(sharing),
            by_owner: true,
            ..draft(principal, "Which day?", principal)
        };
        let owner = of("owner", Sharing::Shared);
        let live = |newer: Draft| {
            let book = book(&[owner.clone(), newer]);
            book.lessons().iter().map(|lesson| lesson.state == State::New).collect::<Vec<_>>()
        };
        assert_eq!(live(of("root", Sharing::Shared)), [false, true]);
        assert_eq!(live(of("root", Sharing::Private)), [true, true]);
        let (left, _) = book(&[owner.clone(), of("root", Sharing::Private)])
            .changed(&id(1), Edit { sharing: Some(Sharing::Shared), by_owner: true, ..Edit::default() }, 5)
            .unwrap();
        assert_eq!(left.lessons()[0].state, State::Retired { by: id(1) });
        assert_eq!(left.without(|lesson| lesson.id == id(1)).unwrap().lessons()[0].state, State::New);
    }

    #[test]
    fn what_a_forgotten_lesson_had_retired_is_shown_again() {
        let days = ["Monday.", "Tuesday.", "Friday."].map(|day| draft("ada", "Which day?", day));
        let book = book(&days);
        let live = |book: &Book| {
            let new = book.lessons().iter().filter(|lesson| lesson.state == State::New);
            new.map(|lesson| lesson.answer.clone()).collect::<Vec<_>>()
        };
        assert_eq!(live(&book), ["Friday."]);
        let without =
            |book: &Book, gone: &[usize]| book.without(|lesson| gone.iter().any(|n| id(*n) == lesson.id)).unwrap();
        assert_eq!(live(&without(&book, &[2])), ["Tuesday."]);
        assert_eq!(live(&without(&book, &[1, 2])), ["Monday."]);
        // The one in the middle goes first.
        let left = without(&book, &[1]);
        assert_eq!(
            (live(&left), left.lessons()[0].state.clone()),
            (vec!["Friday.".to_owned()], State::Retired { by: id(2) })
        );
        assert_eq!(live(&without(&left, &[2])), ["Monday."]);
    }

    #[test]
    fn a_key_has_its_share_of_the_room() {
        let long = |n: usize| Draft {
            questions: (0..QUESTIONS_MAX).map(|q| format!("{n} {q} {}", "x".repeat(QUESTION_CHARS_MAX - 20))).collect(),
            ..draft("eve", "", "a")
        };
        let mut book = Book::default();
        let full = (0..).find_map(|n| match book.with(long(n), id(n), 0) {
            Ok((next, _)) => {
                book = next;
                None
            }
            Err(error) => Some(error),
        });
        assert!(matches!(full, Some(LessonError::Full(_))) && book.bytes() <= PRINCIPAL_BYTES_MAX);
        assert!(book.with(draft("ada", "Which day?", "Monday."), id(9_999), 0).is_ok());
    }

    #[test]
    fn words_have_limits_and_say_which() {
        let long = "x".repeat(QUESTION_CHARS_MAX + 1);
        for (question, answer, param) in [
            (" ", "a", "questions"),
            (long.as_str(), "a", "questions"),
            ("q", "\n", "answer"),
            ("q", &"y".repeat(ANSWER_CHARS_MAX + 1), "answer"),
        ] {
            match Book::default().with(draft("ada", question, answer), id(0), 0) {
                Err(LessonError::Invalid { param: found, .. }) => assert_eq!(found, param),
                other => panic!("{other:?}"),
            }
        }
        let many = Draft { questions: vec!["q".into(); QUESTIONS_MAX + 1], ..draft("ada", "", "a") };
        assert!(Book::default().with(many, id(0), 0).is_err());
        let twice = Draft { questions: vec!["q".into(), " q ".into()], ..draft("ada", "", "a") };
        assert_eq!(Book::default().with(twice, id(0), 0).unwrap().1.questions, ["q"]);
    }

    #[test]
    fn retired_lessons_make_room_and_a_full_book_says_so() {
        let many: Vec<_> = (0..PER_PRINCIPAL_MAX).map(|n| draft("ada", &format!("Question {n}?"), "A.")).collect();
        let lessons = many.into_iter().enumerate().map(|(n, draft)| {
            let (_, lesson) = Book::default().with(draft, id(n), n as i64).unwrap();
            lesson
        });
        let full = Book(lessons.collect());
        let more = |question: &str| full.with(draft("ada", question, "B."), id(9_999), 0);
        assert!(matches!(more("Another?"), Err(LessonError::Full(_))));
        let (book, _) = more("Question 7?").unwrap();
        assert_eq!(book.lessons().len(), PER_PRINCIPAL_MAX);
        assert!(book.get(&id(7)).is_none(), "what it took the place of is gone");
        assert!(full.with(draft("bob", "Another?", "B."), id(9_999), 0).is_ok());
    }

    #[test]
    fn forgetting_reaches_lessons_by_turn_conversation_principal_and_time() {
        let source = Source { turn: TurnId("turn-5".into()), conversation: "c".into(), time_ms: 100, consent: true };
        let of_turn = Draft { sources: vec![source], ..draft("ada", "Which day?", "Monday.") };
        let book = book(&[of_turn, draft("ada", "Which hour?", "Ten."), draft("bob", "Which hour?", "Two.")]);
        let left = |filter: TurnFilter| {
            book.without_turns(&filter).map(|book| book.lessons().iter().map(|l| l.answer.clone()).collect::<Vec<_>>())
        };
        let some = |answers: &[&str]| Some(answers.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        let all = TurnFilter::default();
        assert_eq!(left(TurnFilter { turn: Some(TurnId("turn-5".into())), ..all.clone() }), some(&["Ten.", "Two."]));
        assert_eq!(left(TurnFilter { turn: Some(TurnId("turn-6".into())), ..all.clone() }), None);
        assert_eq!(left(TurnFilter { conversation: Some("c".into()), ..all.clone() }), some(&["Ten.", "Two."]));
        assert_eq!(left(TurnFilter { principal: Some("ada".into()), ..all.clone() }), some(&["Two."]));
        // Taught at 0, 1 and 2; the turn was at 100.
        assert_eq!(left(TurnFilter { since_ms: Some(2), ..all.clone() }), some(&["Ten."]));
        assert_eq!(left(TurnFilter { since_ms: Some(101), ..all.clone() }), None);
        assert_eq!(left(all), some(&[]));
    }
}
