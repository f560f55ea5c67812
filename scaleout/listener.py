"""The address of a server: bound before anything is loaded, so that a taken one is known at once."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from scaleout.config import ModeConfig
from scaleout.errors import ConfigError

BACKLOG = 1024
"""Connections waiting to be accepted: a burst of short renders should queue in the kernel, not be refused."""


def bind(config: ModeConfig, *, shared: bool = False) -> socket.socket:
    """A listening socket for the configured address. `shared`: others of our own processes listen on the same port.

    Raises `ConfigError` naming the address and the reason.
    """
    try:
        if config.uds:
            return bind_unix(config.uds)
        address, family, dual = _address(config)
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=dual, reuse_port=shared)
    except OSError as error:
        raise refusal(config, error) from None


def reserve(config: ModeConfig) -> socket.socket:
    """The configured port for our own processes to share, though this socket takes no connections itself.

    Raises `ConfigError` when anybody else listens there, also another server that would share.
    """
    bind(config).close()
    address, family, dual = _address(config)
    reserved = socket.socket(family)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        raise refusal(config, error) from None
    return reserved


def _address(config: ModeConfig) -> tuple[tuple[str, int], socket.AddressFamily, bool]:
    """Host and port, address family, and whether one socket serves both families."""
    host = config.host or ""
    dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
    return (host, config.port), family, dual


def refusal(config: ModeConfig, error: OSError) -> ConfigError:
    where = config.uds or f"{config.host or '*'}:{config.port}"
    return ConfigError(f"cannot listen on {where}: {error.strerror or error}")


def bind_unix(path: str) -> socket.socket:
    """Listen on a path. A socket file that a dead server left behind is replaced; a living server's is not."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
        except FileNotFoundError:
            pass
        else:
            raise OSError(errno.EADDRINUSE, "another server listens there")
    return socket.create_server(path, family=socket.AF_UNIX, backlog=BACKLOG)


def url(listener: socket.socket, tls: bool = False) -> str:
    """Where clients find the listener."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{'https' if tls else 'http'}://{host}:{name[1]}"
