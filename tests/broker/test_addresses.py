"""Which addresses webhooks may be aimed at."""

from __future__ import annotations

import pytest

from tocsin.broker.addresses import check_address
from tocsin.errors import ArgumentError

PRIVATE = """
127.0.0.1 0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 169.254.169.254 172.31.255.255 192.0.0.8
192.0.0.192 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.1.1 192.175.48.1 198.18.0.1
198.51.100.1 203.0.113.5 224.0.0.1 240.0.0.1 255.255.255.255 168.63.129.16
:: ::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::127.0.0.1 ::7f00:1 ::8.8.8.8 ::ffff:0:127.0.0.1
::ffff:0:8.8.8.8 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::a00:1 64:ff9b:1::808:808 100::1
2001::1 2001:0:7f00:1:: 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:808:808::
2620:4f:8000::1 3ffe::1 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1
ff02::1
""".split()
PUBLIC = "1.1.1.1 8.8.8.8 2606:4700::1111 2a00:1450:4001::1 64:ff9b::808:808 ::ffff:8.8.8.8".split()


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(ArgumentError, match="not public"):
        check_address(address, ())


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    check_address(address, ())


def test_an_operator_allows_networks_in_either_form() -> None:
    check_address("10.1.2.3", ("10.0.0.0/8",))
    check_address("::ffff:10.1.2.3", ("10.0.0.0/8",))
    check_address("64:ff9b::a01:203", ("10.0.0.0/8",))
    check_address("fd00::1", ("fd00::/8", "10.0.0.0/8"))
    with pytest.raises(ArgumentError):
        check_address("11.0.0.1", ("10.0.0.0/8",), ("11.0.0.0/8",))


def test_what_is_denied_is_refused_though_public_or_allowed() -> None:
    for address in ("8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        with pytest.raises(ArgumentError, match="webhook_deny"):
            check_address(address, ("0.0.0.0/0", "::/0"), ("8.8.8.0/24",))
    check_address("8.8.4.4", (), ("8.8.8.0/24",))
