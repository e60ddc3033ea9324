//! The night as plain modules. No actor, no socket, no clock: time and measurements are given.
//!
//! - `phase`: the state machine of a run; `schedule`: when a job is due.
//! - `admission`, `likeness`, `dataset`, `library`: what may be learned from.
//! - `suspicion`, `cluster`: what the owner should look at.
//! - `learning`: the settings of learning and the files that it leaves; `answers`: answers to the exams, kept by revision.
//! - `gate`, `stats`, `inspect`: whether a candidate may serve; `canary`: how it comes in slowly.
//! - `generation`, `manifest`, `record`, `pointer`, `served`: what is kept on disk, and which generation answers.
//! - `report`, `page`: what the owner reads in the morning.

pub mod admission;
pub mod answers;
pub mod canary;
pub mod cluster;
pub mod dataset;
pub mod forget;
pub mod gate;
pub mod generation;
pub mod inspect;
pub mod learning;
pub mod library;
pub mod likeness;
pub mod manifest;
pub mod page;
pub mod phase;
mod pointer;
pub mod record;
pub mod report;
pub mod schedule;
pub mod served;
pub mod stats;
pub mod suspicion;
