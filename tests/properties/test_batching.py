"""Batching under any interleaving: each call answered once, with its own result, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from angarium.runtime.batching import Batcher
from angarium.runtime.errors import RedisUnavailable
from angarium.runtime.limits import Limits
from tests.faults.profile import rounds

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "submit", "cancel", "turn", "fail"]),
        st.integers(0, 2),
        st.integers(0, 60),
    ),
    max_size=80,
)


@settings(max_examples=rounds(150, 3_000), deadline=None)
@given(STEPS, st.integers(1, 5), st.integers(10, 120))
def test_every_interleaving_answers_each_call_once_and_in_order(
    steps: list[Step], items_max: int, bytes_max: int
) -> None:
    limits = Limits(batch_items_max=items_max, batch_bytes_max=bytes_max)
    assert asyncio.run(_wrong_in(steps, limits)) == []


async def _wrong_in(steps: list[Step], limits: Limits) -> list[str]:
    ran: dict[int, list[int]] = {0: [], 1: [], 2: []}
    in_flight = {0: 0, 1: 0, 2: 0}
    overlapping: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    failures = 0
    wrong: list[str] = []

    async def run(partition: int, items: list[int]) -> Sequence[int | Exception]:
        nonlocal failures
        in_flight[partition] += 1
        began = {number % 4 for number in items}
        # Noted, not asserted here: an error in here would only reach the callers.
        if not 1 <= len(items) <= limits.batch_items_max:
            wrong.append(f"a batch of {len(items)}")
        if in_flight[partition] > 2:
            wrong.append("three in flight")
        if overlapping[partition] & began:
            wrong.append("an order is in flight twice")
        overlapping[partition] |= began
        for _ in range(2 + items[0] % 5):
            await asyncio.sleep(0)
        overlapping[partition] -= began
        in_flight[partition] -= 1
        if failures:
            failures -= 1
            raise RedisUnavailable("injected")
        ran[partition].extend(items)
        return items

    submitted: dict[int, list[tuple[int, asyncio.Future[int]]]] = {0: [], 1: [], 2: []}
    async with Batcher(run, limits) as batcher:
        for number, (kind, partition, size) in enumerate(steps):
            if kind == "submit":
                future = batcher.submit(partition, number, number % 4, size)
                submitted[partition].append((number, future))
            elif kind == "cancel" and submitted[partition]:
                submitted[partition][size % len(submitted[partition])][1].cancel()
            elif kind == "fail":
                failures += 1
            else:
                await asyncio.sleep(0)

    for partition, calls in submitted.items():
        done = ran[partition]
        for order in range(4):
            mine = [number for number in done if number % 4 == order]
            if mine != sorted(mine):
                wrong.append("order of submission broken")
        if len(set(done)) != len(done):
            wrong.append("an item ran twice")
        for number, future in calls:
            if not future.done():
                wrong.append("a call was never answered")
                continue
            answered = not future.cancelled() and future.exception() is None
            if answered and (future.result() != number or number not in done):
                wrong.append("an answer of another, or of nothing that ran")
    return wrong
