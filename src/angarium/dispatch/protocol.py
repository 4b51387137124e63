"""Both ends of a worker connection as state machines without I/O: bytes in, events out.

The dispatcher dials. A worker that knows our additional commands sends HELLO first, with its id,
its window and whether it finishes messages in Redis itself. The dispatcher replies with a HELLO.
A worker that sends nothing receives only PROCESS_MESSAGE. A worker that renews the messages it
holds says so in its HELLO; the dispatcher's HELLO names the lease, after which a message that is
not renewed goes to another worker.

With a token set, each side proves that it knows the token; the token itself is never sent. Both
sides send HELLO with a nonce. The side that dials sends its PROOF first. The listener checks it
and replies with its own PROOF. So a client without the token receives nothing that was computed
from the token. Before the proof a side accepts only these frames, HEARTBEAT and ERROR, limited in
number and size.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from angarium.dispatch.errors import FrameInvalid, FrameMisplaced, PayloadInvalid, TokenRefused
from angarium.dispatch.frames import (
    IDS_MAX,
    Command,
    DispatchedMessage,
    Frame,
    FrameReader,
    encode,
)
from angarium.dispatch.message_ids import ID_BYTES, ID_PATTERN, is_message_id
from angarium.dispatch.queues import is_queue_name
from angarium.dispatch.token_proof import (
    NONCE_BYTES,
    NONCE_CHARACTERS_MAX,
    NONCE_CHARACTERS_MIN,
    ConnectionRole,
    compute_proof,
)

# A reason is for people who read a dead letter; a stack trace belongs in the worker's log.
REASON_BYTES_MAX = 1_000
# The id is part of every result, journal event and reason of a worker.
CONSUMER_ID_CHARACTERS_MAX = 256
# Before authentication. A HELLO with the longest id, written in JSON escapes, fits.
HANDSHAKE_FRAME_BYTES_MAX = 8_192
# HELLO, PROOF, and a HEARTBEAT each second until the deadline.
HANDSHAKE_FRAMES_MAX = 16
_IDS = re.compile(b"(?:" + ID_PATTERN + b")+")


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of HELLO without a token, as JSON. Unknown members are ignored."""

    consumer_id: str = ""
    window: int = 0
    completes: bool = False
    """An ACK of this worker means: the result is stored and the message is no longer pending."""
    renews: bool = False
    """This worker sends RENEW_MESSAGES for what it holds, and knows RELEASE_MESSAGES."""
    lease_ms: int = 0
    """From a dispatcher that knows RENEW_MESSAGES: how long a message is held without one."""
    queue: str = ""
    """From a worker: the named queue whose messages it takes. Empty: the unnamed queue."""


class _ReceivedHello(Hello, frozen=True, omit_defaults=True):
    nonce: str = ""
    """The sender has a token and requires a proof."""
    token: str = ""
    """Release 0.1.0 sent the token itself. This member exists to refuse it with a clear error."""


class _HelloWithNonce(Hello, frozen=True):
    """The payload of HELLO with a token set."""

    nonce: str = ""


@dataclass(frozen=True)
class HelloReceived:
    """The other side sent its HELLO, and its proof if a token is set."""

    hello: Hello


@dataclass(frozen=True)
class SendBytes:
    """The caller sends these bytes to the other side."""

    data: bytes


@dataclass(frozen=True)
class MessagesReceived:
    messages: list[DispatchedMessage]


@dataclass(frozen=True)
class AcknowledgementsReceived:
    ids: list[bytes]


@dataclass(frozen=True)
class RejectionReceived:
    """Without a reason the worker gives the message back unprocessed."""

    message_id: bytes
    reason: str


@dataclass(frozen=True)
class RenewalReceived:
    """The worker still holds these messages."""

    ids: list[bytes]


@dataclass(frozen=True)
class ReleaseReceived:
    """The worker no longer holds these messages; their state in Redis says what follows."""

    ids: list[bytes]


@dataclass(frozen=True)
class HeartbeatReceived:
    pass


