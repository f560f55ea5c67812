"""Decoder layers of the Llama kind in a dozen operations, for CPUs, where every operation costs microseconds before it starts.

transformers' definition stays the truth: each layer is replaced only if it is built like this one and gives the same output on a sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, Optional, Tuple  # noqa: UP035 - TorchScript reads no other spelling

import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn
from transformers import PreTrainedModel

from scaleout.generate.attention import Geometry, Look, PagedAttention, Stretch
from scaleout.generate.gather_kernel import GatherKernel
from scaleout.generate.packed_linear import PACKABLE, SIBLINGS, PackedLinear, alike, can_pack
from scaleout.generate.scripted import scripted

log = logging.getLogger(__name__)

PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}

TOLERANCE = 1e-3
"""Of the difference in float32, relative to what the layer adds to its input: sums in another order differ by far less."""


class Turn:
    """The rotary embedding of a step, laid out once for all layers: [tokens, 1, dim], the first half of `sines` negated."""

    def __init__(self) -> None:
        self.given: tuple[Tensor, Tensor] | None = None
        self.cosines = self.sines = torch.empty(0)

    def take(self, position_embeddings: tuple[Tensor, Tensor]) -> Turn:
        if position_embeddings is not self.given:
            cosines, sines = (part[0].unsqueeze(1) for part in position_embeddings)
            first, second = sines.chunk(2, dim=-1)
            self.given, self.cosines, self.sines = position_embeddings, cosines, torch.cat((-first, second), dim=-1)
        return self


class FusedLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to what came in."""

    def __init__(self, layer: nn.Module, attention: PagedAttention, look: Look, turn: Turn) -> None:
        super().__init__()
        own: Any = layer.self_attn
        mlp: Any = layer.mlp
        self.index, self.look = int(own.layer_idx), evolve(look, scale=1.0)
        dim, normed = int(own.head_dim), hasattr(own, "q_norm")
        scales = (1.0 if normed else look.scale, 1.0, 1.0)
        heads = PackedLinear([own.q_proj, own.k_proj, own.v_proj], scales)
        # Gate and up stay apart: activation and product then happen while their numbers are still in a register.
        out, gate, up, down = (PackedLinear([one]) for one in (own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        # What the two functions take beside the rows, in their order. Modules would be looked up one by one in each call.
        self.given = (
            *Norm.of(layer.input_layernorm),
            *(heads.packed, heads.bias),
            *(own.q_proj.out_features // dim, own.k_proj.out_features // dim, dim),
            Norm.of(own.q_norm, look.scale) if normed else None,
            Norm.of(own.k_norm) if normed else None,
        )
        self.taken = (
            *(out.packed, out.bias),
            *Norm.of(layer.post_attention_layernorm),
            *(gate.packed, gate.bias),
            *name_activation(mlp.act_fn),
            *(up.packed, up.bias, down.packed, down.bias),
        )
        # Outside nn.Module's own bookkeeping: these belong to all layers.
        self.shared = (attention, turn)
        self.last = False
        if hasattr(layer, "attention_type"):
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], **_: Any) -> Tensor:
        """`hidden_states` [1, tokens, hidden]."""
        attention, turn = self.shared
        assert attention.kernel is not None
        turn.take(position_embeddings)
        rows = hidden_states[0]
        query, key, value = scripted(look_out)(rows, *self.given, turn.cosines, turn.sines)
        seen = attention.kernel.attend(self.index, query, key, value, self.look)
        if self.last and attention.kept is not None:
            rows, seen = rows[attention.kept], seen[attention.kept]
        return scripted(take_in)(rows, seen, *self.taken)


class Norm(NamedTuple):
    """Root mean square over the last dimension: its weight, and the length that no row falls below."""

    weight: Tensor
    least: Tensor

    @classmethod
    def of(cls, norm: Any, scale: float = 1.0) -> Norm:
        """`scale`: what the result is to be multiplied by."""
        size = norm.weight.numel()
        epsilon = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))
        return cls(norm.weight.detach().float() * (scale * size**0.5), torch.tensor((size * epsilon) ** 0.5))


