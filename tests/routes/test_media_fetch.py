"""Fetching media (C30): what is never dialled, what is cut off, and that nothing of it stays in memory or logs."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scaleout.config.media import MediaOptions
from scaleout.core.media import MediaRef, MediaSet
from scaleout.errors import BadRequest, Overloaded
from scaleout.routes.media.addresses import AddressRefused, check_address
from scaleout.routes.media.fetch import MediaFetcher

HERE = "127.0.0.5"
"""The one address that these tests let servers have. All other loopback addresses stay refused."""


@asynccontextmanager
async def site(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], host: str = HERE
) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    server = web.TCPSite(runner, host, 0)
    await server.start()
    try:
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def fetcher(look_up: Any = None, **options: Any) -> MediaFetcher:
    given = MediaOptions(**{"allowed_networks": (f"{HERE}/32",), "fetch_timeout": 5.0, **options})
    return MediaFetcher(given) if look_up is None else MediaFetcher(given, look_up)


async def fetch(desk: MediaFetcher, *urls: str) -> MediaSet:
    refs = [MediaRef("image", url, None, f"messages.{i}.content.0") for i, url in enumerate(urls)]
    try:
        async with desk.fetched(refs) as media:
            return media
    finally:
        assert desk.held == 0
        await desk.close()


async def body(request: web.BaseRequest) -> web.Response:
    return web.Response(body=b"picture", content_type="image/png")


async def test_a_file_comes_with_what_its_sender_calls_it() -> None:
    async with site(body) as base:
        media = await fetch(fetcher(), f"{base}/a", f"{base}/a", "data:image/png;base64,AAAA")
    assert [(file.data, file.media_type) for file in media.files.values()] == [(b"picture", "image/png")] * 2


class Trap:
    """A server that counts who comes by."""

    def __init__(self, host: str) -> None:
        self.socket = socket.create_server((host, 0))
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]

    def visitors(self) -> int:
        count = 0
        while True:
            try:
                self.socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


@pytest.fixture
def trap() -> Any:
    made = Trap("127.0.0.1")
    yield made
    made.socket.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/x",
        "http://127.0.0.1:{port}/x",
        "http://[::ffff:127.0.0.1]:{port}/x",
        "http://[::1]:{port}/x",
        "http://2130706433:{port}/x",
        "http://0x7f.1:{port}/x",
        "http://127.1:{port}/x",
        "http://localhost:{port}/x",
        "http://LOCALHOST.:{port}/x",
        "http://0.0.0.0:{port}/x",
        "http://10.1.2.3/x",
        "http://192.168.0.1/x",
        "http://100.100.100.200/x",
        "http://168.63.129.16/x",
        "http://[fd00:ec2::254]/x",
        "http://[fe80::1%25lo]/x",
        "http://[64:ff9b::7f00:1]/x",
        "http://[2002:7f00:1::]/x",
        "http://224.0.0.1/x",
        "http://255.255.255.255/x",
        "file:///etc/hostname",
        "ftp://example.com/x",
        "gopher://127.0.0.1:{port}/x",
        "javascript:alert(1)",
        "http://user:secret@127.0.0.5:{port}/x",
        "http:///x",
        "http://a:99999/x",
        "//127.0.0.1:{port}/x",
        "http://" + "a" * 20_000,
    ],
)
async def test_what_is_never_dialled(url: str, trap: Trap) -> None:
    with pytest.raises(BadRequest) as caught:
        await fetch(fetcher(), url.format(port=trap.port))
    assert caught.value.param == "messages.0.content.0"
    assert "secret" not in caught.value.message
    assert trap.visitors() == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_checked_like_the_first_address(status: int, trap: Trap) -> None:
    async def away(request: web.BaseRequest) -> web.Response:
        return web.Response(status=status, headers={"Location": f"http://127.0.0.1:{trap.port}/"})

    async with site(away) as base:
        with pytest.raises(BadRequest, match="not public"):
            await fetch(fetcher(), base)
    assert trap.visitors() == 0


async def test_redirects_are_followed_a_few_times_or_not_at_all() -> None:
    async def hop(request: web.BaseRequest) -> web.StreamResponse:
        left = int(request.path[1:])
        return web.Response(status=302, headers={"Location": f"/{left - 1}"}) if left else await body(request)

    async with site(hop) as base:
        assert len((await fetch(fetcher(), f"{base}/5")).files) == 1
        with pytest.raises(BadRequest, match="more than 5 times"):
            await fetch(fetcher(), f"{base}/6")
        with pytest.raises(BadRequest, match="not followed"):
            await fetch(fetcher(allow_redirects=False), f"{base}/1")


async def test_a_redirect_to_another_scheme_is_not_followed() -> None:
    async def away(request: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": "file:///etc/hostname"})

    async with site(away) as base:
        with pytest.raises(BadRequest):
            await fetch(fetcher(), base)


async def test_a_name_is_looked_up_once_and_that_address_dialled(trap: Trap) -> None:
    answers = [[HERE], ["127.0.0.1"]]
    asked = []

    async def look_up(host: str, port: int, family: socket.AddressFamily) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), 2) - 1]

    async with site(body) as base:
        port = base.rpartition(":")[2]
        assert (await fetch(fetcher(look_up), f"http://rebind.example:{port}/")).files
    assert asked == ["rebind.example"]
    with pytest.raises(BadRequest, match="not public"):
        await fetch(fetcher(look_up), f"http://rebind.example:{trap.port}/")
    assert trap.visitors() == 0


async def test_one_bad_address_among_several_refuses_the_name(trap: Trap) -> None:
    async def look_up(host: str, port: int, family: socket.AddressFamily) -> Sequence[str]:
        return ["93.184.215.14", "127.0.0.1"]

    with pytest.raises(BadRequest, match="not public"):
        await fetch(fetcher(look_up), f"http://two.example:{trap.port}/")
    assert trap.visitors() == 0


async def test_only_the_named_hosts() -> None:
    async def look_up(host: str, port: int, family: socket.AddressFamily) -> Sequence[str]:
        return [HERE]

    async with site(body) as base:
        port = base.rpartition(":")[2]
        domains = ("one.example", ".two.example")
        for host in ("one.example", "ONE.example.", "a.two.example"):
            assert (await fetch(fetcher(look_up, allowed_domains=domains), f"http://{host}:{port}/")).files
        for host in ("x.one.example", "two.example", "evilone.example", "one.example.evil.example", HERE):
            with pytest.raises(BadRequest, match="allowed-media-domains"):
                await fetch(fetcher(look_up, allowed_domains=domains), f"http://{host}:{port}/")


async def test_sizes_are_bounded_whatever_is_announced() -> None:
    async def announced(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(10**12)})
        await response.prepare(request)
        return response

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(bytes(65536))
        return response

    async with site(announced) as base:
        with pytest.raises(BadRequest, match="larger than the limit of 1000000 bytes"):
            await fetch(fetcher(max_bytes=1_000_000), base)
    async with site(endless) as base:
        with pytest.raises(BadRequest, match="larger than the limit of 1000000 bytes"):
            await fetch(fetcher(max_bytes=1_000_000), base)
        with pytest.raises(BadRequest, match="1500000 bytes together"):
            await fetch(fetcher(max_bytes=1_000_000, max_total_bytes=1_500_000), f"{base}/a", f"{base}/b")


async def test_what_others_hold_counts_too() -> None:
    async with site(body) as base:
        desk = fetcher(max_total_bytes=len(b"picture"))
        refs = [MediaRef("image", base, None)]
        async with AsyncExitStack() as held:
            for _ in range(4):
                await held.enter_async_context(desk.fetched(refs))
            with pytest.raises(Overloaded):
                await held.enter_async_context(desk.fetched(refs))
        assert (await fetch(desk, base)).files


@contextmanager
def release_at_end(event: asyncio.Event) -> Iterator[None]:
    try:
        yield
    finally:
        event.set()


@pytest.mark.parametrize("when", ["before the head", "in the body"])
async def test_a_stalled_host_is_given_up(when: str) -> None:
    release = asyncio.Event()

    async def stall(request: web.BaseRequest) -> web.StreamResponse:
        if when == "in the body":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b"x")
        await release.wait()
        return web.Response()

    async with site(stall) as base:
        with release_at_end(release), pytest.raises(BadRequest, match=r"did not arrive within 0\.3 seconds"):
            await fetch(fetcher(fetch_timeout=0.3), base)


async def test_a_body_cut_short_is_no_file() -> None:
    async def liar(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"x")
        assert request.transport is not None
        request.transport.close()
        return response

    async with site(liar) as base:
        with pytest.raises(BadRequest, match="cannot be fetched"):
            await fetch(fetcher(), base)


async def test_other_answers_are_refused_by_name() -> None:
    async def missing(request: web.BaseRequest) -> web.Response:
        return web.Response(status=404)

    async def inflated(request: web.BaseRequest) -> web.Response:
        return web.Response(body=zlib.compress(bytes(10**6)), headers={"Content-Encoding": "deflate"})

    async with site(missing) as base:
        with pytest.raises(BadRequest, match="answered 404"):
            await fetch(fetcher(), base)
    async with site(inflated) as base:
        with pytest.raises(BadRequest, match="compressed"):
            await fetch(fetcher(), base)
    with pytest.raises(BadRequest, match="cannot be fetched"):
        await fetch(fetcher(), f"http://{HERE}:9/")


async def test_files_of_this_host_only_below_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "open"
    inside.mkdir()
    (inside / "a b.png").write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    allowed = {"allowed_local_path": str(inside.resolve())}
    media = await fetch(fetcher(**allowed), f"file://{inside}/a%20b.png", f"file://localhost{inside}/a%20b.png")
    assert {file.data for file in media.files.values()} == {b"picture"}
    for path in ("/link", "/../secret", "/none", "", "/%2e%2e/secret", "/a%00b"):
        with pytest.raises(BadRequest, match="no such file"):
            await fetch(fetcher(**allowed), f"file://{inside}{path}")
    with pytest.raises(BadRequest, match="of this host"):
        await fetch(fetcher(**allowed), f"file://elsewhere{inside}/a%20b.png")
    with pytest.raises(BadRequest, match="allowed-local-media-path"):
        await fetch(fetcher(), f"file://{inside}/a%20b.png")


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_public_addresses_pass(address: str) -> None:
    check_address(address)
    with pytest.raises(AddressRefused):
        check_address("no address")
