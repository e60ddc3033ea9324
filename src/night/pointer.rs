//! `served.json`: which generations answer. A generation belongs to the base model that it was learned on, and so
//! does the pointer. While another model is served, that model's pointer holds. The others wait in the same file.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::generation::GenerationError;
use super::manifest::FORMAT;
use crate::store::files::{read_bounded, write_durable};

const POINTER_BYTES_MAX: u64 = 64 << 10;
/// Pointers of other base models that are kept.
const OTHERS_MAX: usize = 64;

/// The stage of a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canary {
    pub generation: u64,
    /// Index into the configured stages.
    pub stage: usize,
    pub percent: u8,
    /// When the canary, and when this stage began, Unix milliseconds.
    pub began_ms: i64,
    pub stage_ms: i64,
}

/// Which generations answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pointer {
    pub format: u32,
    /// Answers every conversation that the canary does not.
    pub champion: u64,
    pub canary: Option<Canary>,
    /// What a rollback without a number goes back to.
    pub previous: u64,
}

impl Pointer {
    pub fn base() -> Pointer {
        Pointer { format: FORMAT, ..Pointer::default() }
    }

    /// The generations that may be asked to answer.
    pub fn served(&self) -> Vec<u64> {
        [Some(self.champion), self.canary.map(|c| c.generation)].into_iter().flatten().collect()
    }
}

/// The file: the pointer of the base model that was served when it was written, and those of others.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PointerFile {
    format: u32,
    champion: u64,
    canary: Option<Canary>,
    previous: u64,
    /// Hash of the base model; absent: of any, as far as the generations fit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<String>,
    /// By the hash of the base model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    others: BTreeMap<String, Pointer>,
}

impl PointerFile {
    pub(super) fn read(path: &Path) -> Result<Option<PointerFile>, GenerationError> {
        let damaged = |why: String| GenerationError::Pointer { path: path.to_owned(), why };
        let text = read_bounded(path, POINTER_BYTES_MAX);
        let text = text.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let Some(text) = text else { return Ok(None) };
        let file: PointerFile = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if file.format != FORMAT {
            return Err(damaged(format!("it has format {}, and this version reads {FORMAT}", file.format)));
        }
        Ok(Some(file))
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        text.push(b'\n');
        write_durable(path, &text)
    }

    fn main(&self) -> Pointer {
        let PointerFile { format, champion, canary, previous, .. } = *self;
        Pointer { format, champion, canary, previous }
    }

    /// The pointer of a base model.
    pub(super) fn of(&self, base_hash: &str) -> Option<Pointer> {
        match &self.base {
            Some(base) if base != base_hash => self.others.get(base_hash).copied(),
            _ => Some(self.main()),
        }
    }

    /// Every generation that a pointer names.
    pub(super) fn named(&self) -> impl Iterator<Item = u64> {
        let all = self.others.values().copied().chain([self.main()]);
        all.flat_map(|pointer| pointer.served().into_iter().chain([pointer.previous]))
    }

    /// The file with another pointer for one base model. `made_on`: which one a generation was learned on.
    pub(super) fn replaced(
        before: Option<PointerFile>,
        base_hash: &str,
        Pointer { format, champion, canary, previous }: Pointer,
        made_on: impl Fn(u64) -> Option<String>,
    ) -> PointerFile {
        let mut others = BTreeMap::new();
        if let Some(file) = before {
            let main = file.main();
            let learned = [main.champion, main.previous].into_iter().find(|number| *number > 0);
            let base = file.base.or_else(|| learned.and_then(made_on));
            others = file.others;
            others.extend(base.map(|base| (base, main)));
            others.remove(base_hash);
        }
        while others.len() > OTHERS_MAX {
            let oldest = others.iter().min_by_key(|(_, pointer)| pointer.champion).map(|(base, _)| base.clone());
            oldest.map(|base| others.remove(&base));
        }
        PointerFile { format, champion, canary, previous, base: Some(base_hash.to_owned()), others }
    }
}