def normed(rows: Tensor, weight: Tensor, least: Tensor) -> Tensor:
    """In float32, written out: torch's own `rms_norm` takes ten times as long for 512 rows."""
    numbers = rows.to(torch.float32, copy=True)
    length = torch.hypot(torch.linalg.vector_norm(numbers, 2.0, [-1], True), least)
    return numbers.div_(length).mul_(weight).to(rows.dtype)


def look_out(
    rows: Tensor,
    weight: Tensor,
    least: Tensor,
    packed: Tensor,
    bias: Optional[Tensor],  # noqa: UP045 - TorchScript reads it
    query_heads: int,
    key_heads: int,
    dim: int,
    query_norm: Optional[Tuple[Tensor, Tensor]],  # noqa: UP006, UP045
    key_norm: Optional[Tuple[Tensor, Tensor]],  # noqa: UP006, UP045
    cosines: Tensor,
    sines: Tensor,
) -> Tuple[Tensor, Tensor, Tensor]:  # noqa: UP006
    """`rows` [tokens, hidden] → queries, keys and values, each [heads, tokens, dim], turned to their places."""
    inner = torch.ops.mkldnn._linear_pointwise(normed(rows, weight, least), packed, bias, "none", [], "")
    heads = inner.view(rows.size(0), -1, dim)
    flat = heads[:, : query_heads + key_heads]
    if query_norm is not None and key_norm is not None:
        query = normed(heads[:, :query_heads], query_norm[0], query_norm[1])
        key = normed(heads[:, query_heads : query_heads + key_heads], key_norm[0], key_norm[1])
        flat = torch.cat([query, key], dim=1)
    first, second = flat.chunk(2, dim=-1)
    turned = torch.addcmul(flat * cosines, torch.cat([second, first], dim=-1), sines).transpose(0, 1)
    return turned[:query_heads], turned[query_heads:], heads[:, query_heads + key_heads :].transpose(0, 1)


def take_in(
    rows: Tensor,
    seen: Tensor,
    out: Tensor,
    out_bias: Optional[Tensor],  # noqa: UP045
    weight: Tensor,
    least: Tensor,
    gate: Tensor,
    gate_bias: Optional[Tensor],  # noqa: UP045
    activation: str,
    algorithm: str,
    up: Tensor,
    up_bias: Optional[Tensor],  # noqa: UP045
    down: Tensor,
    down_bias: Optional[Tensor],  # noqa: UP045
) -> Tensor:
    """`rows` [tokens, hidden] and what they have seen, [tokens, heads, dim] → [1, tokens, hidden]."""
    flat = seen.reshape(rows.size(0), -1)
    rows = torch.ops.mkldnn._linear_pointwise(flat, rows, out, out_bias, "add")
    given = normed(rows, weight, least)
    opened = torch.ops.mkldnn._linear_pointwise(given, gate, gate_bias, activation, [], algorithm)
    inner = torch.ops.mkldnn._linear_pointwise(given, opened, up, up_bias, "mul")
    rows = torch.ops.mkldnn._linear_pointwise(inner, rows, down, down_bias, "add")
    return rows.unsqueeze(0)


ACTIVATIONS: Mapping[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("swish", ""): F.silu,
    ("gelu", "none"): F.gelu,
    ("gelu", "tanh"): partial(F.gelu, approximate="tanh"),
    ("relu", ""): F.relu,
}
"""What oneDNN does on the way out of a product, by the names that torch gives it."""


def name_activation(function: Callable[[Tensor], Tensor]) -> tuple[str, str]:
    """Found by what it does. Raises ValueError if it is none of ACTIVATIONS."""
    sample = torch.linspace(-6, 6, 97)
    for names, known in ACTIVATIONS.items():
        if torch.allclose(function(sample), known(sample), atol=1e-5):
            return names
    raise ValueError(f"No product ends in {function}")


