"""What the caller wished and what the server defaults to → sampling parameters in which everything is decided (CONTRACT 2.3, 3.9)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from scaleout.config import Limits
from scaleout.core import Json, SamplingParams, SamplingWishes
from scaleout.errors import BadRequest

GREEDY = 1e-5
"""Temperatures below this mean: always the likeliest token."""

COLDEST = 0.01
"""The least temperature above greedy. Logits divided by less overflow."""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@frozen
class SamplingDefaults:
    """Where a request says nothing. Only these fields of generation_config.json and of its override are read.

    `max_tokens`: the default number of new tokens. `cap`: the most that any request gets.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = None
    cap: int | None = None
    stop_token_ids: Sequence[int] = ()

    @classmethod
    def from_generation_config(
        cls, config: Mapping[str, Json], override: Mapping[str, Json] | None = None, *, config_is_cap: bool = False
    ) -> SamplingDefaults:
        """`config_is_cap`: the config is an operator's own folder, whose max_new_tokens is then a cap and not only a default."""
        given = {**config, **(override or {})}
        names = (
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
        )
        values: dict[str, Any] = {name: given[name] for name in names if given.get(name) is not None}
        max_tokens = given.get("max_new_tokens")
        cap = max_tokens if config_is_cap else (override or {}).get("max_new_tokens")
        return cls(**values, max_tokens=max_tokens, cap=cap)


