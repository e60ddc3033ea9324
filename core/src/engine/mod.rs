//! Tokens in, tokens out: one model hosted by one process with one step loop. This part of the tree knows
//! no HTTP, no actors, no store and no wall clock; its public interface is `protocol`.

pub mod adapter;
mod apart;
pub mod backend;
pub mod batch;
mod channels;
pub mod control;
pub mod cpu;
pub mod cuda;
pub mod defaults;
pub mod embedder;
mod evaluate;
pub mod gradient;
pub mod grammar;
pub mod host;
#[cfg(test)]
mod host_tests;
pub mod learns;
#[cfg(feature = "llama")]
pub mod llama;
pub mod load;
pub mod machine;
pub mod model;
mod pending;
pub mod prefix;
#[cfg(test)]
mod prefix_tests;
pub mod prepare;
mod probe;
pub mod process;
pub mod prompt;
pub mod protocol;
mod revisions;
pub mod sampler;
pub mod slot;
pub mod tables;
pub mod template;
mod text_side;
pub mod thought;
pub mod tokenizer;
pub mod tool_prompt;
mod tool_schema;
pub mod validate;
pub mod vocab;
