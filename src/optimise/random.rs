//! Chance with a seed: the same search for the same seed, whatever crates are current (SplitMix64, Steele et al. 2014).

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform below `n`; 0 where there is no choice.
    pub fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// `count` different numbers below `n`, in random order.
    pub fn some_of(&mut self, n: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for at in 0..count.min(n) {
            all.swap(at, at + self.below(n - at));
        }
        all.truncate(count.min(n));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_all_are_different_and_evenly_drawn() {
        let mut random = Random::new(3);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            let drawn = random.some_of(10, 3);
            assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn[0] != drawn[2]);
            drawn.iter().for_each(|&n| seen[n] += 1);
        }
        assert!(seen.iter().all(|&n| (2_800..3_200).contains(&n)), "{seen:?}");
        assert_eq!((random.some_of(2, 5).len(), random.below(0)), (2, 0));
    }
}
