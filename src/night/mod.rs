//! The night as plain modules: what a run does next (`phase`), what may be learned from (`admission`, `likeness`,
//! `dataset`, `library`), what the owner should look at (`suspicion`, `cluster`), what a revision
//! answered (`answers`), what learning is told and leaves (`learning`), whether a candidate may serve (`gate`, `stats`,
//! `inspect`), how it comes in slowly (`canary`), what is kept on disk (`generation`, `manifest`, `record`),
//! when a job is due (`schedule`) and what the owner reads in the morning (`report`, `page`). No actor, no
//! socket, no clock: time and measurements are given.

pub mod admission;
pub mod answers;
pub mod canary;
pub mod cluster;
pub mod dataset;
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
