"""Texts of failures in the record of a message's attempts."""

from __future__ import annotations

from tests.dispatch.harness import store_harness
from tests.kit.clock import FakeClock


async def test_a_reason_of_many_lines_is_one_failure(any_redis_url: str) -> None:
    """Errors of validation libraries have many lines. The worker of the next delivery must be able
    to renew the message, or another one would run it at the same time."""
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        (message_id,) = await ours.accepted(b"x")
        assert await ours.reject(message_id, "2 errors\nname: missing\r\nage: too low", 0) == (
            "requeued"
        )
        assert await ours.claim() == [(message_id, 2)]
        assert await ours.renew(message_id, delivery=2) == ["renewed"]
        assert await ours.renew(message_id, consumer="w2", delivery=1) == ["lost"]
        while await ours.reject(message_id, "again\n\n\n", 0) == "requeued":
            assert await ours.claim()
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert letter.reasons[0] == "2 errors name: missing age: too low"
        assert len(letter.reasons) == letter.deliveries
