"""Both ends of a worker connection without a connection: every command, every refusal."""

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
    Acknowledged,
    Alive,
    Answer,
    Broken,
    DispatcherSide,
    Event,
    Greeted,
    Greeting,
    Messages,
    Refused,
    Rejected,
    Side,
    WorkerSide,
    heartbeat,
    hello,
    rejection,
)

BYTES_MAX = 4_096
TOKEN = "a secret between dispatchers and workers"
ID = b"0b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d10"
OTHER = b"7d1e0a44-0c1b-4b6f-8a2d-5e6f7a8b9c0d"
SIDES: list[type[Side]] = [DispatcherSide, WorkerSide]


def on_link(side_type: type[Side], token: str | None = None, name: str = "") -> Side:
    """One end of a connection to a worker's port."""
    dials = side_type is DispatcherSide
    return side_type(BYTES_MAX, token, Greeting(consumer_id=name), dials=dials)


def at_ack_port(side_type: type[Side], token: str | None = None, name: str = "") -> Side:
    dials = side_type is WorkerSide
    return side_type(BYTES_MAX, token, Greeting(consumer_id=name), dials=dials)


IDS = st.uuids(version=4).map(lambda uuid: str(uuid).encode())
GREETINGS = st.builds(
    Greeting,
    consumer_id=st.text(st.characters(categories=("L", "N", "P")), max_size=40),
    window=st.integers(0, 2**40),
    completes=st.booleans(),
)
TO_DISPATCHER = st.lists(
    st.one_of(
        IDS.map(lambda message_id: encode(Command.ACK_MESSAGE, message_id)),
        st.builds(rejection, IDS, st.text(max_size=30)),
        GREETINGS.map(hello),
        st.just(heartbeat()),
        st.text(max_size=30).map(lambda text: encode(Command.ERROR, text.encode())),
    ),
    max_size=10,
)
TO_WORKER = st.lists(
    st.one_of(
        st.builds(lambda i, p: encode_messages([(i, p)]), IDS, st.binary(max_size=60)),
        GREETINGS.map(hello),
        st.just(heartbeat()),
    ),
    max_size=10,
)
CUTS = st.lists(st.integers(0, 100_000), max_size=30)


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def parted(events: Sequence[Event]) -> list[object]:
    """One element per frame: how frames are gathered depends on the cut and says nothing."""
    found: list[object] = []
    for event in events:
        match event:
            case Acknowledged(ids):
                found += ids
            case Messages(messages):
                found += messages
            case Broken(error, farewell):
                found.append((type(error), str(error), farewell))
            case _:
                found.append(event)
    return found


def receive(side: Side, pieces: Sequence[bytes]) -> list[object]:
    return parted([event for piece in pieces for event in side.receive(piece)])


def without_answers(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Answer)]


def refusal(side: Side, data: bytes) -> type[FrameInvalid]:
    """The error that these bytes are answered with; nothing else comes of them."""
    (event,) = side.receive(data)
    assert isinstance(event, Broken)
    assert side.broken
    assert event.farewell[:2] == bytes([1, Command.ERROR])
    assert event.farewell[6:].decode() == f"{event.error.code}: {event.error}"
    assert side.receive(heartbeat()) == [], "nothing is taken after a broken frame"
    return type(event.error)


# What each side makes of each command -------------------------------------------------------


def test_a_dispatcher_takes_acknowledgements_and_refusals() -> None:
    side = on_link(DispatcherSide)
    data = encode_acknowledgements([ID, OTHER]) + rejection(ID, "no such order") + rejection(OTHER)
    assert side.receive(data + encode_acknowledgements([ID])) == [
        Acknowledged([ID, OTHER]),
        Rejected(ID, "no such order"),
        Rejected(OTHER, ""),
        Acknowledged([ID]),
    ]
    assert side.trusted
    assert not side.incomplete


def test_a_worker_takes_messages_untouched() -> None:
    side = on_link(WorkerSide)
    messages = [(ID, b'{"a": [1,  2]}'), (OTHER, b""), (ID, b"\x00:\xff\xfe"), (OTHER, b":")]
    assert side.receive(encode_messages(messages)) == [Messages(messages)]


@pytest.mark.parametrize("side_type", SIDES)
def test_both_sides_take_greetings_signs_of_life_and_errors(side_type: type[Side]) -> None:
    side = on_link(side_type)
    greeting = Greeting(consumer_id="10.0.0.1:8400", window=7, completes=True)
    data = hello(greeting) + heartbeat() + encode(Command.ERROR, "zu groß".encode())
    assert without_answers(side.receive(data)) == [Greeted(greeting), Alive(), Refused("zu groß")]


