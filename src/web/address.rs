//! Addresses that no page may lie at: every one that is not of the open internet. They are those of the registries of special
//! addresses (RFC 6890 and its successors), and those that clouds keep for themselves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ranges of IPv4 with the bits that they share.
const V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "of this host"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "of a carrier's own network"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    // Clouds tell machines their secrets there.
    (Ipv4Addr::new(168, 63, 129, 16), 32, "of a cloud's own services"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "for documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a relay to IPv6"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for measurements"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "for documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// The one range of IPv6 that the open internet uses, and what within it does not belong to it. All else is refused: loopback,
/// private, link-local and multicast addresses, and every form that holds one of IPv4.
const V6_OPEN: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
const V6: &[(Ipv6Addr, u32, &str)] = &[
    // Teredo, which holds an address of IPv4, is within it.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "reserved"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "for documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "an address of IPv4 in another form"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "for documentation"),
];

/// Why nothing is fetched from an address; `None`: it is of the open internet.
pub fn closed(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => {
            let within = |(start, bits, _): &&(Ipv4Addr, u32, &str)| same(start.to_bits(), address.to_bits(), *bits);
            V4.iter().find(within).map(|(_, _, what)| *what)
        }
        IpAddr::V6(address) => {
            let (open, bits) = V6_OPEN;
            if !same6(open, address, bits) {
                return Some(match address.to_ipv4_mapped() {
                    Some(_) => "an address of IPv4 in another form",
                    None => "not of the open internet",
                });
            }
            let within = |(start, bits, _): &&(Ipv6Addr, u32, &str)| same6(*start, address, *bits);
            V6.iter().find(within).map(|(_, _, what)| *what)
        }
    }
}

/// Do the addresses lie in one network of a house? `own` is the address that this machine would speak from.
pub fn neighbours(own: IpAddr, other: IpAddr) -> bool {
    match (own, other) {
        // A house has open addresses of IPv6 itself, 64 bits of them alike.
        (IpAddr::V6(own), IpAddr::V6(other)) => same6(own, other, 64),
        (own, other) => own == other,
    }
}

fn same(a: u32, b: u32, bits: u32) -> bool {
    (a ^ b).leading_zeros() >= bits
}

fn same6(a: Ipv6Addr, b: Ipv6Addr, bits: u32) -> bool {
    (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(address: &str) -> Option<&'static str> {
        closed(address.parse().unwrap())
    }

    /// The first and the last address of every range, and their neighbours outside it where those are open.
    #[test]
    fn every_range_is_closed_from_its_first_to_its_last_address() {
        for (first, last, what) in [
            ("0.0.0.0", "0.255.255.255", "of this host"),
            ("10.0.0.0", "10.255.255.255", "private"),
            ("100.64.0.0", "100.127.255.255", "of a carrier's own network"),
            ("127.0.0.0", "127.255.255.255", "loopback"),
            ("168.63.129.16", "168.63.129.16", "of a cloud's own services"),
            ("169.254.0.0", "169.254.255.255", "link-local"),
            ("172.16.0.0", "172.31.255.255", "private"),
            ("192.0.0.0", "192.0.0.255", "reserved"),
            ("192.0.2.0", "192.0.2.255", "for documentation"),
            ("192.88.99.0", "192.88.99.255", "a relay to IPv6"),
            ("192.168.0.0", "192.168.255.255", "private"),
            ("198.18.0.0", "198.19.255.255", "for measurements"),
            ("198.51.100.0", "198.51.100.255", "for documentation"),
            ("203.0.113.0", "203.0.113.255", "for documentation"),
            ("224.0.0.0", "239.255.255.255", "multicast"),
            ("240.0.0.0", "255.255.255.255", "reserved"),
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "reserved"),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "for documentation"),
            ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "an address of IPv4 in another form"),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "for documentation"),
            ("::ffff:0:0", "::ffff:255.255.255.255", "an address of IPv4 in another form"),
            // The whole below 2000::/3: none, loopback, IPv4 within IPv6, NAT64.
            ("::", "::fffe:ffff:ffff", "not of the open internet"),
            ("::1:0:0:0", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "not of the open internet"),
            // The whole above it: private, link-local, site-local, multicast.
            ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "not of the open internet"),
        ] {
            assert_eq!((why(first), why(last)), (Some(what), Some(what)), "{first} to {last}");
        }
    }

    #[test]
    fn what_everybody_knows_to_be_inside_is_closed() {
        for inside in [
            "::1",
            "fe80::1",
            "fd00::1",
            "fc00::1",
            "fec0::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "2002:7f00:1::",
            "2001:0:0:0:0:0:80ff:fffe",
            "169.254.169.254",
            "fd00:ec2::254",
            "100.100.100.200",
            "192.168.1.1",
            "172.31.0.1",
        ] {
            assert!(why(inside).is_some(), "{inside}");
        }
    }

    #[test]
    fn the_neighbours_of_every_range_are_open() {
        for open in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000::",
            "2001:200::",
            "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db9::",
            "2003::",
            "2606:4700::1111",
            "3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            "3fff:1000::",
        ] {
            assert_eq!(why(open), None, "{open}");
        }
    }

    #[test]
    fn a_house_has_open_addresses_that_are_its_own() {
        let of = |own: &str, other: &str| neighbours(own.parse().unwrap(), other.parse().unwrap());
        assert!(of("2003:1:2:3::5", "2003:1:2:3:ffff::9") && of("8.8.8.8", "8.8.8.8"));
        assert!(!of("2003:1:2:3::5", "2003:1:2:4::5") && !of("8.8.8.8", "8.8.8.9") && !of("8.8.8.8", "2003::1"));
    }
}
