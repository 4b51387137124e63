"""A message with an id of its sender is added once, also if the sender repeats the call."""

from __future__ import annotations

from typing import Any

import pytest

from angarium.pickup import keys
from angarium.pickup.deduplicated_add import DeduplicatedAdd, NewMessage, derived_id, is_derived_id
from angarium.pickup.errors import QueueFull
from angarium.pickup.store import PickupStore, TakeLimits
from angarium.runtime.errors import InputInvalid, LimitExceeded
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.runtime import Runtime
from tests.kit.sample import sample_runtime

ID = derived_id("a", "b")
PUSH: dict[str, Any] = {"pickup": {"push_url": "http://127.0.0.1:1/push"}}


def new_message(**more: Any) -> NewMessage:
    return NewMessage(**{"connection_id": "anna", "payload": b'"x"', "message_id": ID, **more})


async def events(runtime: Runtime) -> list[tuple[str, str, str | None]]:
    found = []
    for partition in range(runtime.settings.partitions):
        for entry_id, fields in await Journal(runtime).read(partition, entries_max=1_000):
            entry = decode_entry(entry_id, fields)
            found += [(each.event, each.subject, each.detail) for each in entry.events]
    return found


async def test_a_message_is_stored_once_and_has_one_event(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        adds = DeduplicatedAdd(runtime)
        assert await adds.add(new_message(stands_for="reply-1")) == "offline"
        assert await adds.add(new_message(stands_for="reply-1")) == "duplicate"
        found = await PickupStore(runtime).queue_status("default:anna")
        assert found is not None
        assert found.pending == 1
        assert await events(runtime) == [("accepted", ID, "reply-1")]


async def test_a_repeat_does_not_restore_a_removed_message(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        adds, store = DeduplicatedAdd(runtime), PickupStore(runtime)
        for partition in store.partitions:
            await store.moves.write_counts(partition, [], last=True)
        await adds.add(new_message())
        await store.remove("default:anna", "delivered", [ID])
        assert await adds.add(new_message()) == "removed"
        assert await store.queue_status("default:anna") is None


async def test_messages_keep_the_order_in_which_they_were_added(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        adds, store = DeduplicatedAdd(runtime), PickupStore(runtime)
        for partition in store.partitions:
            await store.moves.write_counts(partition, [], last=True)
        ids = [derived_id(str(number)) for number in range(20)]
        for each in ids:
            await adds.add(new_message(message_id=each))
        await adds.add(new_message(message_id=ids[0]))  # a repeat does not change the order
        reply = await store.take("default:anna", "", TakeLimits(100, 10_000))
        assert [each.decode() for each in reply[3::2]] == ids


async def test_a_full_queue_refuses_a_message_and_does_not_remember_its_id(redis_url: str) -> None:
    async with sample_runtime(redis_url, limits={"pickup_queue_messages_max": 1}) as runtime:
        adds = DeduplicatedAdd(runtime)
        await adds.add(new_message())
        other = derived_id("other")
        with pytest.raises(QueueFull):
            await adds.add(new_message(message_id=other))
        name = runtime.keyspace.name(keys.PICKUP_ONCE, 0, other)
        assert await runtime.redis.call("EXISTS", name, key=name) == 0


async def test_an_offline_recipient_is_notified_if_the_message_has_a_token(redis_url: str) -> None:
    async with sample_runtime(redis_url, **PUSH) as runtime:
        adds = DeduplicatedAdd(runtime)
        await adds.add(new_message())
        assert "push_scheduled" not in [each[0] for each in await events(runtime)]
        await adds.add(new_message(message_id=derived_id("two"), push_token="phone"))
        assert "push_scheduled" in [each[0] for each in await events(runtime)]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"connection_id": "a b"}, InputInvalid),
        ({"connection_id": ""}, InputInvalid),
        ({"recipients": ["a b"]}, InputInvalid),
        ({"payload": b"x" * 2**21}, LimitExceeded),
        ({"payload": b"no json"}, InputInvalid),
        ({"payload": b"1e999999"}, InputInvalid),
    ],
)
async def test_an_invalid_message_is_refused(
    redis_url: str, more: dict[str, Any], error: type[Exception]
) -> None:
    async with sample_runtime(redis_url) as runtime:
        with pytest.raises(error):
            await DeduplicatedAdd(runtime).add(new_message(**more))
        assert await events(runtime) == []


def test_a_derived_id_depends_on_its_parts_and_differs_from_ids_of_the_gateway() -> None:
    assert derived_id("a", "b") == derived_id("a", "b") != derived_id("ab", "")
    assert is_derived_id(ID)
    assert ID.isalnum()
    assert len(ID) <= 64
    assert not is_derived_id("0192f0c8b2d17c3f8a6e0f6d2c9b1a77")
