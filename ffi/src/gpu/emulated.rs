//! The kernels on the processor: memory is this process's, a launch is a call into the shared object that
//! `kernels/emulated/lib.cpp` makes.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use libloading::Library;

use super::{Facts, GpuError, Machine};
use crate::kernels::KERNELS;

type Launch = unsafe extern "C" fn(*const c_char, *const c_uint, c_uint, *const c_void) -> c_int;
type Bytes = unsafe extern "C" fn(*const c_char) -> c_uint;

/// Alignment of device memory, as the driver gives it.
const ALIGN: usize = 256;

#[derive(Clone)]
struct Call {
    kernel: usize,
    grid: [u32; 3],
    threads: u32,
    args: Vec<u8>,
}

/// A copy that was sent: as with a card it is made later, when somebody waits for it or needs its place in the order.
struct Sent {
    to: u64,
    host: u64,
    bytes: usize,
    mark: u64,
}

#[derive(Default)]
struct State {
    sent: VecDeque<Sent>,
    sizes: HashMap<u64, usize>,
    recording: Option<Vec<Call>>,
    recordings: HashMap<u64, Vec<Call>>,
    next: u64,
    lost: bool,
}

pub(super) struct Emulated {
    facts: Facts,
    /// One launch at a time.
    launch: Mutex<Launch>,
    /// Launches fail from the first one on that finds this file.
    fault: Option<PathBuf>,
    state: Mutex<State>,
    /// Holds the code behind `launch`: a copy of this device's own, for its fibers and shared memory are global there.
    _library: Library,
}

/// Compiles the kernels of `kernels` for the processor into `folder`, unless they lie there already.
pub fn build(kernels: &Path, folder: &Path) -> std::io::Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    for place in [kernels.to_owned(), kernels.join("emulated")] {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(place)?.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
        files.sort();
        for file in files {
            std::fs::read(file)?.hash(&mut hash);
        }
    }
    let library = folder.join(format!("emulated-{:016x}.so", hash.finish()));
    if library.exists() {
        return Ok(library);
    }
    std::fs::create_dir_all(folder)?;
    let aside = folder.join(format!("emulated-{}-{:?}.so", std::process::id(), std::thread::current().id()));
    // Without unique symbols: what is static in a template is each copy's own.
    let flags = "-O2 -std=c++17 -DEMULATE -U_FORTIFY_SOURCE -ffp-contract=off -fno-gnu-unique -fPIC -shared -w -I";
    let status = Command::new("c++")
        .args(flags.split(' '))
        .arg(kernels)
        .arg(kernels.join("emulated/lib.cpp"))
        .arg("-o")
        .arg(&aside)
        .status()?;
    if !status.success() {
        return Err(std::io::Error::other("the kernels cannot be compiled for the processor"));
    }
    std::fs::rename(aside, &library)?;
    Ok(library)
}

/// The library as a file that nobody else has loaded.
fn load(path: &Path) -> Result<Library, GpuError> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let copy = path.with_extension(format!("{}-{}.so", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    std::fs::copy(path, &copy).map_err(|e| failed("copying the emulated kernels", e))?;
    // SAFETY: the object is built from this project's sources, and its initialisers only set up tables.
    let library = unsafe { Library::new(&copy) };
    // What is loaded stays without a name.
    let removed = std::fs::remove_file(&copy);
    let library = library.map_err(|e| failed("loading the emulated kernels", e))?;
    removed.map_err(|e| failed("removing a copy of the emulated kernels", e))?;
    Ok(library)
}

fn failed(what: &'static str, reason: impl ToString) -> GpuError {
    GpuError::Call { what, reason: reason.to_string() }
}

impl Emulated {
    pub(super) fn open(path: &Path, fault: Option<PathBuf>) -> Result<Emulated, GpuError> {
        let library = load(path)?;
        // SAFETY: the functions have these types in kernels/emulated/lib.cpp.
        let (launch, bytes) = unsafe {
            let launch = *library.get::<Launch>(b"emulated_launch").map_err(|e| failed("loading a function", e))?;
            let bytes = *library.get::<Bytes>(b"emulated_bytes").map_err(|e| failed("loading a function", e))?;
            (launch, bytes)
        };
        for kernel in KERNELS {
            let name = CString::new(kernel.name).map_err(|e| failed("naming a kernel", e))?;
            // SAFETY: a terminated string, read during the call.
            let theirs = unsafe { bytes(name.as_ptr()) } as usize;
            if theirs != kernel.args_bytes {
                let reason = format!("{} takes {theirs} bytes there, {} here", kernel.name, kernel.args_bytes);
                return Err(failed("comparing the arguments", reason));
            }
        }
        let facts = Facts {
            name: "emulated".into(),
            major: 8,
            minor: 0,
            processors: 1,
            memory_bytes: 1 << 36,
            kernels: "compiled for the processor".into(),
        };
        Ok(Emulated { facts, launch: Mutex::new(launch), fault, state: Mutex::default(), _library: library })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the copies that were sent, in their order: up to the last one under `mark`, or all.
    fn settle(&self, mark: Option<u64>) {
        let mut state = self.state();
        let count = match mark {
            Some(mark) => state.sent.iter().rposition(|sent| sent.mark == mark).map_or(0, |last| last + 1),
            None => state.sent.len(),
        };
        for Sent { to, host, bytes, .. } in state.sent.drain(..count) {
            // SAFETY: `to` lies in a live buffer (checked by `Buffer`; `release` settles first), and `host` in memory that
            // its owner does not touch before the mark has passed (`Staging`; `unpin` settles first).
            unsafe { std::ptr::copy_nonoverlapping(host as *const u8, to as *mut u8, bytes) };
        }
    }

    /// A fault stays, as that of a card does, until the process ends.
    fn healthy(&self) -> Result<(), GpuError> {
        let mut state = self.state();
        state.lost |= self.fault.as_ref().is_some_and(|file| file.exists());
        if state.lost { Err(failed("an emulated launch", "an injected fault")) } else { Ok(()) }
    }

    fn now_or_recorded(&self, call: Call) -> Result<(), GpuError> {
        if let Some(list) = &mut self.state().recording {
            list.push(call);
            return Ok(());
        }
        self.run(&call)
    }

    fn run(&self, call: &Call) -> Result<(), GpuError> {
        self.healthy()?;
        self.settle(None);
        let name = CString::new(KERNELS[call.kernel].name).map_err(|e| failed("naming a kernel", e))?;
        // Arguments hold addresses: they must lie as the kernel reads them.
        let words: Vec<u64> = call
            .args
            .chunks(8)
            .map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_ne_bytes(word)
            })
            .collect();
        let launch = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the arguments have the kernel's size (compared when the library was opened) and outlive the call;
        // the sizes in them were computed by the launchers from the buffers they name.
        let code = unsafe { launch(name.as_ptr(), call.grid.as_ptr(), call.threads, words.as_ptr().cast()) };
        if code == 0 { Ok(()) } else { Err(failed("an emulated launch", KERNELS[call.kernel].name)) }
    }
}

