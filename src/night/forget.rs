//! What a forgetting takes from what nights learned: pairs of the library, and of every run's dataset.

use std::fs;
use std::io;
use std::path::Path;

use super::dataset;
use super::library::Library;
use crate::service::Forgetting;

/// Drops the pairs that a forgetting reaches; says how many went, each counted once, and whether the run `current` had
/// some of them.
pub fn pairs(
    state_dir: &Path,
    library: &Library,
    wanted: &Forgetting,
    current: Option<&str>,
) -> Result<(usize, bool), String> {
    let mut gone = library.forget(wanted).map_err(|error| error.to_string())?;
    let runs = match fs::read_dir(state_dir.join("runs")) {
        Ok(runs) => runs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((gone.len(), false)),
        Err(error) => return Err(error.to_string()),
    };
    let mut of_current = false;
    for run in runs {
        let run = run.map_err(|error| error.to_string())?;
        let name = run.file_name();
        let here = dataset::forget(&run.path(), wanted);
        let here = here.map_err(|error| format!("run {}: {error}", name.to_string_lossy()))?;
        of_current |= !here.is_empty() && current.is_some_and(|current| name == current);
        gone.extend(here);
    }
    Ok((gone.len(), of_current))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::night::dataset::tests::row;
    use crate::night::library::Judged;
    use crate::service::TurnFilter;
    use crate::turn::TurnId;

    #[test]
    fn pairs_go_from_the_library_and_from_every_run() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::new(dir.path());
        let anna = TurnFilter { principal: Some("anna".to_owned()), ..TurnFilter::default() };
        let wanted = Forgetting { filter: anna, followers: BTreeSet::from([TurnId("turn-0003".to_owned())]) };
        assert_eq!(pairs(dir.path(), &library, &wanted, None).unwrap(), (0, false), "nothing was ever learned");
        let rows = || vec![row(1, "anna"), row(2, "bob"), row(3, "bob")];
        library.file("r1", rows(), Judged::Promoted(1), &BTreeSet::new()).unwrap();
        dataset::write(&dir.path().join("runs/r1"), &rows()).unwrap();
        assert_eq!(pairs(dir.path(), &library, &wanted, Some("r1")).unwrap(), (2, true));
        assert_eq!(pairs(dir.path(), &library, &wanted, Some("r1")).unwrap(), (0, false));
        let left = dataset::read(&dir.path().join("runs/r1")).unwrap().unwrap().0;
        assert_eq!(left, [row(2, "bob")]);
    }
}
