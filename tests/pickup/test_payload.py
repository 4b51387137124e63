"""Every client can read every payload that the module accepts."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.pickup.client_messages import read_delivery, read_page
from angarium.pickup.model import StoredMessage, encode_message
from angarium.pickup.payload import check_payload
from angarium.runtime.errors import InputInvalid

LEVELS = 5


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"x", b"1e309", b"[1,-1e999]", b'{"a":1e400}', b"9" * 309, b"9" * 5_000,
        b"[" + b"8" * 400 + b"]", b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"', b'"\xff"',
        b"[" * 6 + b"]" * 6, b'{"a":' * 6 + b"1" + b"}" * 6, b"[" * 5_000, b"NaN", b"Infinity",
    ],
    ids=lambda each: repr(each[:20]),
)  # fmt: skip
def test_a_payload_that_some_client_cannot_read_is_refused(payload: bytes) -> None:
    with pytest.raises(InputInvalid, match="payload can't be read by every client"):
        check_payload(payload, LEVELS)


@pytest.mark.parametrize(
    "payload",
    [
        b"1e308", b"1e-9999", b"1" + b"0" * 308, b"18446744073709551616", b'"%b"' % (b"9" * 400),
        b'"[[[[[[[["', b'["\\"[[[[[["]', b"[" * 5 + b"]" * 5, b"[[],[],[],[],[],[],[],[]]",
        b'"\\ud83d\\ude00"', b'{"a":1,"a":2}', b'"\\u0000"', b"0." + b"1" * 400,
        b"1" + b"0" * 400 + b"e-300", b'{"\\"":"\\\\"}',
    ],
    ids=lambda each: repr(each[:20]),
)  # fmt: skip
def test_a_payload_that_every_client_can_read_is_accepted(payload: bytes) -> None:
    check_payload(payload, LEVELS)


texts = st.text('[]{}\\"9e\ud800x', max_size=9)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[}\\"'), inner),
    max_leaves=12,
)


def _levels(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_levels, value), default=0) if isinstance(value, list) else 0


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@given(values, st.booleans())
def test_any_json_is_accepted_exactly_if_every_client_can_read_it(
    value: Any, escaped: bool
) -> None:
    try:
        text = json.dumps(value, ensure_ascii=escaped).encode()
    except UnicodeEncodeError:
        return
    paired = "\ud800" not in str(value) and "\\ud800" not in str(value)
    readable = _finite(value) and _levels(value) <= LEVELS and paired
    try:
        check_payload(text, LEVELS)
    except InputInvalid:
        assert not readable
    else:
        assert readable
        msgspec.json.decode(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_accepted_or_refused_as_invalid_input(payload: bytes) -> None:
    try:
        check_payload(payload, LEVELS)
    except InputInvalid:
        return
    message = encode_message(StoredMessage("0a", 1, 1_000, "did:x", payload))
    (found,) = read_page(b"[%b]" % message)
    assert (found.error, found.raw.strip()) == (None, payload.strip())


def test_one_unreadable_message_does_not_affect_the_others() -> None:
    payloads = [b"1", b"1e999", b'"\xc3\xa9"', b"[" * 900 + b"]" * 900]
    encoded = [
        encode_message(StoredMessage(f"0{number}", number, 1_000, "did:x", payload))
        for number, payload in enumerate(payloads)
    ]
    page = read_page(b"[" + b",".join(encoded) + b"]")
    assert [each.id for each in page] == ["00", "01", "02", "03"]
    assert [each.encrypted_message for each in page[:3]] == [1, None, "é"]
    assert page[1].error == "the payload can't be read: Number out of range"
    assert [each.raw for each in page] == payloads
    params = b'{"connectionId":"c1","message":%b,"id":"1"}' % encoded[1]
    delivery = read_delivery(params)
    assert delivery.connection_id == "c1"
    assert [each.id for each in delivery.messages] == ["01"]


def test_a_stored_payload_that_is_no_json_becomes_an_error() -> None:
    encoded = encode_message(StoredMessage("r0", 1, 1_000, "did:x", b'1},{"id":"r1"'))
    (found,) = read_page(b"[%b]" % encoded)
    assert (found.id, found.encrypted_message) == ("r0", None)
    assert found.error == "the stored payload is not JSON"
