//! The GGUF reader on any bytes. It must return, in bounded memory. What it accepts must lie inside the file and be
//! written back as it was read.

use crate::gguf::{Gguf, Layout};

pub fn check(data: &[u8]) {
    // The first two bytes say how much longer the file is than the bytes at hand (times 256), as
    // tensor data would make it.
    let Some((extra, bytes)) = data.split_first_chunk::<2>() else {
        return;
    };
    let file_len = bytes.len() as u64 + u64::from(u16::from_le_bytes(*extra)) * 256;
    let Ok(read) = Gguf::read(bytes, file_len) else {
        return;
    };
    for t in read.tensors() {
        assert!(t.range.start >= read.data_start() && t.range.end <= file_len);
        assert!(t.bytes() > 0 && t.elements() > 0);
    }
    if read.get("general.alignment").is_some() {
        return; // the writer has one alignment
    }
    let mut layout = Layout::new();
    for (key, value) in read.metadata() {
        layout.set(key, value.clone()).expect("a key that was read can be written");
    }
    for t in read.tensors() {
        layout.tensor(&t.name, t.dtype, t.dims()).expect("a tensor that was read can be written");
    }
    let header = layout.header();
    let again =
        Gguf::read(&header[..], header.len() as u64 + layout.data_bytes()).expect("what was written can be read");
    assert_eq!(again.metadata().len(), read.metadata().len());
    for ((a, x), (b, y)) in again.metadata().zip(read.metadata()) {
        // NaN is unequal to itself; its text is not.
        assert!(a == b && (x == y || format!("{x:?}") == format!("{y:?}")));
    }
    for (a, b) in again.tensors().iter().zip(read.tensors()) {
        assert_eq!((&a.name, a.dtype, a.dims()), (&b.name, b.dtype, b.dims()));
    }
}
