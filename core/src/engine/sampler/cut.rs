//! From logits to weights, and the cuts that keep the likeliest of them (top-k, top-p, min-p). Nothing here sorts the
//! vocabulary. A histogram over the leading bits of the weights finds the bucket in which a cut falls, and only that
//! bucket is sorted. Every step is plain IEEE arithmetic in a fixed order, so the same seed gives the same text on
//! every platform.

/// A token that may still be drawn: its weight (the likeliest token has 1) and id.
pub(super) type Candidate = (f32, u32);

/// Candidates up to here are sorted outright.
const SORTED_MAX: usize = 256;
/// A bucket holds weights that agree in sign, exponent and the first four bits of the mantissa.
const BUCKET_SHIFT: u32 = 19;
/// Weights that are looked at together: a block whose largest is out of question is skipped whole.
const BLOCK: usize = 16;
/// Weights are in [0, 1], so bucket numbers end at that of 1.
const BUCKETS: usize = (0x3f80_0000u32 >> BUCKET_SHIFT) as usize + 1;

/// e^x for x ≤ 0, within 2 ulp: Cody–Waite reduction by ln 2 and a polynomial (Cephes expf). Not the
/// platform's own, whose last bit differs from one to the next; and this one is vectorised.
#[inline(always)]
fn exp_nonpositive(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer in the low bits
    let t = x.max(-87.0);
    let rounded = t * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (t - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let e = p * r * r + r + 1.0;
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.0 { 0.0 } else { (e * scale).min(1.0) }
}

/// Fills `weights` with e^((logit − max) / temperature) and returns their sum.
pub(super) fn weigh(logits: &[f32], max: f32, temperature: f32, weights: &mut Vec<f32>) -> f64 {
    let inverse = 1.0 / temperature;
    weights.clear();
    weights.extend(logits.iter().map(|&l| exp_nonpositive((l - max) * inverse)));
    sum(weights)
}

/// The weight of one logit, as [`weigh`] has it.
pub(super) fn weight(logit: f32, max: f32, temperature: f32) -> f32 {
    exp_nonpositive((logit - max) * (1.0 / temperature))
}

/// Sum in f64 over eight lanes, in an order that does not depend on the machine.
pub(super) fn sum(weights: &[f32]) -> f64 {
    let mut lanes = [0f64; 8];
    let chunks = weights.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|&w| f64::from(w)).sum();
    for chunk in chunks {
        for (lane, &w) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(w);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// The largest value, -inf of none. Values must not be NaN.
pub(super) fn max(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 8];
    let chunks = values.chunks_exact(8);
    let rest = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, larger);
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, v);
        }
    }
    lanes.into_iter().fold(rest, larger)
}

/// The order of every cut: likelier first, the lower id first among equals.
fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// How far down the order a cut goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Depth {
    /// This many tokens.
    Count(usize),
    /// Until the weights add up to this.
    Mass(f64),
}

impl Depth {
    /// Whether one more group of candidates would reach the end of the cut; what is left of it otherwise.
    fn take(self, count: usize, mass: f64) -> Option<Depth> {
        match self {
            Depth::Count(left) => (left > count).then(|| Depth::Count(left - count)),
            Depth::Mass(left) => (left > mass).then_some(Depth::Mass(left - mass)),
        }
    }
}

/// Keeps the first candidates of the order down to `depth`; their own order (by id) is kept.
fn keep(candidates: &mut Vec<Candidate>, depth: Depth) {
    let Some((mut bucket, depth)) = boundary(candidates, depth) else { return };
    bucket.sort_unstable_by(order);
    let mut left = depth;
    let last = bucket.iter().copied().find(|&(w, _)| match left.take(1, f64::from(w)) {
        Some(depth) => {
            left = depth;
            false
        }
        None => true,
    });
    // Rounding can leave a mass unreached at the very end: then the whole bucket stays.
    if let Some(last) = last.or(bucket.last().copied()) {
        candidates.retain(|c| order(c, &last).is_le());
    }
}

/// The candidates among which the cut ends, and what of the depth is left for them; `None`: all stay.
pub(super) fn boundary(candidates: &[Candidate], mut depth: Depth) -> Option<(Vec<Candidate>, Depth)> {
    if candidates.len() <= SORTED_MAX {
        return (!candidates.is_empty()).then(|| (candidates.to_vec(), depth));
    }
    let bucket_of = |w: f32| ((w.to_bits() >> BUCKET_SHIFT) as usize).min(BUCKETS - 1);
    let mut groups = vec![(0usize, 0f64); BUCKETS];
    for &(w, _) in candidates {
        let group = &mut groups[bucket_of(w)];
        group.0 += 1;
        group.1 += f64::from(w);
    }
    for (number, &(count, mass)) in groups.iter().enumerate().rev().filter(|(_, g)| g.0 > 0) {
        match depth.take(count, mass) {
            Some(left) => depth = left,
            None => {
                let inside = candidates.iter().copied().filter(|&(w, _)| bucket_of(w) == number).collect();
                return Some((inside, depth));
            }
        }
    }
    None
}

