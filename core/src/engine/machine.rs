//! What this machine has for a model: memory that is free, and cores.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory that a process of ours may still take: what the system has left, and what its control groups allow. `None`: the
/// system does not say.
pub fn available_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let free = in_system(&info)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(in_groups(&groups, Path::new("/sys/fs/cgroup")).map_or(free, |left| left.min(free)))
}

fn in_system(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The least that any group from this process's own upwards has left.
fn in_groups(groups: &str, root: &Path) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder: PathBuf = root.join(own);
    folder.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(left_in).min()
}

fn left_in(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // `max` where there is no limit.
    let limit = number("memory.max")?;
    let used = number("memory.current")?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let pages = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")).and_then(|n| n.trim().parse().ok());
    // Pages of files that nobody used for a while make room.
    Some(limit.saturating_sub(used.saturating_sub(pages.unwrap_or(0))))
}

/// Cores that this process may use: of those that compute two threads, each once.
pub fn physical_cores() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let siblings =
        |cpu: usize| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok();
    // As many as the machine has at most; the first that is not there is behind the last.
    let cores: BTreeSet<String> = (0..4_096).map_while(siblings).collect();
    if cores.is_empty() { threads } else { cores.len().min(threads) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_cores() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let threads = std::thread::available_parallelism().unwrap().get();
        assert!((1..=threads).contains(&physical_cores()));
    }

    #[test]
    fn the_tightest_group_counts() {
        assert_eq!(in_system("MemTotal: 9 kB\nMemAvailable:    5 kB\n"), Some(5_120));
        let root = tempfile::tempdir().unwrap();
        let put = |folder: &str, max: &str, current: &str| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("memory.max"), max).unwrap();
            fs::write(folder.join("memory.current"), current).unwrap();
            fs::write(folder.join("memory.stat"), "anon 5\ninactive_file 40\n").unwrap();
        };
        put("system", "1000\n", "300\n");
        put("system/chimere", "max\n", "200\n");
        assert_eq!(in_groups("0::/system/chimere\n", root.path()), Some(740));
        put("system/chimere", "500\n", "400\n");
        assert_eq!(in_groups("0::/system/chimere\n", root.path()), Some(140));
        assert_eq!(in_groups("1:cpu:/x\n", root.path()), None);
    }
}
