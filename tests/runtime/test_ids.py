"""Ids that grow, whatever the clock does and whoever asks."""

from __future__ import annotations

import os
import threading
import uuid

from hypothesis import given
from hypothesis import strategies as st

from angarium.runtime.ids import TimeOrderedIds, time_ordered_hex, time_ordered_id


def test_ids_are_version_7_and_grow() -> None:
    ids = [time_ordered_id() for _ in range(20_000)]
    assert ids == sorted(set(ids))
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}
    # As text and as bytes too, so that an index of any kind takes them at its end.
    assert [str(one) for one in ids] == sorted(str(one) for one in ids)


def test_ids_as_digits_are_of_the_same_order() -> None:
    ids = [each for _ in range(1_000) for each in (time_ordered_id().hex, time_ordered_hex())]
    assert ids == sorted(set(ids))
    assert {uuid.UUID(one).version for one in ids} == {7}


def test_a_forked_process_draws_ids_of_its_own() -> None:
    time_ordered_id()  # so that there is something to inherit
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, " ".join(time_ordered_hex() for _ in range(500)).encode())
        finally:
            os._exit(0)
    ours = [time_ordered_hex() for _ in range(500)]
    os.close(writer)
    with os.fdopen(reader) as told:
        theirs = told.read().split()
    assert os.waitpid(child, 0)[1] == 0
    assert len(theirs) == 500
    # Not even what is random in an id: two processes of one millisecond differ in nothing else.
    assert not {one[16:] for one in ours} & {one[16:] for one in theirs}


@given(st.lists(st.integers(min_value=0, max_value=2**47 * 1_000_000), min_size=1, max_size=50))
def test_ids_grow_whatever_the_clock_does(readings: list[int]) -> None:
    clock = iter(readings)
    source = TimeOrderedIds(lambda: next(clock))
    ids = [source.next() for _ in readings]
    assert ids == sorted(set(ids))


def test_threads_share_one_order() -> None:
    ids: list[list[uuid.UUID]] = [[] for _ in range(4)]

    def draw(mine: list[uuid.UUID]) -> None:
        mine.extend(time_ordered_id() for _ in range(2_000))

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in ids)
    assert len({one for mine in ids for one in mine}) == 8_000
