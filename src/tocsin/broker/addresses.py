"""The addresses that webhooks may reach: public ones, and the networks that an operator allows.

Enters: an address, allowed and denied networks. Leaves: nothing, or an error. The list is our own,
from IANA's registries of special-purpose addresses (IPv4 and IPv6, 2025), so that it is the same on
every version of Python. Of IPv6 only global unicast (2000::/3) is public at all.

An IPv6 address that stands for an IPv4 address is judged by that one where a gateway or the system
itself sends it there (RFC 4291 section 2.5.5.2 mapped; RFC 6052 NAT64); the deprecated forms
(compatible, translated, 6to4, Teredo) are refused whatever they stand for.
"""

from __future__ import annotations

import ipaddress
from functools import cache

from tocsin.errors import ArgumentError

_REFUSED = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # public by number, but a platform's service on every machine of Azure
        "169.254.0.0/16",  # link-local, metadata of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
]
_GLOBAL = ipaddress.IPv6Network("2000::/3")
_REFUSED_6 = [
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3ffe::/16",  # 6bone
        "3fff::/20",  # documentation
    )
]
_STANDS_FOR = [ipaddress.IPv6Network(each) for each in ("::ffff:0:0/96", "64:ff9b::/96")]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@cache
def _network(text: str) -> Network:
    return ipaddress.ip_network(text)


def _is_in(address: Address, networks: tuple[str, ...]) -> bool:
    parsed = map(_network, networks)
    return any(address.version == each.version and address in each for each in parsed)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _REFUSED)
    return address in _GLOBAL and not any(address in network for network in _REFUSED_6)


def check_address(text: str, allowed: tuple[str, ...], denied: tuple[str, ...] = ()) -> None:
    """Refuse an address that is not public, unless it is in an allowed network; denied ones win."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    same = [address]
    if isinstance(address, ipaddress.IPv6Address) and any(address in n for n in _STANDS_FOR):
        same.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    if any(_is_in(each, denied) for each in same):
        raise ArgumentError(f"webhooks may not reach {address}: webhook_deny has it")
    if any(_is_in(each, allowed) for each in same):
        return
    if not _is_public(same[-1]):
        raise ArgumentError(
            f"webhooks may not reach {address}, which is not public "
            "(an operator can allow its network: webhook_allow)"
        )
