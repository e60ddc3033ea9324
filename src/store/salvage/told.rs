//! What a salvage says of itself: what was wrong, what is kept, what is lost.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::DAMAGED_MAX;
use crate::plural::counted;

/// What came of a damaged log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Salvage {
    /// What was found to be wrong.
    pub damage: String,
    /// Kept, with their feedback and judgements.
    pub turns: u64,
    pub feedback: u64,
    pub judgements: u64,
    pub sessions: u64,
    /// Turns that the log had, as far as it still says, and that are not kept.
    pub turns_lost: u64,
    /// Ids of such turns, where something else still names them; at most 100.
    pub lost: Vec<String>,
    /// Nothing could be read of it.
    pub set_aside: bool,
    /// The folder in which the damaged files lie, until something is forgotten.
    #[serde(default)]
    pub damaged: PathBuf,
    /// Folders of earlier damaged logs that made room for it.
    #[serde(default)]
    pub removed: Vec<PathBuf>,
}

impl Salvage {
    /// For people, in one line.
    pub fn told(&self) -> String {
        let kept = format!(
            "{}, {}, {} and {} are kept",
            counted(self.turns, "turn", "turns"),
            counted(self.feedback, "vote or correction", "votes and corrections"),
            counted(self.judgements, "judgement", "judgements"),
            counted(self.sessions, "session", "sessions")
        );
        let lost = match (self.set_aside, self.turns_lost) {
            (true, _) => "nothing could be read of it, and a new log was begun".to_owned(),
            (false, 0) => "no turn that it names is missing".to_owned(),
            (false, lost) => counted(lost, "turn is lost", "turns are lost"),
        };
        let folders =
            |folders: &[PathBuf]| folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ");
        let lies = match self.damaged.as_os_str().is_empty() {
            true => String::new(),
            false => format!("; the damaged files lie in {}", folders(std::slice::from_ref(&self.damaged))),
        };
        let removed = match self.removed.as_slice() {
            [] => String::new(),
            removed => format!("; at most {DAMAGED_MAX} such folders are kept, and {} was removed", folders(removed)),
        };
        format!("the turn log was damaged ({}): {kept}, {lost}{lies}{removed}", self.damage)
    }
}
