//! Who sits at the other end of a loopback connection. Without a key a client on this machine is the owner, and a
//! machine may have several users. The kernel says whose the other end is, or the system's table of sockets, where it
//! answers no question about one.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use chimere_ffi::sockets::{Socket, socket};

use super::accept::Ends;
use crate::service::LoopbackOwner;

/// Whose a connection is, looked up when it is first asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer(Arc<OnceLock<User>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// The system does not say.
    Untold,
    Is(u32),
    /// The system knows of no such socket: its end was closed already.
    Gone,
}

/// Why a client of this machine is not taken for the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotOwner {
    #[error("`http.loopback_owner` is \"never\", so nobody is its owner without one")]
    Never,
    #[error("without one it answers its own user (uid {own}) and root alone, and this connection is of uid {peer}")]
    Other { peer: u32, own: u32 },
    #[error("without one it answers its own user and root alone, and the system knows no user of this connection")]
    Unknown,
}

impl Peer {
    /// May this client of this machine be taken for the owner?
    pub(crate) fn may_own(&self, rule: LoopbackOwner, ends: &Ends) -> Result<(), NotOwner> {
        match rule {
            LoopbackOwner::Anyone => Ok(()),
            LoopbackOwner::Never => Err(NotOwner::Never),
            LoopbackOwner::SameUser => match *self.0.get_or_init(|| look_up(ends)) {
                User::Untold | User::Is(0) => Ok(()),
                User::Is(peer) => match own_uid().filter(|own| *own != peer) {
                    Some(own) => Err(NotOwner::Other { peer, own }),
                    None => Ok(()),
                },
                User::Gone => Err(NotOwner::Unknown),
            },
        }
    }
}

/// The user that this process runs as.
fn own_uid() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|own| own.uid())
}

fn look_up(ends: &Ends) -> User {
    let plain = of_four(ends);
    match socket(plain.peer, plain.local) {
        Ok(Socket::Of(uid)) => User::Is(uid),
        // A kernel that cannot answer for TCP says the same of a socket that is gone.
        Ok(Socket::Gone) | Err(_) => in_tables(Path::new("/proc"), ends),
    }
}

/// Addresses of IPv4 as such, however a socket of IPv6 has them.
fn of_four(ends: &Ends) -> Ends {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Ends { peer: plain(ends.peer), local: plain(ends.local) }
}

/// Reading the tables takes milliseconds: the kernel walks through every place for a connection.
fn in_tables(proc: &Path, ends: &Ends) -> User {
    let (Ends { peer, local }, plain) = (*ends, of_four(ends));
    if plain.peer.is_ipv6() {
        return in_table(&proc.join("net/tcp6"), &plain);
    }
    let found = in_table(&proc.join("net/tcp"), &plain);
    if found != User::Gone {
        return found;
    }
    // Many programs reach an address of IPv4 by a socket of IPv6. A system without IPv6 has no table of those.
    match in_table(&proc.join("net/tcp6"), &Ends { peer: of_six(peer), local: of_six(local) }) {
        User::Untold => found,
        user => user,
    }
}

fn in_table(table: &Path, ends: &Ends) -> User {
    match std::fs::read_to_string(table) {
        Ok(text) => user_of(&text, ends),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => User::Untold,
        // Whoever takes away all files that a process may open does not become the owner by it.
        Err(_) => User::Gone,
    }
}