@pytest.mark.parametrize(
    ("side_type", "frame"),
    [
        (DispatcherSide, encode_messages([(ID, b"{}")])),
        (WorkerSide, encode_acknowledgements([ID])),
        (WorkerSide, rejection(ID, "why")),
        (DispatcherSide, encode(Command.PROOF, bytes(32))),
        (WorkerSide, encode(Command.PROOF, bytes(32))),
    ],
)
def test_a_command_for_the_other_side_is_misplaced(side_type: type[Side], frame: bytes) -> None:
    assert refusal(on_link(side_type), frame) is FrameMisplaced


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
def test_broken_frames_are_answered_and_end_it(
    side_type: type[Side], data: bytes, error: type[FrameInvalid]
) -> None:
    assert refusal(on_link(side_type), data) is error


@pytest.mark.parametrize(
    "payload",
    [b"", ID[:-1], ID + b" ", ID + b":", b"x" * 36, ID.replace(b"-4", b"-1", 1), ID[:-1] + b"\n"],
)
def test_an_acknowledgement_is_a_uuid4_and_nothing_else(payload: bytes) -> None:
    frame = encode(Command.ACK_MESSAGE, payload)
    assert refusal(on_link(DispatcherSide), frame) is PayloadInvalid


@pytest.mark.parametrize("payload", [b"", ID, ID[:-1] + b":", ID + b" {}", b"x" * 36 + b":{}"])
def test_a_message_is_a_uuid4_a_colon_and_bytes(payload: bytes) -> None:
    frame = encode(Command.PROCESS_MESSAGE, payload)
    assert refusal(on_link(WorkerSide), frame) is PayloadInvalid


@pytest.mark.parametrize("payload", [b"", ID[:-1], ID + b" reason", b"x" * 36 + b":"])
def test_a_refusal_begins_with_a_uuid4(payload: bytes) -> None:
    frame = encode(Command.NACK_MESSAGE, payload)
    assert refusal(on_link(DispatcherSide), frame) is PayloadInvalid


def test_a_refusal_may_be_the_id_alone() -> None:
    side = on_link(DispatcherSide)
    assert side.receive(encode(Command.NACK_MESSAGE, ID)) == [Rejected(ID, "")]


def test_ids_are_taken_in_either_case_and_known_in_small_letters() -> None:
    side = on_link(DispatcherSide)
    data = encode_acknowledgements([ID.upper()]) + rejection(OTHER.upper(), "x")
    assert side.receive(data) == [Acknowledged([ID]), Rejected(OTHER, "x")]


@pytest.mark.parametrize("side_type", SIDES)
def test_what_stands_in_front_of_a_broken_frame_counts(side_type: type[Side]) -> None:
    """Even when it came in one piece with it: acknowledged is acknowledged."""
    good: bytes
    if side_type is DispatcherSide:
        good, bad = encode_acknowledgements([ID, OTHER]), encode(Command.ACK_MESSAGE, b"nonsense")
        expected: list[object] = [ID, OTHER]
    else:
        good = encode_messages([(ID, b"1"), (OTHER, b"2")])
        bad = encode(Command.PROCESS_MESSAGE, b"nonsense")
        expected = [(ID, b"1"), (OTHER, b"2")]
    for pieces in ([good + bad], [good, bad]):
        found = receive(on_link(side_type), pieces)
        assert found[:2] == expected
        assert len(found) == 3


# Greetings and reasons ----------------------------------------------------------------------


@given(greeting=GREETINGS)
def test_a_greeting_arrives_as_it_was_sent(greeting: Greeting) -> None:
    side = on_link(DispatcherSide, name="d1")
    own = Answer(hello(Greeting(consumer_id="d1")))
    assert side.receive(hello(greeting)) == [own, Greeted(greeting)]
    assert side.receive(hello(greeting)) == [Greeted(greeting)], "it is answered once"
    assert on_link(WorkerSide).receive(hello(greeting)) == [Greeted(greeting)]
    asked = at_ack_port(DispatcherSide, name="d1")
    assert asked.receive(hello(greeting) * 2) == [own, Greeted(greeting)] * 2


def test_what_a_greeting_says_besides_is_ignored() -> None:
    said = json.dumps({"window": 3, "language": "node", "more": [{}]}).encode()
    side = on_link(DispatcherSide)
    events = side.receive(encode(Command.HELLO, said))
    assert without_answers(events) == [Greeted(Greeting(window=3))]


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
def test_a_greeting_that_makes_no_sense_is_refused(payload: bytes) -> None:
    for side_type in SIDES:
        side = on_link(side_type)
        assert refusal(side, encode(Command.HELLO, payload)) is PayloadInvalid
        assert side.trusted, "no token was asked for"


