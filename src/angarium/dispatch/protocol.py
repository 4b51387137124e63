"""Both ends of a worker connection, without the connection: bytes in, events out.

The dispatcher dials. A worker that knows our additions says HELLO first, with its id, its window
and whether it finishes messages in Redis itself; the dispatcher answers with a HELLO of its own.
A worker that says nothing is spoken to with PROCESS_MESSAGE only. Whoever asks for a token takes
nothing from the other side before it has seen it.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from angarium.dispatch.errors import FrameInvalid, FrameMisplaced, PayloadInvalid, TokenRefused
from angarium.dispatch.frames import Command, FrameReader, encode
from angarium.dispatch.identity import ID_BYTES, ID_PATTERN, is_message_id

# A reason is for people who look at a dead letter; a stack trace belongs into the worker's log.
REASON_BYTES_MAX = 1_000
# It stands in every result, journal event and reason of that worker.
CONSUMER_ID_CHARACTERS_MAX = 256


class Greeting(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of HELLO, as JSON. Unknown members are ignored."""

    consumer_id: str = ""
    window: int = 0
    completes: bool = False
    """ACK says: the result is stored and the message is no longer pending."""
    token: str = ""


@dataclass(frozen=True)
class Greeted:
    greeting: Greeting


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


Event = Greeted | Messages | Acknowledged | Rejected | Alive | Refused | Broken


class Side:
    """What both ends share: cutting, the token, and what to do with nonsense."""

    takes: ClassVar[frozenset[Command]]

    def __init__(self, frame_bytes_max: int, token: str | None) -> None:
        self._reader = FrameReader(frame_bytes_max)
        self._token = token
        self._trusted = token is None
        self.broken = False

    @property
    def trusted(self) -> bool:
        """The token was shown, or none is asked for."""
        return self._trusted

    @property
    def incomplete(self) -> bool:
        return self._reader.incomplete

    def receive(self, data: bytes) -> list[Event]:
        """Events in the order of the frames; neighbours of one kind become one event."""
        events: list[Event] = []
        if self.broken:
            return events
        bulk = self.bulk
        gathered: list[bytes] = []
        try:
            for command, payload in self._reader.feed(data):
                if command == bulk and self._trusted:
                    gathered.append(payload)
                    continue
                if gathered:
                    self._take_bulk(gathered, events)
                    gathered = []
                events.append(self._take(Command(command), payload))
            if gathered:
                self._take_bulk(gathered, events)
            if self._reader.error is not None:
                raise self._reader.error
        except FrameInvalid as error:
            self.broken = True
            events.append(Broken(error, encode(Command.ERROR, f"{error.code}: {error}".encode())))
        return events

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

    def _take(self, command: Command, payload: bytes) -> Event:
        if command == Command.HEARTBEAT:
            return Alive()
        if command == Command.ERROR:
            return Refused(payload.decode(errors="replace")[:REASON_BYTES_MAX])
        if command == Command.HELLO:
            return Greeted(self._greet(payload))
        if not self._trusted:
            raise TokenRefused("HELLO with the token set in dispatch.token must come first")
        if command == Command.NACK_MESSAGE and command in self.takes:
            return _rejection(payload)
        raise FrameMisplaced(f"{command.name} is not taken on this side")

    def _greet(self, payload: bytes) -> Greeting:
        try:
            greeting = msgspec.json.decode(payload, type=Greeting)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PayloadInvalid(f"HELLO can't be read: {error}") from None
        if greeting.window < 0:
            raise PayloadInvalid("HELLO names a window of less than no messages")
        if len(greeting.consumer_id) > CONSUMER_ID_CHARACTERS_MAX:
            raise PayloadInvalid(
                f"HELLO names a consumer_id of more than {CONSUMER_ID_CHARACTERS_MAX} characters"
            )
        if greeting.consumer_id and not greeting.consumer_id.isprintable():
            raise PayloadInvalid("HELLO names a consumer_id with characters that do not print")
        if self._token is not None:
            if not hmac.compare_digest(greeting.token.encode(), self._token.encode()):
                raise TokenRefused("the token is missing or not the one set in dispatch.token")
            self._trusted = True
        return greeting


class DispatcherSide(Side):
    """What a dispatcher makes of a worker's bytes, on either kind of connection."""

    takes = frozenset({Command.ACK_MESSAGE, Command.NACK_MESSAGE})
    bulk = Command.ACK_MESSAGE
    bulk_holds = "a UUID4 and nothing else"

    sound = re.compile(ID_PATTERN + rb"\Z")

    def bulk_event(self, payloads: list[bytes]) -> Event:
        return Acknowledged([payload.lower() for payload in payloads])


class WorkerSide(Side):
    """What a worker makes of a dispatcher's bytes."""

    takes = frozenset({Command.PROCESS_MESSAGE})
    bulk = Command.PROCESS_MESSAGE
    bulk_holds = "a UUID4, a colon and the message"

    sound = re.compile(ID_PATTERN + b":")

    def bulk_event(self, payloads: list[bytes]) -> Event:
        return Messages([(payload[:ID_BYTES], payload[ID_BYTES + 1 :]) for payload in payloads])


def hello(greeting: Greeting) -> bytes:
    return encode(Command.HELLO, msgspec.json.encode(greeting))


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
