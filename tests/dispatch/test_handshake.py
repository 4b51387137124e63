"""The proof of the token, without a connection: what is exchanged, and every way to do without."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.errors import (
    CommandUnknown,
    FrameInvalid,
    FrameTooLarge,
    PayloadInvalid,
    TokenRefused,
)
from angarium.dispatch.frames import (
    Command,
    FrameReader,
    encode,
    encode_acknowledgements,
    encode_messages,
)
from angarium.dispatch.protocol import (
    HANDSHAKE_FRAME_BYTES_MAX,
    HANDSHAKE_FRAMES_MAX,
    Acknowledged,
    Alive,
    Answer,
    Broken,
    DispatcherSide,
    Event,
    Greeted,
    Greeting,
    Messages,
    Side,
    WorkerSide,
    heartbeat,
    hello,
    rejection,
)
from tests.dispatch.test_protocol import ID, at_ack_port, on_link, pieces_of

BYTES_MAX = 100_000
TOKEN = "a secret between dispatchers and workers"
NAMES: dict[type[Side], str] = {DispatcherSide: "d1", WorkerSide: "10.0.0.7:9100"}
PORTS: list[Callable[..., Side]] = [on_link, at_ack_port]
Pair = tuple[Side, Side]


def dialled(port: Callable[..., Side], token: str | None, other: str | None) -> Pair:
    """Listener with `token`, dialler with `other`."""
    first, second = (
        (WorkerSide, DispatcherSide) if port is on_link else (DispatcherSide, WorkerSide)
    )
    return port(first, token, NAMES[first]), port(second, other, NAMES[second])


def bytes_of(events: Sequence[Event]) -> bytes:
    sent = (each for each in events if isinstance(each, Answer | Broken))
    return b"".join(each.data if isinstance(each, Answer) else each.farewell for each in sent)


def exchange(listener: Side, dialler: Side) -> tuple[list[Event], list[Event], list[bytes]]:
    """Carry bytes to and fro until neither has anything to say: events of each, and the bytes."""
    events: tuple[list[Event], list[Event]] = ([], [])
    carried = []
    sides = (listener, dialler)
    waiting = [(1, listener.opening()), (0, dialler.opening())]
    while waiting:
        to, data = waiting.pop(0)
        if data:
            carried.append(data)
            found = sides[to].receive(data)
            events[to].extend(found)
            waiting.append((1 - to, bytes_of(found)))
    return *events, carried


def bulk_for(side: Side) -> bytes:
    if isinstance(side, WorkerSide):
        return encode_messages([(ID, b"{}")])
    return encode_acknowledgements([ID])


def refused(events: Sequence[Event]) -> list[FrameInvalid]:
    return [each.error for each in events if isinstance(each, Broken)]


@pytest.mark.parametrize("port", PORTS)
def test_two_sides_with_the_same_token_trust_each_other_and_never_send_it(
    port: Callable[..., Side],
) -> None:
    listener, dialler = dialled(port, TOKEN, TOKEN)
    of_listener, of_dialler, carried = exchange(listener, dialler)
    assert listener.trusted
    assert dialler.trusted
    names = (NAMES[type(dialler)], NAMES[type(listener)])
    for events, name in zip((of_listener, of_dialler), names, strict=True):
        (greeted,) = [each for each in events if isinstance(each, Greeted)]
        assert greeted.greeting.consumer_id == name
    for secret in (TOKEN.encode(), TOKEN.encode().hex().encode()):
        assert not any(secret in each for each in carried)
    frames = [c for each in carried for c, _ in FrameReader(BYTES_MAX).feed(each)]
    assert frames == [Command.HELLO, Command.HELLO, Command.PROOF, Command.PROOF]
    for side in (listener, dialler):
        (event,) = side.receive(bulk_for(side))
        assert isinstance(event, Acknowledged | Messages)


def test_the_proof_is_what_the_page_says() -> None:
    worker, dispatcher = dialled(on_link, TOKEN, TOKEN)
    _, _, (first, second, third) = exchange(worker, dispatcher)
    own = len(second) - 6 - 32
    both = first + second[:own]
    for role, shown in (("dispatcher", second[own:]), ("worker", third)):
        text = f"angarium-dispatch worker-port {role}\0".encode() + both
        made = hmac.new(TOKEN.encode(), text, hashlib.sha256).digest()
        assert shown == bytes([1, Command.PROOF, 0, 0, 0, 32]) + made
    nonces = [json.loads(hello[6:])["nonce"] for hello in (first, second[:own])]
    assert all(len(bytes.fromhex(each)) == 32 for each in nonces)
    assert len(set(nonces)) == 2


@pytest.mark.parametrize("port", PORTS)
def test_no_two_connections_have_a_nonce_in_common(port: Callable[..., Side]) -> None:
    def openings() -> bytes:
        listener, dialler = dialled(port, TOKEN, TOKEN)
        return b"".join(exchange(listener, dialler)[2])

    assert len({openings() for _ in range(20)}) == 20


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    ("token", "other"), [(TOKEN, TOKEN + " "), (TOKEN, "ä"), (TOKEN, None), (None, TOKEN)]
)
def test_sides_that_differ_refuse_each_other_and_say_why(
    port: Callable[..., Side], token: str | None, other: str | None
) -> None:
    listener, dialler = dialled(port, token, other)
    of_listener, of_dialler, carried = exchange(listener, dialler)
    errors = refused([*of_listener, *of_dialler])
    assert errors
    for error in errors:
        assert isinstance(error, TokenRefused)
        assert "dispatch.token" in str(error)
    assert not any(isinstance(each, Greeted) for each in (*of_listener, *of_dialler))
    for secret in filter(None, (token, other)):
        assert not any(secret.encode() in each for each in carried)
    assert any(b"token_refused" in each for each in carried), "the other side is told"


FIRST_FRAMES = [
    (DispatcherSide, encode_acknowledgements([ID])),
    (DispatcherSide, encode(Command.ACK_MESSAGE, b"nonsense")),
    (DispatcherSide, rejection(ID, "x")),
    (DispatcherSide, encode_messages([(ID, b"")])),
    (DispatcherSide, encode(Command.PROOF, bytes(32))),
    (WorkerSide, encode_messages([(ID, b"{}")])),
    (WorkerSide, encode_acknowledgements([ID])),
    (WorkerSide, encode(Command.PROOF, bytes(32))),
    (WorkerSide, hello(Greeting(consumer_id="d1"))),
    (WorkerSide, encode(Command.HELLO, b'{"nonce":"%s"}' % (b"0" * 31))),
    (WorkerSide, encode(Command.HELLO, b'{"nonce":"%s"}' % (b"0" * 129))),
]


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(("side_type", "frame"), FIRST_FRAMES)
def test_nothing_is_taken_before_a_proof(
    side_type: type[Side], frame: bytes, port: Callable[..., Side]
) -> None:
    side = port(side_type, TOKEN)
    (event,) = side.receive(heartbeat() + frame)[1:]
    assert isinstance(event, Broken)
    assert isinstance(event.error, TokenRefused)
    assert not side.trusted


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("side_type", [DispatcherSide, WorkerSide])
@pytest.mark.parametrize("own", [TOKEN, None])
def test_the_token_itself_is_refused_whoever_sends_it(
    side_type: type[Side], port: Callable[..., Side], own: str | None
) -> None:
    """As release 0.1.0 sends it; taking it would make it worth stealing."""
    side = port(side_type, own)
    said = json.dumps({"consumer_id": "w", "token": TOKEN, "nonce": "0" * 64}).encode()
    (event,) = side.receive(encode(Command.HELLO, said))
    assert isinstance(event, Broken)
    assert isinstance(event.error, TokenRefused)
    assert "0.1.0" in str(event.error)
    assert TOKEN not in str(event.error)


def test_an_empty_token_of_a_worker_that_has_none_is_no_token() -> None:
    side = on_link(DispatcherSide)
    assert side.receive(encode(Command.HELLO, b'{"window":3,"token":""}'))[-1] == Greeted(
        Greeting(window=3)
    )


# Forgeries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", PORTS)
def test_a_proof_is_good_on_its_own_connection_only(port: Callable[..., Side]) -> None:
    listener, dialler = dialled(port, TOKEN, TOKEN)
    carried = exchange(listener, dialler)[2]
    frames = [each for data in carried for each in FrameReader(BYTES_MAX).feed(data)]
    first_hello, second_hello, of_dialler, of_listener = (
        encode(Command(command), payload) for command, payload in frames
    )
    replays = (second_hello + of_dialler, first_hello + of_listener)
    for side, replayed in zip(dialled(port, TOKEN, TOKEN), replays, strict=True):
        (error,) = refused(side.receive(replayed))
        assert isinstance(error, TokenRefused)


@pytest.mark.parametrize("port", PORTS)
def test_a_side_that_is_sent_its_own_frames_back_is_not_convinced(
    port: Callable[..., Side],
) -> None:
    for side in dialled(port, TOKEN, TOKEN):
        challenge = side.opening() or encode(Command.HELLO, b'{"nonce":"%s"}' % (b"0" * 64))
        events = side.receive(challenge)
        frames = FrameReader(BYTES_MAX).feed(bytes_of(events))
        proof = next((payload for c, payload in frames if c == Command.PROOF), bytes(32))
        events += side.receive(encode(Command.PROOF, proof))
        assert refused(events)
        assert not side.trusted


def test_a_proof_for_one_port_is_none_for_the_other() -> None:
    """A stranger asks a worker for its proof at an ACK port, to show it on a link."""
    nonce = b'{"nonce":"%s"}' % (b"0" * 64)
    worker = at_ack_port(WorkerSide, TOKEN)
    (answer,) = worker.receive(encode(Command.HELLO, nonce))
    assert isinstance(answer, Answer)
    dispatcher = on_link(DispatcherSide, TOKEN)
    assert refused(dispatcher.receive(worker.opening() + answer.data))


@given(at=st.integers(6, 400), flip=st.integers(1, 255))
def test_a_byte_that_was_changed_on_the_way_is_noticed(at: int, flip: int) -> None:
    """Also in the fields that HELLO carries besides: they count for nothing by themselves."""
    worker, dispatcher = dialled(on_link, TOKEN, TOKEN)
    (answer,) = dispatcher.receive(worker.opening())
    assert isinstance(answer, Answer)
    changed = bytearray(answer.data)
    changed[at % len(changed)] ^= flip
    events = worker.receive(bytes(changed))
    assert not any(isinstance(each, Greeted) for each in events)
    assert not worker.trusted


@pytest.mark.parametrize("port", PORTS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_cut_of_the_handshake_means_the_same(
    port: Callable[..., Side], cuts: list[int]
) -> None:
    listener, dialler = dialled(port, TOKEN, TOKEN)
    answers: list[Event] = []
    for piece in pieces_of(listener.opening(), cuts):
        answers += dialler.receive(piece)
    # What follows the proof at once is taken, and may be large.
    large = encode_messages([(ID, b"x" * 3_000)] * 2)
    bulk = large if isinstance(listener, WorkerSide) else encode_acknowledgements([ID] * 9)
    found: list[Event] = []
    for piece in pieces_of(dialler.opening() + bytes_of(answers) + bulk, cuts):
        found += listener.receive(piece)
    assert [type(each) for each in found[:2]] == [Answer, Greeted]
    assert sum(len(e.ids) for e in found if isinstance(e, Acknowledged)) in (0, 9)
    assert sum(len(e.messages) for e in found if isinstance(e, Messages)) in (0, 2)
    assert len(found) > 2
    for piece in pieces_of(bytes_of(found), cuts):
        dialler.receive(piece)
    assert dialler.trusted


# Limits ---------------------------------------------------------------------------------------


def test_a_stranger_can_make_nobody_hold_a_large_frame() -> None:
    side = WorkerSide(BYTES_MAX, TOKEN, dials=False)
    header = bytes([1, Command.HELLO]) + (HANDSHAKE_FRAME_BYTES_MAX + 1).to_bytes(4, "big")
    (error,) = refused(side.receive(header))
    assert isinstance(error, FrameTooLarge)


def test_a_stranger_can_go_on_for_a_few_frames_only() -> None:
    side = WorkerSide(BYTES_MAX, TOKEN, dials=False)
    events = side.receive(heartbeat() * 1_000)
    assert events[:-1] == [Alive()] * HANDSHAKE_FRAMES_MAX
    (error,) = refused(events)
    assert isinstance(error, TokenRefused)


@pytest.mark.parametrize("payload", [b"", b"null", b"{", b'{"nonce":7}', b'{"nonce":"\\ud800"}'])
def test_a_challenge_that_makes_no_sense_is_refused(payload: bytes) -> None:
    (error,) = refused(on_link(WorkerSide, TOKEN).receive(encode(Command.HELLO, payload)))
    assert isinstance(error, PayloadInvalid)
    (error,) = refused(on_link(WorkerSide, TOKEN).receive(b"\x01\x07\x00\x00\x00\x00"))
    assert isinstance(error, CommandUnknown)


def test_after_the_proof_a_worker_may_greet_again_without_a_nonce() -> None:
    worker, dispatcher = dialled(on_link, TOKEN, TOKEN)
    exchange(worker, dispatcher)
    assert dispatcher.receive(hello(Greeting(window=7))) == [Greeted(Greeting(window=7))]
