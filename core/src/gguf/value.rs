//! Metadata values: the thirteen types of the format and their typed reading.

use super::error::{Error, printable};

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value. Arrays of arrays are refused: no supported model has one.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Many strings in one buffer: a vocabulary of 248,320 entries costs two allocations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strings {
    /// All strings, one after the other.
    text: String,
    /// Where each string ends in `text`; headers stay below 4 GiB, so 32 bits are enough.
    ends: Vec<u32>,
}

impl Strings {
    /// From the joined text and the end of each string; `None` if the ends do not cut the text.
    pub(super) fn from_parts(text: String, ends: Vec<u32>) -> Option<Strings> {
        let cut = |(at, end): (&mut u32, &u32)| {
            let ok = *at <= *end && text.is_char_boundary(*end as usize);
            *at = *end;
            ok
        };
        let mut at = 0_u32;
        let all = ends.iter().all(|end| cut((&mut at, end)));
        (all && at as usize == text.len()).then_some(Strings { text, ends })
    }

    /// How many strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The `i`-th string.
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)? as usize;
        let start = match i {
            0 => 0,
            _ => *self.ends.get(i - 1)? as usize,
        };
        self.text.get(start..end)
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }

    /// Bytes of all strings together.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(items: I) -> Strings {
        let mut out = Strings::default();
        for item in items {
            out.text.push_str(item.as_ref());
            out.ends.push(u32::try_from(out.text.len()).unwrap_or(u32::MAX));
        }
        out
    }
}

impl Value {
    /// The type's name for messages, e.g. `u32` or `an array of 3 strings`.
    pub fn type_name(&self) -> String {
        match self {
            Value::U8(_) => "a u8".into(),
            Value::I8(_) => "an i8".into(),
            Value::U16(_) => "a u16".into(),
            Value::I16(_) => "an i16".into(),
            Value::U32(_) => "a u32".into(),
            Value::I32(_) => "an i32".into(),
            Value::F32(_) => "an f32".into(),
            Value::Bool(_) => "a bool".into(),
            Value::String(_) => "a string".into(),
            Value::Array(a) => format!("an array of {} {}", a.len(), a.element_name()),
            Value::U64(_) => "a u64".into(),
            Value::I64(_) => "an i64".into(),
            Value::F64(_) => "an f64".into(),
        }
    }

    /// The value as an integer, whatever its width.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn element_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::F32(_) => "f32",
            Array::Bool(_) => "bools",
            Array::String(_) => "strings",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F64(_) => "f64",
        }
    }
}

/// A Rust type that a metadata value can be read as. Integers of any width are accepted where the
/// number fits, since converters differ in the width they choose.
pub trait FromValue<'a>: Sized {
    /// The value of `key` as this type, or why not.
    fn from_value(key: &str, value: &'a Value) -> Result<Self, Error>;
}

fn wrong_type(key: &str, value: &Value, expected: &'static str) -> Error {
    Error::WrongType { key: printable(key), found: value.type_name(), expected }
}

macro_rules! integer_from_value {
    ($($type:ty, $name:literal);*) => {$(
        impl FromValue<'_> for $type {
            fn from_value(key: &str, value: &Value) -> Result<$type, Error> {
                let wide = value.integer().ok_or_else(|| wrong_type(key, value, $name))?;
                <$type>::try_from(wide).map_err(|_| Error::OutOfRange {
                    key: printable(key),
                    found: wide.to_string(),
                    expected: $name,
                })
            }
        }
    )*};
}
integer_from_value!(u32, "a u32"; i32, "an i32"; u64, "a u64"; usize, "an unsigned integer");

impl FromValue<'_> for f32 {
    fn from_value(key: &str, value: &Value) -> Result<f32, Error> {
        match value {
            Value::F32(v) => Ok(*v),
            Value::F64(v) => Ok(*v as f32),
            _ => Err(wrong_type(key, value, "an f32")),
        }
    }
}

impl FromValue<'_> for bool {
    fn from_value(key: &str, value: &Value) -> Result<bool, Error> {
        match value {
            Value::Bool(v) => Ok(*v),
            _ => Err(wrong_type(key, value, "a bool")),
        }
    }
}

macro_rules! reference_from_value {
    ($($type:ty, $pattern:pat => $out:expr, $name:literal);*) => {$(
        impl<'a> FromValue<'a> for &'a $type {
            fn from_value(key: &str, value: &'a Value) -> Result<&'a $type, Error> {
                match value {
                    $pattern => Ok($out),
                    _ => Err(wrong_type(key, value, $name)),
                }
            }
        }
    )*};
}
reference_from_value!(
    str, Value::String(v) => v, "a string";
    Strings, Value::Array(Array::String(v)) => v, "an array of strings";
    [u8], Value::Array(Array::U8(v)) => v, "an array of u8";
    [u32], Value::Array(Array::U32(v)) => v, "an array of u32";
    [i32], Value::Array(Array::I32(v)) => v, "an array of i32";
    [f32], Value::Array(Array::F32(v)) => v, "an array of f32";
    [bool], Value::Array(Array::Bool(v)) => v, "an array of bools"
);

macro_rules! into_value {
    ($($type:ty => $variant:expr);*) => {$(
        impl From<$type> for Value {
            fn from(v: $type) -> Value {
                $variant(v)
            }
        }
    )*};
}
into_value!(
    u8 => Value::U8; u32 => Value::U32; i32 => Value::I32; u64 => Value::U64;
    f32 => Value::F32; bool => Value::Bool; String => Value::String;
    Vec<u8> => |v| Value::Array(Array::U8(v)); Vec<u32> => |v| Value::Array(Array::U32(v));
    Vec<i32> => |v| Value::Array(Array::I32(v)); Vec<f32> => |v| Value::Array(Array::F32(v));
    Vec<bool> => |v| Value::Array(Array::Bool(v)); Strings => |v| Value::Array(Array::String(v))
);

impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::String(v.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_cut_where_they_were_joined() {
        let s: Strings = ["a", "", "éé", "z"].into_iter().collect();
        assert_eq!(s.iter().collect::<Vec<_>>(), ["a", "", "éé", "z"]);
        assert_eq!(s.get(4), None);
        assert!(Strings::from_parts("é".into(), vec![1, 2]).is_none(), "cut inside a character");
        assert!(Strings::from_parts("ab".into(), vec![1]).is_none(), "text left over");
        assert!(Strings::from_parts("ab".into(), vec![2, 1]).is_none(), "ends go back");
    }

    #[test]
    fn integers_are_read_at_any_width_where_they_fit() {
        assert_eq!(u32::from_value("k", &Value::U64(7)).ok(), Some(7));
        assert_eq!(u32::from_value("k", &Value::I8(7)).ok(), Some(7));
        let text = u32::from_value("k", &Value::I32(-1)).err().map(|e| e.to_string());
        assert_eq!(text.as_deref(), Some("key \"k\" has the value -1, which does not fit in a u32"));
        let text = u32::from_value("k", &Value::F32(1.0)).err().map(|e| e.to_string());
        assert_eq!(text.as_deref(), Some("key \"k\" is an f32 where a u32 was expected"));
    }
}
