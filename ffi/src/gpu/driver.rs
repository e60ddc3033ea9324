//! An NVIDIA card through its driver: memory, launches, recorded graphs, time, on one stream.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{DriverError, result, sys};

use super::look::{call, functions, look};
use super::{Facts, Folders, GpuError, Machine, compile};
use crate::kernels::{Args, KERNELS, Kernel, fill};

pub(super) struct Card {
    facts: Facts,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// In the order of `KERNELS`.
    functions: Vec<sys::CUfunction>,
    /// Launches may overlap the end of the one before (compute capability 9.0 and later).
    overlap: bool,
    /// The next launch is one to an address that is none, once this file is there.
    fault: Option<PathBuf>,
    recordings: Mutex<Vec<Option<sys::CUgraphExec>>>,
    /// Launches and seconds of each kernel, while they are measured.
    profile: Mutex<Option<Vec<(u32, f64)>>>,
}

// SAFETY: the driver's handles may be used from any thread; each call here makes the context current first, and all
// work goes to one stream.
unsafe impl Send for Card {}
// SAFETY: as above; the only state of our own is behind a mutex.
unsafe impl Sync for Card {}

impl Card {
    pub(super) fn open(packings: u32, folders: &Folders<'_>, fault: Option<PathBuf>) -> Result<Card, GpuError> {
        let (device, mut facts) = look()?;
        let objects = compile::objects((facts.major, facts.minor), packings, folders)?;
        facts.kernels = objects.origin;
        // SAFETY: a device of the driver; released when the card is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(call("taking the device"))?;
        // SAFETY: a live context.
        unsafe { result::ctx::set_current(context) }.map_err(call("taking the device"))?;
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(call("making a stream"))?;
        let functions = functions(&objects.code)?;
        let overlap = facts.major >= 9;
        Ok(Card {
            facts,
            device,
            context,
            stream,
            functions,
            overlap,
            fault,
            recordings: Mutex::default(),
            profile: Mutex::default(),
        })
    }

    fn here(&self) -> Result<(), GpuError> {
        // SAFETY: the context lives as long as the card.
        unsafe { result::ctx::set_current(self.context) }.map_err(call("taking the device"))
    }

    fn start(&self, kernel: usize, grid: [u32; 3], threads: u32, args: &[u8]) -> Result<(), GpuError> {
        let overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let mut attribute = self.overlap.then_some(overlap);
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.stream,
            attrs: attribute.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut),
            numAttrs: u32::from(attribute.is_some()),
        };
        let mut params = [args.as_ptr() as *mut c_void];
        let extra = std::ptr::null_mut();
        // SAFETY: one parameter, of the size that the kernel takes (compared with its source by the tests); the
        // driver copies it during the call. What the kernel does stays in device memory.
        unsafe { sys::cuLaunchKernelEx(&config, self.functions[kernel], params.as_mut_ptr(), extra) }
            .result()
            .map_err(|e| GpuError::Call { what: "a launch", reason: format!("{}: {e}", KERNELS[kernel].name) })
    }

    /// Makes the card fault, if that was asked for: a kernel writes where no memory is.
    fn injected(&self) -> Result<(), GpuError> {
        if !self.fault.as_ref().is_some_and(|file| file.exists()) {
            return Ok(());
        }
        self.start(Kernel::Fill as usize, [1, 1, 1], 256, fill::nowhere().bytes())
    }

    /// Runs a launch, and measures it where single launches are measured.
    fn measured(&self, kernel: usize, launch: impl Fn() -> Result<(), GpuError>) -> Result<(), GpuError> {
        self.here()?;
        if self.profile.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return launch();
        }
        let seconds = self.time(&mut || launch())?;
        if let Some(list) = &mut *self.profile.lock().unwrap_or_else(PoisonError::into_inner) {
            let (launches, sum) = &mut list[kernel];
            (*launches, *sum) = (*launches + 1, *sum + seconds);
        }
        Ok(())
    }
}

impl Machine for Card {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn free_bytes(&self) -> Result<u64, GpuError> {
        self.here()?;
        result::mem_get_info().map(|(free, _)| free as u64).map_err(call("asking for free memory"))
    }

