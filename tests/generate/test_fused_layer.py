"""Fused layers say what the layers they replace say, and replace only those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from asking import Source
from torch import Tensor, nn

from scaleout.generate.attention import Geometry, PagedAttention, Stretch
from scaleout.generate.compiled.loops import open_loops
from scaleout.generate.fused_layer import FusedLayer, fuse_layers
from scaleout.generate.gather_kernel import GatherKernel
from scaleout.generate.loop_kernel import LoopKernel
from scaleout.generate.model_runner import probe
from scaleout.generate.options import EngineOptions
from scaleout.generate.packed_linear import can_pack
from scaleout.generate.weights import open_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not can_pack(), reason="this torch was built without oneDNN: nothing is fused"),
]

CPU = torch.device("cpu")

TOLERANCE = 2e-4
"""Of log probabilities in float32: sums run in another order."""

STEP = (Stretch(7, 1, [1, 2]), Stretch(20, 1, [3, 4, 5, 6, 7, 8]), Stretch(0, 30, [9, 10, 11, 12, 13, 14, 15, 16]))
"""Two sequences that decode, and a prompt."""

FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "smollm2": ("llama", {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "head_dim": 8}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with gelu": ("llama", {"hidden_act": "gelu"}),
    "llama with tanh-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": 8}),
}

REFUSED: dict[str, dict[str, Any]] = {
    "llama": {"hidden_act": "tanh"},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "granite": {"residual_multiplier": 0.5},
    "olmo2": {},
    "glm4": {"head_dim": 16},
    "phi3": {"original_max_position_embeddings": 256},
    "mixtral": {"num_local_experts": 4},
    "gpt_neox": {},
    # Like Mistral, but far from the start its queries grow.
    "ministral3": {
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": 128,
        },
    },
}


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_model_gives_the_same_logits(name: str, random_model: Callable[..., Source]) -> None:
    kind, config = FUSED[name]
    model, attention = probed(random_model(kind, **config))
    randomise_vectors(model)
    with_cache(attention)
    before = logits(model, attention)
    assert fuse_layers(model, attention, torch.float32, open_loops(torch.float32)) == 4
    with_cache(attention, fused=True)
    assert (logits(model, attention) - before).abs().max() < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_differ_stay_as_they_are(
    name: str, dtype: torch.dtype, random_model: Callable[..., Source]
) -> None:
    model, attention = probed(random_model(name, **REFUSED[name]), dtype)
    randomise_vectors(model)
    with_cache(attention, dtype=dtype)
    before = logits(model, attention)
    assert fuse_layers(model, attention, dtype, open_loops(dtype)) == 0
    with_cache(attention, dtype=dtype)
    assert torch.equal(logits(model, attention), before)


@pytest.mark.parametrize("name", FUSED)
def test_rounding_is_no_difference(name: str, random_model: Callable[..., Source]) -> None:
    kind, config = FUSED[name]
    model, attention = probed(random_model(kind, **config), torch.bfloat16)
    randomise_vectors(model)
    assert fuse_layers(model, attention, torch.bfloat16, open_loops(torch.bfloat16)) == 4


def test_only_some_layers_of_a_model_may_be_fused(random_model: Callable[..., Source]) -> None:
    """Every fourth layer of SmolLM3 does not turn its queries and keys."""
    model, attention = probed(random_model("smollm3", no_rope_layers=[1, 1, 0, 1]))
    with_cache(attention)
    before = logits(model, attention)
    assert fuse_layers(model, attention, torch.float32, open_loops(torch.float32)) == 3
    with_cache(attention, fused=True)
    assert (logits(model, attention) - before).abs().max() < TOLERANCE


@pytest.mark.parametrize("kept", [[0], [1, 31], [31, 0, 7]])
def test_the_last_layer_may_go_on_with_some_tokens_alone(kept: list[int], random_model: Callable[..., Source]) -> None:
    model, attention = probed(random_model("llama"))
    fuse_layers(model, attention, torch.float32, open_loops(torch.float32))
    assert attention.narrows
    with_cache(attention, fused=True)
    everything = logits(model, attention)
    with_cache(attention, fused=True)
    attention.kept = torch.tensor(kept)
    assert (logits(model, attention) - everything[kept]).abs().max() < TOLERANCE


def test_the_weights_lie_in_memory_once(random_model: Callable[..., Source]) -> None:
    model, attention = probed(random_model("llama"))
    linears = [module for layer in model.model.layers for module in layer.modules() if isinstance(module, nn.Linear)]
    assert all(linear.weight.numel() for linear in linears)
    fuse_layers(model, attention, torch.float32, open_loops(torch.float32))
    assert sum(linear.weight.numel() for linear in linears) == 0
    assert not any(isinstance(module, nn.Linear) for layer in model.model.layers for module in layer.modules())


def test_the_caches_and_the_kernel_of_before_are_back(random_model: Callable[..., Source]) -> None:
    model, attention = probed(random_model("llama"))
    kernel = with_cache(attention)
    fuse_layers(model, attention, torch.float32, open_loops(torch.float32))
    assert attention.kernel is kernel
    assert not any(cache.any() for pair in kernel.caches.values() for cache in pair)


def test_nothing_is_fused_in_a_number_type_that_cannot_be_packed(random_model: Callable[..., Source]) -> None:
    model, attention = probed(random_model("llama"))
    assert fuse_layers(model, attention, torch.float16, open_loops(torch.bfloat16)) == 0
    assert not any(isinstance(module, FusedLayer) for module in model.modules())


def probed(files: Source, dtype: torch.dtype = torch.float32) -> tuple[Any, PagedAttention]:
    attention = PagedAttention()
    model = open_model(files, EngineOptions(dtype=str(dtype).removeprefix("torch.")), attention, CPU)
    probe(model, attention, CPU)
    return model, attention


def randomise_vectors(model: nn.Module) -> None:
    """Norms and biases of new models are ones and zeros, which would hide that they were left out."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)


def with_cache(
    attention: PagedAttention, fused: bool = False, dtype: torch.dtype = torch.float32
) -> GatherKernel | LoopKernel:
    """An empty cache: blocks of 4 tokens, the last one for padding."""
    geometry = Geometry(18, 4, CPU, dtype)
    kernel: GatherKernel | LoopKernel = GatherKernel(attention.shapes, geometry)
    if fused:
        kernel = LoopKernel(attention.shapes, geometry, open_loops(dtype))
    attention.kernel = kernel
    return kernel


@torch.inference_mode()
def logits(model: Any, attention: PagedAttention) -> Tensor:
    """Log probabilities after STEP, [tokens, vocab]. What the decoding sequences look back at is empty."""
    assert attention.kernel is not None
    attention.kernel.prepare(STEP)
    positions = torch.tensor([[place for one in STEP for place in range(one.start, one.start + one.count)]])
    output = model(input_ids=positions * 7 % 96, position_ids=positions * 8, use_cache=False)
    return torch.log_softmax(output.logits[0].float(), dim=-1)
