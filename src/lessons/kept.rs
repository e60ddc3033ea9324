//! The book in use and its file. A change is in use when it is on the disk, and a forgetting before that.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::recall::{Index, Recalled};
use super::{Book, Draft, Edit, FILE, Lesson, LessonError, LessonId, Sharing, State, file};
use crate::config::Live;
use crate::service::TurnFilter;

pub struct Lessons {
    book: Live<Book>,
    /// Of the lessons in the book that may be shown.
    index: Live<Index>,
    path: PathBuf,
    /// What was wrong with the file at the start.
    damage: Option<String>,
    kept: Mutex<Kept>,
}

/// Held while the book is changed.
struct Kept {
    /// How often something was forgotten.
    forgotten: u64,
    /// Why nothing is written: the file belongs to another version, or cannot be read.
    closed: Option<String>,
}

impl Default for Lessons {
    fn default() -> Self {
        Lessons::open(Path::new("/nonexistent"))
    }
}

fn disk(error: std::io::Error) -> LessonError {
    LessonError::Disk(error.to_string())
}

impl Lessons {
    /// Reads the lessons of a state folder. A damaged file is set aside, and its sound lessons stay.
    pub fn open(state_dir: &Path) -> Lessons {
        let path = state_dir.join(FILE);
        let (mut book, mut damage, mut closed) = (Book::default(), None, None);
        match file::read(&path) {
            Ok(read) => (book, damage) = (read.book, read.damage),
            Err(why) => closed = Some(why),
        }
        if let Some(why) = &mut damage {
            let set_aside = file::set_aside(&path).and_then(|aside| file::write(&path, &book).map(|()| aside));
            match set_aside {
                Ok(aside) => why.push_str(&format!("; the damaged file is {}", aside.display())),
                Err(error) => closed = Some(format!("{} is damaged and cannot be set aside: {error}", path.display())),
            }
        }
        if let Some(why) = damage.as_ref().or(closed.as_ref()) {
            tracing::error!(why, "the lessons are not whole");
        }
        let index = Live::new(Index::new(&book));
        Lessons { book: Live::new(book), index, path, damage, kept: Mutex::new(Kept { forgotten: 0, closed }) }
    }

    /// A panic while it was held left the book of before.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lessons that bear on a question of a principal, likest first.
    pub fn recall(&self, question: &str, principal: &str) -> Vec<Recalled> {
        self.index.get().find(question, principal)
    }

    fn set(&self, book: Book) {
        self.index.set(Index::new(&book));
        self.book.set(book);
    }

    pub fn book(&self) -> Arc<Book> {
        self.book.get()
    }

    /// How often something was forgotten until now: to be asked before the turn of a lesson is looked for.
    pub fn forgotten(&self) -> u64 {
        self.kept().forgotten
    }

    /// Keeps a lesson. `None`: something was forgotten since `forgotten` was asked, perhaps its turn.
    pub fn teach(
        &self,
        draft: Draft,
        id: LessonId,
        now_ms: i64,
        forgotten: u64,
    ) -> Result<Option<Arc<Lesson>>, LessonError> {
        let kept = self.kept();
        if kept.forgotten != forgotten {
            return Ok(None);
        }
        self.put(&kept, self.book().with(draft, id, now_ms)?).map(Some)
    }

    pub fn edit(&self, id: &LessonId, edit: Edit, now_ms: i64) -> Result<Arc<Lesson>, LessonError> {
        let kept = self.kept();
        self.put(&kept, self.book().changed(id, edit, now_ms)?)
    }

    fn put(&self, kept: &Kept, (book, lesson): (Book, Arc<Lesson>)) -> Result<Arc<Lesson>, LessonError> {
        if let Some(why) = &kept.closed {
            return Err(LessonError::Disk(why.clone()));
        }
        file::write(&self.path, &book).map_err(disk)?;
        self.set(book);
        Ok(lesson)
    }

    /// Forgets what came of turns that pass, and lessons by hand of the filter's principal and time; how many.
    pub fn forget(&self, filter: &TurnFilter) -> Result<usize, LessonError> {
        self.take_out(|book| book.without_turns(filter))
    }

    /// Forgets one lesson. False: there is none of that id.
    pub fn forget_one(&self, id: &LessonId) -> Result<bool, LessonError> {
        self.take_out(|book| book.without(|lesson| lesson.id == *id)).map(|gone| gone > 0)
    }

