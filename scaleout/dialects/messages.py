"""Anthropic messages (CONTRACT 2.6, 5.1): requests in `messages_request`, answers in `messages_answer`."""

from __future__ import annotations

from scaleout.dialects.dialect import Gather, Request
from scaleout.dialects.fields import make_request_id
from scaleout.dialects.messages_answer import chunk as chunk
from scaleout.dialects.messages_answer import open_stream as open_stream
from scaleout.dialects.messages_answer import response as response
from scaleout.dialects.messages_answer import says_something as says_something
from scaleout.dialects.messages_request import FIELDS as FIELDS
from scaleout.dialects.messages_request import parse as parse
from scaleout.dialects.messages_request import parse_to_count as parse_to_count

NAME = "messages"
PATH = "/v1/messages"
ID_PREFIX = "chatcmpl-"
"""Of requests, as the peer names them; the answer to `chatcmpl-x` is `msg_x`."""
NAMED_EVENTS = True


def name_request(wanted: Request, traced: str | None) -> str:
    return make_request_id(ID_PREFIX, wanted.options, traced)


def gather(request: Request | None) -> Gather | None:
    """Events leave nothing open."""
    return None
