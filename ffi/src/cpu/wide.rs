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
        #[cfg(target_arch = "x86_64")]
        for set in super::super::isa::available() {
            use super::super::isa::Isa;
            // SAFETY: the processor has the set.
            let got = unsafe {
                match set {
                    Isa::Avx512 => on_avx512(Sum(&x)),
                    Isa::Avx2 => on_avx2(Sum(&x)),
                    Isa::Portable => Sum(&x).run(),
                }
            };
            assert_eq!(got, want, "{set:?}");
        }
    }
}