@frozen
class SamplingRules:
    """What this server allows: its limits, its context length and its vocabulary size in ids."""

    limits: Limits
    max_model_len: int
    vocab_size: int
    defaults: SamplingDefaults = SamplingDefaults()

    def decide(
        self,
        wishes: SamplingWishes,
        prompt_length: int,
        *,
        stream: bool,
        logprobs_name: str = "logprobs",
        extra_args: Mapping[str, Json] | None = None,
        structured_outputs: Mapping[str, Json] | None = None,
        skip_special_tokens: bool | None = None,
    ) -> SamplingParams:
        """The parameters for one prompt of `prompt_length` ids. The keywords beside `stream` take precedence over the wishes.

        Raises `BadRequest` for every value that an engine would refuse later.
        """
        defaults = self.defaults
        temperature = _temperature(_either(wishes.temperature, defaults.temperature))
        greedy = temperature < GREEDY
        top_p = _either(wishes.top_p, defaults.top_p)
        if not 0 < top_p <= 1:
            raise BadRequest(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
        top_k = _either(wishes.top_k, defaults.top_k)
        if top_k < -1:
            raise BadRequest(f"top_k must be 0 (disable), or at least 1, got {top_k}.", "top_k")
        min_p = _either(wishes.min_p, defaults.min_p)
        if not 0 <= min_p <= 1:
            raise BadRequest(f"min_p must be in [0, 1], got {min_p}.", "min_p")
        self._check_n(wishes.n, greedy)
        max_tokens = self._max_tokens(wishes, prompt_length)
        if wishes.min_tokens < 0:
            raise BadRequest(f"min_tokens must be greater than or equal to 0, got {wishes.min_tokens}.", "min_tokens")
        if wishes.min_tokens > max_tokens:
            raise BadRequest(
                f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {wishes.min_tokens}.",
                "min_tokens",
            )
        if wishes.stream_interval is not None and wishes.stream_interval < 1:
            raise BadRequest(f"stream_interval must be at least 1, got {wishes.stream_interval}.", "stream_interval")
        self._check_stop(wishes.stop)
        self._check_bad_words(wishes.bad_words)
        logprobs = self._logprobs(wishes, logprobs_name)
        prompt_logprobs = wishes.prompt_logprobs
        if prompt_logprobs is not None:
            self._check_logprobs(prompt_logprobs, "prompt_logprobs", "prompt logprobs")
        constraint = structured_outputs if structured_outputs is not None else wishes.structured_outputs
        return SamplingParams(
            n=wishes.n,
            presence_penalty=_penalty("presence_penalty", _either(wishes.presence_penalty, defaults.presence_penalty)),
            frequency_penalty=_penalty(
                "frequency_penalty", _either(wishes.frequency_penalty, defaults.frequency_penalty)
            ),
            repetition_penalty=_repetition(_either(wishes.repetition_penalty, defaults.repetition_penalty)),
            temperature=temperature,
            top_p=1.0 if greedy else top_p,
            top_k=0 if greedy else top_k,
            min_p=0.0 if greedy else min_p,
            seed=None if wishes.seed == -1 else wishes.seed,
            stop=wishes.stop,
            stop_token_ids=self._stop_token_ids(wishes.stop_token_ids),
            ignore_eos=wishes.ignore_eos,
            max_tokens=max_tokens,
            min_tokens=wishes.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            logprob_token_ids=self._ids("logprob_token_ids", wishes.logprob_token_ids),
            skip_special_tokens=wishes.skip_special_tokens if skip_special_tokens is None else skip_special_tokens,
            spaces_between_special_tokens=wishes.spaces_between_special_tokens,
            include_stop_str_in_output=wishes.include_stop_str_in_output,
            output_kind=1 if stream else 2,
            stream_interval=wishes.stream_interval,
            skip_clone=True,
            output_text_buffer_length=(
                max(map(len, wishes.stop)) - 1 if wishes.stop and not wishes.include_stop_str_in_output else 0
            ),
            structured_outputs=None if constraint is None else read_constraint(constraint, self.limits.max_json_depth),
            logit_bias=self._logit_bias(wishes.logit_bias),
            allowed_token_ids=self._allowed(wishes.allowed_token_ids),
            extra_args=_extra_args(wishes.extra_args, extra_args),
            bad_words=tuple(dict.fromkeys(wishes.bad_words)),
            skip_reading_prefix_cache=prompt_logprobs is not None,
            thinking_token_budget=_thinking_budget(wishes.thinking_token_budget),
            repetition_detection=wishes.repetition_detection,
        )

    def check_budget(self, wishes: SamplingWishes) -> None:
        """Refuse more new tokens than the context holds, before any work on the prompt."""
        wanted = wishes.max_tokens
        if wanted is not None and wanted > self.max_model_len:
            raise BadRequest(
                f"{wishes.limit_name}={wanted} cannot be greater than max_model_len={self.max_model_len}. "
                "Please request fewer output tokens.",
                wishes.limit_name,
                wanted,
            )

    def check_ids(self, name: str, ids: Iterable[int], param: str | None = None) -> None:
        """Refuse ids that the model does not have."""
        size = self.vocab_size
        outside = [id for id in ids if not 0 <= id < size]
        if outside:
            shown = ", ".join(map(str, outside[:10]))
            raise BadRequest(f"{name} holds ids outside the vocabulary of {size}: {shown}.", param or name)

    def _check_n(self, n: int, greedy: bool) -> None:
        if n < 1:
            raise BadRequest(f"n must be at least 1, got {n}.", "n")
        if n > self.limits.max_n:
            raise BadRequest(
                f"n must be at most {self.limits.max_n}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
                "environment variable or --max-n.",
                "n",
            )
        if greedy and n > 1:
            raise BadRequest(f"n must be 1 when using greedy sampling, got {n}.", "n")

    def _max_tokens(self, wishes: SamplingWishes, prompt_length: int) -> int:
        room = self.max_model_len - prompt_length
        wanted = wishes.max_tokens if wishes.max_tokens is not None else self.defaults.max_tokens
        result = min(limit for limit in (room, wanted, self.defaults.cap) if limit is not None)
        if result < 1:
            raise BadRequest(f"max_tokens must be at least 1, got {result}.", wishes.limit_name, result)
        return result

    def _check_stop(self, stop: Sequence[str]) -> None:
        if len(stop) > self.limits.max_stop_strings:
            raise BadRequest(
                f"stop holds {len(stop)} strings, at most {self.limits.max_stop_strings} are allowed.", "stop"
            )
        for text in stop:
            if not text:
                raise BadRequest("stop cannot contain an empty string.", "stop")
            if len(text) > self.limits.max_stop_chars:
                raise BadRequest(f"a stop string has more than {self.limits.max_stop_chars} characters.", "stop")

    def _check_bad_words(self, words: Sequence[str]) -> None:
        if len(words) > self.limits.max_bad_words:
            raise BadRequest(
                f"bad_words holds {len(words)} words, at most {self.limits.max_bad_words} are allowed.", "bad_words"
            )
        if any(not word for word in words):
            raise BadRequest(f"bad_words cannot contain an empty string. Got bad_words={list(words)}", "bad_words")

    def _logprobs(self, wishes: SamplingWishes, name: str) -> int | None:
        if wishes.logprobs is not None:
            self._check_logprobs(wishes.logprobs, name, "sample logprobs")
        # Logprobs of chosen ids replace those of the likeliest.
        return None if wishes.logprob_token_ids is not None else wishes.logprobs

    def _check_logprobs(self, wanted: int, name: str, what: str) -> None:
        if wanted < -1:
            raise BadRequest(f"`{name}` must be a positive value or -1.", name, wanted)
        most = self.limits.max_logprobs
        if most != -1 and (wanted > most or wanted == -1):
            number = self.vocab_size if wanted == -1 else wanted
            raise BadRequest(f"Requested {what} of {number}, which is greater than max allowed: {most}", name, wanted)

    def _stop_token_ids(self, wanted: Sequence[int]) -> Sequence[int]:
        if not wanted:
            return self.defaults.stop_token_ids
        self.check_ids("stop_token_ids", wanted)
        return list(dict.fromkeys((*wanted, *self.defaults.stop_token_ids)))

    def _ids(self, name: str, ids: Sequence[int] | None) -> Sequence[int] | None:
        if ids is not None:
            self.check_ids(name, ids)
        return ids

    def _allowed(self, ids: Sequence[int] | None) -> Sequence[int] | None:
        if ids is not None and not ids:
            raise BadRequest("allowed_token_ids must not be empty.", "allowed_token_ids")
        return self._ids("allowed_token_ids", ids)

    def _logit_bias(self, bias: Mapping[Any, float] | None) -> Mapping[int, float] | None:
        if bias is None:
            return None
        try:
            result = {int(id): min(100.0, max(-100.0, float(value))) for id, value in bias.items()}
        except (TypeError, ValueError):
            wrong = [key for key in bias if not str(key).strip().lstrip("+-").isdigit()]
            raise BadRequest(
                f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}",
                "logit_bias",
                wrong,
            ) from None
        self.check_ids("logit_bias", result)
        return result


