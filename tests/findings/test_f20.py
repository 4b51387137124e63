"""Lists of transactions are bounded in bytes, and a filter finds what is there."""

from __future__ import annotations

from angarium.transactions.pages import TransactionFilter
from tests.transactions.harness import harness
from tests.transactions.test_page_script import QUEUED


async def test_f20_a_filter_finds_its_transaction_behind_many_others(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        for _ in range(2_100):
            await here.start("one", owner="others")
        mine = [await here.start("one", owner="me") for _ in range(3)]
        assert sorted(row.id for row in await here.listed(QUEUED, owner="me")) == sorted(mine)
        summaries = await here.client.page(TransactionFilter(QUEUED, owner="me"), 50)
        assert sorted(row.id for row in summaries.transactions) == sorted(mine)


async def test_f20_a_page_of_large_transactions_is_limited_in_bytes(redis_url: str) -> None:
    async with harness(redis_url) as here:
        started = [await here.start("one", "x" * 900_000) for _ in range(24)]
        found: list[str] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            page = await here.client.page_whole(TransactionFilter(QUEUED), 500, after)
            assert len(page.transactions) <= 10, "8 MiB and one more"
            found += [each.id for each in page.transactions]
            after, pages = page.next, pages + 1
        assert found == started
        assert pages >= 3
