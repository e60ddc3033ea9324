//! ggml's conversions between f32 and each tensor type, and its dot products. They are the
//! reference for our own kernels, and the quantiser of `chimere quantize`.

use std::sync::Once;

use llama_cpp_sys_2 as sys;

use crate::DType;

/// Why a conversion was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantError {
    #[error("{len} values are no whole rows of {cols}")]
    PartialRow { len: usize, cols: usize },
    #[error("rows of {cols} values are no multiple of the {block} values of a {dtype:?} block")]
    PartialBlock { dtype: DType, cols: usize, block: usize },
    #[error("{found} bytes given where {values} values of type {dtype:?} take {expected}")]
    Size { dtype: DType, values: usize, expected: usize, found: usize },
    #[error("value {at} is not finite or beyond ±{limit}; a block of type {dtype:?} cannot hold it")]
    Magnitude { at: usize, dtype: DType, limit: f32 },
    #[error("values of type {0:?} are no weights that can be converted")]
    NoFloats(DType),
    #[error("importance has {found} weights for rows of {cols} values")]
    ImportanceLength { found: usize, cols: usize },
    #[error("importance {at} must be finite and above zero")]
    ImportanceValue { at: usize },
}

/// Builds ggml's lookup tables, once in the process. Every function here calls it.
pub(super) fn init_tables() {
    static TABLES: Once = Once::new();
    // SAFETY: fills static tables; `Once` keeps a second caller out until they are complete.
    TABLES.call_once(|| unsafe { sys::ggml_cpu_init() });
}

/// The number of a type in ggml's enumeration: the same as in the file format.
fn number(dtype: DType) -> sys::ggml_type {
    dtype as sys::ggml_type
}

/// Bytes of `values` values, if they are whole blocks.
fn bytes_of(dtype: DType, values: usize) -> Result<usize, QuantError> {
    dtype.row_bytes(values).ok_or(QuantError::PartialBlock { dtype, cols: values, block: dtype.block_len() })
}

/// Converts rows of `cols` f32 values to `dtype`, row after row. `importance` holds a weight for
/// each column: errors in heavier columns count more (types of 4 bits and less profit).
pub fn quantize(dtype: DType, values: &[f32], cols: usize, importance: Option<&[f32]>) -> Result<Vec<u8>, QuantError> {
    if cols == 0 || !values.len().is_multiple_of(cols) {
        return Err(QuantError::PartialRow { len: values.len(), cols });
    }
    let row_bytes = bytes_of(dtype, cols)?;
    let limit = magnitude_max(dtype);
    if let Some(at) = values.iter().position(|v| v.is_nan() || v.abs() > limit) {
        return Err(QuantError::Magnitude { at, dtype, limit });
    }
    let ones;
    let importance = match importance {
        Some(weights) => {
            check_importance(weights, cols)?;
            Some(weights)
        }
        // Some 2-bit types insist on weights; equal ones mean none.
        None if requires_importance(dtype) => {
            ones = vec![1.0_f32; cols];
            Some(&ones[..])
        }
        None => None,
    };
    let rows = values.len() / cols;
    let mut out = vec![0_u8; rows * row_bytes];
    if rows == 0 {
        return Ok(out);
    }
    init_tables();
    let weights = importance.map_or(std::ptr::null(), <[f32]>::as_ptr);
    // SAFETY: `values` holds rows × cols values and `out` rows × row_bytes bytes (from a Vec, whose
    // allocator aligns to 16, above any block's need); `weights` is null or holds cols values. The
    // call initialises the type's tables itself, behind ggml's lock.
    let written = unsafe {
        sys::ggml_quantize_chunk(
            number(dtype),
            values.as_ptr(),
            out.as_mut_ptr().cast(),
            0,
            rows as i64,
            cols as i64,
            weights,
        )
    };
    debug_assert_eq!(written, out.len());
    Ok(out)
}

fn check_importance(weights: &[f32], cols: usize) -> Result<(), QuantError> {
    if weights.len() != cols {
        return Err(QuantError::ImportanceLength { found: weights.len(), cols });
    }
    match weights.iter().position(|w| !w.is_finite() || *w <= 0.0) {
        Some(at) => Err(QuantError::ImportanceValue { at }),
        None => Ok(()),
    }
}

