"""OpenAI responses (CONTRACT 2.7, 5.2): requests in `responses_request`, answers in `responses_answer` and `responses_stream`."""

from __future__ import annotations

from secrets import token_hex

from scaleout.dialects.dialect import Request
from scaleout.dialects.responses_answer import response as response
from scaleout.dialects.responses_gather import gather as gather
from scaleout.dialects.responses_request import FIELDS as FIELDS
from scaleout.dialects.responses_request import parse as parse
from scaleout.dialects.responses_stream import chunk as chunk
from scaleout.dialects.responses_stream import open_stream as open_stream
from scaleout.dialects.responses_stream import says_something as says_something

NAME = "responses"
PATH = "/v1/responses"
ID_PREFIX = "resp_"
NAMED_EVENTS = True


def name_request(wanted: Request, traced: str | None) -> str:
    """The id in the body as it stands, or chance: what is traced is the call, and this id outlives it."""
    return wanted.options.request_id or f"{ID_PREFIX}{token_hex(8)}"
