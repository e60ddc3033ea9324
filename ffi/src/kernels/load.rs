//! Weights from a file to the device. Every thread reads, packs and sends tiles of its own, so that disk, processors
//! and bus work at the same time. Meanwhile no memory is touched for the first time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pack::Rows;
use crate::DType;
use crate::file::Ahead;
use crate::gpu::{Buffer, Device, GpuError, Staging};

/// Packed bytes that a thread sends at once: many to a tensor, and much more than a copy costs to start.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of the file that a thread reads at once: with what they become, they stay in its second-level cache.
const READ_BYTES: usize = 256 << 10;
/// Pieces for each thread of a tensor, so that all end at about the same time.
const PIECES_A_THREAD: usize = 4;
/// Pieces of a thread on their way: one is copied while the next is packed.
const STAGES: usize = 2;
/// Threads beyond these only wait for memory.
const THREADS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Device(#[from] GpuError),
    #[error("its rows are no whole blocks")]
    Shape,
}

/// Matrices of one shape that follow each other in a file, from byte `from` on, one every `stride` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    pub count: usize,
    pub from: u64,
    pub stride: u64,
}

/// Threads' memory for what is on its way: [`PIECE_BYTES`] pinned [`STAGES`] times for each, and about [`READ_BYTES`].
pub struct Loader {
    workers: Vec<Worker>,
    piece_bytes: usize,
    unpinned: Option<GpuError>,
}

struct Worker {
    stages: [Staging; STAGES],
    /// The stage that is filled next.
    turn: usize,
    /// What was read.
    file: Vec<u8>,
}

impl Loader {
    /// Where memory cannot be pinned, bytes go through ordinary memory.
    pub fn new(device: &Device, threads: usize) -> Loader {
        Loader::with_pieces(device, threads, PIECE_BYTES)
    }

    fn with_pieces(device: &Device, threads: usize, piece_bytes: usize) -> Loader {
        let mut unpinned = None;
        let mut stage = || match unpinned {
            Some(_) => Staging::plain(),
            None => Staging::pinned(device, piece_bytes).unwrap_or_else(|e| {
                unpinned = Some(e);
                Staging::plain()
            }),
        };
        let mut worker = || Worker { stages: std::array::from_fn(|_| stage()), turn: 0, file: Vec::new() };
        let workers = (0..threads.clamp(1, THREADS_MAX)).map(|_| worker()).collect();
        Loader { workers, piece_bytes, unpinned }
    }

    /// Why memory could not be pinned: loading is slower without.
    pub fn unpinned(&self) -> Option<&GpuError> {
        self.unpinned.as_ref()
    }

    /// Packs matrices into a buffer, one after the other, and asks the disk for what follows them in the file. The last
    /// bytes may still be on their way, in order with whatever is launched.
    pub fn load(&mut self, file: &File, ahead: &mut Ahead, of: Matrices, to: &Buffer) -> Result<(), LoadError> {
        let rows = Rows::of(of.dtype, of.cols).ok_or(LoadError::Shape)?;
        let plan = Plan::new(&rows, of, self.piece_bytes, self.workers.len());
        let next = AtomicUsize::new(0);
        let (plan, next) = (&plan, &next);
        let count = plan.pieces().min(self.workers.len()).max(1);
        let Some((own, others)) = self.workers[..count].split_first_mut() else { return Ok(()) };
        std::thread::scope(|scope| {
            let others: Vec<_> = others.iter_mut().map(|w| scope.spawn(move || w.work(file, plan, next, to))).collect();
            ahead.expect(file, of.from, of.from + plan.file_bytes());
            let done = own.work(file, plan, next, to);
            let stopped = || Err(io::Error::other("a thread that loads has stopped").into());
            others.into_iter().fold(done, |done, other| done.and(other.join().unwrap_or_else(|_| stopped())))
        })
    }
}

impl Worker {
    /// Takes pieces until there are no more, or one failed.
    fn work(&mut self, file: &File, plan: &Plan<'_>, next: &AtomicUsize, to: &Buffer) -> Result<(), LoadError> {
        while let Some(piece) = plan.piece(next.fetch_add(1, Ordering::Relaxed)) {
            let done = self.piece(file, plan.rows, piece, to);
            if done.is_err() {
                next.store(plan.pieces(), Ordering::Relaxed);
                return done;
            }
        }
        Ok(())
    }

