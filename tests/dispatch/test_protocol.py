"""Both ends of a worker connection without I/O: every command, every error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.errors import (
    CommandUnknown,
    FrameInvalid,
    FrameMisplaced,
    FrameTooLarge,
    PayloadInvalid,
    TokenRefused,
    VersionUnknown,
)
from angarium.dispatch.frames import Command, encode, encode_acknowledgements, encode_messages
from angarium.dispatch.protocol import (
    CONSUMER_ID_CHARACTERS_MAX,
    REASON_BYTES_MAX,
    AcknowledgementsReceived,
    ConnectionProtocol,
    DispatcherProtocol,
    ErrorReceived,
    Event,
    HeartbeatReceived,
    Hello,
    HelloReceived,
    MessagesReceived,
    ProtocolViolated,
    RejectionReceived,
    SendBytes,
    WorkerProtocol,
    encode_error,
    encode_heartbeat,
    encode_hello,
    encode_rejection,
)

BYTES_MAX = 4_096
TOKEN = "a secret between dispatchers and workers"
ID = b"0b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d10"
OTHER = b"7d1e0a44-0c1b-4b6f-8a2d-5e6f7a8b9c0d"
SIDES: list[type[ConnectionProtocol]] = [DispatcherProtocol, WorkerProtocol]


def at_worker_port(
    side_type: type[ConnectionProtocol], token: str | None = None, name: str = ""
) -> ConnectionProtocol:
    """One end of a connection to a worker's port."""
    dials = side_type is DispatcherProtocol
    return side_type(BYTES_MAX, token, Hello(consumer_id=name), dials=dials)


def at_ack_port(
    side_type: type[ConnectionProtocol], token: str | None = None, name: str = ""
) -> ConnectionProtocol:
    dials = side_type is WorkerProtocol
    return side_type(BYTES_MAX, token, Hello(consumer_id=name), dials=dials)


IDS = st.uuids(version=4).map(lambda uuid: str(uuid).encode())
HELLOS = st.builds(
    Hello,
    consumer_id=st.text(st.characters(categories=("L", "N", "P")), max_size=40),
    window=st.integers(0, 2**40),
    completes=st.booleans(),
)
TO_DISPATCHER = st.lists(
    st.one_of(
        IDS.map(lambda message_id: encode(Command.ACK_MESSAGE, message_id)),
        st.builds(encode_rejection, IDS, st.text(max_size=30)),
        HELLOS.map(encode_hello),
        st.just(encode_heartbeat()),
        st.text(max_size=30).map(lambda text: encode(Command.ERROR, text.encode())),
    ),
    max_size=10,
)
TO_WORKER = st.lists(
    st.one_of(
        st.builds(lambda i, p: encode_messages([(i, p)]), IDS, st.binary(max_size=60)),
        HELLOS.map(encode_hello),
        st.just(encode_heartbeat()),
    ),
    max_size=10,
)
CUTS = st.lists(st.integers(0, 100_000), max_size=30)


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def parted(events: Sequence[Event]) -> list[object]:
    """One element per frame: how frames are combined into events depends on the split."""
    found: list[object] = []
    for event in events:
        match event:
            case AcknowledgementsReceived(ids):
                found += ids
            case MessagesReceived(messages):
                found += messages
            case ProtocolViolated(error):
                found.append((type(error), str(error)))
            case _:
                found.append(event)
    return found


def receive(side: ConnectionProtocol, pieces: Sequence[bytes]) -> list[object]:
    return parted([event for piece in pieces for event in side.receive(piece)])


def without_answers(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, SendBytes)]


def refusal(side: ConnectionProtocol, data: bytes) -> type[FrameInvalid]:
    """The error for these bytes; there is no other event."""
    (event,) = side.receive(data)
    assert isinstance(event, ProtocolViolated)
    assert side.violated
    assert encode_error(event.error)[:2] == bytes([1, Command.ERROR])
    assert encode_error(event.error)[6:].decode() == f"{event.error.code}: {event.error}"
    assert side.receive(encode_heartbeat()) == [], "nothing is taken after a broken frame"
    return type(event.error)


# Commands -----------------------------------------------------------------------------------


