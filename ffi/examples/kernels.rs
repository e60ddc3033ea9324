//! Speed of the CPU kernels, type by type: `cargo run --release -p chimere-ffi --example kernels [one] [TYPE…]`.
//!
//! Prints nanoseconds a matrix row and GB/s of packed weights at one activation row, and billions of
//! multiply-adds a second at 8 and 64 rows. It does so for weights that fit the cache, for weights that do not,
//! and for ggml's `vec_dot` as built into this binary. Best of several runs: other load on the machine only ever
//! slows a run down. With `one` as first argument: one thread, and its processor time instead of the time that
//! passes, for a busy machine.

use std::error::Error;
use std::hint::black_box;
use std::time::Duration;

use chimere_ffi::cpu::*;
use chimere_ffi::{DType, KvType};

const COLS: usize = 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    let one = wanted.first().is_some_and(|w| w == "one");
    if one {
        wanted.remove(0);
    }
    let threads = if one { 1 } else { std::thread::available_parallelism()?.get().min(2) };
    CPU_TIME.store(one, std::sync::atomic::Ordering::Relaxed);
    println!("instruction set {:?}, {threads} threads, rows of {COLS} values", isa::best());
    stages(threads)?;
    println!("read bandwidth over 512 MB: {:.1} GB/s", read_bandwidth(threads, 512 << 20)?);
    println!(
        "{:8} {:>9} | {:>16} | {:>16} | {:>8} {:>8} | ggml vec_dot 1 thread",
        "type", "bits", "cache ns   GB/s", "memory ns   GB/s", "T=8 G/s", "T=64 G/s"
    );
    for dtype in DType::ALL {
        if wanted.is_empty() || wanted.contains(&dtype.name()) {
            row(dtype, threads)?;
        }
    }
    Ok(())
}

/// Whether to count the processor time of this thread instead of the time that passes.
static CPU_TIME: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fn now() -> Duration {
    let clock = if CPU_TIME.load(std::sync::atomic::Ordering::Relaxed) {
        libc::CLOCK_THREAD_CPUTIME_ID
    } else {
        libc::CLOCK_MONOTONIC
    };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on Linux, and `t` is a valid place for the answer.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn row(dtype: DType, threads: usize) -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(threads)?;
    let small = 512;
    let bytes = random_blocks(dtype, small * COLS);
    let m = Matrix::pack(dtype, small, COLS, &bytes)?;
    let big_rows = (256 << 20) / (m.bytes() / small);
    let big = Matrix::pack_on(
        &pool,
        dtype,
        big_rows,
        COLS,
        &bytes.repeat(big_rows.div_ceil(small))[..big_rows * bytes.len() / small],
    )?;
    let mid_rows = (12 << 20) / (m.bytes() / small);
    let mid = Matrix::pack_on(
        &pool,
        dtype,
        mid_rows,
        COLS,
        &bytes.repeat(mid_rows.div_ceil(small))[..mid_rows * bytes.len() / small],
    )?;
    let third = time(&pool, &mid, 1, 50)?;
    let (cache, memory) = (time(&pool, &m, 1, 200)?, time(&pool, &big, 1, 8)?);
    print!("{:7.1} {:8.1} | ", third / mid_rows as f64 * 1e9, mid.bytes() as f64 / third / 1e9);
    let macs = |t: usize, s: f64| (small * COLS * t) as f64 / s / 1e9;
    let (t8, t64) = (time(&pool, &m, 8, 40)?, time(&pool, &m, 64, 20)?);
    let bits = m.bytes() as f64 * 8.0 / (small * COLS) as f64;
    print!("{:8} {bits:9.3} | ", dtype.name());
    print!("{:7.1} {:8.1} | ", cache / small as f64 * 1e9, m.bytes() as f64 / cache / 1e9);
    print!("{:7.1} {:8.1} | ", memory / big_rows as f64 * 1e9, big.bytes() as f64 / memory / 1e9);
    print!("{:8.0} {:8.0} | ", macs(8, t8), macs(64, t64));
    println!("{}", ggml(dtype, &bytes).unwrap_or_default());
    Ok(())
}

/// Seconds of one product with `t` rows: the best of `runs`.
fn time(pool: &Pool, m: &Matrix, t: usize, runs: usize) -> Result<f64, Box<dyn Error>> {
    let x: Vec<f32> = (0..t * COLS).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let mut act = Act::new(COLS);
    act.load(pool, &x, Forms::of(&[m]));
    let mut out = vec![0.0; t * m.rows()];
    let mut best = f64::MAX;
    for _ in 0..runs {
        let start = now();
        matmul(pool, &act, &mut [Product { weight: m, out: &mut out, add: false }]);
        best = best.min((now() - start).as_secs_f64());
        black_box(&out);
    }
    Ok(best)
}

/// Bytes of `values` random weights with scales of ordinary size.
fn random_blocks(dtype: DType, values: usize) -> Vec<u8> {
    let mut state = 1u64;
    let len = values / dtype.block_len() * dtype.block_bytes();
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    // Numbers near 1: denormal operands would slow every product down.
    match dtype {
        DType::F32 => bytes.chunks_mut(4).for_each(|b| b[2..].copy_from_slice(&[0x80, 0x3f])),
        DType::BF16 => bytes.chunks_mut(2).for_each(|b| b[1] = 0x3f),
        DType::MXFP4 => bytes.chunks_mut(17).for_each(|b| b[0] = 120),
        _ => {}
    }
    // Clear the top exponent bits of every half so that no scale is infinite; speed is not affected.
    if dtype.block_len() > 1 {
        for block in bytes.chunks_mut(dtype.block_bytes()) {
            let n = block.len();
            for at in [1, 3, n - 1, n - 3] {
                block[at] &= 0x3f;
            }
        }
    }
    bytes
}