def fuse_layers(model: PreTrainedModel, attention: PagedAttention, dtype: torch.dtype) -> int:
    """Replaces what it can of a CPU model, and returns how many layers that were. `attention` has probed the model."""
    if dtype not in PACKABLE or not can_pack():
        return 0
    fused: dict[nn.Module, FusedLayer] = {}
    turn = Turn()

    def compare(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], _: Any) -> None:
        look = attention.looks[int(layer.self_attn.layer_idx)]  # type: ignore[arg-type, union-attr]
        with sample_kernel(attention, torch.float32):
            exact = deepcopy(layer).float()
            exact._forward_hooks.clear()
            alike = agrees(lambda: FusedLayer(exact, attention, look, Turn()), exact, in_float(inputs), in_float(named))
        if alike:
            fused[layer] = FusedLayer(layer, attention, look, turn)
            for linear in (module for module in layer.modules() if isinstance(module, nn.Linear)):
                linear.weight.data = linear.weight.data.new_empty(0)  # the packed ones take its place

    layers = list(decoder_layers(model))
    hooks = [child.register_forward_hook(compare, with_kwargs=True) for _, _, child in layers]
    try:
        with sample_kernel(attention, dtype), torch.inference_mode():
            ids, positions = sample_tokens(model.config.get_text_config())
            model(input_ids=ids, position_ids=positions, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    for parent, name, child in layers:
        if child in fused:
            setattr(parent, name, fused[child])
            fused[child].last = fused[child].index == max(attention.shapes)
    attention.narrows = any(layer.last for layer in fused.values())
    return len(fused)


SAMPLE = (Stretch(5, 1, [1]), Stretch(9, 1, [2]), Stretch(0, 22, [0]))
"""Two sequences that decode, and a prompt."""


def sample_tokens(config: Any) -> tuple[Tensor, Tensor]:
    """Ids and positions, both int64 [1, tokens]. Positions reach over the whole context: some layers do otherwise far from its start."""
    places = [place for stretch in SAMPLE for place in range(stretch.start, stretch.start + stretch.count)]
    far = max(1, (getattr(config, "max_position_embeddings", None) or 0) // (max(places) + 1))
    ids = torch.tensor([places])
    return ids % config.vocab_size, ids * far


@contextmanager
def sample_kernel(attention: PagedAttention, dtype: torch.dtype) -> Iterator[None]:
    """An empty cache for the sample, in place of whatever kernel there is."""
    before = attention.kernel
    attention.kernel = GatherKernel(attention.shapes, Geometry(len(SAMPLE) + 1, 32, torch.device("cpu"), dtype))
    attention.kernel.prepare(SAMPLE)
    try:
        yield
    finally:
        attention.kernel = before


def agrees(fuse: Callable[[], FusedLayer], layer: nn.Module, inputs: Any, named: Any) -> bool:
    """Whether the layer can be fused, and then adds the same to its input."""
    try:
        theirs, ours = layer(*inputs, **named), fuse()(*inputs, **named)
    except (TypeError, ValueError, RuntimeError) as error:
        log.debug("A layer cannot be fused: %s", error)
        return False
    if not isinstance(theirs, Tensor) or ours.shape != theirs.shape:
        return False
    added = theirs - (inputs[0] if inputs else named["hidden_states"])
    return bool((ours - theirs).norm() < TOLERANCE * added.norm())


def in_float(value: Any) -> Any:
    """Every tensor of numbers in float32, wherever it stands."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(in_float(part) for part in value)
    if isinstance(value, dict):
        return {name: in_float(part) for name, part in value.items()}
    return value


def decoder_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Those built of the parts that `FusedLayer` knows: parent, name, layer."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            parts = dict(child.named_children())
            if parts.keys() == PARTS and all(known(part) for part in parts.values()):
                yield parent, name, child


def known(part: nn.Module) -> bool:
    """One of the four parts of a layer: a norm, or attention or an MLP without anything that `FusedLayer` would leave out."""
    inner = dict(part.named_children())
    linears = {name: module for name, module in inner.items() if type(module) is nn.Linear}
    joined = [[linears[name] for name in names if name in linears] for names in SIBLINGS]
    if not all(alike(group) for group in joined if group):
        return False
    if inner.keys() == MLP_PARTS:
        return linears.keys() == MLP_PARTS - {"act_fn"}
    if linears:
        norms = [inner[name] for name in inner.keys() - linears.keys()]
        return (
            linears.keys() == ATTENTION_PARTS
            and inner.keys() - linears.keys() in ({"q_norm", "k_norm"}, set())
            and all(known(norm) for norm in norms)
            and isinstance(getattr(part, "head_dim", None), int)
        )
    return not inner and isinstance(getattr(part, "weight", None), Tensor)
