//! Bounded sequential reading: every read is checked against what is left of the file first.

use std::io::Read;

use super::error::Error;
use super::{HEADER_BYTES_MAX, Strings};

/// Reads a header from its start, knowing how long the whole file is.
pub(super) struct Cursor<R> {
    reader: R,
    at: u64,
    file_len: u64,
}

impl<R: Read> Cursor<R> {
    /// `reader` must be buffered and stand at the start of a file of `file_len` bytes.
    pub(super) fn new(reader: R, file_len: u64) -> Cursor<R> {
        Cursor { reader, at: 0, file_len }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Fails unless `need` more bytes exist and stay within the header limit. To be called before
    /// any allocation that a number from the file asks for.
    pub(super) fn check(&self, need: u64, what: impl Fn() -> String) -> Result<(), Error> {
        let left = self.file_len - self.at;
        if need > left {
            return Err(Error::Truncated { what: what(), at: self.at, need, left });
        }
        if self.at + need > HEADER_BYTES_MAX {
            return Err(Error::HeaderTooLong { what: what(), at: self.at, limit: HEADER_BYTES_MAX });
        }
        Ok(())
    }

    /// Fills `out`.
    pub(super) fn fill(&mut self, out: &mut [u8], what: impl Fn() -> String) -> Result<(), Error> {
        let need = out.len() as u64;
        self.check(need, &what)?;
        // The length was checked, so an error here is the disk's or a file that shrank meanwhile.
        let at = self.at;
        self.reader.read_exact(out).map_err(|source| Error::ReadAt { what: what(), at, source })?;
        self.at += need;
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn u8(&mut self, what: impl Fn() -> String) -> Result<u8, Error> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(super) fn u32(&mut self, what: impl Fn() -> String) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: impl Fn() -> String) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A fixed-width number, by its little-endian bytes.
    pub(super) fn number<T, const N: usize>(
        &mut self,
        parse: fn([u8; N]) -> T,
        what: impl Fn() -> String,
    ) -> Result<T, Error> {
        Ok(parse(self.array(what)?))
    }

    /// `len` fixed-width numbers.
    pub(super) fn numbers<T, const N: usize>(
        &mut self,
        len: usize,
        parse: fn([u8; N]) -> T,
        what: impl Fn() -> String,
    ) -> Result<Vec<T>, Error> {
        self.check((len as u64).saturating_mul(N as u64), &what)?;
        let mut out = Vec::with_capacity(len);
        let mut chunk = vec![0_u8; N * len.min(4_096)];
        while out.len() < len {
            let bytes = &mut chunk[..N * (len - out.len()).min(4_096)];
            self.fill(bytes, &what)?;
            let (cells, _) = bytes.as_chunks::<N>();
            out.extend(cells.iter().map(|cell| parse(*cell)));
        }
        Ok(out)
    }

    /// A length followed by that many bytes of UTF-8, appended to `out`; returns the length.
    fn text_into(&mut self, out: &mut Vec<u8>, max: u64, what: impl Fn() -> String) -> Result<usize, Error> {
        let len = self.u64(&what)?;
        if len > max {
            return Err(Error::TooMany { what: format!("the length of {}", what()), found: len, limit: max });
        }
        self.check(len, &what)?;
        let len = len as usize;
        let start = out.len();
        let at = self.at;
        out.resize(start + len, 0);
        self.fill(&mut out[start..], &what)?;
        match std::str::from_utf8(&out[start..]) {
            Ok(_) => Ok(len),
            Err(_) => Err(Error::NotUtf8 { what: what(), at }),
        }
    }

    /// One string of at most `max` bytes.
    pub(super) fn string(&mut self, max: u64, what: impl Fn() -> String) -> Result<String, Error> {
        let mut bytes = Vec::new();
        let at = self.at;
        self.text_into(&mut bytes, max, &what)?;
        String::from_utf8(bytes).map_err(|_| Error::NotUtf8 { what: what(), at })
    }

    /// `len` strings of at most `max` bytes each.
    pub(super) fn strings(&mut self, len: usize, max: u64, what: impl Fn(usize) -> String) -> Result<Strings, Error> {
        // Each string takes at least the eight bytes of its length.
        self.check((len as u64).saturating_mul(8), || what(0))?;
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(len);
        let at = self.at;
        for i in 0..len {
            self.text_into(&mut text, max, || what(i))?;
            ends.push(text.len() as u32); // below HEADER_BYTES_MAX
        }
        text.shrink_to_fit();
        let bad = || Error::NotUtf8 { what: what(0), at };
        let text = String::from_utf8(text).map_err(|_| bad())?;
        Strings::from_parts(text, ends).ok_or_else(bad)
    }
}
