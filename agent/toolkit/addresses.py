"""Which addresses lie on the public internet, and which ones a stranger's URL must never reach.

What is public is listed; all else is not. `ipaddress.is_global` is asked as well, but not trusted alone: its answers
have changed between patch releases of Python, and it does not look inside addresses that carry another address.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by a provider's customers; the metadata service of one cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # looks public: the host beneath every machine of one cloud
        "169.254.0.0/16",  # link-local; the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo, benchmarks, ORCHID
        "2001:db8::/32",
        "3fff::/20",  # documentation
    )
)
_SIX_TO_FOUR = IPv6Network("2002::/16")
_NAT64 = IPv6Network("64:ff9b::/96")
_MAPPED = (IPv6Network("::ffff:0:0/96"), IPv6Network("::ffff:0:0:0/96"))
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_public(address: str) -> bool:
    """Whether it is fine to connect there. What is not plainly an address is not."""
    if "%" in address:  # a zone: an address of this machine's own networks
        return False
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return _is_public_v4(parsed)
    carried = list(_carried(parsed))
    if not all(_is_public_v4(inner) for inner in carried):
        return False
    if parsed in _SIX_TO_FOUR or parsed in _NAT64 or any(parsed in network for network in _MAPPED):
        return bool(carried)
    return parsed in _PUBLIC_V6 and parsed.is_global and not any(parsed in network for network in _NOT_PUBLIC_V6)


def _is_public_v4(address: IPv4Address) -> bool:
    return address.is_global and not any(address in network for network in _NOT_PUBLIC_V4)


def _carried(address: IPv6Address) -> Iterator[IPv4Address]:
    """Addresses that a gateway on the way may take out of this one."""
    bits = int(address)
    if address in _NAT64 or any(address in network for network in _MAPPED):
        yield IPv4Address(bits & 0xFFFFFFFF)
    if address in _SIX_TO_FOUR:
        yield IPv4Address(bits >> 80 & 0xFFFFFFFF)
    if bits >> 32 & 0xFFFFFFFF in _ISATAP:
        yield IPv4Address(bits & 0xFFFFFFFF)
