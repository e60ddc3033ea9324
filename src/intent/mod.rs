//! Which route a request takes. Linear in the text: one pass of an automaton over all words of all routes, and
//! one over file names. The routes themselves come from the pipeline files.

mod cascade;

pub use cascade::{Cascade, CascadeError, Choice, Rules, TEXT_BYTES_MAX};
