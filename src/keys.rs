//! API keys with their scopes: who may do what (`service::Scope`). The file `keys.toml` in the state folder holds
//! SHA-256 digests, never keys. A key is printed once, when it is made.
//!
//! Without any entry a loopback client is the owner. With one, everybody needs a key, even when all are revoked:
//! revoking the last key must not open the daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use crate::service::OWNER;
use crate::service::{AuthError, Principal, Scope};
use crate::store::files::{ChangeLock, read_bounded, write_durable};

pub const FILE: &str = "keys.toml";
const FORMAT: u32 = 1;
/// Largest key file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const KEYS_MAX: usize = 1_000;
/// Longest name of a key, characters.
const NAME_CHARS_MAX: usize = 64;
/// Longest bearer token that is looked at, bytes.
const BEARER_BYTES_MAX: usize = 512;
const PREFIX: &str = "chimere-";
/// Longest wait for another process that changes the keys.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// What helps where the file cannot be read.
const ANEW: &str = "Put a copy of the file back; without one, move it away and make the keys anew under their names with \
                    `chimere keys add NAME`: turns and lessons are kept under the name";

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read or write {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {message}. {ANEW}", path.display())]
    Parse { path: PathBuf, message: String },
    #[error("{} has format {found}, but this version reads format {FORMAT}: start the version that wrote it. {ANEW}", path.display())]
    Format { path: PathBuf, found: u32 },
    #[error("a key called `{0}` exists: `chimere keys renew {0}` makes it anew, or take another name")]
    Exists(String),
    #[error(
        "a key called `{0}` was revoked, and its name stays taken, for turns are kept under it: `chimere keys renew {0}` \
         makes it anew, or take another name"
    )]
    Taken(String),
    #[error("there is no key called `{0}`: `chimere keys list` shows those that there are")]
    Unknown(String),
    #[error("the key `{0}` was revoked already")]
    Revoked(String),
    #[error("a key's name must have 1 to {NAME_CHARS_MAX} letters, digits, `-`, `_` or `.`")]
    Name,
    #[error("a key called `{OWNER}` holds what was said without a key on this machine: it needs `--scope admin`")]
    Owner,
    #[error(
        "there are {KEYS_MAX} keys already, revoked ones included: remove old ones from keys.toml in the state folder"
    )]
    Full,
    #[error("no random numbers: {0}")]
    Random(String),
}

/// One key, as kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    /// SHA-256 of the key, hexadecimal.
    pub digest: String,
    pub scopes: Vec<Scope>,
    /// May turns of this key be learned from.
    pub consent: bool,
    /// RFC 3339.
    pub created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    format: u32,
    #[serde(default, rename = "key")]
    keys: Vec<Entry>,
}

/// Which file of keys it is: one that was written since has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl Stamp {
    /// `None`: there is no file, or nothing can be said of it.
    pub fn of(state_dir: &Path) -> Option<Stamp> {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(KeyRing::path(state_dir)).ok()?;
        Some(Stamp { inode: file.ino(), bytes: file.len(), changed: (file.mtime(), file.mtime_nsec()) })
    }
}

/// All keys, immutable.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    entries: Vec<Entry>,
    /// Of the entries, in their order.
    digests: Vec<[u8; 32]>,
}

