"""HTTP to one engine: the only place here that knows the library. All links of a fleet share one pool of connections."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Mapping

import aiohttp
from attrs import define, field, frozen
from yarl import URL

from scaleout.codec import loads
from scaleout.core import Json
from scaleout.errors import BadRequest, NotSupported, RequestError
from scaleout.generate.options import RemoteOptions
from scaleout.generate.remote.faults import Broken, Busy, Fault, Lost, Unreachable
from scaleout.sse_reader import EventReader, EventTooLong

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: less than the five after which servers commonly close theirs."""

MOST_BYTES = 256 << 20
"""Of one event or one whole answer. Logprobs over a vocabulary make long ones; nothing sound is longer."""

SHORT_ANSWER = 10.0
"""Seconds for questions about the engine itself."""

DEFAULT_RETRY = 1
SLICE = 1 << 18
DONE = b"[DONE]"


@frozen
class Said:
    """The answer to a question about an engine. `body` is None where it is no JSON."""

    status: int
    body: Json

    @property
    def object(self) -> Mapping[str, Json]:
        return self.body if self.status == 200 and isinstance(self.body, dict) else {}


def open_pool(options: RemoteOptions) -> aiohttp.ClientSession:
    """The pool; called on the event loop that will use it."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "scaleout"}
    if options.api_key is not None:
        headers["Authorization"] = f"Bearer {options.api_key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Silence is looked for by each call: the library would move a timer for every piece that comes.
        timeout=aiohttp.ClientTimeout(total=None, connect=options.connect_timeout),
        headers=headers,
    )


@define(eq=False)
class Call:
    """One request on its way. `heard`: when the engine last sent something, on the event loop's clock."""

    link: Link
    started: bool = False
    heard: float = 0.0
    _interrupted: str | None = None
    _opening: asyncio.Timeout | None = None
    _response: aiohttp.ClientResponse | None = None
    _waits_since: float | None = None
    """When a wait for the engine began; None while what it sent is being worked on."""
    _watch: asyncio.TimerHandle | None = None

    def interrupt(self, reason: str) -> None:
        """Make whoever waits for this call find it lost."""
        self._interrupted = reason
        if self._opening is not None:
            self._opening.reschedule(asyncio.get_running_loop().time())
        elif self._response is not None:
            self._response.close()

    async def events(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[list[Json]]:
        """Send `body`; the JSON events of the answer, all at once that arrive at once. A whole answer is a single event.

        Closing the iterator ends the connection unless the answer is over, and so the engine's work. Raises `Fault`, or `RequestError` for
        what the engine found wrong with the request.
        """
        link = self.link
        link.calls.add(self)
        response = None
        try:
            response = self._response = await self._open(
                path, body, {**(headers or {}), "Content-Type": "application/json"}
            )
            self._look_for_silence()
            if response.status != 200:
                raise refusal(response.status, await self._read_all(response), response.headers.get("Retry-After"))
            if not response.content_type.endswith("event-stream"):
                yield [as_json(await self._read_all(response))]
                return
            reader = EventReader(MOST_BYTES)
            loop = asyncio.get_running_loop()
            done = False
            while piece := await self._read(response):
                self.heard = loop.time()
                self.started = True
                events: list[Json] = []
                fault = None
                try:
                    for event in reader.feed(piece):
                        if event.data == DONE:
                            done = True
                        else:
                            events.append(as_json(event.data))
                except EventTooLong:
                    fault = Broken(f"an event of the engine's stream is longer than {MOST_BYTES} bytes")
                except Broken as broken:
                    fault = broken
                if events:
                    yield events
                if fault is not None:
                    raise fault
            if not done and reader.holds_something:
                raise Lost("the engine's stream ended inside an event")
        finally:
            link.calls.discard(self)
            if self._watch is not None:
                self._watch.cancel()
            if response is not None:
                # A connection whose answer is read to its end goes back to the pool by itself; any other is closed here.
                response.close()

    async def _open(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """The head of the answer. A connection that the engine closed while it lay in the pool is replaced, once."""
        try:
            async with asyncio.timeout(self.link.options.silence) as self._opening:
                try:
                    return await self._post(path, body, headers)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                    if isinstance(error, aiohttp.ClientConnectorError):
                        raise
                    return await self._post(path, body, headers)
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(spell(error)) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise Unreachable(f"no connection within {self.link.options.connect_timeout:g} seconds") from error
        except TimeoutError as error:
            raise Lost(self._interrupted or self._silence()) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(f"the connection broke before the answer began: {spell(error)}") from error
        finally:
            self._opening = None

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        data: bytes | AsyncIterator[bytes] = body
        if len(body) > SLICE:
            headers["Content-Length"] = str(len(body))
            data = slices(body)
        return await self.link.pool.post(self.link.url(path), data=data, headers=headers, allow_redirects=False)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        self._waits_since = asyncio.get_running_loop().time()
        try:
            return await response.content.readany()
        except aiohttp.ClientPayloadError as error:
            raise Lost(self._interrupted or "the connection broke before the answer was over") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(self._interrupted or f"the connection broke: {spell(error)}") from error
        finally:
            self._waits_since = None

    def _look_for_silence(self) -> None:
        """Give the engine up when it has let this call wait for too long, else look again when it could have."""
        loop, silence = asyncio.get_running_loop(), self.link.options.silence
        left = silence if self._waits_since is None else self._waits_since + silence - loop.time()
        if left <= 0:
            self.interrupt(self._silence())
        else:
            self._watch = loop.call_later(left, self._look_for_silence)

    async def _read_all(self, response: aiohttp.ClientResponse) -> bytes:
        data = bytearray()
        while piece := await self._read(response):
            data += piece
            if len(data) > MOST_BYTES:
                raise Broken(f"the engine's answer is longer than {MOST_BYTES} bytes")
        return bytes(data)

    def _silence(self) -> str:
        return f"the engine sent nothing for {self.link.options.silence:g} seconds"


@define(eq=False)
class Link:
    """The way to one engine."""

    base: str
    options: RemoteOptions
    pool: aiohttp.ClientSession
    calls: set[Call] = field(factory=set)
    """Those under way, so that they can be told when the engine is gone."""
    _urls: dict[str, URL] = field(factory=dict)

    def url(self, path: str) -> URL:
        found = self._urls.get(path)
        if found is None:
            found = self._urls[path] = URL(self.base + path, encoded=True)
        return found

    def call(self) -> Call:
        return Call(self, heard=asyncio.get_running_loop().time())

    async def get(self, path: str, seconds: float = SHORT_ANSWER) -> Said:
        """A question. Raises `Unreachable`, or `Lost` where the answer does not come in time."""
        return await self._ask("GET", path, None, seconds)

    async def post(self, path: str, body: bytes, seconds: float = SHORT_ANSWER) -> Said:
        return await self._ask("POST", path, body, seconds)

    async def _ask(self, method: str, path: str, body: bytes | None, seconds: float) -> Said:
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds),
                self.pool.request(
                    method, self.url(path), data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                data = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(spell(error)) from error
        except TimeoutError as error:
            raise Lost(f"no answer to {path} within {seconds:g} seconds") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(spell(error)) from error
        try:
            return Said(response.status, loads(data))
        except ValueError:
            return Said(response.status, None)


async def slices(body: bytes) -> AsyncIterator[bytes]:
    """A long body in pieces, so that other requests get their turns while it leaves."""
    for start in range(0, len(body), SLICE):
        yield body[start : start + SLICE]


def spell(error: BaseException) -> str:
    """Why there is no connection, without addresses of objects and without a stack."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return f"{errno.errorcode[number]}"
    return str(error) or type(error).__name__


def as_json(data: bytes) -> Json:
    try:
        return loads(data)
    except json.JSONDecodeError:
        raise Broken("the engine's answer is not JSON") from None


def refusal(status: int, data: bytes, retry_after: str | None) -> Fault | RequestError:
    """The error of an answer that is not 200."""
    try:
        body = loads(data)
    except json.JSONDecodeError:
        body = None
    message = find_message(body) or f"status {status}"
    if status in (429, 503):
        return Busy(message, int(retry_after) if retry_after and retry_after.isdigit() else DEFAULT_RETRY)
    if status in (401, 403):
        return Broken(f"the engine refuses the key of this server ({status}): {message}")
    if status == 501:
        return NotSupported(f"The engine cannot do this: {message}")
    if status in (400, 413, 422):
        error = body.get("error") if isinstance(body, dict) else None
        param = error.get("param") if isinstance(error, dict) else None
        return BadRequest(message, param if isinstance(param, str) else None)
    return Broken(f"the engine answered {status}: {message}")


def find_message(body: Json) -> str | None:
    """The text of an error object, in any of the shapes that engines use."""
    if not isinstance(body, dict):
        return None
    error = body.get("error", body)
    if isinstance(error, str):
        return error
    found = error.get("message") or error.get("detail") if isinstance(error, dict) else None
    return found if isinstance(found, str) else None


def error_in(event: Json) -> Fault | RequestError | None:
    """The error that an event of a stream is, if it is one."""
    if not isinstance(event, dict) or not event.get("error"):
        return None
    error = event["error"]
    code = error.get("code", error.get("status_code")) if isinstance(error, dict) else None
    message = find_message(event) or "an error without a text"
    if code is None or (isinstance(code, int) and 400 <= code < 500 and code != 429):
        return BadRequest(message)
    if code in (429, 503):
        return Busy(message, DEFAULT_RETRY)
    return Broken(f"the engine failed: {message}")
