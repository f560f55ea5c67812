"""Media from where requests say they are: checked addresses, bounded bytes, bounded time, redirects looked at one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import aiohttp
from attrs import define
from yarl import URL

from scaleout.config.media import MediaOptions
from scaleout.core.media import MediaFile, MediaRef, MediaSet
from scaleout.errors import BadRequest, Overloaded
from scaleout.routes.media.addresses import (
    AddressRefused,
    CheckedResolver,
    LookUp,
    check_address,
    look_up,
    read_literal,
    read_networks,
)

MAX_REDIRECTS = 5
CHUNK = 64 << 10
REQUESTS_HELD = 4
"""How many requests of the largest size may lie in memory at a time; beyond that, others get 503."""
MAX_URL = 16_384
"""Characters of a URL that is no data URL."""


@define
class Held:
    """Bytes that one request has fetched so far."""

    bytes: int = 0


class MediaFetcher:
    """One for each server. Opens its client session with the first fetch; `close` ends it."""

    def __init__(self, options: MediaOptions, look_up: LookUp = look_up) -> None:
        self._options = options
        self._networks = read_networks(options.allowed_networks)
        self._look_up = look_up
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(options.max_concurrent_fetches)
        self.held = 0
        self.fetched_bytes = 0
        self.refused = 0

    @asynccontextmanager
    async def fetched(self, refs: Sequence[MediaRef]) -> AsyncIterator[MediaSet]:
        """What `refs` name by URL; data URLs and uuids need no fetching. The bytes count as held until the end of the block.

        Raises `BadRequest` naming the item, `Overloaded` when too much is held already.
        """
        wanted = {ref.url: ref for ref in reversed(refs) if ref.url is not None and ref.url[:5].lower() != "data:"}
        held = Held()
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = {url: group.create_task(self._fetch(ref, held)) for url, ref in wanted.items()}
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            files = {url: task.result() for url, task in tasks.items()}
            yield MediaSet({ref: files[ref.url] for ref in refs if ref.url is not None and ref.url in files})
        finally:
            self.held -= held.bytes

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _fetch(self, ref: MediaRef, held: Held) -> MediaFile:
        assert ref.url is not None
        try:
            if len(ref.url) > MAX_URL:
                raise BadRequest(f"The URL is longer than {MAX_URL} characters.")
            scheme = ref.url.partition(":")[0].lower()
            if scheme == "file":
                return await asyncio.to_thread(self._read_local, ref.url, held)
            if scheme not in ("http", "https"):
                raise BadRequest("Media come by https, http or data URLs.")
            try:
                async with asyncio.timeout(self._options.fetch_timeout), self._places:
                    return await self._follow(ref.url, held)
            except TimeoutError:
                raise BadRequest(f"The media did not arrive within {self._options.fetch_timeout:g} seconds.") from None
        except BadRequest as error:
            self.refused += 1
            raise BadRequest(f"{ref.path}: {error.message}", ref.path) from None

    async def _follow(self, text: str, held: Held) -> MediaFile:
        """Fetch, and follow redirects. Every URL on the way is checked before anything is dialled."""
        url = _read_url(text)
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url)
            try:
                async with self._client().get(url, allow_redirects=False) as response:
                    if response.status not in (301, 302, 303, 307, 308):
                        return await self._read(response, held)
                    target = response.headers.get("Location")
            except AddressRefused as error:
                raise _refused(url, str(error)) from None
            except TimeoutError:
                raise
            except (aiohttp.ClientError, OSError, ValueError) as error:
                inner = error.__cause__ or error.__context__
                if isinstance(inner, AddressRefused):
                    raise _refused(url, str(inner)) from None
                raise BadRequest(f"The media cannot be fetched from {url.host}: {type(error).__name__}.") from None
            if not self._options.allow_redirects or not target:
                raise BadRequest(f"{url.host} redirects, which is not followed.")
            url = _read_url(target, url)
        raise BadRequest(f"{url.host} redirects more than {MAX_REDIRECTS} times.")

    def _check(self, url: URL) -> None:
        if url.scheme not in ("http", "https"):
            raise BadRequest(f"A redirect leads to a {url.scheme} URL, which is not followed.")
        host = (url.host or "").lower().rstrip(".")
        domains = self._options.allowed_domains
        if domains and not any(host == one or (one[:1] == "." and host.endswith(one)) for one in domains):
            raise BadRequest(f"Media may not be fetched from {host} (--allowed-media-domains).")
        literal = read_literal(host)
        if literal is not None:
            try:
                check_address(literal, self._networks)
            except AddressRefused as error:
                raise _refused(url, str(error)) from None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=CheckedResolver(self._networks, self._look_up),
                use_dns_cache=False,
                limit=self._options.max_concurrent_fetches,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "scaleout"},
                timeout=aiohttp.ClientTimeout(total=None),  # the time of the whole way is bounded around it
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse, held: Held) -> MediaFile:
        host = response.url.host
        if response.status != 200:
            raise BadRequest(f"{host} answered {response.status}.")
        if response.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
            raise BadRequest(f"{host} sent a compressed answer, which was not asked for.")
        length = response.content_length
        if length is not None and length > self._options.max_bytes:
            raise self._too_large()
        chunks = bytearray()
        async for chunk in response.content.iter_chunked(CHUNK):
            self._hold(held, len(chunk), len(chunks) + len(chunk))
            chunks += chunk
        return MediaFile(bytes(chunks), response.content_type)

    def _hold(self, held: Held, more: int, size: int) -> None:
        """Count bytes that have come. `size`: how large the file is by now."""
        if size > self._options.max_bytes:
            raise self._too_large()
        if held.bytes + more > self._options.max_total_bytes:
            raise BadRequest(
                f"The media of this request are larger than {self._options.max_total_bytes} bytes together "
                "(--max-total-media-bytes)."
            )
        if self.held + more > self._options.max_total_bytes * REQUESTS_HELD:
            raise Overloaded("This server holds too many media of other requests now.")
        held.bytes += more
        self.held += more
        self.fetched_bytes += more

    def _too_large(self) -> BadRequest:
        return BadRequest(
            f"The media are larger than the limit of {self._options.max_bytes} bytes (--max-media-bytes)."
        )

    def _read_local(self, text: str, held: Held) -> MediaFile:
        """A file below the allowed folder, by its real path."""
        root = self._options.allowed_local_path
        if not root:
            raise BadRequest("Files of this host may not be named (--allowed-local-media-path).")
        host, slash, rest = text[len("file:") :].removeprefix("//").partition("/")
        if host not in ("", "localhost"):
            raise BadRequest("A file URL names a file of this host: file:///path.")
        try:
            path = Path(unquote(slash + rest)).resolve(strict=True)
            if not path.is_relative_to(Path(root)) or not path.is_file():
                raise BadRequest("There is no such file in the folder that requests may read.")
            with path.open("rb") as file:
                data = file.read(self._options.max_bytes + 1)
        except (OSError, ValueError, RuntimeError):
            raise BadRequest("There is no such file in the folder that requests may read.") from None
        self._hold(held, len(data), len(data))
        return MediaFile(data)


def _read_url(text: str, base: URL | None = None) -> URL:
    try:
        url = URL(text) if base is None else base.join(URL(text))
        if not url.host or url.port is None:
            raise ValueError
    except ValueError:
        raise BadRequest("This is no URL that can be fetched.") from None
    if url.user is not None or url.password is not None:
        raise BadRequest("URLs with a user name or password are not fetched.")
    return url.with_fragment(None)


def _refused(url: URL, reason: str) -> BadRequest:
    return BadRequest(f"Media are not fetched from {url.host}: {reason}.")
