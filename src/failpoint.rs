//! Named points between two durable steps, where a test can stop the process or break the disk. Nothing
//! happens at them unless the hidden flag `--failpoint` names one.

use std::io;

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

/// What happens at one point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failpoint(Option<(String, Break)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// The thread stands still for good, and the log says so: whoever waits for that line kills the process.
    Park,
    /// The step fails as if the disk were full.
    Fail,
}

impl Failpoint {
    /// `NAME` parks there, `NAME=full` fails there.
    pub fn parse(text: &str) -> Failpoint {
        Failpoint(Some(match text.strip_suffix("=full") {
            Some(name) => (name.to_owned(), Break::Fail),
            None => (text.to_owned(), Break::Park),
        }))
    }

    /// Passes the point `name`.
    pub fn pass(&self, name: &str) -> io::Result<()> {
        match &self.0 {
            Some((named, then)) if named == name => match then {
                Break::Fail => Err(io::Error::from(io::ErrorKind::StorageFull)),
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
    }
}
