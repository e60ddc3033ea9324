//! Reading a header: one pass from the magic to the last tensor description, every step checked.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::cursor::Cursor;
use super::error::{Error, printable};
use super::files::Files;
use super::tensor::{DataSection, Described, TensorInfo, index, place, read_description};
use super::value::{Array, FromValue, Value};
use super::{
    ALIGNMENT_DEFAULT, ALIGNMENT_MAX, ARRAY_LEN_MAX, KEY_BYTES_MAX, KEYS_MAX, MAGIC, STRING_BYTES_MAX, TENSORS_MAX,
    vocabulary,
};

/// Which part of a model a file is: counted from 0, of how many; a whole model is the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) no: u64,
    pub(super) count: u64,
}

/// A checked header: metadata and tensor descriptions, in the order of the file.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    /// Where the tensor data starts, in bytes from the start of the file.
    data_start: u64,
    file_len: u64,
    metadata: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
}

impl Gguf {
    /// Reads and checks the header of the model at `path`, in one file or several, as [`Files::open`] finds it.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        Ok(Files::open(path)?.0)
    }

    /// As [`Gguf::open`], from a file already open and standing at its start: whoever then maps the
    /// same handle maps the file that was checked, even if `path` was replaced meanwhile.
    pub fn read_file(file: &File, path: &Path) -> Result<Gguf, Error> {
        Gguf::read_part(file, path)?.whole()
    }

    /// As [`Gguf::read_file`], of a file that may be a part of a model.
    pub(super) fn read_part(file: &File, path: &Path) -> Result<Gguf, Error> {
        let meta = file.metadata().map_err(|source| Error::Read { path: path.into(), source })?;
        if meta.is_dir() {
            let source = std::io::ErrorKind::IsADirectory.into();
            return Err(Error::Read { path: path.into(), source });
        }
        Gguf::read_any(BufReader::with_capacity(1 << 16, file), meta.len())
    }

    /// Reads and checks a header from `reader` (buffered, at the start of a file of `file_len` bytes).
    pub fn read(reader: impl Read, file_len: u64) -> Result<Gguf, Error> {
        Gguf::read_any(reader, file_len)?.whole()
    }

    fn read_any(reader: impl Read, file_len: u64) -> Result<Gguf, Error> {
        let mut cursor = Cursor::new(reader, file_len);
        let version = read_version(&mut cursor)?;
        let tensor_count = bounded(cursor.u64(|| "the tensor count".into())?, TENSORS_MAX, "the tensor count")?;
        let key_count = bounded(cursor.u64(|| "the key count".into())?, KEYS_MAX, "the key count")?;
        let (metadata, keys) = read_metadata(&mut cursor, key_count)?;
        let alignment = alignment_of(&metadata, &keys)?;
        let described = read_descriptions(&mut cursor, tensor_count)?;
        let names = index(&described)?;
        // A file without tensors (a vocabulary, a test) may end right after its header.
        let data_start = cursor.at().next_multiple_of(alignment);
        let tensors = place(described, &DataSection { start: data_start, file_len, alignment })?;
        let gguf = Gguf { version, data_start, file_len, metadata, keys, tensors, names };
        gguf.split()?;
        vocabulary::check(&gguf)?;
        Ok(gguf)
    }

    /// Which part of a model this is.
    pub(super) fn split(&self) -> Result<Split, Error> {
        let number = |key: &str, absent| Ok::<u64, Error>(self.optional(key)?.unwrap_or(absent));
        Ok(Split { no: number("split.no", 0)?, count: number("split.count", 1)? })
    }

    fn whole(self) -> Result<Gguf, Error> {
        match self.split()? {
            Split { no, count } if count > 1 => Err(Error::Split { part: no.saturating_add(1), count }),
            _ => Ok(self),
        }
    }

    /// Adds the tensors of a further part, which begins at byte `start` behind the first.
    pub(super) fn append(&mut self, part: Gguf, start: u64) -> Result<(), Error> {
        for tensor in part.tensors {
            if self.names.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                return Err(Error::DuplicateTensor { name: printable(&tensor.name) });
            }
            self.tensors.push(tensor.moved(start));
        }
        let total = self.tensors.len() as u64;
        bounded(total, TENSORS_MAX, "the number of tensors")?;
        self.file_len += part.file_len;
        Ok(())
    }

    /// Checks what the first part says of all of them together.
    pub(super) fn check_joined(&self) -> Result<(), Error> {
        let found = self.tensors.len() as u64;
        match self.optional::<u64>("split.tensors.count")? {
            Some(said) if said != found => Err(Error::TensorCount { found, said }),
            _ => vocabulary::check(self),
        }
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Length of the whole file, or of all parts together, in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Where the tensor data starts, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// All metadata, in the order of the file.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The raw value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).and_then(|i| self.metadata.get(*i)).map(|(_, v)| v)
    }

    /// The value of `key` as `T`; missing is an error.
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, Error> {
        self.optional(key)?.ok_or_else(|| Error::MissingKey { key: key.into() })
    }

    /// The value of `key` as `T`, `None` if there is no such key; another type is an error.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, Error> {
        self.get(key).map(|v| T::from_value(key, v)).transpose()
    }

    /// The value of `key`, an integer of any width that fits.
    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        self.required(key)
    }

    /// The value of `key`, a float.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.required(key)
    }

    /// The value of `key`, a string.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.required(key)
    }

    /// `general.architecture`, e.g. `qwen35moe`.
    pub fn architecture(&self) -> Result<&str, Error> {
        self.str("general.architecture")
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.names.get(name).and_then(|i| self.tensors.get(*i))
    }

    /// The tensor called `name`; missing is an error.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.find(name).ok_or_else(|| Error::MissingTensor { name: printable(name) })
    }
}

