//! Lessons: Memory alone changes them. They have a file of their own, so that they are there while the turn log is not. Only
//! the lesson of a turn needs the log: a turn that is forgotten teaches nothing.

use std::sync::Arc;

use actix::prelude::*;
use tokio::task::spawn_blocking;

use super::{Memory, MemoryError, blocking};
use crate::lessons::{Draft, Edit, Lesson, LessonError, LessonId, Lessons};
use crate::service::TurnFilter;

/// Keeps a lesson; answered when it is on the disk.
#[derive(Message)]
#[rtype(result = "Result<Arc<Lesson>, LessonError>")]
pub struct Teach {
    pub draft: Draft,
    pub id: LessonId,
    pub now_ms: i64,
}

/// Changes a lesson; answered with what it was and is, when that is on the disk.
#[derive(Message)]
#[rtype(result = "Result<[Arc<Lesson>; 2], LessonError>")]
pub struct EditLesson {
    pub id: LessonId,
    pub edit: Edit,
    pub now_ms: i64,
}

/// Forgets a lesson, as it was. `None`: there was none.
#[derive(Message)]
#[rtype(result = "Result<Option<Arc<Lesson>>, LessonError>")]
pub struct ForgetLesson(pub LessonId);

/// Forgets the lessons of turns that pass; how many.
#[derive(Message)]
#[rtype(result = "Result<usize, LessonError>")]
pub struct ForgetLessons(pub TurnFilter);

type Answer<T> = ResponseFuture<Result<T, LessonError>>;

impl Memory {
    /// Runs `work` away from this thread. One change follows the other, and those that wait hold no thread.
    fn on_lessons<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Lessons) -> Result<T, LessonError> + Send + 'static,
    ) -> Answer<T> {
        let (lessons, changes) = (self.lessons.clone(), self.changes.clone());
        Box::pin(async move {
            let turn = changes.acquire_owned().await.map_err(lost)?;
            let working = move || {
                let done = work(&lessons);
                drop(turn);
                done
            };
            spawn_blocking(working).await.map_err(lost)?
        })
    }
}

fn lost(error: impl ToString) -> LessonError {
    LessonError::Disk(error.to_string())
}

/// The log failed, not the file.
fn of_log(error: impl Into<MemoryError>) -> LessonError {
    LessonError::Log(error.into().to_string())
}

impl Handler<Teach> for Memory {
    type Result = Answer<Arc<Lesson>>;

    fn handle(&mut self, Teach { draft, id, now_ms }: Teach, _: &mut Self::Context) -> Self::Result {
        let (lessons, log, changes) = (self.lessons.clone(), self.log.clone(), self.changes.clone());
        Box::pin(async move {
            let _turn = changes.acquire_owned().await.map_err(lost)?;
            let mut log = match draft.sources.is_empty() {
                true => None,
                false => Some(log.map_err(MemoryError::Stopped).map_err(of_log)?),
            };
            loop {
                let forgotten = lessons.forgotten();
                for source in &draft.sources {
                    let Some(held) = log.take() else { break };
                    let turn = source.turn.clone();
                    let (held, found) = blocking(held, move |log| log.get(&turn)).await.map_err(of_log)?;
                    log = Some(held);
                    found.ok_or(LessonError::TurnGone)?;
                }
                let (to, draft, id) = (lessons.clone(), draft.clone(), id.clone());
                let taught = spawn_blocking(move || to.teach(draft, id, now_ms, forgotten)).await.map_err(lost)??;
                if let Some(lesson) = taught {
                    return Ok(lesson);
                }
            }
        })
    }
}

impl Handler<EditLesson> for Memory {
    type Result = Answer<[Arc<Lesson>; 2]>;

    fn handle(&mut self, EditLesson { id, edit, now_ms }: EditLesson, _: &mut Self::Context) -> Self::Result {
        self.on_lessons(move |lessons| lessons.edit(&id, edit, now_ms))
    }
}

impl Handler<ForgetLesson> for Memory {
    type Result = Answer<Option<Arc<Lesson>>>;

    fn handle(&mut self, ForgetLesson(id): ForgetLesson, _: &mut Self::Context) -> Self::Result {
        self.on_lessons(move |lessons| lessons.forget_one(&id))
    }
}

impl Handler<ForgetLessons> for Memory {
    type Result = Answer<usize>;

    fn handle(&mut self, ForgetLessons(filter): ForgetLessons, _: &mut Self::Context) -> Self::Result {
        self.on_lessons(move |lessons| lessons.forget(&filter))
    }
}
