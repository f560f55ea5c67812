"""Models that would compute the logits of every token, made to compute those that are asked for. Knows no step and no request."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel


def keep_wanted_rows(model: PreTrainedModel) -> None:
    """Has `model` take `logits_to_keep` (rows, 0 for all) as most of transformers' models do by themselves."""
    if "logits_to_keep" in signature(model.forward).parameters:
        return
    wanted: list[Tensor | int] = [0]

    def note(module: Any, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        wanted[0] = named.pop("logits_to_keep", 0)
        return args, named

    def cut(module: Any, args: Any, output: Any) -> Any:
        if isinstance(wanted[0], Tensor):
            output.last_hidden_state = output.last_hidden_state[:, wanted[0]]
        return output

    model.model.register_forward_pre_hook(note, with_kwargs=True)
    model.model.register_forward_hook(cut)
