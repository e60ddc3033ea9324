//! Lessons: what people taught, each with its question, its answer and where it comes from. No actor, no clock.
//!
//! - [`Book`]: the lessons of the moment, and every change that makes another book of it.
//! - [`Lessons`]: the book in use and its file. The Memory actor alone changes it; readers take a snapshot.
//! - [`taught`]: the lesson that a correction makes, or why it makes none.
//! - [`recall`]: which of them bear on a question; [`note`]: how the model is shown them.
//! - [`words`]: texts as lists of words, to tell whether two questions are the same.
//! - [`reading`]: what a question asks for and about whom, by the words of [`classes`]; [`likeness`]: whether two ask the same.

mod belongings;
mod book;
mod classes;
mod clauses;
mod file;
mod kept;
mod likeness;
pub(crate) mod note;
mod reading;
mod recall;
mod taught;
mod words;

use serde::{Deserialize, Serialize};

use crate::service::TurnFilter;
use crate::turn::TurnId;

pub use book::Book;
pub use file::{DAMAGED, FILE};
pub use kept::Lessons;
pub use recall::{Index, Recalled};
pub use taught::of_correction;

/// Lessons of one principal, retired ones among them.
pub const PER_PRINCIPAL_MAX: usize = 2_000;
/// All lessons together, and their bytes as written.
pub const LESSONS_MAX: usize = 10_000;
pub const BYTES_MAX: usize = 8 << 20;
/// Bytes of one principal's lessons, and what of all room is kept for the owner.
pub const PRINCIPAL_BYTES_MAX: usize = BYTES_MAX / 8;
pub const OWNERS_SHARE: usize = 4;
/// Wordings of one lesson's question.
pub const QUESTIONS_MAX: usize = 16;
/// Longest question and longest answer, characters.
pub const QUESTION_CHARS_MAX: usize = 1_000;
pub const ANSWER_CHARS_MAX: usize = 2_000;

/// Identifier of a lesson: time-ordered, shown to clients as `lesson-…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LessonId(pub String);

/// How a lesson is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// A reply was corrected.
    Correction,
    /// Somebody wrote it.
    Added,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// It is shown to the model.
    New,
    /// A newer lesson on the same question took its place: it is shown no more.
    Retired { by: LessonId },
}

/// Whom a lesson is shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Its own principal alone.
    Private,
    /// Everybody, by the owner's choice.
    Shared,
}

/// A turn that a lesson comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub turn: TurnId,
    pub conversation: String,
    pub time_ms: i64,
    /// Training may learn from it.
    pub consent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lesson {
    pub id: LessonId,
    pub principal: String,
    /// At least one.
    pub questions: Vec<String>,
    pub answer: String,
    pub known: Known,
    /// Empty where it was written by hand.
    pub sources: Vec<Source>,
    pub state: State,
    pub sharing: Sharing,
    /// Unix milliseconds: when it was made, and when its words were last changed.
    pub created_ms: i64,
    pub updated_ms: i64,
}

impl Lesson {
    /// May replies to this principal be shown it?
    pub fn shown_to(&self, principal: &str) -> bool {
        self.state == State::New && (self.principal == principal || self.sharing == Sharing::Shared)
    }

    /// Are both for the same people, so that the newer one on a question takes the place of the other?
    fn beside(&self, other: &Lesson) -> bool {
        let shared = self.sharing == Sharing::Shared && other.sharing == Sharing::Shared;
        self.principal == other.principal || shared
    }

    /// Does forgetting by this filter forget it? A lesson without a turn goes with its principal and by its time.
    pub(crate) fn passes(&self, filter: &TurnFilter) -> bool {
        let of_turn = |source: &Source| {
            filter.turn.as_ref().is_none_or(|id| *id == source.turn)
                && filter.conversation.as_ref().is_none_or(|c| *c == source.conversation)
                && filter.since_ms.is_none_or(|since| source.time_ms >= since)
                && filter.after.as_ref().is_none_or(|after| source.turn > *after)
        };
        let by_time = filter.turn.is_none()
            && filter.conversation.is_none()
            && filter.after.is_none()
            && filter.since_ms.is_none_or(|since| self.updated_ms >= since);
        filter.principal.as_ref().is_none_or(|p| *p == self.principal) && (by_time || self.sources.iter().any(of_turn))
    }
}

/// A lesson that is to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub principal: String,
    pub questions: Vec<String>,
    pub answer: String,
    pub known: Known,
    pub sources: Vec<Source>,
    /// Its principal is the owner, who may share.
    pub by_owner: bool,
    /// Absent: private. A lesson is never shared because the one before it was.
    pub sharing: Option<Sharing>,
    /// Lessons that the corrected reply was shown. Those on nearly the same question are wrong too.
    pub shown: Vec<LessonId>,
}

/// What is changed of a lesson.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    pub questions: Option<Vec<String>>,
    pub answer: Option<String>,
    pub sharing: Option<Sharing>,
    /// The lesson as whoever changes it saw it: if its words are others since, nothing is changed.
    pub seen_ms: Option<i64>,
    /// The owner changes it: other words of a shared lesson stay shared.
    pub by_owner: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LessonError {
    #[error("{message}")]
    Invalid { param: &'static str, message: String },
    #[error("there is no lesson `{0}` here: `chimere lessons list` shows those that there are")]
    Unknown(String),
    #[error("{0}")]
    Full(String),
    #[error(
        "`updated_ms` is {seen}, and the lesson's is {now}: it was changed meanwhile, or the number is wrong. Look at it \
         again, and send its `updated_ms`"
    )]
    Changed { seen: i64, now: i64 },
    #[error("its turn was forgotten")]
    TurnGone,
    #[error("the file of lessons cannot be written: {0}")]
    Disk(String),
    /// The turn log's own words: a lesson of a turn needs that turn.
    #[error("{0}")]
    Log(String),
    #[error("the file of lessons cannot be used: {0}")]
    Closed(String),
}
