//! The mixture of experts: routed experts and the shared one, from normed rows to the residual.
//!
//! Owns the grouping of rows by expert and the buffers between the stages. The stages are gate and up
//! with SiLU·mul, quantisation, down, and the weighted sum in the router's order, the shared expert last.
//!
//! y = Σ_j w_j · down_j(silu(gate_j x) · up_j x) + s · shared(x). The result is added to the residual.

use super::act::{Act, Forms};
use super::lora::{LowRank, Narrow, Plus, narrow};
use super::norm;
use super::pack::{Experts, GROUP, Matrix};
use super::pool::{Pool, Shared1};
use super::product::{self, Input, TILE, Tile, groups_per_task};

/// The weights of one layer.
#[derive(Clone, Copy)]
pub struct Moe<'a> {
    /// `[ff, hidden]` each.
    pub gate: &'a Experts,
    pub up: &'a Experts,
    /// `[hidden, ff]` each.
    pub down: &'a Experts,
    pub shared: Option<Shared<'a>>,
}

/// The expert that every row passes; its width may differ from that of the routed ones.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    pub gate: &'a Matrix,
    pub up: &'a Matrix,
    pub down: &'a Matrix,
}

/// The router's choice for T rows.
#[derive(Clone, Copy)]
pub struct Routes<'a> {
    /// Experts a row.
    pub k: usize,
    /// `[T, k]`, distinct in a row.
    pub experts: &'a [u32],
    /// `[T, k]`.
    pub weights: &'a [f32],
    /// Factor of the shared expert `[T]`, its sigmoid applied; empty without a shared expert.
    pub shared: &'a [f32],
}

/// Low-rank additions to the experts of one layer, as one row has them; `None` where there is none.
#[derive(Clone, Copy, Default)]
pub struct ExpertFactors<'a> {
    /// One for each routed expert.
    pub gate: Option<&'a [LowRank]>,
    pub up: Option<&'a [LowRank]>,
    pub down: Option<&'a [LowRank]>,
    pub shared_gate: Option<&'a LowRank>,
    pub shared_up: Option<&'a LowRank>,
    pub shared_down: Option<&'a LowRank>,
}

/// Which additions row t has.
pub type FactorsOf<'a> = dyn Fn(usize) -> Option<ExpertFactors<'a>> + Sync + 'a;

/// Buffers of [`moe`], reusable from layer to layer.
pub struct MoeScratch {
    /// Rows grouped by expert: for each expert with rows, its range in `pairs`.
    groups: Vec<(u32, usize, usize)>,
    /// Activation row and position in `[T·k]` of each pair, sorted by expert.
    tokens: Vec<u32>,
    pairs: Vec<u32>,
    every: Vec<u32>,
    hidden: Act,
    shared_hidden: Act,
    /// `[T·k, hidden]` and `[T, hidden]`.
    down: Vec<f32>,
    shared_down: Vec<f32>,
}

impl Default for MoeScratch {
    fn default() -> Self {
        MoeScratch::new()
    }
}

impl MoeScratch {
    /// Empty buffers; they grow to the largest step seen.
    pub fn new() -> MoeScratch {
        MoeScratch {
            groups: Vec::new(),
            tokens: Vec::new(),
            pairs: Vec::new(),
            every: Vec::new(),
            hidden: Act::new(0),
            shared_hidden: Act::new(0),
            down: Vec::new(),
            shared_down: Vec::new(),
        }
    }

    /// Sorts the pairs (row, choice) by expert, rows ascending.
    fn group(&mut self, routes: &Routes<'_>, experts: usize) {
        let rows = routes.experts.len() / routes.k;
        self.groups.clear();
        self.tokens.clear();
        self.pairs.clear();
        self.every.clear();
        self.every.extend(0..rows as u32);
        let mut pairs: Vec<u32> = (0..routes.experts.len() as u32).collect();
        pairs.sort_by_key(|p| routes.experts[*p as usize]);
        for p in pairs {
            let e = routes.experts[p as usize];
            assert!((e as usize) < experts, "expert {e} of {experts}");
            let at = self.pairs.len();
            match self.groups.last_mut() {
                Some(last) if last.0 == e => last.2 = at + 1,
                _ => self.groups.push((e, at, at + 1)),
            }
            self.pairs.push(p);
            self.tokens.push(p / routes.k as u32);
        }
    }
}

