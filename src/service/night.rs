//! What the daemon may be told to do at night.

use std::path::PathBuf;

use crate::night::phase::Job;

/// A command for the night.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NightCommand {
    /// Begins a run at once, whatever the hour.
    RunNow {
        job: Job,
        /// An adapter file on the daemon's machine, in place of training.
        candidate: Option<PathBuf>,
        /// Work and report, put nothing into use.
        dry_run: bool,
    },
    Status,
    /// The report of a run; of the last one where none is named.
    Report {
        run: Option<String>,
    },
    /// No scheduled job begins; a run under way ends before it promotes.
    Pause,
    Resume,
    /// Takes away the file that the prompt optimisation wrote for a route.
    ResetPipeline {
        route: String,
    },
    /// Back to a generation; to the one before where none is named.
    Rollback {
        generation: Option<u64>,
    },
}
