"""Both ends of a worker connection, without the connection: bytes in, events out.

The dispatcher dials. A worker that knows our additions says HELLO first, with its id, its window
and whether it finishes messages in Redis itself; the dispatcher answers with a HELLO of its own.
A worker that says nothing is spoken to with PROCESS_MESSAGE only.

Where a token is set, each side proves that it knows it, and the token itself is never sent. Both
say HELLO with a nonce. The side that dials sends its PROOF first; the listener checks it and
answers with its own. So a stranger who connects learns nothing that was made with the token.
Before the other side has proved itself, nothing but these frames is taken from it, few of them
and small ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from angarium.dispatch.errors import FrameInvalid, FrameMisplaced, PayloadInvalid, TokenRefused
from angarium.dispatch.frames import Command, Frame, FrameReader, encode
from angarium.dispatch.identity import ID_BYTES, ID_PATTERN, is_message_id
from angarium.dispatch.proof import (
    NONCE_BYTES,
    NONCE_CHARACTERS_MAX,
    NONCE_CHARACTERS_MIN,
    Role,
    proof_of,
    same,
)

# A reason is for people who look at a dead letter; a stack trace belongs into the worker's log.
REASON_BYTES_MAX = 1_000
# It stands in every result, journal event and reason of that worker.
CONSUMER_ID_CHARACTERS_MAX = 256
# Before the other side has proved itself: a HELLO with the longest id, written as escapes, fits.
HANDSHAKE_FRAME_BYTES_MAX = 8_192
# HELLO, PROOF, and a HEARTBEAT each second until the deadline.
HANDSHAKE_FRAMES_MAX = 16


class Greeting(msgspec.Struct, frozen=True, omit_defaults=True):
    """What HELLO says of its sender, as JSON. Unknown members are ignored."""

    consumer_id: str = ""
    window: int = 0
    completes: bool = False
    """ACK says: the result is stored and the message is no longer pending."""


class _Hello(Greeting, frozen=True, omit_defaults=True):
    """The payload of HELLO as it is received."""

    nonce: str = ""
    """Its sender has a token and asks for a proof of it."""
    token: str = ""
    """Release 0.1.0 sent the secret itself. It is read so that it can be refused by name."""


class _Challenge(Greeting, frozen=True):
    """The payload of HELLO as it is sent where a token is set."""

    nonce: str = ""


@dataclass(frozen=True)
class Greeted:
    """The other side said who it is, and has proved it where a token is set."""

    greeting: Greeting


@dataclass(frozen=True)
class Answer:
    """Bytes to be sent to the other side."""

    data: bytes


@dataclass(frozen=True)
class Messages:
    """Id and published bytes of each."""

    messages: list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Acknowledged:
    ids: list[bytes]


@dataclass(frozen=True)
class Rejected:
    """Refused for a reason, or given back unprocessed when there is none."""

    message_id: bytes
    reason: str


@dataclass(frozen=True)
class Alive:
    pass


@dataclass(frozen=True)
class Refused:
    """The other side says why it is about to close."""

    text: str


@dataclass(frozen=True)
class Broken:
    """Send `farewell`, then close."""

    error: FrameInvalid
    farewell: bytes


Event = Greeted | Answer | Messages | Acknowledged | Rejected | Alive | Refused | Broken


class Side:
    """What both ends share: cutting, the proof of the token, and what to do with nonsense."""

    role: ClassVar[Role]
    other: ClassVar[Role]
    takes: ClassVar[frozenset[Command]]

    def __init__(
        self,
        frame_bytes_max: int,
        token: str | None,
        greeting: Greeting | None = None,
        *,
        dials: bool,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._bytes_max = frame_bytes_max
        self._token = token
        self._greeting = greeting or Greeting()
        self._dials = dials
        self._dialler = self.role if dials else self.other
        # A worker says HELLO at once. A dispatcher answers, unless it listens and has a token.
        self._speaks_first = self.role is Role.WORKER or not (dials or token is None)
        self._nonce = "" if token is None else random_bytes(NONCE_BYTES).hex()
        self._trusted = token is None
        untrusted_max = min(frame_bytes_max, HANDSHAKE_FRAME_BYTES_MAX)
        self._reader = FrameReader(frame_bytes_max if self._trusted else untrusted_max)
        self._untrusted_frames = 0
        self._heard: bytes | None = None  # the payload of the other side's first HELLO
        self._heard_greeting = Greeting()
        self._answered = False
        self.broken = False

    @property
    def trusted(self) -> bool:
        """The other side has proved that it knows the token, or no token is set."""
        return self._trusted

    @property
    def incomplete(self) -> bool:
        return self._reader.incomplete

    def opening(self) -> bytes:
        """What this side sends as soon as the connection stands."""
        return encode(Command.HELLO, self._own_hello()) if self._speaks_first else b""

    def receive(self, data: bytes) -> list[Event]:
        """Events in the order of the frames; neighbours of one kind become one event."""
        events: list[Event] = []
        if self.broken:
            return events
        try:
            # One by one: what the next frame may be depends on the one before.
            while not self._trusted and (found := self._reader.feed(data, one=True)):
                data = b""
                ((command, payload),) = found
                self._take_untrusted(Command(command), payload, events)
            if self._trusted:
                self._take_all(self._reader.feed(data), events)
            if self._reader.error is not None:
                raise self._reader.error
        except FrameInvalid as error:
            self.broken = True
            events.append(Broken(error, farewell(error)))
        return events

    def _take_all(self, frames: list[Frame], events: list[Event]) -> None:
        bulk = self.bulk
        gathered: list[bytes] = []
        for command, payload in frames:
            if command == bulk:
                gathered.append(payload)
                continue
            if gathered:
                self._take_bulk(gathered, events)
                gathered = []
            self._take(Command(command), payload, events)
        if gathered:
            self._take_bulk(gathered, events)

    bulk: ClassVar[Command]
    bulk_holds: ClassVar[str]

    sound: ClassVar[re.Pattern[bytes]]

    def bulk_event(self, payloads: list[bytes]) -> Event:
        raise NotImplementedError

    def _take_bulk(self, payloads: list[bytes], events: list[Event]) -> None:
        """What stands in front of a broken one counts, in whatever pieces they came."""
        sound = self.sound.match
        if all(map(sound, payloads)):
            events.append(self.bulk_event(payloads))
            return
        broken = next(i for i, payload in enumerate(payloads) if not sound(payload))
        if broken > 0:
            events.append(self.bulk_event(payloads[:broken]))
        raise PayloadInvalid(f"{self.bulk.name} must hold {self.bulk_holds}")

    def _take(self, command: Command, payload: bytes, events: list[Event]) -> None:
        if command == Command.HEARTBEAT:
            events.append(Alive())
        elif command == Command.ERROR:
            events.append(Refused(payload.decode(errors="replace")[:REASON_BYTES_MAX]))
        elif command == Command.HELLO:
            self._take_hello(payload, events)
        elif command == Command.NACK_MESSAGE and command in self.takes:
            events.append(_rejection(payload))
        else:
            raise FrameMisplaced(f"{command.name} is not taken on this side")

    def _take_hello(self, payload: bytes, events: list[Event]) -> None:
        """Where no token is set, or after the proof: there it may name another window."""
        heard = _read_hello(payload)
        if heard.nonce and self._token is None:
            raise TokenRefused(
                "the other side asks for a proof of dispatch.token, and no token is set on this "
                "side: set the same one on both"
            )
        if self.role is Role.DISPATCHER and not (self._dials and self._answered):
            events.append(Answer(hello(self._greeting)))
        self._answered = True
        events.append(Greeted(_greeting_of(heard)))

    # Before the other side is trusted --------------------------------------------------------

    def _take_untrusted(self, command: Command, payload: bytes, events: list[Event]) -> None:
        self._untrusted_frames += 1
        if self._untrusted_frames > HANDSHAKE_FRAMES_MAX:
            raise TokenRefused(f"more than {HANDSHAKE_FRAMES_MAX} frames before a proof")
        if command in (Command.HEARTBEAT, Command.ERROR):
            self._take(command, payload, events)
        elif command == Command.HELLO and self._heard is None:
            self._take_challenge(payload, events)
        elif command == Command.PROOF and self._heard is not None:
            self._take_proof(payload, self._heard, events)
        else:
            raise TokenRefused(
                f"{command.name} came before a proof of dispatch.token: is the token set on "
                "the other side?"
            )

    def _take_challenge(self, payload: bytes, events: list[Event]) -> None:
        heard = _read_hello(payload)
        if not NONCE_CHARACTERS_MIN <= len(heard.nonce) <= NONCE_CHARACTERS_MAX:
            raise TokenRefused(
                f"HELLO has no nonce of {NONCE_CHARACTERS_MIN} to {NONCE_CHARACTERS_MAX} "
                "characters: is dispatch.token set on the other side?"
            )
        self._heard, self._heard_greeting = payload, _greeting_of(heard)
        if self._dials:
            first = b"" if self._speaks_first else encode(Command.HELLO, self._own_hello())
            events.append(Answer(first + encode(Command.PROOF, self._proof(self.role, payload))))
            self._answered = True

    def _take_proof(self, payload: bytes, heard: bytes, events: list[Event]) -> None:
        if not same(payload, self._proof(self.other, heard)):
            raise TokenRefused("the proof is wrong: dispatch.token differs between the two sides")
        self._trusted = True
        self._reader.frame_bytes_max = self._bytes_max
        if not self._dials:
            events.append(Answer(encode(Command.PROOF, self._proof(self.role, heard))))
        events.append(Greeted(self._heard_greeting))

    def _proof(self, prover: Role, heard: bytes) -> bytes:
        own = self._own_hello()
        listener, dialler = (heard, own) if self._dials else (own, heard)
        return proof_of(self._token or "", prover, self._dialler, listener, dialler)

    def _own_hello(self) -> bytes:
        own = self._greeting
        if self._token is None:
            return msgspec.json.encode(own)
        return msgspec.json.encode(
            _Challenge(own.consumer_id, own.window, own.completes, self._nonce)
        )


class DispatcherSide(Side):
    """What a dispatcher makes of a worker's bytes: on a link, which it dials, and at its ACK
    port, where it listens."""

    role, other = Role.DISPATCHER, Role.WORKER
    takes = frozenset({Command.ACK_MESSAGE, Command.NACK_MESSAGE})
    bulk = Command.ACK_MESSAGE
    bulk_holds = "a UUID4 and nothing else"

    sound = re.compile(ID_PATTERN + rb"\Z")

    def bulk_event(self, payloads: list[bytes]) -> Event:
        return Acknowledged([payload.lower() for payload in payloads])


class WorkerSide(Side):
    """What a worker makes of a dispatcher's bytes."""

    role, other = Role.WORKER, Role.DISPATCHER
    takes = frozenset({Command.PROCESS_MESSAGE})
    bulk = Command.PROCESS_MESSAGE
    bulk_holds = "a UUID4, a colon and the message"

    sound = re.compile(ID_PATTERN + b":")

    def bulk_event(self, payloads: list[bytes]) -> Event:
        return Messages([(payload[:ID_BYTES], payload[ID_BYTES + 1 :]) for payload in payloads])


