//! Written files are read back whole; writing is deterministic and leaves nothing behind on failure.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use chimere::gguf::{Array, Error, Gguf, Layout, Strings, Value};
use chimere_ffi::DType;

pub(crate) fn mini() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/mini/model.gguf")
}

fn every_value() -> Vec<(&'static str, Value)> {
    vec![
        ("a.u8", Value::U8(255)),
        ("a.i8", Value::I8(-128)),
        ("a.u16", Value::U16(65_535)),
        ("a.i16", Value::I16(-32_768)),
        ("a.u32", Value::U32(u32::MAX)),
        ("a.i32", Value::I32(i32::MIN)),
        ("a.f32", Value::F32(f32::MIN_POSITIVE)),
        ("a.bool", Value::Bool(true)),
        ("a.string", Value::String("héllo \0 world".into())),
        ("a.u64", Value::U64(u64::MAX)),
        ("a.i64", Value::I64(i64::MIN)),
        ("a.f64", Value::F64(1e300)),
        ("b.u8", Value::Array(Array::U8(vec![0, 255]))),
        ("b.i8", Value::Array(Array::I8(vec![-1, 1]))),
        ("b.u16", Value::Array(Array::U16(vec![1, 65_535]))),
        ("b.i16", Value::Array(Array::I16(vec![-2, 2]))),
        ("b.u32", Value::Array(Array::U32((0..10_000).collect()))),
        ("b.i32", Value::Array(Array::I32(vec![11, 11, 10, 0]))),
        ("b.f32", Value::Array(Array::F32(vec![0.5, -0.0]))),
        ("b.bool", Value::Array(Array::Bool(vec![true, false]))),
        ("b.string", Value::Array(Array::String(["", "é", "long string"].into_iter().collect()))),
        ("b.u64", Value::Array(Array::U64(vec![]))),
        ("b.i64", Value::Array(Array::I64(vec![-3]))),
        ("b.f64", Value::Array(Array::F64(vec![2.5]))),
    ]
}

/// One tensor of each type, 256 values a row, plus shapes of one to four dimensions.
fn layout() -> (Layout, Vec<(String, Vec<u8>)>) {
    let mut layout = Layout::new();
    for (key, value) in every_value() {
        layout.set(key, value).unwrap();
    }
    let mut data = Vec::new();
    let shapes: [&[u64]; 4] = [&[256], &[256, 3], &[512, 2, 3], &[256, 1, 2, 2]];
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let dims = shapes[i % 4];
        let bytes = dims.iter().product::<u64>() as usize / dtype.block_len() * dtype.block_bytes();
        let name = format!("t.{}", dtype.name());
        layout.tensor(&name, dtype, dims).unwrap();
        data.push((name, (0..bytes).map(|b| (b * 31 + i) as u8).collect()));
    }
    (layout, data)
}

#[test]
fn every_value_and_tensor_type_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.gguf");
    let (layout, data) = layout();
    let mut writer = layout.create(&path).unwrap();
    for (name, bytes) in &data {
        assert_eq!(writer.expects(), Some((name.as_str(), bytes.len() as u64)));
        for piece in bytes.chunks(100) {
            writer.write(name, piece).unwrap();
        }
    }
    let len = writer.finish().unwrap();
    let file = fs::read(&path).unwrap();
    assert_eq!(file.len() as u64, len);
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.version(), 3);
    let read: Vec<_> = gguf.metadata().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    let written: Vec<_> = every_value().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    assert_eq!(read, written);
    assert_eq!(gguf.tensors().len(), DType::ALL.len());
    for (name, bytes) in &data {
        let t = gguf.tensor(name).unwrap();
        assert_eq!(&file[t.range.start as usize..t.range.end as usize], bytes, "{name}");
        assert_eq!(t.range.start % 32, 0);
    }
    assert_eq!(gguf.tensor("t.F16").unwrap().dims(), [256, 3]);
    assert!(matches!(gguf.tensor("t.none"), Err(Error::MissingTensor { .. })));
    assert!(matches!(gguf.u32("none"), Err(Error::MissingKey { .. })));
    assert_eq!(gguf.required::<&[i32]>("b.i32").unwrap(), [11, 11, 10, 0]);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let (layout, data) = layout();
        let path = dir.path().join(name);
        let mut writer = layout.create(&path).unwrap();
        data.iter().for_each(|(name, bytes)| writer.write(name, bytes).unwrap());
        writer.finish().unwrap();
        fs::read(&path).unwrap()
    };
    assert_eq!(write("a"), write("b"));
}

