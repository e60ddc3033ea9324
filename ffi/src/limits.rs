//! Limits that a process puts on itself before it touches something hostile.

use std::io;

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

/// Lowers the priority of the calling thread and of the threads it starts from now on (nice 15).
pub fn lower_priority() -> io::Result<()> {
    // SAFETY: setpriority takes three numbers and touches no memory of ours; who = 0 is the caller itself.
    let code = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 15) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
