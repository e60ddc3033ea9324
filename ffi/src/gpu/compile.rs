//! Kernels from source to a card's own code, by NVRTC. The result is kept in a folder, under a hash of everything
//! that decides about it. Or it is taken from objects that came with the program.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};

use super::GpuError;

/// What the kernels include.
const HEADERS: [(&CStr, &str); 23] = [
    (c"attend.cuh", include_str!("../../../kernels/attend.cuh")),
    (c"blocks.cuh", include_str!("../../../kernels/blocks.cuh")),
    (c"books.cuh", include_str!("../../../kernels/books.cuh")),
    (c"cache.cuh", include_str!("../../../kernels/cache.cuh")),
    (c"choose.cuh", include_str!("../../../kernels/choose.cuh")),
    (c"common.cuh", include_str!("../../../kernels/common.cuh")),
    (c"each.cuh", include_str!("../../../kernels/each.cuh")),
    (c"each_down.cuh", include_str!("../../../kernels/each_down.cuh")),
    (c"each_up.cuh", include_str!("../../../kernels/each_up.cuh")),
    (c"embed.cuh", include_str!("../../../kernels/embed.cuh")),
    (c"expert.cuh", include_str!("../../../kernels/expert.cuh")),
    (c"gdn.cuh", include_str!("../../../kernels/gdn.cuh")),
    (c"lora.cuh", include_str!("../../../kernels/lora.cuh")),
    (c"low.cuh", include_str!("../../../kernels/low.cuh")),
    (c"matmul.cuh", include_str!("../../../kernels/matmul.cuh")),
    (c"named.cuh", include_str!("../../../kernels/named.cuh")),
    (c"norm.cuh", include_str!("../../../kernels/norm.cuh")),
    (c"pack.cuh", include_str!("../../../kernels/pack.cuh")),
    (c"packings.cuh", include_str!("../../../kernels/packings.cuh")),
    (c"pages.cuh", include_str!("../../../kernels/pages.cuh")),
    (c"pick.cuh", include_str!("../../../kernels/pick.cuh")),
    (c"product.cuh", include_str!("../../../kernels/product.cuh")),
    (c"wide.cuh", include_str!("../../../kernels/wide.cuh")),
];

/// The files of kernels.
pub(super) const FILES: [(&str, &str); 18] = [
    ("embed.cu", include_str!("../../../kernels/embed.cu")),
    ("matmul.cu", include_str!("../../../kernels/matmul.cu")),
    ("gemm.cu", include_str!("../../../kernels/gemm.cu")),
    ("norm.cu", include_str!("../../../kernels/norm.cu")),
    ("gdn.cu", include_str!("../../../kernels/gdn.cu")),
    ("gdn_walk.cu", include_str!("../../../kernels/gdn_walk.cu")),
    ("attention.cu", include_str!("../../../kernels/attention.cu")),
    ("attention_prefill.cu", include_str!("../../../kernels/attention_prefill.cu")),
    ("attend.cu", include_str!("../../../kernels/attend.cu")),
    ("each.cu", include_str!("../../../kernels/each.cu")),
    ("route.cu", include_str!("../../../kernels/route.cu")),
    ("sort.cu", include_str!("../../../kernels/sort.cu")),
    ("experts.cu", include_str!("../../../kernels/experts.cu")),
    ("grouped.cu", include_str!("../../../kernels/grouped.cu")),
    ("offload.cu", include_str!("../../../kernels/offload.cu")),
    ("lora.cu", include_str!("../../../kernels/lora.cu")),
    ("sample.cu", include_str!("../../../kernels/sample.cu")),
    ("fill.cu", include_str!("../../../kernels/fill.cu")),
];

/// Objects in the cache: several models' and versions'.
const CACHED_OBJECTS_MAX: usize = 128;

/// Every packing, as bits.
pub const PACKINGS: u32 = 0x7ffff;

