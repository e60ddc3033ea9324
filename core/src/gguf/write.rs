//! Writing files: metadata and tensor descriptions first, then the data of each tensor in order,
//! streamed. The same input gives the same bytes. A file appears under its name only when it is
//! whole and on the disk: it is written aside, synced and renamed.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use chimere_ffi::DType;

use super::error::{Error, printable};
use super::tensor::checked_bytes;
use super::value::{Array, Value};
use super::{
    ALIGNMENT_DEFAULT, ARRAY_LEN_MAX, KEY_BYTES_MAX, KEYS_MAX, MAGIC, NAME_BYTES_MAX, STRING_BYTES_MAX, TENSORS_MAX,
};

/// What a file will hold: its metadata, and the name, type and shape of each tensor.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Declared>,
    keys: HashSet<String>,
    names: HashSet<String>,
}

#[derive(Clone, Debug)]
struct Declared {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    bytes: u64,
}

impl Layout {
    /// A file without metadata and tensors.
    pub fn new() -> Layout {
        Layout::default()
    }

    /// Adds a metadata value; they are written in the order of the calls.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), Error> {
        let value = value.into();
        within("the length of a key", key.len() as u64, KEY_BYTES_MAX)?;
        within("the key count", self.metadata.len() as u64 + 1, KEYS_MAX)?;
        match &value {
            Value::String(s) => within("the length of a string", s.len() as u64, STRING_BYTES_MAX)?,
            Value::Array(a) => within("the length of an array", a.len() as u64, ARRAY_LEN_MAX)?,
            _ => {}
        }
        if key.is_empty() {
            return Err(Error::Empty { what: "a key".into(), at: 0 });
        }
        if !self.keys.insert(key.into()) {
            return Err(Error::DuplicateKey { key: printable(key) });
        }
        self.metadata.push((key.into(), value));
        Ok(())
    }

    /// Declares a tensor (`dims` in ggml's order, the fastest first); data follows in this order.
    pub fn tensor(&mut self, name: &str, dtype: DType, dims: &[u64]) -> Result<(), Error> {
        within("the length of a tensor name", name.len() as u64, NAME_BYTES_MAX)?;
        within("the tensor count", self.tensors.len() as u64 + 1, TENSORS_MAX)?;
        if name.is_empty() {
            return Err(Error::Empty { what: "a tensor name".into(), at: 0 });
        }
        let bytes = checked_bytes(name, dtype, dims)?;
        if !self.names.insert(name.into()) {
            return Err(Error::DuplicateTensor { name: printable(name) });
        }
        self.tensors.push(Declared { name: name.into(), dtype, dims: dims.to_vec(), bytes });
        Ok(())
    }

    /// Bytes of all tensor data, padding included.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes.next_multiple_of(ALIGNMENT_DEFAULT)).sum()
    }

    /// The bytes of the header, padded to where the data starts.
    pub fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0_u64;
        for t in &self.tensors {
            put_string(&mut out, &t.name);
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend((t.dtype as u32).to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += t.bytes.next_multiple_of(ALIGNMENT_DEFAULT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT_DEFAULT as usize), 0);
        out
    }

    /// Starts the file that will be at `path`; give its tensors to the [`Writer`] in order.
    pub fn create(self, path: &Path) -> Result<Writer, Error> {
        let aside = aside_of(path);
        let header = self.header();
        let start = || -> std::io::Result<BufWriter<File>> {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(&aside)?);
            file.write_all(&header)?;
            Ok(file)
        };
        let file = start().map_err(|source| Error::Write { path: aside.clone(), source })?;
        let len = header.len() as u64;
        Ok(Writer { layout: self, file: Some(file), path: path.into(), aside, next: 0, written: 0, len })
    }
}

/// A file being written: takes the data of the declared tensors, in order, in pieces of any size.
#[derive(Debug)]
pub struct Writer {
    layout: Layout,
    /// `None` once finished.
    file: Option<BufWriter<File>>,
    path: PathBuf,
    aside: PathBuf,
    /// Index of the tensor being written.
    next: usize,
    /// Bytes of it already written.
    written: u64,
    /// Bytes of the file so far.
    len: u64,
}

