"""Conversion of a worker's result into stream fields, and refused results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.results import RESULT_FIELDS_MAX, stream_fields

SURROGATE = chr(0xD800)


@dataclass
class Priced:
    total: int


class PricedStruct(msgspec.Struct):
    total: int


def read(result: Any) -> dict[bytes, Any]:
    fields, _ = stream_fields(result)
    return dict(zip(fields[::2], fields[1::2], strict=True))


def test_text_integers_and_bytes_are_stored_unchanged_and_other_values_as_json() -> None:
    result = {"text": "zwölf", "number": -7, "raw": b"\xff", "yes": True, "none": None, "half": 0.5}
    assert read(result) == {
        b"text": "zwölf".encode(),
        b"number": b"-7",
        b"raw": b"\xff",
        b"yes": b"true",
        b"none": b"null",
        b"half": b"0.5",
    }
    assert read({"list": [1, {"a": None}], "": ""}) == {b"list": b'[1,{"a":null}]', b"": b""}
    assert read({}) == {}


def test_none_is_a_result_without_fields() -> None:
    assert stream_fields(None) == stream_fields({}) == ([], 0)


def test_an_error_names_the_returned_type_and_the_allowed_ones() -> None:
    with pytest.raises(TypeError, match=r"returns a dict, or None .* this one returned Priced$"):
        stream_fields(Priced(3))


def test_a_result_field_with_a_reserved_name_is_renamed() -> None:
    assert read({"message_id": 1, "consumer_id": 2, "id": 3}) == {
        b"result_message_id": b"1",
        b"result_consumer_id": b"2",
        b"id": b"3",
    }


@pytest.mark.parametrize(
    "result",
    [
        [],
        "text",
        b"bytes",
        7,
        True,
        Priced(3),
        PricedStruct(3),
        iter(()),
        {1: "a"},
        {b"bytes": 1},
        {"function": print},
        {"text": SURROGATE},
        {SURROGATE: "text"},
        {"nested": [SURROGATE]},
        {"number": 10**5_000},
        {f"f{n}": n for n in range(RESULT_FIELDS_MAX + 1)},
    ],
)
def test_an_invalid_result_is_refused_before_it_joins_a_batch(result: Any) -> None:
    """In a batch it would make the other results fail too."""
    with pytest.raises((TypeError, ValueError)):
        stream_fields(result)


@given(
    result=st.dictionaries(
        st.text(max_size=10),
        st.recursive(
            st.one_of(st.text(max_size=10), st.integers(), st.none(), st.binary(max_size=10)),
            lambda inner: st.lists(inner, max_size=3),
        ),
        max_size=8,
    )
)
def test_every_field_is_a_value_that_redis_accepts(result: dict[str, Any]) -> None:
    try:
        fields, size = stream_fields(result)
    except (TypeError, ValueError):
        return
    assert len(fields) == 2 * len(result)
    assert all(isinstance(each, bytes) for each in fields)
    assert size == sum(len(each) for each in fields if isinstance(each, bytes))
