//! A model rewritten with other types keeps its metadata and, within the type's error, its weights.

use std::fs;

use chimere::gguf::{Gguf, Layout};
use chimere::quantize::{Choice, Error, requantize};
use chimere_ffi::DType;
use chimere_ffi::ggml::quant::dequantize;

use crate::round_trip::mini;

fn values(gguf: &Gguf, file: &[u8], name: &str) -> Vec<f32> {
    let t = gguf.tensor(name).unwrap();
    let mut out = vec![0.0; t.elements() as usize];
    dequantize(t.dtype, &file[t.range.start as usize..t.range.end as usize], &mut out).unwrap();
    out
}

#[test]
fn every_type_keeps_metadata_names_and_weights() {
    let dir = tempfile::tempdir().unwrap();
    let original = Gguf::open(&mini()).unwrap();
    let file = fs::read(mini()).unwrap();
    let name = "blk.0.ffn_gate_exps.weight";
    let exact = values(&original, &file, name);
    for dtype in DType::ALL {
        let out = dir.path().join(format!("{}.gguf", dtype.name()));
        let choice = Choice::new(&dtype.name(), &["^output=Q8_0"]).unwrap();
        let mut last = (0, 0);
        let summary = requantize(&mini(), &out, |t| choice.of(t), |done, total| last = (done, total)).unwrap();
        assert_eq!(last.0, last.1, "progress ends at its total");
        let read = Gguf::open(&out).unwrap();
        assert_eq!(summary.bytes_out, fs::metadata(&out).unwrap().len());
        let kept = |g: &Gguf| {
            let changed = ["general.file_type", "general.quantization_version", "general.alignment"];
            g.metadata()
                .filter(|(k, _)| !changed.contains(k))
                .map(|(k, v)| (k.to_owned(), v.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(&read), kept(&original));
        for (a, b) in original.tensors().iter().zip(read.tensors()) {
            assert_eq!((&a.name, a.dims()), (&b.name, b.dims()));
        }
        assert_eq!(read.tensor("blk.0.attn_norm.weight").unwrap().dtype, DType::F32);
        assert_eq!(read.tensor("blk.0.ffn_gate_inp.weight").unwrap().dtype, DType::F32);
        let got = values(&read, &fs::read(&out).unwrap(), name);
        let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
        let error = norm(&mut exact.iter().zip(&got).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied());
        assert!(error < 0.5, "{dtype:?}: {error}");
        // The file is in bfloat16, which these hold.
        assert_eq!(error == 0.0, matches!(dtype, DType::F32 | DType::BF16 | DType::F16), "{dtype:?}: {error}");
    }
}

#[test]
fn many_small_pieces_give_the_same_bytes_as_one_call() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    // 3,001 rows of 1,024: several rounds of pieces on any number of threads, the last one short.
    let all: Vec<f32> =
        (0..3_001 * 1_024_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-8 - 0.08).collect();
    let mut layout = Layout::new();
    layout.tensor("m", DType::F32, &[1_024, 3_001]).unwrap();
    let mut writer = layout.create(&input).unwrap();
    all.chunks(4_096).for_each(|c| {
        let bytes: Vec<u8> = c.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer.write("m", &bytes).unwrap();
    });
    writer.finish().unwrap();
    requantize(&input, &output, |_| DType::Q4_K, |_, _| {}).unwrap();
    let read = Gguf::open(&output).unwrap();
    let file = fs::read(&output).unwrap();
    let range = read.tensor("m").unwrap().range.clone();
    let whole = chimere_ffi::ggml::quant::quantize(DType::Q4_K, &all, 1_024, None).unwrap();
    assert!(file[range.start as usize..range.end as usize] == whole);
}

#[test]
fn a_weight_that_is_not_finite_and_the_input_as_output_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let mut layout = Layout::new();
    layout.tensor("bad.weight", DType::F32, &[256, 2]).unwrap();
    let mut writer = layout.create(&input).unwrap();
    let mut bytes = vec![0; 2_048];
    bytes[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    writer.write("bad.weight", &bytes).unwrap();
    writer.finish().unwrap();
    let message = requantize(&input, &output, |_| DType::Q4_K, |_, _| {}).unwrap_err().to_string();
    assert!(message.starts_with("tensor \"bad.weight\": value 100 is not finite"), "{message}");
    assert!(!output.exists());
    assert!(matches!(requantize(&input, &input, |_| DType::F32, |_, _| {}), Err(Error::SameFile)));
}
