//! The directions of a document's passages, in eight bits, and their file. They are made by one embedder, and never
//! compared with those of another.

use std::fs;
use std::io;
use std::path::Path;

use crate::embed::nearest::{Code, nearest};
use crate::store::files::write_durable;

const MAGIC: &str = "chimere vectors 1";

#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    pub fingerprint: [u8; 32],
    width: usize,
    scales: Vec<f32>,
    values: Vec<i8>,
}

impl Vectors {
    /// Of passages in their order.
    pub fn new(fingerprint: [u8; 32], width: usize, rows: &[Vec<f32>]) -> Vectors {
        let codes: Vec<Code> = rows.iter().map(|row| Code::of(row)).collect();
        let scales = codes.iter().map(|code| code.scale).collect();
        let values = codes.into_iter().flat_map(|code| code.values).collect();
        Vectors { fingerprint, width, scales, values }
    }

    pub fn len(&self) -> usize {
        self.scales.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// The passages most like `question`, best first, with their cosines.
    pub(super) fn nearest(&self, question: &Code, k: usize, score_min: f32) -> Vec<(usize, f32)> {
        if question.values.len() != self.width {
            return Vec::new();
        }
        nearest(&self.values, &self.scales, question, k, score_min, |_| true)
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut body = Vec::with_capacity(self.values.len() + 4 * self.scales.len());
        self.scales.iter().for_each(|scale| body.extend(scale.to_le_bytes()));
        body.extend(self.values.iter().map(|value| *value as u8));
        let print: String = self.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        let head = format!("{MAGIC} {print} {} {} {:08x}\n", self.width, self.len(), crc32fast::hash(&body));
        write_durable(path, &[head.as_bytes(), &body].concat())
    }

    /// What a file holds; `None`: nothing that can be used. It is made again then.
    pub(super) fn read(path: &Path) -> Option<Vectors> {
        let bytes = fs::read(path).ok()?;
        let end = bytes.iter().take(200).position(|byte| *byte == b'\n')?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?.strip_prefix(MAGIC)?;
        let fields: Vec<&str> = head.split_whitespace().collect();
        let [print, width, rows, crc] = fields[..] else { return None };
        let (width, rows): (usize, usize) = (width.parse().ok()?, rows.parse().ok()?);
        let body = &bytes[end + 1..];
        if crc32fast::hash(body) != u32::from_str_radix(crc, 16).ok()? || print.len() != 64 {
            return None;
        }
        if body.len() != rows.checked_mul(width.checked_add(4)?)? {
            return None;
        }
        let mut fingerprint = [0; 32];
        for (to, at) in fingerprint.iter_mut().zip((0..).step_by(2)) {
            *to = u8::from_str_radix(print.get(at..at + 2)?, 16).ok()?;
        }
        let (scales, values) = body.split_at(4 * rows);
        let scales = scales.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect();
        let values = values.iter().map(|value| *value as i8).collect();
        Some(Vectors { fingerprint, width, scales, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_vectors_is_read_as_it_was_written_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        let vectors = Vectors::new([7; 32], 2, &[vec![1.0, 0.0], vec![0.6, 0.8]]);
        vectors.write(&path).unwrap();
        assert_eq!(Vectors::read(&path), Some(vectors.clone()));
        let question = Code::of(&[0.0, 1.0]);
        assert_eq!(vectors.nearest(&question, 1, 0.0)[0].0, 1);
        assert_eq!(vectors.nearest(&Code::of(&[1.0]), 1, 0.0), [], "of another width");
        let good = fs::read(&path).unwrap();
        for at in [0, 20, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(at == 20 || Vectors::read(&path).is_none(), "{at}");
            assert_ne!(Vectors::read(&path), Some(vectors.clone()), "{at}");
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert_eq!(Vectors::read(&path), None);
    }
}
