//! The installed systemd unit. A command that root starts beside it works on the unit's state, not on one of root's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::store::files::read_bounded;

/// Where units lie, strongest first.
const FOLDERS: &[&str] =
    &["etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system"];
const NAME: &str = "chimere.service";
/// Of what is read after the unit itself (`systemctl edit`), in the order of names.
const DROP_INS: &str = "chimere.service.d";
const DROP_INS_MAX: usize = 64;
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
        let mut said = Said::default();
        said.read(&files.find_map(|file| read_bounded(&file, FILE_BYTES_MAX).ok()?)?);
        for file in drop_ins(root) {
            read_bounded(&file, FILE_BYTES_MAX).ok().flatten().iter().for_each(|text| said.read(text));
        }
        let user = said.user()?;
        Some(Unit { state_dir: Path::new(STATE_ROOT).join(said.state?), user })
    }

    /// The numbers of the unit's user and of its group, by the system's table of accounts.
    pub fn account(&self) -> Option<(u32, u32)> {
        // A system without that table has numbers all the same.
        account(&fs::read_to_string("/etc/passwd").unwrap_or_default(), &self.user)
    }
}

/// What lies beside a unit, in the order in which it counts. Of two files of a name the stronger folder's is read.
fn drop_ins(root: &Path) -> Vec<PathBuf> {
    let mut files = BTreeMap::new();
    for folder in FOLDERS.iter().rev() {
        let Ok(entries) = fs::read_dir(root.join(folder).join(DROP_INS)) else { continue };
        let own = entries.flatten().map(|entry| (entry.file_name(), entry.path()));
        files.extend(own.filter(|(_, path)| path.extension().is_some_and(|kind| kind == "conf")).take(DROP_INS_MAX));
    }
    files.into_values().collect()
}

/// What has been read so far.
#[derive(Default)]
struct Said {
    state: Option<String>,
    user: Option<String>,
    /// Systemd makes an account for each start.
    dynamic: bool,
}

impl Said {
    /// An account that systemd makes has the unit's name where none is said.
    fn user(&self) -> Option<String> {
        self.user.clone().or_else(|| self.dynamic.then(|| NAME.trim_end_matches(".service").to_owned()))
    }

    /// Takes a file, whose lines may go on behind a `\`. Nothing behind a `=` takes back what was said before.
    fn read(&mut self, text: &str) {
        let whole = text.replace("\\\r\n", " ").replace("\\\n", " ");
        let mut section = "";
        for line in whole.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            if line.starts_with('[') {
                section = line;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| section == "[Service]") else { continue };
            let first = value.split_whitespace().next().map(|word| word.trim_matches('"').to_owned());
            match key.trim_end() {
                // A list, to which files add.
                "StateDirectory" if first.is_some() => self.state = self.state.take().or(first),
                "StateDirectory" => self.state = None,
                "User" => self.user = first,
                "DynamicUser" => self.dynamic = first.is_some_and(|word| matches!(&*word, "yes" | "true" | "on" | "1")),
                _ => {}
            }
        }
    }
}

/// An account is a line: name, password, user, group, and what does not matter here. A user may be told by number, also one
/// that no line names: its group has the same number then.
fn account(table: &str, user: &str) -> Option<(u32, u32)> {
    let named = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        let own = name == user || number == user;
        own.then_some(Some((number.parse().ok()?, fields.next()?.parse().ok()?))).flatten()
    });
    named.or_else(|| user.parse().ok().map(|number| (number, number)))
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
        let own_folder = root.path().join("etc/systemd/system");
        fs::create_dir_all(&own_folder).unwrap();
        fs::write(own_folder.join(NAME), "[Service]\nUser=ai\nStateDirectory=lm more\n").unwrap();
        let own = Unit::installed(root.path()).unwrap();
        assert_eq!(own, Unit { state_dir: "/var/lib/lm".into(), user: "ai".to_owned() });
        // Systemd makes an account for each start, of the unit's name where none is said.
        let ever = |text: &str| {
            fs::write(own_folder.join(NAME), text).unwrap();
            Unit::installed(root.path()).map(|unit| unit.user)
        };
        assert_eq!(ever("[Service]\nDynamicUser=yes\nStateDirectory=lm\n").as_deref(), Some("chimere"));
        assert_eq!(ever("[Service]\nDynamicUser=yes\nUser=ai\nStateDirectory=lm\n").as_deref(), Some("ai"));
        assert_eq!(ever("[Service]\nDynamicUser=no\nStateDirectory=lm\n"), None);
        // What `systemctl edit` writes comes after it, in the order of names; blanks around `=` are nothing.
        for (folder, name, text) in [
            ("etc", "b.conf", "[Unit]\nUser=no\n[Service]\n# User=no\nUser = eve\n"),
            ("usr/lib", "c.conf", "[Service]\nStateDirectory=\nStateDirectory= \\\n  own\nUser=fay\n"),
            ("etc", "c.conf", "[Service]\nStateDirectory=\nStateDirectory= \\\n  own\n"),
            ("etc", "a.conf", "[Service]\nStateDirectory=more\n"),
            ("etc", "z.txt", "[Service]\nUser=no\n"),
        ] {
            let folder = root.path().join(folder).join("systemd/system").join(DROP_INS);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), text).unwrap();
        }
        let own = Unit::installed(root.path()).unwrap();
        assert_eq!(own, Unit { state_dir: "/var/lib/own".into(), user: "eve".to_owned() });

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
        assert_eq!(account(table, "992"), Some((992, 991)));
        assert_eq!(account("chimere:x:many", "chimere"), None);
        // No line names it, as in a container.
        assert_eq!(account(table, "61184"), Some((61_184, 61_184)));
        assert_eq!((account("", "10001"), account("", "chimere")), (Some((10_001, 10_001)), None));
    }
}