def hello(greeting: Greeting) -> bytes:
    return encode(Command.HELLO, msgspec.json.encode(greeting))


def _read_hello(payload: bytes) -> _Hello:
    try:
        heard = msgspec.json.decode(payload, type=_Hello)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadInvalid(f"HELLO can't be read: {error}") from None
    if heard.window < 0:
        raise PayloadInvalid("HELLO names a window of less than no messages")
    if len(heard.consumer_id) > CONSUMER_ID_CHARACTERS_MAX:
        raise PayloadInvalid(
            f"HELLO names a consumer_id of more than {CONSUMER_ID_CHARACTERS_MAX} characters"
        )
    if heard.consumer_id and not heard.consumer_id.isprintable():
        raise PayloadInvalid("HELLO names a consumer_id with characters that do not print")
    if heard.token:
        raise TokenRefused(
            "HELLO holds the token itself, as release 0.1.0 sent it: upgrade the side that sent "
            "it, then set a new dispatch.token, because this one was readable on the network"
        )
    return heard


def _greeting_of(heard: _Hello) -> Greeting:
    return Greeting(heard.consumer_id, heard.window, heard.completes)


def farewell(error: FrameInvalid) -> bytes:
    return encode(Command.ERROR, f"{error.code}: {error}".encode())


def heartbeat() -> bytes:
    return encode(Command.HEARTBEAT)


def rejection(message_id: bytes, reason: str = "") -> bytes:
    text = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return encode(Command.NACK_MESSAGE, message_id + b":" + text)


def _rejection(payload: bytes) -> Rejected:
    message_id, colon, reason = payload[:ID_BYTES], payload[ID_BYTES:37], payload[37:]
    if not is_message_id(message_id) or colon not in (b":", b""):
        raise PayloadInvalid("NACK_MESSAGE must hold a UUID4, a colon and the reason")
    # One line: the reasons of a message are kept one to a line.
    text = " ".join(reason.decode(errors="replace").split())
    return Rejected(message_id.lower(), text[:REASON_BYTES_MAX])