/// One piece of a stage: a matrix (or the gate and up pair), the rows it reads and where it writes.
struct Piece<'a> {
    weight: &'a Matrix,
    up: Option<&'a Matrix>,
    input: Input,
    from: &'a [u32],
    to: &'a [u32],
    out: Shared1<f32>,
    /// Added to the rows of `to`, and to those of `up`.
    plus: Option<&'a Plus<'a>>,
    plus_up: Option<&'a Plus<'a>>,
    first: usize,
    per_task: usize,
}

/// Cuts the pieces into tasks and runs them: gate/up pieces write silu(gate)·up.
fn run_pieces(pool: &Pool, pieces: &mut [Piece<'_>]) {
    let mut tasks = 0;
    for p in pieces.iter_mut() {
        let groups = p.weight.groups();
        let bytes = (p.weight.bytes() + p.up.map_or(0, Matrix::bytes)) / groups;
        p.per_task = groups_per_task(groups, bytes, p.from.len(), pool.threads());
        p.first = tasks;
        tasks += groups.div_ceil(p.per_task);
    }
    let pieces = &*pieces;
    pool.run(tasks, |task, _| {
        let p = &pieces[pieces.partition_point(|p| p.first <= task) - 1];
        let start = (task - p.first) * p.per_task;
        let mut values: Tile = [[0.0; GROUP]; TILE];
        let mut second: Tile = [[0.0; GROUP]; TILE];
        for g in start..p.weight.groups().min(start + p.per_task) {
            for (from, to) in p.from.chunks(TILE).zip(p.to.chunks(TILE)) {
                // SAFETY: `from` are rows of the input, `to` rows of the output buffer, and the columns of
                // group g of this piece's rows belong to this task alone.
                unsafe {
                    product::tile(p.weight, g, &p.input, from, &mut values);
                    if let Some(plus) = p.plus {
                        plus.join(g, to, &mut values);
                    }
                    if let Some(up) = p.up {
                        product::tile(up, g, &p.input, from, &mut second);
                        if let Some(plus) = p.plus_up {
                            plus.join(g, to, &mut second);
                        }
                        let n = from.len() * GROUP;
                        let gate = values;
                        norm::silu_mul(
                            &gate.as_flattened()[..n],
                            &second.as_flattened()[..n],
                            &mut values.as_flattened_mut()[..n],
                        );
                    }
                    product::store(&values, to, p.out, p.weight.rows(), g * GROUP, false);
                }
            }
        }
    });
}

/// out `[T, hidden]` += mixture(x). `x` holds the forms of gate and up (routed and shared).
pub fn moe(pool: &Pool, w: &Moe<'_>, x: &Act, routes: &Routes<'_>, scratch: &mut MoeScratch, out: &mut [f32]) {
    moe_adapted(pool, w, x, routes, None, scratch, out);
}

/// As [`moe`], with low-rank additions to the experts of the rows that have some; the others keep their bits.
pub fn moe_adapted(
    pool: &Pool,
    w: &Moe<'_>,
    x: &Act,
    routes: &Routes<'_>,
    factors: Option<&FactorsOf<'_>>,
    scratch: &mut MoeScratch,
    out: &mut [f32],
) {
    let (rows, hidden, ff) = (x.rows(), w.down.rows(), w.gate.rows());
    assert_eq!(routes.experts.len(), rows * routes.k, "k experts for each row");
    assert_eq!(routes.weights.len(), rows * routes.k, "k weights for each row");
    assert_eq!(out.len(), rows * hidden, "the residual has a row for each row of x");
    scratch.group(routes, w.gate.len());
    resize(&mut scratch.hidden, ff, rows * routes.k);
    scratch.down.resize(scratch.down.len().max(rows * routes.k * hidden), 0.0);
    if let Some(s) = &w.shared {
        assert_eq!(routes.shared.len(), rows, "a factor of the shared expert for each row");
        resize(&mut scratch.shared_hidden, s.gate.rows(), rows);
        scratch.shared_down.resize(scratch.shared_down.len().max(rows * hidden), 0.0);
    }
    let plus = factors.map(|of| GateUp::of(pool, w, x, routes, of)).unwrap_or_default();
    gate_up(pool, w, x, scratch, &plus);
    scratch.hidden.quantize(pool, Forms::of_experts(w.down));
    if let Some(s) = &w.shared {
        scratch.shared_hidden.quantize(pool, Forms::of(&[s.down]));
    }
    let plus = factors.map(|of| Down::of(pool, w, routes, of, scratch)).unwrap_or_default();
    down(pool, w, scratch, &plus);
    combine(pool, routes, scratch, w.shared.is_some(), hidden, out);
}

/// Gives a buffer its width (at first use) and rows.
fn resize(act: &mut Act, cols: usize, rows: usize) {
    if act.cols() != cols {
        *act = Act::new(cols);
    }
    act.set_rows(rows);
}

/// The additions to gate and up, routed `[T·k, ff]` and shared `[T, ff]`.
#[derive(Default)]
struct GateUp<'a> {
    routed: [Option<Plus<'a>>; 2],
    shared: [Option<Plus<'a>>; 2],
}

impl<'a> GateUp<'a> {
    fn of(pool: &Pool, w: &Moe<'_>, x: &Act, routes: &Routes<'_>, of: &FactorsOf<'a>) -> GateUp<'a> {
        let (k, rows, cols) = (routes.k, x.rows(), x.cols());
        let gate = |p: usize| of(p / k)?.gate?.get(routes.experts[p] as usize);
        let up = |p: usize| of(p / k)?.up?.get(routes.experts[p] as usize);
        let (ff, shared_ff) = (w.gate.rows(), w.shared.map_or(0, |s| s.gate.rows()));
        let mut plus = GateUp {
            routed: [Plus::of(rows * k, cols, ff, &gate), Plus::of(rows * k, cols, ff, &up)],
            shared: [
                Plus::of(rows, cols, shared_ff, &|t| of(t)?.shared_gate),
                Plus::of(rows, cols, shared_ff, &|t| of(t)?.shared_up),
            ],
        };
        let part = |fan| move |plus| Narrow { plus, x: x.data(), fan };
        let routed = plus.routed.iter_mut().flatten().map(part(k));
        let shared = plus.shared.iter_mut().flatten().map(part(1));
        narrow(pool, &mut routed.chain(shared).collect::<Vec<_>>());
        plus
    }
}

/// The additions to down, routed `[T·k, hidden]` and shared `[T, hidden]`, before the weighted sum.
#[derive(Default)]
struct Down<'a> {
    routed: Option<Plus<'a>>,
    shared: Option<Plus<'a>>,
}

impl<'a> Down<'a> {
    fn of(pool: &Pool, w: &Moe<'_>, routes: &Routes<'_>, of: &FactorsOf<'a>, scratch: &MoeScratch) -> Down<'a> {
        let (k, hidden, pairs) = (routes.k, w.down.rows(), routes.experts.len());
        let down = |p: usize| of(p / k)?.down?.get(routes.experts[p] as usize);
        let shared_ff = w.shared.map_or(0, |s| s.down.cols());
        let mut plus = Down {
            routed: Plus::of(pairs, w.down.cols(), hidden, &down),
            shared: Plus::of(pairs / k, shared_ff, hidden, &|t| of(t)?.shared_down),
        };
        let routed = plus.routed.iter_mut().map(|plus| Narrow { plus, x: scratch.hidden.data(), fan: 1 });
        let shared = plus.shared.iter_mut().map(|plus| Narrow { plus, x: scratch.shared_hidden.data(), fan: 1 });
        narrow(pool, &mut routed.chain(shared).collect::<Vec<_>>());
        plus
    }
}

fn gate_up(pool: &Pool, w: &Moe<'_>, x: &Act, scratch: &mut MoeScratch, plus: &GateUp<'_>) {
    let to = Shared1(scratch.hidden.data_mut().as_mut_ptr());
    let to_shared = Shared1(scratch.shared_hidden.data_mut().as_mut_ptr());
    let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(scratch.groups.len() + 1);
    for (e, from, end) in &scratch.groups {
        let gate = w.gate.expert(*e as usize);
        pieces.push(Piece {
            weight: gate,
            up: Some(w.up.expert(*e as usize)),
            input: Input::of(x, gate),
            from: &scratch.tokens[*from..*end],
            to: &scratch.pairs[*from..*end],
            out: to,
            plus: plus.routed[0].as_ref(),
            plus_up: plus.routed[1].as_ref(),
            first: 0,
            per_task: 1,
        });
    }
    if let Some(s) = &w.shared {
        let input = Input::of(x, s.gate);
        pieces.push(Piece {
            weight: s.gate,
            up: Some(s.up),
            input,
            from: &scratch.every,
            to: &scratch.every,
            out: to_shared,
            plus: plus.shared[0].as_ref(),
            plus_up: plus.shared[1].as_ref(),
            first: 0,
            per_task: 1,
        });
    }
    run_pieces(pool, &mut pieces);
}

fn down(pool: &Pool, w: &Moe<'_>, scratch: &mut MoeScratch, plus: &Down<'_>) {
    let to = Shared1(scratch.down.as_mut_ptr());
    let to_shared = Shared1(scratch.shared_down.as_mut_ptr());
    let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(scratch.groups.len() + 1);
    for (e, from, end) in &scratch.groups {
        let weight = w.down.expert(*e as usize);
        let rows = &scratch.pairs[*from..*end];
        pieces.push(Piece {
            weight,
            up: None,
            input: Input::of(&scratch.hidden, weight),
            from: rows,
            to: rows,
            out: to,
            plus: plus.routed.as_ref(),
            plus_up: None,
            first: 0,
            per_task: 1,
        });
    }
    if let Some(s) = &w.shared {
        let input = Input::of(&scratch.shared_hidden, s.down);
        pieces.push(Piece {
            weight: s.down,
            up: None,
            input,
            from: &scratch.every,
            to: &scratch.every,
            out: to_shared,
            plus: plus.shared.as_ref(),
            plus_up: None,
            first: 0,
            per_task: 1,
        });
    }
    run_pieces(pool, &mut pieces);
}

/// Adds the experts of each row in the router's order, then the shared one, then to the residual.
fn combine(pool: &Pool, routes: &Routes<'_>, scratch: &MoeScratch, shared: bool, hidden: usize, out: &mut [f32]) {
    let rows = out.len() / hidden;
    let to = Shared1(out.as_mut_ptr());
    let per_task = (8192 / hidden).max(1);
    pool.run(rows.div_ceil(per_task), |task, _| {
        let mut sum = vec![0.0f32; hidden];
        for t in task * per_task..rows.min((task + 1) * per_task) {
            sum.fill(0.0);
            for p in t * routes.k..(t + 1) * routes.k {
                norm::add_scaled(&mut sum, &scratch.down[p * hidden..(p + 1) * hidden], routes.weights[p]);
            }
            if shared {
                norm::add_scaled(&mut sum, &scratch.shared_down[t * hidden..(t + 1) * hidden], routes.shared[t]);
            }
            // SAFETY: row t belongs to this task alone and lies inside `out`.
            let row = unsafe { std::slice::from_raw_parts_mut(to.at(t * hidden), hidden) };
            norm::add(row, &sum);
        }
    });
}

/// Softmax over the router's logits of one row, then the `experts.len()` largest, ties to the lower
/// index, weights renormalised to sum 1. `probs` is scratch.
pub fn route(logits: &[f32], experts: &mut [u32], weights: &mut [f32], probs: &mut Vec<f32>) {
    assert!(experts.len() <= logits.len() && experts.len() == weights.len(), "k of {} experts", logits.len());
    probs.clear();
    probs.extend_from_slice(logits);
    norm::softmax(probs);
    let mut total = 0f64;
    for (e, w) in experts.iter_mut().zip(weights.iter_mut()) {
        let best = norm::argmax(probs);
        (*e, *w) = (best as u32, probs[best]);
        total += f64::from(probs[best]);
        probs[best] = f32::NEG_INFINITY;
    }
    // The floor is that of ggml: it only guards a division by zero.
    let total = (total as f32).max(6.103_515_6e-5);
    weights.iter_mut().for_each(|w| *w /= total);
}

#[cfg(test)]
mod tests;
