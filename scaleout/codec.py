"""JSON ↔ nouns: the one cattrs converter, with orjson underneath. Every error carries the JSON path of what is wrong."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs
import cattrs
import orjson
from cattrs.errors import AttributeValidationNote, BaseValidationError, ClassValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn

from scaleout.core import Json, TokenIds
from scaleout.errors import InvalidField

T = TypeVar("T")


def loads(data: bytes | str) -> Json:
    """JSON text to values. Raises `ValueError` (with `pos`) on anything that is not strict UTF-8 JSON."""
    return orjson.loads(data)


def dumps(value: Json) -> bytes:
    """Values to compact JSON; integer keys become strings."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


class Unfit(ValueError):
    """A value that does not fit its field; `path` is added below the field that failed."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


# Scalars are read as leniently as the reference peer reads them (CONTRACT 2.2): "5", 5.0 and true are the integer 5, 5, 1.


def read_int(value: Json, _: Any = int) -> int:
    kind = type(value)
    if kind is int:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return int(value)
    if kind is float:
        if value.is_integer():
            return _fit_64_bits(int(value))
        raise Unfit("Input should be a valid integer, got a number with a fractional part")
    if kind is str:
        try:
            number = int(value.strip())
        except ValueError:
            raise Unfit("Input should be a valid integer, unable to parse string as an integer") from None
        return _fit_64_bits(number)
    raise Unfit("Input should be a valid integer")


def _fit_64_bits(number: int) -> int:
    """JSON text has no longer integers here: a longer one could be read from a float or a string, but never be answered."""
    if -(2**63) <= number < 2**64:
        return number
    raise Unfit("Input should be a valid integer of at most 64 bits")


def read_float(value: Json, _: Any = float) -> float:
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]
    if kind is int or kind is bool:
        return float(value)
    if kind is str:
        try:
            return float(value.strip())
        except ValueError:
            raise Unfit("Input should be a valid number, unable to parse string as a number") from None
    raise Unfit("Input should be a valid number")


def read_member(values: Mapping[str, Json], name: str, read: Callable[[Json], T]) -> T:
    """`read` the value of `name`, with the member's name in the path of a fault."""
    try:
        return read(values.get(name))
    except Unfit as e:
        raise Unfit(str(e), f".{name}{e.path}") from None


_TRUE = frozenset(("true", "t", "yes", "y", "on", "1"))
_FALSE = frozenset(("false", "f", "no", "n", "off", "0"))


def read_bool(value: Json, _: Any = bool) -> bool:
    if value is True or value is False:
        return bool(value)
    if type(value) in (int, float) and value in (0, 1):
        return bool(value)
    if type(value) is str:
        word = value.lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    raise Unfit("Input should be a valid boolean")


def read_str(value: Json, _: Any = str) -> str:
    if type(value) is str:
        return value
    raise Unfit("Input should be a valid string")


_SHORT_LIST = 4096
"""Ids up to which a copy costs less than looking at every type."""


def read_ids(value: Json, _: Any = TokenIds) -> list[int]:
    """Token ids: a list of non-negative integers. Passes in C for the usual list; item by item only to name a fault."""
    if type(value) is not list:
        raise Unfit("Input should be a valid list")
    if len(value) <= _SHORT_LIST:
        try:
            return array("I", value).tolist()
        except (TypeError, OverflowError):  # fractions, texts, negative or huge numbers
            pass
    elif set(map(type, value)) == {int} and min(value) >= 0:
        return value
    ids = []
    for i, item in enumerate(value):
        try:
            number = read_int(item)
        except Unfit as e:
            raise Unfit(str(e), f".{i}") from None
        if number < 0:
            raise Unfit("Input should be greater than or equal to 0", f".{i}")
        ids.append(number)
    return ids


def read_object(value: Json, _: Any = Mapping) -> dict[str, Json]:
    if type(value) is dict:
        return value
    raise Unfit("Input should be a valid dictionary")


def _read_sequence(of: Any) -> Callable[[Json, Any], list[Any]]:
    (item_type,) = get_args(of)
    if item_type is Any:
        return lambda value, _: expect_list(value)
    read_item = converter.get_structure_hook(item_type)

    def read(value: Json, _: Any) -> list[Any]:
        items = []
        for i, item in enumerate(expect_list(value)):
            try:
                items.append(read_item(item, item_type))
            except Unfit as e:
                raise Unfit(str(e), f".{i}{e.path}") from None
            except BaseValidationError as e:
                raise _first_fault(e, f".{i}") from None
        return items

    return read


