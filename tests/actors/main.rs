//! The actors with a scripted engine in place of a real one: restarts, back-pressure, leases, and one Turn on
//! every path of a reply.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod change;
mod embedder;
mod fake;
mod hostile;
mod inference;
mod learn;
mod memory;
mod night;
mod night_stage;
mod optimise;
mod orchestrator;
mod quality;
mod reply;
mod scorer;
mod serving;
mod shelf;
mod stage;
mod steps;
mod supervisor;
mod tools;
mod weigh;
