"""Message ids: UUID4 text whose last four digits also tell the partition.

An acknowledgement brings nothing but the id, and may reach any dispatcher, so the id itself has
to lead to the partition: its last 16 bits, modulo the number of partitions. 106 of the 122
random bits stay random in the worst case; with one partition all of them.
"""

from __future__ import annotations

import os
import re

ID_BYTES = 36
_VARIANT = "89ab" * 4
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.I)


def new_ids(count: int, partition: int = 0, partitions: int = 1) -> list[bytes]:
    """`count` fresh ids of one partition."""
    digits = os.urandom(16 * count).hex()
    ids = []
    span = 65536 - 65536 % partitions
    for start in range(0, 32 * count, 32):
        d = digits[start : start + 32]
        end = d[28:]
        if partitions > 1:
            number = int(end, 16) % span
            end = f"{number - number % partitions + partition:04x}"
        variant = _VARIANT[int(d[16], 16)]
        ids.append(f"{d[:8]}-{d[8:12]}-4{d[13:16]}-{variant}{d[17:20]}-{d[20:28]}{end}".encode())
    return ids


def partition_of_id(message_id: bytes, partitions: int) -> int:
    return int(message_id[-4:], 16) % partitions if partitions > 1 else 0


def is_message_id(text: bytes) -> bool:
    return _ID.fullmatch(text) is not None
