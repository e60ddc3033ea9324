//! Activations: rows of floats together with their 8-bit forms, quantised once by the stage that
//! produces them and shared by every matrix that consumes them.
//!
//! Owns the buffers and the quantisation. Form K: blocks of 256 with one scale; form B: blocks of 32.
//! Both keep the sums of their codes over 16 and 32 values, for formats with mins or offsets.

use super::norm;
use super::pack::{Experts, Kind, Matrix};
use super::pool::{Pool, Shared1};

/// The forms that consumers need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    pub(super) k: bool,
    pub(super) b: bool,
}

impl Forms {
    /// What products with these matrices need.
    pub fn of(matrices: &[&Matrix]) -> Forms {
        matrices.iter().fold(Forms::default(), |forms, m| {
            forms
                | match m.kind() {
                    Kind::Packed(l) if l.format.block == 256 => Forms { k: true, b: false },
                    Kind::Packed(_) => Forms { k: false, b: true },
                    _ => Forms::default(),
                }
        })
    }

    /// What products with these experts need.
    pub fn of_experts(experts: &Experts) -> Forms {
        Forms::of(&[experts.expert(0)])
    }
}

impl std::ops::BitOr for Forms {
    type Output = Forms;
    fn bitor(self, other: Forms) -> Forms {
        Forms { k: self.k | other.k, b: self.b | other.b }
    }
}

/// One 8-bit form of rows `[T, cols]`.
#[derive(Default)]
pub(super) struct Form {
    /// Codes `[T, cols]`, −127..=127.
    pub(super) q: Vec<i8>,
    /// Scale of each block `[T, cols/block]`.
    pub(super) d: Vec<f32>,
    /// Sums of 16 and of 32 codes `[T, cols/16]`, `[T, cols/32]`; for B the rows are padded to an even count.
    pub(super) sum16: Vec<i16>,
    pub(super) sum32: Vec<i16>,
}

/// A raw view of one form, for the kernels: row t starts at `t * stride`.
#[derive(Clone, Copy)]
pub(super) struct View {
    pub(super) q: *const i8,
    pub(super) d: *const f32,
    pub(super) sum16: *const i16,
    pub(super) sum32: *const i16,
    pub(super) cols: usize,
    pub(super) blocks: usize,
}

impl View {
    /// The view of rows starting at row `t`.
    pub(super) fn row(self, t: usize) -> View {
        View {
            q: self.q.wrapping_add(t * self.cols),
            d: self.d.wrapping_add(t * self.blocks),
            sum16: self.sum16.wrapping_add(t * (self.cols / 16)),
            sum32: self.sum32.wrapping_add(t * (self.cols / 32)),
            ..self
        }
    }
}

impl Form {
    fn resize(&mut self, rows: usize, cols: usize, block: usize) {
        grow(&mut self.q, rows * cols);
        grow(&mut self.d, rows * (cols / block));
        grow(&mut self.sum16, rows * (cols / 16));
        grow(&mut self.sum32, rows * (cols / 32));
    }

    fn view(&self, cols: usize, block: usize) -> View {
        View {
            q: self.q.as_ptr(),
            d: self.d.as_ptr(),
            sum16: self.sum16.as_ptr(),
            sum32: self.sum32.as_ptr(),
            cols,
            blocks: cols / block,
        }
    }
}

/// Buffers only grow: a later, smaller step allocates nothing.
fn grow<T: Clone + Default>(v: &mut Vec<T>, len: usize) {
    if v.len() < len {
        v.resize(len, T::default());
    }
}

/// Rows of activations `[T, cols]`, reusable from step to step.
pub struct Act {
    cols: usize,
    rows: usize,
    data: Vec<f32>,
    k: Form,
    b: Form,
    have: Forms,
}

impl Act {
    /// An empty buffer for rows of `cols` values.
    pub fn new(cols: usize) -> Act {
        Act { cols, rows: 0, data: Vec::new(), k: Form::default(), b: Form::default(), have: Forms::default() }
    }