@dataclass(frozen=True)
class ErrorReceived:
    """The other side names an error and closes the connection."""

    text: str


@dataclass(frozen=True)
class ProtocolViolated:
    """The caller sends `encode_error(error)` and closes the connection."""

    error: FrameInvalid


Event = (
    HelloReceived
    | SendBytes
    | MessagesReceived
    | AcknowledgementsReceived
    | RejectionReceived
    | RenewalReceived
    | ReleaseReceived
    | HeartbeatReceived
    | ErrorReceived
    | ProtocolViolated
)


class ConnectionProtocol:
    """The part that both ends share: frames, the proof of the token, and errors."""

    role: ClassVar[ConnectionRole]
    other: ClassVar[ConnectionRole]
    accepts_rejections: ClassVar[bool]
    # The command that arrives in large numbers: neighbouring frames of it become one event.
    bulk_command: ClassVar[Command]
    bulk_format: ClassVar[str]
    bulk_pattern: ClassVar[re.Pattern[bytes]]

    def __init__(
        self,
        frame_bytes_max: int,
        token: str | None,
        hello: Hello | None = None,
        *,
        dials: bool,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._bytes_max = frame_bytes_max
        self._token = token
        self._hello = hello or Hello()
        self._dials = dials
        self._dialler = self.role if dials else self.other
        # A worker sends HELLO at once. A dispatcher replies, unless it listens and has a token.
        self._speaks_first = self.role is ConnectionRole.WORKER or not (dials or token is None)
        self._nonce = "" if token is None else random_bytes(NONCE_BYTES).hex()
        self._authenticated = token is None
        handshake_bytes_max = min(frame_bytes_max, HANDSHAKE_FRAME_BYTES_MAX)
        self._reader = FrameReader(frame_bytes_max if token is None else handshake_bytes_max)
        self._handshake_frames = 0
        self._other_hello_payload: bytes | None = None
        self._other_hello = Hello()
        self._replied = False
        self.violated = False

    @property
    def authenticated(self) -> bool:
        """Whether the other side proved that it knows the token; True if no token is set."""
        return self._authenticated

    @property
    def incomplete(self) -> bool:
        return self._reader.incomplete

    def opening(self) -> bytes:
        """The bytes that this side sends when the connection is made."""
        return encode(Command.HELLO, self._own_hello()) if self._speaks_first else b""

    def receive(self, data: bytes) -> list[Event]:
        """Events in the order of the frames. After a violation all bytes are ignored."""
        events: list[Event] = []
        if self.violated:
            return events
        try:
            # One by one: each frame of the handshake decides which frames may follow.
            while not self._authenticated and (frames := self._reader.feed(data, one=True)):
                data = b""
                ((command, payload),) = frames
                self._handle_unauthenticated(Command(command), payload, events)
            if self._authenticated:
                self._handle_all(self._reader.feed(data), events)
            if self._reader.error is not None:
                raise self._reader.error
        except FrameInvalid as error:
            self.violated = True
            events.append(ProtocolViolated(error))
        return events

    def bulk_event(self, payloads: list[bytes]) -> Event:
        raise NotImplementedError

    def _handle_all(self, frames: list[Frame], events: list[Event]) -> None:
        bulk_command = self.bulk_command
        bulk: list[bytes] = []
        for command, payload in frames:
            if command == bulk_command:
                bulk.append(payload)
                continue
            if bulk:
                self._handle_bulk(bulk, events)
                bulk = []
            self._handle(Command(command), payload, events)
        if bulk:
            self._handle_bulk(bulk, events)

    def _handle_bulk(self, payloads: list[bytes], events: list[Event]) -> None:
        """The frames before an invalid one count."""
        is_valid = self.bulk_pattern.match
        if all(map(is_valid, payloads)):
            events.append(self.bulk_event(payloads))
            return
        invalid = next(i for i, payload in enumerate(payloads) if not is_valid(payload))
        if invalid > 0:
            events.append(self.bulk_event(payloads[:invalid]))
        raise PayloadInvalid(f"{self.bulk_command.name} must contain {self.bulk_format}")

    def _handle(self, command: Command, payload: bytes, events: list[Event]) -> None:
        if command == Command.HEARTBEAT:
            events.append(HeartbeatReceived())
        elif command == Command.ERROR:
            events.append(ErrorReceived(payload.decode(errors="replace")[:REASON_BYTES_MAX]))
        elif command == Command.HELLO:
            self._handle_hello(payload, events)
        elif command == Command.NACK_MESSAGE and self.accepts_rejections:
            events.append(_decode_rejection(payload))
        elif command == Command.RENEW_MESSAGES and self.role is ConnectionRole.DISPATCHER:
            events.append(RenewalReceived(_decode_ids(command, payload)))
        elif command == Command.RELEASE_MESSAGES:
            events.append(ReleaseReceived(_decode_ids(command, payload)))
        else:
            raise FrameMisplaced(f"this side does not accept {command.name}")

    def _handle_hello(self, payload: bytes, events: list[Event]) -> None:
        """Without a token, or after the proof, where a HELLO may name another window."""
        received = _decode_hello(payload)
        if received.nonce and self._token is None:
            raise TokenRefused(
                "the other side asks for a proof of dispatch.token, and no token is set on this "
                "side: set the same one on both"
            )
        if self.role is ConnectionRole.DISPATCHER and not (self._dials and self._replied):
            events.append(SendBytes(encode_hello(self._hello)))
        self._replied = True
        events.append(HelloReceived(_plain_hello(received)))

    # The handshake with a token --------------------------------------------------------------

    def _handle_unauthenticated(
        self, command: Command, payload: bytes, events: list[Event]
    ) -> None:
        self._handshake_frames += 1
        if self._handshake_frames > HANDSHAKE_FRAMES_MAX:
            raise TokenRefused(f"more than {HANDSHAKE_FRAMES_MAX} frames before a proof")
        if command in (Command.HEARTBEAT, Command.ERROR):
            self._handle(command, payload, events)
        elif command == Command.HELLO and self._other_hello_payload is None:
            self._handle_hello_with_nonce(payload, events)
        elif command == Command.PROOF and self._other_hello_payload is not None:
            self._handle_proof(payload, self._other_hello_payload, events)
        else:
            raise TokenRefused(
                f"{command.name} came before a proof of dispatch.token: is the token set on "
                "the other side?"
            )

    def _handle_hello_with_nonce(self, payload: bytes, events: list[Event]) -> None:
        received = _decode_hello(payload)
        if not NONCE_CHARACTERS_MIN <= len(received.nonce) <= NONCE_CHARACTERS_MAX:
            raise TokenRefused(
                f"HELLO has no nonce of {NONCE_CHARACTERS_MIN} to {NONCE_CHARACTERS_MAX} "
                "characters: is dispatch.token set on the other side?"
            )
        self._other_hello_payload, self._other_hello = payload, _plain_hello(received)
        if self._dials:
            first = b"" if self._speaks_first else encode(Command.HELLO, self._own_hello())
            events.append(SendBytes(first + encode(Command.PROOF, self._proof(self.role, payload))))
            self._replied = True

    def _handle_proof(self, payload: bytes, other_hello: bytes, events: list[Event]) -> None:
        if not hmac.compare_digest(payload, self._proof(self.other, other_hello)):
            raise TokenRefused("the proof is wrong: dispatch.token differs between the two sides")
        self._authenticated = True
        self._reader.frame_bytes_max = self._bytes_max
        if not self._dials:
            events.append(SendBytes(encode(Command.PROOF, self._proof(self.role, other_hello))))
        events.append(HelloReceived(self._other_hello))

    def _proof(self, prover: ConnectionRole, other_hello: bytes) -> bytes:
        own = self._own_hello()
        listener, dialler = (other_hello, own) if self._dials else (own, other_hello)
        return compute_proof(self._token or "", prover, self._dialler, listener, dialler)

    def _own_hello(self) -> bytes:
        own = self._hello
        if self._token is None:
            return msgspec.json.encode(own)
        return msgspec.json.encode(
            _HelloWithNonce(**msgspec.structs.asdict(own), nonce=self._nonce)
        )


class DispatcherProtocol(ConnectionProtocol):
    """A dispatcher's end: it dials a worker's port, or listens at its ACK port."""

    role, other = ConnectionRole.DISPATCHER, ConnectionRole.WORKER
    accepts_rejections = True
    bulk_command = Command.ACK_MESSAGE
    bulk_format = "a UUID4 and nothing else"
    bulk_pattern = re.compile(ID_PATTERN + rb"\Z")

    def bulk_event(self, payloads: list[bytes]) -> Event:
        return AcknowledgementsReceived([payload.lower() for payload in payloads])


class WorkerProtocol(ConnectionProtocol):
    """A worker's end: it listens at its port, or dials an ACK port."""

    role, other = ConnectionRole.WORKER, ConnectionRole.DISPATCHER
    accepts_rejections = False
    bulk_command = Command.PROCESS_MESSAGE
    bulk_format = "a UUID4, a colon and the message"
    bulk_pattern = re.compile(ID_PATTERN + b":")

    def bulk_event(self, payloads: list[bytes]) -> Event:
        return MessagesReceived(
            [(payload[:ID_BYTES], payload[ID_BYTES + 1 :]) for payload in payloads]
        )


def encode_hello(hello: Hello) -> bytes:
    return encode(Command.HELLO, msgspec.json.encode(hello))


def encode_error(error: FrameInvalid) -> bytes:
    return encode(Command.ERROR, f"{error.code}: {error}".encode())


def encode_heartbeat() -> bytes:
    return encode(Command.HEARTBEAT)


def encode_rejection(message_id: bytes, reason: str = "") -> bytes:
    text = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return encode(Command.NACK_MESSAGE, message_id + b":" + text)


def _decode_rejection(payload: bytes) -> RejectionReceived:
    message_id, colon, reason = payload[:ID_BYTES], payload[ID_BYTES:37], payload[37:]
    if not is_message_id(message_id) or colon not in (b":", b""):
        raise PayloadInvalid("NACK_MESSAGE must contain a UUID4, a colon and the reason")
    # One line: Redis stores the reasons of a message one per line.
    text = " ".join(reason.decode(errors="replace").split())
    return RejectionReceived(message_id.lower(), text[:REASON_BYTES_MAX])


def _decode_ids(command: Command, payload: bytes) -> list[bytes]:
    if len(payload) > IDS_MAX * ID_BYTES or _IDS.fullmatch(payload) is None:
        raise PayloadInvalid(f"{command.name} must contain 1 to {IDS_MAX} UUID4 and nothing else")
    ids = payload.lower()
    return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]


def _decode_hello(payload: bytes) -> _ReceivedHello:
    try:
        received = msgspec.json.decode(payload, type=_ReceivedHello)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadInvalid(f"HELLO can't be read: {error}") from None
    if received.window < 0 or received.lease_ms < 0:
        raise PayloadInvalid("HELLO names a negative window or lease")
    if len(received.consumer_id) > CONSUMER_ID_CHARACTERS_MAX:
        raise PayloadInvalid(
            f"HELLO names a consumer_id of more than {CONSUMER_ID_CHARACTERS_MAX} characters"
        )
    if received.consumer_id and not received.consumer_id.isprintable():
        raise PayloadInvalid("HELLO names a consumer_id with unprintable characters")
    if received.queue and not is_queue_name(received.queue):
        raise PayloadInvalid("HELLO names a queue that can't exist")
    if received.token:
        raise TokenRefused(
            "HELLO contains the token itself, as release 0.1.0 sent it: upgrade the side that sent "
            "it, then set a new dispatch.token, because this one was readable on the network"
        )
    return received


def _plain_hello(received: _ReceivedHello) -> Hello:
    return Hello(
        received.consumer_id, received.window, received.completes, received.renews,
        received.lease_ms, received.queue,
    )  # fmt: skip