    fn piece(&mut self, file: &File, rows: &Rows, piece: Piece, to: &Buffer) -> Result<(), LoadError> {
        let (file_tile, tile) = (rows.file_bytes(), rows.tile_bytes());
        self.turn = (self.turn + 1) % STAGES;
        let stage = &mut self.stages[self.turn];
        let out = stage.fill(piece.tiles * tile)?;
        let at_once = (READ_BYTES / file_tile).max(1);
        let (mut at, mut left) = (piece.from, piece.file_bytes);
        for out in out.chunks_mut(at_once * tile) {
            let len = left.min(at_once * file_tile);
            self.file.resize(self.file.len().max(len), 0);
            file.read_exact_at(&mut self.file[..len], at)?;
            rows.pack(&self.file[..len], out);
            (at, left) = (at + len as u64, left - len);
        }
        Ok(stage.send(to, piece.start)?)
    }
}

/// How matrices are cut into pieces.
struct Plan<'a> {
    rows: &'a Rows,
    of: Matrices,
    /// Tiles of a matrix, and of a piece.
    tiles: usize,
    each: usize,
}

/// Tiles of one matrix that are sent together.
struct Piece {
    tiles: usize,
    /// Place and size in the file: the last tile of a matrix may have fewer rows.
    from: u64,
    file_bytes: usize,
    /// Place in the buffer.
    start: usize,
}

