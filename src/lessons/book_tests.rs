//! The rules of the book, one by one.

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
    let shared = |by_owner| Draft { sharing: Some(Sharing::Shared), by_owner, ..draft("ada", "Which day?", "Monday.") };
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
    assert_eq!(
        first.changed(&id(0), seen(Some(1)), 5).unwrap_err(),
        LessonError::Changed { seen: 1, now: first.get(&id(0)).unwrap().updated_ms }
    );
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
fn what_a_changed_lesson_no_longer_replaces_is_shown_again() {
    let of = |who: &str, question: &str, answer: &str, shared: bool| Draft {
        sharing: shared.then_some(Sharing::Shared),
        by_owner: shared,
        ..draft(who, question, answer)
    };
    let live = |book: &Book| {
        let new = book.lessons().iter().filter(|lesson| lesson.state == State::New);
        new.map(|lesson| lesson.answer.clone()).collect::<Vec<_>>()
    };
    let asks = |text: &str| Edit { questions: Some(vec![text.into()]), ..Edit::default() };
    let edited = |book: &Book, n: usize, edit: Edit| book.changed(&id(n), edit, 9).unwrap();
    // Another question than before: the older answer is in use again, and gives way again.
    let days = book(&[draft("ada", "Which day?", "Monday."), draft("ada", "Which day?", "Friday.")]);
    let (hour, _) = edited(&days, 1, asks("Which hour?"));
    assert_eq!(live(&hour), ["Monday.", "Friday."]);
    assert_eq!(live(&edited(&hour, 1, asks("Which day, please?")).0), ["Friday."]);
    assert_eq!(live(&edited(&days, 1, Edit { answer: Some("Sunday.".into()), ..Edit::default() }).0), ["Sunday."]);
    // A retired one about something else is no longer in its way.
    let (moved, lesson) = edited(&days, 0, asks("Which hour?"));
    assert_eq!((live(&moved), &lesson.state), (vec!["Monday.".to_owned(), "Friday.".to_owned()], &State::New));
    // Unless another new one is on the question, which has its place then, and gives it back.
    let (then, _) = hour.with(draft("ada", "Which day?", "Sunday."), id(2), 2).unwrap();
    let (then, _) = edited(&then, 1, asks("Which day?"));
    let (then, _) = edited(&then, 1, asks("Which hour?"));
    assert_eq!(live(&then), ["Friday.", "Sunday."]);
    assert_eq!(live(&then.without(|lesson| lesson.id == id(2)).unwrap()), ["Monday.", "Friday."]);
    // Private again, a shared one gives back what others had shared, and not what its own principal had taught.
    let shared = book(&[of("bob", "Which day?", "Monday.", true), of("ada", "Which day?", "Sunday.", false)]);
    let (shared, _) = shared.with(of("ada", "Which day?", "Friday.", true), id(2), 2).unwrap();
    assert_eq!(live(&shared), ["Friday."]);
    let private = Edit { sharing: Some(Sharing::Private), ..Edit::default() };
    assert_eq!(live(&edited(&shared, 2, private).0), ["Monday.", "Friday."]);
    // What was retired as wrong stays so while the question stays.
    let near = book(&[draft("ada", "What opens the shed?", "4711")]);
    let wrong = Draft { shown: vec![id(0)], ..draft("ada", "Which code has the shed?", "4712") };
    let (near, _) = near.with(wrong, id(1), 1).unwrap();
    let same = Edit { answer: Some("4713".into()), ..Edit::default() };
    assert_eq!(live(&edited(&near, 1, same).0), ["4713"]);
    assert_eq!(live(&edited(&near, 1, asks("Which hour?")).0), ["4711", "4712"]);
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
    // What shrinks, or goes to fewer people, always fits.
    let crowd = (0..LESSONS_MAX + 5).map(|n| Arc::new(Lesson { id: id(n), ..Lesson::clone(&full.0[n % 9]) }));
    let crowd = Book(crowd.collect());
    let private = Edit { sharing: Some(Sharing::Private), answer: Some("A".into()), ..Edit::default() };
    assert!(crowd.changed(&id(3), private, 1).is_ok());
}

/// Where all keys together have taught as much as is kept, one's own retired lessons make room, and nobody else's.
#[test]
fn a_full_book_takes_the_retired_lessons_of_who_teaches() {
    let two = book(&[draft("ada", "Which day?", "Monday."), draft("ada", "Which day?", "Friday.")]);
    let rest = (2..LESSONS_MAX).map(|n| {
        let (_, lesson) =
            Book::default().with(draft(&format!("key-{}", n % 9), &format!("{n}?"), "A."), id(n), 0).unwrap();
        lesson
    });
    let full = Book(two.lessons().iter().cloned().chain(rest).collect());
    let three = |who: &str| full.with(draft(who, "Which hour?", "Ten."), id(99_999), 0).map(|_| ());
    assert!(matches!(three("bob"), Err(LessonError::Full(_))));
    let share = LESSONS_MAX - LESSONS_MAX / OWNERS_SHARE;
    let full = Book(full.0.into_iter().take(share).collect());
    let more = |who: &str| full.with(draft(who, "Which hour?", "Ten."), id(99_999), 0);
    assert!(matches!(more("bob"), Err(LessonError::Full(_))), "another's retired lesson stays");
    let (left, _) = more("ada").unwrap();
    assert!(left.get(&id(0)).is_none() && left.lessons().len() == share);
    // What the one that goes had retired is retired by what took its place.
    let days = book(&[draft("ada", "Which hour?", "Ten."), draft("ada", "Which day?", "Monday.")]);
    let same = Edit { questions: Some(vec!["Which day?".into()]), ..Edit::default() };
    let (days, _) = days.changed(&id(0), same, 1).unwrap();
    let (days, _) = days.with(draft("ada", "Which day?", "Friday."), id(2), 2).unwrap();
    let others =
        (3..PER_PRINCIPAL_MAX).map(|n| Book::default().with(draft("ada", &format!("{n}?"), "A."), id(n), 0).unwrap().1);
    let full = Book(days.0.into_iter().chain(others).collect());
    let (full, _) = full.with(draft("ada", "Which week?", "The next."), id(9_999), 0).unwrap();
    assert_eq!((full.get(&id(0)), &full.get(&id(1)).unwrap().state), (None, &State::Retired { by: id(2) }));
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
