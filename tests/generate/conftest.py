"""Real engines on real and on random small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from asking import Source, source

from scaleout.generate.engine import Engine, open_engine
from scaleout.generate.options import EngineOptions, ThinkingMarkers
from scaleout.tokenizer import Tokenizer, load_model_files, load_tokenizer

# Modules that cannot even be imported where render is tested without an engine.
collect_ignore = (
    []
    if find_spec("torch")
    else [path.name for path in Path(__file__).parent.glob("test_*.py") if "\nimport torch\n" in path.read_text()]
)
collect_ignore += [] if find_spec("numpy") else ["test_sampler.py"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads that spin at barriers make small models crawl on a machine that also does something else."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """For loops that share their work out."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Source:
    return source(smollm2_folder)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_folder: Path) -> Tokenizer:
    return load_tokenizer(load_model_files(str(smollm2_folder)))


@pytest.fixture(scope="session")
def smollm2_engine(smollm2: Source, smollm2_tokenizer: Tokenizer) -> Engine:
    """float32, so that batching changes no greedy id. Shared by all tests: none may leave it worse than it found it."""

    def thinking() -> ThinkingMarkers:
        start, end = (smollm2_tokenizer.encode(text, False) for text in ("<think>", "</think>"))
        return ThinkingMarkers(start, end)

    options = EngineOptions(dtype="float32", max_logprobs=-1, seed=1, thinking=thinking)
    return open_engine(smollm2, options, lambda: smollm2_tokenizer)


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Source]:
    """`random_model(model_type, **config)`: four small random layers of an architecture, in float32."""
    import torch
    import transformers

    def make(model_type: str, **config: Any) -> Source:
        torch.manual_seed(0)
        made = transformers.AutoConfig.for_model(model_type, **{**SMALL, **config})
        model = transformers.AutoModelForCausalLM.from_config(made)
        # Initial weights are so small that every distribution is flat and a broken attention would hardly show.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        folder = tmp_path_factory.mktemp(model_type)
        model.save_pretrained(folder)
        return source(folder)

    return make


@pytest.fixture(scope="session")
def seeing(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """`seeing(name)`: a small random model of a family that sees, as `vision_models` describes it."""
    from vision_models import FAMILIES, Seeing, make

    made: dict[str, Seeing] = {}

    def find(name: str) -> Seeing:
        if name not in made:
            made[name] = make(name, tiny_model(FAMILIES[name].base), tmp_path_factory.mktemp(name))
        return made[name]

    return find


SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}