    /// Number of rows T.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Sets the number of rows; old contents may stay, the 8-bit forms are void.
    pub fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
        grow(&mut self.data, rows * self.cols);
        self.have = Forms::default();
    }

    /// All rows, `[T, cols]`.
    pub fn data(&self) -> &[f32] {
        &self.data[..self.rows * self.cols]
    }

    /// All rows for writing; call [`Act::quantize`] afterwards.
    pub fn data_mut(&mut self) -> &mut [f32] {
        self.have = Forms::default();
        &mut self.data[..self.rows * self.cols]
    }

    /// Row `t`.
    pub fn row(&self, t: usize) -> &[f32] {
        &self.data()[t * self.cols..(t + 1) * self.cols]
    }

    /// Row `t` for writing; call [`Act::quantize`] afterwards.
    pub fn row_mut(&mut self, t: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.data_mut()[t * cols..(t + 1) * cols]
    }

    /// Makes the 8-bit forms of all rows.
    pub fn quantize(&mut self, pool: &Pool, forms: Forms) {
        self.produce(pool, forms, |_, _| {});
    }

    /// Copies rows `x` `[T, cols]` in and makes their forms.
    pub fn load(&mut self, pool: &Pool, x: &[f32], forms: Forms) {
        self.set_rows(x.len() / self.cols);
        let cols = self.cols;
        self.produce(pool, forms, |t, row| row.copy_from_slice(&x[t * cols..(t + 1) * cols]));
    }

    /// Rows = RMSNorm(x) · weight, and their forms, in one pass.
    pub fn rms_norm(&mut self, pool: &Pool, x: &[f32], weight: &[f32], eps: f32, forms: Forms) {
        self.set_rows(x.len() / self.cols);
        let cols = self.cols;
        self.produce(pool, forms, |t, row| norm::rms_norm_into(&x[t * cols..(t + 1) * cols], weight, eps, row));
    }

    /// Lets `fill(t, row)` write each row and quantises it while it is warm.
    pub fn produce(&mut self, pool: &Pool, forms: Forms, fill: impl Fn(usize, &mut [f32]) + Sync) {
        let (rows, cols) = (self.rows, self.cols);
        assert!(!forms.k || cols.is_multiple_of(256), "form K needs rows of whole blocks of 256");
        assert!(!forms.b || cols.is_multiple_of(32), "form B needs rows of whole blocks of 32");
        if forms.k {
            self.k.resize(rows, cols, 256);
        }
        if forms.b {
            self.b.resize(rows, cols, 32);
        }
        let data = Shared1(self.data.as_mut_ptr());
        let (k, b) = (FormParts::of(&mut self.k), FormParts::of(&mut self.b));
        // Rows a task: a few kilobytes, so that a small step stays on the calling thread.
        let per_task = (4096 / cols).max(1);
        pool.run(rows.div_ceil(per_task), |task, _| {
            for t in task * per_task..rows.min((task + 1) * per_task) {
                // SAFETY: row t belongs to this task alone and lies inside `data` (`set_rows`).
                let row = unsafe { std::slice::from_raw_parts_mut(data.at(t * cols), cols) };
                fill(t, row);
                if forms.k {
                    k.quantize::<256>(t, row);
                }
                if forms.b {
                    b.quantize::<32>(t, row);
                }
            }
        });
        self.have = forms;
    }

    /// The form with blocks of `block`; panics if [`Act::quantize`] was not asked for it.
    pub(super) fn form(&self, block: usize) -> View {
        let (have, form) = if block == 256 { (self.have.k, &self.k) } else { (self.have.b, &self.b) };
        assert!(have, "the activations were not quantised in blocks of {block}");
        form.view(self.cols, block)
    }
}

/// Where the rows of a form are written by many tasks.
#[derive(Clone, Copy)]
struct FormParts {
    q: Shared1<i8>,
    d: Shared1<f32>,
    sum16: Shared1<i16>,
    sum32: Shared1<i16>,
}

