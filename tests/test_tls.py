"""TLS end to end, with certificates of our own making: who is let in, what is refused at start, and how a certificate is replaced."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme
from aiohttp import web

from scaleout.app import serve
from scaleout.config import Mode, ModeConfig
from scaleout.config.web import WebOptions
from scaleout.errors import ConfigError
from scaleout.listener import bind, url
from scaleout.tls import keep_fresh, open_tls


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write_pair(authority: trustme.CA, folder: Path) -> dict[str, str]:
    """A new certificate for this host, as two files."""
    pair = authority.issue_cert("127.0.0.1")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
    key.write_bytes(pair.private_key_pem.bytes())
    return {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}


def write_key(authority: trustme.CA, pair: dict[str, str]) -> None:
    """A key that is not the certificate's."""
    Path(pair["ssl_keyfile"]).write_bytes(authority.issue_cert("127.0.0.1").private_key_pem.bytes())


@pytest.fixture
def pair(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    return write_pair(authority, tmp_path)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@contextmanager
def listening(context: ssl.SSLContext | None, beside: Coroutine[Any, Any, None] | None = None) -> Iterator[int]:
    """Answer every TLS connection on a port until the block ends; `beside` runs on the server's own event loop, as in an application."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/live", hello)
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    runner = web.AppRunner(app, access_log=None)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port: int = runner.addresses[0][1]
        return port

    more = None if beside is None else asyncio.run_coroutine_threadsafe(beside, loop)
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    finally:
        if more is not None:
            more.cancel()
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def ask(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    try:
        connection.request("GET", "/live")
        return connection.getresponse().status
    finally:
        connection.close()


async def test_a_whole_server_speaks_tls_and_nothing_else(
    authority: trustme.CA, pair: dict[str, str], tiny_model: Callable[..., Path]
) -> None:
    config = ModeConfig(
        Mode.RENDER_ONLY,
        model=str(tiny_model("llama2")),
        host="127.0.0.1",
        port=0,
        workers=1,
        access_log=False,
        web=WebOptions(**pair, enable_ssl_refresh=True),  # type: ignore[arg-type]
    )
    context = open_tls(config.web)
    with bind(config) as listener:
        port = listener.getsockname()[1]
        assert url(listener, True) == f"https://127.0.0.1:{port}"
        running = asyncio.create_task(serve(config, listener, None, context))
        try:
            while True:
                try:
                    assert await asyncio.to_thread(ask, port, trusting(authority)) == 200
                    break
                except ConnectionError:
                    await asyncio.sleep(0.01)
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.to_thread(ask, port, ssl.create_default_context())
            with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
                plain.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
                assert not (await asyncio.to_thread(plain.recv, 100)).startswith(b"HTTP")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await running


@pytest.mark.parametrize(("needed", "without"), [(2, False), (1, True), (0, True)])
def test_certificates_of_clients(
    authority: trustme.CA, pair: dict[str, str], tmp_path: Path, needed: int, without: bool
) -> None:
    roots = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(roots))
    options: dict[str, Any] = {**pair, "ssl_ca_certs": str(roots), "ssl_cert_reqs": needed}
    known, stranger = trusting(authority), trusting(authority)
    authority.issue_cert("client").configure_cert(known)
    trustme.CA().issue_cert("client").configure_cert(stranger)
    with listening(open_tls(WebOptions(**options))) as port:
        assert ask(port, known) == 200
        if without:
            assert ask(port, trusting(authority)) == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(port, trusting(authority))
        if needed:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(port, stranger)


async def test_a_new_certificate_is_taken_up_and_a_broken_one_is_not(
    authority: trustme.CA, pair: dict[str, str], tmp_path: Path
) -> None:
    options = WebOptions(**pair)  # type: ignore[arg-type]
    context = open_tls(options)
    assert context is not None
    newer = trustme.CA()
    with listening(context, keep_fresh(context, options, every=0.01)) as port:
        write_key(newer, pair)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert await asyncio.to_thread(ask, port, trusting(authority)) == 200  # the old pair serves on
        write_pair(newer, tmp_path)
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await asyncio.to_thread(ask, port, trusting(newer)) == 200
                    break
                except ssl.SSLCertVerificationError:
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"ssl_certfile": b"no certificate"}, "--ssl-certfile"),
        ({"ssl_keyfile": b"no key"}, "--ssl-keyfile"),
        ({"ssl_ca_certs": b"nothing"}, "--ssl-ca-certs"),
        ({"ssl_ciphers": "NONSENSE"}, "--ssl-ciphers"),
    ],
)
def test_what_cannot_be_used_is_said_at_start(
    pair: dict[str, str], tmp_path: Path, broken: dict[str, Any], said: str
) -> None:
    options: dict[str, Any] = dict(pair)
    for name, value in broken.items():
        options[name] = value
        if isinstance(value, bytes):
            options[name] = str(tmp_path / "broken.pem")
            Path(options[name]).write_bytes(value)
    with pytest.raises(ConfigError, match=said):
        open_tls(WebOptions(**options))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    authority: trustme.CA, pair: dict[str, str]
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(pair["ssl_keyfile"]).read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    Path(pair["ssl_keyfile"]).write_bytes(locked)
    with pytest.raises(ConfigError, match="encrypted"):
        open_tls(WebOptions(**pair))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--ssl-keyfile", "{key}"], "--ssl-keyfile needs --ssl-certfile"),
        (["--ssl-certfile", "{cert}", "--ssl-cert-reqs", "2"], "--ssl-cert-reqs 2 needs --ssl-ca-certs"),
        (["--ssl-certfile", "/nowhere.pem"], "there is no such file"),
        (["--ssl-cert-reqs", "3"], "must be between 0 and 2"),
        (["--enable-ssl-refresh"], "--enable-ssl-refresh needs --ssl-certfile"),
        (["--allowed-origins", '["*"]', "--allow-credentials"], "every site could act for its visitors"),
        (["--allow-credentials"], "--allow-credentials needs --allowed-origins"),
        (["--allowed-origins", "[1]"], "a JSON list of texts is needed"),
        (["--allowed-methods", "["], "a JSON list of texts is needed"),
    ],
)
def test_settings_that_cannot_be_meant(pair: dict[str, str], argv: list[str], said: str) -> None:
    words = [word.format(key=pair["ssl_keyfile"], cert=pair["ssl_certfile"]) if "{" in word else word for word in argv]
    with pytest.raises(ConfigError, match=re.escape(said)):
        ModeConfig.load(["serve", "m", *words], {})


def test_settings_as_users_of_vllm_type_them(pair: dict[str, str]) -> None:
    argv = ["serve", "m", "--allowed-origins", '["https://a.example", "https://b.example"]', "--allowed-headers", "x-a"]
    argv += ["--ssl-certfile", pair["ssl_certfile"], "--ssl-keyfile", pair["ssl_keyfile"], "--disable-fastapi-docs"]
    web = ModeConfig.load(argv, {"SCALEOUT_ALLOW_CREDENTIALS": "1"}).web
    assert web.allowed_origins == ("https://a.example", "https://b.example")
    assert (web.allowed_methods, web.allowed_headers, web.allow_credentials) == (("*",), ("x-a",), True)
    assert (web.ssl_certfile, web.ssl_keyfile) == (pair["ssl_certfile"], pair["ssl_keyfile"])
    assert web.docs is False
