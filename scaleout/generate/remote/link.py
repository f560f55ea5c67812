"""HTTP to one engine: requests, and their answers as they come."""

from __future__ import annotations

import asyncio
import errno
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from attrs import define, field, frozen

from scaleout.codec import loads
from scaleout.core import Json
from scaleout.errors import BadRequest, NotSupported, RequestError
from scaleout.generate.options import RemoteOptions
from scaleout.generate.remote.connections import Connection, Connections
from scaleout.generate.remote.faults import Broken, Busy, Fault, Lost, Unreachable
from scaleout.generate.remote.http_answer import AnswerReader, BadAnswer
from scaleout.sse_reader import EventReader, EventTooLong

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: less than the five after which servers commonly close theirs."""

MOST_BYTES = 256 << 20
"""Of one event or one whole answer. Logprobs over a vocabulary make long ones; nothing sound is longer."""

SHORT_ANSWER = 10.0
"""Seconds for questions about the engine itself."""

DEFAULT_RETRY = 1
SLICE = 1 << 18
"""Bytes of a long body that leave at once, so that other requests get their turns meanwhile."""
DONE = b"[DONE]"


@frozen
class Said:
    """The answer to a question about an engine. `body` is None where it is no JSON."""

    status: int
    body: Json

    @property
    def object(self) -> Mapping[str, Json]:
        return self.body if self.status == 200 and isinstance(self.body, dict) else {}


@define(eq=False)
class Arrival:
    """An answer whose head has been read. `first`: the part of its body that came with the head."""

    connection: Connection
    answer: AnswerReader
    first: bytes
    sent: bool
    """Whether the request left as a whole."""

    async def read(self) -> bytes:
        """More of the body; b"" at its end. Raises `OSError`, `BadAnswer`."""
        if self.first:
            body, self.first = self.first, b""
            return body
        while not self.answer.over:
            data = await self.connection.read()
            if not data:
                self.answer.end()
                break
            body = self.answer.feed(data)
            if body:
                return body
        return b""

    async def read_all(self) -> bytes:
        """The whole body. Raises `OSError`, `BadAnswer`, and `Broken` for one that is too long."""
        data = bytearray()
        while piece := await self.read():
            data += piece
            if len(data) > MOST_BYTES:
                raise Broken(f"the engine's answer is longer than {MOST_BYTES} bytes")
        return bytes(data)

    @property
    def reusable(self) -> bool:
        return self.sent and not self.first and self.answer.over and self.answer.reusable


@define(eq=False)
class Call:
    """One request on its way. `started`: something of its answer has come."""

    link: Link
    started: bool = False
    _interrupted: str | None = None
    _opening: asyncio.Timeout | None = None
    _connection: Connection | None = None
    _watch: asyncio.TimerHandle | None = None
    _begun: float = field(factory=lambda: asyncio.get_running_loop().time())

    @property
    def heard(self) -> float:
        """When the engine last sent something, on the event loop's clock."""
        return self._begun if self._connection is None else max(self._begun, self._connection.heard)

    def interrupt(self, reason: str) -> None:
        """Make whoever waits for this call find it lost."""
        self._interrupted = reason
        if self._opening is not None:
            self._opening.reschedule(asyncio.get_running_loop().time())
        elif self._connection is not None:
            self._connection.close()

    async def events(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[list[Json]]:
        """Send `body`; the JSON events of the answer, all at once that arrive at once. A whole answer is a single event.

        Closing the iterator ends the connection unless the answer is over, and so the engine's work. Raises `Fault`, or `RequestError` for
        what the engine found wrong with the request.
        """
        link = self.link
        link.calls.add(self)
        arrival = None
        try:
            arrival = await self._open(path, body, headers or {})
            self._connection = arrival.connection
            self._look()
            answer = arrival.answer
            if answer.status != 200:
                raise refusal(answer.status, await self._read_all(arrival), answer.headers.get("retry-after"))
            if not answer.headers.get("content-type", "").partition(";")[0].strip().endswith("event-stream"):
                yield [as_json(await self._read_all(arrival))]
                return
            reader = EventReader(MOST_BYTES)
            done = False
            while piece := await self._read(arrival):
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
            if arrival is not None:
                link.connections.give_back(arrival.connection, reusable=arrival.reusable)

    async def _open(self, path: str, body: bytes, headers: Mapping[str, str]) -> Arrival:
        try:
            async with asyncio.timeout(self.link.options.silence) as self._opening:
                return await self.link.send("POST", path, body, headers)
        except TimeoutError as error:
            raise Lost(self._interrupted or self._silence()) from error
        except (OSError, BadAnswer) as error:
            raise Lost(f"the connection broke before the answer began: {spell(error)}") from error
        finally:
            self._opening = None

    async def _read(self, arrival: Arrival) -> bytes:
        try:
            return await arrival.read()
        except (OSError, BadAnswer) as error:
            raise Lost(self._interrupted or f"the connection broke: {spell(error)}") from error

    async def _read_all(self, arrival: Arrival) -> bytes:
        try:
            return await arrival.read_all()
        except (OSError, BadAnswer) as error:
            raise Lost(self._interrupted or f"the connection broke: {spell(error)}") from error

    def _look(self) -> None:
        """Give the engine up when it has been silent for too long. One timer a call, not one for each piece that comes."""
        assert self._connection is not None
        loop, silence = asyncio.get_running_loop(), self.link.options.silence
        left = silence if self._connection.has_unread else self.heard + silence - loop.time()
        if left <= 0:
            self.interrupt(self._silence())
        else:
            self._watch = loop.call_later(left, self._look)

    def _silence(self) -> str:
        return f"the engine sent nothing for {self.link.options.silence:g} seconds"


@define(eq=False)
class Link:
    """The way to one engine, at `base`."""

    base: str
    options: RemoteOptions
    calls: set[Call] = field(factory=set)
    """Those under way, so that they can be told when the engine is gone."""
    connections: Connections = field(init=False)
    _prefix: str = field(init=False)
    _headers: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        parts = urlsplit(self.base)
        secure = parts.scheme == "https"
        host = (
            (parts.hostname or "").encode("idna").decode() if not (parts.hostname or "").isascii() else parts.hostname
        )
        port = parts.port or (443 if secure else 80)
        tls = ssl.create_default_context() if secure else None
        self.connections = Connections(host or "", port, tls, KEEP_ALIVE)
        self._prefix = parts.path
        shown = f"[{host}]" if ":" in (host or "") else host
        named = f"{shown}:{parts.port}" if parts.port else f"{shown}"
        self._headers = f"Host: {named}\r\nUser-Agent: scaleout\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
        if self.options.api_key is not None:
            self._headers += f"Authorization: Bearer {self.options.api_key}\r\n"

    def close(self) -> None:
        """End what is under way."""
        self.connections.close()

    def call(self) -> Call:
        return Call(self)

    async def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Arrival:
        """Send a request and wait for the head of its answer. Raises `Unreachable`, `OSError`, `BadAnswer`.

        A connection that the engine closed while it lay idle is replaced.
        """
        head = self._write_head(method, path, body, headers)
        connection = await self._connect(fresh=False)
        if connection.used:
            try:
                return await self._exchange(connection, head, body or b"")
            except (OSError, BadAnswer):
                if connection.heard_since_use:
                    raise
            connection = await self._connect(fresh=True)
        return await self._exchange(connection, head, body or b"")

    async def _connect(self, *, fresh: bool) -> Connection:
        limit = self.options.connect_timeout
        try:
            async with asyncio.timeout(limit):
                return await self.connections.take(fresh=fresh)
        except TimeoutError as error:
            raise Unreachable(f"no connection within {limit:g} seconds") from error
        except OSError as error:
            raise Unreachable(spell(error)) from error

    async def _exchange(self, connection: Connection, head: bytes, body: bytes) -> Arrival:
        try:
            sent = await write_all(connection, head, body)
            answer = AnswerReader()
            first = b""
            while not answer.status:
                data = await connection.read()
                if not data:
                    answer.end()
                first = answer.feed(data)
            return Arrival(connection, answer, first, sent)
        except BaseException:
            self.connections.give_back(connection, reusable=False)
            raise

    def _write_head(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1\r\n", self._headers]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")
        return ("".join(lines) + "\r\n").encode("utf-8", "surrogateescape")

    async def get(self, path: str, seconds: float = SHORT_ANSWER) -> Said:
        """A question. Raises `Unreachable`, or `Lost` where the answer does not come in time."""
        return await self._ask("GET", path, None, seconds)

    async def post(self, path: str, body: bytes, seconds: float = SHORT_ANSWER) -> Said:
        return await self._ask("POST", path, body, seconds)

    async def _ask(self, method: str, path: str, body: bytes | None, seconds: float) -> Said:
        arrival = None
        try:
            async with asyncio.timeout(seconds):
                arrival = await self.send(method, path, body, {})
                data = await arrival.read_all()
        except TimeoutError as error:
            raise Lost(f"no answer to {path} within {seconds:g} seconds") from error
        except (OSError, BadAnswer, Broken) as error:
            raise Unreachable(spell(error)) from error
        finally:
            if arrival is not None:
                self.connections.give_back(arrival.connection, reusable=arrival.reusable)
        try:
            return Said(arrival.answer.status, loads(data))
        except ValueError:
            return Said(arrival.answer.status, None)


async def write_all(connection: Connection, head: bytes, body: bytes) -> bool:
    """Send a request. Returns whether all of it left: an engine may answer before it has read everything."""
    if len(body) <= SLICE:
        connection.write(head + body)
        return True
    connection.write(head)
    for start in range(0, len(body), SLICE):
        if connection.has_unread or connection.ended:
            return False
        connection.write(body[start : start + SLICE])
        await connection.drain()
    return True


def spell(error: BaseException) -> str:
    """Why there is no connection, without addresses of objects and without a stack."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno is not None:
        return errno.errorcode.get(error.errno) or str(error)
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
