"""Decoder layers of the Llama kind in a dozen operations, for CPUs, where every operation costs microseconds before it starts.

transformers' definition stays the truth: each layer is replaced only if it is built like this one and gives the same output on a sample.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from scaleout.generate.attention import Geometry, Look, PagedAttention, Stretch
from scaleout.generate.gather_kernel import GatherKernel
from scaleout.generate.packed_linear import PACKABLE, SIBLINGS, PackedLinear, alike, can_pack

log = logging.getLogger(__name__)

PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}

TOLERANCE = 1e-3
"""Of the difference in float32, relative to what the layer adds to its input: sums in another order differ by far less."""


class Turn:
    """The rotary embedding of a step, laid out once for all layers. `sines` [tokens, 1, dim] has its first half negated."""

    def __init__(self) -> None:
        self.given: tuple[Tensor, Tensor] | None = None
        self.cosines = self.sines = torch.empty(0)

    def take(self, position_embeddings: tuple[Tensor, Tensor]) -> Turn:
        if position_embeddings is not self.given:
            cosines, sines = (part[0].unsqueeze(1) for part in position_embeddings)
            first, second = sines.chunk(2, dim=-1)
            self.given, self.cosines, self.sines = position_embeddings, cosines, torch.cat((-first, second), dim=-1)
        return self

    def apply(self, heads: Tensor) -> Tensor:
        """`heads` [tokens, heads, dim]."""
        first, second = heads.chunk(2, dim=-1)
        return torch.addcmul(heads * self.cosines, torch.cat((second, first), dim=-1), self.sines)


class FusedLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to what came in."""

    def __init__(self, layer: nn.Module, attention: PagedAttention, look: Look, turn: Turn) -> None:
        super().__init__()
        own: Any = layer.self_attn
        mlp: Any = layer.mlp
        self.index, self.dim, self.look = int(own.layer_idx), int(own.head_dim), look
        self.query_heads = own.q_proj.out_features // self.dim
        self.rotated = self.query_heads + own.k_proj.out_features // self.dim
        self.before, self.after = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        self.query_norm = Norm(own.q_norm) if hasattr(own, "q_norm") else None
        self.key_norm = Norm(own.k_norm) if hasattr(own, "k_norm") else None
        self.heads, self.out = PackedLinear([own.q_proj, own.k_proj, own.v_proj]), PackedLinear([own.o_proj])
        self.gates, self.down = PackedLinear([mlp.gate_proj, mlp.up_proj]), PackedLinear([mlp.down_proj])
        self.inner, self.activate = mlp.gate_proj.out_features, mlp.act_fn
        # Outside nn.Module's own bookkeeping: these belong to all layers.
        self.shared = (attention, turn)
        if hasattr(layer, "attention_type"):
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], **_: Any) -> Tensor:
        """`hidden_states` [1, tokens, hidden]."""
        attention, turn = self.shared
        assert attention.kernel is not None
        rows = hidden_states[0]
        heads = self.heads(self.before(rows)).view(len(rows), -1, self.dim)
        turned = turn.take(position_embeddings).apply(self._normed(heads)).transpose(0, 1)
        query, key = turned[: self.query_heads], turned[self.query_heads :]
        value = heads[:, self.rotated :].transpose(0, 1)
        seen = attention.kernel.attend(self.index, query, key, value, self.look)
        rows = self.out.add_to(rows, seen.view(len(rows), -1))
        gate, up = self.gates(self.after(rows)).split(self.inner, dim=-1)
        return self.down.add_to(rows, self.activate(gate).mul_(up)).unsqueeze(0)

    def _normed(self, heads: Tensor) -> Tensor:
        """Queries and keys, [tokens, rotated, dim]."""
        if self.query_norm is None or self.key_norm is None:
            return heads[:, : self.rotated]
        query, key = heads[:, : self.query_heads], heads[:, self.query_heads : self.rotated]
        return torch.cat((self.query_norm(query), self.key_norm(key)), dim=1)


class Norm(nn.Module):
    """Root mean square over the last dimension, in float32. torch's own `rms_norm` takes ten times as long for 512 rows."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        size = norm.weight.numel()
        epsilon = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))
        self.weight = norm.weight.detach().float() * size**0.5
        self.least = torch.tensor((size * epsilon) ** 0.5)

    def forward(self, rows: Tensor) -> Tensor:
        numbers = rows.to(torch.float32, copy=True)
        length = torch.hypot(torch.linalg.vector_norm(numbers, dim=-1, keepdim=True), self.least)
        return numbers.div_(length).mul_(self.weight).to(rows.dtype)


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
            alike = agrees(FusedLayer(exact, attention, look, Turn()), exact, in_float(inputs), in_float(named))
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


def agrees(candidate: FusedLayer, layer: nn.Module, inputs: Any, named: Any) -> bool:
    """Whether both add the same to their input."""
    try:
        theirs, ours = layer(*inputs, **named), candidate(*inputs, **named)
    except (TypeError, RuntimeError) as error:
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