impl FormParts {
    fn of(form: &mut Form) -> FormParts {
        FormParts {
            q: Shared1(form.q.as_mut_ptr()),
            d: Shared1(form.d.as_mut_ptr()),
            sum16: Shared1(form.sum16.as_mut_ptr()),
            sum32: Shared1(form.sum32.as_mut_ptr()),
        }
    }

    /// Quantises row `t` in blocks of `B`.
    fn quantize<const B: usize>(self, t: usize, row: &[f32]) {
        let cols = row.len();
        // SAFETY: the form was resized to hold row t, and only this task writes it.
        let (q, d, sum16, sum32) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.q.at(t * cols), cols),
                std::slice::from_raw_parts_mut(self.d.at(t * (cols / B)), cols / B),
                std::slice::from_raw_parts_mut(self.sum16.at(t * (cols / 16)), cols / 16),
                std::slice::from_raw_parts_mut(self.sum32.at(t * (cols / 32)), cols / 32),
            )
        };
        quantize_row::<B>(row, q, d, sum16, sum32);
    }
}

/// q = round(x·127/max|x|) a block, d ≈ max|x|/127, and the sums of the codes.
fn quantize_row<const B: usize>(row: &[f32], q: &mut [i8], d: &mut [f32], sum16: &mut [i16], sum32: &mut [i16]) {
    let n = row.len();
    let fits =
        n.is_multiple_of(B) && q.len() == n && d.len() == n / B && sum16.len() == n / 16 && sum32.len() == n / 32;
    assert!(fits, "buffers of one row");
    #[cfg(target_arch = "x86_64")]
    if super::isa::avx512() {
        // SAFETY: the processor has AVX-512, and the lengths were checked.
        return unsafe { avx512::quantize_row::<B>(row, q, d, sum16, sum32) };
    }
    for (b, xs) in row.as_chunks::<B>().0.iter().enumerate() {
        let max = xs.iter().fold(0f32, |a, b| a.max(b.abs()));
        let (inverse, step) = steps::<B>(max);
        d[b] = step;
        for (j, xs) in xs.as_chunks::<16>().0.iter().enumerate() {
            let mut sum = 0i32;
            for (q, x) in q[b * B + j * 16..].iter_mut().zip(xs) {
                let v = round_even(x * inverse);
                *q = v as i8;
                sum += v;
            }
            sum16[b * B / 16 + j] = sum as i16;
        }
    }
    for (to, two) in sum32.iter_mut().zip(sum16.as_chunks::<2>().0) {
        *to = two[0] + two[1];
    }
}

/// 127/max and the step of a block of `B` values; below 1e-35, where the inverse would overflow, a block is zero for
/// every purpose. The step is rounded as ggml rounds it (`block_q8_K`: the reciprocal of the inverse; `block_q8_0`:
/// max/127 as f16), for the same bits send the same activations to the same experts.
#[inline(always)]
fn steps<const B: usize>(max: f32) -> (f32, f32) {
    if max <= 1e-35 {
        return (0.0, 0.0);
    }
    let inverse = 127.0 / max;
    (inverse, if B == 32 { half::f16::from_f32((max / 127.0).min(65_504.0)).to_f32() } else { 1.0 / inverse })
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    /// The same codes and sums as the portable loop.
    ///
    /// # Safety
    /// The buffers have the lengths of a row (checked by the caller).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn quantize_row<const B: usize>(
        row: &[f32],
        q: &mut [i8],
        d: &mut [f32],
        sum16: &mut [i16],
        sum32: &mut [i16],
    ) {
        for b in 0..row.len() / B {
            let x = |j: usize| row.as_ptr().wrapping_add(b * B + j * 16);
            // SAFETY: block b has B values; its codes and sums lie inside their buffers.
            unsafe {
                let mut most = [_mm512_setzero_ps(); 2];
                for j in 0..B / 16 {
                    most[j % 2] = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x(j))), most[j % 2]);
                }
                let (inverse, step) = super::steps::<B>(_mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1])));
                d[b] = step;
                let inverse = _mm512_set1_ps(inverse);
                for j in (0..B / 16).step_by(2) {
                    let code =
                        |j| _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x(j)), inverse)));
                    let both = _mm256_set_m128i(code(j + 1), code(j));
                    _mm256_storeu_si256(q.as_mut_ptr().wrapping_add(b * B + j * 16).cast(), both);
                    // Sums of eight codes in each 64-bit half: bytes made unsigned by +128, then 8·128 taken off.
                    let eights =
                        _mm256_sad_epu8(_mm256_xor_si256(both, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
                    let low = _mm256_extract_epi64::<0>(eights) + _mm256_extract_epi64::<1>(eights) - 2048;
                    let high = _mm256_extract_epi64::<2>(eights) + _mm256_extract_epi64::<3>(eights) - 2048;
                    let at = (b * B + j * 16) / 16;
                    sum16[at] = low as i16;
                    sum16[at + 1] = high as i16;
                    sum32[at / 2] = (low + high) as i16;
                }
            }
        }
    }
}

