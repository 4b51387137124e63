"""A journal whose reader stands still: by setting new work is refused before anything is lost."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from angarium.client.client import Client
from angarium.runtime.errors import JournalFull
from angarium.runtime.journal import Journal, JournalMetrics
from angarium.runtime.runtime import Runtime
from angarium.server.dashboard.overview import OverviewSampler
from angarium.settings import Settings
from tests.kit.sample import SampleStore

BYTES_MAX = 10_000
MESSAGES_MAX = 400


def settings_of(url: str, prefix: str, full: str) -> Settings:
    journal = {"bytes_max": BYTES_MAX, "full": full}
    return Settings(redis_url=url, prefix=prefix, journal=journal)


async def publish_until_refused(settings: Settings) -> int:
    """How many durable messages were accepted."""
    async with Client(settings) as client:
        for number in range(MESSAGES_MAX):
            try:
                await client.dispatch.enqueue({"order": number})
            except JournalFull:
                return number
    return MESSAGES_MAX


async def test_new_work_is_refused_until_the_reader_has_caught_up(redis_url: str) -> None:
    settings = settings_of(redis_url, "full1:", "refuse")
    async with Runtime.open(settings) as runtime:
        journal = Journal(runtime)
        await journal.register("lake")
        accepted = await publish_until_refused(settings)
        assert 0 < accepted < MESSAGES_MAX
        status = await journal.status(0)
        assert status.full
        assert (status.events, status.dropped_events) == (accepted, 0), "nothing was lost"
        assert await publish_until_refused(settings) == 0

        await JournalMetrics(runtime).run_once()
        assert REGISTRY.get_sample_value("angarium_journal_full", {"partition": "0"}) == 1
        (notice,) = (await OverviewSampler(runtime).sample()).notices[:1]
        assert (notice.module, notice.level) == ("lake", "trouble")
        assert "new work is refused" in notice.text

        await journal.commit("lake", 0, status.last_id)
        assert not (await journal.status(0)).full
        assert await publish_until_refused(settings) > 0


async def test_other_transitions_go_on_while_new_work_is_refused(redis_url: str) -> None:
    settings = settings_of(redis_url, "full2:", "refuse")
    async with Runtime.open(settings) as runtime, Client(runtime=runtime) as client:
        await Journal(runtime).register("lake")
        await publish_until_refused(settings)
        with pytest.raises(JournalFull, match=r"journal\.bytes_max is full") as refused:
            await client.pickup.add("alice", {"order": 18})
        assert (refused.value.code, refused.value.http_status) == ("journal_full", 503)
        events = (await Journal(runtime).status(0)).events
        assert await SampleStore(runtime).accept("what goes on") == "accepted"
        assert (await Journal(runtime).status(0)).events == events + 1


async def test_without_a_reader_or_without_the_setting_nothing_is_refused(redis_url: str) -> None:
    alone = settings_of(redis_url, "full3:", "refuse")
    assert await publish_until_refused(alone) == MESSAGES_MAX
    dropping = settings_of(redis_url, "full4:", "drop")
    async with Runtime.open(dropping) as runtime:
        journal = Journal(runtime)
        await journal.register("lake")
        assert await publish_until_refused(dropping) == MESSAGES_MAX
        status = await journal.status(0)
        assert status.full
        assert status.dropped_events > 0
        await journal.forget("lake")
        assert not (await journal.status(0)).full


async def test_a_limit_that_was_raised_lets_new_work_in_at_once(redis_url: str) -> None:
    settings = settings_of(redis_url, "full5:", "refuse")
    async with Runtime.open(settings) as runtime:
        await Journal(runtime).register("lake")
        await publish_until_refused(settings)
    journal = {"bytes_max": 4 * BYTES_MAX, "full": "refuse"}
    raised = Settings(redis_url=redis_url, prefix="full5:", journal=journal)
    assert await publish_until_refused(raised) > 0
