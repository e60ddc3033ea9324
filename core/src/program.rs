//! This very program, for children of it. An update may have replaced or removed the file that it was started from. Its
//! children must be the same program, because they speak with it.

use std::io;
use std::path::{Path, PathBuf};

/// Where Linux keeps the program of each process, whatever became of its file.
const OWN: &str = "/proc/self/exe";
/// Name of this process; of one that was started through `OWN` it is `exe`.
const NAME: &str = "/proc/self/comm";

/// What to start as a child: it is this program also after an update.
pub fn own() -> io::Result<PathBuf> {
    if Path::new(OWN).exists() { Ok(OWN.into()) } else { std::env::current_exe() }
}

/// Gives a process that was started as a child of its own program the program's name, by which people find it.
pub fn name_process(name: &str) {
    if std::fs::read_to_string(NAME).is_ok_and(|shown| shown.trim_end() == "exe") {
        // Without a name it works as well.
        let _ = std::fs::write(NAME, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_is_the_same_program_after_its_file_was_replaced() {
        let file = std::env::current_exe().unwrap();
        if file.file_name().unwrap() != "copy" {
            // A copy of this test is started, and takes its own file away.
            let dir = tempfile::tempdir().unwrap();
            let copy = dir.path().join("copy");
            // By a process of its own: a child of another test that is forked meanwhile would hold the copy open for writing.
            assert!(Command::new("cp").args([&file, &copy]).status().unwrap().success());
            let test = "program::tests::a_child_is_the_same_program_after_its_file_was_replaced";
            return assert!(Command::new(&copy).args(["--exact", test]).status().unwrap().success());
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "#!/bin/sh\nexit 9\n").unwrap();
        let child = Command::new(own().unwrap()).arg("--list").output().unwrap();
        assert!(child.status.success() && String::from_utf8_lossy(&child.stdout).contains("program::tests"));
    }
}