impl Machine for Emulated {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn free_bytes(&self) -> Result<u64, GpuError> {
        Ok(self.facts.memory_bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, GpuError> {
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|e| failed("an allocation", e))?;
        // SAFETY: the size is not zero (see `Device::allocate`).
        let at = unsafe { alloc(layout) } as u64;
        if at == 0 {
            return Err(GpuError::Memory { wanted: bytes as u64, free: 0, total: self.facts.memory_bytes });
        }
        self.state().sizes.insert(at, bytes);
        Ok(at)
    }

    fn release(&self, at: u64) {
        self.settle(None);
        let Some(bytes) = self.state().sizes.remove(&at) else { return };
        if let Ok(layout) = Layout::from_size_align(bytes, ALIGN) {
            // SAFETY: allocated above with this layout, and removed from the list just now.
            unsafe { dealloc(at as *mut u8, layout) }
        }
    }

    fn pin(&self, bytes: usize) -> Result<(u64, u64), GpuError> {
        let wanted = bytes as u64;
        if wanted > self.facts.memory_bytes {
            return Err(GpuError::Pinned { wanted, reason: "more than this machine is said to have".into() });
        }
        self.allocate(bytes).map(|at| (at, at))
    }

    fn unpin(&self, host: u64) {
        self.release(host);
    }

    fn zero(&self, at: u64, bytes: usize) -> Result<(), GpuError> {
        self.settle(None);
        // SAFETY: the range lies in a live buffer (checked by `Buffer`).
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, bytes) };
        Ok(())
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<(), GpuError> {
        self.settle(None);
        // SAFETY: the range lies in a live buffer (checked by `Buffer`), apart from any Rust value.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<(), GpuError> {
        self.settle(None);
        // SAFETY: as above, the other way.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn mark(&self) -> Result<u64, GpuError> {
        let mut state = self.state();
        state.next += 1;
        Ok(state.next)
    }

    fn unmark(&self, _: u64) {}

    fn send(&self, to: u64, host: u64, bytes: usize, mark: u64) -> Result<(), GpuError> {
        self.state().sent.push_back(Sent { to, host, bytes, mark });
        Ok(())
    }

    fn passed(&self, mark: u64) -> Result<(), GpuError> {
        self.settle(Some(mark));
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), GpuError> {
        self.settle(None);
        // SAFETY: both ranges lie in live buffers (checked by `Buffer`).
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    fn launch(&self, kernel: usize, grid: [u32; 3], threads: u32, args: &[u8]) -> Result<(), GpuError> {
        self.now_or_recorded(Call { kernel, grid, threads, args: args.to_vec() })
    }

    fn wait(&self) -> Result<(), GpuError> {
        self.settle(None);
        Ok(())
    }

    fn record(&self) -> Result<(), GpuError> {
        self.state().recording = Some(Vec::new());
        Ok(())
    }

    fn recorded(&self) -> Result<u64, GpuError> {
        let mut state = self.state();
        let list = state.recording.take().unwrap_or_default();
        state.next += 1;
        let id = state.next;
        state.recordings.insert(id, list);
        Ok(id)
    }

    fn replay(&self, recording: u64) -> Result<(), GpuError> {
        let calls = self.state().recordings.get(&recording).cloned().unwrap_or_default();
        calls.iter().try_for_each(|call| self.run(call))
    }

    fn forget(&self, recording: u64) {
        self.state().recordings.remove(&recording);
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        let began = Instant::now();
        work()?;
        Ok(began.elapsed().as_secs_f64())
    }

    fn profile(&self, _: bool) -> Vec<(usize, u32, f64)> {
        Vec::new()
    }
}
