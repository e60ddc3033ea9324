//! Kernels from source to a card's own code with NVRTC, kept in a folder under a hash of everything that decides
//! about the result.

use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::raw::c_char;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};

use super::GpuError;

/// What the kernels include.
const HEADERS: [(&CStr, &str); 3] = [
    (c"common.cuh", include_str!("../../../kernels/common.cuh")),
    (c"pack.cuh", include_str!("../../../kernels/pack.cuh")),
    (c"product.cuh", include_str!("../../../kernels/product.cuh")),
];

/// The files of kernels.
pub(super) const FILES: [(&str, &str); 9] = [
    ("embed.cu", include_str!("../../../kernels/embed.cu")),
    ("matmul.cu", include_str!("../../../kernels/matmul.cu")),
    ("norm.cu", include_str!("../../../kernels/norm.cu")),
    ("gdn.cu", include_str!("../../../kernels/gdn.cu")),
    ("attention.cu", include_str!("../../../kernels/attention.cu")),
    ("route.cu", include_str!("../../../kernels/route.cu")),
    ("experts.cu", include_str!("../../../kernels/experts.cu")),
    ("sample.cu", include_str!("../../../kernels/sample.cu")),
    ("fill.cu", include_str!("../../../kernels/fill.cu")),
];

/// Names one compilation: source, headers, card, packings, compiler.
fn source_hash(file: &str, source: &str, arch: &str, packings: u32, compiler: (i32, i32)) -> u64 {
    let mut hash = DefaultHasher::new();
    (file, source, HEADERS.map(|(_, text)| text), arch, packings, compiler).hash(&mut hash);
    hash.finish()
}

fn compiler() -> Option<(i32, i32)> {
    // SAFETY: only looks for the library, as every call below needs it there.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two integers to write to.
    let code = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    (code == sys::nvrtcResult::NVRTC_SUCCESS).then_some((major, minor))
}

/// The compiled code of every file for `arch` (`sm_90`), compiled side by side, or from `cache`.
pub fn compile(arch: &str, packings: u32, cache: Option<&Path>) -> Result<Vec<Vec<u8>>, GpuError> {
    let version = compiler().ok_or(GpuError::NoCompiler)?;
    let one = |file: &'static str, source: &'static str| {
        let hash = source_hash(file, source, arch, packings, version);
        let place = cache.map(|folder| folder.join(format!("{file}.{arch}.{hash:016x}")));
        if let Some(code) = place.as_deref().and_then(|p| std::fs::read(p).ok()) {
            return Ok(code);
        }
        let code = compile_one(file, source, arch, packings)?;
        if let Some(place) = place {
            // A cache that cannot be written costs time at the next start and nothing else.
            let _ = keep(&place, &code);
        }
        Ok(code)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = FILES.iter().map(|(file, source)| scope.spawn(move || one(file, source))).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<Vec<u8>, GpuError>>| {
            t.join().unwrap_or(Err(GpuError::Call { what: "a compiler's thread", reason: "it panicked".into() }))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Written aside and renamed, so that no half file is ever read.
fn keep(place: &Path, code: &[u8]) -> std::io::Result<()> {
    let aside = PathBuf::from(format!("{}.{}", place.display(), std::process::id()));
    if let Some(folder) = place.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&aside, code)?;
    std::fs::rename(aside, place)
}

fn compile_one(file: &str, source: &str, arch: &str, packings: u32) -> Result<Vec<u8>, GpuError> {
    let failed = |log: String| GpuError::Compile { file: file.to_owned(), log };
    let text = |s: &str| CString::new(s).map_err(|e| failed(e.to_string()));
    let (source, name) = (text(source)?, text(file)?);
    let texts = HEADERS.iter().map(|(_, t)| text(t)).collect::<Result<Vec<_>, _>>()?;
    let texts: Vec<*const c_char> = texts.iter().map(|t| t.as_ptr()).collect();
    let names: Vec<*const c_char> = HEADERS.iter().map(|(n, _)| n.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings are terminated and live until the program was created, which copies them.
    let code = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            HEADERS.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    if code != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(failed(format!("{code:?}")));
    }
    let options = [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".into(),
        "-default-device".into(),
        format!("-DPACKINGS={packings}"),
    ];
    // SAFETY: a program that was created and not destroyed.
    let outcome = unsafe { result::compile_program(program, &options) };
    let code = match outcome {
        Ok(()) => object(program).map_err(|e| failed(e.to_string())),
        Err(error) => {
            // SAFETY: as above.
            let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
            let log: Vec<u8> = log.into_iter().map(|c| c as u8).take_while(|c| *c != 0).collect();
            Err(failed(format!("{error}: {}", String::from_utf8_lossy(&log))))
        }
    };
    // SAFETY: as above; not used afterwards.
    let _ = unsafe { result::destroy_program(program) };
    code
}

fn object(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: a compiled program, and places for what it gives; the second call writes `size` bytes.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut size).result()?;
        let mut code = vec![0_u8; size];
        sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
        Ok(code)
    }
}
