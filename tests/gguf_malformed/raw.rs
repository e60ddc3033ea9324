//! Files put together by hand, so that every number in them can be wrong.

/// A small source of random numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A tensor's description.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: Vec<u8>,
    pub(crate) n_dims: u32,
    pub(crate) dims: Vec<u64>,
    pub(crate) dtype: u32,
    pub(crate) offset: u64,
}

impl Tensor {
    pub(crate) fn new(name: &str, dims: &[u64], dtype: u32, offset: u64) -> Tensor {
        let (name, n_dims, dims) = (name.into(), dims.len() as u32, dims.to_vec());
        Tensor { name, n_dims, dims, dtype, offset }
    }
}

/// A file before it becomes bytes.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) magic: Vec<u8>,
    pub(crate) version: u32,
    /// `None`: as many as there are.
    pub(crate) tensor_count: Option<u64>,
    pub(crate) key_count: Option<u64>,
    /// Name and the bytes that follow it (type and value).
    pub(crate) keys: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) tensors: Vec<Tensor>,
    /// Bytes of tensor data after the padding.
    pub(crate) data: usize,
    pub(crate) alignment: usize,
}

impl Raw {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.clone();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(string(key));
            out.extend(value);
        }
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend(t.n_dims.to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.dtype.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment) + self.data, 0);
        out
    }

    /// Sets or replaces a key.
    pub(crate) fn key(mut self, key: &str, value: Vec<u8>) -> Raw {
        self.keys.retain(|(k, _)| k != key.as_bytes());
        self.keys.push((key.into(), value));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Raw {
        self.keys.retain(|(k, _)| k != key.as_bytes());
        self
    }

    pub(crate) fn tensor(mut self, tensor: Tensor) -> Raw {
        self.tensors = vec![tensor];
        self
    }
}

/// A length and that many bytes.
pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// A value of type `kind` with these bytes.
pub(crate) fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], bytes].concat()
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    value(8, &string(text.as_bytes()))
}

pub(crate) fn number(v: u32) -> Vec<u8> {
    value(4, &v.to_le_bytes())
}

/// An array that claims `len` elements of type `kind` and has these bytes.
pub(crate) fn array(kind: u32, len: u64, bytes: &[u8]) -> Vec<u8> {
    value(9, &[&kind.to_le_bytes()[..], &len.to_le_bytes(), bytes].concat())
}

pub(crate) fn strings(items: &[&str]) -> Vec<u8> {
    let bytes: Vec<u8> = items.iter().flat_map(|s| string(s.as_bytes())).collect();
    array(8, items.len() as u64, &bytes)
}

pub(crate) fn ints(items: &[i32]) -> Vec<u8> {
    array(5, items.len() as u64, &items.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<_>>())
}

pub(crate) fn floats(items: &[f32]) -> Vec<u8> {
    array(6, items.len() as u64, &items.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<_>>())
}

/// A sound file: metadata, a vocabulary of four tokens, two tensors.
pub(crate) fn base() -> Raw {
    Raw {
        magic: b"GGUF".to_vec(),
        version: 3,
        tensor_count: None,
        key_count: None,
        keys: vec![
            (b"general.architecture".to_vec(), text("qwen35moe")),
            (b"qwen35moe.block_count".to_vec(), number(1)),
            (b"tokenizer.ggml.model".to_vec(), text("gpt2")),
            (b"tokenizer.ggml.tokens".to_vec(), strings(&["a", "b", "ab", "<|end|>"])),
            (b"tokenizer.ggml.token_type".to_vec(), ints(&[1, 1, 1, 3])),
            (b"tokenizer.ggml.scores".to_vec(), floats(&[0.0, -1.0, -2.0, 0.0])),
            (b"tokenizer.ggml.merges".to_vec(), strings(&["a b"])),
            (b"tokenizer.ggml.eos_token_id".to_vec(), number(3)),
        ],
        tensors: vec![Tensor::new("token_embd.weight", &[32, 4], 0, 0), Tensor::new("norm.weight", &[32], 0, 512)],
        data: 640,
        alignment: 32,
    }
}
