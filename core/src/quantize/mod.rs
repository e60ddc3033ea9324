//! Writing a model file anew with other tensor types: what `chimere quantize` does.
//!
//! Tensors are read, converted and written in pieces of whole rows, so a model larger than memory
//! passes through a few megabytes. Rows are independent: the pieces are shared among threads and
//! the result does not depend on how many there are.

mod choice;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use chimere_ffi::DType;
use chimere_ffi::ggml::quant::{self, QuantError};

use crate::gguf::{self, Gguf, Layout, TensorInfo, Writer};

pub use choice::{Choice, stays_f32};

/// f32 values converted at a time by one thread (4 MiB); a longer row is taken whole.
const PIECE_VALUES: u64 = 1 << 20;
/// Threads used at most.
const THREADS_MAX: usize = 64;

/// Why a file could not be quantised.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error("cannot read tensor \"{tensor}\" of {}: {source}", path.display())]
    Read { path: PathBuf, tensor: String, source: io::Error },
    #[error("tensor \"{tensor}\": {source}")]
    Convert { tensor: String, source: QuantError },
    #[error("\"{found}\" is no tensor type; known are {}", DType::ALL.map(|t| t.name()).join(" "))]
    UnknownType { found: String },
    #[error("\"{found}\" is not of the form REGEX=TYPE")]
    Rule { found: String },
    #[error("the pattern \"{pattern}\" is not a regular expression: {source}")]
    Pattern { pattern: String, source: Box<regex::Error> },
    #[error("the output is the input file; give another name")]
    SameFile,
}

/// What was written.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Bytes of the input and output files.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// For each tensor: name, type asked for, type written (they differ where rows are no whole
    /// blocks of the type asked for).
    pub tensors: Vec<(String, DType, DType)>,
    /// Weights of all tensors.
    pub parameters: u64,
}

impl Summary {
    /// Bits of the output file for each weight.
    pub fn bits_per_weight(&self) -> f64 {
        self.bytes_out as f64 * 8.0 / self.parameters.max(1) as f64
    }
}

/// Writes the model of `input` to `output` with the type that `choose` gives for each tensor.
/// `progress` is told the bytes of input converted so far and in all.
pub fn requantize(
    input: &Path,
    output: &Path,
    choose: impl Fn(&TensorInfo) -> DType,
    mut progress: impl FnMut(u64, u64),
) -> Result<Summary, Error> {
    let open = |source| gguf::Error::Read { path: input.into(), source };
    let file = File::open(input).map_err(open)?;
    let gguf = Gguf::read_file(&file, input)?;
    if same_file(input, output) {
        return Err(Error::SameFile);
    }
    let mut summary = Summary { bytes_in: gguf.file_len(), ..Summary::default() };
    for t in gguf.tensors() {
        let asked = choose(t);
        summary.tensors.push((t.name.clone(), asked, choice::that_fits(asked, t.row_len())));
        summary.parameters += t.elements();
    }
    let mut writer = layout(&gguf, &summary)?.create(output)?;
    let total = gguf.tensors().iter().map(TensorInfo::bytes).sum();
    let mut done = 0;
    for (t, (_, _, to)) in gguf.tensors().iter().zip(&summary.tensors) {
        let mut job = Job { file: &file, path: input, tensor: t, to: *to, writer: &mut writer };
        job.run(|bytes| {
            done += bytes;
            progress(done, total);
        })?;
    }
    summary.bytes_out = writer.finish()?;
    Ok(summary)
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The header of the new file: all metadata of the old one, with the type that most bytes have.
fn layout(gguf: &Gguf, summary: &Summary) -> Result<Layout, gguf::Error> {
    let mut bytes_of = [0_u64; DType::ALL.len()];
    for (t, (_, _, to)) in gguf.tensors().iter().zip(&summary.tensors) {
        if let Some(i) = DType::ALL.iter().position(|d| d == to) {
            bytes_of[i] += t.elements() / to.block_len() as u64 * to.block_bytes() as u64;
        }
    }
    let most = (0..DType::ALL.len()).max_by_key(|i| bytes_of[*i]).map_or(DType::F32, |i| DType::ALL[i]);
    let ours = ["general.alignment", "general.file_type", "general.quantization_version"];
    let mut layout = Layout::new();
    for (key, value) in gguf.metadata().filter(|(key, _)| !ours.contains(key)) {
        layout.set(key, value.clone())?;
    }
    layout.set("general.file_type", choice::file_type(most))?;
    layout.set("general.quantization_version", 2_u32)?;
    for (t, (_, _, to)) in gguf.tensors().iter().zip(&summary.tensors) {
        layout.tensor(&t.name, *to, t.dims())?;
    }
    Ok(layout)
}

/// The conversion of one tensor.
struct Job<'a> {
    file: &'a File,
    path: &'a Path,
    tensor: &'a TensorInfo,
    to: DType,
    writer: &'a mut Writer,
}

impl Job<'_> {
    /// Converts the tensor round after round, each thread a piece of whole rows at a time.
    fn run(&mut self, mut progress: impl FnMut(u64)) -> Result<(), Error> {
        let t = self.tensor;
        let piece_rows = (PIECE_VALUES / t.row_len()).clamp(1, t.rows());
        let row_bytes = t.bytes() / t.rows();
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
        let mut row = 0;
        while row < t.rows() {
            let mut pieces = Vec::with_capacity(threads);
            while pieces.len() < threads && row < t.rows() {
                let rows = piece_rows.min(t.rows() - row);
                pieces.push((row, rows));
                row += rows;
            }
            let this: &Job = self;
            let converted: Vec<Result<Vec<u8>, Error>> = std::thread::scope(|scope| {
                let spawn = |&(first, rows)| scope.spawn(move || this.convert(first * row_bytes, rows, row_bytes));
                let handles: Vec<_> = pieces.iter().map(spawn).collect();
                let join = |h: std::thread::ScopedJoinHandle<'_, _>| {
                    h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                handles.into_iter().map(join).collect()
            });
            for (bytes, (_, rows)) in converted.into_iter().zip(pieces) {
                self.writer.write(&t.name, &bytes?)?;
                progress(rows * row_bytes);
            }
        }
        Ok(())
    }

    /// Reads `rows` rows from `offset` bytes into the tensor and converts them.
    fn convert(&self, offset: u64, rows: u64, row_bytes: u64) -> Result<Vec<u8>, Error> {
        let t = self.tensor;
        let mut bytes = vec![0; (rows * row_bytes) as usize];
        self.file.read_exact_at(&mut bytes, t.range.start + offset).map_err(|source| Error::Read {
            path: self.path.into(),
            tensor: t.name.clone(),
            source,
        })?;
        if t.dtype == self.to {
            return Ok(bytes);
        }
        let wrong = |source| Error::Convert { tensor: t.name.clone(), source };
        let mut values = vec![0.0; (rows * t.row_len()) as usize];
        quant::dequantize(t.dtype, &bytes, &mut values).map_err(wrong)?;
        quant::quantize(self.to, &values, t.row_len() as usize, None).map_err(wrong)
    }
}
