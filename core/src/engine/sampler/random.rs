//! The random numbers of sampling: seeded, the same on every platform, independent of any crate's version.
//! The generator is xoshiro256++ by Blackman and Vigna (2019); SplitMix64 fills its state, as they advise.

/// A seeded generator.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: [u64; 4],
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        let mut mix = seed;
        Random { state: std::array::from_fn(|_| split_mix(&mut mix)) }
    }

    fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let out = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        out
    }

    /// Uniform in [0, 1), 53 bits.
    pub(super) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs from the state 1, 2, 3, 4, as the authors' C code prints them.
    #[test]
    fn follows_the_published_sequence() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let out: Vec<u64> = (0..6).map(|_| random.bits()).collect();
        assert_eq!(out[..4], [41943041, 58720359, 3588806011781223, 3591011842654386]);
        // SplitMix64 from 0.
        assert_eq!(split_mix(&mut 0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn units_are_uniform() {
        let mut random = Random::new(7);
        let mut bins = [0u32; 16];
        for _ in 0..160_000 {
            bins[(random.unit() * 16.0) as usize] += 1;
        }
        // 15 degrees of freedom: 37.7 is the 0.1 % point.
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi < 37.7, "chi square {chi}");
    }
}
