"""The floors of docs/structure.md: who may import whom, which library lives where, and the shape that modules keep."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import scaleout

ROOT = Path(scaleout.__file__).parent

FLOORS = {
    0: {"core", "errors", "config"},
    1: {"parsers", "tokenizer", "codec", "wire", "result_wire", "feature_wire", "sse_reader"},
    2: {"render", "generate", "derender", "dialects"},
    3: {"pipeline"},
    4: {"routes"},
    5: {"__main__", "cli", "app", "listener", "logs", "tls", "workers", "demo", "demo_model"},
}
FLOOR_OF = {part: floor for floor, parts in FLOORS.items() for part in parts}

ONLY_IN = {
    "torch": ("generate/",),
    "numba": ("generate/compiled/",),
    "llvmlite": ("generate/compiled/",),
    "jinja2": ("render/chat_template.py",),
    "aiohttp": ("routes/", "app.py", "cli.py", "generate/remote/link.py"),
    "cattrs": ("codec.py",),
}
"""Library → where it may be imported, as beginnings of paths below `scaleout/`."""

PARSERS_MAY_USE = {"attrs", "attr", "scaleout", *sys.stdlib_module_names}

LONGEST_MODULE = 400

NAMES_THAT_SAY_NOTHING = ("Manager", "Helper", "Handler")


def modules() -> list[str]:
    """Every module, as its path below `scaleout/`."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def part_of(name: str) -> str:
    """`routes/sse.py` → `routes`, `app.py` → `app`."""
    return name.split("/")[0].removesuffix(".py")


def imports(name: str, source: str) -> Iterator[str]:
    """Dotted names of everything that is imported anywhere in a module, also inside functions."""
    package = ["scaleout", *name.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            target = ".".join(part for part in (base, node.module) if part)
            yield from (f"{target}.{alias.name}" for alias in node.names) if target == "scaleout" else [target]


def neighbours(mine: str, theirs: str) -> bool:
    """Own folder; single files on one floor share one too. All of the ground floor is one folder in that sense."""
    if mine == theirs:
        return True
    one_floor = FLOOR_OF.get(theirs) == FLOOR_OF[mine]
    return one_floor and (FLOOR_OF[mine] == 0 or not ((ROOT / mine).is_dir() or (ROOT / theirs).is_dir()))


def faults(name: str, source: str) -> list[str]:
    """Every rule that a module breaks, as sentences."""
    found = []
    mine = part_of(name)
    for imported in imports(name, source):
        library, _, rest = imported.partition(".")
        if library == "scaleout":
            theirs = rest.split(".")[0]
            if theirs in FLOOR_OF and not neighbours(mine, theirs) and FLOOR_OF[theirs] >= FLOOR_OF[mine]:
                found.append(f"{name} (floor {FLOOR_OF[mine]}) imports scaleout.{theirs} (floor {FLOOR_OF[theirs]})")
        if library in ONLY_IN and not name.startswith(ONLY_IN[library]):
            found.append(f"{name} imports {library}, which belongs in {', '.join(ONLY_IN[library])}")
        if mine == "parsers" and library not in PARSERS_MAY_USE:
            found.append(f"{name} imports {library}; parsers use attrs and the standard library alone")
    return found


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_from_lower_floors_and_its_own_folder(name: str) -> None:
    if name != "__init__.py":
        assert part_of(name) in FLOOR_OF, f"{name} stands on no floor"
        assert faults(name, (ROOT / name).read_text()) == []


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("render/renderer.py", "from scaleout.derender.state import DerenderState", "imports scaleout.derender"),
        ("render/renderer.py", "def f():\n    import torch", "imports torch"),
        ("tokenizer/load.py", "from ..routes import ROUTES", "imports scaleout.routes"),
        ("tokenizer/load.py", "from scaleout import pipeline", "imports scaleout.pipeline"),
        ("parsers/machine.py", "from scaleout.tokenizer import Tokenizer", "imports scaleout.tokenizer"),
        ("parsers/machine.py", "import orjson", "attrs and the standard library alone"),
        ("render/renderer.py", "import jinja2.sandbox", "imports jinja2"),
        ("pipeline.py", "from aiohttp import web", "imports aiohttp"),
        ("dialects/chat.py", "import cattrs", "imports cattrs"),
        ("config/load.py", "from scaleout.codec import loads", "imports scaleout.codec"),
    ],
)
def test_the_rules_see_what_breaks_them(name: str, source: str, expected: str) -> None:
    assert expected in "; ".join(faults(name, source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cli.py", "from scaleout.app import run"),
        ("config/load.py", "from scaleout.errors import ConfigError"),
        ("routes/sse.py", "from .table import mount\nfrom aiohttp import web"),
        ("generate/backends/torch.py", "import torch"),
        ("__main__.py", "from scaleout import __version__"),
    ],
)
def test_the_rules_let_pass_what_keeps_them(name: str, source: str) -> None:
    assert faults(name, source) == []


@pytest.mark.parametrize("name", [name for name in modules() if name.endswith("__init__.py")])
def test_a_package_opens_with_what_it_is(name: str) -> None:
    assert ast.get_docstring(ast.parse((ROOT / name).read_text())), f"{name} needs a docstring"


def test_modules_stay_short() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in modules()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_names_say_what_things_are() -> None:
    assert [name for name in modules() if Path(name).stem in ("utils", "util", "helpers", "misc", "common")] == []
    classes = [
        node.name
        for name in modules()
        for node in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name in classes if name.endswith(NAMES_THAT_SAY_NOTHING)] == []


def test_every_file_is_packed() -> None:
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    kept = (path for path in ROOT.rglob("*") if path.parent.name != "__pycache__")
    files = [path for path in kept if path.is_file() and path.suffix != ".py"]
    assert files
    assert [path for path in files if not any(path.match(pattern) for pattern in patterns)] == []
