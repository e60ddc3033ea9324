//! A folder of files, as far as they can be documents: what lies in it, and the bytes of one file. Links are not followed, and
//! nothing that is no plain file is opened.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{DOCUMENTS_MAX, NAME_CHARS_MAX, read};

/// Folders within folders.
const DEPTH_MAX: usize = 32;
/// Names of folders that programs make, and that nobody writes in.
const MADE: [&str; 5] = ["node_modules", "bower_components", "site-packages", "__pycache__", "__MACOSX"];
/// Folders that programs make where such a file lies beside them.
const MADE_BESIDE: [(&str, &str); 5] = [
    ("target", "Cargo.toml"),
    ("target", "pom.xml"),
    ("build", "CMakeLists.txt"),
    ("vendor", "go.mod"),
    ("vendor", "composer.json"),
];
/// Files by which a folder says that a program made it: a cache, and a Python environment.
const MADE_WITH: [&str; 2] = ["CACHEDIR.TAG", "pyvenv.cfg"];

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub bytes: u64,
    modified: Option<SystemTime>,
    changed: (i64, i64),
    inode: (u64, u64),
}

impl Stamp {
    fn of(file: &Metadata) -> Stamp {
        Stamp {
            bytes: file.len(),
            modified: file.modified().ok(),
            changed: (file.ctime(), file.ctime_nsec()),
            inode: (file.dev(), file.ino()),
        }
    }

    /// Somebody may still be writing it. A time to come says nothing.
    pub fn is_fresh(&self, now: SystemTime, rest: Duration) -> bool {
        self.modified.and_then(|at| now.duration_since(at).ok()).is_some_and(|age| age < rest)
    }
}

/// What lies in a folder.
#[derive(Debug, Default, PartialEq)]
pub struct Sight {
    /// Files of known kinds by their names, which are their paths within the folder.
    pub files: BTreeMap<String, Stamp>,
    /// What cannot be a document, and why.
    pub left_out: BTreeMap<String, String>,
    /// Hidden and machine-made folders, links, and what is no plain file.
    pub passed_over: usize,
    /// Files of other kinds.
    pub others: usize,
}

/// Looks through a folder and those within it.
pub fn look(root: &Path) -> io::Result<Sight> {
    let mut sight = Sight::default();
    walk(root, String::new(), 0, &mut sight)?;
    Ok(sight)
}

fn walk(folder: &Path, within: String, depth: usize, sight: &mut Sight) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let shown = format!("{within}{}", name.to_string_lossy());
        // What went meanwhile is not there.
        let Ok(file) = entry.metadata() else { continue };
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        let is_strange = !(file.is_dir() || file.is_file());
        if is_hidden || is_strange || file.is_dir() && is_made(folder, &entry.path(), &name.to_string_lossy()) {
            sight.passed_over += 1;
        } else if file.is_dir() {
            let below = if depth == DEPTH_MAX {
                Err(io::Error::other(format!("it lies more than {DEPTH_MAX} folders deep")))
            } else {
                walk(&entry.path(), format!("{shown}/"), depth + 1, sight)
            };
            below.unwrap_or_else(|error| drop(sight.left_out.insert(format!("{shown}/"), error.to_string())));
        } else if read::kind(&shown, None).is_err() {
            sight.others += 1;
        } else if let Some(why) = unfit(&shown, name.to_str().is_some(), sight.files.len()) {
            sight.left_out.insert(shown, why);
        } else {
            sight.files.insert(shown, Stamp::of(&file));
        }
    }
    Ok(())
}

/// Did a program make this folder, to make it again when it needs it? `above` is the folder that it lies in.
pub fn is_made(above: &Path, folder: &Path, name: &str) -> bool {
    let beside = |(own, file): &(&str, &str)| *own == name && above.join(file).is_file();
    MADE.contains(&name) || MADE_BESIDE.iter().any(beside) || MADE_WITH.iter().any(|file| folder.join(file).is_file())
}

