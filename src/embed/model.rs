//! A static embedding model: one vector for each token of its own tokenizer; a text is the sum of its tokens' vectors,
//! made one long. The file is GGUF: architecture `static-embedding`, `token_embd.weight` in Q8_0 or F32, and a
//! byte-level BPE vocabulary under the usual keys. It needs no engine and fits every served model.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use chimere_ffi::DType;
use half::f16;
use sha2::{Digest, Sha256};

use super::EmbedError;
use crate::engine::tokenizer::Bpe;
use crate::engine::vocab::Vocab;
use crate::gguf::Gguf;

/// File beside the model that is taken where none is named.
pub const FILE: &str = "nano-embed.gguf";
pub const ARCHITECTURE: &str = crate::engine::embedder::TABLE;
const TENSOR: &str = "token_embd.weight";
/// Largest file, and longest vector.
const FILE_BYTES_MAX: u64 = 1 << 30;
const WIDTH_MAX: usize = 4_096;
/// Tokens of a text that are read.
pub const TOKENS_MAX: usize = 256;
/// ggml's Q8_0: a scale in f16 and 32 values.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 2 + BLOCK;

/// Token vectors and the tokenizer that they belong to.
pub struct Static {
    name: String,
    width: usize,
    vectors: Vec<f32>,
    vocab: Bpe,
    /// SHA-256 of the file.
    digest: [u8; 32],
}

impl Static {
    pub fn open(path: &Path) -> Result<Static, EmbedError> {
        let failed = |source| EmbedError::Io { path: path.display().to_string(), source };
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(EmbedError::Model(format!("it is larger than {FILE_BYTES_MAX} bytes")));
        }
        Static::read(&bytes)
    }

    /// Reads a model from the bytes of its file.
    pub fn read(bytes: &[u8]) -> Result<Static, EmbedError> {
        let gguf = Gguf::read(bytes, bytes.len() as u64)?;
        let wrong = |what: &str| EmbedError::Model(what.to_owned());
        let architecture = gguf.architecture()?;
        if architecture != ARCHITECTURE {
            let what =
                format!("its architecture is `{architecture}`, and a table of token vectors is `{ARCHITECTURE}`");
            return Err(EmbedError::Model(what));
        }
        let tensor = gguf.tensor(TENSOR)?;
        let width = tensor.row_len() as usize;
        if tensor.dims().len() != 2 || width > WIDTH_MAX {
            return Err(wrong("its token vectors have a shape that is not known"));
        }
        let range = tensor.range.start as usize..tensor.range.end as usize;
        let data = bytes.get(range).ok_or_else(|| wrong("its token vectors lie outside the file"))?;
        let vectors: Vec<f32> = match tensor.dtype {
            DType::F32 => data.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect(),
            DType::Q8_0 => data.as_chunks::<BLOCK_BYTES>().0.iter().flat_map(unpacked).collect(),
            _ => return Err(wrong("its token vectors must be Q8_0 or F32")),
        };
        if vectors.len() as u64 != tensor.elements() || vectors.iter().any(|v| !v.is_finite()) {
            return Err(wrong("its token vectors are no finite numbers"));
        }
        let vocab = Bpe::from_gguf(&gguf).map_err(|error| EmbedError::Model(error.to_string()))?;
        if vocab.len() as u64 != tensor.rows() {
            return Err(wrong("it has not one vector for each of its tokens"));
        }
        let name = gguf.optional("general.name")?.unwrap_or(ARCHITECTURE).to_owned();
        Ok(Static { name, width, vectors, vocab, digest: Sha256::digest(bytes).into() })
    }

    /// What the file calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens of its vocabulary.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// Values of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// SHA-256 of the file: vectors of other models are not comparable.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Tokens of a text. What the tokenizer cannot read has none.
    pub fn tokens(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        match self.vocab.encode(text, false, &mut ids) {
            Ok(()) => ids,
            Err(_) => Vec::new(),
        }
    }

    /// The text's direction, one long; zero where it has no token.
    pub fn embed(&self, text: &str) -> Vec<f32> {
        self.embed_tokens(&self.tokens(text))
    }

    /// The same of a text's tokens.
    pub fn embed_tokens(&self, ids: &[u32]) -> Vec<f32> {
        let mut sum = vec![0.0f32; self.width];
        for &id in ids.iter().take(TOKENS_MAX) {
            let at = id as usize * self.width;
            let Some(vector) = self.vectors.get(at..at + self.width) else { continue };
            sum.iter_mut().zip(vector).for_each(|(s, v)| *s += v);
        }
        let length = sum.iter().map(|v| v * v).sum::<f32>().sqrt();
        if length > 0.0 {
            sum.iter_mut().for_each(|v| *v /= length);
        }
        sum
    }
}

