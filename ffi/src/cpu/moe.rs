//! The mixture of experts: routed experts and the shared one, from normed rows to the residual.
//!
//! Owns the grouping of rows by expert and the buffers between the stages: gate and up with
//! SiLU·mul, quantisation, down, and the weighted sum in the router's order, the shared expert last.
//! y = Σ_j w_j · down_j(silu(gate_j x) · up_j x) + s · shared(x); the result is added to the residual.

use super::act::{Act, Forms};
use super::lora::{Addition, LowRank, low_rank};
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

/// What is added to gate and up before they are joined, for marked rows of `[_, ff]`.
#[derive(Default)]
struct Joint {
    gate: Vec<f32>,
    up: Vec<f32>,
    marked: Vec<bool>,
}

impl Joint {
    /// Zeros for `rows` rows of `width`, none marked.
    fn clear(&mut self, rows: usize, width: usize) {
        for v in [&mut self.gate, &mut self.up] {
            v.clear();
            v.resize(rows * width, 0.0);
        }
        self.marked.clear();
        self.marked.resize(rows, false);
    }
}

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
    /// Used only by steps with additions.
    joint: Joint,
    shared_joint: Joint,
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
            joint: Joint::default(),
            shared_joint: Joint::default(),
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
    /// Added to gate and up of the marked rows of `to`.
    joint: Option<&'a Joint>,
    first: usize,
    per_task: usize,
}

/// Adds columns `at..` of the marked rows `to` of `[_, width]` to a tile.
fn join(tile: &mut Tile, to: &[u32], marked: &[bool], from: &[f32], width: usize, at: usize) {
    let n = GROUP.min(width - at);
    for (values, t) in tile.iter_mut().zip(to).filter(|(_, t)| marked[**t as usize]) {
        let add = &from[*t as usize * width + at..][..n];
        values.iter_mut().zip(add).for_each(|(v, a)| *v += a);
    }
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
                    if let Some(up) = p.up {
                        product::tile(up, g, &p.input, from, &mut second);
                        if let Some(j) = p.joint {
                            let (width, at) = (p.weight.rows(), g * GROUP);
                            join(&mut values, to, &j.marked, &j.gate, width, at);
                            join(&mut second, to, &j.marked, &j.up, width, at);
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
    if let Some(of) = factors {
        add_gate_up(pool, w, x, routes, of, scratch);
    }
    gate_up(pool, w, x, scratch, factors.is_some());
    scratch.hidden.quantize(pool, Forms::of_experts(w.down));
    if let Some(s) = &w.shared {
        scratch.shared_hidden.quantize(pool, Forms::of(&[s.down]));
    }
    down(pool, w, scratch);
    if let Some(of) = factors {
        add_down(pool, w, routes, of, scratch);
    }
    combine(pool, routes, scratch, w.shared.is_some(), hidden, out);
}

/// Gives a buffer its width (at first use) and rows.
fn resize(act: &mut Act, cols: usize, rows: usize) {
    if act.cols() != cols {
        *act = Act::new(cols);
    }
    act.set_rows(rows);
}

/// The additions to gate and up, and the marks of the rows that have them.
fn add_gate_up(pool: &Pool, w: &Moe<'_>, x: &Act, routes: &Routes<'_>, of: &FactorsOf<'_>, scratch: &mut MoeScratch) {
    let (k, rows, ff) = (routes.k, x.rows(), w.gate.rows());
    let j = &mut scratch.joint;
    j.clear(rows * k, ff);
    for (pairs, t) in j.marked.chunks_exact_mut(k).zip(0..rows) {
        pairs.fill(of(t).is_some_and(|f| f.gate.is_some() || f.up.is_some()));
    }
    let gate = |p: usize| of(p / k)?.gate?.get(routes.experts[p] as usize);
    let up = |p: usize| of(p / k)?.up?.get(routes.experts[p] as usize);
    let mut additions = vec![
        Addition { x: x.data(), fan: k, out: &mut j.gate, outputs: ff, pick: &gate },
        Addition { x: x.data(), fan: k, out: &mut j.up, outputs: ff, pick: &up },
    ];
    let shared_gate = |t: usize| of(t)?.shared_gate;
    let shared_up = |t: usize| of(t)?.shared_up;
    if let Some(s) = &w.shared {
        let (j, width) = (&mut scratch.shared_joint, s.gate.rows());
        j.clear(rows, width);
        for (mark, t) in j.marked.iter_mut().zip(0..rows) {
            *mark = of(t).is_some_and(|f| f.shared_gate.is_some() || f.shared_up.is_some());
        }
        additions.push(Addition { x: x.data(), fan: 1, out: &mut j.gate, outputs: width, pick: &shared_gate });
        additions.push(Addition { x: x.data(), fan: 1, out: &mut j.up, outputs: width, pick: &shared_up });
    }
    low_rank(pool, &mut additions);
}

/// The additions to down, before the weighted sum.
fn add_down(pool: &Pool, w: &Moe<'_>, routes: &Routes<'_>, of: &FactorsOf<'_>, scratch: &mut MoeScratch) {
    let (k, outputs) = (routes.k, w.down.rows());
    let pairs = routes.experts.len();
    let down = |p: usize| of(p / k)?.down?.get(routes.experts[p] as usize);
    let shared_down = |t: usize| of(t)?.shared_down;
    let out = &mut scratch.down[..pairs * outputs];
    let mut additions = vec![Addition { x: scratch.hidden.data(), fan: 1, out, outputs, pick: &down }];
    if w.shared.is_some() {
        let out = &mut scratch.shared_down[..pairs / k * outputs];
        additions.push(Addition { x: scratch.shared_hidden.data(), fan: 1, out, outputs, pick: &shared_down });
    }
    low_rank(pool, &mut additions);
}

fn gate_up(pool: &Pool, w: &Moe<'_>, x: &Act, scratch: &mut MoeScratch, joined: bool) {
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
            joint: joined.then_some(&scratch.joint),
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
            joint: joined.then_some(&scratch.shared_joint),
            first: 0,
            per_task: 1,
        });
    }
    run_pieces(pool, &mut pieces);
}

fn down(pool: &Pool, w: &Moe<'_>, scratch: &mut MoeScratch) {
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
            joint: None,
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
            joint: None,
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
