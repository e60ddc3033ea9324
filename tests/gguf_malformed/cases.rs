//! The corpus: each case with a part of the message that it must give.

use chimere_ffi::DType;

use crate::raw::{Raw, Tensor, array, base, floats, ints, number, string, strings, text, value};

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) reason: &'static str,
}

struct Corpus(Vec<Case>);

impl Corpus {
    fn add(&mut self, name: impl Into<String>, raw: &Raw, reason: &'static str) {
        self.bytes(name, raw.bytes(), reason);
    }

    fn bytes(&mut self, name: impl Into<String>, bytes: Vec<u8>, reason: &'static str) {
        self.0.push(Case { name: name.into(), bytes, reason });
    }
}

pub(crate) fn all() -> Vec<Case> {
    let mut c = Corpus(Vec::new());
    truncations(&mut c);
    preamble(&mut c);
    keys(&mut c);
    arrays(&mut c);
    alignment_and_splits(&mut c);
    tensor_descriptions(&mut c);
    tensor_types(&mut c);
    placement(&mut c);
    vocabulary_parts(&mut c);
    vocabulary_ids(&mut c);
    c.0
}

/// Numbers that overflow, wrap or exhaust where nobody looks.
const HUGE: [u64; 6] = [1 << 31, u32::MAX as u64, 1 << 32, 1 << 62, 1 << 63, u64::MAX];

fn truncations(c: &mut Corpus) {
    let whole = base().bytes();
    let header = whole.len() - 640;
    for len in (0..header).step_by(7) {
        c.bytes(format!("header cut at {len}"), whole[..len].to_vec(), "cut short");
    }
    for len in [header, header + 1, header + 511, header + 639] {
        c.bytes(format!("data cut at {len}"), whole[..len].to_vec(), "cut short");
    }
}

fn preamble(c: &mut Corpus) {
    for magic in [&b"GGML"[..], b"GGJT", b"FUGG", b"gguf", b"PK\x03\x04", b"\0\0\0\0", b"\x7fELF", b"{\"a\""] {
        let raw = Raw { magic: magic.to_vec(), ..base() };
        c.add(format!("magic {}", magic.escape_ascii()), &raw, "not a GGUF file");
    }
    for version in [0, 1, 4, 100, u32::MAX] {
        c.add(format!("version {version}"), &Raw { version, ..base() }, "version");
    }
    for version in [2_u32.swap_bytes(), 3_u32.swap_bytes()] {
        c.add(format!("big-endian {version}"), &Raw { version, ..base() }, "big-endian");
    }
    for count in [65_537, 1 << 20].into_iter().chain(HUGE) {
        c.add(format!("{count} tensors"), &Raw { tensor_count: Some(count), ..base() }, "tensor count");
        c.add(format!("{count} keys"), &Raw { key_count: Some(count), ..base() }, "key count");
    }
    for count in [100, 1_000, 16_384] {
        c.add(format!("{count} tensors in a small file"), &Raw { tensor_count: Some(count), ..base() }, "cut short");
        c.add(format!("{count} keys in a small file"), &Raw { key_count: Some(count), ..base() }, "cut short");
    }
    c.add("one key too many", &Raw { key_count: Some(9), ..base() }, "");
    c.add("one key too few", &Raw { key_count: Some(7), ..base() }, "");
}

/// The file's first key, replaced by these bytes (length, name, type, value).
fn first_key(bytes: &[u8]) -> Vec<u8> {
    let raw = Raw { key_count: Some(1), keys: vec![], tensors: vec![], data: 0, ..base() };
    let mut out = raw.bytes()[..24].to_vec();
    out.extend(bytes);
    out.resize(out.len() + 64, 0);
    out
}

/// Byte sequences that are not UTF-8.
const NOT_UTF8: [&[u8]; 6] = [b"\xff", b"ab\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe6\xbc"];

