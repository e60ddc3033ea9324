//! A device that runs the project's kernels: memory, launches, recorded sequences of launches, time.
//!
//! One stream, in order. Two machines stand behind it. One is an NVIDIA card through its driver, found when asked
//! for. The other, for tests, is the kernels' own source compiled for the processor (`kernels/emulated`).

mod compile;
mod driver;
mod emulated;
mod look;
mod staging;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::kernels::{Args, KERNELS, Kernel};

pub use compile::{Folders, PACKINGS, compiler_version, shipped_architectures};
pub use emulated::build as build_emulated;
pub use staging::Staging;

#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("no NVIDIA driver was found (libcuda.so.1)")]
    NoDriver,
    #[error("the driver finds no device: {0}")]
    NoDevice(String),
    #[error("the card, {name}, is of compute capability {major}.{minor}; the kernels need 8.0 or later")]
    TooOld { name: String, major: u32, minor: u32 },
    #[error("no run-time compiler was found (libnvrtc.so.13 or .12), and no compiled kernels for this card and model")]
    NoCompiler,
    #[error("the kernels of {file} cannot be compiled: {log}")]
    Compile { file: String, log: String },
    #[error("out of device memory: {wanted} bytes wanted, {free} free of {total}")]
    Memory { wanted: u64, free: u64, total: u64 },
    #[error(
        "{wanted} bytes of the host's memory cannot be pinned for the card ({reason}): free memory, or raise the limit of locked memory"
    )]
    Pinned { wanted: u64, reason: String },
    #[error("{what} failed: {reason}")]
    Call { what: &'static str, reason: String },
    #[error("{what}: {asked} bytes at {start} of a buffer of {len}")]
    Range { what: &'static str, start: usize, asked: usize, len: usize },
}

/// What is told of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub name: String,
    /// Compute capability.
    pub major: u32,
    pub minor: u32,
    /// Streaming multiprocessors.
    pub processors: u32,
    pub memory_bytes: u64,
    /// Where its kernels are from, for people.
    pub kernels: String,
}

/// What a machine can do; addresses are those of its own memory.
trait Machine: Send + Sync {
    fn facts(&self) -> &Facts;
    fn free_bytes(&self) -> Result<u64, GpuError>;
    fn allocate(&self, bytes: usize) -> Result<u64, GpuError>;
    fn release(&self, at: u64);
    /// Memory of the host that the device can read: its address here, and there.
    fn pin(&self, bytes: usize) -> Result<(u64, u64), GpuError>;
    /// Gives back what was pinned, by its address here.
    fn unpin(&self, host: u64);
    fn zero(&self, at: u64, bytes: usize) -> Result<(), GpuError>;
    fn upload(&self, to: u64, from: &[u8]) -> Result<(), GpuError>;
    fn download(&self, from: u64, to: &mut [u8]) -> Result<(), GpuError>;
    /// What [`Machine::send`] waits behind; given back by `unmark`.
    fn mark(&self) -> Result<u64, GpuError>;
    fn unmark(&self, mark: u64);
    /// Starts to copy bytes that were pinned, by their address here, in order with the launches; `mark` is behind it.
    fn send(&self, to: u64, host: u64, bytes: usize, mark: u64) -> Result<(), GpuError>;
    /// Waits for what was last sent with this mark.
    fn passed(&self, mark: u64) -> Result<(), GpuError>;
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), GpuError>;
    fn launch(&self, kernel: usize, grid: [u32; 3], threads: u32, args: &[u8]) -> Result<(), GpuError>;
    fn wait(&self) -> Result<(), GpuError>;
    fn record(&self) -> Result<(), GpuError>;
    fn recorded(&self) -> Result<u64, GpuError>;
    fn replay(&self, recording: u64) -> Result<(), GpuError>;
    fn forget(&self, recording: u64);
    /// Runs `work` between two marks on the stream; seconds between them.
    fn time(&self, work: &mut dyn FnMut() -> Result<(), GpuError>) -> Result<f64, GpuError>;
    /// Starts (true) or ends the timing of single launches; ended, what was measured: kernel, launches, seconds.
    fn profile(&self, on: bool) -> Vec<(usize, u32, f64)>;
}

/// A device with its kernels loaded. Clones are handles of the same.
#[derive(Clone)]
pub struct Device(Arc<dyn Machine>);

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.facts().fmt(f)
    }
}

/// Memory that kernels read and write, the device's or pinned memory of the host; given back when dropped.
pub struct Buffer {
    machine: Arc<dyn Machine>,
    at: u64,
    /// Where pinned memory of the host lies for this process; 0: it is the device's.
    host: u64,
    len: usize,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Launches that were recorded and can be repeated as one.
pub struct Recording {
    machine: Arc<dyn Machine>,
    id: u64,
}

/// Whether a driver is there; starts nothing.
pub fn driver_present() -> bool {
    look::present()
}

/// The first card, if the kernels can run on it; starts nothing there.
pub fn first_card() -> Result<Facts, GpuError> {
    look::look().map(|(_, facts)| facts)
}

impl Device {
    /// The first card, with the kernels compiled for it. `packings`: bits of those a model has (see `kernels/product.cuh`);
    /// `folders`: where compiled kernels lie; `fault`: for tests, a file that makes the card fault once it is there.
    pub fn open(packings: u32, folders: &Folders<'_>, fault: Option<PathBuf>) -> Result<Device, GpuError> {
        Ok(Device(Arc::new(driver::Card::open(packings, folders, fault)?)))
    }