fn unpacked(block: &[u8; BLOCK_BYTES]) -> impl Iterator<Item = f32> + '_ {
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
    block[2..].iter().map(move |v| f32::from(*v as i8) * scale)
}

/// The bytes of a small model in F32 whose tokens are the bytes, for tests. `vector`: value `d` of token `id`.
#[cfg(feature = "llama")]
#[cfg(test)]
pub(crate) fn small(width: usize, vector: impl Fn(usize, usize) -> f32) -> Vec<u8> {
    use crate::gguf::Layout;
    use crate::gguf::synthetic::Synthetic;
    const TOKENS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("e.gguf");
    let mut donor = Synthetic::new(ARCHITECTURE).unwrap();
    donor.byte_vocabulary("qwen2", TOKENS).unwrap();
    donor.write(&path, 1, |_, _| ()).unwrap();
    let mut layout = Layout::new();
    for (key, value) in Gguf::open(&path).unwrap().metadata() {
        layout.set(key, value.clone()).unwrap();
    }
    layout.tensor(TENSOR, DType::F32, &[width as u64, TOKENS as u64]).unwrap();
    let mut writer = layout.create(&path).unwrap();
    let values = (0..TOKENS).flat_map(|t| (0..width).map(move |d| (t, d)));
    let bytes: Vec<u8> = values.flat_map(|(t, d)| vector(t, d).to_le_bytes()).collect();
    writer.write(TENSOR, &bytes).unwrap();
    writer.finish().unwrap();
    std::fs::read(&path).unwrap()
}

#[cfg(feature = "llama")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_direction_of_its_tokens_sum() {
        let id = |text: &str| Static::read(&small(1, |_, _| 1.0)).unwrap().tokens(text)[0] as usize;
        let (a, b) = (id("a"), id("b"));
        let bytes = small(2, |token, d| {
            if token == a {
                [3.0, 0.0][d]
            } else if token == b {
                [0.0, 4.0][d]
            } else {
                0.0
            }
        });
        let model = Static::read(&bytes).unwrap();
        assert_eq!(model.embed("aa"), [1.0, 0.0]);
        // (3, 0) + (0, 4), made one long; what stands for nothing counts nothing.
        let both = model.embed("a b");
        assert!((both[0] - 0.6).abs() < 1e-6 && (both[1] - 0.8).abs() < 1e-6, "{both:?}");
        assert_eq!(model.embed(""), [0.0, 0.0]);
        // Longer texts are read up to a limit.
        assert_eq!(model.embed(&("a".repeat(TOKENS_MAX) + "b")), [1.0, 0.0]);
    }

    #[test]
    fn what_is_no_embedding_model_is_refused_with_its_reason() {
        let good = small(2, |_, _| 1.0);
        for cut in [0, 10, good.len() / 2, good.len() - 1] {
            assert!(Static::read(&good[..cut]).is_err(), "{cut}");
        }
        let nan = small(2, |_, _| f32::NAN);
        assert!(Static::read(&nan).err().unwrap().to_string().contains("finite"));
        let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/nano-prm.gguf");
        let why = Static::open(&chat).err().unwrap().to_string();
        assert!(why.contains("static-embedding"), "{why}");
    }

    #[test]
    fn the_shipped_model_knows_what_belongs_together() {
        let model = Static::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("nano").join(FILE)).unwrap();
        let like = |a: &str, b: &str| model.embed(a).iter().zip(model.embed(b)).map(|(x, y)| x * y).sum::<f32>();
        let question = "How do I stretch my hamstrings after running?";
        let near = like(question, "Sit on the floor with your legs straight and reach for your toes.");
        let far = like(question, "An attacker sends a crafted packet to overflow the buffer.");
        assert!(near > far + 0.1, "{near} and {far}");
    }
}
