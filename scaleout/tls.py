"""TLS: the certificate is read before anything is loaded, and again when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from scaleout.config.web import WebOptions
from scaleout.errors import ConfigError

LOG = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""Seconds between two looks at the files: a certificate is replaced days before it ends."""


def open_tls(web: WebOptions) -> ssl.SSLContext | None:
    """What the listener speaks; None is plain HTTP. Raises `ConfigError` naming the file that cannot be used."""
    if web.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    load_chain(context, web)
    try:
        if web.ssl_ca_certs is not None:
            context.load_verify_locations(web.ssl_ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ssl-ca-certs {web.ssl_ca_certs}: {_reason(error)}") from None
    try:
        if web.ssl_ciphers is not None:
            context.set_ciphers(web.ssl_ciphers)
    except ssl.SSLError as error:
        raise ConfigError(f"--ssl-ciphers {web.ssl_ciphers}: {_reason(error)}") from None
    context.verify_mode = ssl.VerifyMode(web.ssl_cert_reqs)
    return context


def load_chain(context: ssl.SSLContext, web: WebOptions) -> None:
    """Read certificate and key; connections from now on use them. Raises `ConfigError`."""
    assert web.ssl_certfile is not None
    files = f"--ssl-certfile {web.ssl_certfile}"
    if web.ssl_keyfile is not None:
        files += f", --ssl-keyfile {web.ssl_keyfile}"

    def no_password() -> str:
        # Without this OpenSSL asks at the terminal, and a server would wait there for ever.
        raise ConfigError(f"{files}: the key is encrypted; give one that is not")

    try:
        context.load_cert_chain(web.ssl_certfile, web.ssl_keyfile, no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{files}: {_reason(error)}") from None


async def keep_fresh(context: ssl.SSLContext, web: WebOptions, every: float = LOOK_EVERY) -> None:
    """Read the files again whenever one of them changes. A pair that does not fit is not used, and said once."""
    seen = _stamps(web)
    while True:
        await asyncio.sleep(every)
        now = _stamps(web)
        if now == seen:
            continue
        seen = now
        try:
            # In a context of its own first: a key that does not fit would leave the one in use half replaced.
            load_chain(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), web)
            load_chain(context, web)
            LOG.info("the certificate was read again")
        except ConfigError as error:
            LOG.error("the certificate in use stays: %s", error)


def _stamps(web: WebOptions) -> list[tuple[int, int] | None]:
    stamps: list[tuple[int, int] | None] = []
    for name in (web.ssl_certfile, web.ssl_keyfile):
        try:
            told = Path(name).stat() if name is not None else None
        except OSError:
            told = None
        stamps.append(None if told is None else (told.st_mtime_ns, told.st_ino))
    return stamps


def _reason(error: OSError) -> str:
    return error.strerror or getattr(error, "reason", None) or str(error)
