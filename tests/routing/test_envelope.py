"""Recipient keys from envelopes; other bytes raise documented errors only."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.routing.envelope import Envelope, decode_base64url, read_envelope
from angarium.routing.errors import EnvelopeInvalid
from angarium.runtime.errors import InputInvalid, LimitExceeded
from tests.routing.harness import envelope

KEY_BYTES_MAX = 2_048


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_name_their_recipients(version: int) -> None:
    assert read_envelope(envelope("k1", version=version), KEY_BYTES_MAX) == Envelope("k1", False)
    several = read_envelope(envelope("k1", "k2", "k3", version=version), KEY_BYTES_MAX)
    assert several.recip_key == "k1,k2,k3"


@pytest.mark.parametrize(("route", "wants"), [("all", True), ("thread", True), ("none", False)])
def test_the_return_route_says_whether_the_sender_waits_for_a_response(
    route: str, wants: bool
) -> None:
    body = envelope("k", return_route=route)
    assert read_envelope(body, KEY_BYTES_MAX).wants_response is wants


def _with(protected: str) -> bytes:
    return json.dumps({"protected": protected}).encode()


def _header(value: object) -> bytes:
    return _with(base64.urlsafe_b64encode(json.dumps(value).encode()).decode())


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "not a DIDComm envelope"),
        (b"not json", "not a DIDComm envelope"),
        (b"[]", "not a DIDComm envelope"),
        (b"{}", "protected"),
        (b'{"protected": 7}', "not a DIDComm envelope"),
        (b'{"protected": null}', "not a DIDComm envelope"),
        (b"\xff\xfe", "not a DIDComm envelope"),
        (b"[" * 100_000, "not a DIDComm envelope"),
        (_with("!!!"), "not base64url"),
        (_with("a"), "not base64url"),
        (_with("ümläut"), "not base64url"),
        (_with("aGVsbG8"), "not a header"),
        (_header([]), "not a header"),
        (_header({}), "no recipients"),
        (_header({"recipients": []}), "no recipients"),
        (_header({"recipients": [{}]}), "not a header"),
        (_header({"recipients": [{"header": {"kid": 1}}]}), "not a header"),
        (envelope(""), "empty"),
        (envelope("a", ""), "empty"),
        (envelope("a\nb"), "printed"),
        (envelope("direct_resp"), "can't be a recipient key"),
    ],
)
def test_a_body_that_is_no_envelope_is_refused_with_the_reason(body: bytes, word: str) -> None:
    with pytest.raises(EnvelopeInvalid, match=word):
        read_envelope(body, KEY_BYTES_MAX)


def test_a_thousand_recipients_are_too_many() -> None:
    with pytest.raises(LimitExceeded, match="recip_key_bytes_max"):
        read_envelope(envelope(*(f"key{number}" for number in range(1_000))), KEY_BYTES_MAX)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_envelope_or_refused(body: bytes) -> None:
    with contextlib.suppress(InputInvalid, LimitExceeded):
        read_envelope(body, KEY_BYTES_MAX)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["protected", "recipients", "header", "kid", "~transport"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_json_is_an_envelope_or_refused(outer: Any, inner: Any) -> None:
    packed = base64.urlsafe_b64encode(json.dumps(inner).encode()).decode()
    if isinstance(outer, dict):
        outer = {**outer, "protected": packed}
    try:
        found = read_envelope(json.dumps(outer).encode(), KEY_BYTES_MAX)
    except (InputInvalid, LimitExceeded):
        return
    assert found.recip_key


@given(st.binary(max_size=100), st.booleans())
def test_base64url_is_read_with_or_without_padding(data: bytes, padded: bool) -> None:
    text = base64.urlsafe_b64encode(data).decode()
    assert decode_base64url(text if padded else text.rstrip("=")) == data
