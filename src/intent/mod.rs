//! Intent: which route a request takes. The rules of a route (words, phrases, file types) stand in its pipeline file,
//! `pipelines/*.yaml`. Where none speaks, what the text reads like decides. The time is linear in the text.
//!
//! - `fold`: text without case and accents.
//! - `cascade`: the rules: evidence for each route.
//! - `guess`: what a text reads like, learned from examples.
//! - `vote`: the model asked where both are unsure. Only `chimere eval routing --vote` does that; no request does.

mod cascade;
pub mod fold;
pub mod guess;
pub mod vote;

pub use cascade::{Cascade, CascadeError, Choice, Reading, Rules, Score, check_word, spoken};
pub use guess::{Guess, Likeness};
