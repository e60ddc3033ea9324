//! What this process may do with a file, asked without doing it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether this process may make files in a folder; the error says why not.
pub fn may_fill(folder: &Path) -> io::Result<()> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: faccessat only reads the string behind the pointer, which ends with a zero and lives for the call.
    let code = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_without_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        may_fill(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(may_fill(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
