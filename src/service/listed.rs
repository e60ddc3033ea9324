//! Kept turns as they leave the daemon.

use crate::turn::{Turn, TurnId};
use crate::whole;

/// A kept turn as JSON, written where it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnText {
    pub id: TurnId,
    /// Whole numbers of any length in the arguments of calls are written as such.
    pub json: String,
}

impl TurnText {
    pub fn of(turn: &Turn) -> serde_json::Result<TurnText> {
        let json = serde_json::to_string(turn)?;
        Ok(TurnText { id: turn.id.clone(), json: whole::unmarked(&json).into_owned() })
    }
}

/// A listing, or as much of it as was found in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed {
    pub turns: Vec<TurnText>,
    /// The last turn that was looked at, where its time was up before its end: a further listing goes on behind it.
    pub next: Option<TurnId>,
}
