//! What the memory plan says of files that people download and cards that they own.

use super::*;
use crate::engine::cuda::plan;
use crate::gguf::synthetic::{Qwen35Moe, Types};

const GIB: f64 = (1_u64 << 30) as f64;

#[test]
fn the_whole_35b_lies_on_the_cards_that_people_own() {
    let files = [
        (DType::IQ3_S, 15.5, 32_768, KvType::Q8Q4),
        (DType::IQ3_S, 15.75, 32_768, KvType::F16),
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