@given(reason=st.text(max_size=3_000))
def test_a_reason_is_one_bounded_line(reason: str) -> None:
    (event,) = on_link(DispatcherSide).receive(rejection(ID, reason))
    assert isinstance(event, Rejected)
    assert len(event.reason) <= REASON_BYTES_MAX
    assert "\n" not in event.reason
    assert event.reason == " ".join(event.reason.split())
    if reason.isascii() and len(reason) <= REASON_BYTES_MAX:
        assert event.reason == " ".join(reason.split())


def test_a_reason_of_broken_text_is_still_a_reason() -> None:
    frame = encode(Command.NACK_MESSAGE, ID + b":\xff\xfe oops \x00")
    (event,) = on_link(DispatcherSide).receive(frame)
    assert isinstance(event, Rejected)
    assert "oops" in event.reason


def test_an_error_text_is_bounded_too() -> None:
    (event,) = on_link(WorkerSide).receive(encode(Command.ERROR, b"\xff" * 4_000))
    assert event == Refused("\ufffd" * REASON_BYTES_MAX)


# Any bytes ----------------------------------------------------------------------------------


@given(frames=TO_DISPATCHER, cuts=CUTS)
def test_any_cut_means_the_same_to_a_dispatcher(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    whole = receive(on_link(DispatcherSide), [data])
    assert receive(on_link(DispatcherSide), pieces_of(data, cuts)) == whole
    assert len([each for each in whole if not isinstance(each, Answer)]) == len(frames)


@given(frames=TO_WORKER, cuts=CUTS)
def test_any_cut_means_the_same_to_a_worker(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    whole = receive(on_link(WorkerSide), [data])
    assert receive(on_link(WorkerSide), pieces_of(data, cuts)) == whole
    assert len([each for each in whole if not isinstance(each, Answer)]) == len(frames)


@given(
    frames=st.lists(
        st.tuples(st.integers(0, 7), st.one_of(IDS, st.binary(max_size=80))), max_size=6
    ),
    noise=st.binary(max_size=20),
    cuts=CUTS,
    token=st.sampled_from([None, TOKEN]),
    side_type=st.sampled_from(SIDES),
)
def test_any_bytes_mean_events_or_one_documented_error(
    frames: list[tuple[int, bytes]],
    noise: bytes,
    cuts: list[int],
    token: str | None,
    side_type: type[Side],
) -> None:
    data = b"".join(
        bytes([1, command]) + len(payload).to_bytes(4, "big") + payload
        for command, payload in frames
    )
    check_any(lambda: on_link(side_type, token), data + noise, cuts)
    check_any(lambda: at_ack_port(side_type, token), data + noise, cuts)


def check_any(new_side: Callable[[], Side], data: bytes, cuts: Sequence[int]) -> None:
    side = new_side()
    whole = side.receive(data)
    broken = [event for event in whole if isinstance(event, Broken)]
    assert len(broken) <= 1
    assert not broken or whole[-1] is broken[0]
    assert side.broken == bool(broken)
    for event in broken:
        assert isinstance(event.error, FrameInvalid)
        # The other side can read what it is told before the end.
        (told,) = on_link(WorkerSide).receive(event.farewell)
        assert isinstance(told, Refused)
        assert told.text.startswith(event.error.code)
    assert receive(new_side(), pieces_of(data, cuts)) == parted(whole)


def test_random_damage_to_a_good_conversation_breaks_nothing_but_itself() -> None:
    seeded = random.Random(23)
    greeting = Greeting(consumer_id="w1", window=5, completes=True)
    talks: list[tuple[type[Side], bytes]] = [
        (DispatcherSide, hello(greeting) + encode_acknowledgements([ID, OTHER]) + heartbeat()),
        (DispatcherSide, hello(greeting) + rejection(ID, "no") + encode_acknowledgements([OTHER])),
        (WorkerSide, hello(greeting) + encode_messages([(ID, b'{"n":1}'), (OTHER, b"")])),
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
        check_any(lambda kind=side_type, token=token: on_link(kind, token), damaged, cuts)  # type: ignore[misc]
        side = on_link(side_type, token)
        errors |= {type(e.error) for e in side.receive(damaged) if isinstance(e, Broken)}
    assert {VersionUnknown, CommandUnknown, FrameTooLarge, PayloadInvalid, TokenRefused} <= errors
