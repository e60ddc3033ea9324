//! Prompt prefixes in a file, so that they outlive their engine: written when it ends well, read when the next one starts.
//!
//! Little endian: `CHPREFX3`; who made it; for each scope its owner, its adapter and its nodes; the SHA-256 of all
//! that. Parents come before their children. A node has its parent's place, its number of tokens, the tokens, its
//! block, and when its state was used last (0: it has none). The state follows behind its length. A file of another
//! maker, cut short or damaged is not used: its prompts are read again.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{NodeId, PrefixLimits, Prefixes, Scope, State};
use crate::engine::backend::SavedSize;
use crate::engine::batch::CUT_TOKENS;

const MAGIC: &[u8; 8] = b"CHPREFX3";
/// Parent of the nodes of a scope that begin a prompt.
const ROOT: u32 = u32::MAX;
/// Longest name in the file, bytes.
const NAME_BYTES_MAX: u32 = 4 << 10;

/// Where prefixes are kept, and for whom: bytes of another model, backend, device or program are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    pub file: PathBuf,
    pub made_by: String,
}

impl Keeper {
    /// Writes everything that is kept; for the owner of the files alone, and whole or not at all.
    pub fn save(&self, prefixes: &Prefixes) -> io::Result<()> {
        if prefixes.is_empty() {
            return discard(&self.file);
        }
        let part = self.part();
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        let mut out = Hashed::new(BufWriter::with_capacity(1 << 20, file));
        out.write_all(MAGIC)?;
        text(&mut out, &self.made_by)?;
        number(&mut out, prefixes.roots.len())?;
        for (scope, root) in &prefixes.roots {
            prefixes.write_scope(&mut out, scope, *root)?;
        }
        let Hashed { mut inner, sha } = out;
        inner.write_all(&sha.finalize())?;
        inner.flush()?;
        fs::rename(part, &self.file)
    }

    /// What was kept, as far as it fits the limits. `None`: there is no file.
    pub fn load(&self, limits: PrefixLimits, size: SavedSize) -> io::Result<Option<Prefixes>> {
        // Of an engine that was killed while it wrote.
        remove(&self.part())?;
        let file = match File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut from = Hashed::new(BufReader::with_capacity(1 << 20, file));
        if bytes(&mut from, MAGIC.len())? != MAGIC {
            return Err(wrong("it is no file of prompt prefixes"));
        }
        if name(&mut from)? != self.made_by {
            return Err(wrong("another model, device or program made it"));
        }
        let (mut prefixes, mut used) = (Prefixes::new(limits), Vec::new());
        for _ in 0..read_number(&mut from)? {
            prefixes.read_scope(&mut from, size, &mut used)?;
        }
        let Hashed { mut inner, sha } = from;
        let mut sum = [0; 32];
        inner.read_exact(&mut sum)?;
        if sha.finalize()[..] != sum {
            return Err(wrong("its checksum is wrong"));
        }
        used.sort_unstable();
        for (_, id) in used {
            prefixes.touch(id);
        }
        prefixes.evict(0, None);
        Ok(Some(prefixes))
    }

    fn part(&self) -> PathBuf {
        part(&self.file)
    }
}

/// Takes a file of prefixes away: what is forgotten must not come back from it.
pub fn discard(file: &Path) -> io::Result<()> {
    remove(&part(file))?;
    remove(file)
}

