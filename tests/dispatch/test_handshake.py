"""The proof of the token without I/O: the exchange, and attempts to avoid the proof."""

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
    AcknowledgementsReceived,
    ConnectionProtocol,
    DispatcherProtocol,
    Event,
    HeartbeatReceived,
    Hello,
    HelloReceived,
    MessagesReceived,
    ProtocolViolated,
    SendBytes,
    WorkerProtocol,
    encode_error,
    encode_heartbeat,
    encode_hello,
    encode_rejection,
)
from tests.dispatch.test_protocol import ID, at_ack_port, at_worker_port, pieces_of

BYTES_MAX = 100_000
TOKEN = "a secret between dispatchers and workers"
NAMES: dict[type[ConnectionProtocol], str] = {
    DispatcherProtocol: "d1",
    WorkerProtocol: "10.0.0.7:9100",
}
PORTS: list[Callable[..., ConnectionProtocol]] = [at_worker_port, at_ack_port]
Pair = tuple[ConnectionProtocol, ConnectionProtocol]


def dialled(port: Callable[..., ConnectionProtocol], token: str | None, other: str | None) -> Pair:
    """Listener with `token`, dialler with `other`."""
    first, second = (
        (WorkerProtocol, DispatcherProtocol)
        if port is at_worker_port
        else (DispatcherProtocol, WorkerProtocol)
    )
    return port(first, token, NAMES[first]), port(second, other, NAMES[second])


def bytes_of(events: Sequence[Event]) -> bytes:
    sent = (each for each in events if isinstance(each, SendBytes | ProtocolViolated))
    return b"".join(
        each.data if isinstance(each, SendBytes) else encode_error(each.error) for each in sent
    )


def exchange(
    listener: ConnectionProtocol, dialler: ConnectionProtocol
) -> tuple[list[Event], list[Event], list[bytes]]:
    """Pass bytes between the sides until both are silent; events of each side, and the bytes."""
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


def bulk_for(side: ConnectionProtocol) -> bytes:
    if isinstance(side, WorkerProtocol):
        return encode_messages([(ID, b"{}")])
    return encode_acknowledgements([ID])


def refused(events: Sequence[Event]) -> list[FrameInvalid]:
    return [each.error for each in events if isinstance(each, ProtocolViolated)]


@pytest.mark.parametrize("port", PORTS)
def test_two_sides_with_the_same_token_authenticate_each_other_and_never_send_it(
    port: Callable[..., ConnectionProtocol],
) -> None:
    listener, dialler = dialled(port, TOKEN, TOKEN)
    of_listener, of_dialler, carried = exchange(listener, dialler)
    assert listener.authenticated
    assert dialler.authenticated
    names = (NAMES[type(dialler)], NAMES[type(listener)])
    for events, name in zip((of_listener, of_dialler), names, strict=True):
        (received,) = [each for each in events if isinstance(each, HelloReceived)]
        assert received.hello.consumer_id == name
    for secret in (TOKEN.encode(), TOKEN.encode().hex().encode()):
        assert not any(secret in each for each in carried)
    frames = [c for each in carried for c, _ in FrameReader(BYTES_MAX).feed(each)]
    assert frames == [Command.HELLO, Command.HELLO, Command.PROOF, Command.PROOF]
    for side in (listener, dialler):
        (event,) = side.receive(bulk_for(side))
        assert isinstance(event, AcknowledgementsReceived | MessagesReceived)


def test_the_proof_matches_the_protocol_page() -> None:
    worker, dispatcher = dialled(at_worker_port, TOKEN, TOKEN)
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
def test_every_connection_has_a_nonce_of_its_own(port: Callable[..., ConnectionProtocol]) -> None:
    def openings() -> bytes:
        listener, dialler = dialled(port, TOKEN, TOKEN)
        return b"".join(exchange(listener, dialler)[2])

    assert len({openings() for _ in range(20)}) == 20


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    ("token", "other"), [(TOKEN, TOKEN + " "), (TOKEN, "ä"), (TOKEN, None), (None, TOKEN)]
)
def test_sides_with_different_tokens_refuse_each_other_and_say_why(
    port: Callable[..., ConnectionProtocol], token: str | None, other: str | None
) -> None:
    listener, dialler = dialled(port, token, other)
    of_listener, of_dialler, carried = exchange(listener, dialler)
    errors = refused([*of_listener, *of_dialler])
    assert errors
    for error in errors:
        assert isinstance(error, TokenRefused)
        assert "dispatch.token" in str(error)
    assert not any(isinstance(each, HelloReceived) for each in (*of_listener, *of_dialler))
    for secret in filter(None, (token, other)):
        assert not any(secret.encode() in each for each in carried)
    assert any(b"token_refused" in each for each in carried), "the other side is told"


