//! Examines an adapter file before any engine sees it: made for this model, of one rank, every number finite, and how
//! large its updates are. The file may come from a stranger.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use chimere_ffi::DType;
use half::f16;
use sha2::{Digest, Sha256};

use crate::gguf::{self, Gguf, TensorInfo};

/// Largest adapter file, bytes.
pub const ADAPTER_BYTES_MAX: u64 = 1 << 30;
const RANK_MAX: u32 = 512;
const TENSOR_BYTES_MAX: u64 = 256 << 20;
const READ_BYTES: usize = 1 << 20;

/// Facts of an adapter file that can be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub bytes: u64,
    pub sha256: String,
    pub rank: u32,
    pub alpha: f32,
    /// Weights that it changes.
    pub targets: usize,
    /// Largest root mean square entry of an update (alpha / rank) · B · A.
    pub update_rms: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{0}")]
    Format(#[from] gguf::Error),
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    #[error("it has {bytes} bytes, more than {ADAPTER_BYTES_MAX}")]
    TooLarge { bytes: u64 },
    #[error("it is no LoRA adapter: {key} is `{found}`, not `{wanted}`")]
    Kind { key: &'static str, found: String, wanted: &'static str },
    #[error("it was made for the model {found}, and {wanted} is served")]
    Base { found: String, wanted: String },
    #[error("its rank is {0}, but must be 1 to {RANK_MAX}")]
    Rank(u32),
    #[error("its alpha is {0}, which is not a positive number")]
    Alpha(f32),
    #[error("tensor {name}: {why}")]
    Tensor { name: String, why: String },
    #[error("it changes no weight")]
    Empty,
}

/// SHA-256 of a file in lower-case hexadecimal, and its length in bytes.
pub fn hash_file(path: &Path) -> io::Result<(String, u64)> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let bytes = io::copy(&mut file, &mut hash)?;
    Ok((hex(&hash.finalize()), bytes))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads and checks the adapter at `path` against the hash of the served base model.
pub fn inspect(path: &Path, base_hash: &str) -> Result<Facts, Fault> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > ADAPTER_BYTES_MAX {
        return Err(Fault::TooLarge { bytes });
    }
    let header = Gguf::open(path)?;
    for (key, wanted) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = header.str(key)?;
        if found != wanted {
            return Err(Fault::Kind { key, found: found.chars().take(40).collect(), wanted });
        }
    }
    let found = header.str("chimere.base_hash")?;
    if found != base_hash {
        let found = found.chars().take(64).collect();
        return Err(Fault::Base { found, wanted: base_hash.to_owned() });
    }
    let (rank, alpha) = (header.u32("chimere.rank")?, header.f32("adapter.lora.alpha")?);
    if !(1..=RANK_MAX).contains(&rank) {
        return Err(Fault::Rank(rank));
    }
    if !alpha.is_finite() || alpha <= 0.0 {
        return Err(Fault::Alpha(alpha));
    }
    let file = File::open(path)?;
    let (mut targets, mut update_rms) = (0, 0f64);
    for a in header.tensors() {
        let Some(base) = a.name.strip_suffix(".lora_a") else {
            let paired = a.name.strip_suffix(".lora_b").is_some_and(|b| header.find(&format!("{b}.lora_a")).is_some());
            if paired {
                continue;
            }
            return Err(fault(a, "belongs to no pair of .lora_a and .lora_b"));
        };
        let b = header.find(&format!("{base}.lora_b")).ok_or_else(|| fault(a, "has no partner .lora_b"))?;
        let rms = update(&file, a, b, rank)? * f64::from(alpha) / f64::from(rank);
        update_rms = update_rms.max(rms);
        targets += 1;
    }
    if targets == 0 {
        return Err(Fault::Empty);
    }
    let (sha256, bytes) = hash_file(path)?;
    Ok(Facts { bytes, sha256, rank, alpha, targets, update_rms })
}

fn fault(tensor: &TensorInfo, why: &str) -> Fault {
    Fault::Tensor { name: tensor.name.clone(), why: why.to_owned() }
}

