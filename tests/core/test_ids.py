"""Ids that grow, whatever the clock does and whoever asks."""

from __future__ import annotations

import threading
import uuid

from hypothesis import given
from hypothesis import strategies as st

from angarium.core.ids import TimeOrderedIds, time_ordered_id


def test_ids_are_version_7_and_grow() -> None:
    ids = [time_ordered_id() for _ in range(20_000)]
    assert ids == sorted(set(ids))
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}
    # As text and as bytes too, so that an index of any kind takes them at its end.
    assert [str(one) for one in ids] == sorted(str(one) for one in ids)


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
