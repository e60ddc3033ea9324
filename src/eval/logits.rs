//! The logits of a token sequence, for comparison with a reference. The sequence is fed whole, in
//! steps of any size, or beside others. The logits are the trunk's or the multi-token-prediction
//! layer's.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::engine::backend::{Backend, BackendError, Chunk, DraftChunk, Output, Rows, SeqId};

/// Tokens of one file.
pub const TOKENS_MAX: usize = 1 << 20;

/// What to compute and where it goes.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids, little-endian i32.
    pub tokens: PathBuf,
    /// Row-major little-endian f32, a row a position.
    pub out: PathBuf,
    /// Tokens fed at a time; 0 = all at once.
    pub step: usize,
    /// Logits of the multi-token-prediction layer: one row fewer, row t from h_t and token t+1.
    pub mtp: bool,
    /// Sequences decoded in the same steps and not written.
    pub beside: Vec<PathBuf>,
}

/// Why there are no logits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the ids in {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is no list of ids: {reason}", path.display())]
    Ids { path: PathBuf, reason: String },
    #[error("cannot write the logits to {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("a row of the multi-token-prediction layer needs two tokens, the sequence has {0}")]
    TooShort(usize),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Reads the files of `request`, computes, and writes its output; returns the number of rows.
pub fn run(backend: &mut dyn Backend, request: &Request) -> Result<usize, Error> {
    let ids = read_ids(&request.tokens)?;
    let beside = request.beside.iter().map(|path| read_ids(path)).collect::<Result<Vec<_>, _>>()?;
    let write = |source| Error::Write { path: request.out.clone(), source };
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&request.out).map_err(write)?);
    let vocab = backend.info().vocab;
    let mut rows = 0;
    let mut feed = Feed { step: request.step, mtp: request.mtp, ids: &ids, beside: &beside };
    feed.run(backend, &mut |logits| {
        rows += logits.len() / vocab;
        logits.iter().try_for_each(|v| out.write_all(&v.to_le_bytes())).map_err(write)
    })?;
    out.flush().map_err(write)?;
    Ok(rows)
}

/// The logits of `ids`, computed like [`run`] does, in memory: `ids.len()` rows (one fewer with `mtp`).
pub fn rows(
    backend: &mut dyn Backend,
    ids: &[u32],
    step: usize,
    mtp: bool,
    beside: &[Vec<u32>],
) -> Result<Vec<f32>, Error> {
    let mut all = Vec::new();
    Feed { step, mtp, ids, beside }.run(backend, &mut |logits| {
        all.extend_from_slice(logits);
        Ok(())
    })?;
    Ok(all)
}

