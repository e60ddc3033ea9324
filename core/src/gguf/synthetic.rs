//! Models with random weights. They are made in seconds, as large as memory-bound measurements
//! need. They are unforgiving in tests, since a random model has no redundancy that hides a wrong
//! stage.
//!
//! A tensor's data is drawn from a pool of quantised random blocks, in random order. So every type
//! has realistic scales, and writing runs at the speed of the disk.

mod qwen35moe;

use std::path::Path;

use chimere_ffi::DType;
use chimere_ffi::ggml::quant;

use super::{Error, Layout, Strings, Value};

pub use qwen35moe::{Qwen35Moe, Types};

/// Blocks of a pool; a prime, so that no row length divides it.
const POOL_BLOCKS: usize = 1_021;
/// Bytes handed to the writer at a time.
const PIECE_BYTES: usize = 4 << 20;

/// How the values of a tensor are drawn.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// Mean and standard deviation of a normal distribution.
    Normal(f32, f32),
    /// Lowest and highest of a uniform distribution.
    Uniform(f32, f32),
}

/// A model under construction: metadata and tensors, then [`Synthetic::write`].
#[derive(Clone, Debug)]
pub struct Synthetic {
    architecture: String,
    layout: Layout,
    fills: Vec<(String, DType, u64, Fill)>,
}

impl Synthetic {
    /// A model of `architecture` without tensors.
    pub fn new(architecture: &str) -> Result<Synthetic, Error> {
        let mut layout = Layout::new();
        layout.set("general.architecture", architecture)?;
        layout.set("general.name", format!("random {architecture}"))?;
        Ok(Synthetic { architecture: architecture.into(), layout, fills: Vec::new() })
    }

    /// Sets a metadata value; a key that starts with `.` belongs to the architecture.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), Error> {
        match key.starts_with('.') {
            true => self.layout.set(&format!("{}{key}", self.architecture), value),
            false => self.layout.set(key, value),
        }
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, dtype: DType, dims: &[u64], fill: Fill) -> Result<(), Error> {
        self.layout.tensor(name, dtype, dims)?;
        self.fills.push((name.into(), dtype, dims.iter().product(), fill));
        Ok(())
    }

    /// Adds a matrix of normal weights that keep the size of what passes through: standard
    /// deviation 1/√inputs.
    pub fn matrix(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Result<(), Error> {
        let inputs = dims.first().copied().unwrap_or(1).max(1);
        self.tensor(name, dtype, dims, Fill::Normal(0.0, 1.0 / (inputs as f32).sqrt()))
    }

    /// Adds the f32 weights of a norm, near one.
    pub fn norm(&mut self, name: &str, dims: &[u64]) -> Result<(), Error> {
        self.tensor(name, DType::F32, dims, Fill::Normal(1.0, 0.1))
    }

    /// Adds a byte-level vocabulary of `len` entries, at least 300: the 256 bytes, fillers that no
    /// text uses, and the control tokens `<|endoftext|>` (the last but two), `<|im_start|>`, `<|im_end|>`.
    pub fn byte_vocabulary(&mut self, pre: &str, len: usize) -> Result<(), Error> {
        let len = len.max(300);
        let fillers = (0..len - 259).map(|i| format!("t{i}"));
        let controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(String::from);
        let tokens: Strings = byte_letters().map(String::from).chain(fillers).chain(controls).collect();
        let types: Vec<i32> = (0..len).map(|i| if i + 3 < len { 1 } else { 3 }).collect();
        self.set("tokenizer.ggml.model", "gpt2")?;
        self.set("tokenizer.ggml.pre", pre)?;
        self.set("tokenizer.ggml.tokens", tokens)?;
        self.set("tokenizer.ggml.token_type", types)?;
        self.set("tokenizer.ggml.merges", ["t 0"].iter().collect::<Strings>())?;
        self.set("tokenizer.ggml.bos_token_id", (len - 3) as u32)?;
        self.set("tokenizer.ggml.eos_token_id", (len - 1) as u32)?;
        self.set("tokenizer.ggml.add_bos_token", false)
    }

    /// The header of the model's file, and the length that the file would have.
    pub fn header(&self) -> (Vec<u8>, u64) {
        let header = self.layout.header();
        let len = header.len() as u64 + self.layout.data_bytes();
        (header, len)
    }

    /// Writes the model; the same seed gives the same file. `progress` is told the bytes written so
    /// far and in all. Returns the length of the file.
    pub fn write(self, path: &Path, seed: u64, mut progress: impl FnMut(u64, u64)) -> Result<u64, Error> {
        let total = self.layout.data_bytes();
        let mut writer = self.layout.create(path)?;
        let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15);
        let mut pools: Vec<(DType, [u32; 3], Vec<u8>)> = Vec::new();
        let mut done = 0;
        for (name, dtype, elements, fill) in self.fills {
            let key = fill.key();
            if !pools.iter().any(|(d, k, _)| *d == dtype && *k == key) {
                pools.push((dtype, key, pool(dtype, fill, &mut random)));
            }
            let Some((_, _, pool)) = pools.iter().find(|(d, k, _)| *d == dtype && *k == key) else {
                continue;
            };
            let mut blocks = elements / dtype.block_len() as u64;
            while blocks > 0 {
                let now = blocks.min((PIECE_BYTES / dtype.block_bytes()) as u64);
                writer.write(&name, &draw(pool, dtype.block_bytes(), now as usize, &mut random))?;
                blocks -= now;
                done += now * dtype.block_bytes() as u64;
                progress(done, total);
            }
        }
        writer.finish()
    }
}

