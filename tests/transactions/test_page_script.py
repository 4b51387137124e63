"""`page_transactions`, called directly: order, filters and the start of the next page."""

from __future__ import annotations

from angarium.transactions import keys
from angarium.transactions.model import TransactionStatus
from angarium.transactions.store import pages
from angarium.transactions.store.pages import TransactionFilter, TransactionPages
from tests.transactions.harness import harness


async def test_a_page_is_in_the_order_of_its_source_and_says_where_to_go_on(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        started = [await here.start("one", owner="ann") for _ in range(5)]
        found = TransactionPages(here.runtime)
        (queue,) = [
            s for s in found.sources(TransactionStatus.QUEUED, ["default"]) if "qInL" in s[2]
        ]
        first, after = await found.rows(queue, TransactionFilter(TransactionStatus.QUEUED), 0, 2)
        assert [row.id for row in first] == started[:2]
        assert after == 2
        rest, after = await found.rows(queue, TransactionFilter(TransactionStatus.QUEUED), 2, 50)
        assert [row.id for row in rest] == started[2:]
        assert after is None
        assert (rest[0].owner, rest[0].pipeline, rest[0].node_group) == ("ann", "one", "default")


async def test_a_filtered_page_omits_other_transactions_and_stops_at_its_read_limit(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        for number in range(12):
            await here.start("two" if number == 11 else "one", {"sum": 0}, owner=f"o{number % 2}")
        module_keys = here.store.keys
        names = [module_keys.stem(keys.STATE, 0), module_keys.name(keys.QUEUE_IN, 0, "default")]
        args = ("list", 0, 50, 5, "two", "", "queued", 1, "label")
        after, *found = await here.runtime.run(pages.PAGE, 0, names, args)
        assert (after, found) == (5, []), "five were looked at, and none fits"
        after, *found = await here.runtime.run(pages.PAGE, 0, names, ("list", 10, *args[2:]))
        assert after == -1
        assert [row[2] for row in found] == [b"default|two|o1"]


async def test_an_entry_without_a_state_is_omitted(redis_url: str) -> None:
    async with harness(redis_url) as here:
        started = [await here.start() for _ in range(3)]
        name = here.store.keys.state(0, started[1])
        await here.runtime.redis.call("DEL", name, key=name)
        found = TransactionPages(here.runtime)
        rows = []
        for source in found.sources(TransactionStatus.QUEUED, ["default"]):
            some, _ = await found.rows(source, TransactionFilter(TransactionStatus.QUEUED), 0, 10)
            rows += some
        assert [row.id for row in rows] == [started[0], started[2]]
