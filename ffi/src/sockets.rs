//! Whose a TCP connection's other end is, asked of the kernel for that one socket (`sock_diag`). The table of all sockets
//! in `/proc` says it too, but takes milliseconds to read.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Type of a question and of its answer, and of an error (linux/sock_diag.h, linux/netlink.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
/// A question behind its header, and an answer (linux/inet_diag.h).
const ASKED_BYTES: usize = 56;
const TOLD_BYTES: usize = 72;
/// Any socket that has these ends.
const NO_COOKIE: [u8; 8] = [0xff; 8];
const LISTENING: u8 = 10;

/// A socket as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// A program has it open; its user.
    Of(u32),
    /// Its program has closed it, or there is none.
    Gone,
}

/// The socket of this machine whose own end is the first address and whose other end is the second. A kernel that does not
/// answer such questions gives an error, or says of every socket that it is gone.
pub fn socket(own: SocketAddr, other: SocketAddr) -> io::Result<Socket> {
    let asked = question(own, other);
    // SAFETY: socket takes three numbers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else has it.
    let kernel = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: send reads as many bytes as the buffer has, which lives for the call. Unconnected, it goes to the kernel.
    let sent = unsafe { libc::send(kernel.as_raw_fd(), asked.as_ptr().cast(), asked.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut told = [0_u8; 512];
    // The kernel has answered when the question is sent.
    // SAFETY: recv writes at most as many bytes as the buffer has, which lives for the call.
    let got = unsafe { libc::recv(kernel.as_raw_fd(), told.as_mut_ptr().cast(), told.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(got) {
        Ok(bytes) => answer(&told[..bytes.min(told.len())], &asked),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn question(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut asked = Vec::with_capacity(HEADER_BYTES + ASKED_BYTES);
    asked.extend(((HEADER_BYTES + ASKED_BYTES) as u32).to_ne_bytes());
    asked.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    asked.extend(NLM_F_REQUEST.to_ne_bytes());
    // Number and sender.
    asked.extend([0; 8]);
    // Nothing beside the socket itself, in any state.
    asked.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    asked.extend(own.port().to_be_bytes());
    asked.extend(other.port().to_be_bytes());
    for address in [own, other] {
        let mut bytes = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes.copy_from_slice(&ip.octets()),
        }
        asked.extend(bytes);
    }
    // Through any interface.
    asked.extend([0; 4]);
    asked.extend(NO_COOKIE);
    asked
}

fn answer(told: &[u8], asked: &[u8]) -> io::Result<Socket> {
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer about a socket is cut short");
    let word = |at: usize| told.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = told.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes).ok_or_else(strange)?;
    if kind == NLMSG_ERROR {
        let error = io::Error::from_raw_os_error((word(HEADER_BYTES).ok_or_else(strange)? as i32).wrapping_neg());
        return if error.kind() == io::ErrorKind::NotFound { Ok(Socket::Gone) } else { Err(error) };
    }
    if kind != SOCK_DIAG_BY_FAMILY || told.len() < HEADER_BYTES + TOLD_BYTES {
        return Err(strange());
    }
    // Where no connection has these ends, the kernel shows who listens at the first.
    let ports = |of: &[u8], at: usize| of.get(at..at + 4).map(<[u8]>::to_vec);
    let same = ports(told, HEADER_BYTES + 4) == ports(asked, HEADER_BYTES + 8);
    let (user, inode) = (word(HEADER_BYTES + 64).ok_or_else(strange)?, word(HEADER_BYTES + 68).ok_or_else(strange)?);
    // Of a closed socket it says user 0.
    let open = told[HEADER_BYTES + 1] != LISTENING && same && inode != 0;
    Ok(if open { Socket::Of(user) } else { Socket::Gone })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_other_end_of_a_connection_is_this_users_until_it_is_closed() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(place) else { continue };
            let at = listener.local_addr().unwrap();
            let client = TcpStream::connect(at).unwrap();
            let (_server, peer) = listener.accept().unwrap();
            // A kernel that answers no such question says so.
            let found = match socket(peer, at) {
                Ok(found @ Socket::Of(_)) => found,
                _ => continue,
            };
            assert_eq!(found, Socket::Of(crate::limits::user()), "{place}");
            drop(client);
            // A program that another test starts holds it until it is one of its own.
            let began = std::time::Instant::now();
            while socket(peer, at).unwrap() != Socket::Gone {
                assert!(began.elapsed().as_secs() < 60, "{place}");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            // One that listens is the other end of nothing.
            assert_eq!(socket(at, peer).unwrap(), Socket::Of(crate::limits::user()), "{place}: our own end");
            let nobody = SocketAddr::new(at.ip(), 1);
            assert_eq!(socket(at, nobody).unwrap(), Socket::Gone, "{place}");
        }
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let asked = question("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:8377".parse().unwrap());
        assert_eq!(asked.len(), HEADER_BYTES + ASKED_BYTES);
        let told = |state: u8, user: u32, inode: u32| {
            let mut told = asked[..HEADER_BYTES].to_vec();
            told.extend([2, state, 0, 0]);
            told.extend(&asked[HEADER_BYTES + 8..]);
            for word in [0, 0, 0, user, inode] {
                told.extend(u32::to_ne_bytes(word));
            }
            told
        };
        let read = |told: &[u8]| answer(told, &asked);
        assert_eq!(read(&told(1, 1_000, 9)).unwrap(), Socket::Of(1_000));
        assert_eq!(read(&told(1, 0, 0)).unwrap(), Socket::Gone, "a closed socket is nobody's, not root's");
        assert_eq!(read(&told(LISTENING, 1_000, 9)).unwrap(), Socket::Gone);
        let mut other = told(1, 1_000, 9);
        other[HEADER_BYTES + 5] ^= 1;
        assert_eq!(read(&other).unwrap(), Socket::Gone, "another port");
        let whole = told(1, 1_000, 9);
        (0..whole.len()).for_each(|cut| assert!(read(&whole[..cut]).is_err(), "{cut}"));
        let error = |code: i32| {
            let mut told = asked[..HEADER_BYTES].to_vec();
            told[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            told.extend((-code).to_ne_bytes());
            told
        };
        assert_eq!(read(&error(libc::ENOENT)).unwrap(), Socket::Gone);
        assert_eq!(read(&error(libc::EPERM)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