fn keys(c: &mut Corpus) {
    for len in [1_025, 1 << 20].into_iter().chain(HUGE) {
        let key = [&len.to_le_bytes()[..], b"general"].concat();
        c.bytes(format!("key of {len} bytes"), first_key(&key), "length of the name of key 0");
        let string = [&string(b"k")[..], &8_u32.to_le_bytes(), &(len << 14).max(len).to_le_bytes()].concat();
        c.bytes(format!("string of {len} << 14 bytes"), first_key(&string), "key \"k\"");
    }
    c.bytes("empty key", first_key(&string(b"")), "empty");
    for (i, bad) in NOT_UTF8.into_iter().enumerate() {
        c.bytes(format!("key not UTF-8, {i}"), first_key(&string(bad)), "UTF-8");
        c.add(format!("string not UTF-8, {i}"), &base().key("x", value(8, &string(bad))), "UTF-8");
        let in_array = array(8, 2, &[string(b"ok"), string(bad)].concat());
        c.add(format!("array string not UTF-8, {i}"), &base().key("x", in_array), "UTF-8");
    }
    for kind in [13, 14, 100, 255, 1 << 16, u32::MAX] {
        c.add(format!("value type {kind}"), &base().key("x", value(kind, &[0; 8])), "unknown value type");
        c.add(format!("array of type {kind}"), &base().key("x", array(kind, 1, &[0; 8])), "unknown value type");
    }
    for bad in [2, 128, 255] {
        c.add(format!("bool {bad}"), &base().key("x", value(7, &[bad])), "bool");
        c.add(format!("bool {bad} in an array"), &base().key("x", array(7, 3, &[0, 1, bad])), "bool");
    }
    let mut twice = base();
    twice.keys.push((b"general.architecture".to_vec(), text("llama")));
    c.add("key twice", &twice, "\"general.architecture\" occurs twice");
    twice.keys.truncate(1);
    twice.keys.push(twice.keys[0].clone());
    c.add("same key and value twice", &twice, "occurs twice");
}

