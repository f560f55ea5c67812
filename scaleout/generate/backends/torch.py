"""The in-process engine: transformers' own model definition, our loop, cache and sampler. CPU and CUDA."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from scaleout.errors import ConfigError
from scaleout.generate.attention import Geometry, Kernel, LayerShape, PagedAttention
from scaleout.generate.compile_ahead import wait_for_compilers
from scaleout.generate.decode_graphs import DecodeGraphs
from scaleout.generate.engine import Engine, EngineLoop
from scaleout.generate.flash_kernel import PAGE, FlashKernel, Varlen, agrees, find_varlen, suits
from scaleout.generate.gather_kernel import GatherKernel
from scaleout.generate.kv_cache import BlockPool
from scaleout.generate.memory import available_memory
from scaleout.generate.model_runner import ModelRunner, probe
from scaleout.generate.options import EngineLimits, EngineOptions, EngineStats, ModelSource
from scaleout.generate.packed_linear import bound_kernels, onednn_multiplies, pack_linears, round_up
from scaleout.generate.sampler import Sampler
from scaleout.generate.scheduler import Scheduler
from scaleout.generate.text_needs import LoadTokenizer
from scaleout.generate.vision import Vision
from scaleout.generate.weights import open_model, pick_device, pick_dtype

if TYPE_CHECKING:
    from scaleout.generate.compiled.loops import Loops

log = logging.getLogger(__name__)

CPU_SHARE = 0.25
"""Of the free memory, for the KV cache: a CPU shares its memory with everything else on the machine."""

DEFAULTS: Mapping[str, Mapping[str, int]] = {
    # Beyond a few dozen sequences a CPU is bound by arithmetic: more of them in a step only make everyone wait longer. The tokens of a
    # step and a block are such that what one layer works on stays in a core's cache.
    "cpu": {"max_num_seqs": 64, "max_num_batched_tokens": 512, "block_size": 32},
    "cuda": {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "block_size": 16},
}


def open_engine(files: ModelSource, options: EngineOptions, load_tokenizer: LoadTokenizer | None = None) -> Engine:
    bound_kernels()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    device = pick_device(options.device)
    defaults = DEFAULTS[device.type]
    attention = PagedAttention()
    cpu_block = options.block_size or defaults["block_size"]
    loops = begin_compiling(pick_dtype(options.dtype, files.config), cpu_block) if device.type == "cpu" else None
    model = open_model(files, options, attention, device)
    probe(model, attention, device)
    vision = Vision.of(model, files.config, options.encoder_cache_memory, device)
    limits = EngineLimits(
        vocab_size=files.vocab_size,
        max_model_len=min(options.max_model_len or files.max_model_len, files.max_model_len),
        max_num_seqs=options.max_num_seqs or defaults["max_num_seqs"],
        max_logprobs=options.max_logprobs,
        model=files.name,
        slot_ids=vision.slot_ids if vision else {},
    )
    dtype: torch.dtype = next(model.parameters()).dtype
    open_kernel: Callable[[Mapping[int, LayerShape], Geometry], Kernel] = GatherKernel
    if loops is not None:
        open_kernel = prepare_for_cpu(model, attention, dtype, loops)
    closed = vision is not None and vision.family.closed  # FlashAttention looks back only
    varlen = None if closed else pick_varlen(model, attention, device, dtype)
    block_size = options.block_size or (PAGE if varlen else defaults["block_size"])
    if varlen and block_size % PAGE:
        log.warning("Blocks of %d tokens are too small for FlashAttention; %d would do", block_size, PAGE)
        varlen = None
    blocks = count_blocks(kv_bytes_per_token(attention, dtype), block_size, device, options, limits)
    log.info("KV cache: %d blocks of %d tokens on %s, %s", blocks, block_size, device, dtype)
    # One block more than the pool hands out: what padding writes.
    geometry = Geometry(blocks + 1, block_size, device, dtype)
    flash = FlashKernel(attention.shapes, geometry, varlen) if varlen else None
    attention.kernel = flash or open_kernel(attention.shapes, geometry)
    rows = round_up if device.type == "cpu" and onednn_multiplies(model) else int
    runner = ModelRunner(model, attention.kernel, Sampler(), device, rows, options.threads)
    runner.vision = vision
    runner.narrowing = attention if attention.narrows else None
    if flash is not None:
        runner.graphs = record_graphs(runner, flash, limits)
    scheduler = Scheduler(
        BlockPool(blocks, block_size),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or defaults["max_num_batched_tokens"],
        policy=options.scheduling_policy,
        stats=EngineStats(),
    )
    return EngineLoop(runner, scheduler, limits, options, files.eos_token_ids, load_tokenizer, vision)


def begin_compiling(dtype: torch.dtype, block_size: int) -> Future[Loops]:
    """While weights are read. Only the first start on a machine waits for it at all."""

    def compile_loops() -> Loops:
        # Here, because numba may be missing: it follows a new Python by months.
        from scaleout.generate.compiled.loops import open_loops

        wait_for_compilers()
        return open_loops(dtype, block_size)

    threads = ThreadPoolExecutor(1, "compile")
    try:
        return threads.submit(compile_loops)
    finally:
        threads.shutdown(wait=False)


def prepare_for_cpu(
    model: PreTrainedModel, attention: PagedAttention, dtype: torch.dtype, compiling: Future[Loops]
) -> Callable[[Mapping[int, LayerShape], Geometry], Kernel]:
    """Compiled loops, with layers fused around them, where they can be had; else torch's own operations, which take longer."""
    try:
        loops = compiling.result()
        odd = any(shape.key_dim % 2 or shape.value_dim % 2 for shape in attention.shapes.values())
        if loops.tiles is not None and odd:
            raise ValueError("none for heads of an odd number of dimensions")
    except (ImportError, OSError, AttributeError, ValueError) as error:
        log.info("Attention without compiled loops: %s", error)
        log.info("%d linear layers packed", pack_linears(model))
        return GatherKernel
    from scaleout.generate.fused_layer import fuse_layers
    from scaleout.generate.loop_kernel import LoopKernel

    log.info("%d layers fused", fuse_layers(model, attention, dtype, loops))
    log.info("%d other linear layers packed", pack_linears(model, loops.tiles))
    return partial(LoopKernel, loops=loops)


