//! Everything that computes: the model's engine, its tables, its training, its files. Nothing here knows of HTTP,
//! actors, a store or the time of day. So an engine is a function of its frames, and a training a function of its
//! pairs.
//!
//! - [`engine`]: tokens in, tokens out; runs in a process of its own.
//! - [`engram`]: n-grams of verified texts that are mixed into what the model says.
//! - [`fair`]: who comes next where several keys want the same places.
//! - [`gguf`]: reading and writing of model files; `quantize` rewrites them with smaller types.
//! - [`schema`]: what a JSON Schema says of a value's kind; [`toolcall`]: calls out of the text of a reply.
//! - [`plural`]: "1 reply", "2 replies"; [`program`]: this program, as what its children are.
//! - [`training`]: pairs in, adapter out.
//! - [`turn`]: the records that travel between the parts; [`whole`]: numbers in them that 64 bits do not hold.

#![forbid(unsafe_code)]

pub mod engine;
pub mod engram;
pub mod fair;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod gguf;
pub mod plural;
pub mod program;
#[cfg(feature = "llama")]
pub mod quantize;
pub mod schema;
pub mod toolcall;
pub mod training;
pub mod turn;
pub mod whole;

/// Root of the source tree, where the fixtures of the tests are.
#[cfg(test)]
fn installation() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
