"""Message ids: UUID4 text whose last four hexadecimal digits determine the partition.

An acknowledgement carries only the id and may arrive at any dispatcher. So the id determines the
partition: its last 16 bits, modulo the number of partitions. At least 106 of the 122 random bits
stay random; with one partition all of them do.
"""

from __future__ import annotations

import os
import re
import struct
from binascii import hexlify

ID_BYTES = 36
# The pattern lists both cases: a pattern that ignores case takes three times as long.
ID_PATTERN = (
    rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
)
_ID = re.compile(ID_PATTERN)
_GROUPS = struct.Struct("8s4s4s4s12s")
# Translation tables that set the version bits and the variant bits of a random byte.
_VERSION = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))


def new_ids(count: int, partition: int = 0, partitions: int = 1) -> list[bytes]:
    """`count` new ids that belong to one partition."""
    raw = bytearray(os.urandom(16 * count))
    raw[6::16] = raw[6::16].translate(_VERSION)
    raw[8::16] = raw[8::16].translate(_VARIANT)
    if partitions > 1:
        span = 65536 - 65536 % partitions
        for at in range(14, 16 * count, 16):
            number = (raw[at] << 8 | raw[at + 1]) % span
            raw[at], raw[at + 1] = divmod(number - number % partitions + partition, 256)
    return [b"-".join(groups) for groups in _GROUPS.iter_unpack(hexlify(raw))]


def partition_of_id(message_id: bytes, partitions: int) -> int:
    return int(message_id[-4:], 16) % partitions if partitions > 1 else 0


def is_message_id(text: bytes) -> bool:
    return _ID.fullmatch(text) is not None
