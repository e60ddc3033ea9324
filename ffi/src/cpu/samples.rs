//! The two references of the tests: ggml's own conversion and sums in double precision.

#[cfg(feature = "llama")]
use crate::DType;

pub(crate) use crate::samples::{Random, weights};

/// ggml's reference conversion.
#[cfg(feature = "llama")]
pub(crate) fn ggml_to_float(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    if dtype == DType::F32 {
        return super::dequantize(dtype, bytes, out).unwrap();
    }
    assert_eq!(dtype.row_bytes(out.len()), Some(bytes.len()));
    // SAFETY: the traits table has an entry for each of these types, and the slices have the sizes just checked.
    unsafe {
        let traits = llama_cpp_sys_2::ggml_get_type_traits(dtype as u32);
        let to_float = (*traits).to_float.unwrap();
        to_float(bytes.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64);
    }
}
