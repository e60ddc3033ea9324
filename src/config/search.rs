//! Where files are looked for: configuration, state, the model and the pipelines. The environment is read
//! once, here, into a plain value that tests can make up.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::unit::Unit;
use super::{Config, ENV_PREFIX, SYSTEM_FILE};
use crate::eval::golden;
use crate::gguf;

const MODEL_FILE: &str = "nano.gguf";

impl Config {
    /// Where prompt prefixes outlive the engine, if they do.
    pub fn prefixes_file(&self) -> PathBuf {
        self.state_dir.join("prefixes.bin")
    }

    /// Folder of the kernels that were compiled for this machine's card.
    pub fn kernels_cache(&self) -> PathBuf {
        self.state_dir.join("kernels")
    }

    /// Folders that may hold `night.yaml`, strongest first.
    pub fn night_folders(&self) -> Vec<PathBuf> {
        [Some(self.pipelines.overlay.clone()), self.pipelines.shipped.clone()].into_iter().flatten().collect()
    }
}

/// The surroundings of the process that the configuration depends on.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `CHIMERE_…` variables, name and value.
    pub chimere: Vec<(String, String)>,
    pub home: Option<PathBuf>,
    pub xdg_config_home: Option<PathBuf>,
    pub xdg_state_home: Option<PathBuf>,
    /// Set by systemd for `StateDirectory=`; the first of its paths.
    pub state_directory: Option<PathBuf>,
    /// The installed unit, where this process is root's and not of that unit.
    pub unit: Option<Unit>,
    /// Path of the running binary, links resolved.
    pub exe: Option<PathBuf>,
    /// The data of this very version, where it was installed with some.
    pub share: Option<PathBuf>,
    pub working_dir: Option<PathBuf>,
    pub cores: usize,
    /// Read /etc and /usr/share (tests do not).
    pub system: bool,
}

/// The file that this process was started from, links resolved; asked first when it starts: an update may take it away.
fn own_file() -> Option<PathBuf> {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    FILE.get_or_init(|| env::current_exe().and_then(|exe| exe.canonicalize()).ok()).clone()
}

/// As `own_file`, of the data beside it: a daemon keeps to its own version of them when another is installed.
fn own_share() -> Option<PathBuf> {
    static SHARE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || own_file()?.parent()?.join("../share/chimere").canonicalize().ok();
    SHARE.get_or_init(find).clone()
}

/// Names of the variables of the environment that begin so, to be kept from another program.
pub fn variables(prefix: &str) -> Vec<OsString> {
    env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with(prefix)).collect()
}

impl Environment {
    pub fn of_process() -> Self {
        let path = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let mut chimere: Vec<(String, String)> = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with(ENV_PREFIX))
            .collect();
        chimere.sort();
        let state_directory =
            path("STATE_DIRECTORY").and_then(|list| env::split_paths(&list).next()).filter(|first| first.is_absolute());
        let outside = state_directory.is_none() && chimere_ffi::limits::user() == 0;
        Environment {
            chimere,
            home: path("HOME"),
            xdg_config_home: path("XDG_CONFIG_HOME"),
            xdg_state_home: path("XDG_STATE_HOME"),
            state_directory,
            unit: outside.then(|| Unit::installed(Path::new("/"))).flatten(),
            exe: own_file(),
            share: own_share(),
            working_dir: env::current_dir().ok(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: true,
        }
    }

    /// The value of a variable with our prefix.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.chimere.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Files to read, strongest first, and whether each must exist.
    pub(super) fn config_files(&self, named: Option<&Path>) -> Vec<(PathBuf, bool)> {
        let named = named.map(Path::to_owned).or_else(|| self.variable("CHIMERE_CONFIG").map(PathBuf::from));
        if let Some(file) = named {
            return vec![(file, true)];
        }
        let user = self.xdg_config_home.clone().or_else(|| Some(self.home.as_ref()?.join(".config")));
        let mut files: Vec<_> = user.map(|dir| (dir.join("chimere/config.toml"), false)).into_iter().collect();
        if self.system {
            files.push((PathBuf::from(SYSTEM_FILE), false));
        }
        files
    }

    pub(super) fn state_dir(&self) -> Option<PathBuf> {
        let service = self.unit.as_ref().map(|unit| &unit.state_dir);
        if let Some(dir) = self.state_directory.as_ref().or(service) {
            return Some(dir.clone());
        }
        let base = self.xdg_state_home.clone().or_else(|| Some(self.home.as_ref()?.join(".local/state")))?;
        Some(base.join("chimere"))
    }

