//! The file of an adapter: GGUF as llama.cpp reads it, with our own keys beside: format, base hash, rank and digest.
//! Read whole, bounded, before anything is believed; written aside, synced and renamed.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use chimere_ffi::DType;
use sha2::{Digest, Sha256};

use super::{ALPHA_MAX, Adapter, AdapterError, BaseModel, FILE_BYTES_MAX, Factors, RANK_MAX, Shape, hex};
use crate::gguf::{Gguf, Layout, TensorInfo};

/// Version of our keys.
const FORMAT: u32 = 1;
const KEY_FORMAT: &str = "chimere.format";
const KEY_BASE: &str = "chimere.base_hash";
const KEY_RANK: &str = "chimere.rank";
const KEY_DIGEST: &str = "chimere.digest";
const KEY_ALPHA: &str = "adapter.lora.alpha";
const SUFFIX_A: &str = ".lora_a";
const SUFFIX_B: &str = ".lora_b";

/// Reads the adapter at `path` and checks it against `base`; also returns the file's length and SHA-256.
pub fn read(path: &Path, base: &BaseModel) -> Result<(Adapter, u64, String), AdapterError> {
    let bytes = read_bytes(path)?;
    let adapter = parse(&bytes, base)?;
    Ok((adapter, bytes.len() as u64, hex(&Sha256::digest(&bytes))))
}