def test_a_dispatcher_accepts_acknowledgements_and_rejections() -> None:
    side = at_worker_port(DispatcherProtocol)
    data = (
        encode_acknowledgements([ID, OTHER])
        + encode_rejection(ID, "no such order")
        + encode_rejection(OTHER)
    )
    assert side.receive(data + encode_acknowledgements([ID])) == [
        AcknowledgementsReceived([ID, OTHER]),
        RejectionReceived(ID, "no such order"),
        RejectionReceived(OTHER, ""),
        AcknowledgementsReceived([ID]),
    ]
    assert side.authenticated
    assert not side.incomplete


def test_a_worker_receives_messages_unchanged() -> None:
    side = at_worker_port(WorkerProtocol)
    messages = [(ID, b'{"a": [1,  2]}'), (OTHER, b""), (ID, b"\x00:\xff\xfe"), (OTHER, b":")]
    assert side.receive(encode_messages(messages)) == [MessagesReceived(messages)]


@pytest.mark.parametrize("side_type", SIDES)
def test_both_sides_accept_hello_heartbeat_and_error(
    side_type: type[ConnectionProtocol],
) -> None:
    side = at_worker_port(side_type)
    greeting = Hello(consumer_id="10.0.0.1:8400", window=7, completes=True)
    data = encode_hello(greeting) + encode_heartbeat() + encode(Command.ERROR, "zu groß".encode())
    assert without_answers(side.receive(data)) == [
        HelloReceived(greeting),
        HeartbeatReceived(),
        ErrorReceived("zu groß"),
    ]


@pytest.mark.parametrize(
    ("side_type", "frame"),
    [
        (DispatcherProtocol, encode_messages([(ID, b"{}")])),
        (WorkerProtocol, encode_acknowledgements([ID])),
        (WorkerProtocol, encode_rejection(ID, "why")),
        (DispatcherProtocol, encode(Command.PROOF, bytes(32))),
        (WorkerProtocol, encode(Command.PROOF, bytes(32))),
    ],
)
def test_a_command_for_the_other_side_is_misplaced(
    side_type: type[ConnectionProtocol], frame: bytes
) -> None:
    assert refusal(at_worker_port(side_type), frame) is FrameMisplaced


@pytest.mark.parametrize("side_type", SIDES)
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x02", VersionUnknown),
        (b"GET / HTTP/1.1\r\n", VersionUnknown),
        (b"\x01\x07\x00\x00\x00\x00", CommandUnknown),
        (b"\x01\x01\x00\x00\x10\x01", FrameTooLarge),
        (b"\x01\x04\xff\xff\xff\xff", FrameTooLarge),
    ],
)
def test_an_invalid_frame_gets_an_error_and_ends_the_connection(
    side_type: type[ConnectionProtocol], data: bytes, error: type[FrameInvalid]
) -> None:
    assert refusal(at_worker_port(side_type), data) is error


@pytest.mark.parametrize(
    "payload",
    [b"", ID[:-1], ID + b" ", ID + b":", b"x" * 36, ID.replace(b"-4", b"-1", 1), ID[:-1] + b"\n"],
)
def test_an_acknowledgement_is_a_uuid4_and_nothing_else(payload: bytes) -> None:
    frame = encode(Command.ACK_MESSAGE, payload)
    assert refusal(at_worker_port(DispatcherProtocol), frame) is PayloadInvalid


@pytest.mark.parametrize("payload", [b"", ID, ID[:-1] + b":", ID + b" {}", b"x" * 36 + b":{}"])
def test_a_message_is_a_uuid4_a_colon_and_bytes(payload: bytes) -> None:
    frame = encode(Command.PROCESS_MESSAGE, payload)
    assert refusal(at_worker_port(WorkerProtocol), frame) is PayloadInvalid


@pytest.mark.parametrize("payload", [b"", ID[:-1], ID + b" reason", b"x" * 36 + b":"])
def test_a_rejection_begins_with_a_uuid4(payload: bytes) -> None:
    frame = encode(Command.NACK_MESSAGE, payload)
    assert refusal(at_worker_port(DispatcherProtocol), frame) is PayloadInvalid


def test_a_rejection_may_be_the_id_alone() -> None:
    side = at_worker_port(DispatcherProtocol)
    assert side.receive(encode(Command.NACK_MESSAGE, ID)) == [RejectionReceived(ID, "")]


