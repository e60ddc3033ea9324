//! How a record of the turn log is written: a format byte, 8 bytes of the SHA-256 of the rest, JSON. A turn that goes on
//! with an earlier one is written without what that one has, and names it ([`Base`]).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{StoreError, TURNS_FORMAT};
use crate::turn::{Turn, TurnId};

pub(super) const HEAD_BYTES: usize = 9;
/// The oldest format that is read. In format 1 every turn was written whole.
const FORMAT_MIN: u8 = 1;

const BASE_BEGINS: &[u8] = b",\"base\":{\"turn\":";

/// What a turn goes on with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Base {
    pub(super) turn: TurnId,
    /// Which of that turn's answers is behind its conversation.
    pub(super) choice: usize,
    /// What stands in the place of that answer, where it was corrected before this turn went on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) right: Option<String>,
    /// So many of the messages that it shares, from the first on, stand there without their thoughts.
    pub(super) bare: usize,
    /// What is in front of the conversation, the system's text and the examples, is that turn's.
    pub(super) head: bool,
    /// So many tokens at the prompt's beginning are those of that turn's prompt.
    pub(super) prompt_tokens: usize,
}

/// A turn as it lies in the log, and what it goes on with.
pub(super) fn pack_turn(turn: &Turn, base: Option<&Base>) -> Result<Vec<u8>, StoreError> {
    #[derive(Serialize)]
    struct Record<'a> {
        #[serde(flatten)]
        turn: &'a Turn,
        base: &'a Base,
    }
    base.map_or_else(|| pack(turn), |base| pack(&Record { turn, base }))
}

pub(super) fn unpack_turn(id: &[u8], record: &[u8]) -> Result<(Turn, Option<Base>), StoreError> {
    #[derive(Deserialize)]
    struct Named {
        #[serde(default)]
        base: Option<Base>,
    }
    let damaged = damaged(id);
    let body = body_of(record).map_err(&damaged)?;
    let turn = serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))?;
    // It is written last; no text holds these bytes, since its quotes are escaped.
    if !body.windows(BASE_BEGINS.len()).rev().any(|window| window == BASE_BEGINS) {
        return Ok((turn, None));
    }
    let named: Named = serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))?;
    Ok((turn, named.base))
}

pub(super) fn pack<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    let mut record = vec![TURNS_FORMAT; HEAD_BYTES];
    serde_json::to_writer(&mut record, value).map_err(|error| StoreError::Disk(error.to_string()))?;
    let sum = Sha256::digest(&record[HEAD_BYTES..]);
    record[1..HEAD_BYTES].copy_from_slice(&sum[..HEAD_BYTES - 1]);
    Ok(record)
}

pub(super) fn unpack<T: DeserializeOwned>(id: &[u8], record: &[u8]) -> Result<T, StoreError> {
    let damaged = damaged(id);
    let body = body_of(record).map_err(&damaged)?;
    serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))
}

fn damaged(id: &[u8]) -> impl Fn(String) -> StoreError {
    |why| StoreError::Damaged { id: String::from_utf8_lossy(id).into_owned(), why }
}

/// What a record says, where its checksum holds.
pub(super) fn body_of(record: &[u8]) -> Result<&[u8], String> {
    let (head, body) = record.split_at_checked(HEAD_BYTES).ok_or("the record is cut short")?;
    if !is_format(head[0]) {
        return Err(format!("the record has format {}", head[0]));
    }
    if Sha256::digest(body)[..HEAD_BYTES - 1] != head[1..] {
        return Err("the checksum is wrong".to_owned());
    }
    Ok(body)
}

pub(super) fn is_format(byte: u8) -> bool {
    (FORMAT_MIN..=TURNS_FORMAT).contains(&byte)
}
