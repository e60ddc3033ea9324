//! Evaluation of a hosted model: exact logits for comparison with references, perplexity of a text, exams.

pub mod agree;
pub mod check;
mod decimal;
pub mod documents;
pub mod gain;
pub mod golden;
pub mod lessons;
pub mod logits;
pub mod perplexity;
pub mod quality;
pub mod retrieval;
pub mod routing;
pub mod scorer;
pub mod tools;
