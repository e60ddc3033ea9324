//! The modules under measurement, compiled in directly, so that the benchmarks build quickly.

pub mod cpu;

#[path = "../../src/embed"]
pub mod embed {
    pub mod nearest;
}

#[path = "../../core/src/engram"]
pub mod engram {
    pub mod draft;
    pub mod filter;
    pub mod format;
    pub mod key;
    mod place;
    pub mod table;
}
