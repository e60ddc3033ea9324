//! Named sessions as the server asks for them.

use serde::{Deserialize, Serialize};

use crate::turn::TurnId;

/// A conversation under a name: the turn that it has come to. What was said is that turn's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub principal: String,
    pub name: String,
    pub turn: TurnId,
    /// Unix milliseconds.
    pub created_ms: i64,
    pub updated_ms: i64,
}

/// Where a session is to stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAt {
    /// At a turn of one's own.
    Turn(TurnId),
    /// Where another of one's sessions stands.
    Session(String),
}

/// Longest name of a session, bytes.
pub const SESSION_NAME_BYTES_MAX: usize = 64;

/// What a session may be called: it is a part of an address.
pub const SESSION_NAMES: &str = "1 to 64 letters, digits, `.`, `_` and `-`, not dots alone";

pub fn is_session_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=SESSION_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(good) && !name.chars().all(|c| c == '.')
}
