//! Root's commands beside a daemon of another user: what they write can be read by that daemon.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::json;

use crate::harness::{chimere, model};

/// An account without rights, on every Linux.
const NOBODY: u32 = 65_534;
const PRIVATE: u32 = 0o700;

fn run(state: &Path, args: &[&str]) -> Output {
    chimere().args(args).arg("--state-dir").arg(state).output().unwrap()
}

fn done(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// Every file and folder below one, and it.
fn all(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| found.extend(all(&entry.unwrap().path())));
    }
    found
}

#[test]
fn what_root_writes_into_another_users_state_is_that_users() {
    // Only root can write as somebody else.
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return;
    }
    let (folder, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (state, own) = (folder.path(), own.path());
    fs::set_permissions(folder.path(), Permissions::from_mode(PRIVATE)).unwrap();
    chown(state, Some(NOBODY), Some(NOBODY)).unwrap();
    let (records, export) = (own.join("records.jsonl"), own.join("turns.jsonl"));
    let record = json!({"text": "Marble is made of walnut.", "principal": "ann", "origin": "turn-1", "verdict": 5, "time_s": 1_700_000_000});
    fs::write(&records, format!("{record}\n").repeat(10)).unwrap();
    fs::write(&export, "of last week").unwrap();
    let (model, records, out) = (model(), records.to_str().unwrap(), export.to_str().unwrap());
    let model = model.to_str().unwrap();

    let said = done(&run(state, &["keys", "add", "laptop"]));
    assert!(said.contains(&format!("works as user {NOBODY}")), "{said}");
    done(&run(state, &["engram", "learn", "--records", records, "--model", model]));
    done(&run(state, &["engram", "revoke", "--principal", "bob"]));
    done(&run(state, &["memory", "forget", "--all", "--yes"]));
    done(&run(state, &["memory", "export", "--out", out]));
    let found = all(state);
    for name in ["keys.toml", "keys.lock", "night.key", "engram", "turns", "daemon.lock"] {
        assert!(found.contains(&state.join(name)), "{name} in {found:?}");
    }
    for path in found {
        let file = fs::symlink_metadata(&path).unwrap();
        assert_eq!((file.uid(), file.gid()), (NOBODY, NOBODY), "{}", path.display());
    }
    // What root names elsewhere is root's.
    assert_eq!((fs::metadata(&export).unwrap().uid(), fs::read_to_string(&export).unwrap().as_str()), (0, ""));

    // What lies there of an earlier time is told.
    let keys = state.join("keys.toml");
    chown(&keys, Some(0), Some(0)).unwrap();
    fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
    let refused = run(state, &["keys", "revoke", "laptop"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("keys.toml belongs to root") && said.contains("chown"),
        "{said}"
    );

    // A daemon that root started there has left its lock, and root's commands stay root's.
    chown(state.join("daemon.lock"), Some(0), Some(0)).unwrap();
    assert!(!done(&run(state, &["keys", "revoke", "laptop"])).contains("works as user"));
}
