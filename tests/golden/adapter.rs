//! Adapters: our own low-rank products against the library's reading of the same file, on f32 weights.

use std::path::Path;

use chimere::engine::adapter::{self, Adapter, BaseModel, Recipe, TARGETS};
use chimere::engine::backend::{Adapted, Backend};
use chimere::engine::cpu::{Cpu, CpuOptions};
use chimere::engine::llama::{self, LlamaOptions};
use chimere::eval::logits::rows;
use chimere::gguf::Gguf;

use crate::reference::{self, VOCAB, kl_max};

/// Largest KL of a row between the two, nats.
const KL_F32: f64 = 1e-8;
/// A random adapter moves the model at least so far, nats: else the comparison would say nothing.
const KL_MOVED: f64 = 1e-4;

fn native() -> Box<dyn Backend> {
    let options = CpuOptions { threads: 2, context_tokens: 256, sequences_max: 3, ..Default::default() };
    Box::new(Cpu::load(&reference::model(), &options, &mut |_| {}).unwrap())
}

fn library() -> Box<dyn Backend> {
    let options = LlamaOptions { threads: 1, context_tokens: 256, sequences_max: 3, exact: true };
    Box::new(llama::load(&reference::model(), &options, &mut |_| {}).unwrap().0)
}

/// Written and read again, as every adapter that is served.
fn made(recipe: &Recipe, dir: &Path) -> Adapter {
    let base = BaseModel::new(&Gguf::open(&reference::model()).unwrap(), "reference");
    let path = dir.join("adapter.gguf");
    recipe.make(&base).unwrap().write(&path).unwrap();
    adapter::read(&path, &base).unwrap().0
}

#[test]
fn the_library_reads_the_same_adapter_and_gets_the_same_logits() {
    let dir = tempfile::tempdir().unwrap();
    let ids = reference::ids(1);
    let plain = rows(native().as_mut(), &ids, 0, false, &[]).unwrap();
    let mut cases: Vec<Vec<String>> = TARGETS.iter().map(|t| vec![(*t).to_owned()]).collect();
    cases.push(vec!["output".to_owned()]);
    cases.push(Vec::new());
    for (rank, targets) in [3, 8, 17].into_iter().cycle().zip(cases) {
        let recipe = Recipe { rank, scale: 0.5, seed: 3, targets, last_layers: 0 };
        let adapter = made(&recipe, dir.path());
        let mut ours = Adapted::new(native(), &adapter).unwrap();
        let mut theirs = Adapted::new(library(), &adapter).unwrap();
        let wanted = rows(&mut theirs, &ids, 0, false, &[]).unwrap();
        let moved = kl_max(&plain, &wanted, VOCAB);
        for step in [0, 1, 7] {
            let kl = kl_max(&wanted, &rows(&mut ours, &ids, step, false, &[]).unwrap(), VOCAB);
            println!("{:?} rank {rank}, step {step}: KL {kl:.1e}, moved by {moved:.1e}", recipe.targets);
            assert!(kl <= KL_F32, "{:?}, rank {rank}, step {step}: KL {kl:.1e}", recipe.targets);
        }
        assert!(moved > KL_MOVED, "{:?} moves the model by {moved:.1e} only", recipe.targets);
    }
}

#[test]
fn the_library_keeps_the_adapters_of_one_step_apart() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = |seed| Recipe { rank: 4, scale: 0.5, seed, targets: Vec::new(), last_layers: 0 };
    let mut backend = library();
    let ids = reference::ids(0);
    let plain = rows(backend.as_mut(), &ids, 0, false, &[]).unwrap();
    let (first, second) = (made(&recipe(1), dir.path()), made(&recipe(2), dir.path()));
    let handles = [backend.load_adapter(&first).unwrap(), backend.load_adapter(&second).unwrap()];
    let alone: Vec<Vec<f32>> = [&first, &second]
        .into_iter()
        .map(|a| rows(&mut Adapted::new(library(), a).unwrap(), &ids, 0, false, &[]).unwrap())
        .collect();
    use chimere::engine::backend::{Chunk, Output, Rows};
    let seqs: Vec<_> = (0..3).map(|_| backend.open().unwrap()).collect();
    backend.adapt(seqs[0], handles[0]).unwrap();
    backend.adapt(seqs[2], handles[1]).unwrap();
    let batch: Vec<_> =
        seqs.iter().map(|seq| Chunk { seq: *seq, tokens: &ids, rows: Rows::All, hidden: false }).collect();
    let mut out = Output::default();
    backend.step(&batch, &mut out).unwrap();
    let n = ids.len() * VOCAB;
    for (found, wanted) in out.logits.chunks(n).zip([&alone[0], &plain, &alone[1]]) {
        assert!(kl_max(wanted, found, VOCAB) <= KL_F32);
    }
}