def pick_varlen(
    model: PreTrainedModel, attention: PagedAttention, device: torch.device, dtype: torch.dtype
) -> Varlen | None:
    """FlashAttention, where it fits the model and gives what plain torch gives."""
    varlen = find_varlen() if device.type == "cuda" and suits(attention.shapes, dtype) else None
    if varlen is None:
        return None
    config = model.config.get_text_config()
    shape = attention.shapes[0]
    try:
        if agrees(varlen, shape, config.num_attention_heads // shape.kv_heads, device, dtype):
            return varlen
        log.warning("FlashAttention differs from plain attention on this device: not used")
    except RuntimeError as error:
        log.warning("FlashAttention cannot be used on this device: %s", error)
    return None


def record_graphs(runner: ModelRunner, kernel: FlashKernel, limits: EngineLimits) -> DecodeGraphs | None:
    """None where the model does something that a graph cannot hold."""
    graphs = DecodeGraphs(
        runner.compute, kernel, limits.max_num_seqs, limits.max_model_len, scratch=kernel.geometry.blocks - 1
    )
    try:
        with torch.inference_mode():
            graphs.record()
    except RuntimeError as error:
        log.warning("Decoding without CUDA graphs: %s", error)
        return None
    return graphs


def kv_bytes_per_token(attention: PagedAttention, dtype: torch.dtype) -> int:
    numbers = sum(shape.kv_heads * (shape.key_dim + shape.value_dim) for shape in attention.shapes.values())
    return numbers * dtype.itemsize


def count_blocks(
    per_token: int, block_size: int, device: torch.device, options: EngineOptions, limits: EngineLimits
) -> int:
    """As many blocks as the memory holds, no more than every place at full length needs, and at least one full sequence."""
    longest = -(-limits.max_model_len // block_size)
    memory = options.kv_cache_memory if options.kv_cache_memory is not None else free_memory(device, options)
    blocks = min(memory // (per_token * block_size), longest * limits.max_num_seqs)
    if blocks < longest:
        raise ConfigError(
            f"The KV cache has room for {blocks * block_size} tokens, less than one sequence of max_model_len={limits.max_model_len}. "
            "Lower --max-model-len or give it more memory."
        )
    return int(blocks)


def free_memory(device: torch.device, options: EngineOptions) -> int:
    """Bytes for the KV cache, after the weights are there."""
    if device.type == "cpu":
        return int(available_memory() * CPU_SHARE)
    free, total = torch.cuda.mem_get_info(device)
    return int(free - total * (1 - options.gpu_memory_utilization))