def expect_list(value: Json, path: str = "") -> list[Json]:
    if type(value) is not list:
        raise Unfit("Input should be a valid list", path)
    return value


def _read_literal(of: Any) -> Callable[[Json, Any], Any]:
    allowed = get_args(of)
    listed = " or ".join(filter(None, (", ".join(map(repr, allowed[:-1])), repr(allowed[-1]))))

    def read(value: Json, _: Any) -> Any:
        for one in allowed:
            if value == one and type(value) is type(one):
                return one
        raise Unfit(f"Input should be {listed}")

    return read


def _first_fault(error: BaseException, path: str) -> Unfit:
    """The first leaf of a cattrs error group, with the path that leads to it."""
    if isinstance(error, BaseValidationError):
        inner = error.exceptions[0]
        for note in getattr(inner, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                path = f"{path}.{note.name}"
            elif isinstance(note, IterableValidationNote):
                path = f"{path}.{note.index}"
        if isinstance(error, ClassValidationError) and isinstance(inner, KeyError) and inner.args:
            return Unfit("Field required", path)
        return _first_fault(inner, path)
    if isinstance(error, Unfit):
        return Unfit(str(error), path + error.path)
    if isinstance(error, RecursionError):
        return Unfit("Input is nested too deeply", path)
    if isinstance(error, (TypeError, AttributeError)):
        return Unfit("Input should be a valid dictionary", path)
    return Unfit(str(error) or type(error).__name__, path)


def structure(value: Json, kind: type[T], path: str = "body") -> T:
    """Build `kind` (an attrs class) from JSON values. Unknown keys are ignored.

    Raises `InvalidField` whose `param` is the JSON path of the first fault, also named in the text.
    """
    if type(value) is not dict:
        raise invalid(path, "Input should be a valid dictionary or object to extract fields from")
    try:
        return converter.structure(value, kind)
    except (BaseValidationError, Unfit) as e:
        fault = _first_fault(e, path)
        raise invalid(fault.path, str(fault)) from None


def invalid(path: str, message: str) -> InvalidField:
    """The error for one unfit field; the text names the path, as every validation error does."""
    return InvalidField(f"1 validation error:\n  {path}: {message}", path)


def unstructure(value: Any) -> Json:
    """A noun as JSON values: every field, nulls included."""
    return converter.unstructure(value)


def finite(value: float) -> float:
    """JSON has no infinities: the wire says -9999.0 for a log probability of minus infinity or NaN (CONTRACT 6.3)."""
    return value if math.isfinite(value) else -9999.0


def prepare(kind: type[Any], change: Callable[[dict[str, Json]], dict[str, Json]]) -> None:
    """Have `change` see the JSON object of every `kind` before its fields are read; it may raise `Unfit`."""
    read = make_dict_structure_fn(kind, converter)

    def read_prepared(value: Json, of: Any) -> Any:
        return read(change(read_object(value)), of)

    converter.register_structure_hook(kind, read_prepared)


def accept(of: Any, read: Callable[[Json, Any], Any]) -> None:
    """Read values of the type `of` by `read`."""
    converter.register_structure_hook_func(lambda kind: kind == of, read)


def drop_nulls(value: dict[str, Json]) -> dict[str, Json]:
    """A copy in which an explicit null counts as "not sent"."""
    return {key: item for key, item in value.items() if item is not None}


def _is_a(*kinds: Any) -> Callable[[Any], bool]:
    def is_a(of: Any) -> bool:
        origin: Any = get_origin(of)
        return origin in kinds

    return is_a


def _read_attrs(kind: Any) -> Callable[[Json, Any], Any]:
    read = make_dict_structure_fn(kind, converter)
    return lambda value, of: read(read_object(value), of)


converter = cattrs.Converter(detailed_validation=True)
for _type, _read in ((int, read_int), (float, read_float), (bool, read_bool), (str, read_str)):
    converter.register_structure_hook(_type, _read)
converter.register_structure_hook_factory(attrs.has, _read_attrs)
converter.register_structure_hook_func(lambda of: of is TokenIds, read_ids)
converter.register_unstructure_hook_func(lambda of: of is TokenIds, lambda value: value)
converter.register_structure_hook_factory(_is_a(Sequence, list), _read_sequence)
converter.register_structure_hook_factory(_is_a(Literal), _read_literal)
converter.register_structure_hook_func(_is_a(Mapping, dict), read_object)
converter.register_unstructure_hook_func(_is_a(Mapping, dict), lambda value: value)