fn bounded(found: u64, limit: u64, what: &str) -> Result<u64, Error> {
    if found > limit {
        return Err(Error::TooMany { what: what.into(), found, limit });
    }
    Ok(found)
}

fn read_version<R: Read>(cursor: &mut Cursor<R>) -> Result<u32, Error> {
    let mut magic = [0; 4];
    cursor.fill(&mut magic, || "the magic".into())?;
    if magic != MAGIC {
        return Err(Error::Magic { found: magic.escape_ascii().to_string() });
    }
    match cursor.u32(|| "the version".into())? {
        found @ (2 | 3) => Ok(found),
        found if matches!(found.swap_bytes(), 1..=3) => Err(Error::BigEndian),
        found => Err(Error::Version { found }),
    }
}

type Metadata = (Vec<(String, Value)>, HashMap<String, usize>);

fn read_metadata<R: Read>(cursor: &mut Cursor<R>, count: u64) -> Result<Metadata, Error> {
    // The shortest key takes 14 bytes: a length, one letter, a type, a one-byte value.
    cursor.check(count * 14, || format!("the metadata of {count} keys"))?;
    let mut metadata = Vec::with_capacity(count as usize);
    let mut keys = HashMap::with_capacity(count as usize);
    for i in 0..count {
        let key = cursor.string(KEY_BYTES_MAX, || format!("the name of key {i}"))?;
        if key.is_empty() {
            return Err(Error::Empty { what: format!("the name of key {i}"), at: cursor.at() });
        }
        if keys.insert(key.clone(), metadata.len()).is_some() {
            return Err(Error::DuplicateKey { key: printable(&key) });
        }
        let value = read_value(cursor, &key)?;
        metadata.push((key, value));
    }
    Ok((metadata, keys))
}

