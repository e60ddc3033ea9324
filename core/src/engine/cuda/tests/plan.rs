//! What the memory plan says of files that people download and cards that they own.

use super::*;
use crate::engine::cuda::plan;
use crate::gguf::synthetic::{Qwen35Moe, Types};

const GIB: f64 = (1_u64 << 30) as f64;

#[test]
fn an_embedding_on_the_host_changes_no_bit() {
    let file = Tiny::default().write();
    let mut full = cuda(&file.path);
    let whole = *full.placement();
    let short = CudaOptions { memory_bytes_max: whole.total() - 1, ..options() };
    let mut tight = with(&file.path, &short);
    let placed = *tight.placement();
    assert!(placed.host_embedding > 0 && placed.host == 0, "{placed}");
    assert_eq!(placed.total() + placed.host_embedding, whole.total(), "nothing else has left");
    let tokens = Random(8).tokens(12);
    for step in [0, 5] {
        assert!(logits(&mut full, &tokens, step) == logits(&mut tight, &tokens, step), "fed {step} at a time");
    }
}

#[test]
fn an_embedding_that_the_head_shares_or_that_may_not_be_pinned_stays() {
    let (own, tied) = (Tiny::default().write(), Tiny { tied: true, ..Tiny::default() }.write());
    for (file, pinned_bytes_max) in [(&own, 1), (&tied, 0)] {
        let gguf = Gguf::open(&file.path).unwrap();
        let of = |memory_bytes_max| plan(&gguf, &CudaOptions { memory_bytes_max, pinned_bytes_max, ..options() });
        let whole = of(1 << 40).unwrap();
        assert!(of(whole.total() - 1).is_ok_and(|less| less.host_embedding == 0 && less.total() < whole.total()));
    }
}

#[test]
fn the_whole_35b_lies_on_the_cards_that_people_own() {
    let files = [
        (DType::IQ3_S, 15.5, 32_768, KvType::F16),
        (DType::IQ3_XXS, 16.0, 65_536, KvType::F16),
        (DType::Q2_K, 16.0, 65_536, KvType::F16),
        (DType::IQ4_XS, 24.0, 163_840, KvType::F16),
        (DType::Q4_K, 24.0, 65_536, KvType::F16),
        (DType::MXFP4, 24.0, 65_536, KvType::F16),
    ];
    for (experts, gib, context_tokens, kv) in files {
        let types = Types { experts, dense: DType::Q5_K, embedding: DType::Q4_K, head: Some(DType::Q6_K) };
        let (header, len) = Qwen35Moe::slice_of_35b(40, types).build().unwrap().header();
        let gguf = Gguf::read(&header[..], len).unwrap();
        let memory_bytes_max = (gib * GIB) as u64;
        let options = CudaOptions { context_tokens, sequences_max: 1, kv, memory_bytes_max, ..Default::default() };
        let found = plan(&gguf, &options).unwrap();
        assert_eq!((found.host, found.context_tokens), (0, context_tokens), "{experts:?} in {gib} GiB: {found}");
        assert!(found.total() <= memory_bytes_max, "{experts:?} in {gib} GiB: {found}");
    }
}
