//! The installed systemd unit. A command that root starts beside it works on the unit's state, not on one of root's own.

use std::fs;
use std::path::{Path, PathBuf};

use crate::store::files::read_bounded;

/// Where units lie, strongest first.
const FOLDERS: &[&str] = &["etc/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system"];
const NAME: &str = "chimere.service";
/// What `StateDirectory=` is relative to.
const STATE_ROOT: &str = "/var/lib";
/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a unit says of its daemon's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub state_dir: PathBuf,
    /// Whose the state is.
    pub user: String,
}

impl Unit {
    /// The unit below a root folder of the system.
    pub(super) fn installed(root: &Path) -> Option<Unit> {
        let mut files = FOLDERS.iter().map(|folder| root.join(folder).join(NAME));
        let text = files.find_map(|file| read_bounded(&file, FILE_BYTES_MAX).ok()?)?;
        let said =
            |key: &str| text.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('=')).next_back();
        let first = |value: &str| Some(value.split_whitespace().next()?.to_owned());
        Some(Unit {
            state_dir: Path::new(STATE_ROOT).join(said("StateDirectory").and_then(first)?),
            user: said("User").and_then(first)?,
        })
    }

    /// The numbers of the unit's user and of its group, by the system's table of accounts.
    pub fn account(&self) -> Option<(u32, u32)> {
        account(&fs::read_to_string("/etc/passwd").ok()?, &self.user)
    }
}

/// An account is a line: name, password, user, group, and what does not matter here.
fn account(table: &str, user: &str) -> Option<(u32, u32)> {
    let mut fields = table.lines().map(|line| line.split(':')).find_map(|mut fields| {
        let own = fields.next() == Some(user);
        own.then_some(fields.skip(1))
    })?;
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Environment, Flags};

    #[test]
    fn the_shipped_unit_is_read_and_its_state_is_taken() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Unit::installed(root.path()), None);
        let folder = root.path().join("usr/lib/systemd/system");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(NAME), include_str!("../../systemd/chimere.service")).unwrap();
        let unit = Unit::installed(root.path()).unwrap();
        assert_eq!(unit, Unit { state_dir: "/var/lib/chimere".into(), user: "chimere".to_owned() });
        // Whoever administers the machine has the last word.
        let own = root.path().join("etc/systemd/system");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join(NAME), "[Service]\nUser=ai\nStateDirectory=lm more\n").unwrap();
        let own = Unit::installed(root.path()).unwrap();
        assert_eq!(own, Unit { state_dir: "/var/lib/lm".into(), user: "ai".to_owned() });

        let mut env = Environment {
            home: Some("/home/somebody".into()),
            cores: 1,
            unit: Some(unit.clone()),
            ..Environment::default()
        };
        let at = |flags: &Flags, env: &Environment| {
            let config = Config::load_in(flags, env).unwrap();
            (config.state_dir, config.unit)
        };
        assert_eq!(at(&Flags::default(), &env), ("/var/lib/chimere".into(), Some(unit.clone())));
        let other = Flags { state_dir: Some("/srv/other".into()), ..Flags::default() };
        assert_eq!(at(&other, &env), ("/srv/other".into(), None));
        let same = Flags { state_dir: Some("/var/lib/chimere".into()), ..Flags::default() };
        assert_eq!(at(&same, &env).1, Some(unit));
        env.unit = None;
        assert_eq!(at(&Flags::default(), &env), ("/home/somebody/.local/state/chimere".into(), None));
    }

    #[test]
    fn an_account_has_two_numbers() {
        let table = "root:x:0:0:root:/root:/bin/bash\nchimere:x:992:991::/var/lib/chimere:/usr/sbin/nologin\n";
        assert_eq!(account(table, "chimere"), Some((992, 991)));
        assert_eq!(account(table, "chim"), None);
        assert_eq!(account("chimere:x:many", "chimere"), None);
    }
}
