"""The journal: readable entries, positions that hold it, a size limit that is never silent."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY

from angarium.runtime import keys
from angarium.runtime.journal import EntryUnreadable, Journal, JournalMetrics, decode_entry
from tests.kit.clock import FakeClock
from tests.kit.sample import SampleStore, sample_runtime


async def test_entries_carry_running_numbers_without_a_hole(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url, clock=FakeClock(1_700_000_000_123)) as runtime:
        store, journal = SampleStore(runtime), Journal(runtime)
        for number in range(40):
            await store.accept(f"id{number}")
        subjects = []
        for partition in range(runtime.settings.partitions):
            expected = 1
            for entry_id, fields in await journal.read(partition):
                entry = decode_entry(entry_id, fields)
                assert entry.first_sequence == expected
                assert entry.at_ms == 1_700_000_000_123
                expected += len(entry.events)
                subjects += [event.subject for event in entry.events]
        assert sorted(subjects) == sorted(f"id{number}" for number in range(40))


async def test_any_text_survives_the_journal(redis_url: str) -> None:
    odd = ['"quoted"', "new\nline", "tab\tand \\ slash", "naïve – ☃ 😀", "\x00\x1f", ""]
    async with sample_runtime(redis_url) as runtime:
        store, journal = SampleStore(runtime), Journal(runtime)
        for text in odd:
            assert await store.accept(text) == "accepted"
        entries = [decode_entry(*raw) for raw in await journal.read(0)]
        assert [event.subject for entry in entries for event in entry.events] == odd


async def test_only_what_every_reader_has_committed_is_trimmed(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        store, journal = SampleStore(runtime), Journal(runtime)
        await journal.register("lake")
        await journal.register("slow")
        ids = [f"id{n}" for n in range(3000) if runtime.keyspace.partition_of(f"id{n}") == 0]
        for item in ids:
            await store.accept(item)
        entries = await journal.read(0, entries_max=10_000)
        middle, last = entries[len(entries) // 2][0].decode(), entries[-1][0].decode()
        assert await journal.commit("lake", 0, last) == last
        assert (await journal.status(0)).entries == len(entries)
        await journal.commit("slow", 0, middle)
        kept = await journal.read(0, entries_max=10_000)
        assert len(entries) // 2 <= len(kept) < len(entries)
        assert await journal.commit("slow", 0, "5-0") == middle, "a position never goes back"
        await journal.forget("slow")
        await journal.forget("slow")  # the second time changes nothing
        await journal.commit("lake", 0, last)
        status = await journal.status(0)
        assert status.entries <= 200, "only whole nodes are freed, so a few may stay"
        assert status.dropped_events == 0
        assert status.readers == {"lake": last}


async def test_past_the_size_limit_the_oldest_go_and_are_counted(redis_url: str) -> None:
    async with sample_runtime(redis_url, journal={"bytes_max": 20_000}) as runtime:
        store, journal = SampleStore(runtime), Journal(runtime)
        await journal.register("asleep")
        for number in range(2_000):
            await store.accept(f"a-rather-long-identifier-{number:06}")
        status = await journal.status(0)
        entries = [decode_entry(*raw) for raw in await journal.read(0, entries_max=10_000)]
        kept = sum(len(entry.events) for entry in entries)
        assert status.events == 2_000
        assert status.dropped_events == 2_000 - kept > 0
        assert entries[0].first_sequence == status.dropped_events + 1
        size = runtime.redis.call("MEMORY", "USAGE", runtime.keyspace.name(keys.JOURNAL))
        assert await size < 3 * 20_000 + 30_000


async def test_a_loss_at_the_limit_is_logged_once_and_counted(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with sample_runtime(redis_url, journal={"bytes_max": 5_000}) as runtime:
        store, watch = SampleStore(runtime), JournalMetrics(runtime)
        await Journal(runtime).register("asleep")
        assert (await watch.run_once()).lost == {}
        for number in range(500):
            await store.accept(f"a-rather-long-identifier-{number:06}")
        lost = (await watch.run_once()).lost
        assert (await watch.run_once()).lost == {}
        status = await Journal(runtime).status(0)
        assert lost == {0: status.dropped_events}
        (record,) = [r for r in caplog.records if "journal_events_lost" in str(r.msg)]
        told: Any = record.msg
        assert told["events"] == status.dropped_events > 0
        assert told["readers"] == ["asleep"]
        assert "ANGARIUM_JOURNAL__BYTES_MAX" in told["fix"]
        shown = REGISTRY.get_sample_value("angarium_journal_dropped_events", {"partition": "0"})
        assert shown == status.dropped_events
        behind = {"partition": "0", "reader": "asleep"}
        assert (REGISTRY.get_sample_value("angarium_journal_reader_behind_ms", behind) or 0) > 0


async def test_a_disabled_journal_writes_no_key(redis_url: str) -> None:
    async with sample_runtime(redis_url, journal={"enabled": False}) as runtime:
        assert await SampleStore(runtime).accept("a") == "accepted"
        status = await Journal(runtime).status(0)
        assert (status.entries, status.events) == (0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b"hello", b"world"],
        [b"v", b"2", b"rows", b"{}"],
        [b"v", b"1", b"rows", b"not json", b"n", b"1", b"seq", b"1", b"module", b"x", b"at", b"1"],
        [b"v", b"1", b"rows", b'{"e":"a","s":"b"}', b"n", b"2", b"seq", b"2", b"module", b"x"],
        [b"v", b"1", b"rows", b'{"e":"a"}', b"n", b"1", b"seq", b"1", b"module", b"x", b"at", b"1"],
    ],
)
def test_a_foreign_entry_is_refused_by_name(fields: list[bytes]) -> None:
    with pytest.raises(EntryUnreadable):
        decode_entry(b"1-1", fields)


def test_an_entry_of_version_0_1_calls_the_module_a_room() -> None:
    rows = [b"rows", b'{"e":"a","s":"b"}', b"n", b"1", b"seq", b"1", b"at", b"1", b"by", b"w"]
    assert decode_entry(b"1-1", [b"v", b"1", b"room", b"pickup", *rows]).module == "pickup"
    assert decode_entry(b"1-1", [b"v", b"1", b"module", b"pickup", *rows]).module == "pickup"