impl Writer {
    /// Name and size in bytes of the tensor whose data comes next; `None` when all are written.
    pub fn expects(&self) -> Option<(&str, u64)> {
        self.layout.tensors.get(self.next).map(|t| (t.name.as_str(), t.bytes))
    }

    /// The next bytes of tensor `name`, which must be the one expected.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let wrong = |reason: String| Error::WriteOrder { name: printable(name), reason };
        let Some(tensor) = self.layout.tensors.get(self.next) else {
            return Err(wrong("all tensors are written already".into()));
        };
        if tensor.name != name {
            return Err(wrong(format!("the data of \"{}\" comes first", printable(&tensor.name))));
        }
        let total = self.written + bytes.len() as u64;
        let size = tensor.bytes;
        if total > size {
            return Err(wrong(format!("{total} bytes given, it takes {size}")));
        }
        self.put(bytes)?;
        self.written = total;
        if total == size {
            let padding = (size.next_multiple_of(ALIGNMENT_DEFAULT) - size) as usize;
            self.put(&[0; ALIGNMENT_DEFAULT as usize][..padding])?;
            self.next += 1;
            self.written = 0;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(file) = self.file.as_mut() else {
            return Ok(());
        };
        self.len += bytes.len() as u64;
        file.write_all(bytes).map_err(|source| Error::Write { path: self.aside.clone(), source })
    }

    /// Puts the file in its place; returns its length in bytes. Fails if a tensor lacks data.
    pub fn finish(mut self) -> Result<u64, Error> {
        if let Some((name, size)) = self.expects() {
            let reason = format!("{} of {size} bytes given at the end", self.written);
            return Err(Error::WriteOrder { name: printable(name), reason });
        }
        let Some(file) = self.file.take() else {
            return Ok(self.len);
        };
        let place = || -> std::io::Result<()> {
            let file = file.into_inner().map_err(|e| e.into_error())?;
            file.sync_all()?;
            drop(file);
            fs::rename(&self.aside, &self.path)?;
            // The rename itself must reach the disk: sync the folder that holds the name.
            File::open(folder_of(&self.path))?.sync_all()
        };
        place().map_err(|source| Error::Write { path: self.path.clone(), source })?;
        Ok(self.len)
    }
}

impl Drop for Writer {
    /// An unfinished file leaves nothing behind.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.aside);
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where a file is written before it gets its name: beside it, so that the rename stays on one disk.
fn aside_of(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    folder_of(path).join(name)
}

fn within(what: &str, found: u64, limit: u64) -> Result<(), Error> {
    if found > limit {
        return Err(Error::TooMany { what: what.into(), found, limit });
    }
    Ok(())
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
        Value::String(v) => {
            put(8, &[]);
            put_string(out, v);
        }
        Value::Array(v) => {
            put(9, &[]);
            put_array(out, v);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn put<T: Copy, const N: usize>(out: &mut Vec<u8>, kind: u32, items: &[T], bytes: fn(T) -> [u8; N]) {
        out.extend(kind.to_le_bytes());
        out.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| out.extend(bytes(*item)));
    }
    match array {
        Array::U8(v) => put(out, 0, v, u8::to_le_bytes),
        Array::I8(v) => put(out, 1, v, i8::to_le_bytes),
        Array::U16(v) => put(out, 2, v, u16::to_le_bytes),
        Array::I16(v) => put(out, 3, v, i16::to_le_bytes),
        Array::U32(v) => put(out, 4, v, u32::to_le_bytes),
        Array::I32(v) => put(out, 5, v, i32::to_le_bytes),
        Array::F32(v) => put(out, 6, v, f32::to_le_bytes),
        Array::Bool(v) => put(out, 7, v, |b| [u8::from(b)]),
        Array::U64(v) => put(out, 10, v, u64::to_le_bytes),
        Array::I64(v) => put(out, 11, v, i64::to_le_bytes),
        Array::F64(v) => put(out, 12, v, f64::to_le_bytes),
        Array::String(v) => {
            out.extend(8_u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|s| put_string(out, s));
        }
    }
}
