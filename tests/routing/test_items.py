"""Items of the queues: what we write is what the published plugin writes and reads."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.routing import items
from angarium.routing.errors import ItemInvalid


def test_an_inbound_item_has_the_published_fields() -> None:
    item = items.encode_inbound(b"\xff\xfe?", "ws", "t.1")
    assert json.loads(item) == {
        "payload": base64.urlsafe_b64encode(b"\xff\xfe?").decode(),
        "transport_type": "ws",
        "txn_id": "t.1",
    }
    assert json.loads(items.encode_inbound(b"x", None, None)) == {"payload": "eA=="}
    found = items.decode_inbound(item.encode(), "k")
    assert found.payload == b"\xff\xfe?"
    assert found.id == hashlib.sha1(item.encode()).hexdigest()
    own = items.encode_inbound(b"x", "http", None, "abc").encode()
    assert items.id_of(own) == "abc"
    published = json.dumps({"payload": "eA==", "transport_type": "http"}).encode()
    assert items.decode_inbound(published, "k").payload == b"x"


def test_a_response_has_the_published_fields() -> None:
    item = items.encode_response(items.DirectResponse("t.1", "text/plain", b"hi"))
    assert json.loads(item) == {
        "txn_id": "t.1",
        "response_data": {"content-type": "text/plain", "response": "aGk="},
    }
    assert items.decode_response(item).body == b"hi"


def test_an_outbound_item_has_the_published_fields() -> None:
    item = items.new_outbound("http://x", b"hi", {"a": "b"})
    encoded = items.encode_outbound(item)
    assert json.loads(encoded) == {
        "service": {"url": "http://x"},
        "payload": "aGk=",
        "headers": {"a": "b"},
    }
    again, payload = items.decode_outbound(items.encode_outbound(items.with_failure(item)))
    assert (again.retries, payload, again.url) == (1, b"hi", "http://x")
    assert items.outbound_id(again) == items.outbound_id(item), "a retry is the same message"
    own = items.new_outbound("http://x", b"hi", {}, "abc")
    assert items.encode_outbound(own).startswith(b'{"id":"abc",')


def test_the_retry_delays_are_the_documented_ones() -> None:
    known = [5.0, 7.5, 11.2, 16.7, 25.0]
    assert [round(each / 1000, 1) for each in items.RETRY_DELAYS_MS] == known


def test_a_result_becomes_a_response_only_for_a_waiting_caller() -> None:
    waiting = items.InboundMessage("i", "k", b"", "http", "t.1")
    assert items.response_to(items.InboundMessage("i", "k", b""), "x") is None
    assert items.response_to(waiting, None) is None
    for answer, body in ((b"x", b"x"), ("x", b"x"), ({"a": 1}, b'{"a":1}')):
        found = items.response_to(waiting, answer)
        assert found is not None
        assert (found.txn_id, found.body) == ("t.1", body)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_item_or_invalid(data: bytes) -> None:
    for read in (items.decode_response, items.decode_outbound):
        with pytest.raises(ItemInvalid):
            read(data)
    with pytest.raises(ItemInvalid):
        items.decode_inbound(data, "k")
    assert items.id_of(data)
