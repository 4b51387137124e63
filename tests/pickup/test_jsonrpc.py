"""JSON-RPC without a socket: valid calls, and only documented answers to any other bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.pickup import methods
from angarium.pickup.jsonrpc import Call, Refusal, failure_answer, parse, result_answer
from angarium.pickup.limits import PickupLimits
from angarium.runtime.errors import InputInvalid, LimitExceeded, Overloaded

BATCH_MAX = 10
LIMITS = PickupLimits()


def refusal(data: bytes) -> tuple[int, Any]:
    (entry,) = parse(data, BATCH_MAX).entries
    assert isinstance(entry, Refusal)
    answer = json.loads(entry.answer)
    assert answer["jsonrpc"] == "2.0"
    assert "result" not in answer
    return answer["error"]["code"], answer["id"]


def call(data: bytes) -> Call:
    (entry,) = parse(data, BATCH_MAX).entries
    assert isinstance(entry, Call), entry
    return entry


@pytest.mark.parametrize("raw_id", [b"1", b"-7", b"1.50", b'"a\\u00e9"', b"null", b"1e3", b'""'])
def test_an_answer_repeats_the_id_unchanged(raw_id: bytes) -> None:
    found = call(b'{"jsonrpc":"2.0","method":"ping","id":%b}' % raw_id)
    assert found.id == raw_id
    assert result_answer(raw_id, b"1") == b'{"jsonrpc":"2.0","result":1,"id":%b}' % raw_id


def test_a_call_without_an_id_is_a_notification() -> None:
    assert call(b'{"jsonrpc":"2.0","method":"ping","params":[]}').id is None


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b'{"jsonrpc":"2.0"', -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc":"2.0","method":"a","params":{"x":"\xff"},"id":1}', -32700),
        (b"[" * 100_000, -32700),
        (b"[1,", -32700),
        (b"[]", -32600),
        (b"1", -32600),
        (b'"text"', -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"method":"a","id":1}', -32600),
        (b'{"jsonrpc":"1.0","method":"a","id":1}', -32600),
        (b'{"jsonrpc":2.0,"method":"a","id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":1,"id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"a","params":1,"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"a","params":null,"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"a","id":true}', -32600),
        (b'{"jsonrpc":"2.0","method":"a","id":{}}', -32600),
        (b"[" + b"1," * BATCH_MAX + b"1]", -32600),
    ],
)
def test_an_invalid_call_is_refused_with_the_code_of_the_specification(
    data: bytes, code: int
) -> None:
    assert refusal(data)[0] == code


def test_a_refusal_has_the_id_if_it_can_be_read() -> None:
    assert refusal(b'{"jsonrpc":"2.0","method":1,"id":"x"}') == (-32600, "x")
    assert refusal(b'{"jsonrpc":"2.0","method":1,"id":[]}') == (-32600, None)


def test_half_of_a_surrogate_pair_is_refused_with_the_id_of_its_call() -> None:
    bad = b'{"jsonrpc":"2.0","method":"addMessage","params":{"payload":"\\ud800"},"id":"x"}'
    assert refusal(bad) == (-32602, "x")
    assert refusal(bad.replace(b'"x"', b'"\\udc00"')) == (-32602, None)
    assert refusal(bad.replace(b'"2.0"', b'"1.0"')) == (-32700, None)
    assert refusal(bad[:-1])[0] == -32700


def test_too_many_event_names_are_refused() -> None:
    assert methods.read_events(json.dumps(["messagesReceived"] * 100).encode())
    with pytest.raises(InputInvalid):
        methods.read_events(json.dumps(["x"] * 101).encode())


def test_each_entry_of_a_batch_is_a_call_or_a_refusal() -> None:
    frame = parse(b'[1,{"jsonrpc":"2.0","method":"a","id":1},{"jsonrpc":"2.0","method":"b"}]', 5)
    assert frame.batch
    first, second, third = frame.entries
    assert isinstance(first, Refusal)
    assert isinstance(second, Call)
    assert isinstance(third, Call)
    assert (second.id, third.id) == (b"1", None)


@given(st.binary(max_size=200))
def test_any_bytes_get_a_valid_answer(data: bytes) -> None:
    for entry in parse(data, BATCH_MAX).entries:
        if isinstance(entry, Refusal):
            assert json.loads(entry.answer)["error"]["code"] in (-32700, -32600, -32602)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["jsonrpc", "method", "params", "id", "x"]), inner)
    ),
    max_leaves=8,
)


@given(json_values)
def test_any_json_gets_a_valid_answer(value: Any) -> None:
    for entry in parse(json.dumps(value).encode(), BATCH_MAX).entries:
        if isinstance(entry, Refusal):
            assert json.loads(entry.answer)["error"]["code"] == -32600


readers = [
    lambda params: methods.read_take(params, LIMITS),
    lambda params: methods.read_add(params, LIMITS),
    lambda params: methods.read_remove(params, LIMITS),
    lambda params: methods.read_recipient(params, LIMITS, needs_did=False),
    lambda params: methods.read_recipient(params, LIMITS, needs_did=True),
    lambda params: methods.read_session(params, LIMITS, needs_id=True),
    lambda params: methods.read_session(params, LIMITS, needs_id=False),
]
members = st.dictionaries(
    st.sampled_from(
        [
            "connectionId", "recipient", "recipientDid", "recipientDids", "limit", "limitBytes",
            "deleteMessages", "payload", "pushNotificationToken", "token", "messageIds",
            "sessionId", "notificationUri",
        ]
    ),
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=6)
    | st.lists(st.text(max_size=4), max_size=3)
    | st.just({"type": "fcm", "token": "t"}),
)  # fmt: skip


@given(members, st.sampled_from(readers))
def test_any_params_are_read_or_refused_as_invalid_input(params: dict[str, Any], read: Any) -> None:
    try:
        found = read(json.dumps(params).encode())
    except (InputInvalid, LimitExceeded):
        return
    assert found.connection


@pytest.mark.parametrize(
    "params",
    [
        b"",
        b"[]",
        b"{}",
        b'{"connectionId":5}',
        b'{"connectionId":""}',
        b'{"connectionId":"a b"}',
        b'{"connectionId":"a\\nb"}',
        b'{"connectionId":null}',
        b'{"connectionId":"c","limit":-1}',
        b'{"connectionId":"c","limit":1.5}',
        b'{"connectionId":"c","limit":"1"}',
        b'{"connectionId":"c","limitBytes":-5}',
        b'{"connectionId":"c","deleteMessages":"yes"}',
        b'{"connectionId":"c","recipientDid":"a b"}',
    ],
)
def test_invalid_params_of_a_take_are_refused(params: bytes) -> None:
    with pytest.raises(InputInvalid):
        methods.read_take(params, LIMITS)


@pytest.mark.parametrize(
    "params",
    [
        b'{"connectionId":"c","recipientDids":["d"]}',
        b'{"connectionId":"c","recipientDids":["d"],"payload":null}',
        b'{"connectionId":"c","recipientDids":[],"payload":{}}',
        b'{"connectionId":"c","payload":{}}',
        b'{"connectionId":"c","recipientDids":["a b"],"payload":{}}',
        b'{"connectionId":"c","recipientDids":"d","payload":{}}',
        b'{"connectionId":"c","recipientDids":["d"],"payload":{},"pushNotificationToken":"t"}',
    ],
)
def test_invalid_params_of_an_add_are_refused(params: bytes) -> None:
    with pytest.raises(InputInvalid):
        methods.read_add(params, LIMITS)


def test_params_beyond_a_limit_are_refused() -> None:
    large = b'"%b"' % (b"x" * LIMITS.pickup_message_bytes_max)
    with pytest.raises(LimitExceeded):
        methods.read_add(b'{"connectionId":"c","recipientDids":["d"],"payload":%b}' % large, LIMITS)
    with pytest.raises(LimitExceeded):
        methods.read_take(b'{"connectionId":"%b"}' % (b"x" * 513), LIMITS)
    many = json.dumps(["d"] * 33).encode()
    with pytest.raises(LimitExceeded):
        methods.read_add(b'{"connectionId":"c","recipientDids":%b,"payload":1}' % many, LIMITS)


def test_a_recipient_alone_names_the_connection() -> None:
    add = methods.read_add(b'{"recipient":"did:x","payload":{}}', LIMITS)
    assert (add.connection, add.dids) == ("did:x", ["did:x"])
    take = methods.read_take(b'{"recipient":"did:x"}', LIMITS)
    assert (take.connection, take.did) == ("did:x", "did:x")
    assert methods.read_session(b'{"recipient":"did:x"}', LIMITS, needs_id=True).session_id is None


def test_a_known_error_has_its_code_and_an_unknown_error_reveals_nothing() -> None:
    ours = json.loads(failure_answer(b"1", Overloaded("x")))["error"]
    assert (ours["code"], ours["data"]["code"]) == (-32000, "overloaded")
    strange = json.loads(failure_answer(b"1", ValueError("secret")))["error"]
    assert strange["code"] == -32603
    assert "secret" not in json.dumps(strange)