impl Fill {
    /// Tells pools apart.
    fn key(self) -> [u32; 3] {
        match self {
            Fill::Normal(a, b) => [0, a.to_bits(), b.to_bits()],
            Fill::Uniform(a, b) => [1, a.to_bits(), b.to_bits()],
        }
    }

    fn value(self, random: &mut Random) -> f32 {
        match self {
            // The sum of twelve uniform numbers has variance one and is near enough to normal.
            Fill::Normal(mean, deviation) => mean + deviation * ((0..12).map(|_| random.uniform()).sum::<f32>() - 6.0),
            Fill::Uniform(low, high) => low + (high - low) * random.uniform(),
        }
    }
}

/// `POOL_BLOCKS` blocks of random values. The values are finite and far below any type's limit, so
/// the conversion cannot fail.
fn pool(dtype: DType, fill: Fill, random: &mut Random) -> Vec<u8> {
    let values: Vec<f32> = (0..POOL_BLOCKS * dtype.block_len()).map(|_| fill.value(random)).collect();
    quant::quantize(dtype, &values, dtype.block_len(), None).unwrap_or_default()
}

/// `count` blocks drawn from `pool`: runs of random length from random starts.
fn draw(pool: &[u8], block: usize, count: usize, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::with_capacity(count * block);
    while out.len() < count * block {
        let start = random.below(POOL_BLOCKS);
        let run = (1 + random.below(63)).min(POOL_BLOCKS - start).min(count - out.len() / block);
        out.extend_from_slice(&pool[start * block..(start + run) * block]);
    }
    out
}

/// splitmix64: small, fast, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 … 1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The letters that byte-level vocabularies write the 256 bytes with: printable Latin-1 as itself,
/// the rest from U+0100 on.
fn byte_letters() -> impl Iterator<Item = char> {
    let printable = |b: u32| (0x21..=0x7e).contains(&b) || (0xa1..=0xac).contains(&b) || (0xae..=0xff).contains(&b);
    let moved = (0..68).filter_map(|i| char::from_u32(0x100 + i));
    (0..256).filter(move |b| printable(*b)).filter_map(char::from_u32).chain(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_have_256_letters() {
        let letters: std::collections::BTreeSet<char> = byte_letters().collect();
        assert_eq!(letters.len(), 256);
        assert!(letters.contains(&'Ġ') && letters.contains(&'Ċ'), "space and newline");
    }

    #[test]
    fn a_seed_gives_one_file_and_values_have_the_asked_spread() {
        let dir = tempfile::tempdir().unwrap();
        let make = |seed| {
            let mut model = Synthetic::new("test").unwrap();
            model.matrix("m", DType::F32, &[256, 256]).unwrap();
            model.tensor("q", DType::Q4_K, &[512, 64], Fill::Uniform(-1.0, 1.0)).unwrap();
            let path = dir.path().join("model.gguf");
            let len = model.write(&path, seed, |_, _| {}).unwrap();
            let bytes = std::fs::read(path).unwrap();
            assert_eq!(bytes.len() as u64, len);
            bytes
        };
        let (a, b, c) = (make(1), make(1), make(2));
        assert!(a == b && a != c);
        let gguf = super::super::Gguf::read(&a[..], a.len() as u64).unwrap();
        let range = gguf.tensor("m").unwrap().range.clone();
        let (cells, _) = a[range.start as usize..range.end as usize].as_chunks::<4>();
        let squares: f32 = cells.iter().map(|c| f32::from_le_bytes(*c).powi(2)).sum();
        let deviation = (squares / cells.len() as f32).sqrt();
        assert!((deviation - 1.0 / 16.0).abs() < 0.004, "{deviation}");
    }
}
