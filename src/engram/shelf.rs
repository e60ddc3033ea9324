//! Tables on disk: where they lie, which of them may be served, and how a new one takes an old one's place.
//!
//! A table `NAME.engr` is served when this installation signed its digest (`DIGEST.sig` beside it). The shipped
//! tables are served too, packed (`NAME.engr.gz`); their digests are compiled in. The signature is named by the digest and written before
//! the table is renamed into place. So at every moment the table in place has its signature.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::TABLES_MAX;
use super::file;
use super::format::{EXTENSION, EngramError, check_name};
use super::table::{Bytes, Table};
use crate::night::inspect::hex;
use crate::night::manifest::{KEY_FILE, Seal};
use crate::store::files::{create_private_dir, read_bounded, write_durable};

/// Folder of the installation's own tables, under the state folder.
pub const DIR: &str = "engram";
/// Largest table that is served, bytes.
pub const SERVED_BYTES_MAX: u64 = 256 << 20;
const PURPOSE: &str = "engram";
/// Digests of the tables that come with the program: `NAME DIGEST`, a line each.
const SHIPPED: &str = include_str!("../../nano/engram/DIGESTS");

/// A table that may be served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub name: String,
    pub path: PathBuf,
    /// What the engine must find in the file.
    pub digest: String,
    /// Fingerprint of the tokenizer whose tokens it holds, hexadecimal.
    pub tokenizer: String,
    pub shipped: bool,
    /// The only principal that may use it.
    pub owner: Option<String>,
    pub description: String,
    pub licence: String,
    pub contexts: usize,
    pub entries: usize,
    pub bytes: usize,
}

/// A file that is not served, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    pub path: PathBuf,
    pub message: String,
}

/// What lies in the folders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shelf {
    pub tables: Vec<Listed>,
    pub refused: Vec<Refused>,
}

impl Shelf {
    /// The tables of an installation; without its key none of its own is served.
    pub fn of_installation(state_dir: &Path, shipped: Option<&Path>) -> Shelf {
        let key = state_dir.join(KEY_FILE);
        let (signatures, refused) = match Seal::look(&key) {
            Ok(signatures) => (signatures, None),
            Err(error) => (None, Some(Refused { path: key, message: error.to_string() })),
        };
        let mut shelf = Shelf::scan(shipped, &state_dir.join(DIR), signatures.as_ref());
        shelf.refused.extend(refused);
        shelf
    }

    /// Reads the folders; an own table takes the place of a shipped one of the same name.
    pub fn scan(shipped: Option<&Path>, own: &Path, signatures: Option<&Seal>) -> Shelf {
        let mut shelf = Shelf::default();
        for (folder, is_shipped) in [(Some(own), false), (shipped, true)] {
            let Some(folder) = folder else { continue };
            for path in files(folder, is_shipped) {
                match list(&path, is_shipped, signatures) {
                    Ok(table) if shelf.tables.iter().any(|t| t.name == table.name) => {}
                    Ok(_) if shelf.tables.len() >= TABLES_MAX => {
                        let message = format!("there are more than {TABLES_MAX} tables: remove some");
                        shelf.refused.push(Refused { path, message });
                    }
                    Ok(table) => shelf.tables.push(table),
                    Err(error) => shelf.refused.push(Refused { path, message: error.to_string() }),
                }
            }
        }
        shelf.tables.sort_by(|a, b| a.name.cmp(&b.name));
        shelf
    }

    /// Why the file of the table `name` is not served, where one lies there.
    pub fn refused(&self, name: &str) -> Option<&Refused> {
        self.refused.iter().find(|refused| file::name_of(&refused.path) == Some(name))
    }

    /// The table of a name that `principal` may use.
    pub fn find(&self, name: &str, principal: &str) -> Option<&Listed> {
        self.tables.iter().find(|t| t.name == name && t.owner.as_ref().is_none_or(|owner| owner == principal))
    }
}

