//! Which instruction sets the processor has, asked once.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// The instruction sets that the kernels distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ, VBMI and VNNI.
    Avx512,
}

#[cfg(target_arch = "x86_64")]
pub(super) fn isa() -> Isa {
    static FOUND: OnceLock<Isa> = OnceLock::new();
    *FOUND.get_or_init(|| {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
        if avx2 && avx512 && has!("avx512vbmi") && has!("avx512vnni") {
            Isa::Avx512
        } else if avx2 {
            Isa::Avx2
        } else {
            Isa::Portable
        }
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn isa() -> Isa {
    Isa::Portable
}

/// At least AVX2 and FMA.
pub(super) fn avx2() -> bool {
    isa() != Isa::Portable
}

/// AVX-512 with VNNI.
pub(super) fn avx512() -> bool {
    isa() == Isa::Avx512
}

/// The best instruction set found, for reports.
pub fn best() -> Isa {
    isa()
}

/// Every instruction set that this processor can run.
#[cfg(test)]
pub(super) fn available() -> Vec<Isa> {
    match isa() {
        Isa::Portable => vec![Isa::Portable],
        Isa::Avx2 => vec![Isa::Portable, Isa::Avx2],
        Isa::Avx512 => vec![Isa::Portable, Isa::Avx2, Isa::Avx512],
    }
}
