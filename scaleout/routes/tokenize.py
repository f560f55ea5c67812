"""/tokenize, /detokenize and /tokenizer_info: what the model's tokenizer makes of texts, conversations and ids."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from attrs import define

from scaleout import codec
from scaleout.core import Json, TokenIds
from scaleout.core.media import MediaSet
from scaleout.dialects import chat
from scaleout.pipeline import Front
from scaleout.routes.answers import json_response, raw_json
from scaleout.routes.body import read_json
from scaleout.routes.keys import STAGES
from scaleout.routes.media import with_media
from scaleout.routes.table import Route
from scaleout.routes.work import run


@define
class TextBody:
    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


@define
class Wishes:
    """What both forms of the body may ask for."""

    model: str | None = None
    return_token_strs: bool | None = None


@define
class IdsBody:
    tokens: TokenIds
    model: str | None = None


async def tokenize(request: web.Request) -> web.StreamResponse:
    """A text or a conversation → its ids. No context length applies; of a body with both, the conversation counts."""
    body = await read_json(request)
    stages = request.app[STAGES]
    front = await stages.front()

    def work(media: MediaSet | None) -> bytes:
        wishes = codec.structure(body, Wishes)
        stages.served(wishes.model)
        ids = encode(front, body, media)
        spellings = [front.tokenizer.piece(one) for one in ids] if wishes.return_token_strs else None
        return codec.dumps(
            {"count": len(ids), "max_model_len": front.max_model_len, "tokens": ids, "token_strs": spellings}
        )

    return raw_json(await with_media(request, work))


def encode(front: Front, body: Mapping[str, Json], media: MediaSet | None = None) -> TokenIds:
    """Ids of either form of the body."""
    if "messages" in body:
        return front.renderer.render_prompt(chat.parse(body), media).token_ids
    text = codec.structure(body, TextBody)
    return front.tokenizer.encode(text.prompt, add_special_tokens=text.add_special_tokens)


async def detokenize(request: web.Request) -> web.StreamResponse:
    """Ids → their text, special tokens included. Ids that stand for nothing vanish."""
    body = await read_json(request)
    stages = request.app[STAGES]
    front = await stages.front()

    def work() -> bytes:
        wanted = codec.structure(body, IdsBody)
        stages.served(wanted.model)
        known = front.tokenizer.vocab_size
        ids = [one for one in wanted.tokens if one < known]
        return codec.dumps({"prompt": front.tokenizer.decode(ids, skip_special_tokens=False)})

    return raw_json(await run(request, work))


async def tokenizer_info(request: web.Request) -> web.StreamResponse:
    """The tokenizer's configuration, with the chat template; not where it lies on this host."""
    files = request.app[STAGES].files
    told = {name: value for name, value in files.tokenizer_config.items() if name != "name_or_path"}
    return json_response(told | {"chat_template": files.chat_template})


ROUTES: tuple[Route, ...] = (("POST", "/tokenize", tokenize), ("POST", "/detokenize", detokenize))
INFO_ROUTES: tuple[Route, ...] = (("GET", "/tokenizer_info", tokenizer_info),)