impl KeyRing {
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(FILE)
    }

    /// Reads the file; none means no keys.
    pub fn load(state_dir: &Path) -> Result<KeyRing, KeyError> {
        let path = KeyRing::path(state_dir);
        let text = match read_bounded(&path, FILE_BYTES_MAX) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(KeyRing::default()),
            Err(source) => return Err(KeyError::Io { path, source }),
        };
        let file: KeyFile = toml::from_str(&text).map_err(|error| {
            // In one line: it stands in a list of findings.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            KeyError::Parse { path: path.clone(), message: format!("line {line}: {}", error.message().trim_end()) }
        })?;
        if file.format != FORMAT {
            return Err(KeyError::Format { path, found: file.format });
        }
        let digest = |k: &Entry| {
            let message = format!("the digest of key `{}` is not 64 hexadecimal digits", k.name);
            digest_bytes(&k.digest).ok_or_else(|| KeyError::Parse { path: path.clone(), message })
        };
        let digests = file.keys.iter().map(digest).collect::<Result<_, _>>()?;
        Ok(KeyRing { entries: file.keys, digests })
    }

    fn save(&self, state_dir: &Path) -> Result<(), KeyError> {
        let path = KeyRing::path(state_dir);
        let file = KeyFile { format: FORMAT, keys: self.entries.clone() };
        let text = toml::to_string(&file)
            .map_err(|error| KeyError::Parse { path: path.clone(), message: error.to_string() })?;
        write_durable(&path, text.as_bytes()).map_err(|source| KeyError::Io { path, source })
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// No key was ever made: a loopback client is the owner.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Nothing is made for a name that there is not: a state folder may lack.
    fn known(state_dir: &Path, name: &str) -> Result<(), KeyError> {
        let ring = KeyRing::load(state_dir)?;
        let there = ring.entries.iter().any(|key| key.name == name);
        if there { Ok(()) } else { Err(KeyError::Unknown(name.to_owned())) }
    }

    /// Reads the file, changes the keys and writes it again, while nobody else does.
    fn change<T>(state_dir: &Path, change: impl FnOnce(&mut KeyRing) -> Result<T, KeyError>) -> Result<T, KeyError> {
        let path = KeyRing::path(state_dir);
        let _lock = ChangeLock::take(&path, LOCK_TIMEOUT).map_err(|source| KeyError::Io { path, source })?;
        let mut ring = KeyRing::load(state_dir)?;
        let done = change(&mut ring)?;
        ring.save(state_dir)?;
        Ok(done)
    }

    /// Makes a key and writes the file. → the key, which nobody can read again, and whether it is the first.
    pub fn add(
        state_dir: &Path,
        name: &str,
        scopes: &[Scope],
        consent: bool,
        now: jiff::Timestamp,
    ) -> Result<(String, bool), KeyError> {
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(letters) {
            return Err(KeyError::Name);
        }
        if name == OWNER && !scopes.contains(&Scope::Admin) {
            return Err(KeyError::Owner);
        }
        let key = made()?;
        let mut scopes = scopes.to_vec();
        scopes.sort_unstable();
        scopes.dedup();
        KeyRing::change(state_dir, |ring| {
            // Also names of revoked keys: turns are kept under the name.
            if let Some(there) = ring.entries.iter().find(|k| k.name == name) {
                let name = name.to_owned();
                return Err(if there.revoked.is_some() { KeyError::Taken(name) } else { KeyError::Exists(name) });
            }
            if ring.entries.len() >= KEYS_MAX {
                return Err(KeyError::Full);
            }
            ring.entries.push(Entry {
                name: name.to_owned(),
                digest: digest_of(&key),
                scopes,
                consent,
                created: now.to_string(),
                revoked: None,
            });
            Ok((key, ring.entries.len() == 1))
        })
    }

    /// Makes the key of that name anew, revoked or not, with its scopes: the old one opens nothing any more. Turns and
    /// lessons are kept under the name, and stay. `consent`: of the turns from now on; `None`: as it was. → the key.
    pub fn renew(
        state_dir: &Path,
        name: &str,
        consent: Option<bool>,
        now: jiff::Timestamp,
    ) -> Result<(String, Entry), KeyError> {
        KeyRing::known(state_dir, name)?;
        let key = made()?;
        KeyRing::change(state_dir, |ring| {
            let entry = ring.entries.iter_mut().find(|k| k.name == name);
            let entry = entry.ok_or_else(|| KeyError::Unknown(name.to_owned()))?;
            entry.digest = digest_of(&key);
            entry.created = now.to_string();
            entry.consent = consent.unwrap_or(entry.consent);
            entry.revoked = None;
            Ok((key, entry.clone()))
        })
    }

    /// Changes the consent of a key, for its turns from now on, and nothing else.
    pub fn consent(state_dir: &Path, name: &str, consent: bool) -> Result<(), KeyError> {
        KeyRing::known(state_dir, name)?;
        KeyRing::change(state_dir, |ring| {
            let entry = ring.entries.iter_mut().find(|k| k.name == name);
            entry.ok_or_else(|| KeyError::Unknown(name.to_owned()))?.consent = consent;
            Ok(())
        })
    }

    /// Revokes the active key of that name and writes the file.
    pub fn revoke(state_dir: &Path, name: &str, now: jiff::Timestamp) -> Result<(), KeyError> {
        KeyRing::known(state_dir, name)?;
        KeyRing::change(state_dir, |ring| {
            let entry = ring.entries.iter_mut().find(|k| k.name == name);
            let entry = entry.ok_or_else(|| KeyError::Unknown(name.to_owned()))?;
            if entry.revoked.is_some() {
                return Err(KeyError::Revoked(name.to_owned()));
            }
            entry.revoked = Some(now.to_string());
            Ok(())
        })
    }

    /// Who holds this key. `loopback`: the client is on this machine.
    pub fn authenticate(&self, bearer: Option<&str>, loopback: bool) -> Result<Principal, AuthError> {
        if self.is_empty() {
            return if loopback { Ok(owner()) } else { Err(AuthError::Missing) };
        }
        let bearer = bearer.ok_or(AuthError::Missing)?;
        if bearer.len() > BEARER_BYTES_MAX {
            return Err(AuthError::Unknown);
        }
        let given = Sha256::digest(bearer.as_bytes());
        // Every entry is compared, whole, whatever matches: the time says nothing.
        let mut found = None;
        for (entry, digest) in self.entries.iter().zip(&self.digests) {
            if bool::from(digest.ct_eq(&given[..])) {
                found = Some(entry);
            }
        }
        match found {
            Some(entry) if entry.revoked.is_none() => {
                Ok(Principal { name: entry.name.clone(), scopes: entry.scopes.clone(), consent: entry.consent })
            }
            _ => Err(AuthError::Unknown),
        }
    }
}

