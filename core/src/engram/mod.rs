//! Engram: n-grams of texts that were verified, mixed into the model's own distribution while it answers.
//!
//! Tier 0 ([`filter`]) says in nanoseconds that a context is unknown. Tier 1 ([`table`]) holds what followed the known
//! ones, and [`blend`] makes one distribution of it. Its weight depends on how [`familiar`] the text so far is to the
//! tables. Tables are files ([`format`](mod@format)) that are written once ([`draft`], [`count`], [`learned`]) and
//! never changed. [`dynamic`] is the table of one request. The mixing itself is the engine's (`engine::sampler`), which
//! alone maps files; which tables are trusted is the daemon's affair.

pub mod blend;
pub mod count;
pub mod draft;
pub mod dynamic;
pub mod familiar;
pub mod file;
pub mod filter;
#[cfg(test)]
mod fixtures;
pub mod format;
pub mod key;
pub mod learned;
mod place;
pub mod table;
#[cfg(test)]
mod tests;

pub use blend::{Lookups, Proposal, propose};
pub use draft::{Change, Draft};
pub use dynamic::Dynamic;
pub use familiar::Familiar;
pub use format::{EngramError, Entry, Meta, Source};
pub use table::{Bytes, Table, View};

/// Tables served at once.
pub const TABLES_MAX: usize = 64;
