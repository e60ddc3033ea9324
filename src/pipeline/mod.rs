//! Pipelines: data that shapes the answers of a route.
//!
//! - `file`: one YAML file and its checks; `yaml` reads it within bounds.
//! - `program`: the steps of a file and the most that they cost.
//! - `branch`: the step that goes on with one of two lists.
//! - `cost`: the most that a reply costs.
//! - `retrieve`: the step that looks for passages of documents.
//! - `tool_loop`: the step that calls built-in tools.
//! - `set`: all of them, with the overlay and the cascade.
//! - `plan`: makes a request's plan from a pipeline and the client's parameters.
//! - `watch`: tells when files change.

mod branch;
mod cost;
mod file;
mod plan;
mod program;
mod retrieve;
mod set;
mod tool_loop;
mod watch;
mod web;
pub mod yaml;

pub use cost::{Ceilings, Cost, cost};
pub use file::{FILE_BYTES_MAX, Pipeline, PipelineError, Provenance};
pub use plan::{TABLES_MAX, Wishes, plain_plan, plan};
pub use program::{HIDDEN_TOKENS_MAX, Program, ProgramStep, ProgramWork, STEPS_MAX, fill};
pub use retrieve::{PASSAGE_TOKENS_MAX, PASSAGES_OF_REPLY_MAX};
pub use set::{DEFAULT_ROUTE, PipelineSet, Routing, Source, Sources};
pub use watch::Watch;

/// The JSON Schema of a pipeline file, for editors.
pub const SCHEMA: &str = include_str!("schema.json");