/// The principal of a loopback client where no key is configured.
pub fn owner() -> Principal {
    Principal { name: OWNER.to_owned(), scopes: vec![Scope::Chat, Scope::Metrics, Scope::Admin], consent: true }
}

/// A new key.
fn made() -> Result<String, KeyError> {
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(|error| KeyError::Random(error.to_string()))?;
    Ok(format!("{PREFIX}{}", hex(&secret)))
}

fn digest_of(key: &str) -> String {
    hex(&Sha256::digest(key.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn digest_bytes(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        jiff::Timestamp::from_second(1_700_000_000).unwrap()
    }

    #[test]
    fn a_key_opens_until_it_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let (key, first) = KeyRing::add(dir.path(), "laptop", &[Scope::Chat, Scope::Chat], true, now()).unwrap();
        assert!(first);
        assert_eq!(key.len(), PREFIX.len() + 64);
        let ring = KeyRing::load(dir.path()).unwrap();
        let who = ring.authenticate(Some(&key), false).unwrap();
        assert_eq!((who.name.as_str(), who.scopes.as_slice(), who.consent), ("laptop", &[Scope::Chat][..], true));
        assert_eq!(ring.authenticate(None, true), Err(AuthError::Missing));
        assert_eq!(ring.authenticate(Some("chimere-x"), true), Err(AuthError::Unknown));
        assert_eq!(ring.authenticate(Some(&"x".repeat(9_999)), true), Err(AuthError::Unknown));
        KeyRing::revoke(dir.path(), "laptop", now()).unwrap();
        let ring = KeyRing::load(dir.path()).unwrap();
        assert_eq!(ring.authenticate(Some(&key), false), Err(AuthError::Unknown));
        assert_eq!(ring.authenticate(None, true), Err(AuthError::Missing), "revoking opens no door");
        assert!(matches!(KeyRing::revoke(dir.path(), "laptop", now()), Err(KeyError::Revoked(_))));
        assert!(matches!(KeyRing::revoke(dir.path(), "desk", now()), Err(KeyError::Unknown(_))));
        assert!(matches!(KeyRing::add(dir.path(), "laptop", &[], true, now()), Err(KeyError::Taken(_))));
        KeyRing::add(dir.path(), "desk", &[], true, now()).unwrap();
        assert!(matches!(KeyRing::add(dir.path(), "desk", &[], true, now()), Err(KeyError::Exists(_))));
    }

    /// A key that was lost or seen by others is replaced under its name, which turns and lessons are kept under.
    #[test]
    fn a_renewed_key_opens_under_its_name_and_the_old_one_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let (old, _) = KeyRing::add(dir.path(), "anna", &[Scope::Chat, Scope::Metrics], false, now()).unwrap();
        let who = |key: &str| KeyRing::load(dir.path()).unwrap().authenticate(Some(key), false);
        let before = who(&old).unwrap();
        let (new, _) = KeyRing::renew(dir.path(), "anna", None, now()).unwrap();
        assert_eq!((who(&old), who(&new)), (Err(AuthError::Unknown), Ok(before.clone())));
        KeyRing::consent(dir.path(), "anna", true).unwrap();
        assert_eq!(who(&new).unwrap(), Principal { consent: true, ..before });
        KeyRing::revoke(dir.path(), "anna", now()).unwrap();
        let (again, entry) = KeyRing::renew(dir.path(), "anna", Some(false), now()).unwrap();
        assert_eq!((who(&new), who(&again).unwrap().consent), (Err(AuthError::Unknown), false));
        assert_eq!(entry.revoked, None);
        assert!(matches!(KeyRing::renew(dir.path(), "bert", None, now()), Err(KeyError::Unknown(_))));
        assert!(matches!(KeyRing::consent(dir.path(), "bert", true), Err(KeyError::Unknown(_))));
        let nowhere = dir.path().join("nowhere");
        assert!(matches!(KeyRing::revoke(&nowhere, "anna", now()), Err(KeyError::Unknown(_))));
        assert!(!nowhere.exists());
    }

    /// Who was the owner without a key goes on as the owner with one.
    #[test]
    fn the_owner_may_have_a_key_that_is_an_admins() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(KeyRing::add(dir.path(), OWNER, &[Scope::Chat], true, now()), Err(KeyError::Owner)));
        let before = Stamp::of(dir.path());
        let (key, first) = KeyRing::add(dir.path(), OWNER, &[Scope::Admin], true, now()).unwrap();
        assert!(first && before.is_none() && Stamp::of(dir.path()).is_some());
        let who = KeyRing::load(dir.path()).unwrap().authenticate(Some(&key), false).unwrap();
        assert_eq!((who.name.as_str(), who.may(Scope::Admin)), (OWNER, true));
        let before = Stamp::of(dir.path());
        assert_eq!(Stamp::of(dir.path()), before);
        KeyRing::revoke(dir.path(), OWNER, now()).unwrap();
        assert_ne!(Stamp::of(dir.path()), before, "a change is seen");
    }

    #[test]
    fn of_many_changes_at_once_none_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for n in 0..16 {
                let dir = dir.path();
                scope.spawn(move || KeyRing::add(dir, &format!("key-{n}"), &[Scope::Chat], false, now()).unwrap());
            }
        });
        assert_eq!(KeyRing::load(dir.path()).unwrap().entries().len(), 16);
    }

    #[test]
    fn the_file_holds_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let (key, _) = KeyRing::add(dir.path(), "a", &[Scope::Admin], false, now()).unwrap();
        let text = std::fs::read_to_string(KeyRing::path(dir.path())).unwrap();
        assert!(!text.contains(&key[PREFIX.len()..]));
    }

    #[test]
    fn without_keys_the_machine_itself_is_the_owner() {
        let ring = KeyRing::default();
        assert!(ring.authenticate(None, true).unwrap().consent);
        assert_eq!(ring.authenticate(None, false), Err(AuthError::Missing));
        assert_eq!(ring.authenticate(Some("k"), false), Err(AuthError::Missing));
    }

    #[test]
    fn names_and_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "a b", "a/b", &"x".repeat(65)] {
            assert!(matches!(KeyRing::add(dir.path(), name, &[], false, now()), Err(KeyError::Name)), "{name}");
        }
        std::fs::write(KeyRing::path(dir.path()), "format = 2").unwrap();
        assert!(matches!(KeyRing::load(dir.path()), Err(KeyError::Format { found: 2, .. })));
        std::fs::write(KeyRing::path(dir.path()), "format = 1\nkeyz = 3").unwrap();
        assert!(matches!(KeyRing::load(dir.path()), Err(KeyError::Parse { .. })));
    }
}
