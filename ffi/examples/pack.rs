//! Speed of packing weights for the device, on one thread: `cargo run --release -p chimere-ffi --example pack [TYPE…]`.
//!
//! Prints nanoseconds a weight, from memory that the second-level cache holds into memory that it holds, as loading does
//! it. Best of several runs: other load on the machine only ever slows a run down.

use std::hint::black_box;
use std::time::Instant;

use chimere_ffi::DType;
use chimere_ffi::cpu::isa;
use chimere_ffi::kernels::pack::Rows;
use chimere_ffi::samples::weights;

const ROWS: usize = 128;
const COLS: usize = 2048;
const RUNS: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("instructions: {:?}", isa::best());
    let all = DType::ALL.into_iter().map(|dtype| (dtype, format!("{dtype:?}")));
    for (dtype, name) in all.filter(|(_, name)| wanted.is_empty() || wanted.contains(name)) {
        let rows = Rows::of(dtype, COLS).ok_or("rows of whole blocks")?;
        let bytes = weights(dtype, ROWS * COLS, 3);
        let mut out = vec![0; ROWS.div_ceil(rows.tile_rows()) * rows.tile_bytes()];
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let began = Instant::now();
            rows.pack(black_box(&bytes), black_box(&mut out));
            best = best.min(began.elapsed().as_secs_f64());
        }
        println!("{name:8} {:6.3} ns a weight", best * 1e9 / (ROWS * COLS) as f64);
    }
    Ok(())
}
