//! The night as plain modules: what a run does next (`phase`), whether a candidate may serve (`gate`, `stats`,
//! `inspect`), how it comes in slowly (`canary`), what is kept on disk (`generation`, `manifest`, `record`),
//! when a job is due (`schedule`) and what the owner reads in the morning (`report`, `page`). No actor, no
//! socket, no clock: time and measurements are given.

pub mod canary;
pub mod gate;
pub mod generation;
pub mod inspect;
pub mod manifest;
pub mod page;
pub mod phase;
pub mod record;
pub mod report;
pub mod schedule;
pub mod served;
pub mod stats;
