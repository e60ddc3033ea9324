//! Intent: which route a request takes. The rules (words, phrases, file types of a route) stand in the pipeline
//! files, `pipelines/*.yaml`. The time is linear in the text: one pass of an automaton over all words of all routes,
//! and one over file names.

mod cascade;

pub use cascade::{Cascade, CascadeError, Choice, Rules, TEXT_BYTES_MAX};
