//! The nearest of many vectors, exactly: every vector is compared. At the sizes that are bounded here that takes a few
//! milliseconds, and an approximate search would save nothing that anybody waits for.

/// A vector in eight bits: `values · scale` is what it was, to a 127th of its largest value.
#[derive(Clone, Debug, PartialEq)]
pub struct Code {
    pub values: Vec<i8>,
    pub scale: f32,
}

impl Code {
    pub fn of(vector: &[f32]) -> Code {
        let largest = vector.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
        let values = vector.iter().map(|v| (v / scale).round().clamp(-127.0, 127.0) as i8).collect();
        Code { values, scale }
    }
}

/// Σ aᵢ·bᵢ. Products of eight bits summed in 32: exact up to 131,000 values; wrapping, for checked sums are not made
/// vectors of.
#[inline]
fn dot(a: &[i8], b: &[i8]) -> i32 {
    // Sixteen at a time, so that the compiler takes a vector of each.
    let (a, a_rest) = a.as_chunks::<16>();
    let (b, b_rest) = b.as_chunks::<16>();
    let whole = a.iter().zip(b).map(|(x, y)| products(x, y)).fold(0, i32::wrapping_add);
    whole.wrapping_add(products(a_rest, b_rest))
}

#[inline(always)]
fn products(a: &[i8], b: &[i8]) -> i32 {
    let product = |(x, y): (&i8, &i8)| i32::from(i16::from(*x).wrapping_mul(i16::from(*y)));
    a.iter().zip(b).map(product).fold(0, i32::wrapping_add)
}

/// The `k` rows of `values` (`query.values.len()` wide, with a scale each) that are most like `query` and that `may`
/// accepts, best first: number and cosine. Rows of equal likeness come in their order.
pub fn nearest(
    values: &[i8],
    scales: &[f32],
    query: &Code,
    k: usize,
    score_min: f32,
    may: impl Fn(usize) -> bool,
) -> Vec<(usize, f32)> {
    let width = query.values.len().max(1);
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(k + 1);
    for (row, (code, scale)) in values.chunks_exact(width).zip(scales).enumerate() {
        let score = dot(code, &query.values) as f32 * scale * query.scale;
        let worst = if best.len() < k { score_min } else { best.last().map_or(f32::INFINITY, |b| b.1) };
        let enters = if best.len() < k { score >= worst } else { score > worst };
        if enters && may(row) {
            let at = best.partition_point(|(_, other)| *other >= score);
            best.insert(at, (row, score));
            best.truncate(k);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cosine(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }

    proptest! {
        #[test]
        fn the_nearest_are_those_of_a_plain_search(
            rows in prop::collection::vec(prop::collection::vec(-1.0f32..1.0, 24), 1..60),
            query in prop::collection::vec(-1.0f32..1.0, 24),
            k in 1usize..8,
        ) {
            let codes: Vec<Code> = rows.iter().map(|row| Code::of(row)).collect();
            let values: Vec<i8> = codes.iter().flat_map(|c| c.values.iter().copied()).collect();
            let scales: Vec<f32> = codes.iter().map(|c| c.scale).collect();
            let asked = Code::of(&query);
            let found = nearest(&values, &scales, &asked, k, -100.0, |row| row % 3 != 0);
            let like = |row: usize| dot(&codes[row].values, &asked.values) as f32 * codes[row].scale * asked.scale;
            let mut plain: Vec<usize> = (0..rows.len()).filter(|row| row % 3 != 0).collect();
            plain.sort_by(|a, b| like(*b).total_cmp(&like(*a)).then(a.cmp(b)));
            plain.truncate(k);
            prop_assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), plain);
            for (row, score) in found {
                // Eight bits cost at most half a step in each value of both.
                let bound = 24.0 * (codes[row].scale + asked.scale) * 0.6;
                prop_assert!((score - cosine(&rows[row], &query)).abs() < bound);
            }
        }
    }

    #[test]
    fn nothing_below_the_least_score_and_nothing_of_nothing() {
        let code = Code::of(&[1.0, 0.0]);
        let values = [127i8, 0, 0, 127];
        assert_eq!(nearest(&values, &[1.0 / 127.0; 2], &code, 5, 0.5, |_| true), [(0, 1.0)]);
        assert_eq!(nearest(&[], &[], &code, 5, 0.0, |_| true), []);
        assert_eq!(nearest(&values, &[1.0 / 127.0; 2], &code, 0, 0.0, |_| true), []);
        assert_eq!(Code::of(&[0.0; 3]).values, [0; 3]);
    }
}