/// GB/s of reading `bytes` once with all threads, the best of eight.
fn read_bandwidth(threads: usize, bytes: usize) -> Result<f64, Box<dyn Error>> {
    let pool = Pool::new(threads)?;
    let data = vec![1u64; bytes / 8];
    let piece = 1 << 17;
    let mut best = f64::MAX;
    for _ in 0..8 {
        let start = now();
        pool.run(data.len() / piece, |i, _| {
            let sum = data[i * piece..(i + 1) * piece].iter().fold(0, |a: u64, b| a.wrapping_add(*b));
            black_box(sum);
        });
        best = best.min((now() - start).as_secs_f64());
    }
    Ok(bytes as f64 / best / 1e9)
}

/// Nanoseconds of the operations between the products, at the shapes of the nano model.
fn stages(threads: usize) -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(threads)?;
    println!("an empty dispatch: {:.0} ns", best(2000, || pool.run(threads, |_, _| {})));
    let x: Vec<f32> = (0..512 * 512).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let mut act = Act::new(512);
    let forms = Forms::of(&[&Matrix::pack(DType::Q4_K, 1, 256, &[0; 144])?]);
    println!("norm and quantise 512: {:.0} ns", best(2000, || act.rms_norm(&pool, &x[..512], &x[..512], 1e-6, forms)));
    let mut h = vec![0.0; 512];
    println!("silu·mul 512: {:.0} ns", best(2000, || silu_mul(&x[..512], &x[512..1024], &mut h)));
    let shape = GdnShape { key_heads: 2, value_heads: 4, head_dim: 128 };
    let channels = shape.channels();
    let layer = Gdn::new(shape, &vec![0.1; 4 * channels], &[-0.1; 4], &[0.0; 4], &[1.0; 128], 1e-6)?;
    let qkv: Vec<f32> = x.iter().cycle().take(512 * channels).copied().collect();
    let (mut state, mut scratch, mut out) = (GdnState::new(shape), GdnScratch::new(), vec![0.0; 512 * 512]);
    let rows = GdnRows { qkv: &qkv, z: &x, alpha: &x[..2048], beta: &x[..2048] };
    for (len, runs) in [(1, 1000), (64, 50), (512, 10)] {
        let ns = best(runs, || {
            gdn(&pool, &layer, rows, &mut [GdnSpan { start: 0, len, state: &mut state }], &mut out, &mut scratch);
        });
        println!("GDN, 4 heads, {len} rows: {:.0} ns a row", ns / len as f64);
    }
    for kind in [KvType::F32, KvType::F16] {
        let shape = AttentionShape { heads: 4, kv_heads: 1, head_dim: 128, scale: 0.088 };
        let mut blocks = vec![KvBlock::new(1, 128, kind); 16];
        blocks.iter_mut().for_each(|b| (0..64).for_each(|i| b.write(i, &x[i * 128..][..128], &x[i * 128..][..128])));
        for (position, len) in [(127, 1), (1023, 1), (512, 512)] {
            let span = AttentionSpan { start: 0, len, position, blocks: blocks.iter().collect() };
            let ns = best(100, || {
                attention(&pool, &shape, std::slice::from_ref(&span), &x[..len * 512], &mut out[..len * 512])
            });
            println!(
                "attention {kind:?}, 4 heads, {len} rows from position {position}: {:.0} ns a row",
                ns / len as f64
            );
        }
    }
    Ok(())
}

/// Nanoseconds of the fastest of `runs` calls.
fn best(runs: usize, mut call: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..runs {
        let start = now();
        call();
        best = best.min((now() - start).as_secs_f64());
    }
    best * 1e9
}

#[cfg(feature = "llama")]
fn ggml(dtype: DType, bytes: &[u8]) -> Option<String> {
    use llama_cpp_sys_2 as sys;
    let rows = bytes.len() / dtype.row_bytes(COLS)?;
    // SAFETY: the tables have an entry for each of these types; buffers have the sizes ggml asks for.
    unsafe {
        sys::ggml_cpu_init();
        let cpu = sys::ggml_get_type_traits_cpu(dtype as u32);
        let vec_dot = (*cpu).vec_dot?;
        let from_float = (*sys::ggml_get_type_traits_cpu((*cpu).vec_dot_type)).from_float;
        let x: Vec<f32> = (0..COLS).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
        let mut q = vec![0u8; COLS * 4 + 4096];
        match from_float {
            Some(f) => f(x.as_ptr(), q.as_mut_ptr().cast(), COLS as i64),
            None => std::ptr::copy_nonoverlapping(x.as_ptr().cast(), q.as_mut_ptr(), COLS * 4),
        }
        let mut best = f64::MAX;
        let stride = dtype.row_bytes(COLS)?;
        for _ in 0..50 {
            let start = now();
            for r in 0..rows {
                let mut out = 0f32;
                vec_dot(COLS as i32, &mut out, 0, bytes.as_ptr().add(r * stride).cast(), 0, q.as_ptr().cast(), 0, 1);
                black_box(out);
            }
            best = best.min((now() - start).as_secs_f64());
        }
        let ns = best / rows as f64 * 1e9;
        Some(format!("{ns:8.1} ns {:6.1} GB/s", stride as f64 / ns))
    }
}

#[cfg(not(feature = "llama"))]
fn ggml(_: DType, _: &[u8]) -> Option<String> {
    None
}
