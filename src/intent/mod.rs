//! Intent: which route a request takes. The rules of a route (words, phrases, file types) stand in its pipeline file,
//! `pipelines/*.yaml`. The time is linear in the text.
//!
//! - `fold`: text without case and accents.
//! - `cascade`: evidence for each route, and the choice.
//! - `vote`: the model asked where the rules are unsure.

mod cascade;
mod fold;
pub mod vote;

pub use cascade::{Cascade, CascadeError, Choice, PIECE, Reading, Rules, Score, TEXT_BYTES_MAX, check_word};
