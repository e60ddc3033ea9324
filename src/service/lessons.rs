//! What people say of replies, and the lessons that come of it.

use serde::{Deserialize, Serialize};

use crate::lessons::{Edit, LessonId, Sharing};
use crate::turn::{TurnId, Vote};

/// Longest correction, characters.
pub const CORRECTION_CHARS_MAX: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedbackRequest {
    pub turn: TurnId,
    #[serde(default)]
    pub vote: Option<Vote>,
    #[serde(default)]
    pub correction: Option<String>,
}

/// A command for lessons. A key has its own, and sees shared ones; the admin scope reaches everybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LessonCommand {
    /// In the order of time, behind a lesson, at most so many.
    List {
        principal: Option<String>,
        after: Option<LessonId>,
        limit: usize,
    },
    Show(LessonId),
    Add {
        questions: Vec<String>,
        answer: String,
        sharing: Option<Sharing>,
    },
    Edit(LessonId, Edit),
    Forget(LessonId),
}

/// Why a reply was shown no lesson.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoLessons {
    /// They were not found in time.
    Late,
    /// The context has no room for them beside the prompt.
    Room,
}

/// What came of feedback beside its record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedbackKept {
    /// The lesson that the correction made.
    pub lesson: Option<LessonId>,
    /// Lessons that it took the place of.
    pub retired: Vec<LessonId>,
    /// Why the correction made none.
    pub no_lesson: Option<String>,
    /// Whether it made one is not known: that was not said in time.
    pub unknown: bool,
}
