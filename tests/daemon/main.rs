//! End to end: the real binary, a real socket, the model of the repository. Each test has a daemon and a state
//! directory of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;
#[path = "../http/lint.rs"]
mod lint;

mod agents;
mod bench;
#[cfg(feature = "llama")]
mod by_library;
mod by_the_clock;
mod card;
#[path = "../gguf_malformed/cases.rs"]
mod cases;
mod catastrophes;
mod chat;
mod cli;
mod completions;
mod damaged_log;
mod documents;
mod documents_apart;
mod dressed;
#[cfg(feature = "llama")]
mod embedder;
mod engram;
mod fair;
mod families;
mod folders;
mod form;
mod frames;
mod full_disk;
mod hostile;
#[allow(dead_code)]
mod internet;
mod job_kills;
#[cfg(feature = "llama")]
mod judge;
mod kill_daemon;
mod kill_engine;
mod leaks;
mod learn;
mod learn_kills;
mod lessons;
#[cfg(feature = "llama")]
#[allow(dead_code)]
#[path = "../llama/models.rs"]
mod library;
mod listers;
mod messages;
mod model;
mod models;
mod night;
mod optimise;
mod owner;
mod parameters;
mod pause;
mod people;
mod pipelines;
mod poison;
mod prefixes;
mod quality;
#[allow(dead_code)]
#[path = "../gguf_malformed/raw.rs"]
mod raw;
mod reload;
mod reloads;
mod repl;
mod resident;
mod retrieval;
mod root;
#[allow(dead_code)]
#[path = "../../src/documents/samples.rs"]
mod samples;
mod scorer;
mod sessions;
mod simulate;
mod soak;
mod state_folder;
mod storm;
mod stranger;
mod swaps;
mod tables;
mod tools;
mod trace;
mod train;
mod upgrade;
mod web;
mod weigh;