/// Name of a file that is being written.
fn part(file: &Path) -> PathBuf {
    file.with_extension("part")
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Prefixes {
    fn write_scope(&self, out: &mut impl Write, scope: &Scope, root: NodeId) -> io::Result<()> {
        text(out, &scope.owner)?;
        out.write_all(&[u8::from(scope.adapter.is_some())])?;
        text(out, scope.adapter.as_deref().unwrap_or_default())?;
        let mut order: Vec<NodeId> =
            self.nodes.get(&root).into_iter().flat_map(|n| n.children.values().copied()).collect();
        let mut at = 0;
        while at < order.len() {
            order.extend(self.nodes.get(&order[at]).into_iter().flat_map(|n| n.children.values()));
            at += 1;
        }
        number(out, order.len())?;
        let places: HashMap<NodeId, u32> = order.iter().zip(0..).map(|(id, place)| (*id, place)).collect();
        for node in order.iter().filter_map(|id| self.nodes.get(id)) {
            let parent = node.parent.and_then(|id| places.get(&id).copied()).unwrap_or(ROOT);
            out.write_all(&parent.to_le_bytes())?;
            number(out, node.tokens.len())?;
            for token in node.tokens.iter() {
                out.write_all(&token.to_le_bytes())?;
            }
            out.write_all(&node.block)?;
            out.write_all(&node.state.as_ref().map_or(0, |s| s.used).to_le_bytes())?;
            if let Some(state) = &node.state {
                number(out, state.bytes.len())?;
                out.write_all(&state.bytes)?;
            }
        }
        Ok(())
    }

    /// `used`: where states were found, and when each was used last.
    fn read_scope(&mut self, from: &mut impl Read, size: SavedSize, used: &mut Vec<(u64, NodeId)>) -> io::Result<()> {
        let owner = name(from)?;
        let has_adapter = bytes(from, 1)? == [1];
        let adapter = Some(name(from)?).filter(|_| has_adapter);
        let root = self.insert(None, &[], Vec::new());
        if self.roots.insert(Scope { owner, adapter }, root).is_some() {
            return Err(wrong("a scope is there twice"));
        }
        let mut places = Vec::new();
        for _ in 0..read_number(from)? {
            let parent = match read_number(from)? {
                ROOT => root,
                place => *places.get(place as usize).ok_or_else(|| wrong("a node comes before its parent"))?,
            };
            let count = read_number(from)? as usize;
            if !(1..=CUT_TOKENS).contains(&count) {
                return Err(wrong("a block has no tokens, or too many"));
            }
            let tokens = bytes(from, 4 * count)?;
            let tokens: Vec<u32> = tokens.as_chunks().0.iter().map(|t| u32::from_le_bytes(*t)).collect();
            let block = bytes(from, size.block)?;
            let last = u64::from_le_bytes(bytes(from, 8)?.as_chunks().0.first().copied().unwrap_or_default());
            let id = self.insert(Some(parent), &tokens, block);
            if last > 0 {
                let len = read_number(from)? as usize;
                if len as u64 > self.limits.bytes_max || (size.block > 0 && len != size.state) {
                    return Err(wrong("a state has another length than the model's"));
                }
                self.bytes += len as u64;
                let bytes = bytes(from, len)?;
                // Its age comes with that of the others.
                self.nodes.entry(id).and_modify(|node| node.state = Some(State { bytes, used: 0 }));
                used.push((last, id));
            }
            places.push(id);
        }
        Ok(())
    }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn number(out: &mut impl Write, n: usize) -> io::Result<()> {
    let n = u32::try_from(n).map_err(|_| wrong("too many parts"))?;
    out.write_all(&n.to_le_bytes())
}

fn text(out: &mut impl Write, text: &str) -> io::Result<()> {
    number(out, text.len())?;
    out.write_all(text.as_bytes())
}

fn read_number(from: &mut impl Read) -> io::Result<u32> {
    let mut n = [0; 4];
    from.read_exact(&mut n)?;
    Ok(u32::from_le_bytes(n))
}

fn name(from: &mut impl Read) -> io::Result<String> {
    let len = read_number(from)?;
    if len > NAME_BYTES_MAX {
        return Err(wrong("a name is too long"));
    }
    String::from_utf8(bytes(from, len as usize)?).map_err(|_| wrong("a name is no text"))
}

fn bytes(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Passes bytes on and hashes them.
struct Hashed<T> {
    inner: T,
    sha: Sha256,
}

impl<T> Hashed<T> {
    fn new(inner: T) -> Self {
        Hashed { inner, sha: Sha256::new() }
    }
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sha.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.sha.update(&bytes[..read]);
        Ok(read)
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
