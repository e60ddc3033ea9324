//! Pipelines: data that shapes the answer of a route. `file` is one YAML file and its checks, `set` all of
//! them with the overlay and the cascade, `plan` makes a request's plan from a pipeline and what the client
//! asked for, `watch` tells when files change, `yaml` reads such a file within bounds.

mod file;
mod plan;
mod set;
mod watch;
pub mod yaml;

pub use file::{Gated, Pipeline, PipelineError, Provenance};
pub use plan::{Wishes, plain_plan, plan};
pub use set::{DEFAULT_ROUTE, PipelineSet, Source, Sources};
pub use watch::Watch;
