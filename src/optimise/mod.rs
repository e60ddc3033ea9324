//! Prompt optimisation as MIPROv2 does it (Opsahl-Ong et al., "Optimizing instructions and demonstrations for multi-stage
//! language model programs", 2024). Demonstrations are bootstrapped from verified answers. Instructions come from the
//! model and from a small stock. A Bayesian search over pairs of the two asks small parts of the exam.
//!
//! Plain functions of texts and numbers: the Scheduler asks the model and lets a winner in.

pub mod demonstrate;
pub mod instruct;
pub mod overlay;
pub mod paper;
pub mod random;
pub mod settings;
pub mod tpe;

pub use demonstrate::Demonstration;
pub use settings::Settings;