fn unfit(name: &str, is_text: bool, files: usize) -> Option<String> {
    match (is_text, name.chars().count() > NAME_CHARS_MAX, files >= DOCUMENTS_MAX) {
        (false, _, _) => Some("its name is no text".to_owned()),
        (_, true, _) => Some(format!("its path within the folder has more than {NAME_CHARS_MAX} characters")),
        (_, _, true) => Some(format!("the folder has more than {DOCUMENTS_MAX} files")),
        _ => None,
    }
}

/// The bytes of a file that [`look`] found, and the state that they are of. The folder is named without links in it.
pub fn bytes(root: &Path, name: &str, bytes_max: u64) -> io::Result<(Vec<u8>, Stamp)> {
    let path = root.join(name);
    // A pipe that nobody writes to would be waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
    let found = file.metadata()?;
    if !found.is_file() || opened(&file)? != path {
        return Err(io::Error::other("it is a link, or no plain file"));
    }
    if found.len() > bytes_max {
        return Err(io::Error::other(format!("it is larger than {bytes_max} bytes (`documents.file_bytes_max`)")));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other("it grew while it was read"));
    }
    Ok((bytes, Stamp::of(&found)))
}

/// Where a file lies that is open: a folder on the way to it may have become a link meanwhile.
fn opened(file: &File) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_shows_its_plain_files_of_known_kinds() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.txt"), "far away").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let write = |name: &str, text: &str| {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), text).unwrap();
        };
        for name in ["a.md", "sub/b.txt", "sub/deeper/c.csv", "photo.png"] {
            write(name, "words");
        }
        for name in [".hidden.md", ".git/config.md", "node_modules/x.js", "venv/x.py", "venv/pyvenv.cfg"] {
            write(name, "words");
        }
        symlink(outside.path().join("secret.txt"), root.join("link.txt")).unwrap();
        symlink(outside.path(), root.join("folder")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(root.join("pipe.txt")).status().unwrap();
        assert!(pipe.success());
        fs::write(root.join(std::ffi::OsStr::from_bytes(b"\xff.txt")), "words").unwrap();
        fs::write(root.join(format!("{}.txt", "n".repeat(200))), "words").unwrap();
        write(&format!("{}/{}.txt", "d".repeat(200), "n".repeat(200)), "words");
        let sight = look(&root).unwrap();
        let names: Vec<&str> = sight.files.keys().map(String::as_str).filter(|name| name.len() < 100).collect();
        assert_eq!(names, ["a.md", "sub/b.txt", "sub/deeper/c.csv"]);
        assert_eq!((sight.others, sight.passed_over, sight.left_out.len()), (1, 7, 2), "{sight:?}");
        assert!(sight.left_out.values().any(|why| why.contains("no text")));
        assert_eq!(bytes(&root, "sub/b.txt", 100).unwrap().0, b"words");
        assert_eq!(bytes(&root, "sub/b.txt", 100).unwrap().1, sight.files["sub/b.txt"]);
        // What becomes a link or a pipe after the look is not read either.
        for (name, why) in [
            ("link.txt", "symbolic link"),
            ("folder/secret.txt", "it is a link"),
            ("pipe.txt", "no plain file"),
            ("../outside.txt", "No such file"),
        ] {
            let error = bytes(&root, name, 100).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
        let large = bytes(&root, "a.md", 4).unwrap_err().to_string();
        assert!(large.contains("larger than 4 bytes"), "{large}");
    }

    #[test]
    fn what_is_written_just_now_is_left_alone_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.md"), "words").unwrap();
        let stamp = look(dir.path()).unwrap().files["a.md"];
        let (now, rest) = (stamp.modified.unwrap(), Duration::from_secs(1));
        assert!(stamp.is_fresh(now + Duration::from_millis(999), rest));
        assert!(!stamp.is_fresh(now + rest, rest) && !stamp.is_fresh(now - Duration::from_secs(60), rest));
    }
}