/// The address as a socket of IPv6 has it.
fn of_six(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The owner of the socket whose own end is our peer. A socket that its program has closed has no inode, and the table
/// says user 0 of it.
fn user_of(table: &str, ends: &Ends) -> User {
    let (own, other) = (spelled(ends.peer), spelled(ends.local));
    for line in table.lines().skip(1) {
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next() != Some(own.as_str()) || fields.next() != Some(other.as_str()) {
            continue;
        }
        // State, queues, timer, retransmits; then user, timeout, inode.
        let mut rest = fields.skip(4);
        let (user, inode) = (rest.next().and_then(|uid| uid.parse().ok()), rest.nth(1));
        return match (user, inode) {
            (Some(uid), Some(inode)) if inode != "0" => User::Is(uid),
            _ => User::Gone,
        };
    }
    User::Gone
}

/// An address as the table has it: words of the machine's byte order in hexadecimal, a colon, the port.
fn spelled(address: SocketAddr) -> String {
    let words = |bytes: &[u8]| -> String {
        let word = |four: &[u8]| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
        bytes.chunks_exact(4).map(|four| format!("{:08X}", word(four))).collect()
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(peer: &str, local: &str) -> Ends {
        Ends { peer: peer.parse().unwrap(), local: local.parse().unwrap() }
    }

    #[test]
    fn the_table_says_whose_the_other_end_is() {
        let own = spelled("127.0.0.1:40000".parse().unwrap());
        let other = spelled("127.0.0.1:8377".parse().unwrap());
        let line = |own: &str, other: &str, uid: u32, inode: u32| {
            format!(
                "   0: {own} {other} 01 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 1 0000 20 4 30 10 -1\n"
            )
        };
        let table = |uid, inode| {
            format!("  sl  local_address …\n{}{}", line(&other, &own, 7, 5), line(&own, &other, uid, inode))
        };
        let asked = ends("127.0.0.1:40000", "127.0.0.1:8377");
        assert_eq!(user_of(&table(1_000, 9), &asked), User::Is(1_000), "not the user of our own end");
        assert_eq!(user_of(&table(0, 0), &asked), User::Gone, "a closed socket is nobody's, not root's");
        assert_eq!(user_of(&table(1_000, 9), &ends("127.0.0.1:40001", "127.0.0.1:8377")), User::Gone);
        assert_eq!(user_of("", &asked), User::Gone);
        assert_eq!(in_tables(Path::new("/nowhere"), &asked), User::Untold);
        // What can be found and not read, for want of files to open or whatever else.
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("net/tcp")).unwrap();
        assert_eq!(in_tables(dir.path(), &asked), User::Gone);
    }

    #[test]
    fn a_connection_of_this_process_is_its_users() {
        for (place, by_six) in [("127.0.0.1:0", false), ("127.0.0.1:0", true), ("[::1]:0", false), ("[::]:0", false)] {
            let Ok(listener) = std::net::TcpListener::bind(place) else { continue };
            let mut at = listener.local_addr().unwrap();
            if place == "[::]:0" {
                at.set_ip([127, 0, 0, 1].into());
            }
            let Ok(client) = std::net::TcpStream::connect(if by_six { of_six(at) } else { at }) else { continue };
            let (server, peer) = listener.accept().unwrap();
            let ends = Ends { peer, local: server.local_addr().unwrap() };
            for found in [look_up(&ends), in_tables(Path::new("/proc"), &ends)] {
                assert!(found == User::Untold || Some(found) == own_uid().map(User::Is), "{place} {by_six}: {found:?}");
            }
            let peer = Peer::default();
            assert_eq!(peer.may_own(LoopbackOwner::SameUser, &ends), Ok(()));
            assert_eq!(peer.may_own(LoopbackOwner::Never, &ends), Err(NotOwner::Never));
            drop(client);
        }
    }

    #[test]
    fn another_user_is_not_the_owner() {
        let asked = ends("127.0.0.1:1", "127.0.0.1:2");
        let peer = |user| Peer(Arc::new(OnceLock::from(user)));
        let own = own_uid().unwrap();
        let stranger = own.wrapping_add(4_711);
        let other = NotOwner::Other { peer: stranger, own };
        for (user, owns) in [
            (User::Is(stranger), Err(other)),
            (User::Is(0), Ok(())),
            (User::Is(own), Ok(())),
            (User::Gone, Err(NotOwner::Unknown)),
            (User::Untold, Ok(())),
        ] {
            assert_eq!(peer(user).may_own(LoopbackOwner::SameUser, &asked), owns, "{user:?}");
        }
        let words = other.to_string();
        assert!(words.contains(&format!("(uid {own})")) && words.ends_with(&format!("of uid {stranger}")), "{words}");
        assert_eq!(peer(User::Is(stranger)).may_own(LoopbackOwner::Anyone, &asked), Ok(()));
    }
}
