//! The table that a benchmark prints, as text and as JSON.

use std::fmt;

use serde::Serialize;

/// One line: a case on a backend.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub case: String,
    pub backend: String,
    /// Median over the rounds, tokens per second over all sequences.
    pub tokens_per_s: f64,
    pub slowest: f64,
    pub fastest: f64,
    /// Median over the rounds of this lane's rate to the last lane's rate of the same round.
    pub ratio_to_peer: Option<f64>,
    /// Decode at one sequence: bytes moved per second, as a share of the measured read bandwidth.
    pub bandwidth_share: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub model_bytes: u64,
    pub threads: usize,
    pub rounds: usize,
    /// Backend name and what it says of its device and instruction set.
    pub devices: Vec<(String, String)>,
    pub bytes_per_token: u64,
    /// Measured over a buffer of `bytes_per_token`, bytes per second.
    pub bandwidth_bytes_per_s: f64,
    pub rows: Vec<Row>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "model      {} ({:.1} MB), {} threads, {} rounds in turn",
            self.model,
            self.model_bytes as f64 / 1e6,
            self.threads,
            self.rounds
        )?;
        for (name, device) in &self.devices {
            writeln!(f, "{name:<10} {device}")?;
        }
        writeln!(
            f,
            "reads      {:.2} MB a token; {:.1} GB/s measured over a buffer of that size",
            self.bytes_per_token as f64 / 1e6,
            self.bandwidth_bytes_per_s / 1e9
        )?;
        writeln!(
            f,
            "\n{:<28} {:<8} {:>10} {:>19} {:>8} {:>10}",
            "case", "backend", "tokens/s", "slowest…fastest", "ratio", "bandwidth"
        )?;
        for row in &self.rows {
            let optional = |value: Option<f64>, text: fn(f64) -> String| value.map(text).unwrap_or_default();
            writeln!(
                f,
                "{:<28} {:<8} {:>10.1} {:>9.1}…{:<9.1} {:>8} {:>10}",
                row.case,
                row.backend,
                row.tokens_per_s,
                row.slowest,
                row.fastest,
                optional(row.ratio_to_peer, |r| format!("{r:.2}×")),
                optional(row.bandwidth_share, |s| format!("{:.0} %", s * 100.0)),
            )?;
        }
        Ok(())
    }
}