#[test]
fn an_unfinished_or_misordered_file_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("part.gguf");
    let (layout, data) = layout();
    let mut writer = layout.create(&path).unwrap();
    assert!(writer.write(&data[1].0, &data[1].1).is_err(), "out of order");
    assert!(writer.write(&data[0].0, &vec![0; data[0].1.len() + 1]).is_err(), "too long");
    writer.write(&data[0].0, &data[0].1[1..]).unwrap();
    let message = writer.finish().unwrap_err().to_string();
    assert_eq!(message, "writing tensor \"t.F32\": 1023 of 1024 bytes given at the end");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_layout_refuses_what_the_reader_would() {
    let mut layout = Layout::new();
    layout.set("k", 1_u32).unwrap();
    assert!(matches!(layout.set("k", 1_u32), Err(Error::DuplicateKey { .. })));
    assert!(matches!(layout.tensor("t", DType::Q4_K, &[255]), Err(Error::PartialBlock { .. })));
    assert!(matches!(layout.tensor("t", DType::F32, &[]), Err(Error::Dimensions { .. })));
    assert!(matches!(layout.tensor("t", DType::F32, &[u64::MAX, 8]), Err(Error::ShapeOverflow { .. })));
    layout.tensor("t", DType::F32, &[1]).unwrap();
    assert!(matches!(layout.tensor("t", DType::F32, &[1]), Err(Error::DuplicateTensor { .. })));
}

#[test]
fn a_converted_model_is_read() {
    let gguf = Gguf::open(&mini()).unwrap();
    assert_eq!(gguf.architecture().unwrap(), "qwen35moe");
    assert_eq!(gguf.u32("qwen35moe.block_count").unwrap(), 5);
    assert_eq!(gguf.u32("qwen35moe.full_attention_interval").unwrap(), 4);
    assert_eq!(gguf.required::<&Strings>("tokenizer.ggml.tokens").unwrap().len(), 544);
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().dims(), [64, 544]);
    assert_eq!(gguf.tensor("blk.0.ffn_gate_exps.weight").unwrap().dtype, DType::BF16);
}

/// Counts what is read through it.
struct Counted<'a> {
    rest: &'a [u8],
    calls: &'a Cell<usize>,
    bytes: &'a Cell<usize>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.rest.read(buffer)?;
        self.calls.set(self.calls.get() + 1);
        self.bytes.set(self.bytes.get() + read);
        Ok(read)
    }
}

/// The header of a large vocabulary costs a bounded number of reads a string, and no byte is read twice.
#[test]
fn a_vocabulary_of_248320_is_read_once() {
    let n = 248_320;
    let mut layout = Layout::new();
    layout.set("tokenizer.ggml.tokens", (0..n).map(|i| format!("token{i}")).collect::<Strings>()).unwrap();
    layout.set("tokenizer.ggml.token_type", vec![1_i32; n]).unwrap();
    layout.set("tokenizer.ggml.merges", (0..n).map(|i| format!("left{i} right")).collect::<Strings>()).unwrap();
    let header = layout.header();
    let (calls, bytes) = (Cell::new(0), Cell::new(0));
    let counted = Counted { rest: &header, calls: &calls, bytes: &bytes };
    let gguf = Gguf::read(counted, header.len() as u64).unwrap();
    assert_eq!(gguf.required::<&Strings>("tokenizer.ggml.tokens").unwrap().len(), n);
    println!("{} bytes in {} reads", bytes.get(), calls.get());
    assert!(bytes.get() <= header.len(), "{} bytes of {}", bytes.get(), header.len());
    // A length and a text for each of two lists of strings, a number for each type at most.
    assert!(calls.get() <= 5 * n + 1_000, "{} reads", calls.get());
}
