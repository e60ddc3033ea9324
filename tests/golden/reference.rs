//! PyTorch's logits for the small reference model, and the measure of agreement.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use chimere::eval::agree::divergence;
use chimere::quantize::requantize;
use chimere_ffi::DType;
use flate2::read::GzDecoder;

pub(crate) const PROMPTS: usize = 3;
pub(crate) const VOCAB: usize = 544;

/// The model with every weight in f32. The file keeps the large matrices in bfloat16, in which they are exact.
pub(crate) fn model() -> PathBuf {
    static EXPANDED: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reference-{}.gguf", std::process::id()));
        requantize(&data("model.gguf"), &path, |_| DType::F32, |_, _| {}).unwrap();
        // Another run reads one or the other, which are alike.
        let shared = path.with_file_name("reference-f32.gguf");
        fs::rename(path, &shared).unwrap();
        shared
    });
    EXPANDED.clone()
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/mini").join(name)
}

fn cells(name: &str) -> Vec<[u8; 4]> {
    let bytes = fs::read(data(name)).unwrap();
    let (cells, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    cells.to_vec()
}

/// Numbers that are packed by the place of their bytes: the first of each, then the second of each, and so on.
fn unpacked(name: &str) -> Vec<f32> {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(data(name)).unwrap()).read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() % 4, 0);
    let planes: Vec<&[u8]> = bytes.chunks_exact((bytes.len() / 4).max(1)).collect();
    (0..bytes.len() / 4).map(|n| f32::from_le_bytes([planes[0][n], planes[1][n], planes[2][n], planes[3][n]])).collect()
}

/// Ids of prompt `n`.
pub(crate) fn ids(n: usize) -> Vec<u32> {
    cells(&format!("prompt{n}.ids.i32")).into_iter().map(|c| i32::from_le_bytes(c) as u32).collect()
}

/// PyTorch's logits of prompt `n`: a row a position.
pub(crate) fn logits(n: usize) -> Vec<f32> {
    unpacked(&format!("prompt{n}.logits.f32.gz"))
}

/// PyTorch's logits of the multi-token-prediction layer: one row fewer.
pub(crate) fn mtp_logits(n: usize) -> Vec<f32> {
    unpacked(&format!("prompt{n}.mtp-logits.f32.gz"))
}

/// Largest KL divergence of a row from the reference's, in nats.
pub(crate) fn kl_max(reference: &[f32], rows: &[f32], vocab: usize) -> f64 {
    assert_eq!(reference.len(), rows.len());
    assert!(!rows.is_empty() && rows.iter().all(|v| v.is_finite()));
    kls(reference, rows, vocab).fold(0.0, f64::max)
}

/// Mean KL divergence of the rows from the reference's, in nats.
pub(crate) fn kl_mean(reference: &[f32], rows: &[f32], vocab: usize) -> f64 {
    assert_eq!(reference.len(), rows.len());
    kls(reference, rows, vocab).sum::<f64>() / (rows.len() / vocab) as f64
}

fn kls<'a>(reference: &'a [f32], rows: &'a [f32], vocab: usize) -> impl Iterator<Item = f64> + 'a {
    reference.chunks_exact(vocab).zip(rows.chunks_exact(vocab)).map(|(p, q)| divergence(p, q))
}
