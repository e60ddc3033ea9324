//! The modules under measurement, compiled in directly, so that the benchmarks build quickly.

#[path = "../../core/src/engram"]
pub mod engram {
    pub mod draft;
    pub mod filter;
    pub mod format;
    pub mod key;
    pub mod table;
}
