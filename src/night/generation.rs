//! Generations on disk: `generations/<n>/{adapter.gguf, manifest.json, manifest.sig}`, and the pointer
//! `served.json` that says which of them answer. Generation 0 is the base model without an adapter. A
//! generation is built aside, synced and renamed; the pointer is replaced in one rename: a reader finds the
//! state before or after, never between.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::inspect::hash_file;
use super::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError, Seal};
use super::pointer::PointerFile;
pub use super::pointer::{Canary, Pointer};
use crate::store::files::create_private_dir;

/// Generations that stay on disk.
pub const KEPT: usize = 14;
pub const ADAPTER: &str = "adapter.gguf";
const MANIFEST: &str = "manifest.json";
const SIGNATURE: &str = "manifest.sig";
const ASIDE: &str = ".new-";
const POINTER: &str = "served.json";

#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("generation {generation}: {source}")]
    Manifest { generation: u64, source: ManifestError },
    #[error("there is no generation {0}: `chimere night status` says which serves, and 0 is the model itself")]
    Absent(u64),
    #[error("generation {generation}: its manifest is of generation {found}")]
    Number { generation: u64, found: u64 },
    #[error("generation {0}: its adapter is not the one that was signed")]
    Adapter(u64),
    #[error("generation {generation}: made for the model {found}, and {wanted} is served")]
    Base { generation: u64, found: String, wanted: String },
    #[error(
        "{} is damaged: {why}. Put a copy of it back, or move it away and choose a generation with `chimere rollback N`, a \
         number of the folder `generations`",
        path.display()
    )]
    Pointer { path: PathBuf, why: String },
}

