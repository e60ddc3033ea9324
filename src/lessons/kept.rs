//! The book in use and its file. A change is in use when it is on the disk, and a forgetting before that.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::recall::{Index, Recalled, SAME_MIN};
use super::{Book, Draft, Edit, FILE, Lesson, LessonError, LessonId, Sharing, State, file};
use crate::config::Live;
use crate::service::TurnFilter;
use crate::turn::Note;

pub struct Lessons {
    book: Live<Book>,
    /// Of the lessons in the book that may be shown.
    index: Live<Index>,
    path: PathBuf,
    /// What was wrong with the file at the start.
    damage: Option<String>,
    /// Why nothing is written: the file belongs to another version, or cannot be read.
    closed: Live<Option<String>>,
    /// How often something was forgotten.
    forgotten: AtomicU64,
    kept: Mutex<Kept>,
}

/// Held while the book is changed.
#[derive(Default)]
struct Kept {
    /// The file may hold another book than the one in use: a write of it failed.
    dirty: bool,
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
        file::sweep(&path);
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
        let (forgotten, closed) = (AtomicU64::new(0), Live::new(closed));
        Lessons { book: Live::new(book), index, path, damage, closed, forgotten, kept: Mutex::default() }
    }

    /// How many lessons a state folder has; an error says what is damaged and what to do. Nothing is written.
    pub fn look(state_dir: &Path) -> Result<usize, String> {
        file::look(state_dir)
    }

    /// An error: no lesson is in use, for the file cannot be used.
    pub fn in_use(&self) -> Result<(), LessonError> {
        if self.closed.get().is_none() {
            return Ok(());
        }
        let _kept = self.kept();
        self.usable()
    }

    /// What was lost of the file at the start.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
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
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Is the lesson of this note still shown to this principal, with these words?
    pub fn has(&self, note: &Note, principal: &str) -> bool {
        let book = self.book();
        let lesson = book.lessons().iter().find(|lesson| lesson.id.0 == note.lesson);
        lesson.is_some_and(|lesson| {
            lesson.shown_to(principal) && lesson.answer == note.answer && lesson.questions.contains(&note.question)
        })
    }

    /// Keeps a lesson. `None`: something was forgotten since `forgotten` was asked, perhaps its turn.
    pub fn teach(
        &self,
        draft: Draft,
        id: LessonId,
        now_ms: i64,
        forgotten: u64,
    ) -> Result<Option<Arc<Lesson>>, LessonError> {
        let mut kept = self.kept();
        if self.forgotten() != forgotten {
            return Ok(None);
        }
        self.usable()?;
        let mut draft = draft;
        // What the reply was shown for nearly this question is wrong.
        if let Some(question) = draft.questions.first() {
            let near = self.recall(question, &draft.principal);
            let near: Vec<&LessonId> = near.iter().filter(|f| f.score >= SAME_MIN).map(|f| &f.lesson.id).collect();
            draft.shown.retain(|id| near.contains(&id));
        }
        self.put(&mut kept, self.book().with(draft, id, now_ms)?).map(Some)
    }

    /// Changes a lesson; as it was and as it is.
    pub fn edit(&self, id: &LessonId, edit: Edit, now_ms: i64) -> Result<[Arc<Lesson>; 2], LessonError> {
        let mut kept = self.kept();
        self.usable()?;
        let book = self.book();
        let before = book.get(id).ok_or_else(|| LessonError::Unknown(id.0.clone()))?.clone();
        Ok([before, self.put(&mut kept, book.changed(id, edit, now_ms)?)?])
    }

    /// A file that could not be used is looked at again: it may have been moved away, or the disk may be well.
    fn usable(&self) -> Result<(), LessonError> {
        if self.closed.get().is_none() {
            return Ok(());
        }
        match file::read(&self.path) {
            Ok(file::Read { book, damage: None }) => {
                self.set(book);
                self.closed.set(None);
                Ok(())
            }
            Ok(file::Read { damage: Some(why), .. }) | Err(why) => Err(LessonError::Closed(why)),
        }
    }

    fn write(&self, kept: &mut Kept, book: &Book) -> Result<(), LessonError> {
        kept.dirty = true;
        file::write(&self.path, book).map_err(disk)?;
        kept.dirty = false;
        Ok(())
    }

    fn put(&self, kept: &mut Kept, (book, lesson): (Book, Arc<Lesson>)) -> Result<Arc<Lesson>, LessonError> {
        self.write(kept, &book)?;
        self.set(book);
        Ok(lesson)
    }

    /// Forgets what came of turns that pass, and lessons by hand of the filter's principal and time; how many.
    pub fn forget(&self, filter: &TurnFilter) -> Result<usize, LessonError> {
        // Of a whole principal, or of a time, any damaged line may be.
        let in_copy = |copy: &str| match (&filter.turn, &filter.conversation) {
            (Some(turn), _) => file::names(copy, "turn", &turn.0),
            (None, Some(conversation)) => file::names(copy, "conversation", conversation),
            (None, None) => true,
        };
        self.take_out(|book| book.without_turns(filter), in_copy).map(|gone| gone.len())
    }

    /// Forgets one lesson, as it was. `None`: there is none of that id, neither in use nor on the disk.
    pub fn forget_one(&self, id: &LessonId) -> Result<Option<Arc<Lesson>>, LessonError> {
        let in_copy = |copy: &str| file::names(copy, "id", &id.0);
        self.take_out(|book| book.without(|lesson| lesson.id == *id), in_copy).map(|mut gone| gone.pop())
    }

    /// `in_copy`: does the copy of a damaged file hold what goes?
    fn take_out(
        &self,
        left: impl Fn(&Book) -> Option<Book>,
        in_copy: impl Fn(&str) -> bool,
    ) -> Result<Vec<Arc<Lesson>>, LessonError> {
        let mut kept = self.kept();
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        file::discard(&self.path, in_copy).map_err(disk)?;
        self.usable()?;
        let before = self.book();
        let left = left(&before);
        match &left {
            Some(_) => file::discard(&self.path, |_| true).map_err(disk)?,
            None if kept.dirty => {}
            None => return Ok(Vec::new()),
        }
        let left = left.unwrap_or_else(|| Book::clone(&before));
        let gone = before.lessons().iter().filter(|lesson| left.get(&lesson.id).is_none()).cloned().collect();
        // Out of use even if the file cannot be written, which is said, and tried again by the next forgetting.
        self.set(left);
        self.write(&mut kept, &self.book())?;
        Ok(gone)
    }

    pub fn status(&self) -> Value {
        let book = self.book();
        let count = |wanted: fn(&Lesson) -> bool| book.lessons().iter().filter(|lesson| wanted(lesson)).count();
        let closed = self.closed.get();
        let message = (*closed).as_ref().or(self.damage.as_ref());
        json!({
            "lessons": count(|lesson| lesson.state == State::New),
            "retired": count(|lesson| lesson.state != State::New),
            "shared": count(|lesson| lesson.state == State::New && lesson.sharing == Sharing::Shared),
            "bytes": book.bytes(),
            "message": message,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{DAMAGED, Known};
    use super::*;
    use crate::turn::TurnId;

    fn draft(question: &str) -> Draft {
        Draft {
            principal: "ada".into(),
            questions: vec![question.into()],
            answer: format!("Of {question}"),
            known: Known::Added,
            sources: Vec::new(),
            by_owner: false,
            sharing: None,
            shown: Vec::new(),
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
        assert!(lessons.forget_one(&LessonId("lesson-1".into())).unwrap().is_some());
        assert!(lessons.forget_one(&LessonId("lesson-1".into())).unwrap().is_none());
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
        // Each byte would take thousands of writes to the disk.
        for at in (0..good.len()).step_by(17) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let found = Lessons::open(dir.path());
            if found.closed.get().is_some() {
                // Another format's number: nothing is touched.
                assert_eq!(fs::read(&path).unwrap(), bad, "byte {at}");
                assert!(found.edit(&LessonId("lesson-0".into()), Edit::default(), 0).is_err());
                continue;
            }
            assert!(found.damage.is_some(), "byte {at}");
            assert!(!answers(&found).is_empty(), "byte {at}: {:?}", found.book());
            assert_eq!(fs::read(&aside).unwrap(), bad, "byte {at}");
            assert_eq!(Lessons::open(dir.path()).damage, None, "byte {at}: it is whole again");
        }
        for at in (0..good.len()).step_by(23) {
            fs::write(&path, &good[..at]).unwrap();
            let found = Lessons::open(dir.path());
            assert!(found.damage.is_some() || found.closed.get().is_some() || at + 1 == good.len(), "cut at {at}");
        }
        // The copy goes when it holds what is forgotten, and not for a name that nothing has.
        let of = |turn: &str| TurnFilter { turn: Some(TurnId(turn.into())), ..TurnFilter::default() };
        fs::write(&path, &good).unwrap();
        fs::write(&aside, &good).unwrap();
        let lessons = Lessons::open(dir.path());
        for made_up in ["lesson-7", "private", "Question 1?", ""] {
            assert_eq!(lessons.forget_one(&LessonId(made_up.into())), Ok(None));
            assert_eq!(lessons.forget(&of(made_up)), Ok(0));
            assert!(aside.exists(), "{made_up}");
        }
        lessons.forget_one(&LessonId("lesson-1".into())).unwrap();
        assert!(!aside.exists(), "it held what is forgotten");
        // Also where the lesson is in the copy alone.
        fs::write(&aside, &good).unwrap();
        assert_eq!(lessons.forget_one(&LessonId("lesson-1".into())), Ok(None));
        assert!(!aside.exists());
        fs::write(&aside, &good).unwrap();
        lessons.forget(&TurnFilter { principal: Some("nobody".into()), ..TurnFilter::default() }).unwrap();
        assert!(!aside.exists(), "a damaged line may have been anybody's");
    }

    #[test]
    fn what_cannot_be_written_is_not_in_use() {
        let lessons = Lessons::default();
        let error = lessons.teach(draft("Why?"), LessonId("lesson-0".into()), 0, 0).unwrap_err();
        assert!(error.to_string().contains("cannot be written"), "{error}");
        assert_eq!(answers(&lessons), [""; 0]);
    }

    /// A folder stands where the file is to be written.
    #[test]
    fn what_could_not_be_written_when_it_was_forgotten_is_written_by_the_next_forgetting() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join(FILE), dir.path().join("moved"));
        let lessons = Lessons::open(dir.path());
        (0..2).for_each(|n| drop(teach(&lessons, n)));
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        let id = LessonId("lesson-0".into());
        assert!(lessons.forget_one(&id).is_err());
        assert!(lessons.forget_one(&id).is_err(), "it is said until it is true");
        fs::remove_dir(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
        assert!(lessons.forget_one(&id).unwrap().is_none());
        assert_eq!(answers(&Lessons::open(dir.path())), ["Of Question 1?"]);
    }

    #[test]
    fn lines_of_a_newer_version_are_no_damage_and_leftovers_of_a_kill_go() {
        let dir = tempfile::tempdir().unwrap();
        let (path, left) = (dir.path().join(FILE), dir.path().join(".lessons.txt.7-0"));
        drop(teach(&Lessons::open(dir.path()), 0));
        let good = fs::read_to_string(&path).unwrap();
        let json = good.lines().nth(1).unwrap().split_once(' ').unwrap().1.replace("\"added\"", "\"dreamt\"");
        let newer = format!("{}\n{:08x} {json}\n", good.lines().next().unwrap(), crc32fast::hash(json.as_bytes()));
        fs::write(&path, &newer).unwrap();
        fs::write(&left, "words").unwrap();
        let lessons = Lessons::open(dir.path());
        assert!(!left.exists());
        let draft = draft("Why?");
        let error = lessons.teach(draft.clone(), LessonId("lesson-5".into()), 5, 0).unwrap_err();
        assert!(error.to_string().contains("another version"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
        // Moved away, lessons are kept again.
        fs::remove_file(&path).unwrap();
        assert!(lessons.teach(draft, LessonId("lesson-5".into()), 5, 0).unwrap().is_some());
    }

    #[test]
    fn a_correction_of_what_a_lesson_said_retires_that_lesson() {
        let dir = tempfile::tempdir().unwrap();
        let lessons = Lessons::open(dir.path());
        let say = |question: &str, n: usize, shown: &[&str]| {
            let shown = shown.iter().map(|id| LessonId((*id).to_owned())).collect();
            let draft = Draft { shown, ..draft(question) };
            drop(lessons.teach(draft, LessonId(format!("lesson-{n}")), 0, 0).unwrap());
        };
        say("Which number opens the door of the shed?", 0, &[]);
        say("What is the colour of the door of the shed?", 1, &[]);
        say("What's the number of the shed door?", 2, &["lesson-0", "lesson-1"]);
        let live = lessons.book().lessons().iter().map(|l| l.state == State::New).collect::<Vec<_>>();
        assert_eq!(live, [false, true, true]);
    }
}
