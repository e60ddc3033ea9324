//! Who was revoked, and when: what a principal said before that moment is never learned again, although it may still
//! stand in the turn log. The file lies beside the tables and is read at every writing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::format::EngramError;
use crate::store::files::{create_private_dir, read_bounded, write_durable};

pub const FILE: &str = "revoked.json";
const FORMAT: u32 = 1;
const BYTES_MAX: u64 = 1 << 20;
/// Principals that may be listed.
const PRINCIPALS_MAX: usize = 10_000;

/// Principals with the Unix millisecond of their last revocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoked {
    format: u32,
    principals: BTreeMap<String, i64>,
}

impl Default for Revoked {
    fn default() -> Self {
        Revoked { format: FORMAT, principals: BTreeMap::new() }
    }
}

impl Revoked {
    /// Reads the list in `folder`; none means nobody.
    pub fn load(folder: &Path) -> Result<Revoked, EngramError> {
        let path = folder.join(FILE);
        let failed = |source| EngramError::Io { path: path.display().to_string(), source };
        let Some(text) = read_bounded(&path, BYTES_MAX).map_err(failed)? else { return Ok(Revoked::default()) };
        let list: Revoked = serde_json::from_str(&text).map_err(|error| failed(io::Error::other(error)))?;
        match list.format {
            FORMAT => Ok(list),
            other => Err(failed(io::Error::other(format!("it has format {other}, this version reads {FORMAT}")))),
        }
    }

    /// Adds a principal to the list in `folder`.
    pub fn add(folder: &Path, principal: &str, now_ms: i64) -> Result<(), EngramError> {
        let mut list = Revoked::load(folder)?;
        let time = list.principals.entry(principal.to_owned()).or_insert(now_ms);
        *time = now_ms.max(*time);
        if list.principals.len() > PRINCIPALS_MAX {
            let (found, limit) = (list.principals.len() as u64, PRINCIPALS_MAX as u64);
            return Err(EngramError::TooLarge { what: "the number of revoked principals", found, limit });
        }
        let path = folder.join(FILE);
        let failed = |source| EngramError::Io { path: path.display().to_string(), source };
        let text = serde_json::to_vec_pretty(&list).map_err(|error| failed(io::Error::other(error)))?;
        create_private_dir(folder).map_err(failed)?;
        write_durable(&path, &text).map_err(failed)
    }

    /// What `principal` said at `time_ms` was revoked.
    pub fn covers(&self, principal: &str, time_ms: i64) -> bool {
        self.principals.get(principal).is_some_and(|revoked| time_ms <= *revoked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_is_covered_and_what_comes_after_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("engram");
        assert_eq!(Revoked::load(&folder).unwrap(), Revoked::default());
        Revoked::add(&folder, "eve", 50).unwrap();
        Revoked::add(&folder, "eve", 40).unwrap();
        Revoked::add(&folder, "bob", 10).unwrap();
        let list = Revoked::load(&folder).unwrap();
        assert!(list.covers("eve", 50) && !list.covers("eve", 51), "a revocation is never taken back");
        assert!(list.covers("bob", 10) && !list.covers("ada", 0));
        std::fs::write(folder.join(FILE), "{\"format\":2,\"principals\":{}}").unwrap();
        assert!(Revoked::load(&folder).unwrap_err().to_string().contains("format 2"));
        // A damaged list stops the writing: nobody who was revoked comes back.
        std::fs::write(folder.join(FILE), "{").unwrap();
        assert!(Revoked::load(&folder).is_err() && Revoked::add(&folder, "ada", 1).is_err());
    }
}
