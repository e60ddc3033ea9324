//! Ports for servers that a command starts for itself. They lie below those that the system gives to outgoing connections:
//! none of these takes one between the search and the server's start, nor while the server starts anew.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::bail;

/// The system's own begin at 32,768.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// An address of this machine that nothing listens on. This process does not get it again.
pub fn free() -> anyhow::Result<SocketAddr> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Another process begins elsewhere.
    let start = std::process::id().wrapping_mul(7_919);
    for _ in 0..COUNT {
        let at = start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + at as u16));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("every port from {FIRST} to {} is taken", FIRST + COUNT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_no_outgoing_connection_gets_it() {
        let (first, second) = (free().unwrap(), free().unwrap());
        assert_ne!(first, second);
        // Ports that somebody listens on are passed over, wherever they lie.
        let held = TcpListener::bind(second).unwrap();
        for _ in 0..10 {
            let next = free().unwrap();
            assert!(next != held.local_addr().unwrap() && (FIRST..32_768).contains(&next.port()), "{next}");
        }
    }
}
