"""`page_transactions`, called directly and in pages: order, filters, limits, the next page."""

from __future__ import annotations

from angarium.transactions.model import TransactionStatus
from angarium.transactions.pages import PAGE, PageArgs, PageReply, TransactionFilter
from tests.transactions.harness import Harness, harness

QUEUED = TransactionStatus.QUEUED


async def _page(here: Harness, first: int = 0, read_max: int = 1_000, **filters: str) -> PageReply:
    wanted = {
        "pipeline": "",
        "owner": "",
        "status": "queued",
        "reason": "",
        "fields": "label",
        **filters,
    }
    args = PageArgs("in", "default", first, 50, read_max, 1_000_000, **wanted)
    found: PageReply = await here.runtime.call(PAGE, 0, args)
    return found


async def test_a_page_is_in_the_order_of_its_source_and_says_where_to_go_on(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        started = [await here.start("one", owner="ann") for _ in range(5)]
        first = await here.client.page(TransactionFilter(QUEUED), 2)
        assert [row.id for row in first.transactions] == started[:2]
        assert first.next is not None
        rest = await here.client.page(TransactionFilter(QUEUED), 50, first.next)
        assert [row.id for row in rest.transactions] == started[2:]
        assert rest.next is None
        row = rest.transactions[0]
        assert (row.owner, row.pipeline, row.node_group) == ("ann", "one", "default")


async def test_a_filtered_page_omits_other_transactions_and_stops_at_its_read_limit(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        for number in range(12):
            await here.start("two" if number == 11 else "one", {"sum": 0}, owner=f"o{number % 2}")
        found = await _page(here, read_max=5, pipeline="two")
        assert (found.next, found.rows) == (5, []), "five were looked at, and none fits"
        found = await _page(here, first=10, read_max=5, pipeline="two")
        assert found.next == -1
        assert [row[2] for row in found.rows] == [[b"default|two|o1"]]


async def test_a_reason_is_a_part_of_the_text_and_no_pattern_and_other_filters_are_exact(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        await here.start(owner="ann")
        for taken in await here.take():
            await here.store.complete(taken, "failed", b"", "no", "Value.Error")

        async def found(**filters: str) -> int:
            wanted = {"pipeline": "", "owner": "", "status": "", "reason": "", "fields": "label"}
            args = PageArgs("dead", "", 0, 50, 1_000, 1_000_000, **{**wanted, **filters})
            reply: PageReply = await here.runtime.call(PAGE, 0, args)
            return len(reply.rows)

        for reason in ("", "Value", ".Err", "Value.Error"):
            assert await found(reason=reason) == 1, reason
        for reason in ("value", "V.*", "Value.Errors", "%a"):
            assert await found(reason=reason) == 0, reason
        assert await found(owner="ann", pipeline="one", status="failed") == 1
        for exact in ({"owner": "an"}, {"pipeline": "on"}, {"status": "fail"}):
            assert await found(**exact) == 0, exact


async def test_an_entry_without_a_state_is_omitted(redis_url: str) -> None:
    async with harness(redis_url) as here:
        started = [await here.start() for _ in range(3)]
        name = here.state_key(started[1])
        await here.runtime.redis.call("DEL", name, key=name)
        assert [row.id for row in await here.listed(QUEUED)] == [started[0], started[2]]
