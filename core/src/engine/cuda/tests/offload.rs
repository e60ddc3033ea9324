//! Experts beyond the card's memory: the bits of the model that lies there as a whole, and what moved.

use super::*;

/// The same model on a card on which `held` experts of each layer fit, `kept` of them for good.
fn tight(path: &Path, full: &Cuda, held: usize, kept: usize) -> Cuda {
    let (p, gguf) = (*full.placement(), Gguf::open(path).unwrap());
    let pinned = p.experts / p.experts_a_layer as u64 * (p.experts_a_layer - kept) as u64;
    let step = p.experts / p.experts_a_layer as u64 / 4;
    let limited = |limit| CudaOptions { memory_bytes_max: limit, pinned_bytes_max: pinned, ..options() };
    let found = (1..p.total() / step).map(|n| limited(p.total() - n * step)).find(|o| {
        plan(&gguf, o)
            .is_ok_and(|p| p.host > 0 && (p.resident_a_layer, p.resident_a_layer + p.slots_a_layer) == (kept, held))
    });
    let tight = with(path, &found.unwrap());
    assert!(tight.placement().total() <= tight.placement().free);
    assert_eq!(tight.placement().host + tight.placement().experts, p.experts);
    tight
}

/// Logits of sequences that decode beside each other, each from a prompt of its own.
fn beside(c: &mut Cuda, steps: usize) -> Vec<f32> {
    let (mut out, mut all) = (Output::default(), Vec::new());
    let seqs: Vec<_> = (0..3).map(|_| c.open().unwrap()).collect();
    for (i, &seq) in seqs.iter().enumerate() {
        let prompt = Random(i as u64 + 20).tokens(4 + 9 * i);
        c.step(&[Chunk { seq, tokens: &prompt, rows: Rows::Last, hidden: false }], &mut out).unwrap();
        all.extend_from_slice(&out.logits);
    }
    let tokens: Vec<_> = (0..3).map(|i| Random(i + 30).tokens(steps)).collect();
    for n in 0..steps {
        let chunk = |i: usize| Chunk { seq: seqs[i], tokens: &tokens[i][n..=n], rows: Rows::Last, hidden: false };
        c.step(&(0..3).map(chunk).collect::<Vec<_>>(), &mut out).unwrap();
        all.extend_from_slice(&out.logits);
    }
    seqs.into_iter().for_each(|seq| c.close(seq));
    all
}

fn check_bits(path: &Path, (held, kept): (usize, usize), prompts: &[(usize, usize)]) -> Offloaded {
    let mut full = cuda(path);
    let mut tight = tight(path, &full, held, kept);
    assert_eq!(full.offloaded(), None);
    assert_eq!(tight.offloaded(), Some(Offloaded::default()));
    for &(len, step) in prompts {
        let tokens = Random(len as u64).tokens(len);
        assert!(logits(&mut full, &tokens, step) == logits(&mut tight, &tokens, step), "{len} tokens by {step}");
    }
    assert!(beside(&mut full, 10) == beside(&mut tight, 10));
    let (a, b) = (full.open().unwrap(), tight.open().unwrap());
    assert_eq!(full.greedy(&[a], &[3], 12).unwrap().tokens, tight.greedy(&[b], &[3], 12).unwrap().tokens);
    tight.offloaded().unwrap()
}

#[test]
fn experts_on_the_host_change_no_bit() {
    let file = Tiny::default().write();
    let moved = check_bits(&file.path, (3, 0), &[(1, 0), (5, 0), (5, 1), (37, 0), (40, 20), (68, 0)]);
    assert!(moved.hits > 0 && moved.misses > 12 && moved.direct > 0, "{moved:?}");
    assert!(moved.moved_bytes > moved.misses && moved.moved_bytes % moved.misses == 0, "{moved:?}");
    let moved = check_bits(&file.path, (3, 1), &[(5, 0), (20, 0)]);
    assert!(moved.hits > 0 && moved.misses > 8 && moved.direct > 0, "{moved:?}");
    let moved = check_bits(&file.path, (2, 2), &[(5, 0)]);
    assert!(moved.hits > 0 && moved.misses == 0 && moved.direct > 0, "without slots: {moved:?}");
}

#[cfg(feature = "llama")]
#[test]
fn packed_experts_on_the_host_change_no_bit() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let moved = check_bits(&file.path, (3, 0), &[(5, 0), (5, 1), (40, 20)]);
    assert!(moved.hits > 0 && moved.misses > 12 && moved.direct > 0, "{moved:?}");
}

#[test]
fn what_cannot_be_placed_is_refused_with_the_numbers() {
    let file = Tiny::default().write();
    // One size of pass, so that nothing but experts can leave.
    let options = || CudaOptions { context_tokens: 160, ..options() };
    let gguf = Gguf::open(&file.path).unwrap();
    let whole = plan(&gguf, &CudaOptions { memory_bytes_max: 1 << 40, ..options() }).unwrap();
    let refused = |options: CudaOptions| plan(&gguf, &options).unwrap_err().to_string();
    let small = refused(CudaOptions { memory_bytes_max: 1 << 20, ..options() });
    assert!(small.contains("3 sequences of 160 tokens") && small.contains("choose fewer sequences"), "{small}");
    let step = whole.experts / 8;
    let limits = (1..whole.total() / step).map(|n| whole.total() - n * step);
    let mut tight = limits.map(|limit| CudaOptions { memory_bytes_max: limit, ..options() });
    let tight = tight.find(|o| plan(&gguf, o).is_ok_and(|p| p.host > 0)).unwrap();
    let unpinned = refused(CudaOptions { pinned_bytes_max: 1, ..tight.clone() });
    assert!(unpinned.contains("may be pinned") && unpinned.contains("--pinned-max"), "{unpinned}");
    let auto = refused(CudaOptions { resident_percent_min: 99, ..tight });
    assert!(auto.contains("at least 99 % of the experts"), "{auto}");
}
