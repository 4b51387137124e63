"""Frames of the worker connection: version u8, command u8, length u32 big-endian, payload.

Pure: bytes in, frames out, whatever way the bytes were cut. `docs/protocols/dispatch.md` is the
contract, written for people who build a worker in another language.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum

from angarium.dispatch.errors import CommandUnknown, FrameInvalid, FrameTooLarge, VersionUnknown
from angarium.dispatch.identity import ID_BYTES

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
"""Command and payload: a bare tuple, for there are many."""

_ACK_HEADER = HEADER.pack(VERSION, Command.ACK_MESSAGE, ID_BYTES)
_pack, _unpack = HEADER.pack, HEADER.unpack_from


def encode(command: Command, payload: bytes = b"") -> bytes:
    return _pack(VERSION, command, len(payload)) + payload


def encode_messages(messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """PROCESS_MESSAGE frames of (id, published bytes), to be written at once."""
    parts: list[bytes] = []
    for message_id, payload in messages:
        parts += (_pack(1, 0, 37 + len(payload)), message_id, b":", payload)
    return b"".join(parts)


def encode_acknowledgements(ids: Sequence[bytes]) -> bytes:
    return b"".join([_ACK_HEADER + message_id for message_id in ids])


def message_bytes(payload: bytes) -> int:
    """Length of the frame that carries this payload, without its header."""
    return ID_BYTES + 1 + len(payload)


class FrameReader:
    """Cuts a stream of bytes into frames.

    After a broken frame nothing that follows can be trusted: `feed` still returns the frames in
    front of it, sets `error` and takes no more.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max  # may be raised once the other side is trusted
        self._parts: list[bytes] = []  # of a frame that is not whole yet
        self._waiting = 0  # bytes in them
        self._wanted = 0  # bytes without which another look finds nothing new
        self.error: FrameInvalid | None = None

    @property
    def incomplete(self) -> bool:
        """Part of a frame is here; at the end of a connection that means it was cut."""
        return bool(self._parts)

    def feed(self, data: bytes, *, one: bool = False) -> list[Frame]:
        """All frames that are whole, or just the next `one`: the rest then waits unread."""
        frames: list[Frame] = []
        if self.error is not None:
            return frames
        if self._parts:
            # Joined once it is whole: a large frame may come in very many pieces.
            self._parts.append(data)
            self._waiting += len(data)
            if self._waiting < self._wanted:
                return frames
            data = b"".join(self._parts)
        size, at, wanted = len(data), 0, HEADER_BYTES
        while size - at >= HEADER_BYTES:
            version, command, length = _unpack(data, at)
            if version != VERSION or command not in COMMANDS or length > self.frame_bytes_max:
                self.error, self._parts = self._broken(version, command, length), []
                return frames
            end = at + HEADER_BYTES + length
            if end > size:
                wanted = HEADER_BYTES + length
                break
            frames.append((command, data[at + HEADER_BYTES : end]))
            at = end
            if one:
                break
        rest = data[at:]
        self._parts, self._waiting, self._wanted = [rest] if rest else [], size - at, wanted
        if rest and rest[0] != VERSION:
            # No need to wait for the rest of a header that can't become one of ours.
            self.error, self._parts = self._broken(rest[0], 0, 0), []
        return frames

    def _broken(self, version: int, command: int, length: int) -> FrameInvalid:
        if version != VERSION:
            return VersionUnknown(f"a frame of version {version}; this side speaks {VERSION}")
        if command not in COMMANDS:
            return CommandUnknown(f"command {command} is not one of version {VERSION}")
        return FrameTooLarge(
            f"a frame of {length} bytes, {self.frame_bytes_max} are allowed: by "
            "limits.frame_bytes_max, or before the token is proved"
        )
