use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which addresses an endpoint may be at. Link-local and metadata addresses are refused under every policy, after
/// name resolution: a name that leads there is as good as the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressPolicy {
    /// Loopback and private networks too: the operator wrote the URL.
    #[default]
    Operator,
    /// Public addresses only: a caller wrote it.
    Public,
}

/// Why an address is not connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAddress {
    /// 169.254.0.0/16 or fe80::/10.
    #[error("{0} is a link-local address")]
    LinkLocal(IpAddr),
    /// Where a cloud provider hands out credentials.
    #[error("{0} is a metadata address of a cloud provider")]
    Metadata(IpAddr),
    /// Names no host, or many.
    #[error("{0} is not the address of one host")]
    NotUnicast(IpAddr),
    /// Loopback or private, where only public addresses are allowed.
    #[error("{0} is not a public address")]
    NotPublic(IpAddr),
}

impl AddressPolicy {
    /// Whether an address may be connected to.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(self, address: IpAddr) -> Result<(), RefusedAddress> {
        let plain = embedded(address);
        match plain {
            IpAddr::V4(v4) => check_v4(v4, address)?,
            IpAddr::V6(v6) => check_v6(v6, address)?,
        }
        if self == Self::Public && !is_public(plain) {
            return Err(RefusedAddress::NotPublic(address));
        }
        Ok(())
    }
}

/// The IPv4 address inside an IPv6 one that is only another spelling of it (mapped, compatible, NAT64, 6to4).
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let v4 = match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => (high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => (high, low),
        _ => return address,
    };
    IpAddr::V4(Ipv4Addr::from((u32::from(v4.0) << 16) | u32::from(v4.1)))
}

fn check_v4(v4: Ipv4Addr, shown: IpAddr) -> Result<(), RefusedAddress> {
    // Alibaba, Oracle and Azure serve metadata outside of 169.254.0.0/16.
    const METADATA: [[u8; 4]; 3] = [[100, 100, 100, 200], [192, 0, 0, 192], [168, 63, 129, 16]];
    if v4.is_link_local() {
        return Err(RefusedAddress::LinkLocal(shown));
    }
    if METADATA.contains(&v4.octets()) {
        return Err(RefusedAddress::Metadata(shown));
    }
    if v4.octets().starts_with(&[0]) || v4.is_broadcast() || v4.is_multicast() {
        return Err(RefusedAddress::NotUnicast(shown));
    }
    Ok(())
}

fn check_v6(v6: Ipv6Addr, shown: IpAddr) -> Result<(), RefusedAddress> {
    // AWS and Google, IPv6.
    const METADATA: [[u16; 8]; 2] = [
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254],
        [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254],
    ];
    if v6.is_unicast_link_local() {
        return Err(RefusedAddress::LinkLocal(shown));
    }
    if METADATA.contains(&v6.segments()) {
        return Err(RefusedAddress::Metadata(shown));
    }
    if v6.is_unspecified() || v6.is_multicast() {
        return Err(RefusedAddress::NotUnicast(shown));
    }
    Ok(())
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            let benchmark = a == 198 && (b == 18 || b == 19);
            let protocols = v4.octets().starts_with(&[192, 0, 0]);
            let reserved = a >= 240;
            let special = shared || benchmark || protocols || reserved;
            !(v4.is_loopback() || v4.is_private() || v4.is_documentation() || special)
        }
        IpAddr::V6(v6) => {
            let [first, second, ..] = v6.segments();
            let global = first & 0xe000 == 0x2000;
            // Teredo and its like, and documentation.
            let special = first == 0x2001 && (second < 0x200 || second == 0xdb8) || first == 0x3fff;
            global && !special
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: AddressPolicy, text: &str) -> Result<(), RefusedAddress> {
        policy.check(text.parse().unwrap())
    }

    #[test]
    fn link_local_and_metadata_addresses_are_refused_in_every_spelling() {
        for text in [
            "169.254.169.254",
            "169.254.0.1",
            "fe80::1",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            let refused = check(AddressPolicy::Operator, text).unwrap_err();
            assert!(
                matches!(refused, RefusedAddress::LinkLocal(_)),
                "{text}: {refused}"
            );
        }
        for text in [
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            let refused = check(AddressPolicy::Operator, text).unwrap_err();
            assert!(
                matches!(refused, RefusedAddress::Metadata(_)),
                "{text}: {refused}"
            );
        }
        for text in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"] {
            let refused = check(AddressPolicy::Operator, text).unwrap_err();
            assert!(
                matches!(refused, RefusedAddress::NotUnicast(_)),
                "{text}: {refused}"
            );
        }
    }

    #[test]
    fn loopback_and_private_addresses_are_for_operators() {
        for text in [
            "127.0.0.1",
            "::1",
            "10.0.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "192.0.0.8",
            "fd12::1",
            "fec0::1",
            "2001:0:7f00:1::",
            "2001:db8::1",
            "3fff::1",
            "64:ff9b:1::7f00:1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(check(AddressPolicy::Operator, text), Ok(()), "{text}");
            let refused = check(AddressPolicy::Public, text).unwrap_err();
            assert!(
                matches!(refused, RefusedAddress::NotPublic(_)),
                "{text}: {refused}"
            );
        }
        for text in [
            "1.1.1.1",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(check(AddressPolicy::Public, text), Ok(()), "{text}");
        }
    }
}
