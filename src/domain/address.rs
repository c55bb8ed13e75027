//! Which addresses are of the public internet. Pure functions on [`IpAddr`]: no name is resolved here, so callers check
//! the address that they connect to, and no notation of an address can be another to them.
//!
//! Source: the IANA registries of special-purpose addresses (RFC 6890) and of IPv6's global unicast space.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::text::items;

/// Of no public host: this network, private, shared (which holds Alibaba's metadata), loopback, link-local (which holds
/// the metadata of most clouds), protocol assignments (which hold Oracle's), documentation, the former 6to4 relays,
/// private, benchmarks, documentation, multicast, reserved with broadcast, and Azure's platform.
const NOT_PUBLIC_V4: [Ipv4Net; 16] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
    v4([168, 63, 129, 16], 32),
];

/// Global unicast. Everything else is loopback, local, multicast or not assigned.
const PUBLIC_V6: Ipv6Net = v6([0x2000, 0, 0], 3);

/// Ranges of global unicast without public hosts: protocol assignments with Teredo, documentation twice.
const NOT_PUBLIC_V6: [Ipv6Net; 3] = [v6([0x2001, 0, 0], 23), v6([0x2001, 0xdb8, 0], 32), v6([0x3fff, 0, 0], 20)];

/// Leads to the IPv4 address in its second and third group.
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0], 16);

/// Leads to the IPv4 address in its last two groups (RFC 6052). The local prefix `64:ff9b:1::/48` is not public.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0], 96);

/// Where a connection to an address ends: the IPv4 address that some IPv6 addresses carry inside, or itself.
pub fn destination(address: IpAddr) -> IpAddr {
    let IpAddr::V6(outer) = address else { return address };
    let groups = outer.segments();
    let inner = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)).into();
    if outer.to_ipv4_mapped().is_some() || NAT64.contains(&outer) {
        inner(groups[6], groups[7])
    } else if SIX_TO_FOUR.contains(&outer) {
        inner(groups[1], groups[2])
    } else {
        address
    }
}

/// Whether an address is of a public host: a server that fetches an address of a client connects to no other.
pub fn is_public(address: IpAddr) -> bool {
    match destination(address) {
        IpAddr::V4(address) => !NOT_PUBLIC_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => PUBLIC_V6.contains(&address) && !NOT_PUBLIC_V6.iter().any(|net| net.contains(&address)),
    }
}

/// What counts as one address: of IPv6 the network that one customer usually has.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Networks of a list with commas: `10.0.0.0/8,::1`. `None` where one is none.
pub fn networks(list: &str) -> Option<Vec<IpNet>> {
    items(list).map(|text| text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))).collect()
}

const fn v4([a, b, c, d]: [u8; 4], length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6([a, b, c]: [u16; 3], length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_the_internet_are_public() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "168.63.129.17",
            "2606:4700::1111",
            "2001:200::1",
            "2a00:1450::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
        ] {
            assert!(is_public(text.parse().expect(text)), "{text}");
        }
    }

    #[test]
    fn networks_are_read_from_a_list() {
        let found = networks("10.0.0.0/8, 192.0.2.1,::1").expect("networks");
        let contains = |text: &str| found.iter().any(|net| net.contains(&text.parse::<IpAddr>().expect(text)));
        assert!(contains("10.1.2.3") && contains("192.0.2.1") && contains("::1") && !contains("192.0.2.2"));
        assert_eq!(networks(""), Some(Vec::new()));
        assert_eq!(networks("10.0.0.0/8,proxy"), None);
    }

    #[test]
    fn local_special_and_embedded_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::1.1.1.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:7f00:1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1.1.1.1",
            "100::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::1",
            "2002:a00:1::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().expect(text)), "{text}");
        }
    }
}
