"""Decoder layers of the Llama kind in a dozen calls, for CPUs, where every call costs microseconds before it starts.

transformers' definition stays the truth: each layer is replaced only if it is built like this one and gives the same output on a sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attrs import evolve
from torch import Tensor, nn
from transformers import PreTrainedModel

from scaleout.generate.attention import Geometry, Kernel, Look, PagedAttention, Stretch
from scaleout.generate.compiled.loops import Loops
from scaleout.generate.gather_kernel import GatherKernel
from scaleout.generate.loop_kernel import LoopKernel
from scaleout.generate.packed_linear import PACKABLE, SIBLINGS, PackedLinear, alike, can_pack, gated

log = logging.getLogger(__name__)

PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}

TOLERANCE = 1e-3
"""Of the difference in float32, relative to what the layer adds to its input: sums in another order differ by far less."""

ROUNDED = 2.0
"""Times as far from what float32 gives as transformers' own layer, where numbers are rounded: more is another layer."""


class Turn:
    """The rotary embedding of a step, laid out once for all layers: [tokens, dim] each."""

    def __init__(self) -> None:
        self.given: tuple[Tensor, Tensor] | None = None
        self.cosines = self.sines = torch.empty(0)

    def take(self, position_embeddings: tuple[Tensor, Tensor], like: Tensor, dim: int) -> Turn:
        """`like` has the number type of heads of `dim`. Raises ValueError where only a part of each head is turned."""
        if position_embeddings is not self.given:
            cosines, sines = (part[0].to(like.dtype).contiguous() for part in position_embeddings)
            if cosines.shape[1:] != (dim,) or sines.shape != cosines.shape:
                raise ValueError(f"{tuple(cosines.shape)} is not a turn of every number of a head of {dim}")
            self.given, self.cosines, self.sines = position_embeddings, cosines, sines
        return self


class FusedLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to what came in. Its attention's kernel is a `LoopKernel`."""

    def __init__(self, layer: nn.Module, attention: PagedAttention, look: Look, turn: Turn, loops: Loops) -> None:
        super().__init__()
        own: Any = layer.self_attn
        mlp: Any = layer.mlp
        self.index, self.look, self.dim = int(own.layer_idx), evolve(look, scale=1.0), int(own.head_dim)
        self.query_heads = int(own.q_proj.out_features // self.dim)
        normed = hasattr(own, "q_norm")
        scales = (1.0 if normed else look.scale, 1.0, 1.0)
        self.before, self.between = lay_out_norm(layer.input_layernorm), lay_out_norm(layer.post_attention_layernorm)
        self.norms = torch.stack([lay_out_norm(own.q_norm, look.scale), lay_out_norm(own.k_norm)]) if normed else None
        # Gate and up stay apart: activation and product then happen while their numbers are still in a register.
        self.heads = PackedLinear([own.q_proj, own.k_proj, own.v_proj], scales, loops.tiles)
        self.out, self.gate, self.up, self.down = (
            PackedLinear([one], tiles=loops.tiles) for one in (own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )
        self.activation = name_activation(mlp.act_fn)
        # Where all of it is loops, they wait for each other without this thread.
        self.joined = all(one.panels is not None for one in (self.heads, self.out, self.gate, self.up, self.down))
        # Outside nn.Module's own bookkeeping: these belong to all layers.
        self.shared = (attention, turn)
        self.last = False
        if hasattr(layer, "attention_type"):
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], **_: Any) -> Tensor:
        """`hidden_states` [1, tokens, hidden]."""
        attention, turn = self.shared
        kernel = attention.kernel
        assert isinstance(kernel, LoopKernel)
        rows = hidden_states[0].contiguous()
        turn.take(position_embeddings, rows, self.dim)
        with kernel.loops.team.together() if self.joined else nullcontext():
            added = self._add(rows, kernel, turn, attention.kept if self.last else None)
        return added.unsqueeze(0)

    def _add(self, rows: Tensor, kernel: LoopKernel, turn: Turn, kept: Tensor | None) -> Tensor:
        """`rows` [tokens, hidden] → the same with attention and MLP added; of those `kept` only. No tensor is let go before it was read:
        see `Team.together`.
        """
        loops, caches = kernel.loops, kernel.caches[self.index]
        normed = loops.normalise(rows, self.before)
        given = self.heads(normed)
        query = loops.turn(given, turn.cosines, turn.sines, kernel.slots, caches, self.query_heads, self.norms)
        seen = kernel.look(self.index, query, self.look).flatten(1)
        if kept is not None:
            loops.team.flush()
            rows, seen = rows[kept], seen[kept]
        attended = self.out(seen, rows)
        between = loops.normalise(attended, self.between)
        inner = gated(between, self.gate, self.up, self.activation)
        added: Tensor = self.down(inner, attended)
        loops.team.flush()
        return added


def lay_out_norm(norm: Any, scale: float = 1.0) -> Tensor:
    """For `Loops`: the length that no row falls below, and the weight, times `scale`; float32 [1 + width]."""
    size = norm.weight.numel()
    epsilon = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))
    least = torch.tensor([(size * epsilon) ** 0.5])
    return torch.cat([least, norm.weight.detach().float() * (scale * size**0.5)])


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


def fuse_layers(model: PreTrainedModel, attention: PagedAttention, dtype: torch.dtype, loops: Loops) -> int:
    """Replaces what it can of a CPU model, and returns how many layers that were. `attention` has probed the model."""
    if dtype not in PACKABLE or not can_pack():
        return 0
    fused: dict[nn.Module, FusedLayer] = {}
    turn = Turn()

    def compare(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], theirs: Any) -> None:
        look = attention.looks[int(layer.self_attn.layer_idx)]  # type: ignore[arg-type, union-attr]
        exact = deepcopy(layer).float()
        exact._forward_hooks.clear()
        with sample_kernel(attention, torch.float32):
            truth = exact(*in_float(inputs), **in_float(named))
        try:
            ours = FusedLayer(layer, attention, look, turn, loops)
            with sample_kernel(attention, dtype, loops):
                said = ours(*inputs, **named)
        except (TypeError, ValueError, RuntimeError) as error:
            log.debug("A layer cannot be fused: %s", error)
            return
        if agrees(said, theirs, truth, inputs[0] if inputs else named["hidden_states"]):
            fused[layer] = ours
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
def sample_kernel(attention: PagedAttention, dtype: torch.dtype, loops: Loops | None = None) -> Iterator[None]:
    """An empty cache for the sample, in place of whatever kernel there is."""
    before = attention.kernel
    geometry = Geometry(len(SAMPLE) + 1, 32, torch.device("cpu"), dtype)
    kernel: Kernel = GatherKernel(attention.shapes, geometry)
    if loops is not None:
        kernel = LoopKernel(attention.shapes, geometry, loops)
    kernel.prepare(SAMPLE)
    attention.kernel = kernel
    try:
        yield
    finally:
        attention.kernel = before


def agrees(ours: Any, theirs: Any, truth: Any, given: Tensor) -> bool:
    """Whether `ours` is what the layer adds to `given`: as close to `truth`, in float32, as `theirs` in the number type of both."""
    if not isinstance(truth, Tensor) or ours.shape != truth.shape:
        return False
    allowed = max(TOLERANCE * float((truth - given).norm()), ROUNDED * float((theirs - truth).norm()))
    return bool((ours - truth).norm() < allowed)


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
