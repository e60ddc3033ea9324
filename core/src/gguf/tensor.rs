//! What the header says of a tensor, and the checks that make it safe to read its data.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;

use chimere_ffi::DType;

use super::cursor::Cursor;
use super::error::{Error, printable};
use super::{DIMS_MAX, NAME_BYTES_MAX};

/// Name, shape, type and place of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file, e.g. `blk.0.attn_norm.weight`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents in ggml's order (the fastest first: `[input, output, expert]`), 1 to 4 of them.
    dims: Vec<u64>,
    /// Bytes of the data from the start of the file; inside the file, overlapping no other tensor.
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Extents in ggml's order: `[values of a row, rows, …]`.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Values in a row: the first extent.
    pub fn row_len(&self) -> u64 {
        self.dims.first().copied().unwrap_or(0)
    }

    /// Rows: the product of all extents but the first.
    pub fn rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }

    /// Values in all.
    pub fn elements(&self) -> u64 {
        self.row_len() * self.rows()
    }

    /// The same one, so many bytes further on.
    pub(super) fn moved(mut self, by: u64) -> TensorInfo {
        self.range = self.range.start + by..self.range.end + by;
        self
    }

    /// Bytes of the data.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Bytes that a tensor of this type and shape takes, or why there can be no such tensor.
pub(super) fn checked_bytes(name: &str, dtype: DType, dims: &[u64]) -> Result<u64, Error> {
    let name = || printable(name);
    if dims.is_empty() || dims.len() > DIMS_MAX as usize {
        return Err(Error::Dimensions { name: name(), found: dims.len() as u32 });
    }
    if let Some(axis) = dims.iter().position(|d| *d == 0) {
        return Err(Error::ZeroDimension { name: name(), axis });
    }
    let overflow = || Error::ShapeOverflow { name: name(), dims: dims.to_vec() };
    // ggml counts values in i64, so that is the bound for every product of extents.
    let elements = dims.iter().try_fold(1_u64, |n, d| n.checked_mul(*d));
    let elements = elements.filter(|n| *n <= i64::MAX as u64).ok_or_else(overflow)?;
    let (block, row) = (dtype.block_len() as u64, dims[0]);
    if row % block != 0 {
        return Err(Error::PartialBlock { name: name(), row, block, dtype: dtype.name() });
    }
    (elements / block).checked_mul(dtype.block_bytes() as u64).filter(|n| *n <= i64::MAX as u64).ok_or_else(overflow)
}

/// A tensor as the header describes it, its place not yet checked.
pub(super) struct Described {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    /// From the start of the data section.
    offset: u64,
    bytes: u64,
}

/// Reads the description of tensor number `i`.
pub(super) fn read_description<R: Read>(cursor: &mut Cursor<R>, i: u64) -> Result<Described, Error> {
    let name = cursor.string(NAME_BYTES_MAX, || format!("the name of tensor {i}"))?;
    if name.is_empty() {
        return Err(Error::Empty { what: format!("the name of tensor {i}"), at: cursor.at() });
    }
    let what = || format!("the description of tensor \"{}\"", printable(&name));
    let found = cursor.u32(what)?;
    if found == 0 || found > DIMS_MAX {
        return Err(Error::Dimensions { name: printable(&name), found });
    }
    let mut dims = Vec::with_capacity(found as usize);
    for _ in 0..found {
        dims.push(cursor.u64(what)?);
    }
    let number = cursor.u32(what)?;
    let dtype = DType::from_u32(number).ok_or_else(|| Error::UnknownDType { name: printable(&name), found: number })?;
    let offset = cursor.u64(what)?;
    let bytes = checked_bytes(&name, dtype, &dims)?;
    Ok(Described { name, dtype, dims, offset, bytes })
}

/// Where the data section is.
pub(super) struct DataSection {
    /// First byte of the section in the file.
    pub(super) start: u64,
    /// Length of the whole file.
    pub(super) file_len: u64,
    /// Alignment of each tensor, in bytes.
    pub(super) alignment: u64,
}

/// Checks that each tensor lies aligned inside the file and that no two overlap.
pub(super) fn place(described: Vec<Described>, data: &DataSection) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors = Vec::with_capacity(described.len());
    for d in described {
        if d.offset % data.alignment != 0 {
            let (name, offset) = (printable(&d.name), d.offset);
            return Err(Error::Misaligned { name, offset, alignment: data.alignment });
        }
        let start = data.start.saturating_add(d.offset);
        let end = start.saturating_add(d.bytes);
        if end > data.file_len || end == u64::MAX {
            return Err(Error::OutsideFile { name: printable(&d.name), start, end, file_len: data.file_len });
        }
        tensors.push(TensorInfo { name: d.name, dtype: d.dtype, dims: d.dims, range: start..end });
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.range.start);
    for pair in order.windows(2) {
        if let [first, second] = pair
            && first.range.end > second.range.start
        {
            return Err(Error::Overlap { first: printable(&first.name), second: printable(&second.name) });
        }
    }
    Ok(tensors)
}

/// The index of each tensor by its name; refuses a name that occurs twice.
pub(super) fn index(described: &[Described]) -> Result<HashMap<String, usize>, Error> {
    let mut by_name = HashMap::with_capacity(described.len());
    for (i, d) in described.iter().enumerate() {
        if by_name.insert(d.name.clone(), i).is_some() {
            return Err(Error::DuplicateTensor { name: printable(&d.name) });
        }
    }
    Ok(by_name)
}