/// Nearest integer, ties to even, for |x| < 2^21: the addition of 1.5·2^23 leaves it in the low bits.
#[inline(always)]
fn round_even(x: f32) -> i32 {
    (x + 12_582_912.0).to_bits() as i32 - 0x4B40_0000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::samples::Random;

    #[test]
    fn codes_are_within_half_a_step_and_sums_are_theirs() {
        let pool = Pool::new(2).unwrap();
        let mut act = Act::new(512);
        let mut x = Random(1).normals(3 * 512);
        x[512..768].fill(0.0);
        x[700] = 1e-38;
        act.load(&pool, &x, Forms { k: true, b: true });
        for (block, form) in [(256, &act.k), (32, &act.b)] {
            for (i, v) in x.iter().enumerate() {
                let d = form.d[i / block];
                // Half a step; 32-blocks also round the step itself, by at most 2^-11 of it, times 127.
                let allowed = if block == 32 { 0.5001 + 127.0 / 2048.0 } else { 0.5001 };
                assert!((v - d * f32::from(form.q[i])).abs() <= d * allowed + 1e-37, "{i}");
            }
            for (j, s) in form.sum16.iter().enumerate() {
                assert_eq!(i32::from(*s), form.q[j * 16..(j + 1) * 16].iter().map(|q| i32::from(*q)).sum::<i32>());
            }
            for (j, s) in form.sum32.iter().enumerate() {
                assert_eq!(i32::from(*s), form.q[j * 32..(j + 1) * 32].iter().map(|q| i32::from(*q)).sum::<i32>());
            }
        }
    }

    #[test]
    fn the_fast_form_gives_the_codes_of_the_portable_one() {
        let x = Random(4).normals(512);
        let (mut q, mut d, mut s16, mut s32) = ([0i8; 512], [0f32; 16], [0i16; 32], [0i16; 16]);
        quantize_row::<32>(&x, &mut q, &mut d, &mut s16, &mut s32);
        for (i, x) in x.iter().enumerate() {
            let block = &Random(4).normals(512)[i / 32 * 32..][..32];
            let (inverse, step) = steps::<32>(block.iter().fold(0f32, |a, b| a.max(b.abs())));
            assert_eq!((i32::from(q[i]), d[i / 32]), (round_even(x * inverse), step));
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        for x in [-127.0f32, -2.5, -1.5, -0.5, 0.0, 0.49, 0.5, 1.5, 2.5, 126.7] {
            assert_eq!(round_even(x), x.round_ties_even() as i32, "{x}");
        }
    }

    #[test]
    #[should_panic(expected = "not quantised in blocks of 256")]
    fn a_missing_form_is_named() {
        let act = Act::new(256);
        act.form(256);
    }
}
