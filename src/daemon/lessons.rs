//! Lessons as the server asks for them, and what a correction teaches. A principal has its own and sees shared ones;
//! another's private lesson is not there, as far as it may know.

use std::sync::Arc;
use std::time::Duration;

use actix::Message as Asked;

use super::Daemon;
use super::face::link;
use crate::actors::memory::{EditLesson, ForgetLesson, Memory, Teach};
use crate::lessons::{self, Draft, Edit, Known, Lesson, LessonError, LessonId, Sharing, State};
use crate::service::{FeedbackKept, LessonCommand, Principal, Scope, ServiceError};
use crate::store::new_turn_id;
use crate::turn::Turn;

/// A file of a few megabytes is written.
const TIMEOUT: Duration = Duration::from_secs(15);

async fn ask<M, T>(daemon: &Daemon, message: M) -> Result<T, ServiceError>
where
    M: Asked<Result = Result<T, LessonError>> + Send + 'static,
    T: Send + 'static,
    Memory: actix::Handler<M>,
{
    daemon.cast.memory.send_within(message, TIMEOUT).await.map_err(|error| link(&error))?.map_err(told)
}

pub(super) fn told(error: LessonError) -> ServiceError {
    let message = error.to_string();
    match error {
        LessonError::Invalid { param, .. } => ServiceError::Invalid { message, param: Some(param.to_owned()) },
        LessonError::Unknown(_) | LessonError::TurnGone => ServiceError::NotFound(message),
        LessonError::Full(_) | LessonError::Changed => ServiceError::Conflict(message),
        LessonError::Disk(_) | LessonError::Log(_) => ServiceError::Unavailable { message, retry_after_s: 10 },
        LessonError::Closed(_) => ServiceError::Internal(message),
    }
}

fn new_id(now_ms: i64) -> LessonId {
    LessonId(new_turn_id(now_ms).0.replacen("turn-", "lesson-", 1))
}

async fn teach(daemon: &Daemon, draft: Draft) -> Result<Arc<Lesson>, ServiceError> {
    let now_ms = daemon.clock.now_ms();
    ask(daemon, Teach { draft, id: new_id(now_ms), now_ms }).await
}

/// What a correction that was recorded teaches. Whatever keeps it from that, the correction is kept.
pub(super) async fn of_correction(
    daemon: &Daemon,
    turn: &Turn,
    principal: &Principal,
    correction: &str,
) -> FeedbackKept {
    let draft = match lessons::of_correction(turn, principal, correction) {
        Ok(draft) => draft,
        Err(why) => return FeedbackKept { no_lesson: Some(why), ..FeedbackKept::default() },
    };
    match teach(daemon, draft).await {
        Ok(lesson) => {
            let by = State::Retired { by: lesson.id.clone() };
            let book = daemon.replies.lessons.book();
            let retired = book.lessons().iter().filter(|other| other.state == by).map(|other| other.id.clone());
            FeedbackKept { lesson: Some(lesson.id.clone()), retired: retired.collect(), no_lesson: None }
        }
        Err(error) => FeedbackKept { no_lesson: Some(error.to_string()), ..FeedbackKept::default() },
    }
}

pub(super) async fn command(
    daemon: &Daemon,
    principal: Principal,
    command: LessonCommand,
) -> Result<Vec<Arc<Lesson>>, ServiceError> {
    match command {
        LessonCommand::List { principal: of, after, limit } => {
            let book = daemon.replies.lessons.book();
            let behind = |lesson: &&Arc<Lesson>| after.as_ref().is_none_or(|after| lesson.id > *after);
            let wanted = |lesson: &&Arc<Lesson>| of.as_ref().is_none_or(|of| *of == lesson.principal);
            let seen = book.lessons().iter().filter(|lesson| sees(&principal, lesson)).filter(wanted).filter(behind);
            Ok(seen.take(limit).cloned().collect())
        }
        LessonCommand::Show(id) => Ok(vec![find(daemon, &id, |lesson| sees(&principal, lesson))?]),
        LessonCommand::Add { questions, answer, sharing } => {
            let by_owner = principal.may(Scope::Admin);
            if sharing == Some(Sharing::Shared) && !by_owner {
                return Err(not_the_owner());
            }
            let draft = Draft {
                principal: principal.name,
                questions,
                answer,
                known: Known::Added,
                sources: Vec::new(),
                by_owner,
                sharing,
                shown: Vec::new(),
            };
            Ok(vec![teach(daemon, draft).await?])
        }
        LessonCommand::Edit(id, edit) => {
            find(daemon, &id, |lesson| has(&principal, lesson))?;
            let by_owner = principal.may(Scope::Admin);
            if edit.sharing == Some(Sharing::Shared) && !by_owner {
                return Err(not_the_owner());
            }
            let edited = EditLesson { id, edit: Edit { by_owner, ..edit }, now_ms: daemon.clock.now_ms() };
            Ok(vec![ask(daemon, edited).await?])
        }
        LessonCommand::Forget(id) => {
            let found = find(daemon, &id, |lesson| has(&principal, lesson));
            let Some(daemon) = daemon.own.upgrade() else { return Err(ServiceError::Internal("it ends".to_owned())) };
            // What began is done to its end, also when the client has left.
            let forgetting = tokio::spawn(async move { forget(&daemon, id, found).await });
            let forgotten = forgetting.await.map_err(|error| ServiceError::Internal(error.to_string()))?;
            forgotten.map(|lesson| vec![lesson])
        }
    }
}

async fn forget(
    daemon: &Daemon,
    id: LessonId,
    found: Result<Arc<Lesson>, ServiceError>,
) -> Result<Arc<Lesson>, ServiceError> {
    let book = daemon.replies.lessons.book();
    let lesson = match found {
        Ok(lesson) => lesson,
        Err(none) => {
            // It may be out of use and on the disk still: then it goes now, and an error says so where it does not.
            if book.get(&id).is_none() {
                ask(daemon, ForgetLesson(id)).await?;
            }
            return Err(none);
        }
    };
    ask(daemon, ForgetLesson(id)).await?;
    // Prompts that showed it are kept for those who were shown it.
    let of_one = (lesson.sharing == Sharing::Private).then(|| lesson.principal.clone());
    if let Err(error) = daemon.forget_prefixes(of_one).await {
        tracing::error!(%error, "a lesson is forgotten, and kept prompts that showed it are not");
    }
    Ok(lesson)
}

fn has(principal: &Principal, lesson: &Lesson) -> bool {
    lesson.principal == principal.name || principal.may(Scope::Admin)
}

fn sees(principal: &Principal, lesson: &Lesson) -> bool {
    has(principal, lesson) || lesson.shown_to(&principal.name)
}

fn unknown(id: &LessonId) -> ServiceError {
    told(LessonError::Unknown(id.0.chars().take(80).collect()))
}

fn find(daemon: &Daemon, id: &LessonId, may: impl Fn(&Lesson) -> bool) -> Result<Arc<Lesson>, ServiceError> {
    let book = daemon.replies.lessons.book();
    book.get(id).filter(|lesson| may(lesson)).cloned().ok_or_else(|| unknown(id))
}

fn not_the_owner() -> ServiceError {
    let message = "only the owner shares a lesson: ask whoever holds the scope `admin`";
    ServiceError::Invalid { message: message.to_owned(), param: Some("sharing".to_owned()) }
}