FIRST_FRAMES = [
    (DispatcherProtocol, encode_acknowledgements([ID])),
    (DispatcherProtocol, encode(Command.ACK_MESSAGE, b"nonsense")),
    (DispatcherProtocol, encode_rejection(ID, "x")),
    (DispatcherProtocol, encode_messages([(ID, b"")])),
    (DispatcherProtocol, encode(Command.PROOF, bytes(32))),
    (WorkerProtocol, encode_messages([(ID, b"{}")])),
    (WorkerProtocol, encode_acknowledgements([ID])),
    (WorkerProtocol, encode(Command.PROOF, bytes(32))),
    (WorkerProtocol, encode_hello(Hello(consumer_id="d1"))),
    (WorkerProtocol, encode(Command.HELLO, b'{"nonce":"%s"}' % (b"0" * 31))),
    (WorkerProtocol, encode(Command.HELLO, b'{"nonce":"%s"}' % (b"0" * 129))),
]


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(("side_type", "frame"), FIRST_FRAMES)
def test_no_other_command_is_accepted_before_the_proof(
    side_type: type[ConnectionProtocol], frame: bytes, port: Callable[..., ConnectionProtocol]
) -> None:
    side = port(side_type, TOKEN)
    (event,) = side.receive(encode_heartbeat() + frame)[1:]
    assert isinstance(event, ProtocolViolated)
    assert isinstance(event.error, TokenRefused)
    assert not side.authenticated


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("side_type", [DispatcherProtocol, WorkerProtocol])
@pytest.mark.parametrize("own", [TOKEN, None])
def test_a_hello_with_the_token_itself_is_refused(
    side_type: type[ConnectionProtocol], port: Callable[..., ConnectionProtocol], own: str | None
) -> None:
    """As release 0.1.0 sends it. Anybody who reads the network could repeat it."""
    side = port(side_type, own)
    said = json.dumps({"consumer_id": "w", "token": TOKEN, "nonce": "0" * 64}).encode()
    (event,) = side.receive(encode(Command.HELLO, said))
    assert isinstance(event, ProtocolViolated)
    assert isinstance(event.error, TokenRefused)
    assert "0.1.0" in str(event.error)
    assert TOKEN not in str(event.error)


def test_an_empty_token_in_hello_counts_as_none() -> None:
    side = at_worker_port(DispatcherProtocol)
    assert side.receive(encode(Command.HELLO, b'{"window":3,"token":""}'))[-1] == HelloReceived(
        Hello(window=3)
    )


# Forgeries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", PORTS)
def test_a_proof_is_valid_only_on_its_own_connection(
    port: Callable[..., ConnectionProtocol],
) -> None:
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
def test_frames_that_are_reflected_to_their_sender_do_not_authenticate(
    port: Callable[..., ConnectionProtocol],
) -> None:
    for side in dialled(port, TOKEN, TOKEN):
        challenge = side.opening() or encode(Command.HELLO, b'{"nonce":"%s"}' % (b"0" * 64))
        events = side.receive(challenge)
        frames = FrameReader(BYTES_MAX).feed(bytes_of(events))
        proof = next((payload for c, payload in frames if c == Command.PROOF), bytes(32))
        events += side.receive(encode(Command.PROOF, proof))
        assert refused(events)
        assert not side.authenticated