/// Largest magnitude that a type can hold. Block scales are f16, and ggml ends the process when it
/// finds no scale for a block (NaN, or squares that overflow), so such values stop before it.
fn magnitude_max(dtype: DType) -> f32 {
    match dtype {
        DType::F32 | DType::BF16 => f32::MAX,
        _ => 65_504.0,
    }
}

/// Whether ggml refuses to make this type without importance weights.
pub fn requires_importance(dtype: DType) -> bool {
    // SAFETY: a pure function of a known type number.
    unsafe { sys::ggml_quantize_requires_imatrix(number(dtype)) }
}

/// Converts whole blocks of `dtype` to f32.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let expected = bytes_of(dtype, out.len())?;
    if bytes.len() != expected {
        return Err(QuantError::Size { dtype, values: out.len(), expected, found: bytes.len() });
    }
    init_tables();
    // SAFETY: the table of traits is static and has an entry for each known number.
    let to_float = unsafe { (*sys::ggml_get_type_traits(number(dtype))).to_float };
    let Some(to_float) = to_float else {
        if dtype != DType::F32 {
            return Err(QuantError::NoFloats(dtype));
        }
        // f32 itself has no conversion.
        let (cells, _) = bytes.as_chunks::<4>();
        cells.iter().zip(out).for_each(|(cell, out)| *out = f32::from_le_bytes(*cell));
        return Ok(());
    };
    let aligned = Aligned::new(bytes);
    // SAFETY: `aligned` holds exactly the blocks of out.len() values (checked above), aligned for
    // any block; `out` holds that many values.
    unsafe { to_float(aligned.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64) };
    Ok(())
}

/// Bytes at an address that suits every block type, copied only if they were not.
struct Aligned<'a> {
    bytes: &'a [u8],
    copy: Vec<u64>,
}

impl<'a> Aligned<'a> {
    fn new(bytes: &'a [u8]) -> Aligned<'a> {
        let mut copy = Vec::new();
        if bytes.as_ptr().align_offset(4) != 0 {
            copy = bytes
                .chunks(8)
                .map(|c| {
                    let mut word = [0; 8];
                    word[..c.len()].copy_from_slice(c);
                    u64::from_ne_bytes(word)
                })
                .collect();
        }
        Aligned { bytes, copy }
    }

    fn as_ptr(&self) -> *const u8 {
        if self.copy.is_empty() { self.bytes.as_ptr() } else { self.copy.as_ptr().cast() }
    }
}

/// ggml's dot product of one weight type: activations are first converted to the form it wants.
#[derive(Clone, Copy, Debug)]
pub struct VecDot {
    dtype: DType,
    /// ggml's number of the activation type (Q8_0, Q8_1, Q8_K, F32, F16, BF16).
    activation: sys::ggml_type,
    activation_block: usize,
    activation_bytes: usize,
}

impl VecDot {
    /// The dot product for weights of `dtype`.
    pub fn of(dtype: DType) -> VecDot {
        init_tables();
        // SAFETY: both tables are static and have an entry for each known number.
        unsafe {
            let activation = (*sys::ggml_get_type_traits_cpu(number(dtype))).vec_dot_type;
            let traits = &*sys::ggml_get_type_traits(activation);
            let (activation_block, activation_bytes) = (traits.blck_size as usize, traits.type_size);
            VecDot { dtype, activation, activation_block, activation_bytes }
        }
    }

    /// The activation type's name, e.g. `q8_K`.
    pub fn activation_name(&self) -> String {
        // SAFETY: static traits; the name is a zero-terminated static string.
        unsafe {
            let traits = sys::ggml_get_type_traits(self.activation);
            std::ffi::CStr::from_ptr((*traits).type_name).to_string_lossy().into_owned()
        }
    }

    /// Bytes of `len` activations in the form the dot product wants.
    pub fn activation_row_bytes(&self, len: usize) -> Result<usize, QuantError> {
        let block = self.activation_block.max(self.dtype.block_len());
        if !len.is_multiple_of(block) {
            return Err(QuantError::PartialBlock { dtype: self.dtype, cols: len, block });
        }
        Ok(len / self.activation_block * self.activation_bytes)
    }