fn arrays(c: &mut Corpus) {
    for kind in (0..=12).filter(|k| *k != 9) {
        for len in [(1 << 24) + 1].into_iter().chain(HUGE) {
            c.add(format!("{len} of type {kind}"), &base().key("x", array(kind, len, &[])), "length of the array");
        }
        c.add(format!("1 << 24 of type {kind}"), &base().key("x", array(kind, 1 << 24, &[0; 8])), "cut short");
    }
    let inner = [&4_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &7_u32.to_le_bytes()].concat();
    c.add("array in an array", &base().key("x", array(9, 1, &inner)), "array of arrays");
    c.add("empty array of arrays", &base().key("x", array(9, 0, &[])), "array of arrays");
    let deep: Vec<u8> = (0..5_000).flat_map(|_| [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat()).collect();
    c.add("arrays 5,000 deep", &base().key("x", array(9, 1, &deep)), "array of arrays");
    let long = array(8, 2, &[string(b"ok"), (1_u64 << 20).to_le_bytes().to_vec()].concat());
    c.add("array string beyond the file", &base().key("x", long), "string 1 of the array of key \"x\"");
}

fn alignment_and_splits(c: &mut Corpus) {
    const KEY: &str = "general.alignment";
    for a in [0, 1, 2, 4, 7, 12, 24, 33, 48, 65_535, 65_537, 131_072, u32::MAX] {
        c.add(format!("alignment {a}"), &base().key(KEY, number(a)), "power of two");
    }
    let others = [value(10, &32_u64.to_le_bytes()), value(5, &32_i32.to_le_bytes()), text("32"), value(0, &[32])];
    for (i, bad) in others.into_iter().enumerate() {
        c.add(format!("alignment of another type, {i}"), &base().key(KEY, bad), "u32");
    }
    for count in [2_u16, 5, 99, u16::MAX] {
        c.add(format!("{count} parts"), &base().key("split.count", value(2, &count.to_le_bytes())), "split into");
    }
    c.add("split count of another type", &base().key("split.count", text("2")), "split.count");
    c.add("negative split count", &base().key("split.count", value(5, &(-1_i32).to_le_bytes())), "split.count");
}

fn tensor_descriptions(c: &mut Corpus) {
    let one = |t: Tensor| base().tensor(t);
    let sound = || Tensor::new("t", &[32], 0, 0);
    for (i, name) in NOT_UTF8.into_iter().enumerate() {
        c.add(format!("name not UTF-8, {i}"), &one(Tensor { name: name.to_vec(), ..sound() }), "UTF-8");
    }
    c.add("empty name", &one(Tensor { name: vec![], ..sound() }), "empty");
    for len in [64, 65, 1_000] {
        c.add(format!("name of {len} bytes"), &one(Tensor { name: vec![b'n'; len], ..sound() }), "name of tensor 0");
    }
    for n_dims in [0, 5, 6, 64, 1 << 16, u32::MAX] {
        let dims = vec![1; (n_dims as usize).min(64)];
        c.add(format!("{n_dims} dimensions"), &one(Tensor { n_dims, dims, ..sound() }), "dimensions");
    }
    for axis in 0..4 {
        let mut dims = [32, 2, 2, 2];
        dims[axis] = 0;
        c.add(format!("dimension {axis} zero"), &one(Tensor::new("t", &dims, 0, 0)), "dimension of zero");
    }
    c.add("all dimensions zero", &one(Tensor::new("t", &[0; 4], 0, 0)), "dimension of zero");
    let shapes: [&[u64]; 9] = [
        &[u64::MAX],
        &[1 << 63],
        &[1 << 32, 1 << 32],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
        &[32, u64::MAX / 16],
        &[1 << 61, 2, 1],
        &[(1 << 63) + 32, 2],
        &[32, 1, 1, 1 << 59],
        &[3, 6_148_914_691_236_517_206],
    ];
    for dims in shapes {
        c.add(format!("shape {dims:?}"), &one(Tensor::new("t", dims, 0, 0)), "larger than any file");
    }
    let mut twice = base();
    twice.tensors[1].name = twice.tensors[0].name.clone();
    c.add("tensor twice", &twice, "\"token_embd.weight\" occurs twice");
}

fn tensor_types(c: &mut Corpus) {
    let known: Vec<u32> = DType::ALL.iter().chain(&DType::FOREIGN).map(|t| *t as u32).collect();
    let unknown = (0..48).filter(|n| !known.contains(n)).chain([255, 1 << 16, 1 << 31, u32::MAX]);
    for dtype in unknown {
        let raw = base().tensor(Tensor::new("t", &[256], dtype, 0));
        c.add(format!("type {dtype}"), &raw, "not supported");
    }
    for t in DType::ALL.into_iter().chain(DType::FOREIGN).filter(|t| t.block_len() > 1) {
        for row in [1, t.block_len() as u64 - 1, t.block_len() as u64 + 1] {
            let raw = base().tensor(Tensor::new("t", &[row, 4], t as u32, 0));
            c.add(format!("{t:?} rows of {row}"), &raw, "not a multiple");
        }
    }
}

fn placement(c: &mut Corpus) {
    let at = |offset: u64| {
        let mut raw = base();
        raw.tensors[1].offset = offset;
        raw
    };
    for offset in [1, 4, 16, 31, 513, u64::MAX, (1 << 63) + 1] {
        c.add(format!("offset {offset}"), &at(offset), "alignment");
    }
    for offset in [544, 640, 1 << 20, 1 << 40, 1 << 62, 1 << 63, u64::MAX - 31] {
        c.add(format!("offset {offset} outside"), &at(offset), "but the file has");
    }
    for offset in [0, 32, 256, 480] {
        c.add(format!("offset {offset} inside another"), &at(offset), "overlap");
    }
    let mut raw = base();
    raw.tensors[0].offset = 128;
    raw.data = 1 << 12;
    c.add("the second starts before the first ends", &raw, "overlap");
    let big = base().tensor(Tensor::new("t", &[1 << 40], 0, 0));
    c.add("a tensor of 4 TiB in a small file", &big, "but the file has");
    let just = base().tensor(Tensor::new("t", &[161], 0, 0));
    c.add("a tensor one value beyond the end", &just, "but the file has");
    let aligned = Raw { alignment: 64, ..base() }.key("general.alignment", number(64));
    let mut off = aligned.clone();
    off.tensors[1].offset = 544;
    c.add("aligned to 32 where the file says 64", &off, "alignment 64");
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

fn vocabulary_parts(c: &mut Corpus) {
    c.add("no tokens left", &base().key(TOKENS, strings(&[])), "empty");
    c.add("tokens without their array", &base().without(TOKENS), "is missing");
    for key in [TYPES, SCORES, MERGES] {
        let mut only = base().without(TOKENS);
        only.keys.retain(|(k, _)| !k.starts_with(b"tokenizer") || k == key.as_bytes());
        c.add(format!("{key} alone"), &only, "is missing");
    }
    let wrong = [ints(&[1, 2, 3, 4]), text("a b c"), number(4), array(0, 4, b"abcd")];
    for (i, bad) in wrong.iter().enumerate() {
        c.add(format!("tokens of another type, {i}"), &base().key(TOKENS, bad.clone()), "array of strings");
        c.add(format!("merges of another type, {i}"), &base().key(MERGES, bad.clone()), "array of strings");
    }
    for tokens in [&["a", "b", "a", "d"][..], &["a", "b", "c", "c"], &["", "", "c", "d"]] {
        c.add(format!("tokens {tokens:?}"), &base().key(TOKENS, strings(tokens)), "occurs twice");
    }
    let long = "x".repeat(8_193);
    c.add("a token of 8,193 bytes", &base().key(TOKENS, strings(&["a", &long, "c", "d"])), "over the limit");
    for types in [&[][..], &[1], &[1; 3], &[1; 5], &[1; 100]] {
        c.add(format!("{} token types", types.len()), &base().key(TYPES, ints(types)), "as many");
        let scores: Vec<f32> = types.iter().map(|t| *t as f32).collect();
        c.add(format!("{} scores", types.len()), &base().key(SCORES, floats(&scores)), "as many");
        c.add(format!("{} integer scores", types.len()), &base().key(SCORES, ints(types)), "as many");
    }
    for bad in [-1, 7, 100, i32::MIN, i32::MAX] {
        c.add(format!("token type {bad}"), &base().key(TYPES, ints(&[1, bad, 1, 1])), "has the type");
    }
    let wrong =
        [floats(&[1.0; 4]), strings(&["1", "1", "1", "1"]), number(1), array(4, 4, &[0; 16]), array(0, 4, &[1; 4])];
    for (i, bad) in wrong.into_iter().enumerate() {
        c.add(format!("token types of another type, {i}"), &base().key(TYPES, bad), "array of i32");
    }
    for (i, bad) in [strings(&["0"; 4]), number(0), array(12, 4, &[0; 32])].into_iter().enumerate() {
        c.add(format!("scores of another type, {i}"), &base().key(SCORES, bad), "array of f32");
    }
    c.add("a score that is no number", &base().key(SCORES, floats(&[0.0, f32::NAN, 0.0, 0.0])), "not a number");
    for merge in ["", " ", "ab", "a ", "a", "  ", " b"] {
        c.add(format!("merge {merge:?}"), &base().key(MERGES, strings(&["a b", merge])), "two parts");
    }
    let long = format!("{} b", "a".repeat(20_000));
    c.add("a merge of 20,002 bytes", &base().key(MERGES, strings(&[&long])), "over the limit");
    for (name, rows) in [("token_embd.weight", 3), ("output.weight", 1)] {
        c.add(
            format!("{name} with {rows} rows"),
            &base().tensor(Tensor::new(name, &[32, rows], 0, 0)),
            "rows for 4 tokens",
        );
    }
}

fn vocabulary_ids(c: &mut Corpus) {
    let names = ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask", "fim_pre", "fim_suf"];
    for name in names {
        let key = format!("tokenizer.ggml.{name}_token_id");
        for id in [4, 5, 1 << 20, u32::MAX] {
            c.add(format!("{name} {id}"), &base().key(&key, number(id)), "only 4 tokens");
        }
        c.add(format!("{name} -1"), &base().key(&key, value(5, &(-1_i32).to_le_bytes())), "does not fit");
        c.add(format!("{name} text"), &base().key(&key, text("3")), "where a u64 was expected");
    }
}