fn read_ids(path: &Path) -> Result<Vec<u32>, Error> {
    let read = |source| Error::Read { path: path.into(), source };
    let bad = |reason: String| Error::Ids { path: path.into(), reason };
    let mut bytes = Vec::new();
    let limit = TOKENS_MAX as u64 * 4;
    File::open(path).map_err(read)?.take(limit + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > limit {
        return Err(bad(format!("more than {TOKENS_MAX} ids")));
    }
    let (cells, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() || cells.is_empty() {
        return Err(bad(format!("{} bytes are not one or more ids of four bytes", bytes.len())));
    }
    let id = |cell: &[u8; 4]| {
        let id = i32::from_le_bytes(*cell);
        u32::try_from(id).map_err(|_| bad(format!("{id} is negative")))
    };
    cells.iter().map(id).collect()
}

/// One run over a sequence and its neighbours.
struct Feed<'a> {
    step: usize,
    mtp: bool,
    ids: &'a [u32],
    beside: &'a [Vec<u32>],
}

type Sink<'a> = &'a mut dyn FnMut(&[f32]) -> Result<(), Error>;

impl Feed<'_> {
    fn run(&mut self, backend: &mut dyn Backend, sink: Sink<'_>) -> Result<(), Error> {
        if self.mtp && self.ids.len() < 2 {
            return Err(Error::TooShort(self.ids.len()));
        }
        let mut open = Vec::with_capacity(1 + self.beside.len());
        let fed = self.open_all(backend, &mut open).and_then(|()| self.steps(backend, &open, sink));
        open.into_iter().for_each(|seq| backend.close(seq));
        fed
    }

    fn open_all(&self, backend: &mut dyn Backend, open: &mut Vec<SeqId>) -> Result<(), Error> {
        for _ in 0..=self.beside.len() {
            open.push(backend.open()?);
        }
        Ok(())
    }

    fn steps(&self, backend: &mut dyn Backend, open: &[SeqId], sink: Sink<'_>) -> Result<(), Error> {
        let step = if self.step == 0 { self.ids.len() } else { self.step };
        let mut output = Output::default();
        for start in (0..self.ids.len()).step_by(step.max(1)) {
            let spans = self.spans(open, start, start.saturating_add(step));
            // All ask for all rows, as the written sequence does: no step is easier for its neighbours.
            let chunks = spans.iter().map(|s| s.chunk(self.mtp));
            backend.step(&chunks.collect::<Vec<_>>(), &mut output)?;
            if self.mtp {
                draft(backend, &spans, &mut output)?;
            }
            let rows = spans.first().map_or(0, |s| if self.mtp { s.drafts() } else { s.tokens().len() });
            let rows = output.logits.get(..rows * backend.info().vocab);
            sink(rows.ok_or_else(|| BackendError::Compute("fewer rows came back than were asked for".into()))?)?;
        }
        Ok(())
    }

    /// Positions `from..to` of each sequence: the written one first, the others as far as they reach.
    fn spans(&self, open: &[SeqId], from: usize, to: usize) -> Vec<Span<'_>> {
        let sequences = std::iter::once(self.ids).chain(self.beside.iter().map(Vec::as_slice));
        let spans = sequences.zip(open).map(|(ids, seq)| Span { seq: *seq, ids, from, to: to.min(ids.len()) });
        spans.filter(|s| s.from < s.to).collect()
    }
}

/// Positions `from..to` of a sequence.
struct Span<'a> {
    seq: SeqId,
    ids: &'a [u32],
    from: usize,
    to: usize,
}

impl<'a> Span<'a> {
    fn tokens(&self) -> &'a [u32] {
        &self.ids[self.from..self.to]
    }

    fn chunk(&self, hidden: bool) -> Chunk<'a> {
        Chunk { seq: self.seq, tokens: self.tokens(), rows: Rows::All, hidden }
    }

    /// Positions that have a next token.
    fn drafts(&self) -> usize {
        self.to.min(self.ids.len() - 1) - self.from
    }
}

/// Runs the multi-token-prediction layer on the hidden states that the trunk's step left in
/// `output`, whose logits become the layer's.
fn draft(backend: &mut dyn Backend, spans: &[Span<'_>], output: &mut Output) -> Result<(), BackendError> {
    let width = backend.info().width;
    let hidden = std::mem::take(&mut output.hidden);
    let mut rest = hidden.as_slice();
    let mut batch = Vec::new();
    for span in spans {
        let own = rest.split_at_checked(span.tokens().len() * width);
        let (own, later) =
            own.ok_or_else(|| BackendError::Compute("fewer hidden states came back than were asked for".into()))?;
        rest = later;
        let len = span.drafts();
        if len > 0 {
            let tokens = &span.ids[span.from + 1..span.from + 1 + len];
            batch.push(DraftChunk { seq: span.seq, hidden: &own[..len * width], tokens, rows: Rows::All });
        }
    }
    output.clear();
    if batch.is_empty() { Ok(()) } else { backend.draft(&batch, output) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read_ids(&path)
        };
        assert_eq!(read(&[7, 0, 0, 0, 0, 1, 0, 0]).unwrap(), [7, 256]);
        for bad in [&[][..], &[1, 2, 3], &[255; 4], &[1; 7]] {
            assert!(matches!(read(bad), Err(Error::Ids { .. })));
        }
        assert!(matches!(read_ids(&dir.path().join("none")), Err(Error::Read { .. })));
    }
}