def test_ids_are_accepted_in_either_case_and_stored_in_lower_case() -> None:
    side = at_worker_port(DispatcherProtocol)
    data = encode_acknowledgements([ID.upper()]) + encode_rejection(OTHER.upper(), "x")
    assert side.receive(data) == [AcknowledgementsReceived([ID]), RejectionReceived(OTHER, "x")]


@pytest.mark.parametrize("side_type", SIDES)
def test_frames_before_an_invalid_one_count(side_type: type[ConnectionProtocol]) -> None:
    """Even if both arrive in one read."""
    good: bytes
    if side_type is DispatcherProtocol:
        good, bad = encode_acknowledgements([ID, OTHER]), encode(Command.ACK_MESSAGE, b"nonsense")
        expected: list[object] = [ID, OTHER]
    else:
        good = encode_messages([(ID, b"1"), (OTHER, b"2")])
        bad = encode(Command.PROCESS_MESSAGE, b"nonsense")
        expected = [(ID, b"1"), (OTHER, b"2")]
    for pieces in ([good + bad], [good, bad]):
        found = receive(at_worker_port(side_type), pieces)
        assert found[:2] == expected
        assert len(found) == 3


# HELLO and reasons --------------------------------------------------------------------------


@given(greeting=HELLOS)
def test_a_hello_arrives_unchanged(greeting: Hello) -> None:
    side = at_worker_port(DispatcherProtocol, name="d1")
    own = SendBytes(encode_hello(Hello(consumer_id="d1")))
    assert side.receive(encode_hello(greeting)) == [own, HelloReceived(greeting)]
    assert side.receive(encode_hello(greeting)) == [HelloReceived(greeting)], "it is answered once"
    assert at_worker_port(WorkerProtocol).receive(encode_hello(greeting)) == [
        HelloReceived(greeting)
    ]
    asked = at_ack_port(DispatcherProtocol, name="d1")
    assert asked.receive(encode_hello(greeting) * 2) == [own, HelloReceived(greeting)] * 2


def test_unknown_members_of_hello_are_ignored() -> None:
    said = json.dumps({"window": 3, "language": "node", "more": [{}]}).encode()
    side = at_worker_port(DispatcherProtocol)
    events = side.receive(encode(Command.HELLO, said))
    assert without_answers(events) == [HelloReceived(Hello(window=3))]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"window":"many"}',
        b'{"window":-1}',
        b'{"window":1.5}',
        b'{"window":-' + b"9" * 1_000 + b"}",
        b'{"token":7}',
        b'{"token":"\\ud800"}',
        b'{"consumer_id":"\xff"}',
        b'{"consumer_id":"two\\nlines"}',
        b'{"consumer_id":"nul\\u0000"}',
        b'{"consumer_id":"' + b"x" * (CONSUMER_ID_CHARACTERS_MAX + 1) + b'"}',
        b'{"x":' + b"[" * 4_000,
    ],
)
def test_an_invalid_hello_is_refused(payload: bytes) -> None:
    for side_type in SIDES:
        side = at_worker_port(side_type)
        assert refusal(side, encode(Command.HELLO, payload)) is PayloadInvalid
        assert side.authenticated, "no token was asked for"


@given(reason=st.text(max_size=3_000))
def test_a_reason_is_one_line_of_limited_length(reason: str) -> None:
    (event,) = at_worker_port(DispatcherProtocol).receive(encode_rejection(ID, reason))
    assert isinstance(event, RejectionReceived)
    assert len(event.reason) <= REASON_BYTES_MAX
    assert "\n" not in event.reason
    assert event.reason == " ".join(event.reason.split())
    if reason.isascii() and len(reason) <= REASON_BYTES_MAX:
        assert event.reason == " ".join(reason.split())


def test_a_reason_that_is_not_utf8_is_still_stored() -> None:
    frame = encode(Command.NACK_MESSAGE, ID + b":\xff\xfe oops \x00")
    (event,) = at_worker_port(DispatcherProtocol).receive(frame)
    assert isinstance(event, RejectionReceived)
    assert "oops" in event.reason


def test_an_error_text_has_a_limited_length() -> None:
    (event,) = at_worker_port(WorkerProtocol).receive(encode(Command.ERROR, b"\xff" * 4_000))
    assert event == ErrorReceived("\ufffd" * REASON_BYTES_MAX)