/// Which tokens may be drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    /// 0 = all.
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
}

impl Cuts {
    pub(super) fn none(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Fills `kept` with what remains after top-k, then top-p, then min-p, in order of ids: never empty if a
    /// weight is above 0. `total` is the sum of `weights`.
    pub(super) fn apply(&self, weights: &[f32], total: f64, kept: &mut Vec<Candidate>) {
        let mut total = total;
        let floor = self.floor(weights, total);
        kept.clear();
        for (block, first) in weights.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
            if max(block) >= floor {
                let inside = block.iter().copied().zip(first..);
                kept.extend(inside.filter(|&(w, _)| w >= floor && w > 0.0));
            }
        }
        if self.top_k > 0 {
            keep(kept, Depth::Count(self.top_k));
            total = mass(kept);
        }
        if self.top_p < 1.0 {
            keep(kept, Depth::Mass(f64::from(self.top_p) * total));
        }
        self.keep_min(kept);
    }

    fn keep_min(&self, kept: &mut Vec<Candidate>) {
        let most = kept.iter().fold(0f32, |m, &(w, _)| m.max(w));
        kept.retain(|&(w, _)| w >= self.min_p * most);
    }

    /// The same where `kept` holds the heaviest tokens alone and no other weighs more than `outside`; `total` is the sum of
    /// all weights, which top-p without top-k needs. False: what remains may not all be among them.
    pub(super) fn apply_to(&self, kept: &mut Vec<Candidate>, outside: f32, mut total: f64) -> bool {
        kept.retain(|&(w, _)| w > 0.0);
        let all = outside == 0.0;
        let inside = |kept: &[Candidate]| kept.iter().all(|&(w, _)| w > outside);
        if self.top_k > 0 {
            keep(kept, Depth::Count(self.top_k));
            if !inside(kept) || (kept.len() < self.top_k && !all) {
                return false;
            }
            total = mass(kept);
        }
        if self.top_p < 1.0 {
            let wanted = f64::from(self.top_p) * total;
            if mass(kept) < wanted && !all {
                return false;
            }
            keep(kept, Depth::Mass(wanted));
            if !inside(kept) {
                return false;
            }
        }
        self.keep_min(kept);
        inside(kept) && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > outside || all)
    }

    /// A weight below which no token can survive the cuts, cheap to find.
    fn floor(&self, weights: &[f32], total: f64) -> f32 {
        if self.top_k > 0 {
            // If k blocks have a token this heavy, k tokens are.
            let mut most: Vec<f32> = weights.chunks(BLOCK).map(max).collect();
            if self.top_k > most.len() {
                return 0.0;
            }
            let (_, kth, _) = most.select_nth_unstable_by(self.top_k - 1, |a, b| b.total_cmp(a));
            return *kth;
        }
        // Tokens lighter than the mean of what top-p leaves out weigh less than it, all of them together.
        let tail = (1.0 - f64::from(self.top_p)) * total / weights.len().max(1) as f64;
        f32::max(tail as f32 * 0.999, self.min_p)
    }
}

/// What candidates weigh together.
pub(super) fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|&(w, _)| f64::from(w)).sum()
}

/// The `count` largest logits with their ids, largest first.
pub(super) fn largest(logits: &[f32], count: usize) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
    for (block, first) in logits.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        let full = best.len() == count;
        if full && best.last().is_none_or(|last| max(block) <= last.0) {
            continue;
        }
        for (&logit, id) in block.iter().zip(first..) {
            // Ids come in order, so an equal logit goes behind those that are already there.
            let at = best.partition_point(|c| c.0 >= logit);
            best.insert(at, (logit, id));
            best.truncate(count);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_exact_function() {
        let mut worst = 0f64;
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp_nonpositive(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.5e-7, "relative error {worst}");
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-1e30), 0.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn largest_prefers_low_ids_among_equals() {
        assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0, 3.0], 3), [(3.0, 1), (3.0, 2), (3.0, 4)]);
        assert_eq!(largest(&[1.0, 3.0], 5), [(3.0, 1), (1.0, 0)]);
        assert_eq!(largest(&[1.0], 0), []);
    }
}