/// Root mean square entry of B · A. `a` is `[in, rank, …]`, `b` is `[rank, out, …]` in ggml's order; further
/// extents (experts) are slices of their own. ‖B·A‖² = Σᵢⱼ (A·Aᵀ)ᵢⱼ (Bᵀ·B)ᵢⱼ.
fn update(file: &File, a: &TensorInfo, b: &TensorInfo, rank: u32) -> Result<f64, Fault> {
    let rank = rank as usize;
    if a.dims().get(1) != Some(&(rank as u64)) {
        return Err(fault(a, &format!("its shape {:?} is not of rank {rank}", a.dims())));
    }
    if b.dims().len() < 2 || b.row_len() != rank as u64 || a.dims().get(2..) != b.dims().get(2..) {
        return Err(fault(b, &format!("its shape {:?} does not fit {:?} at rank {rank}", b.dims(), a.dims())));
    }
    let (inputs, outputs) = (a.row_len() as usize, b.dims()[1] as usize);
    let (a, b) = (values(file, a)?, values(file, b)?);
    let mut square = 0f64;
    let mut slices = 0usize;
    for (a, b) in a.chunks_exact(inputs * rank).zip(b.chunks_exact(outputs * rank)) {
        slices += 1;
        for i in 0..rank {
            for j in 0..rank {
                let aa: f64 = (0..inputs).map(|k| f64::from(a[i * inputs + k]) * f64::from(a[j * inputs + k])).sum();
                let bb: f64 = b.chunks_exact(rank).map(|row| f64::from(row[i]) * f64::from(row[j])).sum();
                square += aa * bb;
            }
        }
    }
    Ok((square.max(0.0) / (inputs * outputs * slices.max(1)) as f64).sqrt())
}

/// The numbers of a tensor, all finite.
fn values(file: &File, tensor: &TensorInfo) -> Result<Vec<f32>, Fault> {
    let width = match tensor.dtype {
        DType::F32 => 4,
        DType::F16 => 2,
        _ => return Err(fault(tensor, "its type is neither F32 nor F16")),
    };
    if tensor.bytes() > TENSOR_BYTES_MAX {
        return Err(fault(tensor, &format!("it has more than {TENSOR_BYTES_MAX} bytes")));
    }
    let mut numbers = Vec::with_capacity(tensor.elements() as usize);
    let mut buffer = vec![0u8; READ_BYTES];
    let (mut at, end) = (tensor.range.start, tensor.range.end);
    while at < end {
        let piece = &mut buffer[..READ_BYTES.min((end - at) as usize)];
        file.read_exact_at(piece, at)?;
        at += piece.len() as u64;
        match width {
            4 => numbers.extend(piece.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            _ => numbers.extend(piece.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())),
        }
    }
    if numbers.iter().all(|v| v.is_finite()) { Ok(numbers) } else { Err(fault(tensor, "it holds NaN or infinity")) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gguf::Layout;

    pub const BASE: &str = "base-hash";

    /// Writes an adapter of one target, 8 × 6, whose entries are `fill`.
    pub fn adapter(path: &Path, base: &str, said_rank: u32, rank: u64, fill: f32) {
        let mut layout = Layout::new();
        for (key, value) in [("general.type", "adapter"), ("adapter.type", "lora"), ("chimere.base_hash", base)] {
            layout.set(key, value).unwrap();
        }
        layout.set("general.architecture", "qwen35moe").unwrap();
        layout.set("adapter.lora.alpha", 4.0f32).unwrap();
        layout.set("chimere.rank", said_rank).unwrap();
        let pair = [("blk.0.attn_q.weight.lora_a", [8, rank]), ("blk.0.attn_q.weight.lora_b", [rank, 6])];
        for (name, dims) in pair {
            layout.tensor(name, DType::F32, &dims).unwrap();
        }
        let mut writer = layout.create(path).unwrap();
        for (name, dims) in pair {
            let bytes: Vec<u8> = (0..dims[0] * dims[1]).flat_map(|_| fill.to_le_bytes()).collect();
            writer.write(name, &bytes).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn a_good_adapter_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        adapter(&path, BASE, 2, 2, 0.5);
        let facts = inspect(&path, BASE).unwrap();
        assert_eq!((facts.rank, facts.alpha, facts.targets), (2, 4.0, 1));
        // Every entry of B · A is 2 · 0.25, times alpha / rank = 2.
        assert!((facts.update_rms - 1.0).abs() < 1e-9, "{facts:?}");
        assert_eq!((facts.sha256.clone(), facts.bytes), hash_file(&path).unwrap());
    }

    #[test]
    fn hostile_adapters_are_refused_with_their_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        let reason = |path: &Path| inspect(path, BASE).unwrap_err().to_string();
        for (base, said, rank, fill, words) in [
            ("another", 2, 2, 0.1, "made for the model another"),
            (BASE, 3, 2, 0.1, "is not of rank 3"),
            (BASE, 0, 2, 0.1, "rank is 0"),
            (BASE, 2, 2, f32::NAN, "NaN or infinity"),
            (BASE, 2, 2, f32::INFINITY, "NaN or infinity"),
        ] {
            adapter(&path, base, said, rank, fill);
            assert!(reason(&path).contains(words), "{}", reason(&path));
        }
        std::fs::write(&path, b"GGUFnonsense").unwrap();
        assert!(inspect(&path, BASE).is_err());
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/mini/model.gguf");
        assert!(inspect(&model, BASE).is_err(), "a model is no adapter");
        assert!(inspect(&dir.path().join("none"), BASE).is_err());
    }
}