    /// The kernels compiled for the processor, from a shared object. For tests alone: a kernel that is given wrong
    /// sizes corrupts this process. Every launch fails from the first one on that finds the file `fault`.
    pub fn emulated(library: &Path, fault: Option<PathBuf>) -> Result<Device, GpuError> {
        Ok(Device(Arc::new(emulated::Emulated::open(library, fault)?)))
    }

    pub fn facts(&self) -> &Facts {
        self.0.facts()
    }

    /// Bytes that can still be allocated.
    pub fn free_bytes(&self) -> Result<u64, GpuError> {
        self.0.free_bytes()
    }

    /// A buffer of zeros.
    pub fn zeroed(&self, bytes: usize) -> Result<Buffer, GpuError> {
        let buffer = self.allocate(bytes)?;
        self.0.zero(buffer.at, bytes)?;
        Ok(buffer)
    }

    /// A buffer with anything in it.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, GpuError> {
        let at = self.0.allocate(bytes.max(16))?;
        Ok(Buffer { machine: Arc::clone(&self.0), at, host: 0, len: bytes })
    }

    /// A buffer in the host's memory, locked there, which kernels read over the bus; anything in it.
    pub fn pinned(&self, bytes: usize) -> Result<Buffer, GpuError> {
        let (host, at) = self.0.pin(bytes.max(16))?;
        Ok(Buffer { machine: Arc::clone(&self.0), at, host, len: bytes })
    }

    /// A buffer with these bytes.
    pub fn buffer(&self, bytes: &[u8]) -> Result<Buffer, GpuError> {
        let buffer = self.allocate(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Launches a kernel. Its arguments name device memory only, which no Rust value lives in: a wrong launch can
    /// fault the device and make every later call fail, but not touch this process.
    pub fn launch<A: Args>(&self, kernel: Kernel, grid: [u32; 3], threads: u32, args: &A) -> Result<(), GpuError> {
        self.0.launch(kernel as usize, grid, threads, args.bytes())
    }

    /// Waits until everything launched so far is done; an error of any launch before shows here at the latest.
    pub fn wait(&self) -> Result<(), GpuError> {
        self.0.wait()
    }

    /// Records what `work` launches, without running it.
    pub fn record(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<Recording, GpuError> {
        self.0.record()?;
        let done = work();
        let id = self.0.recorded()?;
        let recording = Recording { machine: Arc::clone(&self.0), id };
        done.map(|()| recording)
    }

    /// Seconds that the device spends on what `work` launches.
    pub fn time(&self, mut work: impl FnMut() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        self.0.time(&mut work)
    }

    /// What each kernel took in `work`: name, launches, seconds. Launches are measured one by one, so nothing overlaps.
    pub fn profile(
        &self,
        work: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<Vec<(&'static str, u32, f64)>, GpuError> {
        self.0.profile(true);
        let done = work();
        let found = self.0.profile(false);
        done?;
        Ok(found.into_iter().map(|(k, n, s)| (KERNELS[k].name, n, s)).collect())
    }
}

impl Recording {
    pub fn replay(&self) -> Result<(), GpuError> {
        self.machine.replay(self.id)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.machine.forget(self.id);
    }
}

impl Buffer {
    /// Address on the device, for a kernel's arguments.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Address of byte `offset`.
    pub fn from(&self, offset: usize) -> u64 {
        self.at + offset as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn inside(&self, what: &'static str, start: usize, asked: usize) -> Result<u64, GpuError> {
        match start.checked_add(asked).is_some_and(|end| end <= self.len) {
            true => Ok(self.at + start as u64),
            false => Err(GpuError::Range { what, start, asked, len: self.len }),
        }
    }

    /// Copies bytes in, from `start` on, in order with the launches.
    pub fn write(&self, start: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let to = self.inside("an upload", start, bytes.len())?;
        if self.host != 0 {
            // What was launched may still read it.
            self.machine.wait()?;
            let to = (self.host + start as u64) as *mut u8;
            // SAFETY: the range lies in this buffer's own memory (checked above), which no Rust value lives in.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            return Ok(());
        }
        self.machine.upload(to, bytes)
    }

    /// Copies bytes out, after everything launched before.
    pub fn read(&self, start: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.machine.download(self.inside("a download", start, bytes.len())?, bytes)
    }

    pub fn zero(&self, range: Range<usize>) -> Result<(), GpuError> {
        self.machine.zero(self.inside("a fill", range.start, range.len())?, range.len())
    }

    /// Copies from another buffer on the device.
    pub fn copy(&self, start: usize, other: &Buffer, range: Range<usize>) -> Result<(), GpuError> {
        let to = self.inside("a copy", start, range.len())?;
        self.machine.copy(to, other.inside("a copy", range.start, range.len())?, range.len())
    }

    pub fn write_f32(&self, start: usize, values: &[f32]) -> Result<(), GpuError> {
        // SAFETY: floats have no padding and any byte of theirs may be read.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        self.write(4 * start, bytes)
    }

    pub fn write_u32(&self, start: usize, values: &[u32]) -> Result<(), GpuError> {
        // SAFETY: integers have no padding and any byte of theirs may be read.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        self.write(4 * start, bytes)
    }

    pub fn read_f32(&self, start: usize, values: &mut [f32]) -> Result<(), GpuError> {
        // SAFETY: every pattern of four bytes is a float.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size_of_val(values)) };
        self.read(4 * start, bytes)
    }

    pub fn read_u32(&self, start: usize, values: &mut [u32]) -> Result<(), GpuError> {
        // SAFETY: every pattern of four bytes is an integer.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size_of_val(values)) };
        self.read(4 * start, bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.host {
            0 => self.machine.release(self.at),
            host => self.machine.unpin(host),
        }
    }
}
