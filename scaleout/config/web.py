"""WebOptions: what a server shows to browsers and over TLS. Named as vLLM names it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from scaleout.config.options import SWITCH, TEXT, Kind, integer, option

_web = partial(option, group="web")


def _read_list(value: Any) -> tuple[str, ...]:
    """`["a", "b"]` as JSON or from a file; a single word stands for itself."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text) if text.startswith("[") else [text] if text else []
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
        raise ValueError('a JSON list of texts is needed, such as ["https://a.example"]')
    return tuple(value)


def _read_file(value: Any) -> str:
    path = Path(str(value)).expanduser()
    if not path.is_file():
        raise ValueError("there is no such file")
    return str(path)


JSON_LIST = Kind(_read_list, "JSON")
FILE = Kind(_read_file, "FILE")


@frozen
class WebOptions:
    """TLS, cross-origin requests, and the pages about the API."""

    ssl_certfile: str | None = _web(
        None, FILE, "Certificate with its chain, PEM. With it the server speaks TLS and nothing else."
    )
    ssl_keyfile: str | None = _web(
        None, FILE, "Private key of the certificate, PEM. Default: in the certificate's file."
    )
    ssl_ca_certs: str | None = _web(None, FILE, "Authorities that may have signed the certificates of clients, PEM.")
    ssl_cert_reqs: int = _web(
        0, integer(0, 2), "Certificates of clients: 0 are not asked for, 1 are checked if they come, 2 are needed."
    )
    ssl_ciphers: str | None = _web(None, TEXT, "Ciphers in OpenSSL's words. Default: what Python holds to be safe.")
    enable_ssl_refresh: bool = _web(False, SWITCH, "Take up certificate and key again when their files change.")
    allowed_origins: Sequence[str] = _web(
        (), JSON_LIST, 'Origins whose pages may ask this server, ["*"] for all. Default: none.'
    )
    allowed_methods: Sequence[str] = _web(("*",), JSON_LIST, "Methods that they may use.")
    allowed_headers: Sequence[str] = _web(("*",), JSON_LIST, "Headers that they may send.")
    allow_credentials: bool = _web(False, SWITCH, "Let their pages send cookies and the like.")
    docs: bool = _web(
        True,
        SWITCH,
        "Offer /openapi.json and the page /docs, which loads nothing from elsewhere.",
        opposite="--disable-fastapi-docs",
    )


def web_conflicts(web: WebOptions) -> Iterable[str]:
    """What cannot be meant together, as sentences."""
    if web.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_ciphers", "ssl_cert_reqs", "enable_ssl_refresh"):
            if getattr(web, name):
                yield f"--{name.replace('_', '-')} needs --ssl-certfile"
    elif web.ssl_cert_reqs and web.ssl_ca_certs is None:
        yield f"--ssl-cert-reqs {web.ssl_cert_reqs} needs --ssl-ca-certs: without authorities no certificate is good"
    if web.allow_credentials and "*" in web.allowed_origins:
        yield "--allow-credentials conflicts with --allowed-origins *: every site could act for its visitors; name the origins"
    if web.allow_credentials and not web.allowed_origins:
        yield "--allow-credentials needs --allowed-origins"
