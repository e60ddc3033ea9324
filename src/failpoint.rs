//! Named points between two durable steps, where a test can stop the process or break the disk. Nothing
//! happens at them unless the hidden flag `--failpoint` names one.

use std::io;
use std::time::Duration;

/// The points of a run that learns, before those of `JUDGING`.
pub const LEARNING: &[&str] =
    &["score.begun", "score.done", "select.begun", "select.done", "train.begun", "train.learned", "train.done"];
/// The points of a run whose candidate was made elsewhere.
pub const JUDGING: &[&str] = &[
    "record.save",
    "train.begun",
    "train.done",
    "gate.begun",
    "gate.done",
    "promote.begun",
    "promote.adapter",
    "promote.signed",
    "promote.renamed",
    "promote.loaded",
    "promote.pointed",
    "promote.done",
    "report.begun",
    "report.done",
];
/// The points of the jobs beside it, each before those of `report`: the engram tables, the prompts, the index.
pub const REINFORCING: &[&str] =
    &["reinforce.begun", "reinforce.read", "reinforce.made", "reinforce.published", "reinforce.done"];
pub const OPTIMISING: &[&str] = &["optimise.begun", "optimise.write", "optimise.written", "optimise.done"];
pub const INDEXING: &[&str] = &["reindex.begun", "reindex.made", "reindex.done"];

/// What happens at one point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failpoint(Option<(String, Break)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// The thread stands still for good, and the log says so: whoever waits for that line kills the process.
    Park,
    /// The step fails as if the disk were full.
    Fail,
    /// The thread stands still for `HOLD`: time to kill one of the daemon's children there.
    Hold,
    /// A fault of the program: the step panics.
    Panic,
}

const HOLD: Duration = Duration::from_millis(1_500);
/// The name that stands for every point.
const EVERY: &str = "every";

impl Failpoint {
    /// `NAME` parks there, `NAME=full` fails there, `NAME=hold` waits there a moment, `NAME=panic` panics;
    /// `every` is every point.
    pub fn parse(text: &str) -> Failpoint {
        Failpoint(Some(match text.split_once('=') {
            Some((name, "full")) => (name.to_owned(), Break::Fail),
            Some((name, "hold")) => (name.to_owned(), Break::Hold),
            Some((name, "panic")) => (name.to_owned(), Break::Panic),
            _ => (text.to_owned(), Break::Park),
        }))
    }

    /// Passes the point `name`.
    pub fn pass(&self, name: &str) -> io::Result<()> {
        match &self.0 {
            Some((named, then)) if named == name || named == EVERY => match then {
                Break::Fail => Err(io::Error::from(io::ErrorKind::StorageFull)),
                Break::Hold => {
                    tracing::warn!(name, "failpoint reached");
                    std::thread::sleep(HOLD);
                    Ok(())
                }
                // Only where somebody asked for it by name, in a test.
                #[allow(clippy::panic)]
                Break::Panic => std::panic::panic_any(format!("failpoint {name}")),
                Break::Park => loop {
                    tracing::warn!(name, "failpoint reached");
                    std::thread::park();
                },
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_point_breaks() {
        let failpoint = Failpoint::parse("gate.done=full");
        assert!(failpoint.pass("gate.begun").is_ok() && failpoint.pass("gate.done").is_err());
        assert!(Failpoint::default().pass("gate.done").is_ok());
        let began = std::time::Instant::now();
        assert!(Failpoint::parse("every=hold").pass("gate.done").is_ok() && began.elapsed() >= HOLD);
    }
}
