//! A model in several files is the model: by our own reader, on the native backend and by the library.

use std::fs;
use std::path::{Path, PathBuf};

use chimere::engine::cpu::{Cpu, CpuOptions};
use chimere::engine::load::{Kind, load as load_any};
use chimere::eval::logits::rows;
use chimere::gguf::{Files, Gguf, Layout, Value};

use crate::models::{alone, load, make, options};

fn name(folder: &Path, no: usize, count: usize) -> PathBuf {
    folder.join(format!("part-{no:05}-of-{count:05}.gguf"))
}

/// Splits a file as llama.cpp's tool does: the metadata in the first part, the tensors in order over all of them.
fn split(file: &Path, folder: &Path, count: usize) -> Vec<PathBuf> {
    let (whole, bytes) = (Gguf::open(file).unwrap(), fs::read(file).unwrap());
    let share = whole.tensors().len().div_ceil(count);
    let parts: Vec<_> = whole.tensors().chunks(share).collect();
    assert_eq!(parts.len(), count);
    for (no, tensors) in parts.iter().enumerate() {
        let mut layout = Layout::new();
        if no == 0 {
            whole.metadata().for_each(|(key, value)| layout.set(key, value.clone()).unwrap());
        }
        layout.set("split.no", Value::U16(no as u16)).unwrap();
        layout.set("split.count", Value::U16(count as u16)).unwrap();
        layout.set("split.tensors.count", whole.tensors().len() as i32).unwrap();
        tensors.iter().for_each(|t| layout.tensor(&t.name, t.dtype, t.dims()).unwrap());
        let mut writer = layout.create(&name(folder, no + 1, count)).unwrap();
        for t in *tensors {
            writer.write(&t.name, &bytes[t.range.start as usize..t.range.end as usize]).unwrap();
        }
        writer.finish().unwrap();
    }
    (1..=count).map(|no| name(folder, no, count)).collect()
}

#[test]
fn parts_give_the_numbers_of_the_whole_by_the_library_and_natively() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<u32> = (0..40).map(|i| i * 7 % 256).collect();
    let file = make(dir.path(), "qwen2");
    let folder = dir.path().join("qwen2");
    fs::create_dir(&folder).unwrap();
    let parts = split(&file, &folder, 3);
    let wanted = rows(&mut load(&file).0, &ids, 0, false, &[]).unwrap();
    for path in [&parts[0], &parts[2], &folder] {
        let loaded = load_any(path, &options(Kind::Auto), &mut |_| {}).unwrap();
        let mut backend = loaded.backend;
        assert_eq!(rows(backend.as_mut(), &ids, 0, false, &[]).unwrap(), wanted, "{}", path.display());
        assert_eq!(backend.info().backend, "llama");
    }

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/mini/model.gguf");
    let folder = dir.path().join("mini");
    fs::create_dir(&folder).unwrap();
    split(&file, &folder, 2);
    let native = |path: &Path| {
        let options = CpuOptions { threads: 1, context_tokens: 256, ..CpuOptions::default() };
        rows(&mut Cpu::load(path, &options, &mut |_| {}).unwrap(), &ids, 0, false, &[]).unwrap()
    };
    assert_eq!(native(&folder), native(&file));
    let ((whole, one), (joined, two)) = (Files::open(&file).unwrap(), Files::open(&folder).unwrap());
    assert_eq!((one.paths().len(), two.paths().len()), (1, 2));
    assert_eq!(whole.tensors().len(), joined.tensors().len());
    for (a, b) in whole.tensors().iter().zip(joined.tensors()) {
        let (mut left, mut right) = (vec![0; a.bytes() as usize], vec![0; b.bytes() as usize]);
        one.read_at(&mut left, a.range.start).unwrap();
        two.read_at(&mut right, b.range.start).unwrap();
        assert!(a.name == b.name && left == right, "{}", a.name);
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = make(dir.path(), "qwen2");
    let fresh = |name: &str| {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        let parts = split(&file, &folder, 3);
        (folder, parts)
    };
    let refused = |folder: &Path, why: &[&str]| {
        let error = Files::open(folder).unwrap_err().to_string();
        assert!(why.iter().all(|part| error.contains(part)), "{error}");
    };
    let (folder, parts) = fresh("missing");
    fs::remove_file(&parts[1]).unwrap();
    refused(&folder, &["cannot read", "part-00002-of-00003.gguf"]);
    let (folder, parts) = fresh("twice");
    fs::copy(&parts[1], &parts[2]).unwrap();
    refused(&folder, &["part-00003-of-00003.gguf says that it is part 2 of 3, but part 3 of 3 must lie there"]);
    let (folder, parts) = fresh("renamed");
    parts[1..].iter().for_each(|part| fs::remove_file(part).unwrap());
    fs::rename(&parts[0], folder.join("model.gguf")).unwrap();
    refused(&folder, &["this is part 1 of a model in 3 files", "-00001-of-00003.gguf"]);
    let (folder, parts) = fresh("short");
    let bytes = fs::read(&parts[2]).unwrap();
    fs::write(&parts[2], &bytes[..bytes.len() - 64]).unwrap();
    refused(&folder, &["part-00003-of-00003.gguf: ", "cut short"]);
    // By itself a part is no model.
    let bytes = fs::read(&parts[0]).unwrap();
    let error = Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap_err().to_string();
    assert!(error.contains("no whole model by itself"), "{error}");
}