    /// Folders that may hold our data, nearest installation first.
    fn data_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        let beside = self.exe.as_deref().and_then(Path::parent);
        let share = || beside.map(|dir| dir.join("../share/chimere"));
        dirs.extend(self.share.clone().or_else(share));
        if self.system {
            dirs.push(PathBuf::from("/usr/local/share/chimere"));
            dirs.push(PathBuf::from("/usr/share/chimere"));
        }
        if let Some(dir) = beside {
            dirs.push(dir.to_owned());
            // A binary in `target/release` of a source tree.
            dirs.push(dir.join("../.."));
        }
        dirs.extend(self.working_dir.clone());
        dirs
    }

    /// The model file: the one that was named, or the one in a folder that was named, else the first nano model of the data
    /// folders.
    pub(super) fn find_model(&self, named: Option<PathBuf>) -> Result<PathBuf, Vec<PathBuf>> {
        if let Some(path) = named {
            return match gguf::located(&path) {
                Ok(path) if !path.exists() => Err(vec![path]),
                Err(gguf::Error::NoModel { path }) => Err(vec![path.join("*.gguf")]),
                Ok(path) => Ok(path),
                // What else is wrong with a folder is said by whoever opens it.
                Err(_) => Ok(path),
            };
        }
        let places = self.places_of(MODEL_FILE);
        found(&places).ok_or(places)
    }

    /// A file that is shipped with nano, wherever the served model lies.
    pub(super) fn find_shipped(&self, file: &str) -> Option<PathBuf> {
        found(&self.places_of(file))
    }

    /// Where a file that is shipped with nano may lie, nearest installation first.
    fn places_of(&self, file: &str) -> Vec<PathBuf> {
        self.data_dirs().iter().flat_map(|dir| [dir.join(file), dir.join("nano").join(file)]).collect()
    }

    /// Folder of compiled kernels, beside the model where it was installed, beside the program where it was built.
    pub(super) fn find_kernels(&self) -> Option<PathBuf> {
        let places = self.data_dirs().into_iter().map(|dir| dir.join("kernels"));
        places.into_iter().find(|place| !chimere_ffi::gpu::shipped_architectures(place).is_empty())
    }

    /// An exam file: the one that was named, else the one beside the nano model.
    pub(super) fn find_exam(&self, named: Option<PathBuf>, exam: &str) -> Result<PathBuf, Vec<PathBuf>> {
        if let Some(path) = named {
            return if path.is_file() { Ok(path) } else { Err(vec![path]) };
        }
        let dirs = self.data_dirs().into_iter();
        let folders = dirs.flat_map(|dir| [dir.join("golden"), dir.join("nano/golden")]);
        let places: Vec<PathBuf> =
            folders.flat_map(|folder| golden::files(exam).map(|file| folder.join(file))).collect();
        found(&places).ok_or(places)
    }

    /// The folder of the shipped pipelines.
    pub(super) fn find_pipelines(&self, named: Option<PathBuf>) -> Option<PathBuf> {
        if named.is_some() {
            return named;
        }
        let dirs = self.data_dirs().into_iter().map(|dir| dir.join("pipelines"));
        dirs.filter(|dir| dir.join("default.yaml").is_file()).map(|dir| dir.canonicalize().unwrap_or(dir)).next()
    }
}

/// The first of the places that holds a file, links resolved.
fn found(places: &[PathBuf]) -> Option<PathBuf> {
    let place = places.iter().find(|path| path.is_file())?;
    Some(place.canonicalize().unwrap_or_else(|_| place.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_share_folder_wins_over_the_working_directory() {
        let root = tempfile::tempdir().unwrap();
        let (bin, share, work) =
            (root.path().join("bin"), root.path().join("share/chimere"), root.path().join("work/nano"));
        for dir in [&bin, &share, &work] {
            fs::create_dir_all(dir).unwrap();
        }
        let env = Environment {
            exe: Some(bin.join("chimere")),
            working_dir: Some(root.path().join("work")),
            ..Environment::default()
        };
        assert!(env.find_model(None).is_err_and(|places| places.len() >= 6));
        fs::write(work.join(MODEL_FILE), "x").unwrap();
        assert_eq!(env.find_model(None).unwrap(), work.join(MODEL_FILE).canonicalize().unwrap());
        fs::write(share.join(MODEL_FILE), "x").unwrap();
        assert_eq!(env.find_model(None).unwrap(), share.join(MODEL_FILE).canonicalize().unwrap());
        assert_eq!(env.find_shipped("x.gguf"), None);
        fs::write(work.join("x.gguf"), "x").unwrap();
        assert_eq!(env.find_shipped("x.gguf"), work.join("x.gguf").canonicalize().ok());
        let named = root.path().join("absent.gguf");
        assert_eq!(env.find_model(Some(named.clone())), Err(vec![named]));
    }
}
