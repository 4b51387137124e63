"""Callers that know a recipient only: they reach its messages, however these were added."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from angarium.pickup import keys
from angarium.pickup.gateway import Gateway
from tests.findings.pickup_wire import Wire
from tests.kit.eventually import eventually
from tests.pickup.harness import DID, OTHER_DID, QUEUE, gateway, harness, sqlite, status_of, url_of

BY_DID = {"recipient": DID}
LONG_MS = 600_000


@asynccontextmanager
async def wire(service: Gateway) -> AsyncIterator[Wire]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url_of(service), max_msg_size=0) as socket,
    ):
        yield Wire(socket)


async def add(client: Wire, connection: str, payload: Any = 1, did: str = DID) -> str:
    params = {"connectionId": connection, "recipientDids": [did], "payload": payload}
    return str((await client.ask("addMessage", params))["result"]["messageId"])


async def received(client: Wire, count: int) -> list[tuple[str, str]]:
    """(connection, id) of the first so many messages that were delivered."""
    while True:
        found = [
            (each["params"]["connectionId"], message["id"])
            for each in client.notifications
            for message in each["params"]["messages"]
        ]
        if len(found) >= count:
            return found
        client.notifications.append(await client.hear())


async def pending(client: Wire, params: dict[str, str]) -> int:
    return int((await client.ask("getAvailableMessageCount", params))["result"])


async def test_a_session_by_did_gets_messages_of_every_connection_that_name_it(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(any_redis_url, sqlite(tmp_path)) as one,
        gateway(any_redis_url, sqlite(tmp_path), prefix=one.runtime.settings.prefix) as two,
        wire(one) as sender,
        wire(two) as recipient,
    ):
        before = [("c1", await add(sender, "c1")), ("c2", await add(sender, "c2"))]
        others = await add(sender, "c1", did=OTHER_DID)
        assert (await recipient.ask("addLiveModeSession", BY_DID))["result"] is True
        assert sorted(await received(recipient, 2)) == sorted(before)
        after = [
            ("c1", await add(sender, "c1")),
            (DID, (await sender.ask("addMessageToQueue", [DID, 5]))["result"]["messageId"]),
            ("c3", await add(sender, "c3")),
        ]
        assert sorted(await received(recipient, 5)) == sorted(before + after)
        for connection, message_id in before + after:
            params = {"connectionId": connection, "messageIds": [message_id]}
            assert (await recipient.ask("removeMessages", params))["result"] is True
        assert await pending(sender, BY_DID) == 0
        left = await sender.ask("takeFromQueue", {"connectionId": "c1"})
        assert [each["id"] for each in left["result"]] == [others]


async def test_calls_by_did_see_count_and_remove_messages_of_every_connection(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with gateway(any_redis_url, sqlite(tmp_path)) as service, wire(service) as client:
        ids = [await add(client, connection) for connection in ("c1", "c2", "c1")]
        ids.append((await client.ask("addMessageToQueue", [DID, 5]))["result"]["messageId"])
        await add(client, "c1", did=OTHER_DID)
        assert await pending(client, BY_DID) == 4
        taken = (await client.ask("takeFromQueue", BY_DID | {"limit": 10}))["result"]
        assert [each["id"] for each in taken] == ids, "in order of arrival"
        params = BY_DID | {"messageIds": ids[:2]}
        assert (await client.ask("removeMessages", params))["result"] is True
        for connection in ("c1", "c2"):
            found = await service.store.queue_status(f"default:{connection}")
            sending = 0 if found is None else found.sending
            assert sending == (1 if connection == "c1" else 0)
        assert (await client.ask("removeAllMessages", BY_DID))["result"] is True
        assert await pending(client, {"connectionId": "c1"}) == 1


async def test_a_connection_with_its_own_session_keeps_its_messages(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), grace_ms=50) as service,
        wire(service) as by_did,
        wire(service) as by_connection,
    ):
        await by_did.ask("addLiveSession", BY_DID)
        await by_connection.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s1"})
        sent = await add(by_connection, "c1")
        assert await received(by_connection, 1) == [("c1", sent)]
        await by_connection.socket.close()
        assert await received(by_did, 1) == [("c1", sent)], "the other session has ended"


async def test_a_session_by_did_that_takes_over_gets_the_older_messages_first(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(any_redis_url, sqlite(tmp_path), grace_ms=2_000, sending_ms=LONG_MS) as service,
        wire(service) as sender,
        wire(service) as first,
        wire(service) as second,
    ):
        await first.ask("addLiveSession", BY_DID)
        sent = [("c1", await add(sender, "c1", number)) for number in range(3)]
        assert await received(first, 3) == sent
        await second.ask("addLiveSession", BY_DID)
        params = {"connectionId": "c1", "messageIds": [sent[0][1]]}
        assert (await first.ask("removeMessages", params))["result"] is True, "it is late"
        newer = ("c1", await add(sender, "c1"))
        assert await received(second, 3) == [*sent[1:], newer]


async def test_archived_messages_reach_a_session_by_did_in_order(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), threshold_timestamp=1) as service,
        wire(service) as sender,
        wire(service) as recipient,
    ):
        sent = [("c1", await add(sender, "c1", number)) for number in range(30)]

        async def archived() -> bool:
            found = await service.store.queue_status(QUEUE)
            return found is not None and found.archived == len(sent)

        await eventually(archived, 30)
        sent += [("c1", await add(sender, "c1", number)) for number in range(3)]
        await recipient.ask("addLiveSession", BY_DID)
        assert await received(recipient, len(sent)) == sent


async def test_the_window_of_a_session_by_did_opens_with_its_acknowledgements(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_sending_messages_max": 10}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        wire(service) as sender,
        wire(service) as recipient,
    ):
        sent = [("c1", await add(sender, "c1", number)) for number in range(35)]
        await recipient.ask("addLiveSession", BY_DID)
        for end in (10, 20, 30):
            found = await received(recipient, end)
            assert found == sent[:end], "the window has space for ten"
            ids = [message_id for _, message_id in found[end - 10 :]]
            await recipient.ask("removeMessages", BY_DID | {"messageIds": ids})
        assert await received(recipient, 35) == sent


async def test_nothing_is_left_of_ended_queues_and_gateways(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        dids, recipient = pickup.store.dids, f"default:{DID}"
        ids = [await pickup.add(f"default:c{number}") for number in range(20)]
        assert len(await dids.queues_of(recipient)) == 20
        assert await dids.queues_of(f"default:{OTHER_DID}") == []
        await pickup.open("default:c0")
        await dids.name_session(recipient, open=True)
        await sweep(pickup)
        assert len(await dids.queues_of(recipient)) == 20, "they have messages"
        assert await left(pickup, keys.PICKUP_DID_SESSIONS), "the gateway has its lease"
        for number, message_id in enumerate(ids):
            await pickup.queues.remove(f"default:c{number}", [message_id])
        gateway_name = pickup.store.gateway
        await pickup.store.sessions.close("default:c0", gateway=gateway_name, socket="k1")
        await pickup.clock.advance(60)
        await pickup.sweep()
        await sweep(pickup)
        assert await dids.queues_of(recipient) == []
        assert not await left(pickup, keys.PICKUP_DID_SESSIONS, keys.PICKUP_DIDS)


async def test_a_queue_with_many_recipients_has_a_bounded_part_of_the_index(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        for number in range(70):
            await pickup.add(did=f"did:example:{number}")
        found = [
            len(await pickup.store.dids.queues_of(f"default:did:example:{number}"))
            for number in range(70)
        ]
        assert found == [1] * 64 + [0] * 6


async def test_only_the_gateway_that_named_a_session_ends_it(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with (
        harness(any_redis_url, sqlite(tmp_path)) as pickup,
        harness(any_redis_url, sqlite(tmp_path), prefix=pickup.runtime.settings.prefix) as other,
    ):
        recipient = f"default:{DID}"
        await pickup.store.dids.name_session(recipient, open=True)
        await other.store.dids.name_session(recipient, open=True)
        await pickup.store.dids.name_session(recipient, open=False)
        assert await left(pickup, keys.PICKUP_DID_SESSIONS)
        await other.store.dids.name_session(recipient, open=False)
        assert not await left(pickup, keys.PICKUP_DID_SESSIONS)


async def test_a_grace_period_begins_only_without_a_live_session(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        old = await pickup.add_many(2)
        assert await pickup.take() == old
        newer = await pickup.add_many(1)
        await pickup.store.dids.begin_grace([QUEUE])
        assert await pickup.take() == []
        await pickup.clock.advance(6)
        assert await pickup.take() == [*old, *newer]
        term = await pickup.open()
        await pickup.store.dids.begin_grace([QUEUE])
        newest = await pickup.add_many(1)
        assert await pickup.pull(term) == newest
        assert status_of(await pickup.store.sessions.read(QUEUE)) == "live"


async def sweep(pickup: Any) -> None:
    for partition in pickup.store.partitions:
        assert await pickup.store.dids.sweep(partition, "") == ""


async def left(pickup: Any, *kinds: Any) -> Sequence[str]:
    found = []
    for partition in pickup.store.partitions:
        for kind in kinds:
            name = pickup.runtime.keyspace.name(kind, partition)
            if await pickup.runtime.redis.call("EXISTS", name, key=name):
                found.append(name)
    return found
