//! What root's commands write into the state of another user's daemon belongs to that user.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use anyhow::Context;
use chimere::config::Config;
use chimere::store::files::create_private_dir;
use chimere_ffi::limits::{become_user, user};

use super::exit::{EX_NOPERM, coded, note};

const ROOT: u32 = 0;

/// Before the state is written: root becomes whose the state is, for good. What root alone may read is opened before.
pub fn become_owner(config: &Config) -> anyhow::Result<()> {
    if user() != ROOT {
        return Ok(());
    }
    let folder = &config.state_dir;
    make_for_unit(config)?;
    let Some((owner, group)) = owner(config).with_context(|| folder.display().to_string())? else { return Ok(()) };
    become_user(owner, group).with_context(|| format!("cannot act as user {owner}"))?;
    let service = if config.unit.is_some() { ", the installed service's (--state-dir names another)" } else { "" };
    note!("works as user {owner} on {}{service}", folder.display());
    for path in of_root(folder) {
        let (path, folder) = (path.display(), folder.display());
        note!("{path} belongs to root, and the daemon cannot read it: chown --reference={folder} {path}");
    }
    Ok(())
}

/// Root's own daemon beside the unit's would leave files that the unit's cannot read.
pub fn refuse_daemon_of_root(config: &Config) -> anyhow::Result<()> {
    let folder = config.state_dir.display();
    if config.unit.is_none() || user() != ROOT || owner(config)?.is_none() {
        return Ok(());
    }
    let message =
        "is the state of the installed service: start that (`systemctl start chimere`), or name another folder";
    Err(coded(EX_NOPERM, format!("{folder} {message} with --state-dir")))
}

/// The state folder of a unit that was never started, as systemd would make it.
fn make_for_unit(config: &Config) -> anyhow::Result<()> {
    let folder = &config.state_dir;
    let Some(unit) = config.unit.as_ref().filter(|_| !folder.exists()) else { return Ok(()) };
    let none = || {
        format!(
            "the unit's user `{}` has no account yet: start the service first (systemd-sysusers or `DynamicUser=` makes it)",
            unit.user
        )
    };
    let (owner, group) = unit.account().with_context(none)?;
    create_private_dir(folder).with_context(|| folder.display().to_string())?;
    chown(folder, Some(owner), Some(group)).with_context(|| folder.display().to_string())
}

/// User and group whose the state is, where that is not root. A daemon of root's in a folder of somebody else has left
/// its lock there, and goes on as root.
fn owner(config: &Config) -> io::Result<Option<(u32, u32)>> {
    let folder = match fs::metadata(&config.state_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && config.unit.is_some() => {
            return Ok(config.unit.as_ref().and_then(|unit| unit.account()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let lock = fs::symlink_metadata(config.state_dir.join("daemon.lock"));
    let whose = lock.ok().filter(|_| config.unit.is_none()).unwrap_or(folder);
    Ok(Some((whose.uid(), whose.gid())).filter(|(owner, _)| *owner != ROOT))
}

/// What lies in the folder and is root's.
fn of_root(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter(|entry| entry.metadata().is_ok_and(|entry| entry.uid() == ROOT)).map(|entry| entry.path()).collect()
}
