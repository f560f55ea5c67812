"""`python -m bench.gpu_engine`: decode and prefill rates of our engine on a GPU, against its memory and against transformers.

A Llama of about a billion random weights. Decoding is bound by memory: each step reads all weights once, and the keys and values of
every sequence; the share says how much of the device's own copying speed that is. Takes under four minutes. `--device cpu --tiny` runs
the same steps anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from attrs import frozen

from scaleout.core import GenerateRequest, SamplingParams
from scaleout.generate.engine import Engine, open_engine
from scaleout.generate.options import EngineOptions
from scaleout.tokenizer.files import read_folder

BILLION = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "vocab_size": 128256,
}
TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
PROMPT = 128
ANSWER = 128


@frozen
class Limits:
    """What a step cannot beat. `weights`: bytes read per step; `per_token`: bytes of keys and values; `bandwidth`: bytes/s."""

    weights: int
    per_token: int
    bandwidth: float

    def share(self, sequences: int, rate: float) -> float:
        """Of the bandwidth that a decode rate (tokens/s) uses at the middle of an answer."""
        read = self.weights + sequences * (PROMPT + ANSWER / 2) * self.per_token
        return read * rate / sequences / self.bandwidth


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_engine", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--batches", default="1,4,16,64")
    parser.add_argument("--without-transformers", action="store_true")
    options = parser.parse_args(argv)
    batches = [int(size) for size in options.batches.split(",")]
    shape: dict[str, Any] = TINY if options.tiny else BILLION
    with tempfile.TemporaryDirectory(prefix="scaleout-bench-") as folder:
        model = make_model(Path(folder), shape, options.device)
        limits = find_limits(model, options.device)
        theirs = {} if options.without_transformers else rates_of_transformers(model, batches)
        del model
        engine = open_engine(
            read_folder("bench", Path(folder)),
            EngineOptions(device=options.device, dtype="bfloat16", max_num_seqs=max(batches), max_model_len=2048),
        )
        asyncio.run(report(engine, batches, limits, theirs))
    return 0


def make_model(folder: Path, shape: dict[str, Any], device: str) -> Any:
    config = transformers.AutoConfig.for_model(
        "llama",
        **shape,
        num_key_value_heads=shape["num_attention_heads"] // 4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion weights on {device}")
    return model


def find_limits(model: Any, device: str) -> Limits:
    config = model.config
    per_token = (
        2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    )
    return Limits(2 * sum(p.numel() for p in model.parameters()), per_token, copying_speed(device))


def copying_speed(device: str) -> float:
    """Bytes read and written per second by a large copy."""
    size = 1 << (31 if device != "cpu" else 27)
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    wait(device)
    begun = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    wait(device)
    return 2 * size * 10 / (time.perf_counter() - begun)


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def rates_of_transformers(model: Any, batches: Sequence[int]) -> dict[int, float]:
    """Decoded tokens per second of transformers' own continuous batching, prefill included, by batch size."""
    rates = {}
    wanted = transformers.GenerationConfig(max_new_tokens=ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0)
    for size in batches:
        inputs = [prompt(PROMPT, model.config.vocab_size) for _ in range(size)]
        try:
            model.generate_batch(inputs[:1], generation_config=wanted)
            begun = time.perf_counter()
            model.generate_batch(inputs, generation_config=wanted)
        except (
            Exception
        ) as error:  # another library's, of a version we do not know: the figures without it are worth having
            print(f"transformers' continuous batching cannot be measured here: {type(error).__name__}: {error}")
            return rates
        rates[size] = size * ANSWER / (time.perf_counter() - begun)
    return rates


async def report(engine: Engine, batches: Sequence[int], limits: Limits, theirs: dict[int, float]) -> None:
    await decode(engine, max(batches), 8)
    results = []
    print(f"copying speed {limits.bandwidth / 1e9:.0f} GB/s")
    for size in batches:
        rate, whole = await decode(engine, size, ANSWER)
        share = limits.share(size, rate)
        results.append(
            {
                "batch": size,
                "decode_tok_s": rate,
                "share": share,
                "with_prefill_tok_s": whole,
                "transformers": theirs.get(size),
            }
        )
        beside = f", {whole / theirs[size]:.2f}× transformers" if size in theirs else ""
        print(f"batch {size:3}: {rate:9.0f} tok/s decoding, {share:.0%} of the memory's limit{beside}")
    begun = time.perf_counter()
    await asyncio.gather(*[ask(engine, prompt(1024, engine.vocab_size), 1) for _ in range(32)])
    rate = 32 * 1024 / (time.perf_counter() - begun)
    print(f"prefill: {rate:.0f} tok/s")
    print(json.dumps({"prefill_tok_s": rate, "decode": results}))
    await engine.close()


async def decode(engine: Engine, sequences: int, answer: int) -> tuple[float, float]:
    """Tokens per second between the first tokens and the last, and over the whole."""
    begun = time.perf_counter()
    firsts = await asyncio.gather(*[ask(engine, prompt(PROMPT, engine.vocab_size), answer) for _ in range(sequences)])
    ended = time.perf_counter()
    return sequences * (answer - 1) / (ended - max(firsts)), sequences * answer / (ended - begun)


async def ask(engine: Engine, ids: list[int], answer: int) -> float:
    """When the first token came."""
    params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
    first = 0.0
    async for delta in engine.generate(GenerateRequest("bench", ids, sampling_params=params, stream=True)):
        first = first or (time.perf_counter() if delta.token_ids else 0.0)
    return first


def prompt(length: int, vocab_size: int) -> list[int]:
    return [random.randrange(10, vocab_size) for _ in range(length)]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
