//! Plain loops in the widest registers that the processor has: a task is compiled once for each instruction set, and
//! one of them is called.
//!
//! What is inlined into the task is compiled with it; what is not runs as always. No operation is fused or put in
//! another order, so the numbers are the same on every instruction set.

/// Loops to run. A closure would not do: nothing makes the compiler inline one.
pub trait Wide {
    type Output;

    /// Mark it, and what it calls, `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs the task.
pub fn wide<T: Wide>(task: T) -> T::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if super::isa::avx512() {
            // SAFETY: the processor has these sets.
            return unsafe { on_avx512(task) };
        }
        if super::isa::avx2() {
            // SAFETY: as above.
            return unsafe { on_avx2(task) };
        }
    }
    task.run()
}

/// # Safety
/// The processor has AVX-512 F, BW, VL and DQ.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn on_avx512<T: Wide>(task: T) -> T::Output {
    task.run()
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn on_avx2<T: Wide>(task: T) -> T::Output {
    task.run()
}

/// What a task gives on every instruction set that this processor has.
#[cfg(test)]
pub(crate) fn on_each<T: Wide>(task: impl Fn() -> T) -> Vec<(super::isa::Isa, T::Output)> {
    use super::isa::Isa;
    let on = |set| match set {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the set.
        Isa::Avx512 => unsafe { on_avx512(task()) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { on_avx2(task()) },
        _ => task().run(),
    };
    super::isa::available().into_iter().map(|set| (set, on(set))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f32]);

    impl Wide for Sum<'_> {
        type Output = [f32; 16];

        #[inline(always)]
        fn run(self) -> [f32; 16] {
            let mut lanes = [0.0_f32; 16];
            for part in self.0.chunks_exact(16) {
                lanes.iter_mut().zip(part).for_each(|(lane, x)| *lane += x * 1.7);
            }
            lanes
        }
    }

    #[test]
    fn a_loop_gives_the_same_bits_on_every_instruction_set() {
        let x: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
        let want = Sum(&x).run();
        assert_eq!(wide(Sum(&x)), want);
        for (set, got) in on_each(|| Sum(&x)) {
            assert_eq!(got, want, "{set:?}");
        }
    }
}
