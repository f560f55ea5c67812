"""The codec: lenient with scalars, strict with shapes, and every fault is named by its path."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from scaleout import codec
from scaleout.codec import Unfit
from scaleout.core import Json, TokenIds
from scaleout.errors import InvalidField

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


@define(kw_only=True)
class Inner:
    size: int
    names: Sequence[str] = ()


@define(kw_only=True)
class Outer:
    count: int = 1
    ratio: float = 0.5
    on: bool = False
    word: str | None = None
    ids: TokenIds = ()
    mode: Literal["a", "b"] = "a"
    inner: Inner | None = None
    inners: Sequence[Inner] = ()
    rows: Sequence[Sequence[int]] | None = None
    extra: Mapping[str, Json] | None = None
    anything: Json = None


def fault(body: Json, kind: type[Any] = Outer) -> str | None:
    """The path of the error that `body` gets; it is in the text too."""
    with pytest.raises(InvalidField) as caught:
        codec.structure(body, kind)
    assert caught.value.status == 400
    assert f"{caught.value.param}: " in caught.value.message
    return caught.value.param


# ---------------------------------------------------------------------------------------------- JSON text


@given(json_values)
def test_what_is_written_reads_back(value: Json) -> None:
    assert codec.loads(codec.dumps(value)) == value
    assert json.loads(codec.dumps(value)) == value


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]", "{'a': 1}", '"\\ud800"', b"\xff", "[1,]", "[" * 2000])
def test_text_that_is_no_strict_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        codec.loads(text)


def test_integer_keys_become_strings() -> None:
    assert codec.dumps({7: 0.5}) == b'{"7":0.5}'


# ---------------------------------------------------------------------------------------------- scalars


@pytest.mark.parametrize(
    ("given_value", "read"), [("5", 5), (" -5 ", -5), (5.0, 5), (True, 1), (False, 0), (2**70, 2**70)]
)
def test_integers_are_read_leniently(given_value: Json, read: int) -> None:
    count = codec.structure({"count": given_value}, Outer).count
    assert (count, type(count)) == (read, int)


@pytest.mark.parametrize("value", [2.5, "2.5", "x", "", None, [], {}, math.inf, math.nan, "9" * 5000])
def test_other_integers_are_refused(value: Json) -> None:
    assert fault({"count": value}) == "body.count"


@pytest.mark.parametrize(("given_value", "read"), [("1.5", 1.5), (2, 2.0), (True, 1.0), ("1e3", 1000.0)])
def test_numbers_are_read_leniently(given_value: Json, read: float) -> None:
    ratio = codec.structure({"ratio": given_value}, Outer).ratio
    assert (ratio, type(ratio)) == (read, float)


@pytest.mark.parametrize(
    ("given_value", "read"),
    [(1, True), (0, False), (1.0, True), ("True", True), ("off", False), ("YES", True), ("n", False)],
)
def test_switches_are_read_leniently(given_value: Json, read: bool) -> None:
    assert codec.structure({"on": given_value}, Outer).on is read


@pytest.mark.parametrize("value", [2, -1, "maybe", None, [], 0.5])
def test_other_switches_are_refused(value: Json) -> None:
    assert fault({"on": value}) == "body.on"


@pytest.mark.parametrize("value", [5, True, [], {}])
def test_text_is_text(value: Json) -> None:
    assert fault({"word": value}) == "body.word"


def test_unknown_keys_are_passed_over_and_defaults_stand() -> None:
    assert codec.structure({"new": 1}, Outer) == Outer()


# ---------------------------------------------------------------------------------------------- shapes and paths


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], "body"),
        ("x", "body"),
        (None, "body"),
        ({"mode": "c"}, "body.mode"),
        ({"mode": None}, "body.mode"),
        ({"mode": ["a"]}, "body.mode"),
        ({"ids": [1, -1]}, "body.ids.1"),
        ({"ids": [1, "x"]}, "body.ids.1"),
        ({"ids": {}}, "body.ids"),
        ({"ids": "12"}, "body.ids"),
        ({"inner": []}, "body.inner"),
        ({"inner": 5}, "body.inner"),
        ({"inner": {}}, "body.inner.size"),
        ({"inner": {"size": "x"}}, "body.inner.size"),
        ({"inner": {"size": 1, "names": ["a", 5]}}, "body.inner.names.1"),
        ({"inners": {}}, "body.inners"),
        ({"inners": [{"size": 1}, {"size": 2.5}]}, "body.inners.1.size"),
        ({"inners": [{"size": 1}, 5]}, "body.inners.1"),
        ({"inners": [{"size": 1}, {"names": []}]}, "body.inners.1.size"),
        ({"rows": [[1], [2, "x"]]}, "body.rows.1.1"),
        ({"rows": [[1], 2]}, "body.rows.1"),
        ({"extra": [1]}, "body.extra"),
    ],
)
def test_a_fault_is_named_by_its_path(body: Json, path: str) -> None:
    assert fault(body) == path


def test_a_path_begins_where_the_caller_says() -> None:
    with pytest.raises(InvalidField) as caught:
        codec.structure({"count": "x"}, Outer, "body.request")
    assert caught.value.param == "body.request.count"


def test_values_of_any_kind_are_kept_as_they_are() -> None:
    value = {"a": [1, {"b": None}]}
    assert codec.structure({"anything": value, "extra": value}, Outer) == Outer(anything=value, extra=value)


@given(st.lists(st.integers(0, 2**40)))
def test_ids_are_read_as_they_are(ids: list[int]) -> None:
    assert codec.structure({"ids": ids}, Outer).ids == ids


def test_many_ids_are_not_copied() -> None:
    ids = list(range(10_000))
    assert codec.structure({"ids": ids}, Outer).ids is ids


@pytest.mark.parametrize("count", [1, 10_000])
@pytest.mark.parametrize(("odd", "read"), [(True, 1), ("7", 7), (4.0, 4)])
def test_an_odd_id_among_others_is_read(count: int, odd: Json, read: int) -> None:
    read_ids = codec.structure({"ids": [*range(count), odd]}, Outer).ids
    assert [*map(type, read_ids)] == [int] * (count + 1)
    assert read_ids[-1] == read


@pytest.mark.parametrize("count", [1, 10_000])
@pytest.mark.parametrize("unfit", [-1, 0.5, "x", None, [1]])
def test_an_unfit_id_among_others_is_named(count: int, unfit: Json) -> None:
    with pytest.raises(InvalidField) as caught:
        codec.structure({"ids": [*range(count), unfit]}, Outer)
    assert caught.value.param == f"body.ids.{count}"


@given(st.lists(st.integers(0, 9) | st.booleans() | st.sampled_from(["3", 4.0])))
def test_odd_ids_are_read_one_by_one(ids: list[Json]) -> None:
    assert codec.structure({"ids": ids}, Outer).ids == [int(one) for one in ids]


@given(json_values)
def test_no_json_at_all_breaks_the_reader(body: Json) -> None:
    try:
        codec.structure(body, Outer)
    except InvalidField as error:
        assert (error.param or "").startswith("body")  # noqa: PT017 - most bodies are refused, some are not


@given(st.dictionaries(st.sampled_from([*Outer.__annotations__]), json_values))
def test_no_value_of_a_field_breaks_the_reader(body: dict[str, Json]) -> None:
    try:
        codec.structure(body, Outer)
    except InvalidField as error:
        assert (error.param or "").startswith("body.")  # noqa: PT017 - as above


# ---------------------------------------------------------------------------------------------- tools of the readers


def test_a_prepared_class_sees_its_object_first() -> None:
    @define(kw_only=True)
    class Wrapped:
        inner: Any = None
        size: int = 0

    def double(wire: dict[str, Json]) -> dict[str, Json]:
        if "size" not in wire:
            raise Unfit("Field required", ".size")
        return {"size": codec.read_member(wire, "size", codec.read_int) * 2}

    codec.prepare(Wrapped, double)
    assert codec.structure({"size": "4", "inner": 1}, Wrapped) == Wrapped(size=8)
    assert fault({}, Wrapped) == "body.size"
    assert fault({"size": []}, Wrapped) == "body.size"


def test_an_accepted_type_is_read_by_its_own_reader() -> None:
    pair = Literal["pair"] | int

    @define(kw_only=True)
    class Holder:
        value: Literal["pair"] | int = 0

    def read(value: Json, _: Any) -> Json:
        if value not in ("pair", 1):
            raise Unfit("Input should be a pair", ".here")
        return value

    codec.accept(pair, read)
    assert codec.structure({"value": "pair"}, Holder).value == "pair"
    assert fault({"value": 2}, Holder) == "body.value.here"


@pytest.mark.parametrize(
    "read", [codec.read_int, codec.read_float, codec.read_bool, codec.read_object, codec.expect_list]
)
def test_a_member_that_is_absent_is_no_value(read: Callable[[Json], Any]) -> None:
    with pytest.raises(Unfit) as caught:
        codec.read_member({}, "a", read)
    assert caught.value.path == ".a"


@pytest.mark.parametrize(("value", "wire"), [(-0.5, -0.5), (-math.inf, -9999.0), (math.nan, -9999.0), (0.0, 0.0)])
def test_log_probabilities_are_finite_on_the_wire(value: float, wire: float) -> None:
    assert codec.finite(value) == wire


def test_explicit_nulls_count_as_not_sent() -> None:
    assert codec.drop_nulls({"a": None, "b": 0, "c": ""}) == {"b": 0, "c": ""}
