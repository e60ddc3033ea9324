//! Lessons as the server asks for them, and what a correction teaches. A principal has its own and sees shared ones;
//! another's private lesson is not there, as far as it may know.

use std::sync::Arc;
use std::time::Duration;

use actix::Message as Asked;

use super::Daemon;
use super::face::link;
use crate::actors::link::LinkError;
use crate::actors::memory::{EditLesson, ForgetLesson, Memory, Teach};
use crate::lessons::{self, Book, Draft, Edit, Known, Lesson, LessonError, LessonId, Sharing, State};
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
        LessonError::Full(_) | LessonError::Changed { .. } => ServiceError::Conflict(message),
        LessonError::Disk(_) | LessonError::Log(_) => ServiceError::Unavailable { message, retry_after_s: 10 },
        LessonError::Closed(_) => ServiceError::Internal(message),
    }
}

fn new_id(now_ms: i64) -> LessonId {
    LessonId(new_turn_id(now_ms).0.replacen("turn-", "lesson-", 1))
}

fn to_teach(daemon: &Daemon, draft: Draft) -> Teach {
    let now_ms = daemon.clock.now_ms();
    Teach { draft, id: new_id(now_ms), now_ms }
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
    let taught = daemon.cast.memory.send_within(to_teach(daemon, draft), TIMEOUT).await;
    became(taught, &daemon.replies.lessons.book())
}

/// What became of a correction that Memory was given.
fn became(taught: Result<Result<Arc<Lesson>, LessonError>, LinkError>, book: &Book) -> FeedbackKept {
    let none = |why: String| FeedbackKept { no_lesson: Some(why), ..FeedbackKept::default() };
    match taught {
        Ok(Ok(lesson)) => {
            let by = State::Retired { by: lesson.id.clone() };
            let retired = book.lessons().iter().filter(|other| other.state == by).map(|other| other.id.clone());
            FeedbackKept { lesson: Some(lesson.id.clone()), retired: retired.collect(), ..FeedbackKept::default() }
        }
        Ok(Err(error)) => none(error.to_string()),
        Err(error @ LinkError::Down { .. }) => none(error.to_string()),
        // It may be kept yet.
        Err(LinkError::Late { .. } | LinkError::Died { .. }) => {
            FeedbackKept { unknown: true, ..FeedbackKept::default() }
        }
    }
}

/// What began is done to its end, also when the client has left.
pub(super) async fn to_the_end<T, F>(daemon: &Daemon, work: impl FnOnce(Arc<Daemon>) -> F) -> Result<T, ServiceError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ServiceError>> + Send + 'static,
{
    let Some(daemon) = daemon.own.upgrade() else { return Err(ServiceError::Internal("it ends".to_owned())) };
    let working = tokio::spawn(work(daemon));
    working.await.unwrap_or_else(|error| Err(ServiceError::Internal(error.to_string())))
}

pub(super) async fn command(
    daemon: &Daemon,
    principal: Principal,
    command: LessonCommand,
) -> Result<Vec<Arc<Lesson>>, ServiceError> {
    // None would be told of those that there are.
    daemon.replies.lessons.in_use().map_err(told)?;
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
            Ok(vec![ask(daemon, to_teach(daemon, draft)).await?])
        }
        LessonCommand::Edit(id, edit) => {
            find(daemon, &id, |lesson| has(&principal, lesson))?;
            let by_owner = principal.may(Scope::Admin);
            if edit.sharing == Some(Sharing::Shared) && !by_owner {
                return Err(not_the_owner());
            }
            let wanted = EditLesson { id, edit: Edit { by_owner, ..edit }, now_ms: daemon.clock.now_ms() };
            let edited = to_the_end(daemon, |daemon| async move { edited(&daemon, wanted).await });
            Ok(vec![edited.await?])
        }
        LessonCommand::Forget(id) => {
            let found = find(daemon, &id, |lesson| has(&principal, lesson));
            let forgotten = to_the_end(daemon, |daemon| async move { forget(&daemon, id, found).await });
            Ok(vec![forgotten.await?])
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
    // As it was when it went: it may have been shared meanwhile.
    let went = ask(daemon, ForgetLesson(id)).await;
    // One that was not answered in time may go yet.
    let lesson = went.as_ref().ok().cloned().flatten().unwrap_or(lesson);
    forget_shown(daemon, &lesson).await;
    went.map(|_| lesson)
}

/// Forgets the kept prompts that showed a lesson, for everybody who was shown it.
async fn forget_shown(daemon: &Daemon, lesson: &Lesson) {
    let of_one = (lesson.sharing == Sharing::Private).then(|| lesson.principal.clone());
    if let Err(error) = daemon.forget_prefixes(of_one).await {
        tracing::error!(%error, "a lesson went, and kept prompts that showed it did not");
    }
}

async fn edited(daemon: &Daemon, wanted: EditLesson) -> Result<Arc<Lesson>, ServiceError> {
    let shown = daemon.replies.lessons.book().get(&wanted.id).cloned();
    let changed = ask(daemon, wanted).await;
    // One that was not answered in time may come yet.
    if let (Err(ServiceError::Unavailable { .. }), Some(shown)) = (&changed, &shown) {
        forget_shown(daemon, shown).await;
    }
    let [before, lesson] = changed?;
    let for_fewer = before.sharing == Sharing::Shared && lesson.sharing == Sharing::Private;
    if for_fewer || before.questions != lesson.questions || before.answer != lesson.answer {
        forget_shown(daemon, &before).await;
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
    let message = "only the owner shares a lesson: ask somebody whose key has the scope `admin`";
    ServiceError::Invalid { message: message.to_owned(), param: Some("sharing".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lesson_that_may_be_kept_yet_is_not_said_to_be_none() {
        let (actor, waited_ms) = ("memory", 15_000);
        for (error, unknown) in [
            (LinkError::Late { actor, waited_ms }, true),
            (LinkError::Died { actor }, true),
            (LinkError::Down { actor, waited_ms }, false),
        ] {
            let kept = became(Err(error), &Book::default());
            assert_eq!((kept.unknown, kept.no_lesson.is_none(), kept.lesson), (unknown, unknown, None));
        }
    }
}