/// Where compiled kernels lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct Folders<'a> {
    /// Ours to write: what was compiled on this machine.
    pub cache: Option<&'a Path>,
    /// What came with the program, for machines without a compiler.
    pub shipped: Option<&'a Path>,
}

/// Objects in the order of `FILES`, and where they are from.
pub(super) struct Objects {
    pub(super) code: Vec<Vec<u8>>,
    pub(super) origin: String,
}

/// FNV-1a of what a file is compiled from: headers in order of their names, then the source.
fn fingerprint(source: &str) -> u64 {
    let texts = HEADERS.iter().map(|(_, text)| *text).chain([source]);
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    texts.flat_map(str::bytes).fold(0xCBF2_9CE4_8422_2325, mix)
}

fn stem(file: &str) -> &str {
    file.strip_suffix(".cu").unwrap_or(file)
}

/// As `tests/gpu/compile.py` names what it makes.
fn object_name(file: &str, source: &str, arch: &str, packings: u32) -> String {
    format!("{}.{arch}.{packings:x}.{:016x}.cubin", stem(file), fingerprint(source))
}

/// Architecture and packings of an object's name, if it was made from this source.
fn parse_name(name: &str, file: &str, source: &str) -> Option<(u32, u32)> {
    let rest = name.strip_prefix(stem(file))?.strip_prefix(".sm_")?.strip_suffix(".cubin")?;
    let [arch, packings, hash] = rest.split('.').collect::<Vec<_>>().try_into().ok()?;
    let same = u64::from_str_radix(hash, 16).is_ok_and(|hash| hash == fingerprint(source));
    same.then_some((arch.parse().ok()?, u32::from_str_radix(packings, 16).ok()?))
}

/// The shipped object for a card of this capability: made for it or for an older one of its generation, with the
/// packings that are wanted and as few others as possible.
fn shipped_one(
    folder: &Path,
    (file, source): (&str, &str),
    (major, minor): (u32, u32),
    packings: u32,
) -> Option<Vec<u8>> {
    let fitting = |name: &str| {
        let (arch, had) = parse_name(name, file, source)?;
        let runs = arch / 10 == major && arch % 10 <= minor && packings & !had == 0;
        runs.then_some((arch % 10, std::cmp::Reverse(had.count_ones())))
    };
    let names = std::fs::read_dir(folder).ok()?.flatten().filter_map(|e| e.file_name().into_string().ok());
    let best = names.filter_map(|name| Some((fitting(&name)?, name))).max()?;
    std::fs::read(folder.join(best.1)).ok()
}

fn shipped(folder: &Path, card: (u32, u32), packings: u32) -> Option<Objects> {
    let code = FILES.iter().map(|file| shipped_one(folder, *file, card, packings)).collect::<Option<_>>()?;
    Some(Objects { code, origin: "shipped".into() })
}

/// Architectures that every file was shipped for (`sm_90` as 90), in order.
pub fn shipped_architectures(folder: &Path) -> Vec<u32> {
    let names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    let of = |(file, source): &(&str, &str)| -> BTreeSet<u32> {
        names.iter().filter_map(|name| parse_name(name, file, source)).map(|(arch, _)| arch).collect()
    };
    let all = FILES.iter().map(of).reduce(|a, b| a.intersection(&b).copied().collect());
    all.unwrap_or_default().into_iter().collect()
}

/// Version of the run-time compiler, where there is one.
pub fn compiler_version() -> Option<(i32, i32)> {
    // SAFETY: only looks for the library, as every call below needs it there.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two integers to write to.
    let code = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    (code == sys::nvrtcResult::NVRTC_SUCCESS).then_some((major, minor))
}