# Any bytes ----------------------------------------------------------------------------------


@given(frames=TO_DISPATCHER, cuts=CUTS)
def test_any_split_of_the_bytes_gives_a_dispatcher_the_same_events(
    frames: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(frames)
    whole = receive(at_worker_port(DispatcherProtocol), [data])
    assert receive(at_worker_port(DispatcherProtocol), pieces_of(data, cuts)) == whole
    assert len([each for each in whole if not isinstance(each, SendBytes)]) == len(frames)


@given(frames=TO_WORKER, cuts=CUTS)
def test_any_split_of_the_bytes_gives_a_worker_the_same_events(
    frames: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(frames)
    whole = receive(at_worker_port(WorkerProtocol), [data])
    assert receive(at_worker_port(WorkerProtocol), pieces_of(data, cuts)) == whole
    assert len([each for each in whole if not isinstance(each, SendBytes)]) == len(frames)


@given(
    frames=st.lists(
        st.tuples(st.integers(0, 7), st.one_of(IDS, st.binary(max_size=80))), max_size=6
    ),
    noise=st.binary(max_size=20),
    cuts=CUTS,
    token=st.sampled_from([None, TOKEN]),
    side_type=st.sampled_from(SIDES),
)
def test_any_bytes_give_events_or_one_documented_error(
    frames: list[tuple[int, bytes]],
    noise: bytes,
    cuts: list[int],
    token: str | None,
    side_type: type[ConnectionProtocol],
) -> None:
    data = b"".join(
        bytes([1, command]) + len(payload).to_bytes(4, "big") + payload
        for command, payload in frames
    )
    check_any(lambda: at_worker_port(side_type, token), data + noise, cuts)
    check_any(lambda: at_ack_port(side_type, token), data + noise, cuts)


def check_any(new_side: Callable[[], ConnectionProtocol], data: bytes, cuts: Sequence[int]) -> None:
    side = new_side()
    whole = side.receive(data)
    broken = [event for event in whole if isinstance(event, ProtocolViolated)]
    assert len(broken) <= 1
    assert not broken or whole[-1] is broken[0]
    assert side.violated == bool(broken)
    for event in broken:
        assert isinstance(event.error, FrameInvalid)
        # The other side can decode the error.
        (told,) = at_worker_port(WorkerProtocol).receive(encode_error(event.error))
        assert isinstance(told, ErrorReceived)
        assert told.text.startswith(event.error.code)
    assert receive(new_side(), pieces_of(data, cuts)) == parted(whole)


def test_randomly_damaged_frames_give_events_or_one_documented_error() -> None:
    seeded = random.Random(23)
    greeting = Hello(consumer_id="w1", window=5, completes=True)
    talks: list[tuple[type[ConnectionProtocol], bytes]] = [
        (
            DispatcherProtocol,
            encode_hello(greeting) + encode_acknowledgements([ID, OTHER]) + encode_heartbeat(),
        ),
        (
            DispatcherProtocol,
            encode_hello(greeting) + encode_rejection(ID, "no") + encode_acknowledgements([OTHER]),
        ),
        (
            WorkerProtocol,
            encode_hello(greeting) + encode_messages([(ID, b'{"n":1}'), (OTHER, b"")]),
        ),
    ]
    errors: set[type[FrameInvalid]] = set()
    for _ in range(3_000):
        side_type, talk = seeded.choice(talks)
        data = bytearray(talk)
        for _ in range(seeded.randrange(1, 4)):
            at = seeded.randrange(len(data))
            data[at : at + seeded.randrange(3)] = seeded.randbytes(seeded.randrange(3))
        cuts = [seeded.randrange(1_000) for _ in range(seeded.randrange(5))]
        token = seeded.choice([None, TOKEN])
        damaged = bytes(data)
        check_any(lambda kind=side_type, token=token: at_worker_port(kind, token), damaged, cuts)  # type: ignore[misc]
        side = at_worker_port(side_type, token)
        errors |= {type(e.error) for e in side.receive(damaged) if isinstance(e, ProtocolViolated)}
    assert {VersionUnknown, CommandUnknown, FrameTooLarge, PayloadInvalid, TokenRefused} <= errors
