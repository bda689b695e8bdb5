"""Which network addresses lie on the public internet: the only ones that a server may be sent to by its clients."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

# IANA's special-purpose registries (RFC 6890 and its updates). `ipaddress.is_global` is not used: it calls multicast
# and site-local addresses global, and differs between versions of Python.
_REFUSED_V4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds keep their metadata service here
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host, a public number that leads inside
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_UNICAST_V6 = IPv6Network("2000::/3")  # all that is given out; the rest of IPv6 is local, multicast or reserved
_REFUSED_V6 = tuple(IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "3fff::/20"))
# Blocks whose addresses lead to an IPv4 address, and how far above the lowest bit it stands: IPv4-mapped, NAT64, 6to4.
_EMBEDDING_V6 = ((IPv6Network("::ffff:0:0/96"), 0), (IPv6Network("64:ff9b::/96"), 0), (IPv6Network("2002::/16"), 80))


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """False for private, loopback, link-local, shared, multicast, documentation and reserved addresses.

    An IPv6 address that leads to an IPv4 address is judged by that.
    """
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _REFUSED_V4)
    for block, shift in _EMBEDDING_V6:
        if address in block:
            return is_public(IPv4Address(int(address) >> shift & 0xFFFF_FFFF))
    return address in _UNICAST_V6 and not any(address in block for block in _REFUSED_V6)