/// Tables of a folder, by name. A packed one counts where the shipped ones lie: a copy that somebody packed would keep
/// what was revoked.
fn files(folder: &Path, packed: bool) -> Vec<PathBuf> {
    let counts = |path: &PathBuf| file::name_of(path).is_some() && (packed || !file::is_packed(path));
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|e| e.path());
    let mut found: Vec<PathBuf> = entries.filter(counts).collect();
    found.sort();
    found
}

fn list(path: &Path, shipped: bool, signatures: Option<&Seal>) -> Result<Listed, EngramError> {
    let table = read(path)?;
    let (name, digest) = (table.meta().name.clone(), table.digest());
    if file::name_of(path).is_none_or(|known| *known != *name) {
        return Err(EngramError::Damaged("its file has another name than the table"));
    }
    let known = match shipped {
        true => SHIPPED.lines().any(|line| line.split_whitespace().eq([name.as_str(), digest.as_str()])),
        false => {
            let signature = read_bounded(&signature_path(path, &digest), 256).map_err(|e| at(path, e))?;
            signature.zip(signatures).is_some_and(|(s, own)| own.verifies(PURPOSE, digest.as_bytes(), &s))
        }
    };
    if !known {
        return Err(EngramError::Unsigned);
    }
    let meta = table.meta();
    Ok(Listed {
        name,
        digest,
        tokenizer: hex(table.fingerprint()),
        path: path.to_owned(),
        shipped,
        owner: meta.owner.clone(),
        description: meta.description.clone(),
        licence: meta.licence.clone(),
        contexts: table.contexts(),
        entries: table.entries(),
        bytes: table.bytes().len(),
    })
}

/// Reads and checks a table of any folder, signed or not.
pub fn read(path: &Path) -> Result<Table, EngramError> {
    Table::open(Bytes::Owned(file::read(path, SERVED_BYTES_MAX)?), None)
}

/// Whether a table of this name comes with the program: an own one of that name takes its place.
pub fn is_shipped(name: &str) -> bool {
    SHIPPED.lines().any(|line| line.split_whitespace().next() == Some(name))
}

/// Puts a finished table into `folder`, signed, in place of the one of the same name. Returns its path.
pub fn publish(folder: &Path, bytes: &[u8], signatures: &Seal) -> Result<PathBuf, EngramError> {
    let table = Table::open(Bytes::Owned(bytes.to_vec()), None)?;
    let name = &table.meta().name;
    check_name(name)?;
    create_private_dir(folder).map_err(|e| at(folder, e))?;
    let path = folder.join(format!("{name}.{EXTENSION}"));
    sign(&path, &table.digest(), signatures)?;
    write_durable(&path, bytes).map_err(|e| at(&path, e))?;
    forget_signatures(folder);
    Ok(path)
}

/// Removes a table and its signature.
pub fn remove(path: &Path) -> Result<(), EngramError> {
    fs::remove_file(path).map_err(|e| at(path, e))?;
    if let Some(folder) = path.parent() {
        fs::File::open(folder).and_then(|f| f.sync_all()).map_err(|e| at(folder, e))?;
        forget_signatures(folder);
    }
    Ok(())
}

/// Signs the table at `path`, whose digest is `digest`.
pub fn sign(path: &Path, digest: &str, signatures: &Seal) -> Result<(), EngramError> {
    let signature = signatures.sign(PURPOSE, digest.as_bytes());
    write_durable(&signature_path(path, digest), signature.as_bytes()).map_err(|e| at(path, e))
}

/// Removes signatures whose table is gone; what cannot be read or removed stays.
fn forget_signatures(folder: &Path) {
    let used: BTreeSet<PathBuf> = files(folder, false)
        .iter()
        .filter_map(|path| read(path).ok().map(|table| signature_path(path, &table.digest())))
        .collect();
    for path in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|e| e.path()) {
        if path.extension().is_some_and(|e| e == "sig") && !used.contains(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

fn signature_path(table: &Path, digest: &str) -> PathBuf {
    table.with_file_name(format!("{digest}.sig"))
}

fn at(path: &Path, source: io::Error) -> EngramError {
    EngramError::Io { path: path.display().to_string(), source }
}