/// Called at named points between two durable steps; an error ends the work there.
pub type Points<'a> = &'a (dyn Fn(&'static str) -> io::Result<()> + Sync);

/// The folder of generations and the pointer.
pub struct Generations {
    folder: PathBuf,
    pointer: PathBuf,
    seal: Seal,
}

impl Generations {
    /// Opens (or makes) the folder under `state_dir` and removes what a dead process left half built.
    pub fn open(state_dir: &Path) -> Result<Generations, GenerationError> {
        let folder = state_dir.join("generations");
        create_private_dir(&folder)?;
        let seal = Seal::open(&state_dir.join("night.key"))
            .map_err(|source| GenerationError::Manifest { generation: 0, source })?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(ASIDE) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Generations { folder, pointer: state_dir.join(POINTER), seal })
    }

    fn dir(&self, generation: u64) -> PathBuf {
        self.folder.join(generation.to_string())
    }

    pub fn adapter(&self, generation: u64) -> PathBuf {
        self.dir(generation).join(ADAPTER)
    }

    /// Numbers on disk, verified or not, oldest first.
    pub fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            numbers.extend(entry?.file_name().to_string_lossy().parse::<u64>().ok().filter(|n| *n > 0));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The manifest of a generation whose signature is right; its adapter is not looked at.
    pub fn manifest(&self, generation: u64) -> Result<Manifest, GenerationError> {
        let dir = self.dir(generation);
        let read = |name: &str| -> Result<Vec<u8>, GenerationError> {
            let path = dir.join(name);
            match fs::metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(GenerationError::Absent(generation)),
                Err(error) => Err(error.into()),
                Ok(meta) if meta.len() > MANIFEST_BYTES_MAX => {
                    Err(io::Error::other(format!("{name} is larger than {MANIFEST_BYTES_MAX} bytes")).into())
                }
                Ok(_) => Ok(fs::read(path)?),
            }
        };
        let manifest = self
            .seal
            .open_sealed(&read(MANIFEST)?, &read(SIGNATURE)?)
            .map_err(|source| GenerationError::Manifest { generation, source })?;
        if manifest.generation != generation {
            return Err(GenerationError::Number { generation, found: manifest.generation });
        }
        Ok(manifest)
    }

    /// The manifest of a generation whose signature, adapter and base model are right.
    pub fn verify(&self, generation: u64, base_hash: &str) -> Result<Manifest, GenerationError> {
        let manifest = self.manifest(generation)?;
        if manifest.base_hash != base_hash {
            let (found, wanted) = (manifest.base_hash, base_hash.to_owned());
            return Err(GenerationError::Base { generation, found, wanted });
        }
        match hash_file(&self.adapter(generation)) {
            Ok((sha256, bytes)) if sha256 == manifest.adapter.sha256 && bytes == manifest.adapter.bytes => Ok(manifest),
            Ok(_) => Err(GenerationError::Adapter(generation)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(GenerationError::Adapter(generation)),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a generation out of an adapter file: durable and signed when this returns, not yet served. One
    /// that is already there with the same adapter is kept as it is (a run that resumes).
    pub fn build(&self, adapter: &Path, manifest: &Manifest, points: Points) -> Result<(), GenerationError> {
        let number = manifest.generation;
        if self.verify(number, &manifest.base_hash).is_ok_and(|old| old.adapter == manifest.adapter) {
            return Ok(());
        }
        let sealed = self.seal.seal(manifest);
        let (bytes, signature) = sealed.map_err(|source| GenerationError::Manifest { generation: number, source })?;
        let aside = self.folder.join(format!("{ASIDE}{number}"));
        if aside.exists() {
            fs::remove_dir_all(&aside)?;
        }
        create_private_dir(&aside)?;
        let built = self.fill(&aside, adapter, &bytes, &signature, points).and_then(|()| {
            // Only a broken predecessor of the same number can be here.
            if self.dir(number).exists() {
                fs::remove_dir_all(self.dir(number))?;
            }
            fs::rename(&aside, self.dir(number))?;
            sync_dir(&self.folder)?;
            points("promote.renamed")
        });
        if let Err(error) = built {
            let _ = fs::remove_dir_all(&aside);
            return Err(error.into());
        }
        match hash_file(&self.adapter(number))? {
            (sha256, _) if sha256 == manifest.adapter.sha256 => Ok(()),
            _ => {
                fs::remove_dir_all(self.dir(number))?;
                Err(GenerationError::Adapter(number))
            }
        }
    }

    fn fill(&self, aside: &Path, adapter: &Path, manifest: &[u8], signature: &[u8], points: Points) -> io::Result<()> {
        let mut from = File::open(adapter)?;
        let mut to = create(&aside.join(ADAPTER))?;
        io::copy(&mut from, &mut to)?;
        to.sync_all()?;
        points("promote.adapter")?;
        for (name, bytes) in [(MANIFEST, manifest), (SIGNATURE, signature)] {
            let mut file = create(&aside.join(name))?;
            file.write_all(bytes)?;
            file.sync_all()?;
        }
        sync_dir(aside)?;
        points("promote.signed")
    }

    fn file(&self) -> Result<Option<PointerFile>, GenerationError> {
        PointerFile::read(&self.pointer)
    }

    /// The pointer of a base model as it stands; `None` before the first promotion on it.
    pub fn pointer(&self, base_hash: &str) -> Result<Option<Pointer>, GenerationError> {
        Ok(self.file()?.and_then(|file| file.of(base_hash)))
    }

    /// Replaces the pointer of a base model in one step; those of other models stay.
    pub fn point(&self, base_hash: &str, pointer: &Pointer) -> Result<(), GenerationError> {
        // What cannot be read is replaced: it names nothing.
        let before = self.file().ok().flatten();
        let made_on = |number: u64| self.manifest(number).ok().map(|manifest| manifest.base_hash);
        let file = PointerFile::replaced(before, base_hash, *pointer, made_on);
        Ok(file.write(&self.pointer)?)
    }

    /// The pointer that may be served with this model. It is what the file says where every generation of it is
    /// verified. Otherwise it is the newest verified one before it, and at last the base model. With it, why it is
    /// another than the file says.
    pub fn servable(&self, base_hash: &str) -> (Pointer, Option<String>) {
        let pointer = match self.pointer(base_hash) {
            Ok(Some(pointer)) => pointer,
            Ok(None) => return (Pointer::base(), None),
            Err(error) => return (Pointer::base(), Some(error.to_string())),
        };
        let good = |generation: u64| match generation {
            0 => Ok(()),
            n => self.verify(n, base_hash).map(drop),
        };
        let mut why = None;
        let mut found = pointer;
        if let Some(canary) = pointer.canary
            && let Err(error) = good(canary.generation)
        {
            (found.canary, why) = (None, Some(error.to_string()));
        }
        if let Err(error) = good(pointer.champion) {
            let older = self.numbers().unwrap_or_default().into_iter().rev();
            let next = older.filter(|n| *n < pointer.champion).find(|n| good(*n).is_ok()).unwrap_or(0);
            (found.champion, found.canary) = (next, None);
            why = Some(error.to_string());
        }
        (found, why)
    }

    /// The number of the next generation: never one that was used.
    pub fn next_number(&self, pointer: &Pointer) -> io::Result<u64> {
        let used = self.numbers()?.into_iter().chain(pointer.served()).chain([pointer.previous]);
        Ok(used.max().unwrap_or(0) + 1)
    }

    /// Removes the oldest generations above `KEPT`, never one that a pointer names. Returns what went.
    pub fn prune(&self, pointer: &Pointer) -> io::Result<Vec<u64>> {
        let file = self.file().ok().flatten();
        let named = file.iter().flat_map(PointerFile::named);
        let needed: BTreeSet<u64> = pointer.served().into_iter().chain([pointer.previous]).chain(named).collect();
        let numbers = self.numbers()?;
        let surplus = numbers.len().saturating_sub(KEPT);
        let old: Vec<u64> = numbers.into_iter().filter(|n| !needed.contains(n)).take(surplus).collect();
        for number in &old {
            // Renamed first: a generation is whole or not there.
            let aside = self.folder.join(format!("{ASIDE}old-{number}"));
            fs::rename(self.dir(*number), &aside)?;
            fs::remove_dir_all(aside)?;
        }
        sync_dir(&self.folder)?;
        Ok(old)
    }
}

/// Whether a learned generation answers, on any base model; nothing is made for that.
pub fn learned(state_dir: &Path) -> Result<bool, GenerationError> {
    let file = PointerFile::read(&state_dir.join(POINTER))?;
    Ok(file.is_some_and(|file| file.named().any(|number| number > 0)))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
#[path = "generation_tests.rs"]
mod tests;