/// The code of every file for a card of this compute capability: compiled here where there is a compiler, side by
/// side or from the cache; shipped where there is none, or one that does not know the card.
pub(super) fn objects(card: (u32, u32), packings: u32, folders: &Folders<'_>) -> Result<Objects, GpuError> {
    let here = compiler_version().ok_or(GpuError::NoCompiler).and_then(|version| {
        let code = compile_all(&format!("sm_{}{}", card.0, card.1), packings, folders.cache, version)?;
        Ok(Objects { code, origin: format!("NVRTC {}.{}", version.0, version.1) })
    });
    here.or_else(|error| folders.shipped.and_then(|folder| shipped(folder, card, packings)).ok_or(error))
}

fn compile_all(arch: &str, packings: u32, cache: Option<&Path>, version: (i32, i32)) -> Result<Vec<Vec<u8>>, GpuError> {
    let one = |file: &'static str, source: &'static str| {
        let name = format!("{}.{}.{}", object_name(file, source, arch, packings), version.0, version.1);
        let place = cache.map(|folder| folder.join(name));
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
    std::fs::rename(aside, place)?;
    place.parent().map_or(Ok(()), forget_oldest)
}

/// Other versions' objects are not asked for again.
fn forget_oldest(folder: &Path) -> std::io::Result<()> {
    let mut objects = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        objects.push((entry.metadata()?.modified()?, entry.path()));
    }
    objects.sort_by(|a, b| b.cmp(a));
    objects.iter().skip(CACHED_OBJECTS_MAX).try_for_each(|(_, path)| std::fs::remove_file(path))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_that_ships_objects_names_them_as_they_are_looked_for() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gpu/compile.py");
        let arguments = ["--names", "--arch", "sm_90", "--packings", "0x7f"];
        let said = std::process::Command::new("python3").arg(script).args(arguments).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let mut ours: Vec<_> = FILES.iter().map(|(f, s)| object_name(f, s, "sm_90", 0x7f)).collect();
        ours.sort();
        let mut theirs: Vec<_> = String::from_utf8(said.stdout).unwrap().lines().map(str::to_owned).collect();
        theirs.sort();
        assert_eq!(theirs, ours);
    }

    #[test]
    fn the_cache_keeps_the_newest() {
        let dir = std::env::temp_dir().join(format!("chimere-cached-{}", std::process::id()));
        for n in 0..CACHED_OBJECTS_MAX + 3 {
            keep(&dir.join(format!("{n:04}")), b"code").unwrap();
        }
        let kept = std::fs::read_dir(&dir).unwrap().count();
        assert!(kept == CACHED_OBJECTS_MAX && dir.join(format!("{:04}", CACHED_OBJECTS_MAX + 2)).exists(), "{kept}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_nearest_shipped_object_is_taken() {
        let dir = std::env::temp_dir().join(format!("chimere-shipped-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (file, source) in FILES {
            for (arch, packings) in [("sm_80", 0x7f), ("sm_80", 0x7ffff), ("sm_86", 0x7ffff), ("sm_90", 0x7f)] {
                let text = format!("{file} {arch} {packings:x}");
                std::fs::write(dir.join(object_name(file, source, arch, packings)), text).unwrap();
            }
            std::fs::write(dir.join(format!("{}.sm_89.1ff.0000000000000000.cubin", stem(file))), "old").unwrap();
        }
        let first =
            |card, packings| shipped(&dir, card, packings).map(|o| String::from_utf8(o.code[0].clone()).unwrap());
        assert_eq!(first((8, 0), 0x67).as_deref(), Some("embed.cu sm_80 7f"));
        assert_eq!(first((8, 0), 0x87).as_deref(), Some("embed.cu sm_80 7ffff"));
        assert_eq!(first((8, 9), 0x07).as_deref(), Some("embed.cu sm_86 7ffff"));
        assert_eq!(first((9, 0), 0x07).as_deref(), Some("embed.cu sm_90 7f"));
        assert_eq!(first((9, 0), 0x80), None);
        assert_eq!(first((12, 0), 0x07), None);
        assert_eq!(shipped_architectures(&dir), [80, 86, 90]);
        assert!(shipped_architectures(Path::new("/nonexistent")).is_empty());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