    fn allocate(&self, bytes: usize) -> Result<u64, GpuError> {
        self.here()?;
        // SAFETY: a size; the address is given back by `release`.
        unsafe { result::malloc_sync(bytes) }.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = result::mem_get_info().unwrap_or_default();
                GpuError::Memory { wanted: bytes as u64, free: free as u64, total: total as u64 }
            }
            _ => call("an allocation")(e),
        })
    }

    fn release(&self, at: u64) {
        if self.here().is_ok() {
            // SAFETY: allocated by this card and not yet released; the call waits for work that uses it.
            let _ = unsafe { result::free_sync(at) };
        }
    }

    fn pin(&self, bytes: usize) -> Result<(u64, u64), GpuError> {
        self.here()?;
        let refused = |e: DriverError| GpuError::Pinned { wanted: bytes as u64, reason: e.to_string() };
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a size; the memory is given back by `unpin`.
        let host = unsafe { result::malloc_host(bytes, flags) }.map_err(refused)?;
        let mut at = 0;
        // SAFETY: memory that was just mapped into the device's addresses.
        match unsafe { sys::cuMemHostGetDevicePointer_v2(&mut at, host, 0) }.result() {
            Ok(()) => Ok((host as u64, at)),
            Err(e) => {
                self.unpin(host as u64);
                Err(refused(e))
            }
        }
    }

    fn unpin(&self, host: u64) {
        // Nothing that was launched may still read it.
        if self.here().is_ok() && self.wait().is_ok() {
            // SAFETY: allocated by `pin` and not yet released.
            let _ = unsafe { result::free_host(host as *mut c_void) };
        }
    }

    fn zero(&self, at: u64, bytes: usize) -> Result<(), GpuError> {
        self.here()?;
        // SAFETY: the range lies in a live buffer (checked by `Buffer`).
        unsafe { result::memset_d8_async(at, 0, bytes, self.stream) }.map_err(call("a fill"))
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<(), GpuError> {
        self.here()?;
        // SAFETY: the range lies in a live buffer (checked by `Buffer`). The driver has read pageable memory, which
        // every slice is, before it returns.
        unsafe { result::memcpy_htod_async(to, from, self.stream) }.map_err(call("an upload"))
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<(), GpuError> {
        self.here()?;
        // SAFETY: as above; the wait below ends before the slice can be used.
        unsafe { result::memcpy_dtoh_async(to, from, self.stream) }.map_err(call("a download"))?;
        self.wait()
    }

    fn mark(&self) -> Result<u64, GpuError> {
        self.here()?;
        // Whoever waits sleeps: other threads have work for its processor.
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
        result::event::create(flags).map(|event| event as u64).map_err(call("making a mark"))
    }

    fn unmark(&self, mark: u64) {
        if self.here().is_ok() {
            // SAFETY: made by `mark` and not yet given back.
            let _ = unsafe { result::event::destroy(mark as sys::CUevent) };
        }
    }

    fn send(&self, to: u64, host: u64, bytes: usize, mark: u64) -> Result<(), GpuError> {
        self.here()?;
        // SAFETY: pinned memory whose owner does not touch it before the mark has passed (`Staging`), and a range of a
        // live buffer (checked by `Buffer`). Memory that is pinned is not read before the call returns.
        let done = unsafe {
            let from = std::slice::from_raw_parts(host as *const u8, bytes);
            result::memcpy_htod_async(to, from, self.stream)
        };
        done.map_err(call("an upload"))?;
        // SAFETY: a mark of `mark` and a live stream.
        unsafe { result::event::record(mark as sys::CUevent, self.stream) }.map_err(call("a mark"))
    }

    fn passed(&self, mark: u64) -> Result<(), GpuError> {
        self.here()?;
        // SAFETY: a mark of `mark`.
        unsafe { result::event::synchronize(mark as sys::CUevent) }.map_err(call("an upload"))
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), GpuError> {
        self.here()?;
        // SAFETY: both ranges lie in live buffers (checked by `Buffer`).
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }.map_err(call("a copy"))
    }

    fn launch(&self, kernel: usize, grid: [u32; 3], threads: u32, args: &[u8]) -> Result<(), GpuError> {
        self.injected()?;
        self.measured(kernel, || self.start(kernel, grid, threads, args))
    }

    fn wait(&self) -> Result<(), GpuError> {
        self.here()?;
        // SAFETY: a live stream.
        unsafe { result::stream::synchronize(self.stream) }.map_err(call("the device's work"))
    }

    fn record(&self) -> Result<(), GpuError> {
        self.here()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream that captures nothing yet.
        unsafe { result::stream::begin_capture(self.stream, mode) }.map_err(call("recording"))
    }

    fn recorded(&self) -> Result<u64, GpuError> {
        let mut exec = std::ptr::null_mut();
        // SAFETY: the stream captures since `record`; the graph is destroyed once it was made executable.
        unsafe {
            let graph = result::stream::end_capture(self.stream).map_err(call("recording"))?;
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map_err(call("making a graph"))?;
        }
        let mut list = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(Some(exec));
        Ok(list.len() as u64 - 1)
    }

    fn replay(&self, recording: u64) -> Result<(), GpuError> {
        self.here()?;
        self.injected()?;
        let list = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(exec)) = list.get(recording as usize) else { return Ok(()) };
        // SAFETY: a graph that was made and not destroyed.
        unsafe { result::graph::launch(*exec, self.stream) }.map_err(call("a graph"))
    }

    fn forget(&self, recording: u64) {
        let mut list = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Ok(()), Some(exec)) = (self.here(), list.get_mut(recording as usize).and_then(Option::take)) {
            // SAFETY: made by `recorded` and taken out of the list just now.
            let _ = unsafe { result::graph::exec_destroy(exec) };
        }
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        self.here()?;
        let make = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(call("making a mark"));
        let (from, to) = (make()?, make()?);
        // SAFETY: live events and a live stream; the events are destroyed below and not used afterwards.
        let done = unsafe {
            let mut run = || {
                result::event::record(from, self.stream).map_err(call("a mark"))?;
                work()?;
                result::event::record(to, self.stream).map_err(call("a mark"))?;
                result::event::synchronize(to).map_err(call("the device's work"))?;
                result::event::elapsed(from, to).map_err(call("a mark"))
            };
            let done = run();
            let _ = (result::event::destroy(from), result::event::destroy(to));
            done
        };
        done.map(|ms| f64::from(ms) / 1e3)
    }

    fn profile(&self, on: bool) -> Vec<(usize, u32, f64)> {
        let mut list = self.profile.lock().unwrap_or_else(PoisonError::into_inner);
        let found = if on { list.replace(vec![(0, 0.0); KERNELS.len()]) } else { list.take() };
        let used = found.unwrap_or_default().into_iter().enumerate().filter(|(_, (n, _))| *n > 0);
        used.map(|(kernel, (n, seconds))| (kernel, n, seconds)).collect()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if self.here().is_ok() {
            // SAFETY: nothing holds the card any more, so nothing uses its stream or its context.
            unsafe {
                let _ = result::stream::destroy(self.stream);
                let _ = result::primary_ctx::release(self.device);
            }
        }
    }
}