    /// Converts one row of activations.
    pub fn activations(&self, values: &[f32]) -> Result<Vec<u8>, QuantError> {
        let mut out = vec![0_u8; self.activation_row_bytes(values.len())?];
        // SAFETY: static traits.
        let from_float = unsafe { (*sys::ggml_get_type_traits_cpu(self.activation)).from_float };
        match from_float {
            // SAFETY: `out` holds the blocks of values.len() values, aligned by the allocator to 16.
            Some(convert) => unsafe { convert(values.as_ptr(), out.as_mut_ptr().cast(), values.len() as i64) },
            None => values.iter().zip(out.as_chunks_mut::<4>().0).for_each(|(v, o)| *o = v.to_le_bytes()),
        }
        Ok(out)
    }

    /// The product of one weight row with one activation row, both of `len` values.
    pub fn dot(&self, len: usize, weights: &[u8], activations: &[u8]) -> Result<f32, QuantError> {
        let sizes = [(weights.len(), bytes_of(self.dtype, len)?), (activations.len(), self.activation_row_bytes(len)?)];
        if let Some((found, expected)) = sizes.into_iter().find(|(found, expected)| found != expected) {
            return Err(QuantError::Size { dtype: self.dtype, values: len, expected, found });
        }
        let (weights, activations) = (Aligned::new(weights), Aligned::new(activations));
        let mut out = 0.0_f32;
        // SAFETY: static traits; both rows hold `len` values in their forms and are aligned; strides
        // are unused with one row (nrc = 1).
        unsafe {
            if let Some(dot) = (*sys::ggml_get_type_traits_cpu(number(self.dtype))).vec_dot {
                dot(len as i32, &mut out, 0, weights.as_ptr().cast(), 0, activations.as_ptr().cast(), 0, 1);
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values like a trained weight's: roughly normal, by the sum of uniform numbers.
    fn weights(len: usize, mut seed: u64) -> Vec<f32> {
        let mut uniform = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..len).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 0.03).collect()
    }

    fn relative_error(a: &[f32], b: &[f32]) -> f32 {
        let diff: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
        (diff / a.iter().map(|a| a * a).sum::<f32>()).sqrt()
    }

    /// Largest relative root-mean-square error of a round trip on normal values.
    fn bound(dtype: DType) -> f32 {
        match dtype {
            DType::F32 => 0.0,
            DType::F16 => 4e-4,
            DType::BF16 => 3e-3,
            DType::Q8_0 => 8e-3,
            DType::Q6_K => 0.025,
            DType::Q5_0 | DType::Q5_1 | DType::Q5_K => 0.06,
            DType::Q4_0 | DType::Q4_1 | DType::Q4_K | DType::IQ4_NL | DType::IQ4_XS => 0.12,
            DType::MXFP4 => 0.16,
            DType::Q3_K | DType::IQ3_S | DType::IQ3_XXS => 0.25,
            _ => 0.45,
        }
    }

    #[test]
    fn our_table_of_types_is_ggmls() {
        // What the library computes with, but writes to no file.
        let inner = [sys::GGML_TYPE_Q8_1, sys::GGML_TYPE_Q8_K];
        for n in (0..sys::GGML_TYPE_COUNT).filter(|n| !inner.contains(n)) {
            // SAFETY: static traits of a known number; those of a type that was taken out have no size.
            let there = unsafe { (*sys::ggml_get_type_traits(n)).type_size > 0 };
            assert_eq!(DType::from_u32(n).is_some(), there, "type {n}");
        }
        for t in DType::ALL.into_iter().chain(DType::FOREIGN) {
            // SAFETY: static traits of a known number.
            let (block, bytes, name) = unsafe {
                let traits = &*sys::ggml_get_type_traits(number(t));
                (traits.blck_size, traits.type_size, std::ffi::CStr::from_ptr(traits.type_name))
            };
            assert_eq!((block as usize, bytes), (t.block_len(), t.block_bytes()), "{t:?}");
            assert_eq!(name.to_string_lossy().to_uppercase(), t.name().to_uppercase());
        }
    }

    #[test]
    fn a_round_trip_stays_within_the_types_error() {
        let values = weights(4 * 512, 1);
        for t in DType::ALL {
            let bytes = quantize(t, &values, 512, None).unwrap();
            assert_eq!(bytes.len(), 4 * t.row_bytes(512).unwrap());
            let mut back = vec![0.0; values.len()];
            dequantize(t, &bytes, &mut back).unwrap();
            let error = relative_error(&values, &back);
            assert!(error <= bound(t) && (error > bound(t) / 8.0 || t == DType::F32), "{t:?}: {error}");
        }
    }

    #[test]
    fn dot_products_agree_with_the_dequantised_row() {
        let (w, x) = (weights(1024, 2), weights(1024, 3));
        for t in DType::ALL {
            let bytes = quantize(t, &w, 1024, None).unwrap();
            let mut back = vec![0.0; w.len()];
            dequantize(t, &bytes, &mut back).unwrap();
            let dot = VecDot::of(t);
            let rows = dot.activations(&x).unwrap();
            let found = dot.dot(1024, &bytes, &rows).unwrap();
            let exact: f64 = back.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let scale: f64 = back.iter().zip(&x).map(|(a, b)| f64::from(a * b).powi(2)).sum::<f64>().sqrt();
            let error = (f64::from(found) - exact).abs() / scale;
            assert!(error < 0.03, "{t:?} with {}: {found} for {exact}", dot.activation_name());
        }
    }

    #[test]
    fn unaligned_bytes_convert_alike() {
        let values = weights(512, 4);
        for t in DType::ALL {
            let bytes = quantize(t, &values, 512, None).unwrap();
            let mut shifted = vec![0_u8; bytes.len() + 1];
            shifted[1..].copy_from_slice(&bytes);
            let (mut a, mut b) = (vec![0.0; 512], vec![0.0; 512]);
            dequantize(t, &bytes, &mut a).unwrap();
            dequantize(t, &shifted[1..], &mut b).unwrap();
            assert_eq!(a, b, "{t:?}");
        }
    }

    #[test]
    fn importance_moves_the_error_to_light_columns() {
        let values = weights(256 * 16, 5);
        let heavy: Vec<f32> = (0..256).map(|i| if i % 8 == 0 { 100.0 } else { 1.0 }).collect();
        let column_error = |importance: Option<&[f32]>| {
            let bytes = quantize(DType::Q4_K, &values, 256, importance).unwrap();
            let mut back = vec![0.0; values.len()];
            dequantize(DType::Q4_K, &bytes, &mut back).unwrap();
            let pick = |v: &[f32]| v.iter().step_by(8).copied().collect::<Vec<_>>();
            relative_error(&pick(&values), &pick(&back))
        };
        assert!(column_error(Some(&heavy)) < 0.9 * column_error(None));
    }

    #[test]
    fn wrong_input_is_refused() {
        use QuantError as E;
        let v = vec![0.5; 512];
        assert_eq!(quantize(DType::Q4_K, &v, 0, None), Err(E::PartialRow { len: 512, cols: 0 }));
        assert_eq!(quantize(DType::Q4_K, &v, 500, None), Err(E::PartialRow { len: 512, cols: 500 }));
        assert!(matches!(quantize(DType::Q4_K, &v, 128, None), Err(E::PartialBlock { .. })));
        assert!(matches!(quantize(DType::Q4_K, &v, 256, Some(&[1.0])), Err(E::ImportanceLength { .. })));
        assert!(matches!(quantize(DType::Q4_K, &v, 256, Some(&[0.0; 256])), Err(E::ImportanceValue { at: 0 })));
        assert!(matches!(dequantize(DType::Q4_K, &[0; 143], &mut [0.0; 256]), Err(E::Size { .. })));
        assert!(matches!(dequantize(DType::Q4_K, &[0; 144], &mut [0.0; 255]), Err(E::PartialBlock { .. })));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut v = v.clone();
            v[300] = bad;
            assert!(matches!(quantize(DType::IQ3_S, &v, 256, None), Err(E::Magnitude { at: 300, .. })));
        }
    }

    #[test]
    fn extreme_but_finite_values_do_not_end_the_process() {
        for value in [0.0, f32::MIN_POSITIVE, 1e-40, 1e-15, 65_504.0, -65_504.0] {
            for t in DType::ALL {
                let mut row = [value; 256];
                assert!(quantize(t, &row, 256, None).is_ok());
                row[100] = 65_504.0;
                assert!(quantize(t, &row, 256, None).is_ok());
            }
        }
    }
}
