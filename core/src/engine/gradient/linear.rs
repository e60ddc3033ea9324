//! A frozen matrix with its transpose, and the low-rank change that is learned beside it.
//!
//! y = W·x + s·B·(A·x). Backward: dx = Wᵀ·dy + s·Aᵀ·(Bᵀ·dy), dA = s·(Bᵀ·dy)·xᵀ, dB = s·dy·(A·x)ᵀ. W itself has no
//! gradient: that is what keeps training near the memory of inference.

use chimere_ffi::cpu::{Left, Panels, Pool, multiply};

/// A matrix `[outputs, inputs]` in f32, both ways round.
pub(super) struct Linear {
    /// Name of the tensor in the model file.
    pub(super) name: String,
    /// For rows of inputs.
    weight: Panels,
    /// For rows of gradients of outputs.
    transposed: Panels,
    /// Index of the change that is learned here.
    pub(super) slot: Option<usize>,
}

impl Linear {
    /// `values`: `[outputs, inputs]`, row-major.
    pub(super) fn new(name: &str, inputs: usize, values: &[f32]) -> Linear {
        Linear {
            name: name.into(),
            weight: Panels::transposed(values, inputs),
            transposed: Panels::of(values, inputs),
            slot: None,
        }
    }

    pub(super) fn inputs(&self) -> usize {
        self.weight.depth()
    }

    pub(super) fn outputs(&self) -> usize {
        self.weight.width()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.weight.bytes() + self.transposed.bytes()
    }
}

/// The change of one matrix: A `[inputs, rank]` (transposed, so that a row serves one input) and B `[rank, outputs]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Name of the tensor that it changes.
    pub name: String,
    pub inputs: usize,
    pub outputs: usize,
    pub a: Vec<f32>,
    pub b: Vec<f32>,
}

/// The changes of a model, in the order of its layers, all of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    pub rank: usize,
    /// alpha / rank.
    pub scale: f32,
    pub slots: Vec<Change>,
}

impl Changes {
    /// The same shapes, all zero: where gradients are summed.
    pub fn zeros_like(&self) -> Changes {
        let zeros = |c: &Change| Change { a: vec![0.0; c.a.len()], b: vec![0.0; c.b.len()], ..c.clone() };
        Changes { slots: self.slots.iter().map(zeros).collect(), ..*self }
    }

    /// Adds the numbers of another of the same shapes.
    pub fn add(&mut self, other: &Changes) {
        self.values_mut().zip(other.values()).for_each(|(sum, v)| *sum += v);
    }

    /// Every number, in a fixed order.
    pub fn values(&self) -> impl Iterator<Item = &f32> {
        self.slots.iter().flat_map(|c| c.a.iter().chain(&c.b))
    }

    /// Every number, in the same order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        self.slots.iter_mut().flat_map(|c| c.a.iter_mut().chain(&mut c.b))
    }
}

/// Rows that are one task of [`each_row`].
const ROWS_A_TASK: usize = 16;

/// Calls `task(t, row t)` for every row of `values` `[N, width]`, spread over the threads.
pub(super) fn each_row(pool: &Pool, width: usize, values: &mut [f32], task: impl Fn(usize, &mut [f32]) + Sync) {
    let mut parts: Vec<_> = values.chunks_mut(ROWS_A_TASK * width).collect();
    pool.each(&mut parts, |i, part, _| {
        for (j, row) in part.chunks_exact_mut(width).enumerate() {
            task(i * ROWS_A_TASK + j, row);
        }
    });
}

/// What every product of a pass needs: threads and the changes of the candidate.
#[derive(Clone, Copy)]
pub(super) struct Tools<'a> {
    pub(super) pool: &'a Pool,
    pub(super) changes: &'a Changes,
}

impl Tools<'_> {
    /// [`each_row`] on the threads of this pass.
    pub(super) fn rows(&self, width: usize, values: &mut [f32], task: impl Fn(usize, &mut [f32]) + Sync) {
        each_row(self.pool, width, values, task);
    }

    /// x · right, of every row of `x`.
    fn product(&self, x: &[f32], right: &Panels) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / right.depth() * right.width()];
        multiply(self.pool, Left::of(x, right.depth()), right, &mut out, false);
        out
    }

    /// W·x + s·B·(A·x) of every row of `x` `[N, inputs]`.
    pub(super) fn forward(&self, linear: &Linear, x: &[f32]) -> Vec<f32> {
        let mut out = self.product(x, &linear.weight);
        if let Some(change) = linear.slot.map(|i| &self.changes.slots[i]) {
            let u = self.narrowed(change, x);
            multiply(
                self.pool,
                Left::of(&u, self.changes.rank),
                &Panels::of(&change.b, change.outputs),
                &mut out,
                true,
            );
        }
        out
    }

    /// s·A·x of every row: `[N, rank]`.
    fn narrowed(&self, change: &Change, x: &[f32]) -> Vec<f32> {
        self.scaled(self.product(x, &Panels::of(&change.a, self.changes.rank)))
    }

    fn scaled(&self, mut values: Vec<f32>) -> Vec<f32> {
        values.iter_mut().for_each(|v| *v *= self.changes.scale);
        values
    }

    /// Adds Wᵀ·dy + s·Aᵀ·(Bᵀ·dy) to `dx`, and the gradients of the change to `grads`. `x` is what `forward` was given.
    pub(super) fn backward(&self, linear: &Linear, x: &[f32], dy: &[f32], dx: &mut [f32], grads: &mut Changes) {
        let (inputs, outputs) = (linear.inputs(), linear.outputs());
        multiply(self.pool, Left::of(dy, outputs), &linear.transposed, dx, true);
        let Some(slot) = linear.slot else { return };
        let (change, grad, rank) = (&self.changes.slots[slot], &mut grads.slots[slot], self.changes.rank);
        // Of every row u = s·A·x and du = s·Bᵀ·dy.
        let u = self.narrowed(change, x);
        let du = self.scaled(self.product(dy, &Panels::transposed(&change.b, outputs)));
        multiply(self.pool, Left::of(&du, rank), &Panels::transposed(&change.a, rank), dx, true);
        multiply(self.pool, Left::transposed(x, inputs), &Panels::of(&du, rank), &mut grad.a, true);
        // dB comes out as columns.
        let mut db = vec![0.0; outputs * rank];
        multiply(self.pool, Left::transposed(dy, outputs), &Panels::of(&u, rank), &mut db, false);
        for (k, row) in grad.b.chunks_exact_mut(outputs).enumerate() {
            row.iter_mut().enumerate().for_each(|(o, b)| *b += db[o * rank + k]);
        }
    }
}
