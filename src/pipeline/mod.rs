//! Pipelines: data that shapes the answers of a route.
//!
//! - `file`: one YAML file and its checks; `yaml` reads it within bounds.
//! - `set`: all of them, with the overlay and the cascade.
//! - `plan`: makes a request's plan from a pipeline and the client's parameters.
//! - `watch`: tells when files change.

mod file;
mod plan;
mod set;
mod watch;
pub mod yaml;

pub use file::{Gated, Pipeline, PipelineError, Provenance};
pub use plan::{TABLES_MAX, Wishes, plain_plan, plan};
pub use set::{DEFAULT_ROUTE, PipelineSet, Source, Sources};
pub use watch::Watch;
