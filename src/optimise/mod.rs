//! Prompt optimisation as MIPROv2 does it (Opsahl-Ong et al., "Optimizing instructions and demonstrations for multi-stage
//! language model programs", 2024): demonstrations are bootstrapped from answers that were verified, instructions are
//! proposed by the model and taken from a small stock, and a Bayesian search over pairs of the two asks small parts of
//! the exam. Plain functions of texts and numbers: who asks the model, and who lets a winner in, is somebody else's
//! business.

pub mod demonstrate;
pub mod instruct;
pub mod overlay;
pub mod paper;
pub mod random;
pub mod settings;
pub mod tpe;

pub use demonstrate::Demonstration;
pub use settings::Settings;
