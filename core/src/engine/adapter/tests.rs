//! The file: what is written is read again, what is changed is noticed, what does not fit is refused.

use super::file::parse;
use super::*;
use crate::engine::model::tiny::Tiny;

fn base() -> BaseModel {
    let file = Tiny::default().write();
    BaseModel::new(&Gguf::open(&file.path).unwrap(), "0123456789abcdef")
}

fn recipe(targets: &[&str]) -> Recipe {
    Recipe { rank: 3, scale: 0.1, seed: 7, targets: targets.iter().map(|t| (*t).to_owned()).collect(), last_layers: 0 }
}

fn bytes_of(adapter: &Adapter) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    adapter.write(&path).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn the_base_model_lists_what_may_be_changed() {
    let base = base();
    let names: Vec<&str> = base.matrices().map(|(n, _)| n).collect();
    assert!(names.contains(&"output.weight") && names.contains(&"blk.2.attn_q.weight"));
    assert!(names.iter().all(|n| !n.contains("ffn_gate_inp") && !n.contains("norm") && !n.contains("token_embd")));
    assert!(names.iter().all(|n| !n.starts_with("blk.3.")), "the prediction block is left out");
    assert_eq!(base.shape("blk.0.ffn_down_exps.weight"), Some(Shape { inputs: 32, outputs: 64, experts: 5 }));
}

#[test]
fn what_is_written_is_read_again() {
    let base = base();
    let adapter = recipe(&[]).make(&base).unwrap();
    assert_eq!(adapter.factors.len(), base.matrices().count());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let (bytes, sha256) = adapter.write(&path).unwrap();
    let (again, len, hash) = read(&path, &base).unwrap();
    assert_eq!(again, adapter);
    assert_eq!((bytes, &sha256), (len, &hash));
    assert_eq!(sha256.len(), 64);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left aside");
    // The same recipe gives the same file.
    assert_eq!(recipe(&[]).make(&base).unwrap().write(&path).unwrap().1, sha256);
    assert_ne!(Recipe { seed: 8, ..recipe(&[]) }.make(&base).unwrap().write(&path).unwrap().1, sha256);
}

#[test]
fn a_flipped_bit_is_an_error_or_means_the_same() {
    let base = base();
    let adapter = recipe(&["ssm_alpha", "attn_k"]).make(&base).unwrap();
    let good = bytes_of(&adapter);
    let data = good.len() - 512;
    // Every bit of the header, and of the data every bit of its end and one in a hundred bytes of the rest.
    let header = Gguf::read(good.as_slice(), good.len() as u64).unwrap().data_start() as usize;
    let places = (0..header).chain((header..data).step_by(101)).chain(data..good.len());
    let (mut refused, mut same) = (0, 0);
    for at in places {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            match parse(&bytes, &base) {
                Err(_) => refused += 1,
                Ok(found) => {
                    assert_eq!(found, adapter, "byte {at}, bit {bit}");
                    same += 1;
                }
            }
        }
    }
    println!("{refused} refused, {same} without a meaning");
    assert!(refused > 10 * same);
    for len in (0..good.len()).step_by(37) {
        assert!(parse(&good[..len], &base).is_err(), "cut at {len}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let base = base();
    let good = recipe(&["attn_k", "ffn_up_exps"]).make(&base).unwrap();
    let refusal = |change: fn(&mut Adapter), base: &BaseModel| {
        let mut adapter = good.clone();
        change(&mut adapter);
        parse(&bytes_of(&adapter), base).unwrap_err().to_string()
    };
    let e = refusal(|a| a.base_hash = "ffff".into(), &base);
    assert!(e.contains("made for the base model ffff"), "{e}");
    let e = refusal(|a| a.architecture = "qwen2".into(), &base);
    assert!(e.contains("general.architecture"), "{e}");
    let e = refusal(|a| a.alpha = f32::NAN, &base);
    assert!(e.contains("alpha is NaN"), "{e}");
    let e = refusal(|a| a.alpha = -1.0, &base);
    assert!(e.contains("alpha is -1"), "{e}");
    let e = refusal(|a| a.factors[0].a[5] = f32::INFINITY, &base);
    assert!(e.contains("value 5 is inf"), "{e}");
    let e = refusal(|a| a.factors[0].tensor = "blk.0.ffn_gate_inp.weight".into(), &base);
    assert!(e.contains("no such matrix"), "{e}");
    let e = refusal(|a| a.factors.clear(), &base);
    assert!(e.contains("names no matrix"), "{e}");
    let other = Tiny { width: 96, ..Tiny::default() }.write();
    let other = BaseModel::new(&Gguf::open(&other.path).unwrap(), "0123456789abcdef");
    let e = refusal(|_| (), &other);
    assert!(e.contains("its shape is [64, 3"), "{e}");
    for rank in [0, 65] {
        assert!(Recipe { rank, ..recipe(&[]) }.make(&base).is_err());
    }
    let mut wide = good.clone();
    wide.rank = 70;
    wide.factors.iter_mut().for_each(|f| {
        f.a = vec![0.0; 70 * f.shape.inputs * f.shape.experts];
        f.b = vec![0.0; 70 * f.shape.outputs * f.shape.experts];
    });
    let e = parse(&bytes_of(&wide), &base).unwrap_err().to_string();
    assert!(e.contains("rank is 70"), "{e}");
}

#[test]
fn the_norm_is_that_of_the_product() {
    let mut adapter = recipe(&["attn_k"]).make(&base()).unwrap();
    let f = &adapter.factors[0];
    let (rank, inputs) = (adapter.rank, f.shape.inputs);
    let mut sum = 0f64;
    for b in f.b.chunks(rank) {
        for i in 0..inputs {
            let v: f64 = (0..rank).map(|r| f64::from(b[r]) * f64::from(f.a[r * inputs + i])).sum();
            sum += v * v;
        }
    }
    assert!((adapter.norm() / sum.sqrt() - 1.0).abs() < 1e-6);
    adapter.alpha *= 2.0;
    assert!((adapter.norm() / (2.0 * sum.sqrt()) - 1.0).abs() < 1e-6);
}
