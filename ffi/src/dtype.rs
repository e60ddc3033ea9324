//! The tensor element types of the GGUF format, one page of facts: type number, values a block, bytes a block. File
//! reader, quantiser and kernels share it. Our own kernels compute [`DType::ALL`]; the others are for the library
//! alone. Source: the GGUF specification and ggml's `ggml_type` enumeration.

/// Element type of a tensor, numbered as in the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(non_camel_case_types)] // the field's own names
pub enum DType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    BF16 = 30,
    MXFP4 = 39,
    IQ1_S = 19,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    TQ1_0 = 34,
    TQ2_0 = 35,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

impl DType {
    /// The types that our own kernels compute, in the order of their numbers.
    pub const ALL: [DType; 21] = [
        DType::F32,
        DType::F16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::IQ2_XXS,
        DType::IQ2_XS,
        DType::IQ3_XXS,
        DType::IQ4_NL,
        DType::IQ3_S,
        DType::IQ2_S,
        DType::IQ4_XS,
        DType::BF16,
        DType::MXFP4,
    ];

    /// The types that a file may have and that only the library computes.
    pub const FOREIGN: [DType; 12] = [
        DType::IQ1_S,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F64,
        DType::IQ1_M,
        DType::TQ1_0,
        DType::TQ2_0,
        DType::NVFP4,
        DType::Q1_0,
        DType::Q2_0,
    ];

    /// The type of a number read from a file, if there is one.
    pub fn from_u32(n: u32) -> Option<DType> {
        DType::ALL.into_iter().chain(DType::FOREIGN).find(|t| *t as u32 == n)
    }

    /// Whether our own kernels compute it.
    pub fn is_native(self) -> bool {
        DType::ALL.contains(&self)
    }

    /// The native type called `name`, in any case: `Q4_K`, `q4_k`.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// Values in one block: rows must be a multiple of it.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64 => 1,
            DType::NVFP4 | DType::Q2_0 => 64,
            DType::Q1_0 => 128,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => 32,
            DType::Q8_0 | DType::IQ4_NL | DType::MXFP4 => 32,
            _ => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::I8 => 1,
            DType::F16 | DType::BF16 | DType::I16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 | DType::F64 => 8,
            DType::NVFP4 => 36,
            DType::Q1_0 | DType::Q2_0 => 18,
            DType::IQ1_S => 50,
            DType::IQ1_M => 56,
            DType::TQ1_0 => 54,
            DType::TQ2_0 => 66,
            DType::Q4_0 | DType::IQ4_NL => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q8_0 => 34,
            DType::MXFP4 => 17,
            DType::Q2_K => 84,
            DType::Q3_K => 110,
            DType::Q4_K => 144,
            DType::Q5_K => 176,
            DType::Q6_K => 210,
            DType::IQ2_XXS => 66,
            DType::IQ2_XS => 74,
            DType::IQ2_S => 82,
            DType::IQ3_XXS => 98,
            DType::IQ3_S => 110,
            DType::IQ4_XS => 136,
        }
    }

    /// Bytes of a row of `len` values; `None` if `len` is no multiple of the block or overflows.
    pub const fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name used by the field, e.g. `Q4_K`.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn numbers_round_trip_and_rows_need_whole_blocks() {
        for t in DType::ALL.into_iter().chain(DType::FOREIGN) {
            assert_eq!(DType::from_u32(t as u32), Some(t));
            assert!(DType::ALL.contains(&t) != DType::FOREIGN.contains(&t));
            assert_eq!(t.row_bytes(256), Some(256 / t.block_len() * t.block_bytes()));
        }
        assert_eq!(DType::from_name("iq4_xs"), Some(DType::IQ4_XS));
        assert_eq!(DType::from_name("Q4"), None);
        assert_eq!(DType::from_name("IQ1_S"), None, "nothing of ours makes it");
        assert_eq!(DType::from_u32(4), None);
        assert_eq!(DType::Q4_K.row_bytes(255), None);
        assert_eq!(DType::F32.row_bytes(usize::MAX), None);
    }
}