impl<'a> Plan<'a> {
    fn new(rows: &'a Rows, of: Matrices, piece_bytes: usize, threads: usize) -> Plan<'a> {
        // Matrices of whole tiles side by side lie as one tall matrix does.
        let whole = of.rows.is_multiple_of(rows.tile_rows()) && of.stride == (of.rows * rows.row_bytes()) as u64;
        let of = if whole { Matrices { rows: of.rows * of.count, count: 1, ..of } } else { of };
        let tiles = of.rows.div_ceil(rows.tile_rows());
        let share = (tiles * of.count).div_ceil(PIECES_A_THREAD * threads);
        let each = (piece_bytes / rows.tile_bytes()).min(share).max(1);
        Plan { rows, of, tiles, each }
    }

    fn pieces(&self) -> usize {
        self.of.count * self.tiles.div_ceil(self.each)
    }

    fn file_bytes(&self) -> u64 {
        self.of.count.saturating_sub(1) as u64 * self.of.stride + (self.of.rows * self.rows.row_bytes()) as u64
    }

    fn piece(&self, i: usize) -> Option<Piece> {
        if i >= self.pieces() {
            return None;
        }
        let a_matrix = self.tiles.div_ceil(self.each);
        let (matrix, first) = (i / a_matrix, i % a_matrix * self.each);
        let tiles = self.each.min(self.tiles - first);
        let row = first * self.rows.tile_rows();
        let rows = (tiles * self.rows.tile_rows()).min(self.of.rows - row);
        Some(Piece {
            tiles,
            from: self.of.from + matrix as u64 * self.of.stride + (row * self.rows.row_bytes()) as u64,
            file_bytes: rows * self.rows.row_bytes(),
            start: (matrix * self.tiles + first) * self.rows.tile_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::*;
    use crate::gpu::build_emulated;
    use crate::kernels::{Packing, pack};
    use crate::samples::weights;

    const FROM: u64 = 7;

    fn device() -> Device {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        Device::emulated(&build_emulated(&root.join("kernels"), &root.join("target")).unwrap(), None).unwrap()
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0xff; FROM as usize]).unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// Loads `count` matrices and compares with each of them packed alone.
    fn check(loader: &mut Loader, to: &Buffer, dtype: DType, (rows, cols, count): (usize, usize, usize)) {
        let bytes = weights(dtype, rows * cols * count, 3);
        let of = Matrices { dtype, rows, cols, count, from: FROM, stride: (bytes.len() / count) as u64 };
        loader.load(&file(&bytes), &mut Ahead::default(), of, to).unwrap();
        let each = Packing::of(dtype, cols).bytes(rows, cols);
        let mut found = vec![0; each * count];
        to.read(0, &mut found).unwrap();
        for (i, (found, bytes)) in found.chunks(each).zip(bytes.chunks(bytes.len() / count)).enumerate() {
            assert!(
                found == pack(dtype, rows, cols, bytes, 1).unwrap(),
                "{dtype:?}, matrix {i} of {count}, {rows} rows"
            );
        }
    }

    #[test]
    fn pieces_of_any_size_arrive_packed_on_the_device_and_on_the_host() {
        let device = device();
        // One tile a piece, many pieces for each stage; more than a tile; a tile that no stage holds.
        for (threads, piece_bytes) in [(1, 5_000), (3, 5_000), (2, 40_000), (2, 100)] {
            let mut loader = Loader::with_pieces(&device, threads, piece_bytes);
            assert!(loader.unpinned().is_none());
            let places = [device.allocate(1 << 20).unwrap(), device.pinned(1 << 20).unwrap()];
            for to in &places {
                for dtype in [DType::IQ3_S, DType::Q5_K, DType::Q6_K, DType::Q8_0, DType::F32, DType::BF16] {
                    // Whole tiles, and matrices that end within one.
                    check(&mut loader, to, dtype, (64, 512, 5));
                    check(&mut loader, to, dtype, (21, 512, 3));
                    check(&mut loader, to, dtype, (1, 256, 1));
                }
            }
        }
    }

    #[test]
    fn matrices_that_lie_among_others_are_loaded_alone() {
        let (device, dtype) = (device(), DType::Q4_K);
        for (rows, others) in [(32, 16), (21, 5)] {
            let (row, count) = (144, 4);
            let bytes = weights(dtype, (rows + others) * 256 * count, 9);
            let (each, all) = (Packing::Q4.bytes(rows, 256), (rows + others) * row);
            let to = device.allocate(each * count).unwrap();
            // The rows behind the others.
            let from = FROM + (others * row) as u64;
            let of = Matrices { dtype, rows, cols: 256, count, from, stride: all as u64 };
            Loader::with_pieces(&device, 3, 5_000).load(&file(&bytes), &mut Ahead::default(), of, &to).unwrap();
            let mut found = vec![0; each * count];
            to.read(0, &mut found).unwrap();
            for (found, bytes) in found.chunks(each).zip(bytes.chunks(all)) {
                assert!(
                    found == pack(dtype, rows, 256, &bytes[others * row..], 1).unwrap(),
                    "{rows} of {}",
                    rows + others
                );
            }
        }
    }

    #[test]
    fn memory_that_cannot_be_pinned_is_done_without() {
        let device = device();
        let mut loader = Loader::with_pieces(&device, 2, 1 << 40);
        assert!(matches!(loader.unpinned(), Some(GpuError::Pinned { .. })));
        check(&mut loader, &device.allocate(1 << 20).unwrap(), DType::Q4_K, (64, 512, 2));
    }

    #[test]
    fn what_cannot_be_loaded_is_an_error() {
        let device = device();
        let (mut loader, mut ahead) = (Loader::new(&device, 3), Ahead::default());
        let file = file(&weights(DType::Q4_K, 64 * 256, 1));
        let of = Matrices { dtype: DType::Q4_K, rows: 64, cols: 256, count: 1, from: FROM, stride: 64 * 144 };
        let to = device.allocate(Packing::Q4.bytes(64, 256)).unwrap();
        let mut load = |of, to: &Buffer| loader.load(&file, &mut ahead, of, to);
        load(of, &to).unwrap();
        assert!(matches!(load(Matrices { from: FROM + 1, ..of }, &to), Err(LoadError::Read(_))), "beyond the end");
        assert!(matches!(load(Matrices { cols: 200, ..of }, &to), Err(LoadError::Shape)));
        let small = device.allocate(Packing::Q4.bytes(48, 256)).unwrap();
        assert!(matches!(load(of, &small), Err(LoadError::Device(GpuError::Range { .. }))), "no room");
        load(of, &to).unwrap();
    }
}
