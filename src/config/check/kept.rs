//! What a household has told the daemon: whether there is room for more, and whether the files of lessons and documents can
//! be read. A running daemon says whether it keeps what it is told now. Nothing is written.

use std::path::Path;

use chimere_ffi::access::free_bytes;
use serde_json::Value;

use super::{Finding, Told, finding};
use crate::config::Config;
use crate::documents::Documents;
use crate::lessons::Lessons;
use crate::plural::counted;

/// Less free room than this is told as a fault: a night's papers, a generation and the turn log's next files need it.
const ROOM_BYTES_MIN: u64 = 256 << 20;

pub(super) fn look(config: &Config, told: Option<&Told>) -> Vec<Finding> {
    let mut findings = vec![
        finding("room", room(&config.state_dir)),
        finding("lessons", lessons(&config.state_dir)),
        finding("documents", documents(&config.state_dir)),
    ];
    let Some(told) = told else { return findings };
    findings.push(finding("turns", turns(told)));
    // Those that it has in use may be others than the files' by now.
    for (what, why) in [("lessons", lessons_of(told)), ("documents", documents_of(told))] {
        findings.extend(why.map(|why| finding(what, Err::<String, _>(format!("the daemon at {}: {why}", told.by)))));
    }
    findings
}

/// The room on the disk of the state folder.
fn room(state_dir: &Path) -> Result<String, String> {
    // It is made in the nearest folder that there is.
    let whole = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    let there = whole.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match free_bytes(there) {
        Ok(free) => enough(free, state_dir),
        Err(error) => Ok(format!("{}: how much is free is not known: {error}", there.display())),
    }
}

fn enough(free: u64, state_dir: &Path) -> Result<String, String> {
    let said = format!("{:.1} GB free on the disk of {}", free as f64 / 1e9, state_dir.display());
    let next = "no turn, lesson, document or generation is kept once it is full: make room, or move the folder";
    if free < ROOM_BYTES_MIN { Err(format!("{said}; {next}")) } else { Ok(said) }
}

fn lessons(state_dir: &Path) -> Result<String, String> {
    match Lessons::look(state_dir)? {
        0 => Ok("none yet".to_owned()),
        n => Ok(format!("{} can be read", counted(n, "lesson", "lessons"))),
    }
}

fn documents(state_dir: &Path) -> Result<String, String> {
    match Documents::look(state_dir)? {
        0 => Ok("none yet".to_owned()),
        n => Ok(format!("{} can be read", counted(n, "document", "documents"))),
    }
}

/// Whether a daemon that runs keeps its turns.
fn turns(told: &Told) -> Result<String, String> {
    let (log, by) = (&told.status["actors"]["memory"], &told.by);
    let message = log["message"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    match log["state"].as_str() {
        Some("writing") => {
            let kept = counted(log["turns"].as_u64().unwrap_or(0), "turn", "turns");
            Ok(format!("the daemon at {by} has kept {kept}{message}"))
        }
        Some("stopped") => Err(format!(
            "the daemon at {by} keeps no turn now{message}. Replies are answered and not remembered. It tries again by \
             itself; make room on its disk, or read its log"
        )),
        _ => Err(format!("the daemon at {by} does not say whether it keeps turns{message}: read its log")),
    }
}

fn lessons_of(told: &Told) -> Option<String> {
    told.status["lessons"]["message"].as_str().map(str::to_owned)
}

fn documents_of(told: &Told) -> Option<String> {
    told.status["documents"]["message"].as_str().map(str::to_owned)
}

/// What a daemon that runs says of its keys, where something is wrong with them.
pub(super) fn keys_of(told: &Told) -> Option<String> {
    let why = told.status["keys"]["message"].as_str()?;
    Some(format!("the daemon at {}: {why}", told.by))
}

impl Told {
    pub fn new(by: String, status: Value) -> Told {
        Told { by, status }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_disk_without_room_is_a_fault_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        assert!(enough(ROOM_BYTES_MIN, folder.path()).unwrap().contains("0.3 GB free on the disk of "));
        assert!(enough(ROOM_BYTES_MIN - 1, folder.path()).unwrap_err().contains("make room"));
        assert!(room(&folder.path().join("not/there/yet")).is_ok_and(|said| said.contains("GB free")));
    }

    #[test]
    fn what_a_daemon_says_of_its_turns_is_told() {
        let said = |memory: Value| turns(&Told::new("here".into(), json!({ "actors": { "memory": memory } })));
        assert_eq!(said(json!({ "state": "writing", "turns": 1 })).unwrap(), "the daemon at here has kept 1 turn");
        let stopped = said(json!({ "state": "stopped", "message": "no space" })).unwrap_err();
        assert!(stopped.starts_with("the daemon at here keeps no turn now: no space. Replies"), "{stopped}");
        assert!(said(json!({ "state": "down" })).unwrap_err().contains("does not say"));
    }
}
