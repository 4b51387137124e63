"""A worker's result as fields of a stream entry: what stands there, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.results import RESULT_FIELDS_MAX, fields_of

SURROGATE = chr(0xD800)


@dataclass
class Priced:
    total: int


class PricedStruct(msgspec.Struct):
    total: int


def read(result: Any) -> dict[bytes, Any]:
    fields, _ = fields_of(result)
    return dict(zip(fields[::2], fields[1::2], strict=True))  # type: ignore[arg-type]


def test_text_numbers_and_bytes_stand_as_they_are_and_the_rest_as_json() -> None:
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


def test_nothing_is_a_result_without_fields() -> None:
    assert fields_of(None) == fields_of({}) == ([], 0)


def test_a_refusal_says_what_was_returned_and_what_may_be() -> None:
    with pytest.raises(TypeError, match=r"returns a dict, or None .* this one returned Priced$"):
        fields_of(Priced(3))


def test_the_names_of_our_own_fields_are_moved_aside() -> None:
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
def test_what_can_not_be_stored_is_refused_before_it_meets_others(result: Any) -> None:
    """In a batch with other results it would take them down with it."""
    with pytest.raises((TypeError, ValueError)):
        fields_of(result)


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
def test_every_field_is_something_that_redis_takes(result: dict[str, Any]) -> None:
    try:
        fields, size = fields_of(result)
    except (TypeError, ValueError):
        return
    assert len(fields) == 2 * len(result)
    assert all(isinstance(each, bytes) for each in fields)
    assert size == sum(len(each) for each in fields if isinstance(each, bytes))
