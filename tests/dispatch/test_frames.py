"""Frames: exact bytes, any split of the bytes, and only documented errors for any bytes."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.errors import CommandUnknown, FrameInvalid, FrameTooLarge, VersionUnknown
from angarium.dispatch.frames import (
    COMMANDS,
    HEADER_BYTES,
    Command,
    Frame,
    FrameReader,
    encode,
    encode_acknowledgements,
    encode_messages,
    message_bytes,
)

BYTES_MAX = 64
ID = b"0b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d10"
FRAMES = st.lists(
    st.tuples(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=BYTES_MAX)), max_size=8
)


def packed(frames: list[Frame]) -> bytes:
    return b"".join(encode(Command(command), payload) for command, payload in frames)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def read(pieces: list[bytes], bytes_max: int = BYTES_MAX) -> tuple[FrameReader, list[Frame]]:
    reader = FrameReader(bytes_max)
    return reader, [frame for piece in pieces for frame in reader.feed(piece)]


def read_slowly(data: bytes, bytes_max: int) -> tuple[list[Frame], type[FrameInvalid] | None]:
    """A slow reader that follows the definition, one frame at a time."""
    frames: list[Frame] = []
    while data:
        if data[0] != 1:
            return frames, VersionUnknown
        if len(data) < 6:
            break
        command, length = data[1], int.from_bytes(data[2:6], "big")
        if command > 6:
            return frames, CommandUnknown
        if length > bytes_max:
            return frames, FrameTooLarge
        if len(data) < 6 + length:
            break
        frames.append((command, data[6 : 6 + length]))
        data = data[6 + length :]
    return frames, None


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (Command.PROCESS_MESSAGE, 0),
        (Command.ACK_MESSAGE, 1),
        (Command.NACK_MESSAGE, 2),
        (Command.HELLO, 3),
        (Command.HEARTBEAT, 4),
        (Command.ERROR, 5),
        (Command.PROOF, 6),
    ],
)
def test_every_command_has_its_number_and_its_bytes(command: Command, number: int) -> None:
    assert encode(command, b"abc") == bytes([1, number, 0, 0, 0, 3]) + b"abc"
    reader, frames = read([encode(command, b"abc")])
    assert frames == [(number, b"abc")]
    assert reader.error is None
    assert not reader.incomplete


def test_messages_and_acknowledgements_are_encoded_as_the_protocol_says() -> None:
    many = [(ID, b'{"a":1}'), (ID, b""), (ID, b"\x00\xff:")]
    one_by_one = b"".join(
        encode(Command.PROCESS_MESSAGE, message_id + b":" + payload) for message_id, payload in many
    )
    assert encode_messages(many) == one_by_one
    assert encode_messages([]) == b""
    assert encode_acknowledgements([ID, ID]) == encode(Command.ACK_MESSAGE, ID) * 2
    assert all(message_bytes(payload) == 37 + len(payload) for _, payload in many)


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 10_000), max_size=40))
def test_any_split_of_the_bytes_gives_the_same_frames(frames: list[Frame], cuts: list[int]) -> None:
    reader, found = read(pieces_of(packed(frames), cuts))
    assert found == frames
    assert reader.error is None
    assert not reader.incomplete


@given(frames=FRAMES.filter(bool), missing=st.integers(1, HEADER_BYTES + BYTES_MAX))
def test_a_cut_frame_is_reported_as_incomplete(frames: list[Frame], missing: int) -> None:
    data = packed(frames)
    last = HEADER_BYTES + len(frames[-1][1])
    kept = data[: len(data) - min(missing, last - 1)]
    reader, found = read([kept])
    assert found == frames[:-1]
    assert reader.incomplete
    assert reader.error is None


@given(frames=FRAMES, length=st.integers(BYTES_MAX + 1, 2**32 - 1))
def test_a_frame_that_is_too_large_is_refused_at_its_header(
    frames: list[Frame], length: int
) -> None:
    reader, found = read([packed(frames) + struct.pack("!BBI", 1, 0, length)])
    assert found == frames
    assert isinstance(reader.error, FrameTooLarge)
    assert str(length) in str(reader.error)
    assert not reader.incomplete
    assert reader.feed(encode(Command.HEARTBEAT)) == []


def test_a_frame_of_exactly_the_limit_is_accepted() -> None:
    reader, found = read([encode(Command.HELLO, b"x" * BYTES_MAX)])
    assert found == [(Command.HELLO, b"x" * BYTES_MAX)]
    assert reader.error is None


@given(version=st.integers(0, 255).filter(lambda version: version != 1), frames=FRAMES)
def test_another_version_is_refused_at_its_first_byte(version: int, frames: list[Frame]) -> None:
    reader, found = read([packed(frames), bytes([version])])
    assert found == frames
    assert isinstance(reader.error, VersionUnknown)
    assert reader.feed(encode(Command.HEARTBEAT)) == []


@given(command=st.integers(7, 255), frames=FRAMES, rest=st.binary(max_size=8))
def test_an_unknown_command_is_refused(command: int, frames: list[Frame], rest: bytes) -> None:
    reader, found = read([packed(frames) + bytes([1, command, 0, 0, 0, 0]) + rest])
    assert found == frames
    assert isinstance(reader.error, CommandUnknown)


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_split_of_garbage_is_read_as_the_format_defines(data: bytes, cuts: list[int]) -> None:
    reader, found = read(pieces_of(data, cuts))
    frames, problem = read_slowly(data, BYTES_MAX)
    assert found == frames
    assert type(reader.error) is (problem or type(None))


def test_randomly_damaged_frames_are_read_as_the_format_defines() -> None:
    seeded = random.Random(11)
    for _ in range(3_000):
        frames = [
            (seeded.randrange(6), seeded.randbytes(seeded.choice([0, 1, 36, 40, BYTES_MAX])))
            for _ in range(seeded.randrange(1, 6))
        ]
        data = bytearray(packed(frames))
        for _ in range(seeded.randrange(3)):
            at = seeded.randrange(len(data))
            damage = seeded.choice(["flip", "cut", "insert"])
            if damage == "flip":
                data[at] ^= 1 << seeded.randrange(8)
            elif damage == "cut":
                del data[at : at + seeded.randrange(1, 10)]
            else:
                data[at:at] = seeded.randbytes(seeded.randrange(1, 10))
            if not data:
                break
        cuts = [seeded.randrange(1_000) for _ in range(seeded.randrange(6))]
        reader, found = read(pieces_of(bytes(data), cuts))
        expected, problem = read_slowly(bytes(data), BYTES_MAX)
        assert found == expected, bytes(data)
        assert type(reader.error) is (problem or type(None)), bytes(data)


def test_a_large_frame_in_small_parts_is_joined_once() -> None:
    """The cost grows with the bytes, not with their square: a million parts of one byte each
    would otherwise copy half a terabyte."""
    size = 1024 * 1024
    data = encode(Command.PROCESS_MESSAGE, bytes(size))
    reader = FrameReader(size)
    for at in range(len(data) - 1):
        assert not reader.feed(data[at : at + 1])
    ((command, payload),) = reader.feed(data[-1:])
    assert (command, payload) == (0, bytes(size))
    assert not reader.incomplete
