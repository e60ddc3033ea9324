//! Speed of a backend: prefill and decode rates by batch. Beside them stand the bytes that each token costs, and the
//! share of the memory bandwidth measured in the same run. Two backends on the same file are measured in turn, round
//! by round, so that a machine whose speed drifts hurts both alike.

mod bandwidth;
mod measure;
mod report;

pub use bandwidth::read_bandwidth;
pub use measure::{Case, Interval, Lane, Rates, run};
pub use report::{Report, Row};
