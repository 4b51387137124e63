"""Message ids: UUID4s that determine their partition."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.message_ids import ID_BYTES, is_message_id, new_ids, partition_of_id


@given(partitions=st.integers(1, 300), data=st.data())
def test_an_id_is_a_uuid4_and_determines_its_partition(
    partitions: int, data: st.DataObject
) -> None:
    partition = data.draw(st.integers(0, partitions - 1))
    for message_id in new_ids(5, partition, partitions):
        assert len(message_id) == ID_BYTES
        read = uuid.UUID(message_id.decode())
        assert (read.version, read.variant) == (4, uuid.RFC_4122)
        assert str(read).encode() == message_id
        assert is_message_id(message_id)
        assert partition_of_id(message_id, partitions) == partition
        assert partition_of_id(message_id.upper(), partitions) == partition


@given(uuid4=st.uuids(version=4), partitions=st.integers(1, 300))
def test_any_uuid4_has_a_partition(uuid4: uuid.UUID, partitions: int) -> None:
    message_id = str(uuid4).encode()
    assert is_message_id(message_id)
    assert 0 <= partition_of_id(message_id, partitions) < partitions


def test_ids_are_unique_and_every_digit_is_random() -> None:
    ids = new_ids(20_000, 3, 4)
    assert len(set(ids)) == 20_000
    fixed = {8: 1, 13: 1, 14: 1, 18: 1, 19: 4, 23: 1, 35: 4}
    for position in range(ID_BYTES):
        assert len({each[position] for each in ids}) == fixed.get(position, 16), position


def test_ids_without_a_partition_spread_over_all_of_them() -> None:
    counts = Counter(partition_of_id(each, 7) for each in new_ids(14_000))
    assert set(counts) == set(range(7))
    assert all(1_600 < count < 2_400 for count in counts.values())


def test_zero_ids_are_an_empty_list() -> None:
    assert new_ids(0) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d1",
        b"0b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d100",
        b"0b7f3c52-8a4e-1d0c-9f00-2f5a1c3e9d10",
        b"0b7f3c52-8a4e-4d0c-7f00-2f5a1c3e9d10",
        b"0b7f3c528a4e4d0c9f002f5a1c3e9d10",
        b"{b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d1}",
        b"0b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d1\n",
        b"0b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d10\n",
        b"0b7f3c52_8a4e_4d0c_9f00_2f5a1c3e9d10",
        "０b7f3c52-8a4e-4d0c-9f00-2f5a1c3e9d".encode(),
    ],
)
def test_a_text_that_is_not_a_uuid4_is_not_a_message_id(text: bytes) -> None:
    assert not is_message_id(text)
