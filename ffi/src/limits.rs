//! Limits that a process puts on itself before it touches something hostile.

use std::io;
use std::time::Duration;

/// Bounds this process's address space, in bytes: an allocation beyond it fails, and with it the process.
pub fn bound_address_space(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: setrlimit only reads the struct behind the pointer, which lives for the call.
    let code = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bounds the time that this process may compute, in seconds: it is killed at the end of it.
pub fn bound_cpu_time(seconds: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: seconds, rlim_max: seconds };
    // SAFETY: setrlimit only reads the struct behind the pointer, which lives for the call.
    let code = unsafe { libc::setrlimit(libc::RLIMIT_CPU, &limit) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives up opening anything from now on: no file, no socket, no pipe. What is open stays so. Nothing is written to a file,
/// and a crash leaves no image of the memory.
pub fn open_nothing() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    for what in [libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE, libc::RLIMIT_CORE] {
        // SAFETY: setrlimit only reads the struct behind the pointer, which lives for the call.
        if unsafe { libc::setrlimit(what, &none) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Lowers the priority of the calling thread and of the threads it starts from now on (nice 15).
pub fn lower_priority() -> io::Result<()> {
    // SAFETY: setpriority takes three numbers and touches no memory of ours; who = 0 is the caller itself.
    let code = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 15) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The user that this process acts as.
pub fn user() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Gives up this process's rights for those of a user and a group, for good.
pub fn become_user(user: u32, group: u32) -> io::Result<()> {
    // SAFETY: setgroups reads one number, which lives for the call; the others take numbers.
    let given =
        unsafe { libc::setgroups(1, &raw const group) == 0 && libc::setgid(group) == 0 && libc::setuid(user) == 0 };
    if given { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Files and folders that this process and its children make from now on are for their user alone.
pub fn make_private() {
    // SAFETY: umask takes a number, touches no memory of ours and cannot fail.
    unsafe { libc::umask(0o077) };
}

/// Time that all threads of this process have computed.
pub fn cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Time that this thread has computed: waiting for a processor is no part of it.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one timespec, which lives for the call.
    let code = unsafe { libc::clock_gettime(id, &raw mut time) };
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    if code == 0 { Duration::new(whole(time.tv_sec), whole(time.tv_nsec) as u32) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_takes_time() {
        let (before, mut sum) = (cpu_time(), 1_u64);
        while cpu_time() < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_mul(31));
        }
        assert!(cpu_time() > before && sum != 1);
    }

    #[test]
    fn a_thread_that_waits_computes_nothing() {
        let pause = Duration::from_millis(20);
        let before = thread_cpu_time();
        std::thread::sleep(pause);
        assert!(thread_cpu_time() - before < pause);
        while thread_cpu_time() < before + pause {
            std::hint::black_box(before);
        }
    }
}