def test_a_proof_for_one_port_is_invalid_at_the_other() -> None:
    """An attacker obtains a worker's proof at an ACK port and sends it at a worker's port."""
    nonce = b'{"nonce":"%s"}' % (b"0" * 64)
    worker = at_ack_port(WorkerProtocol, TOKEN)
    (answer,) = worker.receive(encode(Command.HELLO, nonce))
    assert isinstance(answer, SendBytes)
    dispatcher = at_worker_port(DispatcherProtocol, TOKEN)
    assert refused(dispatcher.receive(worker.opening() + answer.data))


@given(at=st.integers(6, 400), flip=st.integers(1, 255))
def test_a_changed_byte_in_the_handshake_is_refused(at: int, flip: int) -> None:
    """Also a byte in the other members of HELLO."""
    worker, dispatcher = dialled(at_worker_port, TOKEN, TOKEN)
    (answer,) = dispatcher.receive(worker.opening())
    assert isinstance(answer, SendBytes)
    changed = bytearray(answer.data)
    changed[at % len(changed)] ^= flip
    events = worker.receive(bytes(changed))
    assert not any(isinstance(each, HelloReceived) for each in events)
    assert not worker.authenticated


@pytest.mark.parametrize("port", PORTS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_split_of_the_handshake_gives_the_same_events(
    port: Callable[..., ConnectionProtocol], cuts: list[int]
) -> None:
    listener, dialler = dialled(port, TOKEN, TOKEN)
    answers: list[Event] = []
    for piece in pieces_of(listener.opening(), cuts):
        answers += dialler.receive(piece)
    # Frames after the proof are accepted at once and may be large.
    large = encode_messages([(ID, b"x" * 3_000)] * 2)
    bulk = large if isinstance(listener, WorkerProtocol) else encode_acknowledgements([ID] * 9)
    found: list[Event] = []
    for piece in pieces_of(dialler.opening() + bytes_of(answers) + bulk, cuts):
        found += listener.receive(piece)
    assert [type(each) for each in found[:2]] == [SendBytes, HelloReceived]
    assert sum(len(e.ids) for e in found if isinstance(e, AcknowledgementsReceived)) in (0, 9)
    assert sum(len(e.messages) for e in found if isinstance(e, MessagesReceived)) in (0, 2)
    assert len(found) > 2
    for piece in pieces_of(bytes_of(found), cuts):
        dialler.receive(piece)
    assert dialler.authenticated


# Limits ---------------------------------------------------------------------------------------


def test_an_unauthenticated_peer_cannot_make_a_side_buffer_a_large_frame() -> None:
    side = WorkerProtocol(BYTES_MAX, TOKEN, dials=False)
    header = bytes([1, Command.HELLO]) + (HANDSHAKE_FRAME_BYTES_MAX + 1).to_bytes(4, "big")
    (error,) = refused(side.receive(header))
    assert isinstance(error, FrameTooLarge)


def test_an_unauthenticated_peer_can_send_only_a_few_frames() -> None:
    side = WorkerProtocol(BYTES_MAX, TOKEN, dials=False)
    events = side.receive(encode_heartbeat() * 1_000)
    assert events[:-1] == [HeartbeatReceived()] * HANDSHAKE_FRAMES_MAX
    (error,) = refused(events)
    assert isinstance(error, TokenRefused)


@pytest.mark.parametrize("payload", [b"", b"null", b"{", b'{"nonce":7}', b'{"nonce":"\\ud800"}'])
def test_an_invalid_hello_with_a_nonce_is_refused(payload: bytes) -> None:
    (error,) = refused(
        at_worker_port(WorkerProtocol, TOKEN).receive(encode(Command.HELLO, payload))
    )
    assert isinstance(error, PayloadInvalid)
    (error,) = refused(at_worker_port(WorkerProtocol, TOKEN).receive(b"\x01\x07\x00\x00\x00\x00"))
    assert isinstance(error, CommandUnknown)


def test_after_the_proof_a_worker_may_send_hello_again_without_a_nonce() -> None:
    worker, dispatcher = dialled(at_worker_port, TOKEN, TOKEN)
    exchange(worker, dispatcher)
    assert dispatcher.receive(encode_hello(Hello(window=7))) == [HelloReceived(Hello(window=7))]
