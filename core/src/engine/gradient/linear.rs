//! A frozen matrix with its transpose, and the low-rank change that is learned beside it.
//!
//! y = W·x + s·B·(A·x). Backward: dx = Wᵀ·dy + s·Aᵀ·(Bᵀ·dy), dA = s·(Bᵀ·dy)·xᵀ, dB = s·dy·(A·x)ᵀ. W itself has no
//! gradient: that is what keeps training near the memory of inference.

use chimere_ffi::DType;
use chimere_ffi::cpu::{Act, Forms, Matrix, Pool, Product, matmul};

use super::ops::{axpy, dot};
use crate::engine::model::ModelError;

/// A matrix `[outputs, inputs]` in f32, both ways round.
pub(super) struct Linear {
    /// Name of the tensor in the model file.
    pub(super) name: String,
    weight: Matrix,
    transposed: Matrix,
    /// Index of the change that is learned here.
    pub(super) slot: Option<usize>,
}

impl Linear {
    /// `values`: `[outputs, inputs]`, row-major.
    pub(super) fn new(name: &str, outputs: usize, inputs: usize, values: &[f32]) -> Result<Linear, ModelError> {
        let unusable = |e: &dyn std::fmt::Display| ModelError::Tensor { name: name.into(), reason: e.to_string() };
        let pack = |rows, cols, values: &mut dyn Iterator<Item = f32>| {
            let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
            Matrix::pack(DType::F32, rows, cols, &bytes).map_err(|e| unusable(&e))
        };
        let across = (0..inputs).flat_map(|i| (0..outputs).map(move |o| values[o * inputs + i]));
        Ok(Linear {
            name: name.into(),
            weight: pack(outputs, inputs, &mut values.iter().copied())?,
            transposed: pack(inputs, outputs, &mut { across })?,
            slot: None,
        })
    }

    pub(super) fn inputs(&self) -> usize {
        self.weight.cols()
    }

    pub(super) fn outputs(&self) -> usize {
        self.weight.rows()
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

    /// Every number, in a fixed order.
    pub fn values(&self) -> impl Iterator<Item = &f32> {
        self.slots.iter().flat_map(|c| c.a.iter().chain(&c.b))
    }

    /// Every number, in the same order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        self.slots.iter_mut().flat_map(|c| c.a.iter_mut().chain(&mut c.b))
    }
}

/// Columns of A whose gradient is one task.
const INPUTS_A_TASK: usize = 32;

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

    fn product(&self, weight: &Matrix, x: &[f32], out: &mut Vec<f32>, add: bool) {
        let rows = x.len() / weight.cols();
        if rows == 0 {
            out.clear();
            return;
        }
        let mut act = Act::new(weight.cols());
        act.load(self.pool, x, Forms::of(&[weight]));
        out.resize(rows * weight.rows(), 0.0);
        matmul(self.pool, &act, &mut [Product { weight, out, add }]);
    }

    /// W·x + s·B·(A·x) of every row of `x` `[N, inputs]`.
    pub(super) fn forward(&self, linear: &Linear, x: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        self.product(&linear.weight, x, &mut out, false);
        if let Some(change) = linear.slot.map(|i| &self.changes.slots[i]) {
            let (rank, scale) = (self.changes.rank, self.changes.scale);
            let mut rows: Vec<_> =
                x.chunks_exact(linear.inputs()).zip(out.chunks_exact_mut(linear.outputs())).collect();
            self.pool.each(&mut rows, |_, (x, y), _| {
                for (k, u) in narrowed(&change.a, x, rank).into_iter().enumerate() {
                    axpy(y, scale * u, &change.b[k * change.outputs..][..change.outputs]);
                }
            });
        }
        out
    }

    /// Adds Wᵀ·dy + s·Aᵀ·(Bᵀ·dy) to `dx`, and the gradients of the change to `grads`. `x` is what `forward` was given.
    pub(super) fn backward(&self, linear: &Linear, x: &[f32], dy: &[f32], dx: &mut Vec<f32>, grads: &mut Changes) {
        self.product(&linear.transposed, dy, dx, true);
        let Some(slot) = linear.slot else { return };
        let (change, rank, scale) = (&self.changes.slots[slot], self.changes.rank, self.changes.scale);
        let (inputs, outputs) = (linear.inputs(), linear.outputs());
        // Of every row u = A·x and du = s·Bᵀ·dy; a row of dx takes Aᵀ·du.
        let count = dy.len() / outputs;
        let (mut u, mut du) = (vec![0.0; count * rank], vec![0.0; count * rank]);
        let outer = dy.chunks_exact(outputs).zip(x.chunks_exact(inputs)).zip(dx.chunks_exact_mut(inputs));
        let mut rows: Vec<_> = outer.zip(u.chunks_exact_mut(rank).zip(du.chunks_exact_mut(rank))).collect();
        self.pool.each(&mut rows, |_, (((dy, x), dx), (u, du)), _| {
            u.copy_from_slice(&narrowed(&change.a, x, rank));
            for (k, du) in du.iter_mut().enumerate() {
                *du = scale * dot(dy, &change.b[k * outputs..][..outputs]);
            }
            for (dx, a) in dx.iter_mut().zip(change.a.chunks_exact(rank)) {
                *dx += a.iter().zip(du.iter()).map(|(a, du)| a * du).sum::<f32>();
            }
        });
        // Each number of dA and dB sums over the rows in their order, whoever computes it.
        let grad = &mut grads.slots[slot];
        let mut parts: Vec<_> = grad.a.chunks_mut(INPUTS_A_TASK * rank).collect();
        self.pool.each(&mut parts, |i, part, _| {
            for (x, du) in x.chunks_exact(inputs).zip(du.chunks_exact(rank)) {
                for (da, x) in part.chunks_exact_mut(rank).zip(&x[i * INPUTS_A_TASK..]) {
                    axpy(da, *x, du);
                }
            }
        });
        let mut parts: Vec<_> = grad.b.chunks_exact_mut(outputs).collect();
        self.pool.each(&mut parts, |k, db, _| {
            for (u, dy) in u.chunks_exact(rank).zip(dy.chunks_exact(outputs)) {
                axpy(db, scale * u[k], dy);
            }
        });
    }
}

/// A·x: `rank` values.
fn narrowed(a: &[f32], x: &[f32], rank: usize) -> Vec<f32> {
    let mut u = vec![0.0; rank];
    for (a, x) in a.chunks_exact(rank).zip(x) {
        axpy(&mut u, *x, a);
    }
    u
}
