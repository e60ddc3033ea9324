//! What a forgetting takes from what nights learned: pairs of the library, and of every run's dataset.

use std::fs;
use std::io;
use std::path::Path;

use super::dataset;
use super::library::Library;
use crate::service::Forgetting;

/// Drops the pairs that a forgetting reaches; says how many went and whether the run `current` had some of them.
pub fn pairs(
    state_dir: &Path,
    library: &Library,
    wanted: &Forgetting,
    current: Option<&str>,
) -> Result<(usize, bool), String> {
    let mut gone = library.forget(wanted).map_err(|error| error.to_string())?;
    let runs = match fs::read_dir(state_dir.join("runs")) {
        Ok(runs) => runs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((gone, false)),
        Err(error) => return Err(error.to_string()),
    };
    let mut of_current = false;
    for run in runs {
        let run = run.map_err(|error| error.to_string())?;
        let name = run.file_name();
        let count = dataset::forget(&run.path(), wanted);
        let count = count.map_err(|error| format!("run {}: {error}", name.to_string_lossy()))?;
        of_current |= count > 0 && current.is_some_and(|current| name == current);
        gone += count;
    }
    Ok((gone, of_current))
}