fn read_value<R: Read>(c: &mut Cursor<R>, key: &str) -> Result<Value, Error> {
    let what = || format!("the value of key \"{}\"", printable(key));
    Ok(match c.u32(what)? {
        0 => Value::U8(c.u8(what)?),
        1 => Value::I8(c.number(i8::from_le_bytes, what)?),
        2 => Value::U16(c.number(u16::from_le_bytes, what)?),
        3 => Value::I16(c.number(i16::from_le_bytes, what)?),
        4 => Value::U32(c.u32(what)?),
        5 => Value::I32(c.number(i32::from_le_bytes, what)?),
        6 => Value::F32(c.number(f32::from_le_bytes, what)?),
        7 => Value::Bool(bool_of(c.u8(what)?, key)?),
        8 => Value::String(c.string(STRING_BYTES_MAX, what)?),
        9 => Value::Array(read_array(c, key)?),
        10 => Value::U64(c.u64(what)?),
        11 => Value::I64(c.number(i64::from_le_bytes, what)?),
        12 => Value::F64(c.number(f64::from_le_bytes, what)?),
        found => return Err(Error::UnknownValueType { key: printable(key), found }),
    })
}

fn read_array<R: Read>(c: &mut Cursor<R>, key: &str) -> Result<Array, Error> {
    let what = || format!("the array of key \"{}\"", printable(key));
    let kind = c.u32(what)?;
    let len = c.u64(what)?;
    if len > ARRAY_LEN_MAX {
        let what = format!("the length of the array of key \"{}\"", printable(key));
        return Err(Error::TooMany { what, found: len, limit: ARRAY_LEN_MAX });
    }
    let len = len as usize;
    Ok(match kind {
        0 => Array::U8(c.numbers(len, u8::from_le_bytes, what)?),
        1 => Array::I8(c.numbers(len, i8::from_le_bytes, what)?),
        2 => Array::U16(c.numbers(len, u16::from_le_bytes, what)?),
        3 => Array::I16(c.numbers(len, i16::from_le_bytes, what)?),
        4 => Array::U32(c.numbers(len, u32::from_le_bytes, what)?),
        5 => Array::I32(c.numbers(len, i32::from_le_bytes, what)?),
        6 => Array::F32(c.numbers(len, f32::from_le_bytes, what)?),
        7 => {
            let bytes = c.numbers(len, u8::from_le_bytes, what)?;
            Array::Bool(bytes.into_iter().map(|b| bool_of(b, key)).collect::<Result<_, _>>()?)
        }
        8 => Array::String(
            c.strings(len, STRING_BYTES_MAX, |i| format!("string {i} of the array of key \"{}\"", printable(key)))?,
        ),
        9 => return Err(Error::NestedArray { key: printable(key) }),
        10 => Array::U64(c.numbers(len, u64::from_le_bytes, what)?),
        11 => Array::I64(c.numbers(len, i64::from_le_bytes, what)?),
        12 => Array::F64(c.numbers(len, f64::from_le_bytes, what)?),
        found => return Err(Error::UnknownValueType { key: printable(key), found }),
    })
}

fn bool_of(byte: u8, key: &str) -> Result<bool, Error> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Error::NotBool { key: printable(key), found }),
    }
}

fn read_descriptions<R: Read>(cursor: &mut Cursor<R>, count: u64) -> Result<Vec<Described>, Error> {
    // The shortest description takes 33 bytes: name 9, dimensions 12, type 4, offset 8.
    cursor.check(count * 33, || format!("the descriptions of {count} tensors"))?;
    let mut out = Vec::with_capacity(count as usize);
    for i in 0..count {
        out.push(read_description(cursor, i)?);
    }
    Ok(out)
}

fn value_of<'a>(m: &'a [(String, Value)], keys: &HashMap<String, usize>, key: &str) -> Option<&'a Value> {
    keys.get(key).and_then(|i| m.get(*i)).map(|(_, v)| v)
}

fn alignment_of(metadata: &[(String, Value)], keys: &HashMap<String, usize>) -> Result<u64, Error> {
    const KEY: &str = "general.alignment";
    let Some(value) = value_of(metadata, keys, KEY) else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    // libllama insists on this width, so a file that says it otherwise would fail there.
    let Value::U32(found) = value else {
        let found = value.type_name();
        return Err(Error::WrongType { key: KEY.into(), found, expected: "a u32" });
    };
    let found = u64::from(*found);
    if !found.is_power_of_two() || !(8..=ALIGNMENT_MAX).contains(&found) {
        return Err(Error::Alignment { found, limit: ALIGNMENT_MAX });
    }
    Ok(found)
}