    fn take_out(&self, left: impl Fn(&Book) -> Option<Book>) -> Result<usize, LessonError> {
        let mut kept = self.kept();
        kept.forgotten += 1;
        file::discard(&self.path).map_err(disk)?;
        if let Some(why) = &kept.closed {
            return Err(LessonError::Disk(why.clone()));
        }
        let before = self.book();
        let Some(left) = left(&before) else { return Ok(0) };
        let gone = before.lessons().len() - left.lessons().len();
        // Out of use even if the file cannot be written, which is said.
        self.set(left);
        file::write(&self.path, &self.book()).map_err(disk)?;
        Ok(gone)
    }

    pub fn status(&self) -> Value {
        let book = self.book();
        let count = |wanted: fn(&Lesson) -> bool| book.lessons().iter().filter(|lesson| wanted(lesson)).count();
        json!({
            "lessons": count(|lesson| lesson.state == State::New),
            "retired": count(|lesson| lesson.state != State::New),
            "shared": count(|lesson| lesson.state == State::New && lesson.sharing == Sharing::Shared),
            "bytes": book.bytes(),
            "message": self.kept().closed.as_ref().or(self.damage.as_ref()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{DAMAGED, Known};
    use super::*;

    fn draft(question: &str) -> Draft {
        Draft {
            principal: "ada".into(),
            questions: vec![question.into()],
            answer: format!("Of {question}"),
            known: Known::Added,
            sources: Vec::new(),
            by_owner: false,
            share: false,
        }
    }

    fn teach(lessons: &Lessons, n: usize) -> Arc<Lesson> {
        let id = LessonId(format!("lesson-{n}"));
        lessons.teach(draft(&format!("Question {n}?")), id, n as i64, lessons.forgotten()).unwrap().unwrap()
    }

    fn answers(lessons: &Lessons) -> Vec<String> {
        lessons.book().lessons().iter().map(|lesson| lesson.answer.clone()).collect()
    }

    #[test]
    fn lessons_come_back_and_forgotten_ones_leave_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let lessons = Lessons::open(dir.path());
        (0..3).for_each(|n| drop(teach(&lessons, n)));
        assert_eq!(*Lessons::open(dir.path()).book(), *lessons.book());
        let before = lessons.forgotten();
        assert!(lessons.forget_one(&LessonId("lesson-1".into())).unwrap());
        assert!(!lessons.forget_one(&LessonId("lesson-1".into())).unwrap());
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(!text.contains("Question 1?") && text.contains("Question 2?"), "{text}");
        let late = lessons.teach(draft("Late?"), LessonId("lesson-9".into()), 9, before).unwrap();
        assert_eq!(late, None, "something was forgotten since");
        assert_eq!(lessons.forget(&TurnFilter { principal: Some("ada".into()), ..TurnFilter::default() }), Ok(2));
        assert_eq!(answers(&Lessons::open(dir.path())), [""; 0]);
    }

    #[test]
    fn damage_costs_the_damaged_lessons_alone_and_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let lessons = Lessons::open(dir.path());
        (0..3).for_each(|n| drop(teach(&lessons, n)));
        let (path, aside) = (dir.path().join(FILE), dir.path().join(DAMAGED));
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let found = Lessons::open(dir.path());
            if found.kept().closed.is_some() {
                // Another format's number: nothing is touched.
                assert_eq!(fs::read(&path).unwrap(), bad, "byte {at}");
                assert!(found.edit(&LessonId("lesson-0".into()), Edit::default(), 0).is_err());
                continue;
            }
            assert!(found.damage.is_some(), "byte {at}");
            assert!(answers(&found).len() >= 1, "byte {at}: {:?}", found.book());
            assert_eq!(fs::read(&aside).unwrap(), bad, "byte {at}");
            assert_eq!(Lessons::open(dir.path()).damage, None, "byte {at}: it is whole again");
        }
        for at in 0..good.len() {
            fs::write(&path, &good[..at]).unwrap();
            let found = Lessons::open(dir.path());
            assert!(found.damage.is_some() || found.kept().closed.is_some() || at + 1 == good.len(), "cut at {at}");
        }
        fs::write(&path, &good).unwrap();
        fs::write(&aside, &good).unwrap();
        Lessons::open(dir.path()).forget_one(&LessonId("lesson-1".into())).unwrap();
        assert!(!aside.exists(), "it held what is forgotten");
    }

    #[test]
    fn what_cannot_be_written_is_not_in_use() {
        let lessons = Lessons::default();
        let error = lessons.teach(draft("Why?"), LessonId("lesson-0".into()), 0, 0).unwrap_err();
        assert!(error.to_string().starts_with("lessons are not kept"), "{error}");
        assert_eq!(answers(&lessons), [""; 0]);
    }
}