/// Length and SHA-256 of an adapter file, its content not looked at.
pub fn sha256_of(path: &Path) -> Result<(u64, String), AdapterError> {
    let bytes = read_bytes(path)?;
    Ok((bytes.len() as u64, hex(&Sha256::digest(&bytes))))
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, AdapterError> {
    let failed = |source| AdapterError::Read { path: path.display().to_string(), source };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    if found > FILE_BYTES_MAX {
        return Err(AdapterError::TooLarge { found });
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 {
        found if found > FILE_BYTES_MAX => Err(AdapterError::TooLarge { found }),
        _ => Ok(bytes),
    }
}

/// Reads an adapter from the bytes of its file.
pub(super) fn parse(bytes: &[u8], base: &BaseModel) -> Result<Adapter, AdapterError> {
    let header = Gguf::read(bytes, bytes.len() as u64)?;
    says(&header, "general.type", "adapter")?;
    says(&header, "adapter.type", "lora")?;
    says(&header, "general.architecture", &base.architecture)?;
    let format = header.u32(KEY_FORMAT)?;
    if format != FORMAT {
        return Err(wrong(KEY_FORMAT, format, "1"));
    }
    let base_hash = header.str(KEY_BASE)?.to_owned();
    if base_hash != base.hash {
        return Err(AdapterError::Base { found: base_hash, wanted: base.hash.clone() });
    }
    let rank = header.u32(KEY_RANK)? as usize;
    if rank == 0 || rank > RANK_MAX {
        return Err(wrong(KEY_RANK, rank, "between 1 and 64"));
    }
    let alpha = header.f32(KEY_ALPHA)?;
    if !(alpha > 0.0 && alpha <= ALPHA_MAX) {
        return Err(wrong(KEY_ALPHA, alpha, "above 0 and at most 65536"));
    }
    let factors = factors(&header, bytes, base, rank)?;
    let adapter = Adapter { architecture: base.architecture.clone(), base_hash, rank, alpha, factors };
    let (found, wanted) = (adapter.digest(), header.str(KEY_DIGEST)?.to_owned());
    if found == wanted { Ok(adapter) } else { Err(AdapterError::Digest { found, wanted }) }
}

fn wrong(key: &str, found: impl ToString, wanted: &str) -> AdapterError {
    AdapterError::Value { key: key.into(), found: found.to_string(), wanted: wanted.into() }
}

fn says(header: &Gguf, key: &str, wanted: &str) -> Result<(), AdapterError> {
    let found = header.str(key)?;
    if found == wanted { Ok(()) } else { Err(wrong(key, format!("{found:?}"), &format!("{wanted:?}"))) }
}

/// Pairs A with B, each checked against the base matrix.
fn factors(header: &Gguf, bytes: &[u8], base: &BaseModel, rank: usize) -> Result<Vec<Factors>, AdapterError> {
    let mut list = Vec::new();
    for tensor in header.tensors() {
        let refuse = |reason: &str| AdapterError::Tensor { name: tensor.name.clone(), reason: reason.into() };
        let Some(name) = tensor.name.strip_suffix(SUFFIX_A) else {
            let pair = tensor.name.strip_suffix(SUFFIX_B).map(|name| format!("{name}{SUFFIX_A}"));
            match pair.map(|pair| header.find(&pair).is_some()) {
                Some(true) => continue,
                Some(false) => return Err(refuse("its .lora_a is missing")),
                None => return Err(refuse("names end in .lora_a or .lora_b")),
            }
        };
        let Some(shape) = base.shape(name) else {
            return Err(refuse("the base model has no such matrix that an adapter may change"));
        };
        let b = header.find(&format!("{name}{SUFFIX_B}")).ok_or_else(|| refuse("its .lora_b is missing"))?;
        let Shape { inputs, outputs, experts } = shape;
        let a = values(tensor, [inputs, rank, experts], bytes)?;
        let b = values(b, [rank, outputs, experts], bytes)?;
        list.push(Factors { tensor: name.to_owned(), shape, a, b });
    }
    list.sort_by(|x, y| x.tensor.cmp(&y.tensor));
    if list.is_empty() { Err(AdapterError::Empty) } else { Ok(list) }
}

/// The values of one factor, its shape `[fastest, …]` and every value checked.
fn values(tensor: &TensorInfo, wanted: [usize; 3], bytes: &[u8]) -> Result<Vec<f32>, AdapterError> {
    let refuse = |reason: String| AdapterError::Tensor { name: tensor.name.clone(), reason };
    let dims = tensor.dims();
    let extent = |i: usize| dims.get(i).copied().unwrap_or(1);
    if dims.len() > 3 || (0..3).any(|i| extent(i) != wanted[i] as u64) {
        return Err(refuse(format!("its shape is {dims:?} where {wanted:?} is needed")));
    }
    let data = usize::try_from(tensor.range.start).ok().zip(usize::try_from(tensor.range.end).ok());
    let data =
        data.and_then(|(start, end)| bytes.get(start..end)).ok_or_else(|| refuse("it lies outside the file".into()))?;
    let list: Vec<f32> = match tensor.dtype {
        DType::F32 => data.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect(),
        DType::F16 => data.as_chunks::<2>().0.iter().map(|c| half::f16::from_le_bytes(*c).to_f32()).collect(),
        other => return Err(refuse(format!("its type is {other:?}, F32 or F16 is needed"))),
    };
    match list.iter().position(|v| !v.is_finite()) {
        Some(at) => Err(refuse(format!("value {at} is {}", list[at]))),
        None => Ok(list),
    }
}

impl Adapter {
    /// Writes the file; it appears under its name only when it is whole and on the disk. Returns its length and SHA-256.
    pub fn write(&self, path: &Path) -> Result<(u64, String), AdapterError> {
        let mut layout = Layout::new();
        layout.set("general.type", "adapter")?;
        layout.set("general.architecture", self.architecture.as_str())?;
        layout.set(KEY_FORMAT, FORMAT)?;
        layout.set("adapter.type", "lora")?;
        layout.set(KEY_ALPHA, self.alpha)?;
        layout.set(KEY_BASE, self.base_hash.as_str())?;
        layout.set(KEY_RANK, self.rank as u32)?;
        layout.set(KEY_DIGEST, self.digest())?;
        for f in &self.factors {
            let Shape { inputs, outputs, experts } = f.shape;
            let dims = |first: usize, second: usize| match experts {
                1 => vec![first as u64, second as u64],
                n => vec![first as u64, second as u64, n as u64],
            };
            layout.tensor(&format!("{}{SUFFIX_A}", f.tensor), DType::F32, &dims(inputs, self.rank))?;
            layout.tensor(&format!("{}{SUFFIX_B}", f.tensor), DType::F32, &dims(self.rank, outputs))?;
        }
        let mut writer = layout.create(path)?;
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        for f in &self.factors {
            writer.write(&format!("{}{SUFFIX_A}", f.tensor), &bytes(&f.a))?;
            writer.write(&format!("{}{SUFFIX_B}", f.tensor), &bytes(&f.b))?;
        }
        writer.finish()?;
        sha256_of(path)
    }
}
