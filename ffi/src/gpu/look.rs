//! Which card there is, and its kernels once they are loaded. The driver is looked for only when asked.

use std::ffi::CString;

use cudarc::driver::{DriverError, result, sys};

use super::{Facts, GpuError, compile};
use crate::kernels::KERNELS;

pub(super) fn present() -> bool {
    // SAFETY: only looks for the library.
    unsafe { sys::is_culib_present() }
}

pub(super) fn call(what: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |e| GpuError::Call { what, reason: e.to_string() }
}

/// The first card, if it can run the kernels; nothing is started on it.
pub(super) fn look() -> Result<(sys::CUdevice, Facts), GpuError> {
    if !present() {
        return Err(GpuError::NoDriver);
    }
    result::init().map_err(|e| GpuError::NoDevice(e.to_string()))?;
    let device = result::device::get(0).map_err(|e| GpuError::NoDevice(e.to_string()))?;
    let facts = facts(device)?;
    match facts.major {
        8.. => Ok((device, facts)),
        major => Err(GpuError::TooOld { name: facts.name, major, minor: facts.minor }),
    }
}

fn number(device: sys::CUdevice, what: sys::CUdevice_attribute) -> Result<u32, GpuError> {
    // SAFETY: a device that the driver named.
    unsafe { result::device::get_attribute(device, what) }.map(|n| n as u32).map_err(call("a question"))
}

fn facts(device: sys::CUdevice) -> Result<Facts, GpuError> {
    use sys::CUdevice_attribute as Attribute;
    Ok(Facts {
        name: result::device::get_name(device).map_err(call("a question"))?,
        major: number(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: number(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        processors: number(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }.map_err(call("a question"))? as u64,
        kernels: String::new(),
    })
}

/// In the order of `KERNELS`, from loaded objects.
pub(super) fn functions(modules: &[Vec<u8>]) -> Result<Vec<sys::CUfunction>, GpuError> {
    let mut handles = Vec::with_capacity(modules.len());
    for code in modules {
        // SAFETY: an object that the compiler made, whole in memory. Modules live as long as the context.
        handles.push(unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(call("loading kernels"))?);
    }
    let find = |name: &str, file: &str| {
        let at = compile::FILES.iter().position(|(f, _)| *f == file).unwrap_or(0);
        let name = CString::new(name).map_err(|e| GpuError::Call { what: "naming a kernel", reason: e.to_string() })?;
        // SAFETY: a loaded module.
        unsafe { result::module::get_function(handles[at], name) }.map_err(call("finding a kernel"))
    };
    KERNELS.iter().map(|k| find(k.name, k.file)).collect()
}
