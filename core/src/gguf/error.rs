//! What can be wrong with a model file, said so that its owner knows what to do.

use std::path::PathBuf;

/// Why a file was refused, or could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot read {what} at byte {at}: {source}")]
    ReadAt { what: String, at: u64, source: std::io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("not a GGUF file: it starts with \"{found}\" where \"GGUF\" was expected; give the path of a .gguf model")]
    Magic { found: String },
    #[error("big-endian GGUF files are not supported; convert the model again on a little-endian machine")]
    BigEndian,
    #[error(
        "GGUF version {found} is not supported, only 2 and 3 are; convert the model again with a current converter"
    )]
    Version { found: u32 },
    #[error(
        "the file is cut short: {what} at byte {at} needs {need} bytes but only {left} are left; download or convert it again"
    )]
    Truncated { what: String, at: u64, need: u64, left: u64 },
    #[error(
        "the header does not end within {limit} bytes ({what} at byte {at} goes beyond); the file is damaged or hostile"
    )]
    HeaderTooLong { what: String, at: u64, limit: u64 },
    #[error("{what} is {found}, over the limit of {limit}; the file is damaged or hostile")]
    TooMany { what: String, found: u64, limit: u64 },
    #[error("{what} at byte {at} is not valid UTF-8; convert the model again")]
    NotUtf8 { what: String, at: u64 },
    #[error("{what} at byte {at} is empty; convert the model again")]
    Empty { what: String, at: u64 },
    #[error("key \"{key}\" occurs twice; remove one of them")]
    DuplicateKey { key: String },
    #[error("tensor \"{name}\" occurs twice; convert the model again")]
    DuplicateTensor { name: String },
    #[error("key \"{key}\" has the unknown value type {found} (0 to 12 are known)")]
    UnknownValueType { key: String, found: u32 },
    #[error("key \"{key}\" is an array of arrays, which no supported model uses")]
    NestedArray { key: String },
    #[error("key \"{key}\" holds the byte {found} where a bool (0 or 1) was expected")]
    NotBool { key: String, found: u8 },
    #[error("key \"{key}\" is missing; the file is not a complete model")]
    MissingKey { key: String },
    #[error("key \"{key}\" is {found} where {expected} was expected")]
    WrongType { key: String, found: String, expected: &'static str },
    #[error("key \"{key}\" has the value {found}, which does not fit in {expected}")]
    OutOfRange { key: String, found: String, expected: &'static str },
    #[error("general.alignment is {found}; it must be a power of two between 8 and {limit}")]
    Alignment { found: u64, limit: u64 },
    #[error("this is part {part} of a model split into {count} files, and no whole model by itself")]
    Split { part: u64, count: u64 },
    #[error(
        "this is part {no} of a model in {count} files, but its name does not end in -{no:05}-of-{count:05}.gguf: give the parts the names that the converter gave them"
    )]
    PartName { no: u64, count: u64 },
    #[error("{}: {source}", path.display())]
    Part { path: PathBuf, source: Box<Error> },
    #[error("{} says that it is part {found} of {of}, but part {wanted} of {count} must lie there", path.display())]
    WrongPart { path: PathBuf, found: u64, of: u64, wanted: u64, count: u64 },
    #[error("the folder {} holds no model file (.gguf)", path.display())]
    NoModel { path: PathBuf },
    #[error("the folder {} holds {found} models ({names}): name one of them", path.display())]
    SeveralModels { path: PathBuf, found: usize, names: String },
    #[error("the parts hold {found} tensors where {said} were announced: a part is of another model")]
    TensorCount { found: u64, said: u64 },
    #[error("tensor \"{name}\" is missing; the file is not a complete model")]
    MissingTensor { name: String },
    #[error("tensor \"{name}\" has {found} dimensions; 1 to 4 are possible")]
    Dimensions { name: String, found: u32 },
    #[error("tensor \"{name}\" has a dimension of zero (dimension {axis}, counted from 0)")]
    ZeroDimension { name: String, axis: usize },
    #[error("tensor \"{name}\" with dimensions {dims:?} is larger than any file can be")]
    ShapeOverflow { name: String, dims: Vec<u64> },
    #[error(
        "tensor \"{name}\" has type {found}, which is not supported; use a file quantised with one of {}",
        known_types()
    )]
    UnknownDType { name: String, found: u32 },
    #[error("tensor \"{name}\" has rows of {row} values, not a multiple of the {block} values of a {dtype} block")]
    PartialBlock { name: String, row: u64, block: u64, dtype: String },
    #[error("tensor \"{name}\" starts at offset {offset}, not a multiple of the alignment {alignment}")]
    Misaligned { name: String, offset: u64, alignment: u64 },
    #[error(
        "tensor \"{name}\" takes bytes {start} to {end} but the file has {file_len}; it is cut short: download or convert it again"
    )]
    OutsideFile { name: String, start: u64, end: u64, file_len: u64 },
    #[error("tensors \"{first}\" and \"{second}\" overlap; the file is damaged or hostile")]
    Overlap { first: String, second: String },
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    #[error("writing tensor \"{name}\": {reason}")]
    WriteOrder { name: String, reason: String },
}

/// The names of the supported tensor types, for messages.
fn known_types() -> String {
    let all = chimere_ffi::DType::ALL.into_iter().chain(chimere_ffi::DType::FOREIGN);
    all.map(chimere_ffi::DType::name).collect::<Vec<_>>().join(" ")
}

/// Text from a file, made safe to print: at most 64 characters, control characters escaped.
pub(super) fn printable(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_default).collect()
}
