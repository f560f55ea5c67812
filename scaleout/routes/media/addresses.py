"""Which addresses may be dialled on a caller's behalf: public ones, and those the operator names."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

Network = IPv4Network | IPv6Network
LookUp = Callable[[str, int, socket.AddressFamily], Awaitable[Sequence[str]]]
"""Name, port and family → addresses as text."""

FORBIDDEN: Sequence[Network] = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # a cloud's own services, on an address that counts as public
            "64:ff9b::/96",  # IPv4 behind a translator, private ones too
            "64:ff9b:1::/48",
            "2002::/16",  # tunnels to any IPv4 address
            "2001::/32",
        ),
    )
)
"""Public by their registration, but ways to what is not."""


class AddressRefused(Exception):
    """A name or address that is not dialled."""


def read_networks(given: Sequence[str]) -> tuple[Network, ...]:
    return tuple(map(ip_network, given))


def check_address(text: str, allowed: Sequence[Network] = ()) -> None:
    """Raises `AddressRefused` for an address that is neither public nor in one of the `allowed` networks."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        raise AddressRefused("no address") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address in network for network in allowed):
        return
    if not _is_public(address):
        raise AddressRefused("an address that is not public")


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return not any(address in network for network in FORBIDDEN)


def read_literal(host: str) -> str | None:
    """The address where a URL's host is one; None for names, numbers in other spellings among them."""
    try:
        return str(ip_address(host.strip("[]")))
    except ValueError:
        return None


async def look_up(host: str, port: int, family: socket.AddressFamily) -> Sequence[str]:
    """The system's own answer."""
    import asyncio

    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
    return [str(info[4][0]) for info in found]


class CheckedResolver(AbstractResolver):
    """Looks a name up once and hands on the addresses that were checked: no second look-up can give others.

    A name with one refused address among several is refused whole.
    """

    def __init__(self, allowed: Sequence[Network], look_up: LookUp = look_up) -> None:
        self._allowed = allowed
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = list(dict.fromkeys(await self._look_up(host, port, family)))
        for address in addresses:
            check_address(address, self._allowed)
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Holds nothing."""


def _result(host: str, address: str, port: int) -> Any:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return {"hostname": host, "host": address, "port": port, "family": family, "proto": 0, "flags": flags}
