"""Frames of the worker connection: version u8, command u8, length u32 big-endian, payload.

Does no I/O: bytes in, frames out, for any split of the bytes. `docs/protocols/dispatch.md` is the
contract for people who write a worker in another language.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum

from angarium.dispatch.errors import CommandUnknown, FrameInvalid, FrameTooLarge, VersionUnknown
from angarium.dispatch.message_ids import ID_BYTES

VERSION = 1
HEADER = struct.Struct("!BBI")
HEADER_BYTES = HEADER.size


class Command(IntEnum):
    PROCESS_MESSAGE = 0
    ACK_MESSAGE = 1
    NACK_MESSAGE = 2
    HELLO = 3
    HEARTBEAT = 4
    ERROR = 5
    PROOF = 6


COMMANDS = frozenset(int(command) for command in Command)
Frame = tuple[int, bytes]
"""Command and payload. A tuple, because a read yields hundreds of them."""
DispatchedMessage = tuple[bytes, bytes]
"""Message id and published bytes."""

_ACK_HEADER = HEADER.pack(VERSION, Command.ACK_MESSAGE, ID_BYTES)
_pack, _unpack = HEADER.pack, HEADER.unpack_from


def encode(command: Command, payload: bytes = b"") -> bytes:
    return _pack(VERSION, command, len(payload)) + payload


def encode_messages(messages: Iterable[DispatchedMessage]) -> bytes:
    """PROCESS_MESSAGE frames, one after another."""
    parts: list[bytes] = []
    for message_id, payload in messages:
        parts += (_pack(1, 0, 37 + len(payload)), message_id, b":", payload)
    return b"".join(parts)


def encode_acknowledgements(ids: Sequence[bytes]) -> bytes:
    return b"".join([_ACK_HEADER + message_id for message_id in ids])


def message_bytes(payload: bytes) -> int:
    """Length of the PROCESS_MESSAGE frame of this payload, without the frame's header."""
    return ID_BYTES + 1 + len(payload)


class FrameReader:
    """Splits a stream of bytes into frames.

    The bytes after an invalid frame have no meaning. `feed` returns the frames before the invalid
    one, sets `error` and ignores all further bytes.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max  # the protocol raises it after authentication
        self._parts: list[bytes] = []  # of an incomplete frame
        self._buffered = 0  # bytes in `_parts`
        self._needed = 0  # bytes that the next frame or header takes
        self.error: FrameInvalid | None = None

    @property
    def incomplete(self) -> bool:
        """Whether part of a frame is buffered. At the end of a connection the frame was cut."""
        return bool(self._parts)

    def feed(self, data: bytes, *, one: bool = False) -> list[Frame]:
        """All complete frames, or only the next `one`; the other bytes then stay buffered."""
        frames: list[Frame] = []
        if self.error is not None:
            return frames
        if self._parts:
            # Join the parts once per frame: a large frame may arrive in very many parts.
            self._parts.append(data)
            self._buffered += len(data)
            if self._buffered < self._needed:
                return frames
            data = b"".join(self._parts)
        size, at, needed = len(data), 0, HEADER_BYTES
        while size - at >= HEADER_BYTES:
            version, command, length = _unpack(data, at)
            if version != VERSION or command not in COMMANDS or length > self.frame_bytes_max:
                self.error, self._parts = self._invalid(version, command, length), []
                return frames
            end = at + HEADER_BYTES + length
            if end > size:
                needed = HEADER_BYTES + length
                break
            frames.append((command, data[at + HEADER_BYTES : end]))
            at = end
            if one:
                break
        rest = data[at:]
        self._parts, self._buffered, self._needed = [rest] if rest else [], size - at, needed
        if rest and rest[0] != VERSION:
            # The first byte alone shows that the header is invalid.
            self.error, self._parts = self._invalid(rest[0], 0, 0), []
        return frames

    def _invalid(self, version: int, command: int, length: int) -> FrameInvalid:
        if version != VERSION:
            return VersionUnknown(f"a frame of version {version}; this side speaks {VERSION}")
        if command not in COMMANDS:
            return CommandUnknown(f"command {command} is not one of version {VERSION}")
        return FrameTooLarge(
            f"a frame of {length} bytes, {self.frame_bytes_max} are allowed: by "
            "limits.frame_bytes_max, or before the token is proved"
        )