def _either(wish: Any, default: Any) -> Any:
    return default if wish is None else wish


def _temperature(value: float) -> float:
    if not math.isfinite(value):
        raise BadRequest(f"temperature must be a finite number, got {value}.", "temperature", value)
    if not 0 <= value <= 2:
        raise BadRequest(f"temperature must be in [0, 2], got {value}.", "temperature", value)
    return max(value, COLDEST) if value >= GREEDY else value


def _penalty(name: str, value: float) -> float:
    if not -2 <= value <= 2:
        raise BadRequest(f"{name} must be in [-2, 2], got {value}.", name)
    return value


def _repetition(value: float) -> float:
    if not math.isfinite(value):
        raise BadRequest(f"repetition_penalty must be a finite number, got {value}.", "repetition_penalty", value)
    if value <= 0:
        raise BadRequest(f"repetition_penalty must be greater than zero, got {value}.", "repetition_penalty")
    return value


def _thinking_budget(value: int | None) -> int | None:
    if value is None or value == -1:
        return None
    if value < 0:
        raise BadRequest(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            "thinking_token_budget",
            value,
        )
    return value


def _extra_args(wished: Mapping[str, Json] | None, added: Mapping[str, Json] | None) -> Mapping[str, Json] | None:
    merged = {**wished, **added} if wished and added else wished or added
    if merged:
        _check_integers(merged, "extra_args")
    return merged or None


def _check_integers(value: Json, path: str) -> None:
    """Engines carry these values in a binary form whose integers have 64 bits."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise BadRequest(f"{path} holds an integer of more than 64 bits.", path)
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_integers(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_integers(item, f"{path}.{i}")


def read_constraint(given: Mapping[str, Json], max_depth: int) -> dict[str, Json]:
    """`structured_outputs` with all keys of the wire. Exactly one constraint must be set, and be of a shape that can work."""
    chosen = [name for name in CONSTRAINTS if given.get(name) not in (None, False)]
    if len(chosen) != 1:
        named = ", ".join(chosen) or "none"
        raise BadRequest(
            f"structured_outputs needs exactly one of {', '.join(CONSTRAINTS)}; got {named}.", "structured_outputs"
        )
    name = chosen[0]
    problem = _constraint_problem(name, given[name], max_depth)
    if problem:
        raise BadRequest(f"structured_outputs.{name} {problem}.", f"structured_outputs.{name}")
    return {
        "json": given.get("json"),
        "regex": given.get("regex"),
        "choice": given.get("choice"),
        "grammar": given.get("grammar"),
        "json_object": given.get("json_object"),
        "disable_any_whitespace": given.get("disable_any_whitespace") or False,
        "disable_additional_properties": given.get("disable_additional_properties") or False,
        "whitespace_pattern": given.get("whitespace_pattern"),
        "structural_tag": given.get("structural_tag"),
        "_backend": None,
        "_backend_was_auto": False,
    }


def _constraint_problem(name: str, value: Json, max_depth: int) -> str | None:
    match name:
        case "json":
            if not isinstance(value, str | Mapping | bool):
                return "must be a JSON schema"
            if _depth(value, max_depth) > max_depth:
                return f"is nested deeper than {max_depth}"
        case "choice":
            if not isinstance(value, list | tuple) or not value or not all(isinstance(text, str) for text in value):
                return "must be a list of strings"
        case "regex" | "grammar" | "structural_tag":
            if not isinstance(value, str) or not value:
                return "must be a string that is not empty"
            if "\0" in value:
                return "must not hold the character U+0000"
    return None


def _depth(value: Json, most: int) -> int:
    """Nesting of a JSON value, counted no further than `most` + 1."""
    depth = 0
    level = [value]
    while level and depth <= most:
        depth += 1
        level = [
            item
            for node in level
            if isinstance(node, Mapping | list)
            for item in (node.values() if isinstance(node, Mapping) else node)
            if isinstance(item, Mapping | list)
        ]
    return depth
