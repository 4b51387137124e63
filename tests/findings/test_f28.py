"""F28: an archived message over 256 KiB was never delivered live, and newer ones overtook it."""

from __future__ import annotations

import json
from pathlib import Path

from angarium.pickup.client import PickupClient
from tests.findings.pickup_wire import (
    DID,
    connected,
    environment,
    opened_store,
    status_of_queue,
    url_of,
)
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.pickup.harness import Inbox

# With its quotes, exactly the limit of a message.
BIG = "x" * (512 * 1024 - 2)
ARCHIVED = [BIG, "small 1", "y" * 300_000, "small 2", BIG, BIG, "small 3"]
NEWER = ["new 1", "z" * 400_000, "new 2"]


async def test_archived_messages_of_any_legal_size_are_delivered_live_in_order_of_arrival(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path, ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP="1000")
    async with (
        RoleProcess(["serve", "gateway"], env) as role,
        connected(url_of(role)) as sender,
        opened_store(env) as store,
    ):
        ids = [await sender.add("c1", each) for each in ARCHIVED]

        async def archived() -> bool:
            return (await status_of_queue(store, "c1")).archived == len(ARCHIVED)

        await eventually(archived, 30)
        ids += [await sender.add("c1", each) for each in NEWER]
        inbox = Inbox()
        async with PickupClient(url_of(role), on_messages=inbox) as recipient:
            await recipient.add_live_session("c1", "s1")
            await eventually(lambda: len(inbox.ids) >= len(ids), 15)
            assert inbox.ids == ids
            await recipient.remove_messages("c1", ids)
            ids.append(await sender.add("c1", "last"))
            await inbox.has(ids[-1])
            assert inbox.ids == ids


async def test_an_archived_message_over_the_limit_of_one_answer_is_taken_too(
    redis_url: str, tmp_path: Path
) -> None:
    """The gateway's own limit must not hide a message; the limit that a client names is kept."""
    env = environment(
        redis_url,
        tmp_path,
        ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP="200",
        ANGARIUM_LIMITS__PICKUP_TAKE_BYTES_MAX="1000",
    )
    async with (
        RoleProcess(["serve", "gateway"], env) as role,
        connected(url_of(role)) as wire,
        opened_store(env) as store,
    ):
        ids = [await wire.add("c1", each) for each in ("a" * 5_000, "b", "c" * 5_000)]

        async def archived() -> bool:
            return (await status_of_queue(store, "c1")).archived == len(ids)

        await eventually(archived, 30)
        ids += [await wire.add("c1", "d" * 5_000), await wire.add("c1", "e")]
        limited = {"connectionId": "c1", "recipientDid": DID, "limitBytes": 100}
        assert (await wire.ask("takeFromQueue", limited))["result"] == []
        taken: list[str] = []
        while found := (await wire.ask("takeFromQueue", {"connectionId": "c1"}))["result"]:
            assert len(found) == 1 or len(json.dumps(found)) < 2_000
            taken += [each["id"] for each in found]
        assert taken == ids
